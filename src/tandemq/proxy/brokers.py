"""Requests of the proxy to brokers: to the master of a group, wherever it is; attributes of topics and groups.

A broker that is not the master any more, or does not answer, is asked again, or the one that took its place, until the
client's time is over, or `TRY_MS` have passed. So a call outlives a failover that is shorter than its deadline.

Source: docs/reference/grpc.md; RocketMQ MetadataService, ClusterMetadataService.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from tandemq.boundary import Now
from tandemq.client.core.operations import (
    NOT_NOW_CODES,
    Steps,
    ask_any_code,
    checked,
    current_time,
    json_object,
    pause,
    refusal,
    request,
    wait,
)
from tandemq.client.core.routes import Routes, TopicRoute
from tandemq.codec.remoting.bodies import convert
from tandemq.errors import NetworkError, NoRoute, RemoteError, TandemError
from tandemq.model.attributes import MESSAGE_TYPE, MIXED
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.group import SubscriptionGroupConfig
from tandemq.model.topic import TopicConfig
from tandemq.proxy.protocol.messaging_pb2 import Code, MessageType
from tandemq.proxy.status import CallRefused

REQUEST_MS = 2_000
"""Timeout of a request to a broker."""
AGAIN_MS = 100
"""Pause before a group without a master is asked again."""
TRY_MS = 5_000
"""For how long a call is tried while no master answers; longer than a failover takes."""
KEPT_MS = 20_000
"""Age at which an attribute is fetched again."""
ENTRIES_MAX = 10_000
"""Maximum number of topics and of groups whose attributes are kept."""
MIXED_TYPES = (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION)
_TYPES = {
    "FIFO": MessageType.FIFO,
    "DELAY": MessageType.DELAY,
    "TRANSACTION": MessageType.TRANSACTION,
    "PRIORITY": MessageType.PRIORITY,
}
T = TypeVar("T")


class _Kept(Generic[T]):
    """Values by name, for a time."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[int, T]] = {}

    def get(self, name: str, now: Now) -> T | None:
        """Return a value that is young enough."""
        entry = self._entries.get(name)
        return entry[1] if entry is not None and now.mono_ms - entry[0] < KEPT_MS else None

    def put(self, name: str, value: T, now: Now) -> None:
        """Keep a value; of too many the oldest goes."""
        self._entries.pop(name, None)
        if len(self._entries) >= ENTRIES_MAX:
            del self._entries[next(iter(self._entries))]
        self._entries[name] = (now.mono_ms, value)


class Brokers:
    """The brokers, by the names of their groups."""

    def __init__(self, routes: Routes) -> None:
        """Nothing is known."""
        self._routes = routes
        self._types: _Kept[tuple[MessageType, ...]] = _Kept()
        self._groups: _Kept[SubscriptionGroupConfig] = _Kept()

    def route(self, topic: str) -> Steps[TopicRoute]:
        """Return the route of a topic, which is kept up to date from then on.

        Raises:
            CallRefused: no name server knows the topic.
            NetworkError: no name server responds.
        """
        route = self._routes.get(topic)
        if route is None:
            try:
                route = yield from wait(self._routes.fetch(topic, (yield from current_time())))
            except NoRoute as error:
                raise CallRefused(Code.TOPIC_NOT_FOUND, str(error)) from error
            self._routes.want(topic)
        return route

    def ask_master(
        self,
        topic: str,
        broker: str,
        make: Callable[[Now], Command],
        deadline_ms: int | None,
        timeout_ms: int = REQUEST_MS,
    ) -> Steps[Command]:
        """Send a request to the master of a broker group; return the response, with any code.

        Args:
            topic: a topic of the group.
            make: makes a request for each attempt.
            deadline_ms: when the client gives up, monotonic; None: never.
            timeout_ms: of one attempt.

        Raises:
            CallRefused: there is no such group.
            NoRoute, NetworkError: no master responds; the request may have been carried out.
        """
        if self._routes.master(broker) is None and not self._routes.members(broker):
            yield from self.route(topic)
            if not self._routes.members(broker):
                raise CallRefused(Code.BAD_REQUEST, f"there is no broker {broker[:100]!r} with the topic {topic}")
        until_ms = None
        while True:
            failure: TandemError = NoRoute(f"no master of the broker group {broker} is known")
            address = self._routes.master(broker)
            if address is not None:
                try:
                    answer = yield from ask_any_code(address, make((yield from current_time())), timeout_ms)
                except NetworkError as error:
                    failure = error
                else:
                    if answer.code not in NOT_NOW_CODES:
                        return answer
                    failure = refusal(answer)
            now = yield from current_time()
            if until_ms is None:
                until_ms = now.mono_ms + TRY_MS if deadline_ms is None else min(deadline_ms, now.mono_ms + TRY_MS)
            if now.mono_ms + AGAIN_MS >= until_ms:
                raise failure
            self._routes.refresh(topic, now)
            yield from pause(AGAIN_MS)

    def message_types(self, topic: str, deadline_ms: int | None) -> Steps[tuple[MessageType, ...]]:
        """Return the types of messages that a topic takes: its attribute `message.type`, NORMAL without one.

        Raises:
            CallRefused: there is no such topic.
            NetworkError, NoRoute, RemoteError: no broker reports it.
        """
        now = yield from current_time()
        known = self._types.get(topic, now)
        if known is None:
            route = yield from self.route(topic)
            answer = yield from self._ask_any(
                topic, route, lambda _now: request(RequestCode.GET_TOPIC_CONFIG, topic=topic, lo="true"), deadline_ms
            )
            config = convert({**json_object(checked(answer)), "topicName": topic}, TopicConfig, "topic config")
            known = _types_of(config.attributes.get(MESSAGE_TYPE, ""))
            self._types.put(topic, known, now)
        return known

    def group(self, group: str, topic: str, deadline_ms: int | None) -> Steps[SubscriptionGroupConfig]:
        """Return the configuration of a consumer group; that of new groups if there is none.

        Args:
            topic: a topic whose brokers to ask.

        Raises:
            CallRefused: there is no such topic.
            NetworkError, NoRoute, RemoteError: no broker reports it.
        """
        now = yield from current_time()
        known = self._groups.get(group, now)
        if known is None:
            route = yield from self.route(topic)
            answer = yield from self._ask_any(
                topic, route, lambda _now: request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group=group), deadline_ms
            )
            if answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                return SubscriptionGroupConfig(group)
            known = convert(json_object(checked(answer)), SubscriptionGroupConfig, "group config")
            self._groups.put(group, known, now)
        return known

    def _ask_any(
        self, topic: str, route: TopicRoute, make: Callable[[Now], Command], deadline_ms: int | None
    ) -> Steps[Command]:
        """Return the response of the first broker group of a route that responds; others are asked at once."""
        failure: TandemError = RemoteError(f"the topic {topic} has no broker")
        for name in route.brokers:
            for address in self._routes.read_addresses(name, topic=topic)[:1]:
                try:
                    return (yield from ask_any_code(address, make((yield from current_time())), REQUEST_MS))
                except NetworkError as error:
                    failure = error
        if route.brokers:
            return (yield from self.ask_master(topic, next(iter(route.brokers)), make, deadline_ms))
        raise failure


def _types_of(attribute: str) -> tuple[MessageType, ...]:
    return MIXED_TYPES if attribute == MIXED else (_TYPES.get(attribute, MessageType.NORMAL),)
