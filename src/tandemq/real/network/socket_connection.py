"""One socket of the server loop, what waits to leave on it, and who has to go when too much waits on all of them.

    Loop ── keep(buffers), took(count) ──► SocketConnection.held        only where the network does not take all at once
    Loop ── surplus(links, …) when all together hold too much ──► links to close

Counted is what memory holds: a buffer whole until all of it is taken, and what an object costs. A small part of a large
block is copied, so that nobody keeps a block by asking for a record of it.

Source: docs/reference/guarantees.md, "memory".
"""

import select
import socket
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from struct import pack
from time import monotonic_ns

from tandemq.boundary import Buffer, LinkKind, Opened
from tandemq.real.network.tls import TlsLink

BUFFER_COST = 256
"""Bytes of memory that a buffer costs besides its own, at most."""
STALLED_NS = 1_000_000_000
"""Who takes nothing for so long has stalled."""
SPARE_PARTS = 8
"""Room is made for an eighth of the bound at once, so that one look at all links serves for many bytes."""
_AT_ONCE = pack("ii", 1, 0)
_CLIENTS = (LinkKind.REMOTING, LinkKind.FAST)


@dataclass(slots=True, eq=False)
class SocketConnection:
    """A connection, accepted or asked for."""

    number: int
    sock: socket.socket
    kind: LinkKind
    is_open: bool
    out: deque[memoryview]
    out_bytes: int = 0
    """Bytes that wait to leave."""
    first_taken: int = 0
    """Bytes of the first buffer that have left; memory holds them still."""
    taken_ns: int = 0
    """When the network last took some of what waits, or it began to wait. A byte that a reader takes does not show
    here: the system takes more of us only when a good part of its own buffer is free."""
    has_taken: bool = False
    """Whether the network ever took some of what waited."""
    mask: int = select.EPOLLIN
    tls: TlsLink | None = None
    unopened: Opened | None = None
    """What the node is told once the handshake is done."""

    @property
    def held(self) -> int:
        """Bytes of memory that wait for the network here."""
        return self.out_bytes + self.first_taken + BUFFER_COST * len(self.out)

    def keep(self, buffers: Iterable[Buffer]) -> int:
        """Put buffers behind what waits. Returns how much more is held."""
        before = self.held
        if not self.out:
            self.taken_ns = monotonic_ns()
        for buffer in buffers:
            size = len(buffer)
            if size:
                view = memoryview(buffer)
                if self.kind in _CLIENTS and 2 * size < len(view.obj):  # type: ignore[arg-type]
                    view = memoryview(bytes(view))
                self.out.append(view)
                self.out_bytes += size
        return self.held - before

    def took(self, count: int) -> int:
        """The network took bytes. Returns how much less is held."""
        before = self.held
        if count:
            self.taken_ns, self.has_taken = monotonic_ns(), True
        self.out_bytes -= count
        while count and count >= len(self.out[0]):
            count -= len(self.out.popleft())
            self.first_taken = 0
        if count:
            self.out[0] = self.out[0][count:]
            self.first_taken += count
        return before - self.held

    def forget_sent(self) -> None:
        """When it is closed the system drops, too, what it has not passed on: its reader may never take it."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)


def surplus(links: Iterable[SocketConnection], held: int, bytes_max: int) -> list[SocketConnection]:
    """The links to close if all of them hold `held`, more than `bytes_max`.

    They are some of those that hold half of the mean or more: first who has stalled, then who has not taken anything
    yet, then readers; of each those that have taken nothing for longest. So a reader that is slow and reads stays.
    Cost: one look at each link, for each eighth of `bytes_max` kept.
    """
    goal = bytes_max - bytes_max // SPARE_PARTS
    now_ns = monotonic_ns()
    waiting = sorted((link for link in links if link.out), key=lambda link: _standing(link, now_ns))
    found: list[SocketConnection] = []
    while held > goal and waiting:
        least = held / (2 * len(waiting))
        rest: list[SocketConnection] = []
        for link in waiting:
            if link.held >= least and held > goal:
                held -= link.held
                found.append(link)
            else:
                rest.append(link)
        waiting = rest
    return found


def _standing(link: SocketConnection, now_ns: int) -> tuple[int, int]:
    if now_ns - link.taken_ns >= STALLED_NS:
        return 0, link.taken_ns
    return 1 + link.has_taken, link.taken_ns
