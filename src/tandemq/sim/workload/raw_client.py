"""A client of few words: links by address, requests matched with answers, timers. Workloads are made of it.

It speaks frames, not the client library: what it sends, when, and on which connection is known exactly, and a mistake
of the library cannot hide a mistake of a broker. An answer that does not come in time, or cannot come any more because
the link is gone, is None: the outcome is unknown.
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
    """A link to one address; `silences` counts answers in a row that did not come."""

    __slots__ = ("address", "decoder", "is_open", "link", "queued", "silences")

    def __init__(self, link: int, address: str) -> None:
        """A link that was asked for."""
        self.link = link
        self.address = address
        self.is_open = False
        self.decoder = FrameDecoder()
        self.queued: list[bytes] = []
        self.silences = 0


class Route:
    """Where one topic is: member addresses by group and id, and write queues by group."""

    __slots__ = ("members", "queues")

    def __init__(self, raw: dict[str, Any]) -> None:
        """From a name server's answer."""
        self.members: dict[str, dict[int, str]] = {
            str(group["brokerName"]): {int(number): str(where) for number, where in group["brokerAddrs"].items()}
            for group in raw["brokerDatas"]
        }
        self.queues: dict[str, int] = {
            str(data["brokerName"]): int(data["writeQueueNums"]) for data in raw["queueDatas"] if data["perm"] & 2
        }


class RawClient:
    """See `boundary.Node`. `act` is what a subclass does each time it is driven."""

    def __init__(self, name: str, random: Random, name_servers: tuple[str, ...], *, binary: bool = False) -> None:
        """Nothing is connected. `binary`: headers in the binary form."""
        self.name = name
        self.random = random
        self.name_servers = name_servers
        self.routes: dict[str, Route] = {}
        self.now = Now(0, 0)
        self._binary = binary
        self._out = Turn()
        self._lines: dict[str, RawConnection] = {}
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
            _, key, line = heappop(self._overdue)
            self._expire(line, key)
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

    def pushed(self, line: RawConnection, command: Command) -> None:
        """A broker asks something of us."""

    # Time and links.

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Do something later."""
        self._count += 1
        heappush(self._timers, (self.now.mono_ms + max(1, delay_ms), self._count, action))

    def _line(self, address: str) -> RawConnection:
        line = self._lines.get(address)
        if line is None:
            self._count += 1
            line = self._lines[address] = RawConnection(-self._count, address)
            self._by_link[line.link] = line
            self._out.connects.append(Connect(line.link, LinkKind.PEER, address))
        return line

    def _opened(self, event: Opened) -> None:
        line = self._by_link.get(event.link)
        if line is not None:
            line.is_open = True
            if line.queued:
                self._out.send(line.link, *line.queued)
                line.queued.clear()

    def _closed(self, event: Closed) -> None:
        line = self._by_link.pop(event.link, None)
        if line is None:
            return
        if self._lines.get(line.address) is line:
            del self._lines[line.address]
        for key in [key for key in self._waiting if key[0] == line.link]:
            self._waiting.pop(key)(None)

    def _take(self, link: int, data: bytes) -> None:
        line = self._by_link.get(link)
        if line is None:
            return
        for frame in line.decoder.feed(data):
            command = decode_command(frame)
            if not command.is_response:
                self.pushed(line, command)
                continue
            line.silences = 0
            then = self._waiting.pop((link, command.opaque), None)
            if then is not None:
                then(command)
        assert line.decoder.error is None, f"{line.address} answered with no frame: {line.decoder.error}"

    # Requests.

    def ask(self, address: str, command: Command, timeout_ms: int, then: Then) -> int:
        """Send a request; returns the number of the link it went to."""
        line = self._line(address)
        self._count += 1
        command.opaque = self._count
        command.binary = self._binary
        key = (line.link, command.opaque)
        self._waiting[key] = then
        self._write(line, command)
        heappush(self._overdue, (self.now.mono_ms + timeout_ms, key, line))
        return line.link

    def tell(self, address: str, command: Command) -> int:
        """Send a one-way request; returns the number of the link."""
        line = self._line(address)
        self._count += 1
        command.opaque = self._count
        command.flag |= FLAG_ONEWAY
        self._write(line, command)
        return line.link

    def _write(self, line: RawConnection, command: Command) -> None:
        frame = encode_command(command)
        if line.is_open:
            self._out.send(line.link, frame)
        else:
            line.queued.append(frame)

    def _expire(self, line: RawConnection, key: tuple[int, int]) -> None:
        then = self._waiting.pop(key, None)
        if then is None:
            return
        line.silences += 1
        if line.silences >= SILENCES_MAX and self._lines.get(line.address) is line:
            self._out.closes.append((line.link, "it does not answer"))
            del self._lines[line.address]
        then(None)

    # Routes.

    def fetch_route(self, topic: str) -> None:
        """Ask a name server for a topic's route; what is known stays if there is no answer."""
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
