"""Many records at once: the fields of all records in a buffer, checked column by column.

Reading one record costs some Python per field; reading a thousand that lie one behind the other costs numpy a few
passes and Python one checksum call each. Only regular records are read this way: IPv4 hosts, magic V1, closed by the
CRC property, as this broker writes them. `scan_run` stops before the first that is not, and `parse_record` decides.

Source: docs/storage.md, "record".
"""

from dataclasses import dataclass, field
from struct import Struct
from typing import Any

import numpy as np
from isal.isal_zlib import crc32

from tandemq.codec.record import (
    CRC_PROPERTY_BYTES,
    HEAD_V4,
    MAGIC_V1,
    PROPERTIES_BYTES_MAX,
    RECORD_BYTES_MIN,
    TOPIC_V1_BYTES_MAX,
    Record,
)

REGULAR_BYTES_MIN = RECORD_BYTES_MIN + CRC_PROPERTY_BYTES
_HEAD = np.dtype(
    [("size", ">i4"), ("magic", ">u4"), ("crc", ">u4"), ("queue_id", ">i4"), ("flag", ">i4"), ("queue_offset", ">i8"),
     ("log_offset", ">i8"), ("sys_flag", ">i4"), ("born_ms", ">i8"), ("born_host", "V8"), ("store_ms", ">i8"),
     ("store_host", "V8"), ("reconsume", ">i4"), ("prepared", ">i8"), ("body_length", ">i4")]
)  # fmt: skip
assert _HEAD.itemsize == HEAD_V4.size, "one layout"
_CRC_NAME = np.frombuffer(b"__CRC32#\x01", dtype=np.uint8)
_POWERS = 10 ** np.arange(10, dtype=np.int64)
_V6_MASK = 0x30
_TRANSACTION_BITS = 0xC
_UNIQUE = b"\x02UNIQ_KEY\x01"
WORDS_BYTES_MAX = 1024
SCANNED_MIN = 20
"""Fewer records are read faster one by one."""
Array = np.ndarray[Any, np.dtype[Any]]
_CRC_MASK = 0x7FFFFFFF
_size_at = Struct(">i").unpack_from


@dataclass(frozen=True, slots=True)
class Columns:
    """Fields of records as int64 arrays."""

    sizes: Array
    queue_ids: Array
    queue_offsets: Array
    log_offsets: Array
    store_ms: Array
    words_starts: Array
    """Where topic and properties, which lie together, begin; `words_bytes` long, the topic `topic_bytes`."""
    words_bytes: Array
    topic_bytes: Array
    is_plain: bool
    """No record belongs to a transaction."""


@dataclass(frozen=True, slots=True)
class Alike:
    """Records that differ in nothing but numbers, bodies and unique keys."""

    topic: bytes
    properties: bytes
    """Those of the first record."""
    unique_keys: bytes
    """All of them, end to end; b"" if the records have none."""
    unique_bytes: int


@dataclass(slots=True)
class Run:
    """Records one behind the other; equally long lists. Spans are positions in the buffer the run was read from."""

    sizes: list[int] = field(default_factory=list)
    queue_ids: list[int] = field(default_factory=list)
    queue_offsets: list[int] = field(default_factory=list)
    log_offsets: list[int] = field(default_factory=list)
    sys_flags: list[int] = field(default_factory=list)
    store_ms: list[int] = field(default_factory=list)
    topic_starts: list[int] = field(default_factory=list)
    topic_ends: list[int] = field(default_factory=list)
    properties_starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    columns: "Columns | None" = None
    """The same as arrays, if all records were read at once."""

    def __len__(self) -> int:
        """How many records."""
        return len(self.sizes)

    def add(self, record: Record, start: int) -> None:
        """Append one record read by `parse_record` at `start`."""
        self.columns = None
        end = start + record.size
        properties_start = end - len(record.properties)
        self.sizes.append(record.size)
        self.queue_ids.append(record.queue_id)
        self.queue_offsets.append(record.queue_offset)
        self.log_offsets.append(record.log_offset)
        self.sys_flags.append(record.sys_flag)
        self.store_ms.append(record.store_ms)
        self.topic_ends.append(properties_start - 2)
        self.topic_starts.append(properties_start - 2 - len(record.topic))
        self.properties_starts.append(properties_start)
        self.ends.append(end)


def scan_run(data: bytes, start: int, end: int, base: int, run: Run, *, at_least: int = SCANNED_MIN) -> int:
    """Append to `run` the regular, sound records from `start` on; returns where they end.

    Args:
        base: log offset of `data[0]`; a record must say that it lies where it does.
        at_least: nothing is read if there seem to be fewer.
    Cost: one CRC over the bytes, and about a microsecond per record.
    """
    starts = _starts(data, start, end)
    if not starts or len(starts) < at_least:
        return start
    buffer = np.frombuffer(data, dtype=np.uint8)
    at = np.array(starts, dtype=np.int64)
    head: Any = np.frombuffer(b"".join([data[first : first + HEAD_V4.size] for first in starts]), dtype=_HEAD)
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
    crc_starts = (stop - CRC_PROPERTY_BYTES).tolist()
    tails = b"".join([data[first : first + CRC_PROPERTY_BYTES] for first in crc_starts])
    tail = np.frombuffer(tails, dtype=np.uint8).reshape(-1, CRC_PROPERTY_BYTES)
    sound &= (tail[:, :9] == _CRC_NAME).all(axis=1) & (tail[:, 19] == 2)
    stated = (tail[:, 9:19].astype(np.int64) - 48) @ _POWERS
    view = memoryview(data)
    found = [crc32(view[first:last]) for first, last in zip(starts, crc_starts, strict=True)]
    sound &= (np.array(found, dtype=np.int64) & _CRC_MASK) == stated
    count = len(starts) if sound.all() else int(np.argmin(sound))
    if count:
        run.columns = None if len(run) else Columns(
            sizes[:count], head["queue_id"][:count].astype(np.int64), head["queue_offset"][:count].astype(np.int64),
            (base + at)[:count], head["store_ms"][:count].astype(np.int64), body_end[:count] + 1,
            (stop - body_end)[:count] - 1, topic_end[:count] - body_end[:count] - 1,
            not (head["sys_flag"][:count] & _TRANSACTION_BITS).any(),
        )  # fmt: skip
        _append(run, head[:count], sizes[:count], body_end[:count], topic_end[:count], stop[:count])
    return int(stop[count - 1]) if count else start


def _starts(data: bytes, start: int, end: int) -> list[int]:
    """Where records seem to begin, by their sizes alone. Cost: one look per record, or per row of equal ones."""
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


def _append(run: Run, head: Any, sizes: Any, body_end: Any, topic_end: Any, stop: Any) -> None:
    run.sizes += sizes.tolist()
    run.queue_ids += head["queue_id"].tolist()
    run.queue_offsets += head["queue_offset"].tolist()
    run.log_offsets += head["log_offset"].tolist()
    run.sys_flags += head["sys_flag"].tolist()
    run.store_ms += head["store_ms"].tolist()
    run.topic_starts += (body_end + 1).tolist()
    run.topic_ends += topic_end.tolist()
    run.properties_starts += (topic_end + 2).tolist()
    run.ends += stop.tolist()


def alike(data: bytes, columns: Columns) -> Alike | None:
    """Whether all records have one topic and the same properties but for their unique keys; None if not.

    Cost: one comparison of all their topics and properties.
    """
    width, topic_bytes = int(columns.words_bytes[0]), int(columns.topic_bytes[0])
    if (
        not columns.is_plain
        or width > WORDS_BYTES_MAX
        or (columns.words_bytes != width).any()
        or (columns.topic_bytes != topic_bytes).any()
    ):
        return None
    rows = b"".join([data[start : start + width] for start in columns.words_starts.tolist()])
    words = np.frombuffer(rows, dtype=np.uint8).reshape(-1, width)
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
    return Alike(first[:topic_bytes], properties, keys.tobytes(), stop - start)
