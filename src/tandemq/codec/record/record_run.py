"""Vectorized parsing: the fields of all records in a buffer, checked column by column.

Parsing one record takes Python steps for each field; parsing a thousand contiguous records takes a few numpy passes,
and one checksum call per record. Only regular records are parsed this way: IPv4 hosts, magic V1, closed by the CRC
property, as TandemQ writes them. `scan_run` stops before the first other record, which `parse_record` then handles.

Source: docs/internals/storage.md, "record".
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
from isal.isal_zlib import crc32

from tandemq.codec.record.record import (
    CRC_PROPERTY_BYTES,
    HEAD_V4,
    MAGIC_V1,
    PROPERTIES_BYTES_MAX,
    RECORD_BYTES_MIN,
    TOPIC_V1_BYTES_MAX,
    Buffer,
    Record,
)

REGULAR_BYTES_MIN = RECORD_BYTES_MIN + CRC_PROPERTY_BYTES
HEAD = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">u4"),
        ("crc", ">u4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("log_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_ms", ">i8"),
        ("born_host", "V8"),
        ("store_ms", ">i8"),
        ("store_host", "V8"),
        ("reconsume", ">i4"),
        ("prepared", ">i8"),
        ("body_length", ">i4"),
    ]
)
"""`record.HEAD_V4` as a numpy dtype."""
assert HEAD.itemsize == HEAD_V4.size, "both describe the same layout"
_CRC_NAME = np.frombuffer(b"__CRC32#\x01", dtype=np.uint8)
_POWERS = 10 ** np.arange(10, dtype=np.int64)
_V6_MASK = 0x30
_TRANSACTION_BITS = 0xC
_UNIQUE = b"\x02UNIQ_KEY\x01"
WORDS_BYTES_MAX = 1024
SCANNED_MIN = 20
"""Number of records from which on vectorized parsing is faster than one by one."""
Array = np.ndarray[Any, np.dtype[Any]]
_CRC_MASK = 0x7FFFFFFF
_size_at = Struct(">i").unpack_from


class DispatchRequest(NamedTuple):
    """Fields of one record that dispatch needs. Starts and ends are positions in the buffer it was parsed from."""

    size: int
    queue_id: int
    queue_offset: int
    log_offset: int
    sys_flag: int
    store_ms: int
    topic_start: int
    topic_end: int
    properties_start: int
    end: int


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Fields of many records that dispatch needs, as int64 arrays."""

    sizes: Array
    queue_ids: Array
    queue_offsets: Array
    log_offsets: Array
    sys_flags: Array
    store_ms: Array
    words_starts: Array
    """Positions of topic and properties, which are adjacent."""
    topic_bytes: Array
    ends: Array

    def first(self, count: int) -> "RecordColumns":
        """Return the columns of the first `count` records."""
        return RecordColumns(*[getattr(self, name)[:count] for name in self.__dataclass_fields__])

    def rows(self) -> list[DispatchRequest]:
        """Return one request per record. Cost: ten objects per record."""
        topic_ends = self.words_starts + self.topic_bytes
        columns = (
            self.sizes,
            self.queue_ids,
            self.queue_offsets,
            self.log_offsets,
            self.sys_flags,
            self.store_ms,
            self.words_starts,
            topic_ends,
            topic_ends + 2,
            self.ends,
        )
        return list(map(DispatchRequest, *[column.tolist() for column in columns]))


@dataclass(frozen=True, slots=True)
class UniformRecords:
    """Records that differ only in numbers, bodies and unique keys."""

    topic: bytes
    properties: bytes
    """Properties of the first record."""
    unique_keys: bytes
    """Unique keys of all records, concatenated; b"" if the records have none."""
    unique_bytes: int
    """Length of each unique key."""


@dataclass(slots=True)
class Run:
    """Contiguous records: parsed as columns, one by one, or a mix of both."""

    parts: list[RecordColumns | DispatchRequest] = field(default_factory=list)

    def __len__(self) -> int:
        """Number of records."""
        return sum([len(part.sizes) if isinstance(part, RecordColumns) else 1 for part in self.parts])

    @property
    def columns(self) -> RecordColumns | None:
        """The columns of all records, if they were parsed together; else None."""
        only = self.parts[0] if len(self.parts) == 1 else None
        return only if isinstance(only, RecordColumns) else None

    @property
    def last_store_ms(self) -> int:
        """Store time (ms) of the last record, 0 if there is none."""
        last = self.parts[-1] if self.parts else None
        return int(last.store_ms[-1]) if isinstance(last, RecordColumns) else last.store_ms if last is not None else 0

    def rows(self) -> Iterator[DispatchRequest]:
        """Yield one request per record."""
        for part in self.parts:
            if isinstance(part, RecordColumns):
                yield from part.rows()
            else:
                yield part

    def add(self, record: Record, start: int) -> None:
        """Append one record that `parse_record` found at `start`."""
        end = start + record.size
        properties = end - len(record.properties)
        self.parts.append(
            DispatchRequest(
                record.size,
                record.queue_id,
                record.queue_offset,
                record.log_offset,
                record.sys_flag,
                record.store_ms,
                properties - 2 - len(record.topic),
                properties - 2,
                properties,
                end,
            )
        )


def scan_run(data: bytes, start: int, end: int, base: int, run: Run, *, at_least: int = SCANNED_MIN) -> int:
    """Append the regular, valid records from `start` on to `run`, and return the position of their end.

    Args:
        base: log offset of `data[0]`; the log offset stated by each record must match.
        at_least: nothing is parsed if there seem to be fewer records.

    Cost: one CRC over the bytes, and about a microsecond per record.
    """
    starts = _starts(data, start, end)
    if not starts or len(starts) < at_least:
        return start
    buffer = np.frombuffer(data, dtype=np.uint8)
    at = np.array(starts, dtype=np.int64)
    head: Any = _pieces(data, at, HEAD_V4.size).view(HEAD)[:, 0]
    sizes = head["size"].astype(np.int64)
    stop = at + sizes
    body_end = at + HEAD_V4.size + head["body_length"]
    sound = (
        (head["magic"] == MAGIC_V1)
        & (head["sys_flag"] & _V6_MASK == 0)
        & (head["log_offset"] == base + at)
        & (head["body_length"] >= 0)
        & (body_end + 3 + CRC_PROPERTY_BYTES <= stop)
    )
    body_end = np.where(sound, body_end, at)
    topic_end = body_end + 1 + buffer[body_end]
    sound &= (topic_end + 2 + CRC_PROPERTY_BYTES <= stop) & (buffer[body_end] <= TOPIC_V1_BYTES_MAX)
    topic_end = np.where(sound, topic_end, at)
    sound &= topic_end + 2 + buffer[topic_end].astype(np.int64) * 256 + buffer[topic_end + 1] == stop
    sound &= stop - topic_end - 2 <= PROPERTIES_BYTES_MAX
    crc_starts = stop - CRC_PROPERTY_BYTES
    tail = _pieces(data, crc_starts, CRC_PROPERTY_BYTES)
    sound &= (tail[:, :9] == _CRC_NAME).all(axis=1) & (tail[:, 19] == 2)
    stated = (tail[:, 9:19].astype(np.int64) - 48) @ _POWERS
    view = memoryview(data)
    found = [crc32(view[first:last]) for first, last in zip(starts, crc_starts.tolist(), strict=True)]
    sound &= (np.array(found, dtype=np.int64) & _CRC_MASK) == stated
    count = len(starts) if sound.all() else int(np.argmin(sound))
    if not count:
        return start
    whole = RecordColumns(
        sizes,
        head["queue_id"].astype(np.int64),
        head["queue_offset"].astype(np.int64),
        base + at,
        head["sys_flag"].astype(np.int64),
        head["store_ms"].astype(np.int64),
        body_end + 1,
        topic_end - body_end - 1,
        stop,
    )
    run.parts.append(whole if count == len(starts) else whole.first(count))
    return int(stop[count - 1])


def _pieces(data: Buffer, at: Array, size: int) -> Array:
    """Copy `size` bytes from each position within `data`, one row each."""
    rows: Array = np.ndarray((len(data) - size + 1, size), np.uint8, data, 0, (1, 1))[at]
    return rows


def _starts(data: bytes, start: int, end: int) -> list[int]:
    """Return where records begin by their size fields alone. Cost: one step per record, or per run of equal sizes."""
    starts: list[int] = []
    before = 0
    while end - start >= REGULAR_BYTES_MIN:
        (size,) = _size_at(data, start)
        if not REGULAR_BYTES_MIN <= size <= end - start:
            break
        if size == before:
            sizes: Array = np.ndarray(((end - start) // size,), ">i4", data, start, (size,))
            is_equal = sizes == size
            count = len(sizes) if is_equal.all() else int(np.argmin(is_equal))
            starts += range(start, start + count * size, size)
            start += count * size
            before = 0
        else:
            starts.append(start)
            start += size
            before = size
    return starts


def uniform_records(data: Buffer, columns: RecordColumns) -> UniformRecords | None:
    """Return what the records have in common, if they have one topic and the same properties except for the unique key.

    None if they differ, or if a record belongs to a transaction. Cost: one comparison of all topics and properties.
    """
    widths = columns.ends - columns.words_starts
    width, topic_bytes = int(widths[0]), int(columns.topic_bytes[0])
    if (
        width > WORDS_BYTES_MAX
        or (widths != width).any()
        or (columns.topic_bytes != topic_bytes).any()
        or (columns.sys_flags & _TRANSACTION_BITS).any()
    ):
        return None
    words = _pieces(data, columns.words_starts, width)
    first = words[0].tobytes()
    properties = first[topic_bytes + 2 :]
    start = stop = 0
    found = (b"\x02" + properties).rfind(_UNIQUE)
    if found >= 0:
        start = topic_bytes + 2 + found + len(_UNIQUE) - 1
        stop = first.find(b"\x02", start)
    same = words == words[0]
    same[:, start:stop] = True
    same[:, -11:-1] = True
    keys = words[:, start:stop]
    if not same.all() or (keys == 2).any():
        return None
    return UniformRecords(first[:topic_bytes], properties, keys.tobytes(), stop - start)
