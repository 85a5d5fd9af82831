"""Frames of HTTP/2: nine bytes of length, type, flags and stream, then the payload.

Source: RFC 9113, sections 4 and 6.
"""

import struct
from enum import IntEnum

from tandemq.errors import ProtocolError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""First bytes of a client."""
HEAD_BYTES = 9
FRAME_BYTES_DEFAULT = 16_384
"""Maximum size of a payload that each end must accept."""
WINDOW_DEFAULT = 65_535
WINDOW_MAX = (1 << 31) - 1
STREAM_MAX = (1 << 31) - 1
_HEAD = struct.Struct(">HBBBI")


class FrameType(IntEnum):
    """Type of a frame."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Flag(IntEnum):
    """Flags of a frame; the first bit has two meanings. No `IntFlag`, whose operators cost ten times as much."""

    END_STREAM = 1
    ACK = 1
    END_HEADERS = 4
    PADDED = 8
    PRIORITY = 32


class ErrorCode(IntEnum):
    """Why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Setting(IntEnum):
    """Parameter of a SETTINGS frame."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Http2Error(ProtocolError):
    """The peer violated HTTP/2, or a limit; its connection ends."""

    def __init__(self, error: ErrorCode, text: str) -> None:
        """`error`: the code for the peer."""
        super().__init__(text)
        self.error = error


def frame(kind: FrameType, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame."""
    size = len(payload)
    return _HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


def settings_frame(settings: dict[Setting, int]) -> bytes:
    """Return a SETTINGS frame."""
    return frame(FrameType.SETTINGS, 0, 0, b"".join([struct.pack(">HI", *item) for item in settings.items()]))


def parse_settings(payload: bytes) -> list[tuple[int, int]]:
    """Return the parameters and values of a SETTINGS frame.

    Raises:
        Http2Error: its size is not a multiple of six.
    """
    if len(payload) % 6:
        raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "a SETTINGS frame ends within a parameter")
    return [(key, value) for key, value in struct.iter_unpack(">HI", payload)]


def reset_frame(stream: int, error: ErrorCode) -> bytes:
    """Return a RST_STREAM frame."""
    return frame(FrameType.RST_STREAM, 0, stream, error.to_bytes(4, "big"))


def goaway_frame(last_stream: int, error: ErrorCode, text: str = "") -> bytes:
    """Return a GOAWAY frame; `last_stream`: the last one that was or will be served."""
    return frame(FrameType.GOAWAY, 0, 0, struct.pack(">II", last_stream, error) + text.encode())


def window_update_frame(stream: int, size: int) -> bytes:
    """Return a WINDOW_UPDATE frame; stream 0: of the connection."""
    return frame(FrameType.WINDOW_UPDATE, 0, stream, size.to_bytes(4, "big"))
