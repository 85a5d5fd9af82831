"""Members of a consumer group, as its brokers report them.

A broker that was connected just now may not know all members yet, so the members known before count as well for
`MEMBERS_GRACE_MS`; otherwise the first member to reach it would take all queues.
"""

from collections.abc import Callable

from tandemq.boundary import Now
from tandemq.client.core.availability import BrokerAvailability
from tandemq.client.core.calls import Timers
from tandemq.client.core.connections import RemotingClient
from tandemq.client.core.operations import Steps, ask_any_code, current_time, json_object, request
from tandemq.client.core.routes import TopicRoute
from tandemq.errors import NetworkError
from tandemq.model.codes import RequestCode, ResponseCode

MEMBERS_GRACE_MS = 5_000
"""For this long after its connection was opened, a broker may not know all members of a group."""


class GroupMembers:
    """Client ids of one consumer group."""

    def __init__(self, group: str, remoting: RemotingClient, availability: BrokerAvailability, timers: Timers) -> None:
        """No member is known."""
        self._group = group
        self._remoting = remoting
        self._availability = availability
        self._timers = timers
        self._known: set[str] = set()
        self._is_timer_set = False
        self.on_grace_over: Callable[[Now], None] = lambda _now: None
        """Called when members known before do not count any more."""

    def fetch(self, route: TopicRoute) -> Steps[list[str] | None]:
        """Return the client ids reported by the first broker that responds; None if no broker knows the group.

        Args:
            route: of a topic that the group consumes.
        """
        for address in self._addresses(route):
            command = request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=self._group)
            try:
                answer = yield from ask_any_code(address, command)
            except NetworkError:
                continue
            if answer.code == ResponseCode.SUCCESS:
                reported = {str(client_id) for client_id in json_object(answer).get("consumerIdList") or ()}
                return self._with_known(reported, address, (yield from current_time()))
        return None

    def _addresses(self, route: TopicRoute) -> list[str]:
        """Return masters before slaves, inactive brokers last; brokers that are down only if all are."""
        ranked = sorted(
            (broker_id, address) for group in route.brokers.values() for broker_id, address in group.members.items()
        )
        addresses = sorted((address for _, address in ranked), key=self._availability.is_inactive)
        return [address for address in addresses if not self._remoting.is_down(address)] or addresses

    def _with_known(self, reported: set[str], address: str, now: Now) -> list[str]:
        left_ms = MEMBERS_GRACE_MS - self._remoting.open_ms(address, now)
        if left_ms > 0 and not self._known <= reported:
            reported |= self._known
            if not self._is_timer_set:
                self._is_timer_set = True
                self._timers.at(now.mono_ms + left_ms, self._grace_over)
        self._known = reported
        return list(reported)

    def _grace_over(self, now: Now) -> None:
        self._is_timer_set = False
        self.on_grace_over(now)
