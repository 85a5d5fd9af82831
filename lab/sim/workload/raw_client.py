"""Raw client: connections by address, requests matched with responses, timers. The base of the raw workloads.

It sends frames without the client library, so that it is known what was sent, when, and on which connection, and a
mistake of the library cannot hide one of a broker. A response that does not arrive in time, or cannot because the
connection is closed, is None: the outcome is unknown.
"""

import json
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from random import Random
from typing import Any

from tandemq.boundary import Closed, Connect, Event, LinkKind, Now, Opened, Turn
from tandemq.codec.remoting.frame import FrameDecoder, decode_command, encode_command
from tandemq.model.codes import RequestCode
from tandemq.model.command import FLAG_ONEWAY, Command

Then = Callable[[Command | None], None]
SILENCES_MAX = 2


class RawConnection:
    """A connection to an address. `silences`: responses in a row that did not arrive."""

    __slots__ = ("address", "decoder", "is_open", "link", "queued", "silences")

    def __init__(self, link: int, address: str) -> None:
        """A connection that was requested."""
        self.link = link
        self.address = address
        self.is_open = False
        self.decoder = FrameDecoder()
        self.queued: list[bytes] = []
        self.silences = 0


class Route:
    """Route of one topic: member addresses by group and id, write queues by group, leaders of logical queues."""

    __slots__ = ("leaders", "members", "queues")

    def __init__(self, raw: dict[str, Any]) -> None:
        """`raw`: a name server's response."""
        self.members: dict[str, dict[int, str]] = {
            str(group["brokerName"]): {int(number): str(where) for number, where in group["brokerAddrs"].items()}
            for group in raw["brokerDatas"]
        }
        self.queues: dict[str, int] = {
            str(data["brokerName"]): int(data["writeQueueNums"]) for data in raw["queueDatas"] if data["perm"] & 2
        }
        self.leaders: dict[int, str] = {}
        mappings = raw.get("topicQueueMappingByBroker") or {}
        for group, info in sorted(mappings.items(), key=lambda item: int(item[1]["epoch"])):
            self.leaders |= dict.fromkeys((int(number) for number in info["currIdMap"]), str(group))


class RawClient:
    """See `boundary.Node`. `act` is what a subclass does each time it is driven."""

    def __init__(self, name: str, random: Random, name_servers: tuple[str, ...], *, binary: bool = False) -> None:
        """A client without connections. `binary`: whether headers use the binary form."""
        self.name = name
        self.random = random
        self.name_servers = name_servers
        self.routes: dict[str, Route] = {}
        self.now = Now(0, 0)
        self._binary = binary
        self._out = Turn()
        self._connections: dict[str, RawConnection] = {}
        self._by_link: dict[int, RawConnection] = {}
        self._waiting: dict[tuple[int, int], Then] = {}
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._overdue: list[tuple[int, tuple[int, int], RawConnection]] = []
        self._count = 0
        self._begun = False

    def turn(self, received: Sequence[tuple[int, bytes]], events: Sequence[Event], now: Now) -> Turn:
        """See `boundary.Node`."""
        out = self._out = Turn()
        self.now = now
        for link, data in received:
            self._take(link, data)
        for event in events:
            if isinstance(event, Opened):
                self._opened(event)
            elif isinstance(event, Closed):
                self._closed(event)
        if not self._begun:
            self._begun = True
            self.begin()
        while self._overdue and self._overdue[0][0] <= now.mono_ms:
            _, key, connection = heappop(self._overdue)
            self._expire(connection, key)
        while self._timers and self._timers[0][0] <= now.mono_ms:
            heappop(self._timers)[2]()
        self.act()
        return out

    def deadline_ms(self) -> int | None:
        """See `boundary.Node`."""
        overdue, waiting = self._overdue, self._waiting
        while overdue and overdue[0][1] not in waiting:
            heappop(overdue)
        if overdue and (not self._timers or overdue[0][0] < self._timers[0][0]):
            return overdue[0][0]
        return self._timers[0][0] if self._timers else None

    def begin(self) -> None:
        """Called once, in the first turn."""

    def act(self) -> None:
        """Called at the end of each turn."""

    def pushed(self, connection: RawConnection, command: Command) -> None:
        """Called with a request from a broker."""

    # Timers and connections.

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Call an action later."""
        self._count += 1
        heappush(self._timers, (self.now.mono_ms + max(1, delay_ms), self._count, action))

    def _connection_to(self, address: str) -> RawConnection:
        connection = self._connections.get(address)
        if connection is None:
            self._count += 1
            connection = self._connections[address] = RawConnection(-self._count, address)
            self._by_link[connection.link] = connection
            self._out.connects.append(Connect(connection.link, LinkKind.PEER, address))
        return connection

    def _opened(self, event: Opened) -> None:
        connection = self._by_link.get(event.link)
        if connection is not None:
            connection.is_open = True
            if connection.queued:
                self._out.send(connection.link, *connection.queued)
                connection.queued.clear()

    def _closed(self, event: Closed) -> None:
        connection = self._by_link.pop(event.link, None)
        if connection is None:
            return
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
        for key in [key for key in self._waiting if key[0] == connection.link]:
            self._waiting.pop(key)(None)

    def _take(self, link: int, data: bytes) -> None:
        connection = self._by_link.get(link)
        if connection is None:
            return
        for frame in connection.decoder.feed(data):
            command = decode_command(frame)
            if not command.is_response:
                self.pushed(connection, command)
                continue
            connection.silences = 0
            then = self._waiting.pop((link, command.opaque), None)
            if then is not None:
                then(command)
        assert connection.decoder.error is None, (
            f"{connection.address} answered with no frame: {connection.decoder.error}"
        )

    # Requests.

    def ask(self, address: str, command: Command, timeout_ms: int, then: Then) -> int:
        """Send a request; return the id of its connection."""
        connection = self._connection_to(address)
        self._count += 1
        command.opaque = self._count
        command.binary = self._binary
        key = (connection.link, command.opaque)
        self._waiting[key] = then
        self._write(connection, command)
        heappush(self._overdue, (self.now.mono_ms + timeout_ms, key, connection))
        return connection.link

    def send_oneway(self, address: str, command: Command) -> int:
        """Send a one-way request; return the id of its connection."""
        connection = self._connection_to(address)
        self._count += 1
        command.opaque = self._count
        command.flag |= FLAG_ONEWAY
        self._write(connection, command)
        return connection.link

    def _write(self, connection: RawConnection, command: Command) -> None:
        frame = encode_command(command)
        if connection.is_open:
            self._out.send(connection.link, frame)
        else:
            connection.queued.append(frame)

    def _expire(self, connection: RawConnection, key: tuple[int, int]) -> None:
        then = self._waiting.pop(key, None)
        if then is None:
            return
        connection.silences += 1
        if connection.silences >= SILENCES_MAX and self._connections.get(connection.address) is connection:
            self._out.closes.append((connection.link, "it does not answer"))
            del self._connections[connection.address]
        then(None)

    # Routes.

    def fetch_route(self, topic: str) -> None:
        """Fetch a topic's route from a name server; the known one stays without a response."""
        server = self.random.choice(self.name_servers)
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        self.ask(
            server,
            Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields=fields),
            2_000,
            lambda answer: self._routed(topic, answer),
        )

    def _routed(self, topic: str, answer: Command | None) -> None:
        if answer is not None and answer.code == 0:
            new = Route(json.loads(answer.body))
            old = self.routes.get(topic)
            if old is not None:
                for name, members in old.members.items():
                    new.members[name] = members | new.members.get(name, {})
            self.routes[topic] = new
