"""TLS on the loop's connections: who gets it, and bounds on handshakes.

    accepted ─► first byte ─┬─ handshake record ─► TLS ── handshake ──► decrypted bytes for the node
                            └─ other ─► permissive: plain; enforcing: closed
    connected ─► TLS, or plain if its kind is not protected

In permissive mode a connection counts as open when it is accepted, because the first byte comes from a client that may
take its time; in enforcing mode, and on connections that the node opens, it counts as open after the handshake.

A handshake costs a signature, far more work than a small message, and memory. So handshakes are bounded
in time (`HANDSHAKE_MS_MAX`), in number (`HANDSHAKES_MAX`), and in their share of a turn (`TURN_NS`). Connections beyond
it wait in a queue, and the kernel does not report them meanwhile: it reports a limited number of connections at a time,
and thousands that wait would delay all others by many turns.

Source: docs/reference/compatibility.md, "TLS".
"""

import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from time import monotonic_ns

from tandemq.boundary import Buffer, Event, HandshakeFailed, LinkKind, Opened
from tandemq.errors import NetworkError
from tandemq.real.clock import read_clock
from tandemq.real.network.addresses import text_of
from tandemq.real.network.socket_connection import SocketConnection
from tandemq.real.network.tls import HANDSHAKE_RECORD, Tls, TlsLink
from tandemq.refusals import Refusals

log = logging.getLogger(__name__)
HANDSHAKE_MS_MAX = 10_000
HANDSHAKES_MAX = 2_048
"""Number of handshakes in progress. Beyond it the oldest one gives way, if it has had `HANDSHAKE_MS_MIN`; else the new
connection is closed: in a storm of connections those that have begun shall finish."""
HANDSHAKE_MS_MIN = 1_000
TURN_NS = 1_000_000
"""Time for handshakes in one turn, about that of one signature: the responses of a turn are sent after it. The last
handshake may exceed it."""
_REPLICATION = (LinkKind.HA_MASTER, LinkKind.HA_SLAVE)
_HANDSHAKE_BYTE = bytes((HANDSHAKE_RECORD,))


class Handshakes:
    """TLS of one loop's connections."""

    def __init__(
        self,
        put: Callable[[SocketConnection, list[Buffer]], None],
        drop: Callable[[SocketConnection, str], None],
        report: Callable[[Event], None],
    ) -> None:
        """Begin without TLS.

        Args:
            put: sends bytes on a connection.
            drop: closes a connection, for a reason; calls `forget`.
            report: passes an event to the node.
        """
        self._put = put
        self._drop = drop
        self._report = report
        self._tls: dict[LinkKind, Tls] = {}
        self._shaking: dict[SocketConnection, int] = {}
        """Deadline (ms) of each handshake in progress; oldest first."""
        self._waiting: dict[SocketConnection, None] = {}
        """Connections whose handshake waits for a later turn, in order of arrival."""
        self._spent_ns = 0
        """Time spent on handshakes in this turn."""
        self._refused = Refusals()

    def protect(self, kind: LinkKind, tls: Tls) -> None:
        """Use TLS on connections of this kind."""
        self._tls[kind] = tls

    def connecting(self, kind: LinkKind, host: str) -> TlsLink | None:
        """Return the TLS state of a connection that the node opens; None without TLS. Raises OSError, ValueError."""
        tls = self._tls.get(kind)
        return None if tls is None else tls.connect(host)

    def opened(self, link: SocketConnection, opened: Opened) -> None:
        """Take an open connection: it is reported to the node now, or after its handshake."""
        tls = self._tls.get(link.kind)
        if tls is None:
            self._report(opened)
            return
        link.is_plain = False
        if link.tls is None and tls.is_permissive:
            self._report(opened)
            return
        link.unopened = opened
        self._begin(link)
        if link.tls is not None and link.is_open:
            self._put(link, [link.tls.outgoing()])

    def turn_began(self) -> None:
        """Give this turn its share of time, and end handshakes that take too long."""
        self._spent_ns = 0
        if not self._shaking:
            return
        now_ms = read_clock().mono_ms
        while self._shaking:
            link, until_ms = next(iter(self._shaking.items()))
            if until_ms > now_ms:
                return
            self._fail(link, f"TLS: no handshake within {HANDSHAKE_MS_MAX} ms")

    @property
    def has_waiting(self) -> bool:
        """Whether a handshake waits for the next turn."""
        return bool(self._waiting)

    def is_waiting(self, link: SocketConnection) -> bool:
        """Return whether the handshake of a connection waits for a later turn; it is not to be read meanwhile."""
        return link in self._waiting

    def must_wait(self, link: SocketConnection) -> bool:
        """Return whether a connection with bytes must wait because its handshake would exceed the share of this turn,
        or others wait already; it is in the queue then."""
        is_late = self._spent_ns >= TURN_NS or self._waiting
        if not is_late or (link.tls is not None and link.tls.is_ready):
            return False
        if link.tls is None:
            try:
                if link.sock.recv(1, socket.MSG_PEEK) != _HANDSHAKE_BYTE:
                    return False
            except OSError:
                return False  # the receive reports it
        self._waiting[link] = None
        return True

    def due(self) -> Iterator[SocketConnection]:
        """Yield connections that have waited, the oldest first, while this turn has time for handshakes."""
        while self._waiting and self._spent_ns < TURN_NS:
            link = next(iter(self._waiting))
            del self._waiting[link]
            yield link

    def receive(self, link: SocketConnection, data: memoryview) -> bytes:
        """Return the plain bytes of a connection with TLS or with its first bytes; b"" if there are none yet.

        The connection may be closed afterwards.
        """
        tls = link.tls
        if tls is None:
            if data[0] != HANDSHAKE_RECORD and link.unopened is None:
                link.is_plain = True
                return bytes(data)
            tls = link.tls = self._tls[link.kind].accept()
            if link.unopened is None:
                self._begin(link)
                if not link.is_open:
                    return b""
        if tls.is_ready:
            return self._decrypt(link, tls, data)
        began_ns = monotonic_ns()
        plain = self._decrypt(link, tls, data)
        self._spent_ns += monotonic_ns() - began_ns
        if link.is_open and tls.is_ready:
            self._shaking.pop(link, None)
            if link.unopened is not None:
                self._report(replace(link.unopened, tls=tls.version))
                link.unopened = None
        return plain

    def ended(self, link: SocketConnection) -> str:
        """Return why a connection ends whose peer sends no more."""
        if link not in self._shaking:
            return "closed by the peer"
        reason = "TLS: closed by the peer during the handshake"
        self._note(link, reason)
        return reason

    def forget(self, link: SocketConnection, reason: str) -> bool:
        """Forget a closed connection; return whether the node knows it and gets `Closed`."""
        self._shaking.pop(link, None)
        self._waiting.pop(link, None)
        unopened, link.unopened = link.unopened, None
        if unopened is None:
            return True
        if link.kind in _REPLICATION:
            self._report(HandshakeFailed(link.kind, unopened.peer, reason))
        return link.number < 0

    def _begin(self, link: SocketConnection) -> None:
        now_ms = read_clock().mono_ms
        self._shaking[link] = now_ms + HANDSHAKE_MS_MAX
        if len(self._shaking) > HANDSHAKES_MAX:
            oldest, until_ms = next(iter(self._shaking.items()))
            is_old = until_ms - HANDSHAKE_MS_MAX + HANDSHAKE_MS_MIN <= now_ms
            self._fail(oldest if is_old else link, f"TLS: {HANDSHAKES_MAX} handshakes are in progress")

    def _decrypt(self, link: SocketConnection, tls: TlsLink, data: memoryview) -> bytes:
        try:
            plain = tls.receive(data)
        except NetworkError as error:
            with contextlib.suppress(OSError):
                link.sock.send(tls.outgoing())
            if link.kind is LinkKind.HA_SLAVE and link.unopened is None:
                self._report(HandshakeFailed(link.kind, "", str(error)))
            self._fail(link, str(error))
            return b""
        answer = tls.outgoing()
        if answer:
            self._put(link, [answer])
        if tls.is_ended and link.is_open:
            # The peer sends no more: what it still sends is not kept, and the next turn reads the end.
            with contextlib.suppress(OSError):
                link.sock.shutdown(socket.SHUT_RD)
        return plain

    def _fail(self, link: SocketConnection, reason: str) -> None:
        self._note(link, reason)
        self._drop(link, reason)

    def _note(self, link: SocketConnection, reason: str) -> None:
        """Log a failure, except on replication connections, whose owner does."""
        if link.kind in _REPLICATION:
            return
        peer = "unknown"
        with contextlib.suppress(OSError):
            peer = text_of(link.sock.getpeername())
        times = self._refused.note(peer.rpartition(":")[0], read_clock().mono_ms)
        if times:
            log.warning("link: peer=%s closed times=%d reason=%r", peer, times, reason)
