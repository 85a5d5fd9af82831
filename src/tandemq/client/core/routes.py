"""Topic routes: polled from the name servers, and refreshed when an error suggests that a route is out of date.

    route of a topic = broker groups (name, member addresses by id) + per group: permission, queue numbers

What the name servers no longer list is remembered: a topic that is unknown now (its only broker is down) keeps its last
route, and an address that is no longer listed stays known, so that a member that returns, or takes over, is found
without a name server. Only sending considers which members are *listed* now.

Members of a group are tried in the order of their permission for a topic in the newest routes: FULL, WRITE, READ, NONE.
Inactive members (see `availability`) come after the others, members that are down last.

A group that leaves the route of a topic as a whole is searched for, and so is a new master of a group that lacks one:
the route of one topic is fetched every `LOOK_MS`, and less often the longer the search lasts. When an address of the
group responds again, the search begins again; when one route lists the group again, the routes of all topics that lost
it are fetched.

Any number of refreshes may be requested; the name servers get one request at a time, `REFRESH_GAP_MS` apart, and for a
topic whose refreshes change nothing less and less often.

Owner: the node. Does not know who uses the routes. Source: docs/reference/requests.md; RocketMQ MQClientInstance.
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
from tandemq.client.core.route_search import RouteSearch
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
"""Longest pause between two refreshes that errors requested; less a random half."""
LOOK_MS = 500
"""Shortest pause between two requests of a search for a group or its master."""
REFRESH_FORGOTTEN_MS = 5_000
"""A topic without a request for a refresh for this long is refreshed at once by the next."""
PAST_MAX = 8
"""Maximum number of addresses remembered per broker group besides those listed."""
WEIGHT_DEFAULT = 100
WEIGHT_MAX = 1_000_000
ELECT = "elect"
LEASED_MODES = frozenset({"slave-consume", ELECT})
"""Failover modes in which a broker serves only while it holds a lease."""
FULL, WRITE, READ, NONE = range(4)
"""Permission of a member for a topic, in the order in which members are tried."""
_READ, _WRITE = int(Permission.READ), int(Permission.WRITE)


@dataclass(frozen=True, slots=True)
class BrokerGroup:
    """Brokers with the same name: addresses by broker id; id 0 is the master."""

    cluster: str
    name: str
    members: dict[int, str]
    weight: int = WEIGHT_DEFAULT
    """Relative share of the writes; reported by TandemQ name servers only."""
    zone: str = ""
    """Zone of the brokers, "" if not configured."""
    mode: str = ""
    """Failover mode; "" for static, and for routes of a RocketMQ name server."""


class _KnownGroup:
    """Addresses of a broker group: those listed now by id, and those listed before with their last id."""

    __slots__ = ("group", "listed", "past")

    def __init__(self) -> None:
        self.group = BrokerGroup("", "", {})
        self.listed: dict[int, str] = {}
        self.past: dict[str, int] = {}

    def update(self, group: BrokerGroup) -> list[str]:
        """Apply the newest listing; returns the addresses that were not listed before, or not as master."""
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
        """Return the addresses by id; an address that is no longer listed keeps its id until another one has it."""
        return {broker_id: address for address, broker_id in self.past.items()} | self.listed


def _id_of(address: str, members: dict[int, str]) -> int:
    return next((broker_id for broker_id, known in members.items() if known == address), -1)


@dataclass(frozen=True, slots=True)
class QueueData:
    """Queues of a topic at one broker group. `perm`: bits of `Permission`."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Route of a topic: its broker groups by name, and their queues, sorted by broker name."""

    topic: str
    brokers: dict[str, BrokerGroup]
    queues: tuple[QueueData, ...]
    order: str = ""
    """For globally ordered topics "name:queues;…": only these queues accept messages, with or without a master."""

    def publish_queues(self, takes_messages: Callable[[str], bool] | None = None) -> list[MessageQueue]:
        """Return the queues that accept messages: writable, with a master; sorted by broker name.

        Args:
            takes_messages: returns whether a broker group accepts messages, for callers that know it from a newer
                route of another topic.
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
        """Return the queues that can be read, from a master or a slave; sorted by broker name."""
        return [
            MessageQueue(self.topic, data.broker_name, queue_id)
            for data in self.queues
            if data.perm & _READ and self._members(data)
            for queue_id in range(data.read_queue_nums)
        ]

    def _members(self, data: QueueData) -> dict[int, str]:
        group = self.brokers.get(data.broker_name)
        return group.members if group is not None else {}


def decode_route(topic: str, body: bytes, *, takes_static: bool = False) -> TopicRoute:
    """Decode the body of a name server's response.

    Args:
        topic: of the route.
        body: of the response.
        takes_static: whether the queues of brokers are wanted of a static topic, too.

    Raises:
        ProtocolError: the body is not a route.
        RemoteError: the topic is static.
    """
    try:
        raw = loads(body, is_trusted=True)
        if raw.get("topicQueueMappingByBroker") and not takes_static:
            raise RemoteError(
                f"topic {topic} is static, this client has no logical queues",
                hint="use RocketMQ's Java client 5 or mqadmin for it, or an ordinary topic",
            )
        queues = sorted((_queue_data(item) for item in raw.get("queueDatas") or ()), key=lambda data: data.broker_name)
        brokers = {item["brokerName"]: decode_group(item) for item in raw.get("brokerDatas") or ()}
        return TopicRoute(topic, brokers, tuple(queues), raw.get("orderTopicConf") or "")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"the route of {topic} cannot be decoded: {error!r}") from error


def decode_group(item: dict[str, Any]) -> BrokerGroup:
    """Decode one broker group of a route."""
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
    """Return the weight of a broker group in a route; the default if the value is not a valid weight."""
    is_weight = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= WEIGHT_MAX
    return value if is_weight else WEIGHT_DEFAULT  # type: ignore[return-value]


def _queue_data(item: dict[str, Any]) -> QueueData:
    read, write, perm = (integer(item.get(name), name) for name in ("readQueueNums", "writeQueueNums", "perm"))
    return QueueData(str(item["brokerName"]), read, write, perm)


class Routes:
    """Topic routes and broker groups known to one client."""

    def __init__(
        self,
        config: ClientConfig,
        remoting: RemotingClient,
        timers: Timers,
        runner: OperationRunner,
        availability: BrokerAvailability,
        random: Random,
        now: Now,
    ) -> None:
        """No route is known."""
        self._config = config
        self._remoting = remoting
        self._timers = timers
        self._runner = runner
        self._availability = availability
        self._random = random
        self._routes: dict[str, TopicRoute] = {}
        self._wanted: dict[str, None] = {}
        self._in_flight: dict[str, Ticket[TopicRoute]] = {}
        self._groups: dict[str, _KnownGroup] = {}
        self._masters: set[str] = set()
        self._lost: dict[str, set[str]] = {}
        """Topic to the broker groups that have left its route; topics that no group has left are not in it."""
        self._group_searches: dict[str, RouteSearch] = {}
        """By the name of a group that is lost or lacks a master."""
        self._stale: dict[str, RouteSearch] = {}
        """Topics to refresh."""
        self._refreshes: dict[str, RouteSearch] = {}
        """Topics whose refreshes have changed nothing so far."""
        self._is_refreshing = False
        self._name_server = 0
        self.takes_static = False
        """Whether static topics are taken: a pop reads the queues of a broker, whatever their logical queues are."""
        self.version = 0
        """Incremented with each changed route or broker group."""
        self.on_change: list[Callable[[TopicRoute, Now], None]] = []
        """Called with a route that is new or has changed."""
        self.on_promoted: list[Callable[[str, Now], None]] = []
        """Called with an address that the newest route lists for the first time, or newly as the master."""
        timers.every(config.route_poll_ms, self._poll, first_ms=now.mono_ms + config.route_poll_ms)
        timers.every(LOOK_MS, self._search, first_ms=now.mono_ms + LOOK_MS)

    def get(self, topic: str) -> TopicRoute | None:
        """Return the last known route of a topic; None if it was never fetched."""
        return self._routes.get(topic)

    def want(self, topic: str) -> None:
        """Poll the route of a topic from now on."""
        self._wanted[topic] = None

    def topics(self) -> list[str]:
        """Return the topics that are polled."""
        return list(self._wanted)

    # Members of broker groups.

    def group(self, broker_name: str) -> BrokerGroup:
        """Return a broker group as the newest route that contains it lists it; without members if none does."""
        known = self._groups.get(broker_name)
        return known.group if known is not None else BrokerGroup("", broker_name, {})

    def members(self, broker_name: str) -> dict[int, str]:
        """Return the addresses of a broker group by id, those no longer listed included."""
        known = self._groups.get(broker_name)
        return known.members() if known is not None else {}

    def master(self, broker_name: str) -> str | None:
        """Return the address of the master of a broker group, as `members` has it; None if there is none."""
        known = self._groups.get(broker_name)
        if known is None:
            return None
        return known.listed.get(MASTER_ID) or known.members().get(MASTER_ID)

    def broker_names(self) -> list[str]:
        """Return the names of all known broker groups."""
        return list(self._groups)

    def name_of(self, address: str) -> str | None:
        """Return the name of the broker group of an address; None if it is unknown."""
        return next(
            (n for n, known in self._groups.items() if address in known.listed.values() or address in known.past), None
        )

    def takes_messages(self, broker_name: str) -> bool:
        """Return whether a group has a master, or elects one: its queues stay while no master is listed."""
        return MASTER_ID in self.group(broker_name).members or (
            self.is_elected(broker_name) and bool(self.group(broker_name).members)
        )

    def is_elected(self, broker_name: str) -> bool:
        """Return whether a group elects its master, so that messages stored without SEND_OK may be truncated."""
        return self.group(broker_name).mode == ELECT

    def is_master(self, address: str) -> bool:
        """Return whether an address is listed as the master of a group."""
        return address in self._masters

    def is_leased(self, broker_name: str) -> bool:
        """Return whether at most one member of a group is active at a time: its mode says so, or one was inactive."""
        known = self._groups.get(broker_name)
        if known is None:
            return False
        return known.group.mode in LEASED_MODES or any(
            self._availability.is_leased(address) for address in (*known.listed.values(), *known.past)
        )

    def read_addresses(self, broker_name: str, preferred_id: int = MASTER_ID, topic: str = "") -> list[str]:
        """Return all addresses of a group in the order to try: the preferred member, then by permission (FULL, WRITE,
        READ, NONE), then by id. Inactive members come after those, members that are down last."""
        known = self._groups.get(broker_name)
        if known is None:
            return []
        members = known.members()
        entries = [(broker_id, address, self._rank(known, broker_id, topic)) for broker_id, address in members.items()]
        entries += [(broker_id, a, NONE) for a, broker_id in known.past.items() if members[broker_id] != a]
        if preferred_id == MASTER_ID:
            entries.sort(key=lambda e: (self._remoting.is_down(e[1]), self._availability.is_inactive(e[1]), e[2], e[0]))
        else:
            entries.sort(
                key=lambda e: (
                    self._remoting.is_down(e[1]),
                    self._availability.is_inactive(e[1]),
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
        """Return the address of the member that grants locks and accepts messages sent back: the active member of a
        group that fails over, else the master; None if there is none."""
        if not self.is_leased(broker_name):
            return self.members(broker_name).get(MASTER_ID)
        first = next(iter(self.read_addresses(broker_name)), None)
        if first is None or self._availability.is_inactive(first) or self._remoting.is_down(first):
            return None
        return first

    @property
    def name_servers(self) -> tuple[str, ...]:
        """Addresses of the name servers."""
        return self._config.name_servers

    def is_down(self, address: str) -> bool:
        """Return whether an address failed and has sent nothing since."""
        return self._remoting.is_down(address)

    # Requests to name servers.

    def fetch(self, topic: str, now: Now) -> Ticket[TopicRoute]:
        """Fetch a route now; calls made meanwhile share the ticket.

        The ticket fails with NoRoute (no name server knows the topic) or NetworkError (no name server responds).
        """
        ticket = self._in_flight.get(topic)
        if ticket is None:
            ticket = self._in_flight[topic] = self._runner.start(self._fetch(topic), now)
            ticket.then(lambda _done: self._ended(topic))
            if ticket.done:
                del self._in_flight[topic]
        return ticket

    def _ended(self, topic: str) -> None:
        self._in_flight.pop(topic, None)

    def refresh(self, topic: str, now: Now) -> None:
        """Fetch a route that may be out of date, at once or as soon as it is the topic's turn."""
        search = self._refreshes.get(topic)
        if search is None or now.mono_ms - search.wanted_ms >= REFRESH_FORGOTTEN_MS:
            search = self._refreshes[topic] = RouteSearch(now)
        search.wanted_ms = now.mono_ms
        self._stale[topic] = search
        if not self._is_refreshing:
            self._refresh_next(now)

    def _refresh_next(self, now: Now) -> None:
        topic = next((topic for topic, search in self._stale.items() if search.is_due(now)), None)
        self._is_refreshing = bool(self._stale)
        if not self._is_refreshing:
            return
        gap_ms = REFRESH_GAP_MS - int(self._random.random() * REFRESH_GAP_MS / 2)
        self._timers.at(now.mono_ms + gap_ms, self._refresh_next)
        if topic is not None:
            self._stale.pop(topic).requested(now, 0)
            self.fetch(topic, now)

    def _poll(self, now: Now) -> None:
        for topic in self._wanted:
            self.fetch(topic, now)

    # Groups that left the routes, and groups without a master.

    def recovered(self, address: str, now: Now) -> None:
        """Look at once for the group of an address that was down and responds again, if it is lost or lacks a
        master."""
        self._refreshes.clear()
        name = self.name_of(address)
        if name is not None and self._group_searches.pop(name, None) is not None:
            self._search(now)

    def _search(self, now: Now) -> None:
        """Fetch one route for each group that is lost or lacks a master: a client that uses other groups meanwhile
        would learn of its return only with the next poll."""
        missing = self._missing_groups()
        for name in [name for name in self._group_searches if name not in missing]:
            del self._group_searches[name]
        for name, topics in missing.items():
            search = self._group_searches.get(name)
            if search is None:
                search = self._group_searches[name] = RouteSearch(now)
            if search.is_due(now):
                self.fetch(topics[search.requests % len(topics)], now)
                search.requested(now, LOOK_MS)

    def _missing_groups(self) -> dict[str, list[str]]:
        """Return the groups that are lost or lack a master, each with the topics whose routes would show its return."""
        masterless = {name for name in self._groups if self._lacks_master(name)}
        missing: dict[str, list[str]] = {}
        for topic in self._wanted if masterless or self._lost else ():
            route = self._routes.get(topic)
            listed = masterless & route.brokers.keys() if route is not None else set()
            for name in sorted(self._lost.get(topic, set()) | listed):
                missing.setdefault(name, []).append(topic)
        return missing

    def _lacks_master(self, broker_name: str) -> bool:
        if not self.is_leased(broker_name):
            return False
        master = self.group(broker_name).members.get(MASTER_ID)
        return master is None or self._availability.is_inactive(master) or self._remoting.is_down(master)

    def _fetch(self, topic: str) -> Steps[TopicRoute]:
        return (yield from self.fetch_within(topic, 0))

    def fetch_within(self, topic: str, timeout_ms: int) -> Steps[TopicRoute]:
        """Fetch a route, as `fetch`, in a time that the name servers share; 0: each has `request_timeout_ms`."""
        answer = yield from self.ask_name_server(
            lambda: request(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic, acceptStandardJsonOnly=True), timeout_ms
        )
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            raise NoRoute(f"no name server knows the topic {topic}", code=answer.code)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            address = self._config.name_servers[self._name_server]
            raise RemoteError(f"{address} is not a name server; is it a broker?", hint=WHERE, code=answer.code)
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer)
        route = decode_route(topic, answer.body, takes_static=self.takes_static)
        self._apply(route, (yield from current_time()))
        return route

    def ask_name_server(self, make: Callable[[], Command], timeout_ms: int = 0) -> Steps[Command]:
        """Return the response of the first name server that responds, starting with the one that responded last.

        A name server that has just started does not know all topics yet: the others are asked about one that it lacks.

        Args:
            make: makes a request for each name server.
            timeout_ms: shared by the name servers, so that each is asked; 0: each has `request_timeout_ms`.

        Raises:
            NetworkError: no name server responds.
        """
        servers = self._config.name_servers
        last_error: NetworkError = NotConnected("no name server is configured")
        unknown: Command | None = None
        first, longest_ms = self._name_server, self._config.request_timeout_ms
        end_ms = (yield from current_time()).mono_ms + timeout_ms
        for attempt in range(len(servers)):
            position = (first + attempt) % len(servers)
            if unknown is not None and self.is_down(servers[position]):
                continue
            share_ms = longest_ms
            if timeout_ms:
                left_ms = end_ms - (yield from current_time()).mono_ms
                share_ms = max(1, min(longest_ms, left_ms // (len(servers) - attempt)))
            try:
                answer = yield from ask_any_code(servers[position], make(), share_ms)
            except NetworkError as error:
                last_error = error
            else:
                if answer.code == ResponseCode.GO_AWAY:
                    last_error = NotConnected(f"{servers[position]} is shutting down")
                    continue
                if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                    if unknown is None:
                        unknown, self._name_server = answer, position
                    continue
                self._name_server = position
                return answer
        if unknown is not None:
            return unknown
        raise type(last_error)(f"no name server responds: {last_error.args[0]}", hint=last_error.hint or WHERE)

    def _apply(self, route: TopicRoute, now: Now) -> None:
        known = self._routes.get(route.topic)
        promoted: list[str] = []
        for name, group in route.brokers.items():
            of_group = self._groups.setdefault(name, _KnownGroup())
            if of_group.group != group:
                self.version += 1
                promoted += of_group.update(group)
                self._masters = {known.listed.get(MASTER_ID, "") for known in self._groups.values()}
        if known != route:
            self.version += 1
            self._routes[route.topic] = route
        for address in promoted:
            self._availability.mark_active(address, now)
            for on_promoted in self.on_promoted:
                on_promoted(address, now)
        if known == route:
            return
        self._refreshes.clear()
        self._note_lost(known, route, now)
        log.info("route topic=%s brokers=%s", route.topic, {n: g.members for n, g in route.brokers.items()})
        for notify in self.on_change:
            notify(route, now)

    def _note_lost(self, known: TopicRoute | None, route: TopicRoute, now: Now) -> None:
        """Begin the search for the groups that a new route lists no longer. If it lists some again, fetch the routes of
        the other topics that lost them."""
        topic = route.topic
        before = self._lost.get(topic, set())
        left = set(known.brokers if known is not None else ()) - route.brokers.keys()
        lost = (before | left) - route.brokers.keys()
        if lost:
            self._lost[topic] = lost
        else:
            self._lost.pop(topic, None)
        for name in left:
            self._group_searches.pop(name, None)
        returned = before & route.brokers.keys()
        if returned:
            for other, of_other in self._lost.items():
                if other in self._wanted and of_other & returned:
                    self.fetch(other, now)


def new_topic_route(topic: str, template: TopicRoute, queue_nums: int) -> TopicRoute:
    """Return the route that a topic will have once a broker has created it from its template topic."""
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
