"""Queues of a topic that accept messages, and their turns.

Source: RocketMQ TopicPublishInfo.
"""

from collections.abc import Callable
from random import Random

import msgspec

from tandemq.client.core.operations import Steps, current_time, wait
from tandemq.client.core.routes import MASTER_ID, TEMPLATE_TOPIC, Routes, TopicRoute, new_topic_route
from tandemq.errors import NoRoute
from tandemq.model.message import MessageQueue

Select = Callable[[list[MessageQueue]], MessageQueue]
"""Chooses one of a topic's queues, which are sorted. A LocalError that it raises is that of the send."""


class SendTarget(msgspec.Struct, gc=False):
    """Where a message goes: a queue, and the address of the member that stores it."""

    queue: MessageQueue
    address: str
    head: bytes = b""
    """Beginning of the headers of ordinary sends to it; b"" before the first one."""


class TopicPublishInfo:
    """Queues of one topic that accept messages, and whose turn it is."""

    __slots__ = ("_turns", "at_masters", "by_group", "is_weighted", "position", "queues", "route", "version", "weights")

    def __init__(self, route: TopicRoute, routes: Routes, position: int) -> None:
        """The queues as the routes are now. `position`: where the turns start, any number."""
        self.route = route
        self.version = routes.version
        is_new_topic = routes.get(route.topic) is not route
        self.queues = route.publish_queues(None if is_new_topic else routes.takes_messages)
        self.by_group: dict[str, list[MessageQueue]] = {}
        for queue in self.queues:
            self.by_group.setdefault(queue.broker_name, []).append(queue)
        self.weights = {name: routes.group(name).weight for name in self.by_group}
        self.is_weighted = len(set(self.weights.values())) > 1
        self.position = position
        self.at_masters = self._at_masters(routes)
        """Each queue with the address of its master, if every group has one and each queue gets as many messages."""
        self._turns: dict[str, int] = {}

    def _at_masters(self, routes: Routes) -> list[SendTarget]:
        masters = {name: routes.group(name).members.get(MASTER_ID) for name in self.by_group}
        targets = [
            SendTarget(queue, address)
            for queue in self.queues
            if (address := masters[queue.broker_name]) is not None and routes.is_master(address)
        ]
        return targets if len(targets) == len(self.queues) and not self.is_weighted else []

    def next_of(self, broker_name: str) -> MessageQueue:
        """Return the queue of a broker group whose turn it is."""
        queues = self.by_group[broker_name]
        turn = self._turns[broker_name] = self._turns.get(broker_name, self.position) + 1
        return queues[turn % len(queues)]


class TopicPublishTable:
    """Publish info of all topics of one producer, rebuilt when routes have changed."""

    def __init__(self, routes: Routes, random: Random, queues_per_new_topic: int) -> None:
        """Empty. `queues_per_new_topic`: queues per broker of a topic that does not exist yet."""
        self._routes = routes
        self._random = random
        self._queues_per_new_topic = queues_per_new_topic
        self._topics: dict[str, TopicPublishInfo] = {}

    def get(self, topic: str) -> TopicPublishInfo | None:
        """Return the publish info of a topic; None if its route is not known."""
        known = self._topics.get(topic)
        if known is not None and known.version == self._routes.version:
            return known
        route = self._routes.get(topic)
        if route is None:
            return known
        position = known.position if known is not None else self._random.randrange(1 << 16)
        fresh = self._topics[topic] = TopicPublishInfo(route, self._routes, position)
        return fresh

    def find_route(self, topic: str) -> Steps[TopicRoute]:
        """Return the route of a topic, or the one it will have once a broker has created it.

        Raises:
            NoRoute: the topic is unknown, and no broker creates topics.
            NetworkError: no name server responds.
        """
        try:
            return (yield from self._fetch(topic))
        except NoRoute:
            template = yield from self._fetch(TEMPLATE_TOPIC)
        route = new_topic_route(topic, template, self._queues_per_new_topic)
        if not route.publish_queues():
            raise NoRoute(f"no broker creates the topic {topic}", hint="create it with `tandemq topic create`")
        self._topics[topic] = TopicPublishInfo(route, self._routes, self._random.randrange(1 << 16))
        return route

    def _fetch(self, topic: str) -> Steps[TopicRoute]:
        now = yield from current_time()
        return (yield from wait(self._routes.fetch(topic, now)))
