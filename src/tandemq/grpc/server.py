"""gRPC calls on HTTP/2 connections, without input and output.

    bytes ─► GrpcServer.receive ─► Handler(call, message)      call.respond, call.send, call.end ─► take_output ─► bytes

A handler is called with each whole message of a call, at once and in order. It may answer later, from any callback of
the same turn or of a later one. If the client gives up a call, its connection is lost, or its request is refused,
`on_cancel` is called once, also if the call is answered and the client has not received the answer, which a ping behind
it shows; what is sent on it afterwards is dropped.

Invariants: a message has at most `message_bytes_max`. The open calls of all connections, with their headers and the
messages that have begun to arrive, have at most `open_bytes_max`: a connection with a large share is refused more, with
RESOURCE_EXHAUSTED, or else the connection with the most is closed. A client that does not take an answer within
`TAKE_MS_MAX` loses it, and its connection if it leaves more than `HELD_BYTES_MAX`. If all clients leave more than
`held_bytes_max`, the connections with the most are closed.

Source: gRPC over HTTP/2, PROTOCOL-HTTP2.md of grpc/grpc.
"""

import zlib
from collections import deque
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import NamedTuple

from tandemq.boundary import Now
from tandemq.codec.http2.frames import ErrorCode, Http2Error
from tandemq.codec.http2.hpack import STATIC, literal
from tandemq.grpc.connection import Data, Http2Connection, Reset, StreamOpened

HELD_BYTES_MAX = 64 << 20
HELD_BYTES_ALL_MAX = 256 << 20
OPEN_SHARE = 8
"""A connection with more than this part, an eighth, of the bytes of open calls is refused more."""
CALL_BYTES = 1_024
"""Memory of an open call besides its headers and its request."""
TAKE_MS_MAX = 30_000
CHECK_EVERY_MS = 1_000
"""Period at which a connection's answers are looked at that it has not taken."""
TEXT_CHARACTERS_MAX = 600
"""Each has up to twelve bytes in a header, and clients in Java take 8 KiB of headers."""
PROBE_AFTER_MS = 60_000
"""A connection that has sent nothing for so long is asked for a sign of life."""
PROBE_TIMEOUT_MS = 20_000
PREFIX_BYTES = 5
"""A message begins with whether it is compressed, and its size."""
_UNITS_MS = {"H": 3_600_000, "M": 60_000, "S": 1_000, "m": 1, "u": 0.001, "n": 0.000_001}
_STATUS_200 = bytes((0x80 | STATIC.index((b":status", b"200")) + 1,))
_RESPONSE = _STATUS_200 + literal(b"content-type", b"application/grpc")


class GrpcStatus(IntEnum):
    """Outcome of a call, as gRPC has it."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


_PLAIN = [b"%c" % byte if 0x20 <= byte < 0x7F and byte != 0x25 else b"%%%02X" % byte for byte in range(256)]
"""Each byte of a text as headers have it."""
_OK_TRAILERS = literal(b"grpc-status", b"0")


class Call:
    """One call of a client."""

    __slots__ = (
        "_connection",
        "_data",
        "_has_headers",
        "_link",
        "_server",
        "_size",
        "_stream",
        "answered_ms",
        "deadline_ms",
        "is_over",
        "mark",
        "metadata",
        "method",
        "on_cancel",
        "on_end",
        "peer",
        "state",
    )

    def __init__(
        self, server: "GrpcServer", link: "_Link", stream: int, method: "Method", metadata: dict[str, str]
    ) -> None:
        """A call whose request is being received."""
        self._server = server
        self._link = link
        self._connection = link.connection
        self._stream = stream
        self._data: bytes | bytearray = b""
        """What was received of the request and not handled; an array from the second piece on."""
        self._size = 0
        """Number of bytes that the server counts for this call."""
        self._has_headers = False
        self.method = method
        self.metadata = metadata
        """Headers of the request, lower-case names; of repeated ones the last."""
        self.peer = link.peer
        """"ip:port" of the client."""
        self.deadline_ms: int | None = None
        """When the client gives up, monotonic; None: never."""
        self.is_over = False
        """Whether the call is answered, given up or lost."""
        self.on_cancel: Callable[[Now], None] | None = None
        """Called if the client gives up the call, its connection is lost, or its request is refused."""
        self.on_end: Callable[[Now], None] | None = None
        """Called when the client of a stream sends no more messages."""
        self.state: object = None
        """For the handler."""
        self.answered_ms = -1
        """When the call was answered, monotonic, if it waits for the client to receive that; -1: not yet."""
        self.mark = 0
        """Number of the mark behind the answer; 0: the client's windows have not allowed all of it."""

    @property
    def stream(self) -> int:
        """Number of the stream on its connection."""
        return self._stream

    @property
    def link(self) -> int:
        """Number of the connection."""
        return self._link.number

    @property
    def held_bytes(self) -> int:
        """Number of bytes that the client has not taken."""
        return self._connection.held_of(self._stream)

    def respond(self, message: bytes) -> None:
        """Answer with one message, and end the call."""
        if self.is_over:
            return
        self._finish()
        data = len(message).to_bytes(PREFIX_BYTES, "big") + message
        if self._has_headers:
            self._connection.send_data(self._stream, data)
            self._connection.finish(self._stream, _OK_TRAILERS)
        else:
            self._connection.answer(self._stream, _RESPONSE, data, _OK_TRAILERS)
        self._keep_if_wanted()
        self._server.touch(self._link)

    def send(self, *messages: bytes) -> None:
        """Send messages of a stream of responses."""
        if self.is_over:
            return
        if not self._has_headers:
            self._has_headers = True
            self._connection.send_headers(self._stream, _RESPONSE)
        data = b"".join(
            [part for message in messages for part in (len(message).to_bytes(PREFIX_BYTES, "big"), message)]
        )
        self._connection.send_data(self._stream, data)
        self._server.touch(self._link)

    def end(self, status: GrpcStatus = GrpcStatus.OK, text: str = "") -> None:
        """End the call."""
        if self.is_over:
            return
        self._finish()
        trailers = _OK_TRAILERS if status is GrpcStatus.OK and not text else _trailers(status, text)
        if not self._has_headers:
            trailers = _RESPONSE + trailers
        self._connection.finish(self._stream, trailers)
        self._keep_if_wanted()
        self._server.touch(self._link)

    def _finish(self) -> None:
        self.is_over = True
        self._link.calls.pop(self._stream, None)
        self._release(self._size)
        self._data = b""

    def _keep_if_wanted(self) -> None:
        if self.on_cancel is not None or self._connection.is_open(self._stream):
            self._link.fresh.append(self)
            self._link.untaken[self._stream] = self
            self.metadata = {}

    def _release(self, size: int) -> None:
        self._size -= size
        self._server.release(self._link, size)

    # For the server.

    def reserve(self, size: int, now: Now) -> bool:
        """Count bytes of this call; return whether there may be so many, otherwise it has ended."""
        self._size += size
        if self._server.reserve(self._link, size, now):
            return True
        self._refuse(GrpcStatus.RESOURCE_EXHAUSTED, "too many bytes of unfinished calls", now)
        return False

    def take(self, data: bytes, now: Now, *, is_end: bool) -> None:
        """Take bytes of the request, and call the handler with each message in them."""
        if not self._data:
            self._data = data
        elif isinstance(self._data, bytearray):
            self._data += data
        else:
            self._data = bytearray(self._data)
            self._data += data
        if not self.reserve(len(data), now):
            return
        if self.method.is_streamed:
            while (message := self._next_message(now)) is not None:
                self.method.handler(self, message, now)
            if is_end and not self.is_over and self.on_end is not None:
                self.on_end(now)
        elif is_end:
            self._take_only(now)
        elif len(self._data) > self._server.message_bytes_max + PREFIX_BYTES:
            self._refuse_size(len(self._data), now)

    def _take_only(self, now: Now) -> None:
        message = self._next_message(now)
        if self.is_over:
            return
        if message is None or self._data:
            self._refuse(GrpcStatus.INTERNAL, "the request is not one whole message", now)
            return
        self.method.handler(self, message, now)

    def _next_message(self, now: Now) -> bytes | None:
        """Return the next message of the request; None if it is not whole yet, or the call has ended."""
        data = self._data
        if self.is_over or len(data) < PREFIX_BYTES:
            return None
        size = int.from_bytes(data[1:PREFIX_BYTES], "big")
        if size > self._server.message_bytes_max:
            self._refuse_size(size, now)
            return None
        end = PREFIX_BYTES + size
        if len(data) < end:
            return None
        self._data = bytes(data[end:])
        self._release(end)
        message = data[PREFIX_BYTES:end] if isinstance(data, bytes) else bytes(memoryview(data)[PREFIX_BYTES:end])
        return self._inflated(message, now) if data[0] else message

    def _refuse_size(self, size: int, now: Now) -> None:
        text = f"the message has {size} bytes or more; the maximum is {self._server.message_bytes_max}"
        self._refuse(GrpcStatus.RESOURCE_EXHAUSTED, text, now)

    def _inflated(self, message: bytes, now: Now) -> bytes | None:
        if self.metadata.get("grpc-encoding") != "gzip":
            self._refuse(GrpcStatus.UNIMPLEMENTED, "messages are compressed with gzip or not at all", now)
            return None
        inflater = zlib.decompressobj(16 + zlib.MAX_WBITS)
        try:
            inflated = inflater.decompress(message, self._server.message_bytes_max + 1)
        except zlib.error as error:
            self._refuse(GrpcStatus.INTERNAL, f"a message cannot be decompressed: {error}", now)
            return None
        if len(inflated) > self._server.message_bytes_max:
            self._refuse_size(len(inflated), now)
            return None
        if not inflater.eof:
            self._refuse(GrpcStatus.INTERNAL, "a compressed message ends early", now)
            return None
        return inflated

    def _refuse(self, status: GrpcStatus, text: str, now: Now) -> None:
        """End the call because of its request; its handler is notified."""
        self.end(status, text)
        self.cancel(now)

    def cancel(self, now: Now) -> None:
        """Tell the handler that the client has given up the call, or is gone."""
        if not self.is_over:
            self._finish()
        on_cancel, self.on_cancel = self.on_cancel, None
        if on_cancel is not None:
            on_cancel(now)

    def is_taken(self) -> bool:
        """Whether the client's windows have allowed the whole answer."""
        return not self._connection.is_open(self._stream)

    def drop(self, now: Now) -> None:
        """Give up an answer that the client does not take."""
        self._connection.reset(self._stream, ErrorCode.CANCEL)
        self.cancel(now)


Handler = Callable[[Call, bytes, Now], None]


class Method(NamedTuple):
    """What serves the calls of one path."""

    handler: Handler
    """Called with each message of a call."""
    is_streamed: bool = False
    """Whether clients may send several messages."""
    opened: Callable[[Call, Now], None] | None = None
    """Called when a call begins."""


class _Link:
    """A connection and its calls."""

    __slots__ = (
        "calls",
        "checked_ms",
        "connection",
        "fresh",
        "held_bytes",
        "marked",
        "number",
        "open_bytes",
        "peer",
        "untaken",
    )

    def __init__(self, number: int, peer: str, connection: Http2Connection) -> None:
        self.number = number
        self.peer = peer
        self.connection = connection
        self.calls: dict[int, Call] = {}
        self.untaken: dict[int, Call] = {}
        """Answered calls whose answers the client has not received as far as known, by stream."""
        self.fresh: list[Call] = []
        """Those that were answered in this turn."""
        self.marked: deque[Call] = deque()
        """Those with a mark behind their answer, in the order of their marks."""
        self.checked_ms = 0
        """When they were all looked at last."""
        self.held_bytes = 0
        """Bytes of answers that the client had not taken after the latest turn."""
        self.open_bytes = 0
        """Size of the open calls."""

    def cancel_all(self, now: Now) -> None:
        """Tell the handlers of all calls that the client is gone."""
        untaken, self.untaken = self.untaken, {}
        passed = self.connection.passed_marks
        for call in [*self.calls.values(), *[call for call in untaken.values() if not 0 < call.mark <= passed]]:
            call.cancel(now)


class GrpcServer:
    """All connections of a gRPC server."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        message_bytes_max: int,
        open_bytes_max: int,
        held_bytes_max: int = HELD_BYTES_ALL_MAX,
    ) -> None:
        """Begin without connections.

        Args:
            methods: by path, "/service/method".
            message_bytes_max: maximum size of a message.
            open_bytes_max: maximum size of all open calls: headers, and requests that have begun to arrive.
            held_bytes_max: maximum size of the answers that wait for the windows of all clients.
        """
        self._methods = methods
        self.message_bytes_max = message_bytes_max
        self._links: dict[int, _Link] = {}
        self._touched: dict[int, _Link] = {}
        """Connections with output."""
        self._ended: list[tuple[int, str]] = []
        self._open_bytes = 0
        self._open_bytes_max = open_bytes_max
        self._held_bytes = 0
        self._held_bytes_max = held_bytes_max
        self._is_leaving = False
        self.call_count = 0
        """Number of calls begun."""

    # Connections.

    def opened(self, link: int, peer: str, now: Now) -> None:
        """Take a connection."""
        found = self._links[link] = _Link(link, peer, Http2Connection(now))
        if self._is_leaving:
            found.connection.leave()
        self._touched[link] = found

    def closed(self, link: int, now: Now) -> None:
        """Forget a connection; its calls are lost."""
        found = self._links.get(link)
        self._touched.pop(link, None)
        if found is not None:
            self._forget(found, now)

    def receive(self, link: int, data: bytes, now: Now) -> None:
        """Take bytes of a connection."""
        found = self._links.get(link)
        if found is None:
            return
        connection = found.connection
        self._touched[link] = found
        try:
            events = connection.receive(data, now)
        except Http2Error as error:
            self._fail(found, error, now)
            return
        for event in events:
            if isinstance(event, StreamOpened):
                if link in self._links:
                    self._begin(found, event, now)
            elif isinstance(event, Data):
                call = found.calls.get(event.stream)
                if call is not None:
                    call.take(event.data, now, is_end=event.is_end)
            elif isinstance(event, Reset):
                call = found.calls.get(event.stream) or found.untaken.pop(event.stream, None)
                if call is not None:
                    call.cancel(now)

    def _end(self, found: _Link, reason: str, now: Now) -> None:
        """Close a connection behind what is to be sent."""
        self._ended.append((found.number, reason))
        self._touched[found.number] = found
        self._forget(found, now)

    def _fail(self, found: _Link, error: Http2Error, now: Now) -> None:
        found.connection.fail(error)
        self._end(found, str(error), now)

    def _forget(self, found: _Link, now: Now) -> None:
        del self._links[found.number]
        self._held_bytes -= found.held_bytes
        found.cancel_all(now)

    def _begin(self, found: _Link, request: StreamOpened, now: Now) -> None:
        metadata = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
        connection, stream = found.connection, request.stream
        if metadata.get(":method") != "POST" or not _is_grpc(metadata.get("content-type", "")):
            connection.finish(stream, literal(b":status", b"415"))
            return
        self.call_count += 1
        method = self._methods.get(metadata.get(":path", ""))
        if method is None:
            text = f"there is no method {metadata.get(':path', '')[:200]}"
            connection.finish(stream, _RESPONSE + _trailers(GrpcStatus.UNIMPLEMENTED, text))
            return
        call = found.calls[stream] = Call(self, found, stream, method, metadata)
        if not call.reserve(request.header_bytes + CALL_BYTES, now):
            return
        timeout = metadata.get("grpc-timeout")
        if timeout is not None:
            timeout_ms = _timeout_ms(timeout)
            if timeout_ms is None:
                call.end(GrpcStatus.INTERNAL, f"grpc-timeout {timeout[:20]!r} is no time")
                return
            call.deadline_ms = now.mono_ms + timeout_ms
        if method.opened is not None:
            method.opened(call, now)
        if request.is_end and not call.is_over:
            call.take(b"", now, is_end=True)

    # Output.

    def touch(self, link: _Link) -> None:
        """Note that a connection has output."""
        if link.number in self._links:
            self._touched[link.number] = link

    def take_output(self, now: Now) -> tuple[list[tuple[int, list[bytes]]], list[tuple[int, str]]]:
        """Return the bytes to send on each connection, and then the connections to close, with the reasons."""
        touched, self._touched = self._touched, {}
        sends = []
        for number, found in touched.items():
            if number in self._links:
                if found.untaken:
                    self._check_untaken(found, now)
                self._held_bytes += found.connection.held_bytes - found.held_bytes
                found.held_bytes = found.connection.held_bytes
                if found.held_bytes > HELD_BYTES_MAX:
                    self._end(found, f"the client does not take {HELD_BYTES_MAX} bytes of responses", now)
            if out := found.connection.take_output():
                sends.append((number, out))
        if self._held_bytes > self._held_bytes_max:
            self._make_room(now)
        ended, self._ended = self._ended, []
        return sends, ended

    def _check_untaken(self, found: _Link, now: Now) -> None:
        """Mark the answers that the windows have allowed, forget those that were received, drop those that wait too
        long; all are looked at once per `CHECK_EVERY_MS`."""
        fresh, found.fresh = found.fresh, []
        is_time = now.mono_ms - found.checked_ms >= CHECK_EVERY_MS
        mark = 0
        for call in list(found.untaken.values()) if is_time else fresh:
            if call.answered_ms < 0:
                call.answered_ms = now.mono_ms
            if not call.mark and call.is_taken():
                mark = call.mark = mark or found.connection.mark()
                found.marked.append(call)
        while found.marked and found.marked[0].mark <= found.connection.passed_marks:
            found.untaken.pop(found.marked.popleft().stream, None)
        if is_time:
            found.checked_ms = now.mono_ms
            for call in [each for each in found.untaken.values() if now.mono_ms - each.answered_ms > TAKE_MS_MAX]:
                del found.untaken[call.stream]
                call.drop(now)

    def _make_room(self, now: Now) -> None:
        """Close the connections with the most untaken bytes until there are not too many."""
        for found in sorted(self._links.values(), key=lambda each: -each.held_bytes):
            if self._held_bytes <= self._held_bytes_max:
                return
            self._end(found, f"all clients together do not take {self._held_bytes_max} bytes of responses", now)

    # All connections.

    def probe(self, now: Now) -> None:
        """Ask silent connections for a sign of life, and close those that gave none; to be called every few seconds."""
        for found in list(self._links.values()):
            connection = found.connection
            if found.untaken:
                self.touch(found)
            silent_ms = now.mono_ms - connection.received_ms
            if connection.is_probed and silent_ms > PROBE_AFTER_MS + PROBE_TIMEOUT_MS:
                self._end(found, f"it has sent nothing for {silent_ms // 1000} s", now)
            elif not connection.is_probed and silent_ms > PROBE_AFTER_MS:
                connection.probe()
                self.touch(found)

    def leave(self) -> None:
        """Ask all clients to go elsewhere with further calls."""
        self._is_leaving = True
        for found in self._links.values():
            found.connection.leave()
            self.touch(found)

    @property
    def open_calls(self) -> int:
        """Number of calls that are not answered."""
        return sum(len(found.calls) for found in self._links.values())

    def is_open(self, link: int) -> bool:
        """Whether a connection is open."""
        return link in self._links

    @property
    def connection_count(self) -> int:
        """Number of connections."""
        return len(self._links)

    def close(self, now: Now) -> None:
        """Close all connections."""
        for found in list(self._links.values()):
            found.connection.end()
            self.touch(found)
            self._end(found, "the server stops", now)

    # Memory.

    def reserve(self, link: _Link, size: int, now: Now) -> bool:
        """Count bytes of an open call; return whether there may be so many."""
        link.open_bytes += size
        self._open_bytes += size
        if self._open_bytes <= self._open_bytes_max:
            return True
        if link.open_bytes > self._open_bytes_max // OPEN_SHARE:
            return False
        largest = max(self._links.values(), key=lambda each: each.open_bytes)
        text = f"its open calls have {largest.open_bytes} bytes, the most of all connections"
        self._fail(largest, Http2Error(ErrorCode.ENHANCE_YOUR_CALM, text), now)
        return largest is not link

    def release(self, link: _Link, size: int) -> None:
        """Count bytes of an open call no longer."""
        link.open_bytes -= size
        self._open_bytes -= size


def _is_grpc(content_type: str) -> bool:
    """Whether a content type is that of gRPC, such as application/grpc+proto; not application/grpc-web."""
    return content_type.startswith("application/grpc") and content_type[16:17] in ("", "+", ";")


def _trailers(status: GrpcStatus, text: str) -> bytes:
    block = literal(b"grpc-status", b"%d" % status)
    if text:
        shown = text[:TEXT_CHARACTERS_MAX].encode(errors="replace")
        block += literal(b"grpc-message", b"".join([_PLAIN[byte] for byte in shown]))
    return block


def _timeout_ms(text: str) -> int | None:
    """Return a grpc-timeout as milliseconds; None if it is none."""
    unit = _UNITS_MS.get(text[-1:])
    digits = text[:-1]
    if unit is None or not (digits.isascii() and digits.isdecimal() and len(digits) <= 8):
        return None
    return int(int(digits) * unit)
