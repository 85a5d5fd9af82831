"""Registration of the broker and its topics at the name servers, which return the address of the master.

Many topics are sent in pieces of at most `PIECE_TOPICS` topics and `PIECE_BYTES`, each a complete registration, as with
RocketMQ 5's `enableSplitRegistration`: name servers merge topics, they never remove the missing ones. RocketMQ's
name servers skip the topics of a registration whose data version equals the last one, so each piece has a version of
its own: the last piece that of the table, each before it a timestamp one millisecond smaller than the next. A TandemQ
name server uses the table's own version, which is the same in all pieces (`TABLE_VERSION`). A broker is registered
where every piece was accepted. While pieces are in flight to a name server a change waits until they are answered, so
that at most one table per name server is in flight.

Source: docs/reference/requests.md, "REGISTER_BROKER"; RocketMQ BrokerOuterAPI, RouteInfoManager.
"""

import logging
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from tandemq.boundary import Now, Turn
from tandemq.broker.connections.outbound import Peers
from tandemq.broker.context import CurrentTurn
from tandemq.broker.state.schedule import Schedule
from tandemq.broker.state.topics import Topics
from tandemq.codec.remoting.fastjson import dumps
from tandemq.config.settings import BrokerConfig
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.text import brief
from tandemq.model.topic import Permission

log = logging.getLogger(__name__)
PIECE_TOPICS = 2_000
PIECE_BYTES = 2 << 20
TABLE_VERSION = "tandemDataVersion"
REGISTER_AGAIN_MS = 2_000
WEIGHT_DEFAULT = 100
"""Weight of broker groups that publish none."""
MasterFound = Callable[[str, str, Now], None]
"""Called with the remoting address and the HA address of the master; "" where unknown."""


@dataclass(slots=True)
class _Round:
    """The pieces of one registration at one name server."""

    pieces: int
    left: int
    """Pieces without a response yet."""
    failure: str = ""
    """Why a piece was not accepted."""
    is_outdated: bool = False
    """Whether topics changed since it was sent."""


class Registration:
    """Registers at every name server: at the start, periodically, and when a topic changes."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: Topics,
        peers: Peers,
        schedule: Schedule,
        turn: CurrentTurn,
        master_found: MasterFound,
    ) -> None:
        """Take the collaborators; nothing is sent before `register`."""
        self._config = config
        self._topics = topics
        self._peers = peers
        self._schedule = schedule
        self._turn = turn
        self._master_found = master_found
        self.address = ""
        self.ha_address = ""
        self.broker_id: int | None = config.broker_id
        """Broker id to register, 0 for the master; None: not registered at present."""
        self.weight: int | None = None
        """Weight of the broker group from the registry; None: the one of the settings."""
        self.mode = ""
        """Failover mode of the broker group; "": static."""
        self.epoch = 0
        """Of two addresses with one broker id, a name server accepts the one with the higher epoch."""
        self.registered: set[str] = set()
        """Name servers that accepted the last registration."""
        self._is_due = False
        """Whether a registration is scheduled because a connection closed."""
        self._logged: dict[str, str] = {}
        """By name server: the failure that was logged last; "": success."""
        self._in_flight: dict[str, _Round] = {}
        """By name server: the registration sent last, until all its pieces are answered."""

    def adopt_config(self, config: BrokerConfig) -> None:
        """Take changed settings; the next registration publishes them."""
        self._config = config

    def register(self, turn: Turn, now: Now, *, is_urgent: bool = False) -> None:
        """Register at every name server. `is_urgent`: also where pieces sent before are not answered yet."""
        self._topics.changed = False
        if self.broker_id is None:
            return
        servers = [server for server in self._config.name_servers if is_urgent or not self._waits(server)]
        bodies = self._bodies() if servers else []
        for server in servers:
            current = self._in_flight[server] = _Round(len(bodies), len(bodies))
            for body in bodies:
                command = Command(RequestCode.REGISTER_BROKER, fields=self._fields(body), body=body)
                self._peers.call(
                    server, command, self._config.register_timeout_ms, self._answered(server, current), turn, now
                )

    def closed(self, address: str, now: Now) -> None:
        """Register again soon if a name server's connection closed: it removes the broker with the connection."""
        if address in self._config.name_servers and not self._is_due:
            self._is_due = True
            self._schedule.at(now.mono_ms + min(REGISTER_AGAIN_MS, self._config.register_ms), self._register_again)

    def _register_again(self, now: Now) -> None:
        self._is_due = False
        if self.address:
            self.register(self._turn.out, now)

    def _waits(self, server: str) -> bool:
        """Return whether pieces are in flight to a name server; changes are then sent when they are answered."""
        current = self._in_flight.get(server)
        if current is None or current.pieces == 1 or not current.left:
            return False
        current.is_outdated = True
        return True

    def _fields(self, body: bytes) -> dict[str, str]:
        return self._identity() | {
            "haServerAddr": self.ha_address,
            "compressed": "false",
            "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
            **self._selection_fields(),
        }

    def _bodies(self) -> list[bytes]:
        """Encode the topics, in as many pieces as they need."""
        pieces = self._pieces()
        return [
            dumps({"filterServerList": [], "topicConfigSerializeWrapper": self._wrapper(names, len(pieces) - number)})
            for number, names in enumerate(pieces, start=1)
        ]

    def _pieces(self) -> list[list[str]]:
        pieces: list[list[str]] = [[]]
        size = 0
        for name, topic in self._topics.table.items():
            size += topic.bytes_in_table
            # At least two: RocketMQ 5 refuses an unknown broker with a single topic.
            if len(pieces[-1]) >= PIECE_TOPICS or (size > PIECE_BYTES and len(pieces[-1]) > 1):
                pieces.append([])
                size = topic.bytes_in_table
            pieces[-1].append(name)
        return pieces

    def _identity(self) -> dict[str, str]:
        return {
            "brokerName": self._config.broker_name,
            "brokerAddr": self.address,
            "clusterName": self._config.cluster,
            "brokerId": str(self.broker_id),
        }

    def _selection_fields(self) -> dict[str, str]:
        """Return the fields by which producers choose broker groups; RocketMQ name servers pass on only the zone."""
        weight = self._config.weight if self.weight is None else self.weight
        fields = {
            "brokerWeight": str(weight) if weight != WEIGHT_DEFAULT else "",
            "failoverMode": self.mode,
            "__ZONE_NAME": self._config.zone,
        }
        return {name: value for name, value in fields.items() if value}

    def _wrapper(self, names: list[str], following: int) -> dict[str, object]:
        """Return topics limited to the permission of the broker, in the form that 4.9 and 5.x name servers read.

        Args:
            names: names of the topics.
            following: number of pieces that follow this one.
        """
        table = self._topics.as_json(names)
        if self.epoch:
            table["dataVersion"]["stateVersion"] = self.epoch
        table[TABLE_VERSION] = dict(table["dataVersion"])
        table["dataVersion"]["timestamp"] -= following
        allowed = self._config.permission
        if allowed & Permission.READ_WRITE != Permission.READ_WRITE:
            table["topicConfigTable"] = {
                name: msgspec.structs.replace(config, perm=config.perm & (allowed | Permission.INHERIT))
                for name, config in table["topicConfigTable"].items()
            }
        return table

    def _answered(self, server: str, current: "_Round") -> Callable[[Command | None, Now], None]:
        def on_answer(answer: Command | None, now: Now) -> None:
            current.left -= 1
            if answer is None:
                current.failure = current.failure or "no answer"
            elif answer.code != ResponseCode.SUCCESS:
                current.failure = current.failure or f"refused: {brief(answer.remark)}"
            else:
                self._master_found(answer.fields.get("masterAddr", ""), answer.fields.get("haServerAddr", ""), now)
            if current.left == 0 or current.failure:
                self._note(server, current.failure)
            if current.left == 0 and current.is_outdated:
                self._topics.changed = True

        return on_answer

    def _note(self, server: str, failure: str) -> None:
        """Record the outcome at a name server; log a line when it changes."""
        if failure:
            self.registered.discard(server)
        else:
            self.registered.add(server)
        if self._logged.get(server) != failure:
            self._logged[server] = failure
            if failure:
                log.warning("registration: name_server=%s failure=%r", server, failure)
            else:
                log.info(
                    "registration: name_server=%s registered as %s id=%d at %s",
                    server,
                    self._config.broker_name,
                    self.broker_id,
                    self.address,
                )

    def move(
        self, broker_id: int | None, epoch: int, turn: Turn, now: Now, *, weight: int | None = None, mode: str = ""
    ) -> None:
        """Take a changed role in the broker group: register again with it, or unregister if `broker_id` is None."""
        if (broker_id, epoch, weight, mode) == (self.broker_id, self.epoch, self.weight, self.mode):
            return
        self.weight, self.mode = weight, mode
        if broker_id != self.broker_id and self.broker_id is not None:
            self.unregister(turn)
        self.broker_id, self.epoch = broker_id, epoch
        self.register(turn, now, is_urgent=True)

    def unregister(self, turn: Turn) -> None:
        """Unregister at every name server."""
        for server in sorted(self.registered):
            self._peers.send_oneway(server, Command(RequestCode.UNREGISTER_BROKER, fields=self._identity()), turn)
