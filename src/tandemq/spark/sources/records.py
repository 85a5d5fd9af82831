"""Decoder of commit log records into Arrow columns: a window of bytes in, a batch of rows out.

    bytes      |rec|rec|rec|??????|rec|rec|blank|      read some MiB at a time into one buffer
    runs        ───────────  damage  ───────            records are found by their sizes, then validated all at once
    columns     numbers: one gather of all heads; bodies, topics, properties: spans, copied by Arrow in one call

Regular records (IPv4 hosts, magic V1) are decoded column by column, all others one by one. A corrupt record, and damage
between records, is a row too: its verdict states the reason, and its body holds the bytes unchanged.

Source: docs/internals/storage.md, "record"; docs/guides/pipeline.md, "Columns".
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, NamedTuple

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
from tandemq.engine import copy_spans, parse_records, property_spans
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
assert HEAD.itemsize == HEAD_V4.size, "same layout"
TAIL = np.dtype([("name", "u1", 9), ("digits", "u1", 10), ("end", "u1")])
"""The last property of a record: the CRC of the whole record, decimal digits in reverse order."""
assert TAIL.itemsize == CRC_PROPERTY_BYTES, "same layout"
_CRC_NAME_BYTES = np.frombuffer(CRC_NAME, dtype=np.uint8)
_ZERO = np.uint8(ord("0"))
_POWERS = 10 ** np.arange(10, dtype=np.int64)
_CRC_MASK = 0x7FFFFFFF
_WORD_BYTES = 8
_V6 = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
_size_at = Struct(">i").unpack_from
TIMESTAMP = pa.timestamp("us", tz="UTC")
MILLISECONDS_MAX = ((1 << 63) - 1) // 1000
"""Range of a timestamp, both signs; a producer may have set a born time beyond it."""
BATCH_INFLATED_BYTES = 64 << 20
"""Maximum size of the decompressed bodies of a batch: records of 4 MiB may have bodies of 4 GiB."""


def microseconds(ms: int) -> int:
    """Convert a time of a record to microseconds, clamped to the range of a timestamp."""
    return max(-MILLISECONDS_MAX, min(ms, MILLISECONDS_MAX)) * 1000


@dataclass(frozen=True, slots=True)
class Heads:
    """Contiguous regular records in a buffer, as arrays of equal length. Positions are offsets in the buffer."""

    fields: Array
    """The fixed fields, of dtype HEAD."""
    starts: Array
    stops: Array
    body_stops: Array
    topic_stops: Array

    def __len__(self) -> int:
        """Number of records."""
        return len(self.starts)

    def of(self, rows: "slice | Array") -> "Heads":
        """Return some of the records: a slice, or those of a mask."""
        return Heads(
            self.fields[rows], self.starts[rows], self.stops[rows], self.body_stops[rows], self.topic_stops[rows]
        )

    def first(self, count: int) -> "Heads":
        """Return the first `count` records."""
        return self.of(slice(count))


def find_records(data: Buffer, start: int, end: int, *, checks: bool) -> tuple[list[int], list[int]]:
    """Return the positions of apparent records in `[start, end)`, by their size fields alone; the last one ends before
    `end`. With `checks` also the CRC of each record without its CRC property, else an empty list.

    For machines without a compiler: the compiled engine's `parse_records` does the same and the steps after it.

    One pass does both: computing the CRC of a record loads the size field of the next one into the cache. A pass over
    size fields alone waits for memory at each record, longer than its CRC takes.
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
    """Return the regular, sound records from `start` on, up to the first that is not; None if there is none.

    Args:
        base: log offset of `data[0]`; the log offset that a record states must equal its position.
        checks: whether checksums are verified: the whole record's if it has one, else the body's.
    Cost: one gather of 88 bytes per record; with `checks` one CRC over all bytes, and one more over the bodies of
        records without a CRC of the whole record.
    """
    heads, sound = _parse(data, start, end, checks=checks)
    sound &= heads.fields["log_offset"] == base + heads.starts
    count = len(heads) if sound.all() else int(np.argmin(sound))
    return heads.first(count) if count else None


def read_all_heads(data: Buffer) -> tuple[Heads, list[int], list[int]]:
    """Return the regular, sound records among adjacent ones that fill a buffer, as a pull response has them.

    Checksums are verified as by `read_heads`; records may have any log offsets.

    Returns:
        The regular records, their numbers among all, and the positions of all records.
    """
    heads, sound = _parse(data, 0, len(data), checks=True)
    rows = np.flatnonzero(sound)
    return heads.of(rows), rows.tolist(), heads.starts.tolist()


def _parse(data: Buffer, start: int, end: int, *, checks: bool) -> tuple[Heads, Array]:
    """Parse the apparent records in `[start, end)`; returns which of them are regular and sound."""
    buffer = np.frombuffer(data, dtype=np.uint8)
    parsed = parse_records(data, start, end, checks=checks)
    if parsed is not None:
        places = np.ascontiguousarray(np.frombuffer(parsed.places, dtype=np.int64).reshape(-1, 4).T)
        return Heads(np.frombuffer(parsed.heads, dtype=HEAD), *places), np.frombuffer(parsed.regular, dtype=bool).copy()
    found, crcs = find_records(data, start, end, checks=checks)
    heads, sound = _structure(buffer, np.array(found, dtype=np.int64))
    if checks:
        rows = np.flatnonzero(sound)
        sound[rows] = _checksums_hold(data, buffer, heads.of(rows), np.array(crcs, dtype=np.int64)[rows])
    return heads, sound


def _structure(buffer: Array, starts: Array) -> tuple[Heads, Array]:
    """Parse apparent records at some positions; returns which of them are regular, by their structure alone."""
    head = _gathered(buffer, starts, HEAD)
    stop = starts + head["size"].astype(np.int64)
    body_stop = starts + HEAD.itemsize + head["body_length"]
    sound = (
        (head["magic"] == MAGIC_V1)
        & (head["sys_flag"] & _V6 == 0)
        & (head["body_length"] >= 0)
        & (body_stop + 3 <= stop)
    )
    body_stop = np.where(sound, body_stop, starts)
    topic_stop = body_stop + 1 + buffer[body_stop]
    sound &= (topic_stop + 2 <= stop) & (buffer[body_stop] <= TOPIC_V1_BYTES_MAX)
    topic_stop = np.where(sound, topic_stop, starts)
    sound &= topic_stop + 2 + buffer[topic_stop].astype(np.int64) * 256 + buffer[topic_stop + 1] == stop
    sound &= stop - topic_stop - 2 <= PROPERTIES_BYTES_MAX
    return Heads(head, starts, stop, body_stop, topic_stop), sound


def _gathered(buffer: Array, starts: Array, kind: Any) -> Any:
    """Gather structures of a dtype from any positions of a buffer into one array."""
    if not len(starts):
        return np.empty(0, kind)
    # As plain bytes: numpy copies structures field by field.
    raw = np.dtype((np.void, kind.itemsize))
    return np.ndarray(len(buffer) - kind.itemsize + 1, raw, buffer, strides=(1,))[starts].view(kind)


def _checksums_hold(data: Buffer, buffer: Array, heads: Heads, crcs: Array) -> Array:
    """Return which records match their CRC. `crcs`: CRC of each record without its last 20 bytes."""
    tail_at = heads.stops - CRC_PROPERTY_BYTES
    tail = _gathered(buffer, tail_at, TAIL)
    named = np.ascontiguousarray(tail["name"]).view("S9")[:, 0] == CRC_NAME
    whole = named & (tail_at >= heads.topic_stops + 2)
    digits = tail["digits"] - _ZERO  # unsigned: bytes below "0" wrap to values above 9
    stated = digits.astype(np.int64) @ _POWERS
    held: Array = whole & (digits <= 9).all(axis=1) & (tail["end"] == 2) & (crcs & _CRC_MASK == stated)
    others = np.flatnonzero(~whole)
    if len(others):
        held[others] = _bodies_hold(data, heads, tail, others)
    return held


def _bodies_hold(data: Buffer, heads: Heads, tail: Any, rows: Array) -> Array:
    """Return which of the records at `rows`, all without a CRC of the whole record, have a body that matches its CRC.

    Without a body there is no CRC to verify; RocketMQ stores 0 then. Doubtful records (whose last bytes resemble the
    name of the CRC property, or are zero) count as failed and are decoded one by one.
    """
    view = memoryview(data)
    starts, stops = heads.starts[rows] + HEAD.itemsize, heads.body_stops[rows]
    found = np.array([crc32(view[a:b]) for a, b in zip(starts.tolist(), stops.tolist(), strict=True)], dtype=np.int64)
    bare = ((tail["name"][rows] == _CRC_NAME_BYTES).sum(axis=1) < len(CRC_NAME) - 2) & (tail["end"][rows] != 0)
    held: Array = bare & ((stops == starts) | (found & _CRC_MASK == heads.fields["crc"][rows]))
    return held


class BatchTooLarge(Exception):
    """The decompressed bodies of a batch are too large together: it has to be made of fewer records."""


class InflationBudget:
    """Bounds the decompressed bodies of a batch; one that is larger alone is a batch of its own."""

    def __init__(self) -> None:
        """Nothing is decompressed yet."""
        self._bytes = 0

    def inflate(self, body: bytes, flag: int) -> bytes:
        """Return a body decompressed.

        Raises:
            ProtocolError: it cannot be.
            BatchTooLarge: it is too large together with those before.
        """
        plain = inflate(body, flag)
        self.take(len(plain))
        return plain

    def take(self, size: int) -> None:
        """Count a decompressed body.

        Raises:
            BatchTooLarge: it is too large together with those before.
        """
        if self._bytes and self._bytes + size > BATCH_INFLATED_BYTES:
            raise BatchTooLarge
        self._bytes += size


class ColumnBuilder:
    """Builds Arrow columns of regular records in one buffer."""

    def __init__(self, data: Buffer, heads: Heads, *, inflates: bool) -> None:
        """`inflates`: whether compressed bodies are decompressed."""
        self._data = data
        self._buffer = pa.py_buffer(data)
        self._heads = heads
        self._inflates = inflates
        self._properties: Any = None
        self._index: _PropertyIndex | None = None

    def number(self, field: str, kind: Any) -> Any:
        """Return a field of the head as an Arrow column."""
        return pa.array(self._heads.fields[field].astype(kind.to_pandas_dtype()), type=kind)

    def time(self, field: str) -> Any:
        """Return a field of milliseconds as timestamps."""
        times = self._heads.fields[field].astype(np.int64)
        return pa.array(np.clip(times, -MILLISECONDS_MAX, MILLISECONDS_MAX) * 1000).cast(TIMESTAMP)

    def host(self, field: str) -> Any:
        """Return a host field as text; each distinct host is formatted once."""
        coded = pa.array(self._heads.fields[field].astype(np.int64)).dictionary_encode()
        texts = [decode_host(host.to_bytes(8, signed=True)) for host in coded.dictionary.to_pylist()]
        return pa.array(texts, type=pa.string()).take(coded.indices)

    def spans(self, starts: Array, stops: Array, kind: Any) -> Any:
        """Return bytes `[start, stop)` of each record as a column.

        Without a compiled engine: an Arrow array over the buffer, whose values are the wanted and the unwanted spans in
        turn, of which every other one is taken. Only `take` copies.
        """
        copied = _copied(self._data, starts, stops)
        count = len(starts)
        if copied is not None:
            return pa.Array.from_buffers(kind, count, [None, *copied])
        bounds = np.empty(2 * count, dtype=np.int32)
        bounds[0::2] = starts
        bounds[1::2] = stops
        pieces = pa.Array.from_buffers(kind, 2 * count - 1, [None, pa.py_buffer(bounds), self._buffer])
        return pieces.take(pa.array(np.arange(0, 2 * count - 1, 2, dtype=np.int32)))

    def body(self) -> Any:
        """Return the bodies; compressed ones are decompressed if `inflates` is set.

        Raises:
            ProtocolError: a body cannot be decompressed.
            BatchTooLarge: they are too large together.
        """
        bodies = self.spans(self._heads.starts + HEAD.itemsize, self._heads.body_stops, pa.binary())
        flags = self._heads.fields["sys_flag"]
        if not self._inflates or not (flags & int(SysFlag.COMPRESSED)).any():
            return bodies
        budget = InflationBudget()
        return pa.array(
            [
                budget.inflate(body, flag) if flag & SysFlag.COMPRESSED else body
                for body, flag in zip(bodies.to_pylist(), flags.tolist(), strict=True)
            ],
            type=pa.binary(),
        )

    def topic(self) -> Any:
        """Return the topics."""
        return self.spans(self._heads.body_stops + 1, self._heads.topic_stops, pa.string())

    def properties(self) -> Any:
        """Return the properties as stored."""
        if self._properties is None:
            self._properties = self.spans(self._heads.topic_stops + 2, self._heads.stops, pa.string())
        return self._properties

    def property(self, name: bytes) -> Any:
        """Return the values of a property, NULL where it is absent or empty. Names are compared at the start of every
        property, the first eight bytes as one word."""
        column = self.properties()
        values = _values_by_engine(column, name + b"\x01")
        if values is not None:
            return values
        if self._index is None:
            self._index = _PropertyIndex(column)
        return _pieces(column, self._index.values(name + b"\x01"))

    def check_text(self) -> None:
        """Check that properties are UTF-8. Then so are all values cut from them, which end at ASCII characters.

        Raises:
            ArrowInvalid: they are not UTF-8.
        """
        if self._properties is not None:
            self._properties.validate(full=True)


class _Values(NamedTuple):
    """Values of a property: their rows, ascending, and where each starts and stops in the column's bytes."""

    rows: Array
    starts: Array
    stops: Array


def _copied(data: Buffer, starts: Array, stops: Array) -> tuple[Any, Any] | None:
    """Return the bounds and the bytes of a column of spans; None without a compiled engine."""
    size = int((stops - starts).sum())
    values = pa.allocate_buffer(size)
    bounds = copy_spans(data, starts, stops, memoryview(values).cast("B") if size else bytearray())
    return None if bounds is None else (pa.py_buffer(bounds), values)


def _values_by_engine(column: Any, begin: bytes) -> Any:
    """Return the non-empty values that follow `begin` as a column, NULL in rows without; None without a compiled
    engine."""
    _, bounds, data = column.buffers()
    edges = np.frombuffer(bounds, dtype=np.int32)[: len(column) + 1]
    text = memoryview(data).cast("B") if data else b""
    packed = property_spans(text, edges, begin)
    if packed is None:
        return None
    starts, stops = np.ascontiguousarray(np.frombuffer(packed, dtype=np.int32).reshape(-1, 2).T, dtype=np.int64)
    copied = _copied(text, starts, stops)
    assert copied is not None, "an engine has both functions or none"
    is_filled = stops > starts
    filled = None if is_filled.all() else pa.py_buffer(np.packbits(is_filled, bitorder="little"))
    return pa.Array.from_buffers(pa.string(), len(column), [filled, *copied])


class _PropertyIndex:
    """Index of the properties in a column: each begins at the start of a row or after a byte 0x02."""

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
        is_begin[size] = True  # sentinel: end of the last property
        self._begins = np.flatnonzero(is_begin)
        self._words = np.ndarray(size + 1, np.uint64, self._bytes, strides=(1,))[self._begins]

    def values(self, begin: bytes) -> _Values:
        """Return the non-empty values that follow `begin`. If a record has a property twice, the last one counts."""
        word, mask = _word(begin[:_WORD_BYTES])
        found = np.flatnonzero((self._words & mask) == word)
        positions = self._begins[found]
        for place in range(_WORD_BYTES, len(begin)):
            inside = positions + place < len(self._bytes)
            found, positions = found[inside], positions[inside]
            same = self._bytes[positions + place] == begin[place]
            found, positions = found[same], positions[same]
        start, stop = positions + len(begin), self._begins[found + 1]
        stop = stop - (self._bytes[stop - 1] == 2)
        if self._is_one_each(positions):
            row = np.arange(len(positions))
        else:
            is_whole = start <= stop  # drop a name that continues in the next row
            positions, start, stop = positions[is_whole], start[is_whole], stop[is_whole]
            row = np.searchsorted(self._rows, positions, side="right") - 1
            is_last = np.append(row[1:] != row[:-1], True)[: len(row)]
            row, start, stop = row[is_last], start[is_last], stop[is_last]
        filled = stop > start
        return _Values(row, start, stop) if filled.all() else _Values(row[filled], start[filled], stop[filled])

    def _is_one_each(self, positions: Array) -> bool:
        return len(positions) == len(self._rows) - 1 and bool(
            (positions >= self._rows[:-1]).all() and (positions < self._rows[1:]).all()
        )


def _word(begin: bytes) -> tuple[Any, Any]:
    """Return up to eight bytes as a 64-bit word, and the mask of its significant bits."""
    padded = begin.ljust(_WORD_BYTES, b"\0")
    mask = (b"\xff" * len(begin)).ljust(_WORD_BYTES, b"\0")
    return np.frombuffer(padded, dtype=np.uint64)[0], np.frombuffer(mask, dtype=np.uint64)[0]


def _pieces(column: Any, values: _Values) -> Any:
    """Return values cut from a column's bytes as a column; rows without a value are NULL."""
    row, start, stop = values
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
"""Functions that build each column from regular records. brokerName, epoch and verdict are not part of a record;
uniqueKey is for jobs only."""


def regular_columns(data: Buffer, heads: Heads, names: Sequence[str], *, inflates: bool) -> dict[str, Any] | None:
    """Return columns by name; None if a record has text that is not UTF-8, or a body that cannot be decompressed: then
    the records must be decoded one by one.

    Raises:
        BatchTooLarge: the decompressed bodies are too large together.
    """
    columns = ColumnBuilder(data, heads, inflates=inflates)
    try:
        made = {name: MAKERS[name](columns) for name in names if name in MAKERS}
        if "topic" in made:
            made["topic"].validate(full=True)
        columns.check_text()
    except (ProtocolError, pa.ArrowInvalid, UnicodeDecodeError):
        return None
    return made
