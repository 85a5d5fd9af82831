"""Records of the log as Arrow columns: a window of bytes in, a batch of rows out.

    bytes      |rec|rec|rec|??????|rec|rec|blank|      read some MiB at a time into one buffer
    runs        ───────────  damage  ───────            where records lie: by their sizes, then checked all at once
    columns     numbers: one gather of all heads; bodies, topics, properties: spans, copied by Arrow in one go

Regular records (IPv4 hosts, magic V1) are taken column by column, all others one by one. A record whose bytes are not
sound, and damage between records, is a row too: its verdict says why, and its body holds the bytes as they lie.

Source: docs/internals/storage.md, "record"; docs/guides/pipeline.md, "Columns".
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

import numpy as np
import pyarrow as pa
from isal.isal_zlib import crc32

from tandemq.codec.record.record import (
    CRC_NAME,
    CRC_PROPERTY_BYTES,
    HEAD_V4,
    MAGIC_V1,
    PROPERTIES_BYTES_MAX,
    TOPIC_V1_BYTES_MAX,
    decode_host,
    inflate,
)
from tandemq.codec.record.record import RECORD_BYTES_MIN as RECORD_MIN
from tandemq.errors import ProtocolError
from tandemq.model.message import SysFlag

Array = np.ndarray[Any, np.dtype[Any]]
Buffer = bytes | bytearray | memoryview

HEAD = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">u4"),
        ("crc", ">i4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("log_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_ms", ">i8"),
        ("born_host", ">i8"),
        ("store_ms", ">i8"),
        ("store_host", ">i8"),
        ("reconsume", ">i4"),
        ("prepared", ">i8"),
        ("body_length", ">i4"),
    ]
)
assert HEAD.itemsize == HEAD_V4.size, "one layout"
TAIL = np.dtype([("name", "u1", 9), ("digits", "u1", 10), ("end", "u1")])
"""The property that states a whole record's CRC, at its end; the digits in reverse order."""
assert TAIL.itemsize == CRC_PROPERTY_BYTES, "one layout"
_CRC_NAME_BYTES = np.frombuffer(CRC_NAME, dtype=np.uint8)
_ZERO = np.uint8(ord("0"))
_POWERS = 10 ** np.arange(10, dtype=np.int64)
_CRC_MASK = 0x7FFFFFFF
_WORD_BYTES = 8
_V6 = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
_size_at = Struct(">i").unpack_from
TIMESTAMP = pa.timestamp("us", tz="UTC")
MILLISECONDS_MAX = ((1 << 63) - 1) // 1000
"""The latest time, and negated the earliest, that a timestamp holds; a producer may have set any other."""


def microseconds(ms: int) -> int:
    """A time of a record as timestamps hold it; one beyond their range is the last within it."""
    return max(-MILLISECONDS_MAX, min(ms, MILLISECONDS_MAX)) * 1000


@dataclass(frozen=True, slots=True)
class Heads:
    """Regular records one behind the other in a buffer; equally long arrays. Positions are within the buffer."""

    fields: Array
    """The fixed fields, of dtype HEAD."""
    starts: Array
    stops: Array
    body_stops: Array
    topic_stops: Array

    def __len__(self) -> int:
        """How many records."""
        return len(self.starts)

    def first(self, count: int) -> "Heads":
        """The first of them."""
        return Heads(
            self.fields[:count],
            self.starts[:count],
            self.stops[:count],
            self.body_stops[:count],
            self.topic_stops[:count],
        )


def find_records(data: Buffer, start: int, end: int, *, checks: bool) -> tuple[list[int], list[int]]:
    """Where records seem to begin in `[start, end)`, by their sizes alone; the last lies whole before `end`. With
    `checks` also each one's CRC, up to where it states one.

    One pass does both: reading a record to its end brings the next one's size into the cache. To go from size to size
    alone waits for the memory at each record, longer than its CRC takes.
    """
    starts: list[int] = []
    crcs: list[int] = []
    add, add_crc, view = starts.append, crcs.append, memoryview(data)
    last = end - RECORD_MIN
    while start <= last:
        size = _size_at(data, start)[0]
        stop = start + size
        if size < RECORD_MIN or stop > end:
            break
        add(start)
        if checks:
            add_crc(crc32(view[start : stop - CRC_PROPERTY_BYTES]))
        start = stop
    return starts, crcs


def read_heads(data: Buffer, start: int, end: int, base: int, *, checks: bool) -> Heads | None:
    """The regular, sound records from `start` on, up to the first that is not; None if there is none.

    Args:
        base: log offset of `data[0]`; a record must say that it lies where it does.
        checks: whether checksums are compared: the whole record's where it has one, else the body's.
    Cost: one gather of 88 bytes per record; with `checks` one CRC over the bytes, and one over bodies whose records
        state no CRC of the whole.
    """
    found, crcs = find_records(data, start, end, checks=checks)
    if not found:
        return None
    buffer = np.frombuffer(data, dtype=np.uint8)
    at = np.array(found, dtype=np.int64)
    head = _gathered(buffer, at, HEAD)
    stop = at + head["size"].astype(np.int64)
    body_stop = at + HEAD.itemsize + head["body_length"]
    sound = (
        (head["magic"] == MAGIC_V1)
        & (head["sys_flag"] & _V6 == 0)
        & (head["log_offset"] == base + at)
        & (head["body_length"] >= 0)
        & (body_stop + 3 <= stop)
    )
    body_stop = np.where(sound, body_stop, at)
    topic_stop = body_stop + 1 + buffer[body_stop]
    sound &= (topic_stop + 2 <= stop) & (buffer[body_stop] <= TOPIC_V1_BYTES_MAX)
    topic_stop = np.where(sound, topic_stop, at)
    sound &= topic_stop + 2 + buffer[topic_stop].astype(np.int64) * 256 + buffer[topic_stop + 1] == stop
    sound &= stop - topic_stop - 2 <= PROPERTIES_BYTES_MAX
    count = len(found) if sound.all() else int(np.argmin(sound))
    if not count:
        return None
    heads = Heads(head, at, stop, body_stop, topic_stop).first(count)
    if checks:
        passed = _checksums_hold(data, buffer, heads, np.array(crcs[:count], dtype=np.int64))
        if not passed.all():
            heads = heads.first(int(np.argmin(passed)))
    return heads if len(heads) else None


def _gathered(buffer: Array, at: Array, kind: Any) -> Any:
    """Structures of a dtype that lie anywhere in a buffer, as one array."""
    # As plain bytes, because a structure is copied field by field.
    raw = np.dtype((np.void, kind.itemsize))
    return np.ndarray(len(buffer) - kind.itemsize + 1, raw, buffer, strides=(1,))[at].view(kind)


def _checksums_hold(data: Buffer, buffer: Array, heads: Heads, crcs: Array) -> Array:
    """Which records have the CRC they state. `crcs`: of each up to its last 20 bytes."""
    tail_at = heads.stops - CRC_PROPERTY_BYTES
    tail = _gathered(buffer, tail_at, TAIL)
    named = np.ascontiguousarray(tail["name"]).view("S9")[:, 0] == CRC_NAME
    whole = named & (tail_at >= heads.topic_stops + 2)
    digits = tail["digits"] - _ZERO  # what is below "0" comes out above 9
    stated = digits.astype(np.int64) @ _POWERS
    held: Array = whole & (digits <= 9).all(axis=1) & (tail["end"] == 2) & (crcs & _CRC_MASK == stated)
    others = np.flatnonzero(~whole)
    if len(others):
        held[others] = _bodies_hold(data, heads, tail, others)
    return held


def _bodies_hold(data: Buffer, heads: Heads, tail: Any, rows: Array) -> Array:
    """Of records without a CRC of the whole, at `rows`: which have a body with the CRC they state.

    Without a body there is no CRC to compare; RocketMQ states 0 then. What is unusual otherwise (the last bytes
    resemble the name of the property, or are zero) is looked at singly.
    """
    view = memoryview(data)
    starts, stops = heads.starts[rows] + HEAD.itemsize, heads.body_stops[rows]
    found = np.array([crc32(view[a:b]) for a, b in zip(starts.tolist(), stops.tolist(), strict=True)], dtype=np.int64)
    bare = ((tail["name"][rows] == _CRC_NAME_BYTES).sum(axis=1) < len(CRC_NAME) - 2) & (tail["end"][rows] != 0)
    held: Array = bare & ((stops == starts) | (found & _CRC_MASK == heads.fields["crc"][rows]))
    return held


class ColumnBuilder:
    """Makes the columns asked for of regular records in one buffer."""

    def __init__(self, data: Buffer, heads: Heads, *, inflates: bool) -> None:
        """`inflates`: whether compressed bodies are decompressed."""
        self._buffer = pa.py_buffer(data)
        self._bytes = np.frombuffer(data, dtype=np.uint8)
        self._heads = heads
        self._inflates = inflates
        self._properties: Any = None
        self._texts: _Texts | None = None

    def number(self, field: str, kind: Any) -> Any:
        """A field of the head as an Arrow column."""
        return pa.array(self._heads.fields[field].astype(kind.to_pandas_dtype()), type=kind)

    def time(self, field: str) -> Any:
        """A field of milliseconds as timestamps."""
        times = self._heads.fields[field].astype(np.int64)
        return pa.array(np.clip(times, -MILLISECONDS_MAX, MILLISECONDS_MAX) * 1000).cast(TIMESTAMP)

    def host(self, field: str) -> Any:
        """A host as text: each is formatted once, as there are few."""
        coded = pa.array(self._heads.fields[field].astype(np.int64)).dictionary_encode()
        texts = [decode_host(host.to_bytes(8, signed=True)) for host in coded.dictionary.to_pylist()]
        return pa.array(texts, type=pa.string()).take(coded.indices)

    def spans(self, starts: Array, stops: Array, kind: Any) -> Any:
        """Bytes `[start, stop)` of each record: an array of wanted and unwanted pieces in turn, of which every other
        is taken. The pieces lie where they are; only the taking copies."""
        count = len(starts)
        bounds = np.empty(2 * count, dtype=np.int32)
        bounds[0::2] = starts
        bounds[1::2] = stops
        pieces = pa.Array.from_buffers(kind, 2 * count - 1, [None, pa.py_buffer(bounds), self._buffer])
        return pieces.take(pa.array(np.arange(0, 2 * count - 1, 2, dtype=np.int32)))

    def body(self) -> Any:
        """Bodies; decompressed where they are compressed, if asked.

        Raises:
            ProtocolError: one cannot be decompressed.
        """
        bodies = self.spans(self._heads.starts + HEAD.itemsize, self._heads.body_stops, pa.binary())
        flags = self._heads.fields["sys_flag"]
        if not self._inflates or not (flags & int(SysFlag.COMPRESSED)).any():
            return bodies
        return pa.array(
            [
                inflate(body, flag) if flag & SysFlag.COMPRESSED else body
                for body, flag in zip(bodies.to_pylist(), flags.tolist(), strict=True)
            ],
            type=pa.binary(),
        )

    def topic(self) -> Any:
        """Topics."""
        return self.spans(self._heads.body_stops + 1, self._heads.topic_stops, pa.string())

    def properties(self) -> Any:
        """Properties as stored."""
        if self._properties is None:
            self._properties = self.spans(self._heads.topic_stops + 2, self._heads.stops, pa.string())
        return self._properties

    def property(self, name: bytes) -> Any:
        """The value of a property, NULL where it is absent or empty: the beginnings of all properties are compared, by
        their first eight bytes first."""
        column = self.properties()
        if self._texts is None:
            self._texts = _Texts(column)
        row, start, stop = self._texts.values(name + b"\x01")
        return _pieces(column, row, start, stop)

    def check_texts(self) -> None:
        """Whatever was made of the properties is text if they are: pieces of theirs end at ASCII characters.

        Raises:
            ArrowInvalid: they are no UTF-8.
        """
        if self._properties is not None:
            self._properties.validate(full=True)


class _Texts:
    """Where properties begin in a column of them: at the beginning of a row, and behind each 0x02."""

    def __init__(self, column: Any) -> None:
        _, bounds, data = column.buffers()
        self._rows = np.frombuffer(bounds, dtype=np.int32)[: len(column) + 1]
        size = int(self._rows[-1])
        self._bytes = np.zeros(size + _WORD_BYTES, dtype=np.uint8)
        if size:
            self._bytes[:size] = np.frombuffer(data, dtype=np.uint8)[:size]
        is_begin = np.empty(size + 1, dtype=bool)
        np.equal(self._bytes[:size], 2, out=is_begin[1:])
        is_begin[self._rows] = True
        is_begin[size] = True  # of none: the last one ends there
        self._begins = np.flatnonzero(is_begin)
        self._words = np.ndarray(size + 1, np.uint64, self._bytes, strides=(1,))[self._begins]

    def values(self, begin: bytes) -> tuple[Array, Array, Array]:
        """Of values that follow `begin` and are not empty: their rows, ascending, and where they start and stop. Of a
        property that a record has twice the last one counts."""
        word, mask = _word(begin[:_WORD_BYTES])
        found = np.flatnonzero((self._words & mask) == word)
        at = self._begins[found]
        for place in range(_WORD_BYTES, len(begin)):
            inside = at + place < len(self._bytes)
            found, at = found[inside], at[inside]
            same = self._bytes[at + place] == begin[place]
            found, at = found[same], at[same]
        start, stop = at + len(begin), self._begins[found + 1]
        stop = stop - (self._bytes[stop - 1] == 2)
        if self._is_one_each(at):
            row = np.arange(len(at))
        else:
            is_whole = start <= stop  # nothing that the next row completes
            at, start, stop = at[is_whole], start[is_whole], stop[is_whole]
            row = np.searchsorted(self._rows, at, side="right") - 1
            last = np.append(row[1:] != row[:-1], True)[: len(row)]
            row, start, stop = row[last], start[last], stop[last]
        filled = stop > start
        return (row, start, stop) if filled.all() else (row[filled], start[filled], stop[filled])

    def _is_one_each(self, at: Array) -> bool:
        return len(at) == len(self._rows) - 1 and bool((at >= self._rows[:-1]).all() and (at < self._rows[1:]).all())


def _word(begin: bytes) -> tuple[Any, Any]:
    """Up to eight bytes as a number, and which of its bits count."""
    padded = begin.ljust(_WORD_BYTES, b"\0")
    mask = (b"\xff" * len(begin)).ljust(_WORD_BYTES, b"\0")
    return np.frombuffer(padded, dtype=np.uint64)[0], np.frombuffer(mask, dtype=np.uint64)[0]


def _pieces(column: Any, row: Array, start: Array, stop: Array) -> Any:
    """Pieces of a column's bytes as a column: `row` says, ascending, where each belongs; the other rows are NULL."""
    count = len(column)
    if not len(row):
        return pa.nulls(count, type=pa.string())
    bounds = np.empty(2 * len(row), dtype=np.int32)
    bounds[0::2], bounds[1::2] = start, stop
    buffers = [None, pa.py_buffer(bounds), column.buffers()[2]]
    pieces = pa.Array.from_buffers(pa.string(), 2 * len(row) - 1, buffers)
    place = np.zeros(count, dtype=np.int32)
    place[row] = np.arange(0, 2 * len(row), 2)
    if len(row) == count:
        return pieces.take(pa.array(place))
    absent = np.ones(count, dtype=bool)
    absent[row] = False
    return pieces.take(pa.array(place, mask=absent))


Maker = Callable[[ColumnBuilder], Any]
MAKERS: dict[str, Maker] = {
    "key": lambda columns: columns.property(b"KEYS"),
    "body": ColumnBuilder.body,
    "topic": ColumnBuilder.topic,
    "uniqueKey": lambda columns: columns.property(b"UNIQ_KEY"),
    "tags": lambda columns: columns.property(b"TAGS"),
    "queueId": lambda columns: columns.number("queue_id", pa.int32()),
    "queueOffset": lambda columns: columns.number("queue_offset", pa.int64()),
    "commitLogOffset": lambda columns: columns.number("log_offset", pa.int64()),
    "bornTimestamp": lambda columns: columns.time("born_ms"),
    "storeTimestamp": lambda columns: columns.time("store_ms"),
    "bornHost": lambda columns: columns.host("born_host"),
    "reconsumeTimes": lambda columns: columns.number("reconsume", pa.int32()),
    "properties": ColumnBuilder.properties,
    "size": lambda columns: columns.number("size", pa.int32()),
    "flag": lambda columns: columns.number("flag", pa.int32()),
    "sysFlag": lambda columns: columns.number("sys_flag", pa.int32()),
    "bodyCrc": lambda columns: columns.number("crc", pa.int32()),
    "storeHost": lambda columns: columns.host("store_host"),
    "preparedTransactionOffset": lambda columns: columns.number("prepared", pa.int64()),
}
"""How each column is made of regular records; brokerName, epoch and verdict are not in them, uniqueKey is for jobs."""


def regular_columns(data: Buffer, heads: Heads, names: Sequence[str], *, inflates: bool) -> dict[str, Any] | None:
    """Columns by name; None if one of the records is not what it seems: text that is no UTF-8, a body that cannot be
    decompressed. Its neighbours must then be looked at one by one."""
    columns = ColumnBuilder(data, heads, inflates=inflates)
    try:
        made = {name: MAKERS[name](columns) for name in names if name in MAKERS}
        if "topic" in made:
            made["topic"].validate(full=True)
        columns.check_texts()
    except (ProtocolError, pa.ArrowInvalid, UnicodeDecodeError):
        return None
    return made
