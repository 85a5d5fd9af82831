"""HTTP connections: uvicorn's protocol on h11, with limits of time and number, and strict framing of requests.

* A request head arrives within `HEAD_S`, its body within `BODY_S`; a peer that takes nothing of a response for
  `HEAD_S` is disconnected.
* At most `connections_max()` connections are open, so that descriptors are left for brokers and the database. One more
  closes the oldest that waits for its peer: for a TLS handshake, a request, or the reading of a response.
* A request that a proxy may frame otherwise gets 400 and its connection is closed (RFC 9112, 6.1): with
  Transfer-Encoding and either Content-Length or HTTP/1.0.
* Events that peers cause are logged at a limited rate.
"""

import asyncio
import logging
import resource
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

HEAD_S = 10.0
BODY_S = 60.0
HEAD_BYTES_MAX = 32 << 10
BACKLOG = 64
"""Connections accepted in one turn of the event loop, in excess of the maximum."""
LINES_MAX = 20
"""Lines per logger and minute."""
MINUTE_S = 60.0


def connections_max() -> int:
    """Return the maximum number of open connections: half of the process's descriptors, at most 512."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 512 if soft == resource.RLIM_INFINITY else max(16, min(512, soft // 2))


class Listener(socket.socket):
    """A listening socket that closes the oldest waiting connection for one more than `most`."""

    def __init__(self, family: int, most: int, descriptor: int) -> None:
        """Take the descriptor of a bound socket, and the maximum number of connections."""
        super().__init__(family, socket.SOCK_STREAM, fileno=descriptor)
        self._most = most
        self._open: list[socket.socket] = []
        self.busy: Callable[[], set[int]] = set
        """Returns the descriptors of the connections whose peers wait for a response."""

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection."""
        connection, address = super().accept()
        if len(self._open) >= self._most:
            self._open = [opened for opened in self._open if opened.fileno() != -1]
        self._open.append(connection)
        if len(self._open) > self._most:
            busy = self.busy()
            # The last one is new: it is closed if all others are busy.
            oldest = next(
                candidate for candidate in self._open if candidate is connection or candidate.fileno() not in busy
            )
            self._open.remove(oldest)
            try:
                oldest.shutdown(socket.SHUT_RDWR)
            except OSError:  # its peer has closed it
                return connection, address
        return connection, address


class _StrictConnection(h11.Connection):
    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if b"transfer-encoding" in names and (b"content-length" in names or event.http_version < b"1.1"):
                raise h11.RemoteProtocolError("Transfer-Encoding with Content-Length, or in HTTP/1.0")
        return event


class BoundedProtocol(H11Protocol):
    """A connection. Owner: the event loop."""

    _timer: asyncio.TimerHandle | None = None
    _timed: tuple[float, RequestResponseCycle | None] = (0.0, None)
    """Reason of the timer: limit in seconds, and the last request."""
    _unread = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self.conn = _StrictConnection(h11.SERVER, HEAD_BYTES_MAX)
        self._limit()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the request that runs."""
        super().connection_lost(exc)
        self._cancel()

    def data_received(self, data: bytes) -> None:
        """Handle a part of a request."""
        super().data_received(data)
        self._limit()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._limit()

    def pause_writing(self) -> None:
        """Begin to wait until the peer reads the response."""
        super().pause_writing()
        self._limit()

    def resume_writing(self) -> None:
        """Go on with the response."""
        super().resume_writing()
        self._limit()

    def send_400_response(self, msg: str) -> None:
        """Refuse an invalid request, and close."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:  # within a body whose request has its response already
            self.transport.abort()

    @property
    def is_busy(self) -> bool:
        """Whether the peer has sent a whole request and waits for the response."""
        cycle = self.cycle
        is_running = cycle is not None and not cycle.response_complete and not cycle.more_body
        return is_running and not self.flow.write_paused

    def _limit(self) -> None:
        """Set the timer for the event that the connection waits for; unchanged if it is the same as before."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            seconds = HEAD_S
        elif cycle.more_body:
            seconds = BODY_S
        else:
            seconds = HEAD_S if self.flow.write_paused else 0.0
        if self._timed == (seconds, cycle) or self.conn.our_state is h11.ERROR:
            return
        self._cancel()
        self._timed = (seconds, cycle)
        if seconds:
            self._unread = self.transport.get_write_buffer_size()
            self._timer = self.loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        left = self.transport.get_write_buffer_size()
        if left < self._unread:
            self._unread = left
            self._timer = self.loop.call_later(HEAD_S, self._expire)
        else:
            self.transport.abort()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def busy_descriptors(connections: Iterable[object]) -> set[int]:
    """Return the descriptors of the connections whose peers wait for a response."""
    busy = [protocol for protocol in connections if isinstance(protocol, BoundedProtocol) and protocol.is_busy]
    sockets = [protocol.transport.get_extra_info("socket") for protocol in busy]
    # A TLS connection that has ended has no socket any more, for a turn of the event loop.
    return {connection.fileno() for connection in sockets if connection is not None}


class LineLimit(logging.Filter):
    """At most `LINES_MAX` lines per minute; the first line of a later minute has the number of those left out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Take the clock, in seconds."""
        super().__init__()
        self._clock = clock
        self._until = 0.0
        self._lines = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is logged."""
        now = self._clock()
        if now >= self._until:
            if self._lines > LINES_MAX:
                record.msg = f"{record.getMessage()} ({self._lines - LINES_MAX} lines before were left out)"
                record.args = ()
            self._until, self._lines = now + MINUTE_S, 0
        self._lines += 1
        return self._lines <= LINES_MAX
