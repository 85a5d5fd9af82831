"""Where topics are: routes as name servers tell them, polled, and asked for anew when something looks wrong.

    route of a topic = broker groups (name, member addresses by id) + per group: permission, queue numbers

What a name server no longer tells is kept: a topic that is unknown now (its only broker is down) keeps its last route,
and an address that vanished stays known, so that a member that returns, or takes over, is found without any name
server. Only sending looks at what is *listed* now.

Members of a group are tried in the order of what they may do for a topic as far as the newest routes tell: FULL, WRITE,
READ, NONE. Those that are down or said that they may not serve come last.

However many say that a route looks wrong, the name servers are asked one question at a time, `REFRESH_GAP_MS` apart.

Owner: the node. Does not know: who uses the routes. Source: docs/reference/requests.md; RocketMQ MQClientInstance.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from tandemq.boundary import Now
from tandemq.client.core.availability import BrokerAvailability
from tandemq.client.core.calls import Ticket, Timers
from tandemq.client.core.connections import RemotingClient
from tandemq.client.core.operations import OperationRunner, Steps, ask_any_code, current_time, refusal, request
from tandemq.client.core.settings import ClientConfig
from tandemq.codec.remoting.bodies import integer
from tandemq.codec.remoting.fastjson import loads
from tandemq.errors import NetworkError, NoRoute, NotConnected, ProtocolError, RemoteError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue
from tandemq.model.topic import AUTO_CREATE_TOPIC, Permission

log = logging.getLogger(__name__)
WHERE = "a name server usually listens at port 9876"
MASTER_ID = 0
REFRESH_GAP_MS = 200
"""Between two questions that errors made necessary, at most; at random up to a half less."""
LOOK_MS = 2_000
"""How often routes are asked for of groups that are without a master."""
PAST_MAX = 8
"""Addresses remembered per broker group besides those listed."""
WEIGHT_DEFAULT = 100
WEIGHT_MAX = 1_000_000
ELECT = "elect"
LEASED_MODES = frozenset({"slave-consume", ELECT})
"""Failover modes in which a broker serves only while it holds a lease."""
FULL, WRITE, READ, NONE = range(4)
"""In this order members are tried."""
_READ, _WRITE = int(Permission.READ), int(Permission.WRITE)


@dataclass(frozen=True, slots=True)
class BrokerGroup:
    """The brokers of one name: address by id, 0 the master."""

    cluster: str
    name: str
    members: dict[int, str]
    weight: int = WEIGHT_DEFAULT
    """Share of the writes among groups; told by TandemQ's name servers only."""
    zone: str = ""
    """Where it stands, if it says so."""
    mode: str = ""
    """Its failover mode, if it is another than static and a TandemQ name server tells."""


class _KnownGroup:
    """All addresses of a broker group: listed now by id, and listed before with their last id."""

    __slots__ = ("group", "listed", "past")

    def __init__(self) -> None:
        self.group = BrokerGroup("", "", {})
        self.listed: dict[int, str] = {}
        self.past: dict[str, int] = {}

    def learn(self, group: BrokerGroup) -> list[str]:
        """Take the newest listing; returns the addresses that stand better than before: new ones, a new master."""
        before, listed = self.listed, group.members
        for broker_id, address in before.items():
            self.past[address] = broker_id
        for address in listed.values():
            self.past.pop(address, None)
        while len(self.past) > PAST_MAX:
            del self.past[next(iter(self.past))]
        self.group, self.listed = group, listed
        old = before.values()
        return [a for broker_id, a in listed.items() if a not in old or broker_id == MASTER_ID != _id_of(a, before)]

    def members(self) -> dict[int, str]:
        """Address by id; one that vanished keeps its place until another takes it."""
        return {broker_id: address for address, broker_id in self.past.items()} | self.listed


def _id_of(address: str, members: dict[int, str]) -> int:
    return next((broker_id for broker_id, known in members.items() if known == address), -1)


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

    def publish_queues(self, takes_messages: Callable[[str], bool] | None = None) -> list[MessageQueue]:
        """Queues that take messages now: writable, with a master; sorted by broker name.

        Args:
            takes_messages: whether a broker group does, for who knows it from a newer route of another topic.
        """
        if self.order:
            pairs = [piece.split(":") for piece in self.order.split(";") if ":" in piece]
            return [MessageQueue(self.topic, name, queue_id) for name, n in pairs for queue_id in range(int(n))]
        return [
            MessageQueue(self.topic, data.broker_name, queue_id)
            for data in self.queues
            if data.perm & _WRITE
            and (takes_messages(data.broker_name) if takes_messages else MASTER_ID in self._members(data))
            for queue_id in range(data.write_queue_nums)
        ]

    def subscribe_queues(self) -> list[MessageQueue]:
        """Queues that can be read, from a master or a slave; sorted by broker name."""
        return [
            MessageQueue(self.topic, data.broker_name, queue_id)
            for data in self.queues
            if data.perm & _READ and self._members(data)
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
        raw = loads(body, is_trusted=True)
        queues = sorted((_queue_data(item) for item in raw.get("queueDatas") or ()), key=lambda data: data.broker_name)
        brokers = {item["brokerName"]: decode_group(item) for item in raw.get("brokerDatas") or ()}
        return TopicRoute(topic, brokers, tuple(queues), raw.get("orderTopicConf") or "")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"the route of {topic} cannot be read: {error!r}") from error


def decode_group(item: dict[str, Any]) -> BrokerGroup:
    """One of a route's broker groups."""
    members = {int(broker_id): str(address) for broker_id, address in item["brokerAddrs"].items()}
    return BrokerGroup(
        item.get("cluster") or "",
        item["brokerName"],
        dict(sorted(members.items())),
        weight_of(item.get("weight")),
        item.get("zoneName") or "",
        item.get("failoverMode") or "",
    )


def weight_of(value: object) -> int:
    """A group's weight as a route tells it; what is none counts as the default."""
    is_weight = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= WEIGHT_MAX
    return value if is_weight else WEIGHT_DEFAULT  # type: ignore[return-value]


def _queue_data(item: dict[str, Any]) -> QueueData:
    read, write, perm = (integer(item.get(name), name) for name in ("readQueueNums", "writeQueueNums", "perm"))
    return QueueData(str(item["brokerName"]), read, write, perm)


class Routes:
    """The routes one client knows."""

    def __init__(
        self,
        config: ClientConfig,
        links: RemotingClient,
        timers: Timers,
        runner: OperationRunner,
        standing: BrokerAvailability,
        random: Random,
        now: Now,
    ) -> None:
        """None yet."""
        self._config = config
        self._links = links
        self._timers = timers
        self._runner = runner
        self._standing = standing
        self._random = random
        self._routes: dict[str, TopicRoute] = {}
        self._wanted: dict[str, None] = {}
        self._underway: dict[str, Ticket[TopicRoute]] = {}
        self._groups: dict[str, _KnownGroup] = {}
        self._masters: set[str] = set()
        self._stale: dict[str, None] = {}
        self._is_refreshing = False
        self._name_server = 0
        self.version = 0
        """Changes with every route and every broker group."""
        self.on_change: list[Callable[[TopicRoute, Now], None]] = []
        """Called with a route that is new or differs from the one before."""
        self.on_better: list[Callable[[str, Now], None]] = []
        """Called with an address that the newest route lists for the first time, or as the master."""
        timers.every(config.route_poll_ms, self._poll, first_ms=now.mono_ms + config.route_poll_ms)
        timers.every(LOOK_MS, self._look_for_masters, first_ms=now.mono_ms + LOOK_MS)

    def get(self, topic: str) -> TopicRoute | None:
        """The last known route."""
        return self._routes.get(topic)

    def want(self, topic: str) -> None:
        """Poll a topic's route from now on."""
        self._wanted[topic] = None

    def topics(self) -> list[str]:
        """Topics that are polled."""
        return list(self._wanted)

    # Members of broker groups.

    def group(self, broker_name: str) -> BrokerGroup:
        """A broker group as it is listed in the newest of all routes that tell of it."""
        known = self._groups.get(broker_name)
        return known.group if known is not None else BrokerGroup("", broker_name, {})

    def members(self, broker_name: str) -> dict[int, str]:
        """Addresses of a broker group by id, those last known included."""
        known = self._groups.get(broker_name)
        return known.members() if known is not None else {}

    def broker_names(self) -> list[str]:
        """All broker groups heard of."""
        return list(self._groups)

    def name_of(self, address: str) -> str | None:
        """The group an address belongs to."""
        return next(
            (n for n, known in self._groups.items() if address in known.listed.values() or address in known.past), None
        )

    def takes_messages(self, broker_name: str) -> bool:
        """Whether a group has a master, or elects one by itself: its queues stay while nobody is listed as master."""
        return MASTER_ID in self.group(broker_name).members or (
            self.is_elected(broker_name) and bool(self.group(broker_name).members)
        )

    def is_elected(self, broker_name: str) -> bool:
        """Whether a group elects its masters, so that what is stored and not SEND_OK may be cut again."""
        return self.group(broker_name).mode == ELECT

    def is_master(self, address: str) -> bool:
        """Whether an address is listed as some group's master now."""
        return address in self._masters

    def is_leased(self, broker_name: str) -> bool:
        """Whether at most one member of a broker group serves at a time: its mode says so, or a member has shown it."""
        known = self._groups.get(broker_name)
        if known is None:
            return False
        return known.group.mode in LEASED_MODES or any(
            self._standing.is_leased(address) for address in (*known.listed.values(), *known.past)
        )

    def read_addresses(self, broker_name: str, preferred_id: int = MASTER_ID, topic: str = "") -> list[str]:
        """All addresses of a group, best first: the preferred member, then by what they may do (FULL, WRITE, READ,
        NONE), then by id. Those that may not serve come behind, those that are down last."""
        known = self._groups.get(broker_name)
        if known is None:
            return []
        members = known.members()
        entries = [(broker_id, address, self._rank(known, broker_id, topic)) for broker_id, address in members.items()]
        entries += [(broker_id, a, NONE) for a, broker_id in known.past.items() if members[broker_id] != a]
        if preferred_id == MASTER_ID:
            entries.sort(key=lambda e: (self._links.is_down(e[1]), self._standing.is_shut(e[1]), e[2], e[0]))
        else:
            entries.sort(
                key=lambda e: (
                    self._links.is_down(e[1]),
                    self._standing.is_shut(e[1]),
                    e[0] != preferred_id,
                    e[2],
                    e[0],
                )
            )
        return [address for _, address, _ in entries]

    def _rank(self, known: _KnownGroup, broker_id: int, topic: str) -> int:
        route = self._routes.get(topic)
        perm = _READ | _WRITE
        if route is not None:
            perm = next((data.perm for data in route.queues if data.broker_name == known.group.name), perm)
        may_read, may_write = bool(perm & _READ), bool(perm & _WRITE)
        if broker_id == MASTER_ID and may_write:
            return FULL if may_read else WRITE
        return READ if may_read else NONE

    def leader(self, broker_name: str) -> str | None:
        """Who does what only one member of a group may do: give locks, take messages back. In a group that fails over
        that is who serves now, elsewhere the master; None if there is nobody."""
        if not self.is_leased(broker_name):
            return self.members(broker_name).get(MASTER_ID)
        first = next(iter(self.read_addresses(broker_name)), None)
        is_usable = first is not None and not self._standing.is_shut(first) and not self._links.is_down(first)
        return first if is_usable else None

    # Asking.

    def fetch(self, topic: str, now: Now) -> Ticket[TopicRoute]:
        """Ask for a route now; whoever asks meanwhile gets the same answer.

        Fails with NoRoute (no name server knows the topic) or NetworkError (none answered).
        """
        ticket = self._underway.get(topic)
        if ticket is None:
            ticket = self._underway[topic] = self._runner.start(self._ask(topic), now)
            ticket.then(lambda _done: self._ended(topic))
            if ticket.done:
                del self._underway[topic]
        return ticket

    def _ended(self, topic: str) -> None:
        self._underway.pop(topic, None)

    def refresh(self, topic: str, now: Now) -> None:
        """Something looks wrong: ask at once, or as soon as it is this topic's turn."""
        self._stale[topic] = None
        if not self._is_refreshing:
            self._refresh_next(now)

    def _refresh_next(self, now: Now) -> None:
        topic = next(iter(self._stale), None)
        self._is_refreshing = topic is not None
        if topic is not None:
            del self._stale[topic]
            gap_ms = REFRESH_GAP_MS - int(self._random.random() * REFRESH_GAP_MS / 2)
            self._timers.at(now.mono_ms + gap_ms, self._refresh_next)
            self.fetch(topic, now)

    def _poll(self, now: Now) -> None:
        for topic in self._wanted:
            self.fetch(topic, now)

    def _look_for_masters(self, now: Now) -> None:
        """A group that will have a master again by itself is asked for: whoever uses other groups meanwhile would hear
        of it with the next poll only."""
        for topic in self._wanted:
            route = self._routes.get(topic)
            if route is not None and any(map(self._lacks_master, route.brokers)):
                self.fetch(topic, now)

    def _lacks_master(self, broker_name: str) -> bool:
        if not self.is_leased(broker_name):
            return False
        master = self.group(broker_name).members.get(MASTER_ID)
        return master is None or self._standing.is_shut(master) or self._links.is_down(master)

    def _ask(self, topic: str) -> Steps[TopicRoute]:
        answer = yield from self.ask_name_server(
            lambda: request(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic, acceptStandardJsonOnly=True)
        )
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            raise NoRoute(f"no name server knows the topic {topic}", code=answer.code)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            address = self._config.name_servers[self._name_server]
            raise RemoteError(f"{address} is no name server; is it a broker?", hint=WHERE, code=answer.code)
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer)
        route = decode_route(topic, answer.body)
        self._learn(route, (yield from current_time()))
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
        raise type(last)(f"no name server answers: {last.args[0]}", hint=last.hint or WHERE)

    def _learn(self, route: TopicRoute, now: Now) -> None:
        known = self._routes.get(route.topic)
        better: list[str] = []
        for name, group in route.brokers.items():
            of_group = self._groups.setdefault(name, _KnownGroup())
            if of_group.group != group:
                self.version += 1
                better += of_group.learn(group)
                self._masters = {known.listed.get(MASTER_ID, "") for known in self._groups.values()}
        if known != route:
            self.version += 1
            self._routes[route.topic] = route
        for address in better:
            self._standing.trust(address, now)
            for told in self.on_better:
                told(address, now)
        if known == route:
            return
        log.info("route topic=%s brokers=%s", route.topic, {n: g.members for n, g in route.brokers.items()})
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
