"""A connection that pulls: responses of any size are read into one buffer, frames taken from it without copies.

    buffer   | taken | frame | frame | part of one …        |        free |
                     ^start                          ^end

The buffer grows to the largest response and is compacted when it is full.
Source: docs/reference/requests.md 2.1.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from tandemq.load.wire.responses import LoadError, parse_response
from tandemq.load.wire.sockets import LoadConnection

_head_at = struct.Struct(">II").unpack_from
_NUMBERS = re.compile(rb'"(code|opaque|nextBeginOffset|maxOffset|minOffset)":"?(-?\d+)')
_BUFFER_BYTES = 1 << 20

FOUND = 0
NOT_FOUND = 19
RETRY_AT_ONCE = 20
OFFSET_MOVED = 21


@dataclass(frozen=True, slots=True)
class PullResponse:
    """One response; `records` is the half-open range of the body in the reader's buffer, valid until the next read."""

    code: int
    opaque: int
    next_offset: int
    min_offset: int
    max_offset: int
    records_start: int
    records_end: int


class PullReader:
    """Reads pull responses from a connection."""

    __slots__ = ("_end", "_start", "_view", "buffer")

    def __init__(self) -> None:
        self.buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self.buffer)
        self._start = self._end = 0

    def read(self, link: LoadConnection) -> Iterator[PullResponse]:
        """Read once from the connection and yield every complete response.

        Raises:
            LoadError: the connection broke, or a response has an unexpected form.
        """
        self._make_room()
        if link.is_tls:
            self._take(link.receive())
        else:
            try:
                size = link.sock.recv_into(self._view[self._end :])
            except BlockingIOError:
                return
            except OSError as error:
                raise LoadError(f"the connection broke: {error}") from error
            if not size:
                raise LoadError("the server closed the connection")
            self._end += size
        while (stop := self._next_frame_end()) is not None:
            start, self._start = self._start, stop
            yield self._parse(start, stop)
        if self._start == self._end:
            self._start = self._end = 0

    def _take(self, data: bytes) -> None:
        while len(self.buffer) - self._end < len(data):
            self._grow()
        self._view[self._end : self._end + len(data)] = data
        self._end += len(data)

    def _next_frame_end(self) -> int | None:
        if self._end - self._start < 8:
            return None
        stop = self._start + 4 + int(_head_at(self.buffer, self._start)[0])
        return stop if stop <= self._end else None

    def _make_room(self) -> None:
        """Move the unfinished frame to the front when the free part is small; grow when it needs more."""
        if len(self.buffer) - self._end < len(self.buffer) // 4:
            self._grow()

    def _grow(self) -> None:
        pending = self._end - self._start
        size = len(self.buffer)
        if pending > size // 2:
            size *= 2
        buffer = bytearray(size)
        buffer[:pending] = self._view[self._start : self._end]
        self.buffer, self._view = buffer, memoryview(buffer)
        self._start, self._end = 0, pending

    def _parse(self, start: int, stop: int) -> PullResponse:
        header_bytes = _head_at(self.buffer, start)[1] & 0xFFFFFF
        body = start + 8 + header_bytes
        found = dict(_NUMBERS.findall(self.buffer, start + 8, body))
        code = int(found.get(b"code", -1))
        if code not in (FOUND, NOT_FOUND, RETRY_AT_ONCE, OFFSET_MOVED):
            response = parse_response(self._view[start:stop])
            raise LoadError(f"a pull was refused with code {response.code}: {response.remark}")
        return PullResponse(
            code,
            int(found[b"opaque"]),
            int(found[b"nextBeginOffset"]),
            int(found[b"minOffset"]),
            int(found[b"maxOffset"]),
            body,
            stop,
        )
