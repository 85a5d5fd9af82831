"""Incremental parser that splits a stream of log bytes into complete, verified records.

A slave uses it for transfers, a master for the tail of a slave. The stream may arrive in pieces of any size. Blanks at
the end of a file are treated as records without a message. A piece does not cross the end of a commit log file.

Source: docs/internals/ha.md, "classic protocol"; requirements T05, T09, V13.
"""

from typing import NamedTuple

from tandemq.boundary import Buffer, split_buffers
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
from tandemq.engine import verify_records

RECORD_BYTES_MAX = 64 << 20
LARGE_RECORD_BYTES = 64 << 10
"""Records from this size on are taken out of the stream one by one."""
HEAD_BYTES = 128
"""What has to be seen of a record to know whether its size is plausible."""


class Piece(NamedTuple):
    """Contiguous complete records within one file of the log."""

    data: Buffer
    """Perhaps with a blank at the end."""
    records: int
    """Number of records, without a blank."""


class CorruptRecord(NamedTuple):
    """Log offset of bytes that are not a valid record, and the reason."""

    log_offset: int
    reason: str


class RecordStream:
    """Parser for log bytes. `position` is the log offset of the first byte that was not returned yet."""

    def __init__(self, position: int, segment_bytes: int) -> None:
        """Begin at the log offset `position`, a record boundary."""
        self.position = position
        self._segment_bytes = segment_bytes
        self._rest: list[Buffer] = []
        self._rest_bytes = 0
        self._needed = BLANK_BYTES_MIN

    @property
    def received_end(self) -> int:
        """Log offset of the end of the received bytes."""
        return self.position + self._rest_bytes

    def feed(self, *bodies: Buffer) -> tuple[list[Piece], CorruptRecord | None]:
        """Add bytes and return the pieces they complete. After a `CorruptRecord` the stream must not be used again."""
        self._rest += bodies
        self._rest_bytes += sum(map(len, bodies))
        pieces: list[Piece] = []
        corrupt: CorruptRecord | None = None
        while corrupt is None and self._rest_bytes >= self._needed:
            data = self._take()
            stop, records, corrupt = self._walk(data)
            if stop:
                pieces.append(Piece(memoryview(data)[:stop] if stop < len(data) else data, records))
                self.position += stop
            self._give_back(data, stop)
            if not stop and self._needed <= len(data):
                break
        return pieces, corrupt

    def _take(self) -> bytes:
        """Take the bytes to look at: all, but of a large record just its own, so that they are copied once.

        Of one that is incomplete its head is enough until the rest has arrived.
        """
        first, count = self._rest[0], self._rest_bytes
        size = peek(first, 0)[0] if len(first) >= BLANK_BYTES_MIN else 0
        if LARGE_RECORD_BYTES <= size <= count:
            count = size
        elif size > count and self._needed < LARGE_RECORD_BYTES:
            count = min(count, max(self._needed, HEAD_BYTES))
        taken, self._rest = (self._rest, []) if count == self._rest_bytes else split_buffers(self._rest, count)
        self._rest_bytes -= count
        return b"".join(taken)

    def _give_back(self, data: bytes, start: int) -> None:
        """Keep what follows a position of the bytes that were taken; a part may keep twice its size in memory."""
        size = len(data) - start
        if size:
            self._rest.insert(0, memoryview(data)[start:] if start and size > start else data[start:])
            self._rest_bytes += size

    def _walk(self, data: bytes) -> tuple[int, int, CorruptRecord | None]:
        """Verify complete records up to the end of the data or of the file.

        Returns the position of their end, their number, and a corrupt record if one follows.
        """
        base = self.position
        room = self._segment_bytes - base % self._segment_bytes
        end = min(len(data), room)
        at = records = 0
        self._needed = BLANK_BYTES_MIN
        while True:
            at, count = verify_records(data, at, end, base)
            records += count
            if end - at < BLANK_BYTES_MIN:
                break
            size, magic = peek(data, at)
            if magic == BLANK_MAGIC and size == room - at:
                if end - at < size:
                    self._needed = size
                    break
                return at + size, records, None
            if magic not in (MAGIC_V1, MAGIC_V2) or not RECORD_BYTES_MIN <= size <= min(room - at, RECORD_BYTES_MAX):
                return at, records, CorruptRecord(base + at, f"size {size} and magic {magic:#x} are not a record's")
            if end - at < size:
                needed = unfinished_record(data, at, end)
                if isinstance(needed, str):
                    return at, records, CorruptRecord(base + at, needed)
                self._needed = needed
                break
            record = parse_record(data, at, at + size)
            fault = record if isinstance(record, str) else self._fault(data, at, base, record)
            if fault is not None:
                return at, records, CorruptRecord(base + at, fault)
            at += size
            records += 1
        return at, records, None

    def _fault(self, data: bytes, at: int, base: int, record: Record) -> str | None:
        if record.log_offset != base + at:
            return f"the record states log offset {record.log_offset}"
        return record_fault(data, at, record.size, record.body_start, record.body_end, record.body_crc)
