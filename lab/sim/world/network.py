"""Simulated network: connections between machines, and their faults.

    process ── send ─► pipe (bytes in flight, in order) ── deliver ─► process
                        │ each chunk has its own delay, and may be split anywhere
                        ├ a blocked path holds its bytes until it is healed    (stall, partition, one way or both)
                        └ a lost connection drops everything without an error  (black hole, forgotten by a firewall)

A connection has two ends, and each end belongs to a process. A killed process resets its connections. A machine that
goes down resets nothing: its peer gets a reset when it sends something and the machine is back.

Bytes are never reordered within a connection; connections are independent of each other.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from lab.sim.world.world import MS, SECOND, World
from tandemq.boundary import Closed, Connect, Drained, Event, LinkKind, Opened

WINDOW_BYTES = 64 * 1024
FRAME_HEAD_BYTES = 12
"""Bytes at the head of a master's transfer in which no bit is flipped: the head carries no checksum."""
CONNECT_RETRIES_S = (1, 3, 7, 15, 31, 63)
"""Times of the retries of a connection without a path; after the last it fails."""


class Owner(Protocol):
    """A process, as the network sees it."""

    ip: str
    is_running: bool

    def next_link(self) -> int:
        """Return the id for an accepted connection."""

    def post(self, event: Event) -> None:
        """Report an event of a connection."""

    def deliver(self, link: int, data: bytes) -> None:
        """Deliver received bytes."""


class Pipe:
    """One direction of a connection."""

    __slots__ = ("busy", "bytes", "connection", "into", "last_us", "out", "source", "was_full")

    def __init__(self, connection: "SimConnection", source: int) -> None:
        """`source`: the sending end, 0 or 1."""
        self.connection = connection
        self.source = source
        self.into = 1 - source
        self.out: deque[tuple[int, bytes]] = deque()
        self.bytes = 0
        self.last_us = 0
        self.busy = False
        self.was_full = False


class SimConnection:
    """A connection with two ends: 0 opened it, 1 accepted it."""

    __slots__ = ("flip_in", "is_lost", "is_up", "kind", "links", "open", "owners", "pipes")

    def __init__(self, kind: LinkKind, owners: tuple[Owner, Owner], links: tuple[int, int]) -> None:
        """A new connection."""
        self.kind = kind
        self.owners = owners
        self.links = links
        self.open = [True, True]
        self.pipes = (Pipe(self, 0), Pipe(self, 1))
        self.is_lost = False
        self.is_up = True
        self.flip_in = [-1, -1]
        """Bytes of each direction after which one bit is flipped; -1: none."""


class Network:
    """All connections and listeners of a world."""

    def __init__(self, world: World) -> None:
        """A network without listeners."""
        self._world = world
        self._listeners: dict[str, tuple[Owner, LinkKind]] = {}
        self._by_end: dict[tuple[int, int], tuple[SimConnection, int]] = {}
        self.connections: dict[SimConnection, None] = {}
        self.blocked: dict[tuple[str, str], None] = {}
        """Paths (from address, to address) on which nothing arrives."""
        self.dead_machines: dict[str, None] = {}
        self.delay_us = 300
        self.jitter_us = 400
        self.split_rate = 0.05
        self.tap: Callable[[SimConnection, int, bytes], None] | None = None

    # Processes.

    def listen(self, address: str, owner: Owner, kind: LinkKind) -> None:
        """Listen on a port."""
        self._listeners[address] = (owner, kind)

    def addresses(self) -> list[tuple[str, LinkKind]]:
        """Return all open ports."""
        return [(address, kind) for address, (_, kind) in self._listeners.items()]

    def connect(self, owner: Owner, request: Connect) -> None:
        """Open a connection."""
        self._try(owner, request, 0)

    def _try(self, owner: Owner, request: Connect, attempt: int) -> None:
        if not owner.is_running:
            return
        ip = request.address.rpartition(":")[0]
        listener = self._listeners.get(request.address)
        delay = self._delay()
        if (owner.ip, ip) in self.blocked or (ip, owner.ip) in self.blocked or ip in self.dead_machines:
            if attempt < len(CONNECT_RETRIES_S):
                wait = CONNECT_RETRIES_S[attempt] - (CONNECT_RETRIES_S[attempt - 1] if attempt else 0)
                self._world.after(wait * SECOND, lambda: self._try(owner, request, attempt + 1))
            else:
                owner.post(Closed(request.link, "connection timed out"))
        elif listener is None:
            self._world.after(delay, lambda: self._refuse(owner, request))
        else:
            self._world.after(delay, lambda: self._establish(owner, request))

    def _refuse(self, owner: Owner, request: Connect) -> None:
        if owner.is_running:
            owner.post(Closed(request.link, "connection refused"))

    def _establish(self, owner: Owner, request: Connect) -> None:
        found = self._listeners.get(request.address)
        if found is None or not owner.is_running:
            self._refuse(owner, request)
            return
        server, kind = found
        number = server.next_link()
        connection = SimConnection(kind, (owner, server), (request.link, number))
        self.connections[connection] = None
        self._by_end[id(owner), request.link] = (connection, 0)
        self._by_end[id(server), number] = (connection, 1)
        here = f"{owner.ip}:{40_000 + number % 20_000}"
        server.post(Opened(number, kind, here, request.address))
        owner.post(Opened(request.link, request.kind, request.address, here))

    def send(self, owner: Owner, link: int, data: bytes) -> None:
        """Send bytes; they are dropped if the connection is unknown."""
        found = self._by_end.get((id(owner), link))
        if found is None:
            return
        connection, end = found
        pipe = connection.pipes[end]
        if self.tap is not None:
            self.tap(connection, end, data)
        if connection.flip_in[end] >= 0:
            data = self._flipped(connection, end, data)
        random = self._world.random
        pipe.bytes += len(data)
        if len(data) > 1 and random.random() < self.split_rate:
            cut = random.randrange(1, len(data))
            self._put(pipe, data[:cut])
            self._put(pipe, data[cut:])
        else:
            self._put(pipe, data)

    def _flipped(self, connection: SimConnection, end: int, data: bytes) -> bytes:
        left = max(connection.flip_in[end], FRAME_HEAD_BYTES if end else 0)
        if left >= len(data):
            connection.flip_in[end] = max(0, left - len(data))
            return data
        connection.flip_in[end] = -1
        turned = bytearray(data)
        turned[left] ^= 1 << self._world.random.randrange(8)
        self._world.fault("flip-in-flight", f"{connection.owners[end].ip} byte {left}")
        return bytes(turned)

    def _put(self, pipe: Pipe, data: bytes) -> None:
        pipe.last_us = max(pipe.last_us, self._world.now_us + self._delay())
        pipe.out.append((pipe.last_us, data))
        if not pipe.busy:
            pipe.busy = True
            self._world.at(pipe.last_us, lambda: self._arrive(pipe))

    def _delay(self) -> int:
        return self.delay_us + int(self._world.random.random() * self.jitter_us)

    def _arrive(self, pipe: Pipe) -> None:
        connection = pipe.connection
        if not connection.open[pipe.into] or not pipe.out:
            self._dead_letter(pipe)
            return
        target = connection.owners[pipe.into]
        source = connection.owners[pipe.source]
        if connection.is_lost or (source.ip, target.ip) in self.blocked or target.ip in self.dead_machines:
            self._world.after(200 * MS, lambda: self._arrive(pipe))
            return
        link = connection.links[pipe.into]
        now = self._world.now_us
        while pipe.out and pipe.out[0][0] <= now:
            data = pipe.out.popleft()[1]
            if data:
                pipe.bytes -= len(data)
                target.deliver(link, data)
            else:
                self._end(connection, pipe.into, "closed by the peer")
        if pipe.was_full and pipe.bytes <= WINDOW_BYTES:
            pipe.was_full = False
            if connection.open[pipe.source]:
                source.post(Drained(connection.links[pipe.source]))
        if pipe.out:
            self._world.at(pipe.out[0][0], lambda: self._arrive(pipe))
        else:
            pipe.busy = False

    def _dead_letter(self, pipe: Pipe) -> None:
        """Handle bytes for a closed end: its machine, if it is up, answers with a reset."""
        connection = pipe.connection
        pipe.out.clear()
        pipe.busy = False
        target, source = connection.owners[pipe.into], connection.owners[pipe.source]
        if not connection.open[pipe.source]:
            return
        if connection.is_lost or target.ip in self.dead_machines or (target.ip, source.ip) in self.blocked:
            pipe.busy = True
            pipe.out.append((0, b"?"))
            self._world.after(SECOND, lambda: self._arrive(pipe))
            return
        self._world.after(self._delay(), lambda: self._end(connection, pipe.source, "reset by the peer"))

    def backlog(self, owner: Owner, link: int) -> int:
        """See `boundary.Outbox`."""
        found = self._by_end.get((id(owner), link))
        if found is None:
            return 0
        pipe = found[0].pipes[found[1]]
        waiting = max(0, pipe.bytes - WINDOW_BYTES)
        pipe.was_full = pipe.was_full or waiting > 0
        return waiting

    # Closing.

    def close(self, owner: Owner, link: int, reason: str) -> None:
        """Close a connection: bytes sent before still arrive, then the peer sees the close."""
        found = self._by_end.get((id(owner), link))
        if found is None:
            if owner.is_running:
                owner.post(Closed(link, reason))
            return
        connection, end = found
        self._end(connection, end, reason)
        if connection.open[1 - end]:
            self._put(connection.pipes[end], b"")

    def _end(self, connection: SimConnection, end: int, reason: str) -> None:
        if not connection.open[end]:
            return
        connection.open[end] = False
        owner, link = connection.owners[end], connection.links[end]
        del self._by_end[id(owner), link]
        if not any(connection.open):
            self.connections.pop(connection, None)
        if owner.is_running:
            owner.post(Closed(link, reason))

    def forget(self, owner: Owner, *, notify: bool) -> None:
        """Remove a process. `notify`: its kernel closes its connections; otherwise (power loss) peers get no signal."""
        for address in [address for address, (who, _) in self._listeners.items() if who is owner]:
            del self._listeners[address]
        for connection in list(self.connections):
            for end in (0, 1):
                if connection.owners[end] is owner and connection.open[end]:
                    self._end(connection, end, "process gone")
                    if notify and connection.open[1 - end]:
                        self._put(connection.pipes[end], b"")

    # Faults.

    def cut(self, connection: SimConnection) -> None:
        """Reset a connection for both sides."""
        for end in (0, 1):
            connection.pipes[end].out.clear()
            connection.pipes[end].bytes = 0
            self._end(connection, end, "connection reset")

    def lose(self, connection: SimConnection, *, half: bool) -> None:
        """Drop everything on a connection from now on. `half`: the side that opened it sees a reset."""
        connection.is_lost = True
        if half:
            self._end(connection, 0, "connection reset")

    def block(self, source: str, target: str) -> None:
        """Block the path from `source` to `target`."""
        self.blocked[source, target] = None

    def heal(self) -> None:
        """Open all paths; held bytes arrive. Lost connections stay lost."""
        self.blocked.clear()
