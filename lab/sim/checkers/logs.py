"""Commit logs read directly from the simulated disks.

Files are joined and records are parsed and verified here, without the broker's code for reading, so that a mistake
there cannot hide itself.
"""

from typing import NamedTuple

from lab.sim.world.disk import SimDisk
from tandemq.codec.record.entries import BLANK_MAGIC
from tandemq.codec.record.record import Record, parse_record, peek, property_value, record_fault, unpack_head


class LoggedMessage(NamedTuple):
    """A record in a log, with its unique key ("" without one).

    `prepared_offset`: of a message that a transaction committed, log offset of its half message; else 0.
    """

    record: Record
    key: str
    topic: str
    body: bytes
    prepared_offset: int


class InvalidRange(NamedTuple):
    """Bytes in a log that are no valid record."""

    log_offset: int
    reason: str


def read_log(disk: SimDisk, start: int, end: int, segment_bytes: int, *, safe: bool = False) -> bytes:
    """Return the bytes `[start, end)` of the commit log, fewer if the files are shorter."""
    pieces: list[bytes] = []
    while start < end:
        first = start - start % segment_bytes
        size = min(end, first + segment_bytes) - start
        piece = disk.peek(f"commitlog/{first:020d}", size, start - first, safe=safe)
        pieces.append(piece)
        if len(piece) < size:
            break
        start += size
    return b"".join(pieces)


def walk(data: bytes, start: int, segment_bytes: int) -> tuple[list[LoggedMessage], InvalidRange | None]:
    """Return all records of a log that begins at `start`, up to its end or to the first invalid range."""
    found: list[LoggedMessage] = []
    at, end = 0, len(data)
    while at < end:
        offset = start + at
        if end - at < 8:
            return found, InvalidRange(offset, f"{end - at} bytes are left")
        size, magic = peek(data, at)
        room = segment_bytes - offset % segment_bytes
        if magic == BLANK_MAGIC and size == room:
            at += room
            continue
        record = parse_record(data, at, min(end, at + room))
        if isinstance(record, str):
            return found, InvalidRange(offset, record)
        fault = record_fault(data, at, record.size, record.body_start, record.body_end, record.body_crc)
        if fault is not None or record.log_offset != offset:
            return found, InvalidRange(offset, fault or f"it says it lies at {record.log_offset}")
        key = property_value(record.properties, b"UNIQ_KEY") or b""
        prepared_offset = unpack_head(data, at).prepared_offset if record.sys_flag & 0xC else 0
        body = data[record.body_start : record.body_end]
        found.append(LoggedMessage(record, key.decode(), record.topic.decode(), body, prepared_offset))
        at += record.size
    return found, None


def is_change_valid(before: bytes, changed: bytes, start: int, segment_bytes: int) -> bool:
    """Return whether a changed record of a log passes all checks: without its CRC property it could be Java's."""
    found, _ = walk(before, start, segment_bytes)
    for each in found:
        first = each.record.log_offset - start
        end = first + each.record.size
        if changed[first:end] != before[first:end]:
            record = parse_record(changed, first, len(changed))
            if not isinstance(record, str) and record.log_offset == each.record.log_offset:
                sums = record.body_start, record.body_end, record.body_crc
                if record_fault(changed, first, record.size, *sums) is None:
                    return True
    return False


def without_filler(data: bytes, start: int, segment_bytes: int) -> bytes:
    """Return a log with zeros in place of the filler at the ends of its files."""
    found, _ = walk(data, start, segment_bytes)
    plain = bytearray(data)
    for current, following in zip(found, found[1:], strict=False):
        end, resumed = current.record.log_offset + current.record.size, following.record.log_offset
        if resumed - end > 8:
            plain[end + 8 - start : resumed - start] = bytes(resumed - end - 8)
    return bytes(plain)
