"""Walk through the commit log record by record, with checks, for recovery, verification, replay and repair.

A fault is damage if valid records follow it; otherwise it is the log's end. A torn tail may be truncated, damage never.

Source: docs/internals/storage.md, "recovery".
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from tandemq.codec.record.entries import BLANK_BYTES_MIN, BLANK_MAGIC
from tandemq.codec.record.record import (
    HEAD_BYTES_MAX,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    Record,
    StatedLengths,
    parse_record,
    peek,
    record_fault,
    stated_lengths,
)
from tandemq.engine import verify_records

WINDOW_BYTES = 8 << 20
RECORD_BYTES_MAX = 128 << 20
"""A larger size field is not that of a record."""
_MAGICS = (MAGIC_V1.to_bytes(4), MAGIC_V2.to_bytes(4))

_LOOK_BACK_BYTES = 64 * 1024
_BEFORE_DATA = 3
"""Bytes of a record's size that may be zero, and so lie before the first data."""
_NEAR_BYTES = 64 * 1024
_ZEROES = bytes(WINDOW_BYTES)

Reader = Callable[[int, int], bytes]
"""(offset, size) -> up to size bytes, not beyond the file that holds the offset; b"" if no file holds it."""


class LogFault(NamedTuple):
    """Bytes that are not a valid record, up to `resumes`, the offset of the next valid record; None: to the end."""

    offset: int
    reason: str
    resumes: int | None


class DamagedRange(NamedTuple):
    """Log offsets `[start, end)` of bytes that are not valid records, and the reason."""

    start: int
    end: int
    reason: str


class Walker:
    """Iterator over the log's records; `position` is the offset of the next one, a record boundary."""

    def __init__(
        self,
        read: Reader,
        segment_bytes: int,
        position: int,
        *,
        check_bodies: bool = True,
        take_run: Callable[[memoryview, int], None] | None = None,
    ) -> None:
        """Begin at `position`, a record boundary.

        Args:
            read: the reader of the log.
            segment_bytes: size of the log's files.
            position: where to begin.
            check_bodies: False skips checksums.
            take_run: takes contiguous records that the engine found valid, and their number; `records` yields only
                those that the engine leaves to Python. The compiled engine judges all checks that `records` makes.
        """
        self._read = read
        self._take_run = take_run
        self._segment_bytes = segment_bytes
        self._check = check_bodies
        self.position = position
        self.fault: str | None = None
        """Why `records` ended."""

    def records(self) -> Iterator[tuple[Record, bytes, int]]:
        """Yield each valid record, the buffer that holds it, and its position there; set `fault` at the end.

        A plain tuple, as walks over whole stores yield one per record.
        """
        self.fault = None
        wanted = WINDOW_BYTES
        while True:
            window = self._read(self.position, wanted)
            wanted = WINDOW_BYTES
            base = self.position
            if len(window) < BLANK_BYTES_MIN:
                self.fault = "no more bytes"
                return
            position = 0
            for record, position in self._window(window, base):
                yield record, window, position
            if self.fault is not None:
                if not self._cut_off(window, self.position - base):
                    return
                if base == self.position:
                    wanted = 2 * len(window)
                    if len(window) < WINDOW_BYTES or wanted > RECORD_BYTES_MAX:
                        return
                self.fault = None

    def _cut_off(self, window: bytes, position: int) -> bool:
        """Whether the last bytes of a window may be the beginning of a record that continues after it."""
        left = len(window) - position
        if left < RECORD_BYTES_MIN:
            return True
        size, magic = peek(window, position)
        return magic in (MAGIC_V1, MAGIC_V2) and left < size

    def _window(self, window: bytes, base: int) -> Iterator[tuple[Record, int]]:
        at, end = self.position - base, len(window)
        while end - at >= BLANK_BYTES_MIN:
            if self._take_run is not None:
                stop, count = verify_records(window, at, end, base)
                if count:
                    self._take_run(memoryview(window)[at:stop], count)
                    self.position += stop - at
                    at = stop
                    continue
            size, magic = peek(window, at)
            if magic == BLANK_MAGIC:
                room = self._segment_bytes - self.position % self._segment_bytes
                if size != room:
                    self.fault = f"a blank of {size} bytes, but {room} bytes are left in the file"
                    return
                self.position += room
                return
            record = parse_record(window, at, end)
            if isinstance(record, str):
                self.fault = record
                return
            if record.log_offset != self.position:
                self.fault = f"the record states log offset {record.log_offset}"
                return
            if self._check:
                wrong = record_fault(window, at, record.size, record.body_start, record.body_end, record.body_crc)
                if wrong is not None:
                    self.fault = wrong
                    return
            self.position += record.size
            yield record, at
            at += record.size
        if end - at:
            self.fault = "the rest is shorter than a record"


def find_next_record(
    read: Reader, start: int, end: int, segment_bytes: int, next_data: Callable[[int], int] | None = None
) -> int | None:
    """Return the offset of the first valid record in `[start, end)`: magic, stated log offset and checksums are right.

    None if there is none. `next_data` returns the first offset from one on that may hold a byte other than zero: ranges
    that were never written are skipped, up to a whole file. Cost: reads 64 KiB, since the next record is mostly near,
    then windows of up to 8 MiB.
    """
    position, wanted = start, _NEAR_BYTES
    while position < end:
        if next_data is not None:
            position = max(position, next_data(position) - _BEFORE_DATA)
            if position >= end:
                break
        window = read(position, wanted)
        wanted = min(4 * wanted, WINDOW_BYTES)
        if not window:
            position = position - position % segment_bytes + segment_bytes
            continue
        found = None if window == _ZEROES[: len(window)] else _valid_in(window, position, read)
        if found is not None and found < end:
            return found
        whole = position % segment_bytes + len(window) >= segment_bytes
        position += len(window) if whole or len(window) <= 8 else len(window) - 7
    return None


def damaged_record(read: Reader, position: int, segment_bytes: int) -> StatedLengths | None:
    """Return the lengths of a damaged record; None if its header does not tell.

    No record begins before its `body_end`: a body may contain the bytes of one that states its own log offset. A record
    must be known to begin at `position`: else the author of a body could claim the records behind it.
    """
    found = stated_lengths(read(position, HEAD_BYTES_MAX), position)
    return found if found is not None and found.size <= segment_bytes - position % segment_bytes else None


def boundary_before(read: Reader, offset: int, segment_bytes: int) -> int:
    """Return a record boundary at or before an offset: a valid record near it, or the start of its file."""
    first = offset - offset % segment_bytes
    back = _LOOK_BACK_BYTES
    while offset - back > first:
        found = find_next_record(read, offset - back, offset + 1, segment_bytes)
        if found is not None:
            return found
        back *= 16
    return first


def faults_within(read: Reader, start: int, end: int, segment_bytes: int) -> list[LogFault]:
    """Return the faults in the records that overlap `[start, end)`, a range of one file that ends at a record boundary.

    Cost: reads the range, and back to the beginning of the record that contains `start`.
    """
    position = boundary_before(read, start, segment_bytes)
    faults: list[LogFault] = []
    walker = Walker(read, segment_bytes, position)
    while True:
        for _ in walker.records():
            if walker.position >= end:
                return faults
        if walker.position >= end:
            return faults
        resumes = find_next_record(read, walker.position + 1, end, segment_bytes)
        if resumes is None or resumes > start:
            faults.append(LogFault(walker.position, walker.fault or "", resumes))
        if resumes is None:
            return faults
        walker.position = resumes


def _valid_in(window: bytes, base: int, read: Reader) -> int | None:
    candidates = sorted(position - 4 for magic in _MAGICS for position in _all(window, magic) if position >= 4)
    for position in candidates:
        size, _ = peek(window, position)
        stated = window[position + 28 : position + 36]
        if size < RECORD_BYTES_MIN or (len(stated) == 8 and stated != (base + position).to_bytes(8)):
            continue
        data, place = (window, position) if position + size <= len(window) else (read(base + position, size), 0)
        record = parse_record(data, place, len(data))
        if isinstance(record, str) or record.log_offset != base + position:
            continue
        if record_fault(data, place, record.size, record.body_start, record.body_end, record.body_crc) is None:
            return base + position
    return None


def _all(data: bytes, word: bytes) -> Iterator[int]:
    position = data.find(word)
    while position >= 0:
        yield position
        position = data.find(word, position + 1)
