"""What lies before an offset of a log: whether a record ends there, and what tells one log from another, the last sound
record before it, as a checksum.

Records say where they lie and when they were stored, so that no two logs have the same one at the same place. Twins
have the same, whatever fills the ends of their files.

Source: docs/guides/pipeline.md, "Archive".
"""

import zlib

from tandemq.spark.sources.log.files import LogFileReader
from tandemq.storage.log.scan import Walker, boundary_before, find_next_record

UNKNOWN = 0


def tail_checksum(read: LogFileReader, end: int) -> int:
    """CRC-32 of the last sound record that begins before a log offset, in the file of the byte before that offset;
    UNKNOWN if the log has none there.

    Raises:
        OffsetGone: retention has just taken the file.
    Cost: reads some 64 KiB, more if there is damage or a record is larger.
    """
    size = read.files.segment_bytes
    last, position = UNKNOWN, _begin(read, end, size)
    while position is not None:
        walker = Walker(read, size, position)
        for record, window, at in walker.records():
            if record.log_offset >= end:
                return last
            last = zlib.crc32(window[at : at + record.size])
        position = find_next_record(read, walker.position + 1, end, size)
    return last


def is_boundary(read: LogFileReader, offset: int) -> bool:
    """Whether a record, or the blank at a file's end, ends at a log offset: what lies there is a record, or damage.

    Raises, cost: as `tail_checksum`.
    """
    size = read.files.segment_bytes
    if offset % size == 0:
        return True
    position = _begin(read, offset, size)
    while position is not None:
        walker = Walker(read, size, position)
        for _ in walker.records():
            if walker.position >= offset:
                return walker.position == offset
        position = find_next_record(read, walker.position + 1, offset, size)
    return False


def first_record(read: LogFileReader, start: int) -> int:
    """Where the record that follows a log offset begins: there, or behind the blank that ends the file. The offset
    itself if there is neither."""
    found = next(Walker(read, read.files.segment_bytes, start).records(), None)
    return found[0].log_offset if found is not None else start


def _begin(read: LogFileReader, end: int, size: int) -> int | None:
    if not read.files.start < end <= read.files.capacity_end:
        return None
    return boundary_before(read, end - 1, size)
