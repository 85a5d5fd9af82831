"""The server's end of a connection, and a peer that sends it single frames."""

import sys
from collections.abc import Callable
from types import FrameType as PythonFrame
from typing import NamedTuple

from tandemq.boundary import Now
from tandemq.codec.http2.frames import (
    HEAD_BYTES,
    PREFACE,
    ErrorCode,
    Flag,
    FrameType,
    Http2Error,
    Setting,
    frame,
    settings_frame,
)
from tandemq.codec.http2.hpack import literal
from tandemq.grpc.connection import Http2Connection, StreamEvent


class Frame(NamedTuple):
    """A frame that the server has sent."""

    kind: FrameType
    flags: int
    stream: int
    payload: bytes


def frames_of(data: bytes) -> list[Frame]:
    found = []
    while data:
        end = HEAD_BYTES + int.from_bytes(data[:3], "big")
        stream = int.from_bytes(data[5:HEAD_BYTES], "big")
        found.append(Frame(FrameType(data[3]), data[4], stream, data[HEAD_BYTES:end]))
        data = data[end:]
    return found


def block_of(path: str, **more: str) -> bytes:
    """Headers of a request."""
    headers = {":method": "POST", ":scheme": "http", ":path": path, "content-type": "application/grpc", **more}
    return b"".join(literal(name.encode(), value.encode()) for name, value in headers.items())


def request(stream: int, path: str = "/s/Later", flags: int = Flag.END_HEADERS) -> bytes:
    """HEADERS of a request."""
    return frame(FrameType.HEADERS, flags, stream, block_of(path))


def message_of(body: bytes) -> bytes:
    """A message as DATA frames carry it."""
    return b"\0" + len(body).to_bytes(4, "big") + body


class Peer:
    """The peer of an Http2Connection."""

    def __init__(self, settings: dict[Setting, int] | None = None) -> None:
        self.now = Now(1_000, 1_700_000_000_000)
        self.connection = Http2Connection(self.now)
        self.send(PREFACE, settings_frame(settings or {}))
        self.sent()

    def send(self, *frames: bytes) -> list[StreamEvent]:
        return self.connection.receive(b"".join(frames), self.now)

    def sent(self, kind: FrameType | None = None) -> list[Frame]:
        """What the server has sent since the last call; of one kind."""
        found = frames_of(b"".join(self.connection.take_output()))
        return [each for each in found if kind is None or each.kind is kind]

    def error_of(self, *frames: bytes) -> ErrorCode | None:
        """The error with which the connection ends upon frames; None if it does not."""
        try:
            self.send(*frames)
        except Http2Error as error:
            return error.error
        return None

    def open(self, *streams: int, flags: int = Flag.END_HEADERS | Flag.END_STREAM) -> None:
        self.send(*[request(stream, flags=flags) for stream in streams])

    def pass_ms(self, ms: int) -> None:
        self.now = Now(self.now.mono_ms + ms, self.now.wall_ms + ms)


def steps_of(run: Callable[[], object]) -> int:
    """Return how many functions are called: a measure of work that does not depend on the machine."""
    count = 0

    def note(_frame: PythonFrame, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count
