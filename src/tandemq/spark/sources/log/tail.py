"""Checks of the bytes before a log offset: whether a record ends there, and a checksum of the last sound record.

The checksum identifies a log: records contain their log offset and store time, so that no two logs have the same record
at the same offset. Replicas have the same records, even if the blanks at the ends of their files differ.

Source: docs/guides/pipeline.md, "Archive".
"""

import zlib

from tandemq.spark.sources.log.files import LogFileReader
from tandemq.storage.log.scan import Walker, boundary_before, find_next_record

UNKNOWN = 0


def tail_checksum(read: LogFileReader, end: int) -> int:
    """Return the CRC-32 of the last sound record that begins before a log offset, in the file of the byte before that
    offset; UNKNOWN if there is none.

    Raises:
        OffsetGone: retention has just deleted the file.
    Cost: reads some 64 KiB, more if there is damage or a larger record.
    """
    size = read.files.segment_bytes
    checksum, position = UNKNOWN, _begin(read, end, size)
    while position is not None:
        walker = Walker(read, size, position)
        for record, window, at in walker.records():
            if record.log_offset >= end:
                return checksum
            checksum = zlib.crc32(window[at : at + record.size])
        position = find_next_record(read, walker.position + 1, end, size)
    return checksum


def is_boundary(read: LogFileReader, offset: int) -> bool:
    """Return whether a record, or the blank at the end of a file, ends at a log offset.

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
    """Return where the next record begins: at a log offset, or after the blank that ends the file; the offset itself if
    there is neither."""
    found = next(Walker(read, read.files.segment_bytes, start).records(), None)
    return found[0].log_offset if found is not None else start


def _begin(read: LogFileReader, end: int, size: int) -> int | None:
    if not read.files.start < end <= read.files.capacity_end:
        return None
    return boundary_before(read, end - 1, size)
