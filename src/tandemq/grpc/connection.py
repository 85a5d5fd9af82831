"""The server's end of an HTTP/2 connection.

    bytes ─► receive ─► requests, data, ends, resets         send_headers, send_data, finish ─► take_output ─► bytes
                                                                  └► held while the peer's window is used up

It does what a gRPC server needs: no push, no priorities, and headers that are sent need no compression.

Invariants: what a connection may cost is bounded. Streams: `STREAMS_MAX`, more are refused. Headers:
`HEADER_BYTES_MAX`, compressed or not. Data: the owner gets all and resets streams that send too much; the
windows bound what is in flight. Frames that cost work and serve no request (pings, settings, early resets, empty data)
count as nuisances, which are forgiven over time; a connection with more than `NUISANCES_MAX` ends. Window updates
count as none, since clients may send any number of them: each costs no more than the data it allows.

Source: RFC 9113.
"""

from collections import deque
from typing import NamedTuple

from tandemq.boundary import Now
from tandemq.codec.http2.frames import (
    FRAME_BYTES_DEFAULT,
    HEAD_BYTES,
    PREFACE,
    STREAM_MAX,
    WINDOW_DEFAULT,
    WINDOW_MAX,
    ErrorCode,
    Flag,
    FrameType,
    Http2Error,
    Setting,
    frame,
    goaway_frame,
    parse_settings,
    reset_frame,
    settings_frame,
    window_update_frame,
)
from tandemq.codec.http2.hpack import TABLE_BYTES_MAX, Header, HeaderDecoder
from tandemq.errors import ProtocolError

STREAMS_MAX = 1_000
"""Maximum number of streams of a connection at a time; long polls are streams too."""
HEADER_BYTES_MAX = 32 * 1024
FRAGMENTS_MAX = 16
"""Maximum number of frames that one block of headers comes in."""
STREAM_WINDOW = 1 << 20
CONNECTION_WINDOW = 8 << 20
NUISANCES_MAX = 2_000
NUISANCES_FORGIVEN_PER_S = 100
EARLY_MS = 1_000
"""Resets of older streams are no nuisances, for instance those of long polls and at deadlines: `STREAMS_MAX` bounds
their rate."""
_DATA, _HEADERS = int(FrameType.DATA), int(FrameType.HEADERS)
_NO_DATA: deque[bytes] = deque(maxlen=0)
_TABLE_OF_0 = b"\x20"
"""Begin of a block of headers: the header table has the size 0."""


class StreamOpened(NamedTuple):
    """Event: a stream was opened."""

    stream: int
    headers: list[Header]
    is_end: bool
    """Whether the peer sends nothing more on it."""
    header_bytes: int
    """Size of the headers by HPACK's measure."""


class Data(NamedTuple):
    """Event: data of a stream, or its end."""

    stream: int
    data: bytes
    is_end: bool


class Reset(NamedTuple):
    """Event: the peer has given up a stream."""

    stream: int


StreamEvent = StreamOpened | Data | Reset


class _Stream:
    """A stream that both ends know."""

    __slots__ = ("has_ended", "held", "held_bytes", "opened_ms", "receive_window", "send_window", "trailers")

    def __init__(self, send_window: int, opened_ms: int, *, has_ended: bool) -> None:
        self.opened_ms = opened_ms
        self.has_ended = has_ended
        """Whether the peer sends nothing more."""
        self.send_window = send_window
        self.receive_window = STREAM_WINDOW
        self.held = _NO_DATA
        """Data that the peer's windows do not allow yet, in pieces of at most FRAME_BYTES_DEFAULT."""
        self.held_bytes = 0
        self.trailers: bytes | None = None
        """Block of the headers that end the stream behind its held data."""


class Http2Connection:
    """One connection: streams, windows, and frames that wait to be sent."""

    def __init__(self, now: Now) -> None:
        """Begin with the server's settings, which follow the peer's first bytes; its preface is expected."""
        self._decoder = HeaderDecoder(HEADER_BYTES_MAX)
        self._buffer = b""
        self._has_preface = False
        self._has_received = False
        self._streams: dict[int, _Stream] = {}
        self._last_stream = 0
        self._block: list[bytes] | None = None
        """Fragments of the block of headers that is being received."""
        self._block_stream = 0
        self._block_is_end = False
        self._send_window = WINDOW_DEFAULT
        self._peer_window = WINDOW_DEFAULT
        """Initial window of streams at the peer."""
        self._peer_frame_max = FRAME_BYTES_DEFAULT
        self._receive_window = CONNECTION_WINDOW
        self._blocked: dict[int, _Stream] = {}
        """Streams whose held data wait for the window of the connection only, in the order in which they are served."""
        self._has_sent_data = False
        """Whether data were sent since the last ping."""
        self._must_shrink_table = False
        """Whether the next headers must say that this end uses no table."""
        self._nuisances = 0
        self._forgiven_ms = now.mono_ms
        self._is_leaving = False
        self.held_bytes = 0
        """Number of bytes that wait for the peer's windows."""
        self.received_ms = now.mono_ms
        """When the peer has last sent something."""
        self.is_probed = False
        """Whether a ping was sent since."""
        self.marks = 0
        """Number of the last mark that was sent."""
        self.passed_marks = 0
        """Number of the last mark that the peer has received."""
        settings = {
            Setting.MAX_CONCURRENT_STREAMS: STREAMS_MAX,
            Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            Setting.MAX_HEADER_LIST_SIZE: HEADER_BYTES_MAX,
        }
        self._out = [settings_frame(settings), window_update_frame(0, CONNECTION_WINDOW - WINDOW_DEFAULT)]

    # Receive.

    def receive(self, data: bytes, now: Now) -> list[StreamEvent]:
        """Take bytes of the peer and return what they mean.

        Raises:
            Http2Error: the peer violated the protocol or a limit; `fail` tells it.
        """
        self.received_ms = now.mono_ms
        self._has_received = True
        self.is_probed = False
        self._forgive(now)
        if self._buffer:
            data = self._buffer + data
        at, end = 0, len(data)
        if not self._has_preface:
            if not data.startswith(PREFACE[:end]):
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the connection does not begin with the preface of HTTP/2")
            if end < len(PREFACE):
                self._buffer = data
                return []
            self._has_preface = True
            at = len(PREFACE)
        events: list[StreamEvent] = []
        while end - at >= HEAD_BYTES:
            size = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
            if size > FRAME_BYTES_DEFAULT:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"a frame has {size} bytes")
            begin = at + HEAD_BYTES
            if end - begin < size:
                break
            kind, flags = data[at + 3], data[at + 4]
            stream = int.from_bytes(data[at + 5 : begin], "big") & STREAM_MAX
            at = begin + size
            payload = data[begin:at]
            if self._block is not None and (kind != FrameType.CONTINUATION or stream != self._block_stream):
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a block of headers is interrupted")
            if kind == _DATA:
                self._take_data(stream, flags, payload, size, events)
            elif kind == _HEADERS:
                self._take_headers(stream, flags, payload, events)
            else:
                self._take_other(kind, stream, flags, payload, events)
        self._buffer = data[at:] if at else data
        return events

    def _take_data(self, stream: int, flags: int, payload: bytes, size: int, events: list[StreamEvent]) -> None:
        self._check_known(stream)
        self._receive_window -= size
        if self._receive_window < 0:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "data exceed the window of the connection")
        if self._receive_window < CONNECTION_WINDOW // 2:
            self._out.append(window_update_frame(0, CONNECTION_WINDOW - self._receive_window))
            self._receive_window = CONNECTION_WINDOW
        if flags & Flag.PADDED:
            payload = _without_padding(payload)
        is_end = bool(flags & Flag.END_STREAM)
        if not payload and not is_end:
            self._nuisance()
        found = self._streams.get(stream)
        if found is None:
            return  # the server has ended it
        if found.has_ended:
            raise Http2Error(ErrorCode.STREAM_CLOSED, "data follow the end of a stream")
        found.receive_window -= size
        if found.receive_window < 0:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "data exceed the window of a stream")
        if found.receive_window < STREAM_WINDOW // 2 and not is_end:
            self._out.append(window_update_frame(stream, STREAM_WINDOW - found.receive_window))
            found.receive_window = STREAM_WINDOW
        found.has_ended = is_end
        if payload or is_end:
            events.append(Data(stream, payload, is_end))

    def _take_headers(self, stream: int, flags: int, payload: bytes, events: list[StreamEvent]) -> None:
        if not stream & 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a client opens streams with odd numbers")
        if flags & Flag.PADDED:
            payload = _without_padding(payload)
        if flags & Flag.PRIORITY:
            if len(payload) < 5:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "a HEADERS frame ends within its priority")
            payload = payload[5:]
        self._block_stream, self._block_is_end = stream, bool(flags & Flag.END_STREAM)
        if flags & Flag.END_HEADERS:
            self._take_block(payload, events)
        else:
            self._block = [payload]

    def _take_continuation(self, flags: int, payload: bytes, events: list[StreamEvent]) -> None:
        if self._block is None:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a CONTINUATION frame follows no headers")
        self._block.append(payload)
        if len(self._block) > FRAGMENTS_MAX or sum(map(len, self._block)) > HEADER_BYTES_MAX:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"headers have more than {HEADER_BYTES_MAX} bytes")
        if flags & Flag.END_HEADERS:
            block, self._block = b"".join(self._block), None
            self._take_block(block, events)

    def _take_block(self, block: bytes, events: list[StreamEvent]) -> None:
        stream, is_end = self._block_stream, self._block_is_end
        try:
            headers = self._decoder.decode(block)
        except ProtocolError as error:
            raise Http2Error(ErrorCode.COMPRESSION_ERROR, str(error)) from error
        if stream <= self._last_stream:
            self._take_trailers(stream, events, is_end=is_end)
            return
        self._last_stream = stream
        if len(self._streams) >= STREAMS_MAX:
            self._nuisance()
            self._out.append(reset_frame(stream, ErrorCode.REFUSED_STREAM))
            return
        self._streams[stream] = _Stream(self._peer_window, self.received_ms, has_ended=is_end)
        events.append(StreamOpened(stream, headers, is_end, self._decoder.block_bytes))

    def _take_trailers(self, stream: int, events: list[StreamEvent], *, is_end: bool) -> None:
        found = self._streams.get(stream)
        if found is None:
            self._nuisance()
            return
        if found.has_ended or not is_end:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "headers follow the end of a stream, or do not end it")
        found.has_ended = True
        events.append(Data(stream, b"", is_end=True))

    def _take_other(self, kind: int, stream: int, flags: int, payload: bytes, events: list[StreamEvent]) -> None:
        if kind == FrameType.WINDOW_UPDATE:
            self._take_window(stream, payload)
        elif kind == FrameType.SETTINGS:
            self._take_settings(stream, flags, payload)
        elif kind == FrameType.PING:
            self._take_ping(stream, flags, payload)
        elif kind == FrameType.RST_STREAM:
            self._take_reset(stream, payload, events)
        elif kind == FrameType.CONTINUATION:
            self._take_continuation(flags, payload, events)
        elif kind == FrameType.PUSH_PROMISE:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a client pushes")
        else:  # GOAWAY: the peer closes when its streams have ended; PRIORITY, and types of later versions
            self._nuisance()

    def _take_window(self, stream: int, payload: bytes) -> None:
        _check_size(payload, 4, "WINDOW_UPDATE")
        size = int.from_bytes(payload, "big") & WINDOW_MAX
        if not size:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a window grows by 0 bytes")
        if not stream:
            self._send_window += size
            if self._send_window > WINDOW_MAX:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "the window of the connection is too large")
            self._send_held()
            return
        self._check_known(stream)
        found = self._streams.get(stream)
        if found is not None:
            self._widen(stream, found, size)

    def _widen(self, stream: int, found: _Stream, size: int) -> None:
        """Change the window of a stream by a size, which may be negative."""
        found.send_window += size
        if found.send_window > WINDOW_MAX:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "the window of a stream is too large")
        if found.held:
            self._send_held_of(stream, found)

    def _take_settings(self, stream: int, flags: int, payload: bytes) -> None:
        if stream:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "settings of a stream")
        self._nuisance()
        if flags & Flag.ACK:
            return
        window = self._peer_window
        for key, value in parse_settings(payload):
            if key == Setting.INITIAL_WINDOW_SIZE:
                if value > WINDOW_MAX:
                    raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "the initial window is too large")
                window = value
            elif key == Setting.MAX_FRAME_SIZE:
                if not FRAME_BYTES_DEFAULT <= value < 1 << 24:
                    raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the maximum size of frames is out of range")
                self._peer_frame_max = value
            elif key == Setting.HEADER_TABLE_SIZE and value < TABLE_BYTES_MAX:
                self._must_shrink_table = True
        self._out.append(frame(FrameType.SETTINGS, Flag.ACK, 0))
        growth, self._peer_window = window - self._peer_window, window
        if growth:
            for number, found in list(self._streams.items()):
                self._widen(number, found, growth)

    def _take_ping(self, stream: int, flags: int, payload: bytes) -> None:
        _check_size(payload, 8, "PING")
        if stream:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a ping of a stream")
        if self._has_sent_data:  # clients measure with one ping at a time how fast they receive
            self._has_sent_data = False
        elif not flags & Flag.ACK or not self.marks:
            self._nuisance()
        if flags & Flag.ACK:
            self.passed_marks = min(self.marks, max(self.passed_marks, int.from_bytes(payload, "big")))
        else:
            self._out.append(frame(FrameType.PING, Flag.ACK, 0, payload))

    def _take_reset(self, stream: int, payload: bytes, events: list[StreamEvent]) -> None:
        _check_size(payload, 4, "RST_STREAM")
        self._check_known(stream)
        found = self._streams.get(stream)
        if found is None or self.received_ms - found.opened_ms < EARLY_MS:
            self._nuisance()
        if found is not None:
            self._forget(stream)
            events.append(Reset(stream))

    def _check_known(self, stream: int) -> None:
        if not stream or stream > self._last_stream:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"a frame of the stream {stream}, which was not opened")

    def _nuisance(self) -> None:
        self._nuisances += 1
        if self._nuisances > NUISANCES_MAX:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"{NUISANCES_MAX} frames that serve no request")

    def _forgive(self, now: Now) -> None:
        passed_s = (now.mono_ms - self._forgiven_ms) // 1000
        if passed_s > 0:
            self._forgiven_ms += passed_s * 1000
            self._nuisances = max(0, self._nuisances - passed_s * NUISANCES_FORGIVEN_PER_S)

    # Send.

    def is_open(self, stream: int) -> bool:
        """Whether a stream may be answered."""
        return stream in self._streams

    def answer(self, stream: int, headers: bytes, data: bytes, trailers: bytes) -> None:
        """Answer a stream and end it.

        Args:
            headers: block of the response's headers.
            trailers: block of the headers behind the data.
        """
        found = self._streams.get(stream)
        if found is None:
            return
        size = len(data)
        if not found.held and size <= min(self._send_window, found.send_window, self._peer_frame_max):
            self._send_window -= size
            self._has_sent_data = True
            self._out += (self._headers(stream, headers), frame(FrameType.DATA, 0, stream, data))
            self._end(stream, found, trailers)
            return
        self.send_headers(stream, headers)
        self.send_data(stream, data)
        self.finish(stream, trailers)

    def send_headers(self, stream: int, headers: bytes) -> None:
        """Send the headers of a response."""
        if stream in self._streams:
            self._out.append(self._headers(stream, headers))

    def send_data(self, stream: int, data: bytes) -> None:
        """Send data on a stream, as soon as the peer's windows allow it."""
        found = self._streams.get(stream)
        if found is None or not data:
            return
        if not found.held:
            found.held = deque()
        found.held.extend([data[at : at + FRAME_BYTES_DEFAULT] for at in range(0, len(data), FRAME_BYTES_DEFAULT)])
        found.held_bytes += len(data)
        self.held_bytes += len(data)
        self._send_held_of(stream, found)

    def finish(self, stream: int, trailers: bytes) -> None:
        """End a stream behind its data."""
        found = self._streams.get(stream)
        if found is None:
            return
        if found.held:
            found.trailers = trailers
        else:
            self._end(stream, found, trailers)

    def reset(self, stream: int, error: ErrorCode) -> None:
        """Give up a stream."""
        if stream in self._streams:
            self._forget(stream)
            self._out.append(reset_frame(stream, error))

    def held_of(self, stream: int) -> int:
        """Return the bytes of a stream that wait for the peer's windows."""
        found = self._streams.get(stream)
        return found.held_bytes if found is not None else 0

    def _end(self, stream: int, found: _Stream, trailers: bytes) -> None:
        self._out.append(self._headers(stream, trailers, Flag.END_HEADERS | Flag.END_STREAM))
        if not found.has_ended:
            # What the peer still sends is of no use.
            self._out.append(reset_frame(stream, ErrorCode.NO_ERROR))
        self._forget(stream)

    def _forget(self, stream: int) -> None:
        found = self._streams.pop(stream)
        self.held_bytes -= found.held_bytes
        self._blocked.pop(stream, None)

    def _headers(self, stream: int, block: bytes, flags: int = Flag.END_HEADERS) -> bytes:
        if self._must_shrink_table:
            self._must_shrink_table = False
            block = _TABLE_OF_0 + block
        return frame(FrameType.HEADERS, flags, stream, block)

    def _send_held(self) -> None:
        while self._blocked and self._send_window > 0:
            stream = next(iter(self._blocked))
            self._send_held_of(stream, self._blocked[stream])

    def _send_held_of(self, stream: int, found: _Stream) -> None:
        """Send the data of a stream that the windows allow, and note whether it waits for that of the connection."""
        while found.held:
            data = found.held[0]
            size = min(len(data), self._send_window, found.send_window)
            if size <= 0:
                if found.send_window > 0:
                    self._blocked[stream] = found
                else:
                    self._blocked.pop(stream, None)
                return
            if size < len(data):
                found.held[0] = data[size:]
                data = data[:size]
            else:
                found.held.popleft()
            found.held_bytes -= size
            self.held_bytes -= size
            found.send_window -= size
            self._send_window -= size
            self._has_sent_data = True
            self._out.append(frame(FrameType.DATA, 0, stream, data))
        self._blocked.pop(stream, None)
        if found.trailers is not None:
            self._end(stream, found, found.trailers)

    # The connection as a whole.

    @property
    def stream_count(self) -> int:
        """Number of open streams."""
        return len(self._streams)

    def probe(self) -> None:
        """Ask the peer for a sign of life."""
        self.is_probed = True
        self._out.append(frame(FrameType.PING, 0, 0, bytes(8)))

    def mark(self) -> int:
        """Send a ping whose answer shows that the peer has received all that was sent before; return its number."""
        self.marks += 1
        self._out.append(frame(FrameType.PING, 0, 0, self.marks.to_bytes(8, "big")))
        return self.marks

    def leave(self) -> None:
        """Ask the peer to open no more streams; those that it has opened are served."""
        if not self._is_leaving:
            self._is_leaving = True
            self._out.append(goaway_frame(STREAM_MAX, ErrorCode.NO_ERROR))

    def end(self) -> None:
        """Tell the peer which streams were served; the owner closes the connection."""
        self._out.append(goaway_frame(self._last_stream, ErrorCode.NO_ERROR))

    def fail(self, error: Http2Error) -> None:
        """Tell the peer why the connection ends; the owner closes it."""
        self._out.append(goaway_frame(self._last_stream, error.error, str(error)[:200]))

    def take_output(self) -> list[bytes]:
        """Return the bytes to send since the last call.

        None before the peer's first byte, which shows whether it uses TLS: a port can serve peers with and without.
        """
        if not self._has_received:
            return []
        out, self._out = self._out, []
        return out


def _without_padding(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a frame has more padding than bytes")
    return payload[1 : len(payload) - payload[0]]


def _check_size(payload: bytes, size: int, name: str) -> None:
    if len(payload) != size:
        raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"a {name} frame has {len(payload)} bytes instead of {size}")
