"""A gRPC client without input and output, for tests and the simulation.

    client = GrpcClient()
    call = client.start("/service/method", request_bytes, metadata)
    send(client.take_output());  client.receive(data);  call.messages, call.status

It gives the server as much window as it wants, unless a test says otherwise.
"""

from collections.abc import Callable, Mapping

from tandemq.codec.http2.frames import (
    FRAME_BYTES_DEFAULT,
    HEAD_BYTES,
    PREFACE,
    WINDOW_DEFAULT,
    ErrorCode,
    Flag,
    FrameType,
    Setting,
    frame,
    parse_settings,
    reset_frame,
    settings_frame,
    window_update_frame,
)
from tandemq.codec.http2.hpack import ENTRY_OVERHEAD, TABLE_BYTES_MAX, HeaderDecoder, literal

PREFIX_BYTES = 5
FIXED_ENTRIES = 61
ENTRIES_MAX = 60
"""Entries that a byte can refer to."""


class ClientCall:
    """A call: what was received of its response."""

    def __init__(self, stream: int) -> None:
        """Begun on a stream."""
        self.stream = stream
        self.messages: list[bytes] = []
        self.headers: dict[str, str] = {}
        self.status: int | None = None
        """The gRPC status; None: the call is open. -1: the server has reset it, or the connection is lost."""
        self.text = ""
        self.on_message: Callable[[bytes], None] = lambda _message: None
        self.on_end: Callable[[], None] = lambda: None
        self._buffer = b""

    def take(self, data: bytes) -> None:
        """Take data of the response."""
        self._buffer += data
        while len(self._buffer) >= PREFIX_BYTES:
            size = int.from_bytes(self._buffer[1:PREFIX_BYTES], "big")
            if len(self._buffer) < PREFIX_BYTES + size:
                return
            message = self._buffer[PREFIX_BYTES : PREFIX_BYTES + size]
            self._buffer = self._buffer[PREFIX_BYTES + size :]
            self.messages.append(message)
            self.on_message(message)

    def take_headers(self, headers: dict[str, str]) -> None:
        """Take headers or trailers."""
        self.headers |= headers
        self.text = self.headers.get("grpc-message", "")

    def end(self, status: int) -> None:
        """End the call."""
        if self.status is None:
            self.status = status
            self.on_end()


class GrpcClient:
    """The client's end of one connection."""

    def __init__(self, *, window: int = 1 << 30) -> None:
        """`window`: bytes that the server may send at first, on each stream and in all."""
        self.calls: dict[int, ClientCall] = {}
        self.goaway: tuple[int, int, str] | None = None
        """Last stream, error code and text of the server's GOAWAY."""
        self.settings: dict[int, int] = {}
        """Settings of the server."""
        self.pings = 0
        self._decoder = HeaderDecoder(1 << 20)
        self._table: dict[tuple[bytes, bytes], int] = {}
        """Headers in the server's table, with their numbers in the order in which they were added."""
        self._table_bytes = 0
        self._buffer = b""
        self._next_stream = 1
        self._frame_max = FRAME_BYTES_DEFAULT
        self._send_window = WINDOW_DEFAULT
        self._held: list[bytes] = []
        self.out: list[bytes] = [PREFACE, settings_frame({Setting.INITIAL_WINDOW_SIZE: window})]
        if window > WINDOW_DEFAULT:
            self.out.append(window_update_frame(0, window - WINDOW_DEFAULT))

    def start(
        self,
        path: str,
        *messages: bytes,
        metadata: Mapping[str, str] | None = None,
        timeout_ms: int = 0,
        is_open: bool = False,
    ) -> ClientCall:
        """Begin a call; `is_open`: whether more messages follow."""
        call = ClientCall(self._next_stream)
        self._next_stream += 2
        self.calls[call.stream] = call
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "proxy",
            "te": "trailers",
            "content-type": "application/grpc",
            **(metadata or {}),
        }
        if timeout_ms:
            headers["grpc-timeout"] = f"{timeout_ms}m"
        block = b"".join([self._encoded(name.encode(), value.encode()) for name, value in headers.items()])
        self.out.append(frame(FrameType.HEADERS, Flag.END_HEADERS, call.stream, block))
        self.send(call, *messages, is_end=not is_open)
        return call

    def _encoded(self, name: bytes, value: bytes) -> bytes:
        """Return a header, which is added to the server's table while that has room: what recurs is a byte then."""
        place = self._table.get((name, value))
        if place is not None:
            return bytes((0x80 | FIXED_ENTRIES + len(self._table) - place,))
        size = len(name) + len(value) + ENTRY_OVERHEAD
        if self._table_bytes + size > TABLE_BYTES_MAX or len(self._table) >= ENTRIES_MAX:
            return literal(name, value)
        self._table[name, value] = len(self._table)
        self._table_bytes += size
        return b"\x40" + literal(name, value)[1:]

    def send(self, call: ClientCall, *messages: bytes, is_end: bool = False) -> None:
        """Send messages of a call."""
        data = b"".join(len(message).to_bytes(PREFIX_BYTES, "big") + message for message in messages)
        pieces = [data[at : at + self._frame_max] for at in range(0, len(data), self._frame_max)] or [b""]
        for piece in pieces[:-1]:
            self._put(frame(FrameType.DATA, 0, call.stream, piece))
        if pieces[-1] or is_end:
            self._put(frame(FrameType.DATA, Flag.END_STREAM if is_end else 0, call.stream, pieces[-1]))

    def _put(self, data: bytes) -> None:
        """Send a DATA frame within the server's window."""
        self._held.append(data)
        while self._held and len(self._held[0]) - HEAD_BYTES <= self._send_window:
            self._send_window -= len(self._held[0]) - HEAD_BYTES
            self.out.append(self._held.pop(0))

    def cancel(self, call: ClientCall) -> None:
        """Give up a call."""
        self.out.append(reset_frame(call.stream, ErrorCode.CANCEL))
        self._forget(call.stream, -1)

    def _forget(self, stream: int, status: int) -> None:
        call = self.calls.pop(stream, None)
        if call is not None:
            call.end(status)

    def receive(self, data: bytes) -> None:
        """Take bytes of the server."""
        self._buffer += data
        while len(self._buffer) >= HEAD_BYTES:
            head = self._buffer[:HEAD_BYTES]
            size = int.from_bytes(head[:3], "big")
            if len(self._buffer) < HEAD_BYTES + size:
                return
            payload = self._buffer[HEAD_BYTES : HEAD_BYTES + size]
            self._buffer = self._buffer[HEAD_BYTES + size :]
            self._take(FrameType(head[3]), head[4], int.from_bytes(head[5:], "big"), payload)

    def _take(self, kind: FrameType, flags: int, stream: int, payload: bytes) -> None:
        call = self.calls.get(stream)
        if kind is FrameType.HEADERS:
            headers = {name.decode(): value.decode() for name, value in self._decoder.decode(payload)}
            if call is not None:
                call.take_headers(headers)
                if flags & Flag.END_STREAM:
                    self._forget(stream, int(headers.get("grpc-status", "2")))
        elif kind is FrameType.DATA:
            if call is not None:
                call.take(payload)
        elif kind is FrameType.RST_STREAM:
            self._forget(stream, -1)
        elif kind is FrameType.SETTINGS and not flags & Flag.ACK:
            self.settings |= dict(parse_settings(payload))
            self.out.append(frame(FrameType.SETTINGS, Flag.ACK, 0))
        elif kind is FrameType.PING:
            self.pings += 1
            if not flags & Flag.ACK:
                self.out.append(frame(FrameType.PING, Flag.ACK, 0, payload))
        elif kind is FrameType.GOAWAY:
            last, error = int.from_bytes(payload[:4], "big"), int.from_bytes(payload[4:8], "big")
            self.goaway = (last, error, payload[8:].decode())
        elif kind is FrameType.WINDOW_UPDATE and not stream:
            self._send_window += int.from_bytes(payload, "big")
            held, self._held = self._held, []
            for each in held:
                self._put(each)

    def lost(self) -> None:
        """End all calls: the connection is lost."""
        for stream in list(self.calls):
            self._forget(stream, -1)

    def take_output(self) -> bytes:
        """Return the bytes to send since the last call."""
        out, self.out = self.out, []
        return b"".join(out)
