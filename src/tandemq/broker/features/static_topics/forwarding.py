"""Requests about older segments, which are in other brokers: their addresses, and the requests themselves.

Addresses come from the route of the topic. They are asked for again after `ADDRESS_MS`, and when a broker does not
answer or refuses: another member of its group may be the master now.

Limits: `FORWARDED_MAX` requests at a time, so that slow brokers do not fill this one's memory.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from tandemq.boundary import Now
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.peers import OnAnswer
from tandemq.codec.remoting.fastjson import loads
from tandemq.errors import ProtocolError
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command

FORWARD_TIMEOUT_MS = 3_000
ADDRESS_MS = 30_000
FORWARDED_MAX = 256
_MOVED_ON = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
    }
)
"""Refusals after which the address is asked for again."""
OnRoute = Callable[[dict[str, Any] | None, Now], None]
"""Called once with the route of a topic; None if no name server has one."""


class _Address(NamedTuple):
    text: str
    until_ms: int


class Forwarding:
    """Requests to other brokers of the same static topics."""

    def __init__(self, kernel: Kernel) -> None:
        """Begin without addresses."""
        self._peers = kernel.peers
        self._current = kernel.current
        self._turn = kernel.turn
        self._addresses: dict[str, _Address] = {}
        """Masters by broker name."""
        self._waiting: dict[str, list[OnRoute]] = {}
        """Callbacks that wait for the route of a topic, by topic."""
        self._in_flight = 0

    @property
    def is_full(self) -> bool:
        """Whether no further request may be forwarded at present."""
        return self._in_flight >= FORWARDED_MAX

    def call(self, topic: str, broker: str, command: Command, on_answer: OnAnswer, now: Now) -> None:
        """Send a request to a broker that has the topic; `on_answer` gets None if it cannot be reached."""
        if self.is_full:
            on_answer(None, now)
            return
        self._in_flight += 1
        ended = partial(self._ended, broker, on_answer)
        known = self._addresses.get(broker)
        if known is not None and now.mono_ms < known.until_ms:
            self._send(known.text, command, ended, now)
            return

        def found(route: dict[str, Any] | None, now: Now) -> None:
            address = master_of(route, broker)
            if address is None:
                ended(None, now)
            else:
                self._addresses[broker] = _Address(address, now.mono_ms + ADDRESS_MS)
                self._send(address, command, ended, now)

        self.route(topic, found, now)

    def _send(self, address: str, command: Command, on_answer: OnAnswer, now: Now) -> None:
        self._peers.call(address, command, FORWARD_TIMEOUT_MS, on_answer, self._turn.out, now)

    def _ended(self, broker: str, on_answer: OnAnswer, answer: Command | None, now: Now) -> None:
        self._in_flight -= 1
        if answer is None or answer.code in _MOVED_ON:
            self._addresses.pop(broker, None)
        on_answer(answer, now)

    def route(self, topic: str, on_route: OnRoute, now: Now) -> None:
        """Ask the name servers, one after the other, for the route of a topic."""
        waiting = self._waiting.get(topic)
        if waiting is not None:
            waiting.append(on_route)
            return
        self._waiting[topic] = [on_route]
        self._ask(topic, list(self._current.config.name_servers), now)

    def _ask(self, topic: str, servers: list[str], now: Now) -> None:
        if not servers:
            self._routed(topic, None, now)
            return

        def on_answer(answer: Command | None, now: Now) -> None:
            route = read_route(answer)
            if route is None:
                self._ask(topic, servers[1:], now)
            else:
                self._routed(topic, route, now)

        request = Command(Code.GET_ROUTEINFO_BY_TOPIC, fields={"topic": topic, "acceptStandardJsonOnly": "true"})
        self._peers.call(servers[0], request, FORWARD_TIMEOUT_MS, on_answer, self._turn.out, now)

    def _routed(self, topic: str, route: dict[str, Any] | None, now: Now) -> None:
        for on_route in self._waiting.pop(topic):
            on_route(route, now)


def read_route(answer: Command | None) -> dict[str, Any] | None:
    """Return the route in a name server's answer; None if it has none."""
    if answer is None or answer.code != ResponseCode.SUCCESS:
        return None
    try:
        route = loads(answer.body, is_trusted=True)
    except ProtocolError:
        return None
    return route if isinstance(route, dict) else None


def master_of(route: dict[str, Any] | None, broker: str) -> str | None:
    """Return the address of a group's master in a route; None if the route has none."""
    groups = (route or {}).get("brokerDatas")
    for group in groups if isinstance(groups, list) else ():
        if isinstance(group, dict) and group.get("brokerName") == broker:
            addresses = group.get("brokerAddrs")
            address = addresses.get("0") if isinstance(addresses, dict) else None
            return address if isinstance(address, str) and address else None
    return None
