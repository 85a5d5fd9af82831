"""A socket of the event loop with its send queue, and which connections to close when all queues get too large.

    Loop ── keep(buffers), took(count) ──► SocketConnection.held        only if the kernel does not accept all bytes
    Loop ── surplus(links, …) when the queues together are too large ──► connections to close

The memory in use is counted: a buffer as a whole until all of it is sent, plus the cost of the object. A small part of
a large block is copied, so that a request for one record does not keep the block in memory.

Source: docs/reference/guarantees.md, "memory".
"""

import contextlib
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
"""Upper bound of the memory overhead per buffer, bytes."""
STALLED_NS = 1_000_000_000
"""Time without progress after which a connection counts as stalled."""
SPARE_PARTS = 8
"""Closing frees one eighth of the limit, so that the cost of a pass over all connections is spread over many bytes."""
_AT_ONCE = pack("ii", 1, 0)
_ORDERLY = pack("ii", 0, 0)
_CLIENTS = (LinkKind.REMOTING, LinkKind.FAST, LinkKind.GRPC)


@dataclass(slots=True, eq=False)
class SocketConnection:
    """A connection, accepted or opened by the node."""

    number: int
    sock: socket.socket
    kind: LinkKind
    is_open: bool
    out: deque[memoryview]
    out_bytes: int = 0
    """Bytes in the send queue."""
    first_taken: int = 0
    """Bytes of the first buffer that were sent; they still use memory."""
    taken_ns: int = 0
    """When the kernel last accepted queued bytes, or when the queue began to fill. Slow reading does not show at once:
    the kernel accepts more only when a large part of its own buffer is free."""
    has_taken: bool = False
    """Whether the kernel ever accepted queued bytes."""
    mask: int = select.EPOLLIN
    is_plain: bool = True
    """Whether received bytes are for the node as they are; not before the first byte if there may be TLS."""
    is_bulk: bool = False
    """Whether the last read was large: the next one probably is too."""
    tls: TlsLink | None = None
    discards_unsent: bool = False
    """Whether `forget_sent` was called."""
    has_unread: bool = False
    """Whether received bytes wait for the node's next turn."""
    send_error: str = ""
    """Why nothing more can be sent; what the peer had sent before is still received."""
    unopened: Opened | None = None
    """Event to report to the node after the TLS handshake."""

    @property
    def held(self) -> int:
        """Memory in use by the send queue, bytes."""
        return self.out_bytes + self.first_taken + BUFFER_COST * len(self.out)

    def keep(self, buffers: Iterable[Buffer]) -> int:
        """Append buffers to the send queue; return by how much `held` has grown."""
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
        """Remove sent bytes from the send queue; return by how much `held` has shrunk."""
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

    def stop_sending(self, error: str) -> int:
        """Discard the send queue, and receive only bytes that have arrived; return by how much `held` has shrunk."""
        self.send_error = error
        before = self.held
        self.out.clear()
        self.out_bytes = self.first_taken = 0
        with contextlib.suppress(OSError):  # the kernel has closed it already
            self.sock.shutdown(socket.SHUT_RDWR)
        return before

    def forget_sent(self) -> None:
        """Make the kernel discard unsent bytes when the socket is closed: the peer may never read them."""
        self.discards_unsent = True
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)

    def reset_when_killed(self) -> None:
        """Make the kernel reset the connection of a client if this process is killed.

        An orderly end does not fail the requests that Java clients of 4.9 have in flight: a pull that is held then
        waits for 30 s, and a send for `sendMsgTimeout`. A reset fails them at once.
        """
        if self.kind in _CLIENTS:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)

    def close(self) -> None:
        """Close the socket; the kernel still sends what it has accepted, unless `forget_sent` was called."""
        if self.kind in _CLIENTS and not self.discards_unsent:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ORDERLY)
        self.sock.close()


def surplus(links: Iterable[SocketConnection], held: int, bytes_max: int) -> list[SocketConnection]:
    """Return the connections to close if the send queues together use `held` bytes, more than `bytes_max`.

    Only connections with at least half of the mean are chosen: first stalled ones, then those that have read nothing
    yet, then the others; within each group those without progress for the longest time. So a slow reader stays.
    Cost: one pass over all connections for each eighth of `bytes_max` queued.
    """
    goal = bytes_max - bytes_max // SPARE_PARTS
    now_ns = monotonic_ns()
    waiting = sorted((link for link in links if link.out), key=lambda link: _close_order(link, now_ns))
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


def _close_order(link: SocketConnection, now_ns: int) -> tuple[int, int]:
    if now_ns - link.taken_ns >= STALLED_NS:
        return 0, link.taken_ns
    return 1 + link.has_taken, link.taken_ns
