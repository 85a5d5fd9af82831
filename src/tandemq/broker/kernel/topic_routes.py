"""Routes of topics, which the name servers have: in which brokers their queues are."""

from collections.abc import Callable
from typing import Any

from tandemq.boundary import Now
from tandemq.broker.kernel.kernel import Kernel
from tandemq.codec.remoting.fastjson import loads
from tandemq.errors import ProtocolError
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command

ROUTE_TIMEOUT_MS = 3_000
OnRoute = Callable[[dict[str, Any] | None, Now], None]
"""Called once with the route of a topic; None if no name server has one."""


class TopicRoutes:
    """Requests for routes; those for one topic at the same time are one."""

    def __init__(self, kernel: Kernel) -> None:
        """Begin without requests."""
        self._peers = kernel.peers
        self._current = kernel.current
        self._turn = kernel.turn
        self._waiting: dict[str, list[OnRoute]] = {}
        """Callbacks that wait for the route of a topic, by topic."""

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
        self._peers.call(servers[0], request, ROUTE_TIMEOUT_MS, on_answer, self._turn.out, now)

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
