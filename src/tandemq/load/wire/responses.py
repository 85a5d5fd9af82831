"""Counting answers in a stream of bytes, looking at as little of each as possible.

    length(4) | type and header length(4) | header, JSON | body

An answer to a send is complete when its length says so, and good when its header holds `"code":0`. Both are found
without decoding: the lengths are walked, and the good answers of a whole read are counted by one search. Only when the
two numbers differ are the single answers looked at.

Does not know: sockets, requests. Source: docs/internals/remoting.md 2, 3.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from tandemq.errors import TandemError

_length_at = struct.Struct(">I").unpack_from
_CODE = re.compile(rb'"code"\s*:\s*"?(-?\d+)')
_REMARK = re.compile(rb'"remark"\s*:\s*"((?:[^"\\]|\\.)*)"')
_GOOD = b'"code":0,'
_FRAME_BYTES_MAX = 64 << 20


class LoadError(TandemError):
    """The load could not be put on the server: no connection, a broken stream, a refusal that ends the run."""


@dataclass(frozen=True, slots=True)
class ParsedResponse:
    """One answer, looked at closely: used outside the hot path only."""

    code: int
    header: bytes
    body: bytes

    def field(self, name: str) -> str | None:
        """Return an extField (or any other string or number of the header) by name; None if absent."""
        found = re.search(rb'"%b"\s*:\s*"?([^",}]*)' % name.encode(), self.header)
        return found.group(1).decode() if found else None

    @property
    def remark(self) -> str:
        """The human text of an error, as it stands in the JSON."""
        found = _REMARK.search(self.header)
        return found.group(1).decode(errors="replace") if found else ""


def parse_response(frame: bytes | bytearray | memoryview) -> ParsedResponse:
    """Return the answer in one whole frame, length field included.

    Raises:
        LoadError: the header holds no code.
    """
    header_bytes = _length_at(frame, 4)[0] & 0xFFFFFF
    header = bytes(frame[8 : 8 + header_bytes])
    found = _CODE.search(header)
    if found is None:
        raise LoadError(f"an answer without a code: {header[:200]!r}")
    return ParsedResponse(int(found.group(1)), header, bytes(frame[8 + header_bytes :]))


def _whole_frames(data: bytes) -> tuple[int, int]:
    """Return where the whole frames at the start of `data` end, and how many there are.

    The answers of one read mostly have one length: then the length fields lie at a constant distance and are compared
    as four strided slices. Else each length is looked at.
    """
    end = len(data)
    if end < 4:
        return 0, 0
    size = 4 + _length_at(data)[0]
    if size == end:
        return end, 1
    count = end // size
    stop = count * size
    if (
        count > 2
        and data[3:stop:size] == data[3:4] * count
        and data[2:stop:size] == data[2:3] * count
        and data[1:stop:size] == data[1:2] * count
        and data[0:stop:size] == data[0:1] * count
    ):
        rest = end - stop
        if rest < 4 or 4 + _length_at(data, stop)[0] > rest:
            return stop, count
    return _walk_frames(data, end)


def _walk_frames(data: bytes, end: int) -> tuple[int, int]:
    """The same, one length field after the other.

    Raises:
        LoadError: a length no answer has.
    """
    position = count = 0
    while position + 4 <= end:
        size = _length_at(data, position)[0]
        if position + 4 + size > end:
            if size > _FRAME_BYTES_MAX:
                raise LoadError(f"an answer of {size} bytes: not this protocol")
            break
        position += 4 + size
        count += 1
    return position, count


class AnswerCounter:
    """Counts the answers of one connection; whole frames only, in any split."""

    __slots__ = ("_rest", "first_refusal", "statuses")

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}  # Answers by code, those with code 0 left out.
        self.first_refusal = ""  # Code and remark of the first answer that was not OK.
        self._rest = b""

    def feed(self, data: bytes) -> tuple[int, int]:
        """Take what was read; return how many answers became complete, and how many of these are OK.

        Raises:
            LoadError: the stream holds something that is not a frame.
        Cost: about 0.1 µs per answer.
        """
        if self._rest:
            data = self._rest + data
            self._rest = b""
        elif len(data) > 4 and len(data) == 4 + _length_at(data)[0] and _GOOD in data:
            return 1, 1
        position, count = _whole_frames(data)
        if position < len(data):
            self._rest = data[position:]
        good = data.count(_GOOD, 0, position)
        if good != count:
            good = self._count_refusals(data, position)
        return count, good

    def _count_refusals(self, data: bytes, end: int) -> int:
        """Look at every answer before `end`; count the codes and return the number of OK ones."""
        good = position = 0
        while position < end:
            stop = position + 4 + _length_at(data, position)[0]
            answer = parse_response(data[position:stop])
            if answer.code == 0:
                good += 1
            else:
                self.statuses[answer.code] = self.statuses.get(answer.code, 0) + 1
                self.first_refusal = self.first_refusal or f"code {answer.code}: {answer.remark}"
            position = stop
        return good
