"""How a slave that is not connected to its master learns of it within a second.

Name servers name the master in their responses to registrations, which a slave sends every 30 s. A slave that starts
before its master, or whose master comes back at another address, would wait that long. It asks for the members of its
group instead, in a short request, and registers again when they have another master.

Name servers of 4.9 do not know that request. Source: RocketMQ BrokerOuterAPI, syncBrokerMemberGroup.
"""

from tandemq.boundary import Now
from tandemq.broker.ha.registration import Registration
from tandemq.broker.ha.service import Replication
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.peers import OnAnswer
from tandemq.codec.remoting.fastjson import loads
from tandemq.errors import ProtocolError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command

LOOKUP_MS = 1_000
_TIMEOUT_MS = 3_000


class MasterLookup(Feature):
    """Asks name servers for the master of a slave that has no connection to it."""

    def __init__(self, kernel: Kernel, replication: Replication, registration: Registration) -> None:
        """Ask nothing before `listening`."""
        self._kernel = kernel
        self._replication = replication
        self._registration = registration
        self._asked: set[str] = set()
        """Name servers with a request in flight, and those that do not know it."""
        self._masters: dict[str, str] = {}
        """By name server: the master that it named last."""

    def listening(self, _address: str, _ha_address: str, now: Now) -> None:
        """Look from now on."""
        self._kernel.schedule.every(LOOKUP_MS, self._look, first_ms=now.mono_ms + LOOKUP_MS)

    def _look(self, now: Now) -> None:
        if not self._replication.seeks_master:
            self._masters.clear()
            return
        config = self._kernel.current.config
        fields = {"clusterName": config.cluster, "brokerName": config.broker_name}
        for server in config.name_servers:
            if server not in self._asked:
                self._asked.add(server)
                request = Command(RequestCode.GET_BROKER_MEMBER_GROUP, fields=dict(fields))
                self._kernel.peers.call(
                    server, request, _TIMEOUT_MS, self._answered(server), self._kernel.turn.out, now
                )

    def _answered(self, server: str) -> OnAnswer:
        def on_answer(answer: Command | None, now: Now) -> None:
            if answer is not None and answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return
            self._asked.discard(server)
            if answer is None or answer.code != ResponseCode.SUCCESS or not self._replication.seeks_master:
                return
            master, before = _master(answer.body), self._masters.get(server)
            self._masters[server] = master
            if not master or master == before:
                return
            if before == "":
                self._replication.connect_again(now)
            self._registration.register(self._kernel.turn.out, now)

        return on_answer


def _master(body: bytes) -> str:
    """Return the address of the master in a response; "" if it names none."""
    try:
        members = loads(body)["brokerMemberGroup"]["brokerAddrs"]
        return str(members.get("0", ""))
    except (ProtocolError, KeyError, TypeError, AttributeError):
        return ""
