"""Where topics are: routes as name servers tell them, polled, and asked for anew when something looks wrong.

    route of a topic = broker groups (name, member addresses by id) + per group: permission, queue numbers

What a name server no longer tells is kept: a topic that is unknown now (its only broker is down) keeps its last route,
and an address that vanished keeps its place until another takes it, so that a member that returns is found by the
links' own probing and not by the next poll. Only sending looks at what is *listed* now.

Owner: the node. Does not know: who uses the routes. Source: docs/requests.md; RocketMQ MQClientInstance.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tandemq.boundary import Now
from tandemq.client.calls import Ticket, Timers
from tandemq.client.links import Links
from tandemq.client.settings import ClientConfig
from tandemq.client.steps import Runner, Steps, ask_any_code, refusal, request, tell_now
from tandemq.codec.fastjson import loads
from tandemq.errors import NetworkError, NoRoute, NotConnected, ProtocolError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue
from tandemq.model.topic import AUTO_CREATE_TOPIC, Permission

log = logging.getLogger(__name__)
MASTER_ID = 0
REFRESH_GAP_MS = 200
"""A topic is not asked for more often than this because of errors."""


@dataclass(frozen=True, slots=True)
class BrokerGroup:
    """The brokers of one name: address by id, 0 the master."""

    cluster: str
    name: str
    members: dict[int, str]


@dataclass(frozen=True, slots=True)
class QueueData:
    """What a broker group offers of a topic."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Where a topic is."""

    topic: str
    brokers: dict[str, BrokerGroup]
    queues: tuple[QueueData, ...]
    order: str = ""
    """For topics of global order "name:queues;…": only these take messages, master or not."""

    def publish_queues(self) -> list[MessageQueue]:
        """Queues that take messages now: writable, with a master; sorted by broker name."""
        if self.order:
            pairs = [piece.split(":") for piece in self.order.split(";") if ":" in piece]
            return [MessageQueue(self.topic, name, queue_id) for name, n in pairs for queue_id in range(int(n))]
        return [
            MessageQueue(self.topic, data.broker_name, queue_id)
            for data in self.queues
            if data.perm & Permission.WRITE and MASTER_ID in self._members(data)
            for queue_id in range(data.write_queue_nums)
        ]

    def subscribe_queues(self) -> list[MessageQueue]:
        """Queues that can be read, from a master or a slave; sorted by broker name."""
        return [
            MessageQueue(self.topic, data.broker_name, queue_id)
            for data in self.queues
            if data.perm & Permission.READ and self._members(data)
            for queue_id in range(data.read_queue_nums)
        ]

    def _members(self, data: QueueData) -> dict[int, str]:
        group = self.brokers.get(data.broker_name)
        return group.members if group is not None else {}


def decode_route(topic: str, body: bytes) -> TopicRoute:
    """A name server's answer.

    Raises:
        ProtocolError: it is no route.
    """
    try:
        raw = loads(body)
        queues = sorted((_queue_data(item) for item in raw.get("queueDatas") or ()), key=lambda data: data.broker_name)
        brokers = {item["brokerName"]: decode_group(item) for item in raw.get("brokerDatas") or ()}
        return TopicRoute(topic, brokers, tuple(queues), raw.get("orderTopicConf") or "")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"the route of {topic} cannot be read: {error!r}") from error


def decode_group(item: dict[str, Any]) -> BrokerGroup:
    """One of a route's broker groups."""
    members = {int(broker_id): str(address) for broker_id, address in item["brokerAddrs"].items()}
    return BrokerGroup(item.get("cluster") or "", item["brokerName"], dict(sorted(members.items())))


def _queue_data(item: dict[str, Any]) -> QueueData:
    return QueueData(item["brokerName"], int(item["readQueueNums"]), int(item["writeQueueNums"]), int(item["perm"]))


class Routes:
    """The routes one client knows."""

    def __init__(self, config: ClientConfig, links: Links, timers: Timers, runner: Runner, now: Now) -> None:
        """None yet."""
        self._config = config
        self._links = links
        self._runner = runner
        self._routes: dict[str, TopicRoute] = {}
        self._wanted: dict[str, None] = {}
        self._asked_ms: dict[str, int] = {}
        self._underway: dict[str, Ticket[TopicRoute]] = {}
        self._members: dict[str, dict[int, str]] = {}
        self._name_server = 0
        self.on_change: list[Callable[[TopicRoute, Now], None]] = []
        """Called with a route that is new or differs from the one before."""
        timers.every(config.route_poll_ms, self._poll, first_ms=now.mono_ms + config.route_poll_ms)

    def get(self, topic: str) -> TopicRoute | None:
        """The last known route."""
        return self._routes.get(topic)

    def want(self, topic: str) -> None:
        """Poll a topic's route from now on."""
        self._wanted[topic] = None

    def topics(self) -> list[str]:
        """Topics that are polled."""
        return list(self._wanted)

    def members(self, broker_name: str) -> dict[int, str]:
        """Addresses of a broker group by id, those last known included."""
        return self._members.get(broker_name, {})

    def broker_names(self) -> list[str]:
        """All broker groups heard of."""
        return list(self._members)

    def name_of(self, address: str) -> str | None:
        """The group an address belongs to."""
        return next((name for name, members in self._members.items() if address in members.values()), None)

    def read_addresses(self, broker_name: str, preferred_id: int = MASTER_ID) -> list[str]:
        """Addresses to read from, best first: the preferred member, then by id; those that are down come last."""
        members = self.members(broker_name)
        order = sorted(members, key=lambda broker_id: (self._links.is_down(members[broker_id]),
                                                       broker_id != preferred_id, broker_id))  # fmt: skip
        return [members[broker_id] for broker_id in order]

    def fetch(self, topic: str, now: Now) -> Ticket[TopicRoute]:
        """Ask for a route now; whoever asks meanwhile gets the same answer.

        Fails with NoRoute (no name server knows the topic) or NetworkError (none answered).
        """
        ticket = self._underway.get(topic)
        if ticket is None:
            self._asked_ms[topic] = now.mono_ms
            ticket = self._underway[topic] = self._runner.start(self._ask(topic), now)
            ticket.then(lambda _done: self._ended(topic))
            if ticket.done:
                del self._underway[topic]
        return ticket

    def _ended(self, topic: str) -> None:
        self._underway.pop(topic, None)

    def refresh(self, topic: str, now: Now) -> None:
        """Something looks wrong: ask soon, unless that was just done."""
        if now.mono_ms - self._asked_ms.get(topic, -REFRESH_GAP_MS) >= REFRESH_GAP_MS:
            self.fetch(topic, now)

    def _poll(self, now: Now) -> None:
        for topic in self._wanted:
            self.fetch(topic, now)

    def _ask(self, topic: str) -> Steps[TopicRoute]:
        answer = yield from self.ask_name_server(
            lambda: request(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic, acceptStandardJsonOnly=True)
        )
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            raise NoRoute(f"no name server knows the topic {topic}", code=answer.code)
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer)
        route = decode_route(topic, answer.body)
        self._learn(route, (yield from tell_now()))
        return route

    def ask_name_server(self, make: Callable[[], Command]) -> Steps[Command]:
        """The answer of the first name server that answers, beginning with the one that did last.

        Raises:
            NetworkError: none did.
        """
        servers = self._config.name_servers
        last: NetworkError = NotConnected("no name server was asked")
        for attempt in range(len(servers)):
            position = (self._name_server + attempt) % len(servers)
            try:
                answer = yield from ask_any_code(servers[position], make())
            except NetworkError as error:
                last = error
            else:
                self._name_server = position
                return answer
        raise last

    def _learn(self, route: TopicRoute, now: Now) -> None:
        known = self._routes.get(route.topic)
        for name, group in route.brokers.items():
            self._members[name] = self._members.get(name, {}) | group.members
        if known == route:
            return
        log.info("route topic=%s brokers=%s", route.topic, {n: g.members for n, g in route.brokers.items()})
        self._routes[route.topic] = route
        for tell in self.on_change:
            tell(route, now)


def new_topic_route(topic: str, template: TopicRoute, queue_nums: int) -> TopicRoute:
    """What a topic's route will look like once a broker has created it from its template topic."""
    queues = tuple(
        QueueData(
            data.broker_name,
            min(queue_nums, data.read_queue_nums),
            min(queue_nums, data.write_queue_nums),
            int(Permission.READ_WRITE),
        )
        for data in template.queues
        if data.perm & Permission.INHERIT
    )
    return TopicRoute(topic, template.brokers, queues)


TEMPLATE_TOPIC = AUTO_CREATE_TOPIC
