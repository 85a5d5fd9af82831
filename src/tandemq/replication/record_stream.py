"""A stream of log bytes cut into whole, verified records: what a slave (or a master taking back a tail) stores.

The stream may be cut anywhere. Blanks that end a file count as records without a message. A piece never crosses the
end of a commit log file.

Source: docs/internals/ha.md, "classic protocol"; requirements T05, T09, V13.
"""

from typing import NamedTuple

from tandemq.boundary import Buffer
from tandemq.codec.record.entries import BLANK_BYTES_MIN, BLANK_MAGIC
from tandemq.codec.record.record import (
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    Record,
    parse_record,
    peek,
    record_fault,
    unfinished_record,
)
from tandemq.codec.record.record_run import Run, scan_run

RECORD_BYTES_MAX = 64 << 20
SCAN_AGAIN_BYTES = 64 << 10
"""Where records are few or irregular, so many bytes are read record by record before many are tried at once again."""


class Piece(NamedTuple):
    """Whole records that lie one behind the other in one file of the log."""

    data: Buffer
    """Bytes, or the first part of some."""
    run: Run
    """Its starts and ends are positions in `data`."""


class CorruptRecord(NamedTuple):
    """Bytes that are no valid record, and where they begin."""

    log_offset: int
    reason: str


class RecordStream:
    """Takes bytes in order, gives whole records. `position` is the log offset of the first byte not given out."""

    def __init__(self, position: int, segment_bytes: int) -> None:
        """Stand at a record boundary."""
        self.position = position
        self._segment_bytes = segment_bytes
        self._rest: list[Buffer] = []
        self._rest_bytes = 0
        self._needed = BLANK_BYTES_MIN

    @property
    def received_end(self) -> int:
        """Log offset behind the last byte taken."""
        return self.position + self._rest_bytes

    def feed(self, *bodies: Buffer) -> tuple[list[Piece], CorruptRecord | None]:
        """Take bytes; give the pieces they complete. After `CorruptRecord` the stream must not be used any more."""
        self._rest += bodies
        self._rest_bytes += sum(map(len, bodies))
        if self._rest_bytes < self._needed:
            return [], None
        data = b"".join(self._rest)
        self._rest.clear()
        self._rest_bytes = 0
        pieces: list[Piece] = []
        corrupt: CorruptRecord | None = None
        file_ended = True
        while corrupt is None and file_ended and data:
            stop, run, corrupt, file_ended = self._run(data)
            if stop:
                pieces.append(Piece(memoryview(data)[:stop] if stop < len(data) else data, run))
                self.position += stop
                data = data[stop:]
        if data:
            self._rest.append(data)
            self._rest_bytes = len(data)
        return pieces, corrupt

    def _run(self, data: bytes) -> tuple[int, Run, CorruptRecord | None, bool]:
        """Whole records up to the end of the data or of the file; where they end, and whether the file ended."""
        run = Run()
        base = self.position
        room = self._segment_bytes - base % self._segment_bytes
        end = min(len(data), room)
        at = scan_from = 0
        self._needed = BLANK_BYTES_MIN
        while end - at >= BLANK_BYTES_MIN:
            if at >= scan_from:
                scanned = scan_run(data, at, end, base, run)
                if scanned == at:
                    scan_from = at + SCAN_AGAIN_BYTES
                at = scanned
                if end - at < BLANK_BYTES_MIN:
                    break
            size, magic = peek(data, at)
            if magic == BLANK_MAGIC and size == room - at:
                if end - at < size:
                    self._needed = size
                    break
                return at + size, run, None, True
            if magic not in (MAGIC_V1, MAGIC_V2) or not RECORD_BYTES_MIN <= size <= min(room - at, RECORD_BYTES_MAX):
                return at, run, CorruptRecord(base + at, f"size {size} and magic {magic:#x} are no record's"), False
            if end - at < size:
                needed = unfinished_record(data, at, end)
                if isinstance(needed, str):
                    return at, run, CorruptRecord(base + at, needed), False
                self._needed = needed
                break
            record = parse_record(data, at, at + size)
            fault = record if isinstance(record, str) else self._fault(data, at, base, record)
            if fault is not None:
                return at, run, CorruptRecord(base + at, fault), False
            assert not isinstance(record, str), "a record without fault"
            run.add(record, at)
            at += size
        return at, run, None, False

    def _fault(self, data: bytes, at: int, base: int, record: Record) -> str | None:
        if record.log_offset != base + at:
            return f"the record says it lies at {record.log_offset}"
        return record_fault(data, at, record.size, record.body_start, record.body_end, record.body_crc)
