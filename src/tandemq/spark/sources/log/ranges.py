"""Reading one physical range of a log: batches of rows, damage included.

    |--- range ---|--- range ---|       a row belongs to the range in which its record begins; a range that begins
       rec|rec|rec|rec|rec|rec|         anywhere finds its first record by magic, own offset and checksum

Damage reaches from where a sound record should begin to the next sound record; it is given by the range in which the
record before it begins, which therefore looks whether its last record is followed by another. What is not sound at the
log's end, with no sound record behind it, is a torn tail and no row: a broker that starts cuts it. If the log went on
there when the ranges were planned, it is a loss.

Source: docs/internals/storage.md, "recovery"; docs/guides/pipeline.md, "Damage".
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tandemq.codec.record.entries import BLANK_BYTES_MIN, BLANK_MAGIC
from tandemq.codec.record.record import (
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    Record,
    decode_host,
    inflate,
    parse_record,
    peek,
    property_value,
    record_fault,
    unpack_head,
)
from tandemq.errors import OffsetGone, ProtocolError, StoreDamaged
from tandemq.model.message import SysFlag, decode_properties
from tandemq.spark.sources.log.files import LogFileReader, LogFiles, find_record
from tandemq.spark.sources.records import Heads, microseconds, read_heads, regular_columns

WINDOW_BYTES = 8 << 20
RECORD_BYTES_MAX = 128 << 20
DAMAGE_BYTES_MAX = 4 << 20
"""Longer damage is told in several rows."""
RANGE_BYTES = 64 << 20
STEP_BYTES = 256 << 10
"""Behind a record that was looked at alone, so much is tried column by column at first: others like it may follow."""


SHORTER = "were there and are no more: the log is shorter"
DELETED = "are gone: their file was deleted meanwhile"
LostRange = Callable[[int, int, str], None]
"""Told that log offsets `[start, end)` are lost, and why: words that follow "log offsets [0, 10) …"."""


@dataclass(frozen=True, slots=True)
class LogRange:
    """Log offsets `[start, end)` within one file. `is_exact`: a record begins at `start`; `looks_on`: the next range
    is not exact, so that this one must tell of damage behind its last record. `log_end`: where the log ended, at least,
    when the range was planned."""

    start: int
    end: int
    is_exact: bool
    looks_on: bool
    log_end: int


@dataclass(frozen=True, slots=True)
class Reading:
    """How rows are made."""

    columns: tuple[str, ...]
    """Names of MESSAGE and DETAIL."""
    checks: bool = True
    """Whether checksums are compared."""
    inflates: bool = True
    """Whether compressed bodies are decompressed; the lake keeps them as they are."""
    keeps_damage: bool = False
    """Whether damage is a row; otherwise it is passed over, or an error if `fails_on_damage`."""
    fails_on_damage: bool = True
    maps_properties: bool = False


def split(files: LogFiles, start: int, end: int, range_bytes: int = RANGE_BYTES) -> list[LogRange]:
    """Ranges that cover `[start, end)` of a log; `start` is a record boundary."""
    ranges = []
    at = start
    while at < end:
        segment_end = at - at % files.segment_bytes + files.segment_bytes
        stop = min(at + range_bytes, segment_end, end)
        if segment_end - stop < range_bytes // 4:
            stop = min(segment_end, end)
        is_exact = at == start or at % files.segment_bytes == 0
        ranges.append(LogRange(at, stop, is_exact, looks_on=stop < min(end, segment_end), log_end=end))
        at = stop
    return ranges


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows: columns by name (brokerName, epoch and verdict are not among them), and where they lie in the log."""

    columns: dict[str, Any]
    offsets: Any
    verdicts: list[str | None] | None = None
    """None: all are sound."""


class RangeReader:
    """Reads ranges of one log, one after the other."""

    def __init__(self, read: LogFileReader, reading: Reading) -> None:
        """`read` is closed by its owner."""
        self._read = read
        self._files = read.files
        self._reading = reading
        self._buffer = bytearray(WINDOW_BYTES)
        self.end = 0
        """Log offset behind the last record or damage given out."""
        self.lost: tuple[int, int] | None = None
        """Of the last range: log offsets in which nothing sound lies any more, though the log went on there."""

    def rows(self, wanted: LogRange) -> Iterator[Rows]:
        """All rows that begin in a range, in the log's order.

        Raises:
            StoreDamaged: there is damage, and the reading fails on it.
            OffsetGone: retention has taken the file.
        """
        position: int | None = wanted.start
        if not wanted.is_exact:
            position = find_record(self._read, wanted.start, wanted.end)
        self.end, self.lost = wanted.start, None
        base, size, step = wanted.start, 0, WINDOW_BYTES
        while position is not None and position < wanted.end:
            at = position - base
            if size - at < RECORD_BYTES_MIN:
                base, at = position, 0
                size = self._fill(position, wanted.end)
                if size < BLANK_BYTES_MIN:
                    return
            stop = min(size, at + step)
            heads = read_heads(self._buffer, at, stop, base, checks=self._reading.checks)
            if heads is not None:
                position = self.end = base + int(heads.stops[-1])
                step = min(2 * step, WINDOW_BYTES)
                yield from self._regular(heads, base)
            elif at and peek(self._buffer, at)[0] > size - at:
                base, size = position, 0  # the record may be cut off by the window's end: begin a window with it
            else:
                position, rows = self._irregular(position, wanted.log_end)
                self.end = position if position is not None else self.end
                step = STEP_BYTES
                yield from rows
        if wanted.looks_on and position is not None:
            yield from self._damage_behind(position, wanted)

    def _fill(self, position: int, end: int) -> int:
        """Read a window from a position on, hardly beyond the range's end; returns its bytes."""
        wanted = max(end - position, RECORD_BYTES_MIN)
        return self._read.read_into(memoryview(self._buffer)[:wanted], position)

    def _regular(self, heads: Heads, base: int) -> Iterator[Rows]:
        reading = self._reading
        columns = None
        if not reading.maps_properties:
            columns = regular_columns(self._buffer, heads, reading.columns, inflates=reading.inflates)
        if columns is not None:
            yield Rows(columns, heads.fields["log_offset"].astype(np.int64))
            return
        singles = [
            self._single(bytes(self._buffer[start:stop]), base + start)
            for start, stop in zip(heads.starts.tolist(), heads.stops.tolist(), strict=True)
        ]
        yield self._gathered([row for row in singles if row is not None])

    def _irregular(self, position: int, log_end: int) -> tuple[int | None, list[Rows]]:
        """What is not read column by column: one record, a blank, damage. Where to go on, None at the log's end."""
        size, data, fault = self._judge(position)
        if fault is None:
            row = self._single(data, position) if data else None
            return position + size, [self._gathered([row])] if row is not None else []
        resumes = find_record(self._read, position + 1, self._files.capacity_end)
        if resumes is None:
            segment_end = position - position % self._files.segment_bytes + self._files.segment_bytes
            self.lost = (position, min(log_end, segment_end)) if position < log_end else None
            return None, []
        return resumes, self._damage(position, resumes, fault)

    def _damage_behind(self, position: int, wanted: LogRange) -> list[Rows]:
        """Damage at the place where the first record of the next range should begin."""
        if position < wanted.end or position % self._files.segment_bytes == 0 or self._judge(position)[2] is None:
            return []
        return self._irregular(position, wanted.log_end)[1]

    def _judge(self, position: int) -> tuple[int, bytes, str | None]:
        """What lies at a place: its size, its bytes (none for a blank), what is wrong with it if it is no record."""
        room = self._files.segment_bytes - position % self._files.segment_bytes
        head = self._read(position, RECORD_BYTES_MIN)
        size, magic = peek(head, 0) if len(head) >= BLANK_BYTES_MIN else (0, 0)
        if magic == BLANK_MAGIC and size == room:
            return size, b"", None
        if magic not in (MAGIC_V1, MAGIC_V2) or not RECORD_BYTES_MIN <= size <= min(room, RECORD_BYTES_MAX):
            return 0, b"", f"size {size} and magic {magic:#x} are no record's"
        data = self._read(position, size)
        record = parse_record(data, 0, len(data))
        return size, data, record if isinstance(record, str) else self._fault(data, position, record)

    def _fault(self, data: bytes, position: int, record: Record) -> str | None:
        if record.log_offset != position:
            return f"the record says it lies at {record.log_offset}"
        if not self._reading.checks:
            return None
        return record_fault(data, 0, record.size, record.body_start, record.body_end, record.body_crc)

    def _damage(self, start: int, end: int, fault: str) -> list[Rows]:
        """The rows of damage: the record's own fields too, where it is one record that is wrong."""
        self._refuse(start, end, fault)
        if not self._reading.keeps_damage:
            return []
        found = []
        for at in range(start, end, DAMAGE_BYTES_MAX):
            data = self._bytes(at, min(end, at + DAMAGE_BYTES_MAX))
            row: dict[str, Any] = {"commitLogOffset": at, "size": len(data), "body": data, "verdict": fault}
            record = parse_record(data, 0, len(data)) if len(data) >= RECORD_BYTES_MIN else ""
            if not isinstance(record, str) and at == start and record.size == end - start:
                row = self._fields(data, record) | row
            found.append(row)
        return [self._gathered(found)]

    def _refuse(self, start: int, end: int, fault: str) -> None:
        if self._reading.fails_on_damage and not self._reading.keeps_damage:
            raise StoreDamaged(
                f"{self._files.directory}: damage in [{start}, {end}): {fault}",
                hint="ask for the column verdict to get it as a row, or set failOnDataLoss to false to pass over it",
            )

    def _bytes(self, start: int, end: int) -> bytes:
        pieces = []
        while start < end:
            pieces.append(self._read(start, end - start))
            start += len(pieces[-1])
        return b"".join(pieces)

    def _single(self, data: bytes, position: int) -> dict[str, Any] | None:
        """The row of one record that is structurally sound; None if it is not what it seems, and is passed over."""
        record = parse_record(data, 0, len(data))
        assert not isinstance(record, str), "structure was checked"
        row = self._fields(data, record)
        wrong = None
        body = data[record.body_start : record.body_end]
        try:
            record.topic.decode()
            record.properties.decode()
            if self._reading.inflates and record.sys_flag & SysFlag.COMPRESSED:
                body = inflate(body, record.sys_flag)
        except UnicodeDecodeError:
            wrong = "topic or properties are not UTF-8"
        except ProtocolError as error:
            wrong = str(error)
        if wrong is None:
            return row | {"body": body}
        self._refuse(position, position + record.size, wrong)
        return row | {"body": data, "verdict": wrong} if self._reading.keeps_damage else None

    def _fields(self, data: bytes, record: Record) -> dict[str, Any]:
        """All fields of a record but its body; text that is no UTF-8 has its bad bytes replaced."""
        head = unpack_head(data, 0)
        properties = record.properties.decode("utf-8", "replace")
        return {
            "key": _named(record, b"KEYS"),
            "uniqueKey": _named(record, b"UNIQ_KEY"),
            "tags": _named(record, b"TAGS"),
            "topic": record.topic.decode("utf-8", "replace"),
            "queueId": record.queue_id,
            "queueOffset": record.queue_offset,
            "commitLogOffset": record.log_offset,
            "bornTimestamp": record.born_ms,
            "storeTimestamp": record.store_ms,
            "bornHost": decode_host(head[9]),
            "reconsumeTimes": head[12],
            "properties": decode_properties(properties) if self._reading.maps_properties else properties,
            "size": record.size,
            "flag": head[4],
            "sysFlag": record.sys_flag,
            "bodyCrc": head[2] & 0x7FFFFFFF,
            "storeHost": decode_host(head[11]),
            "preparedTransactionOffset": head[13],
        }

    def _gathered(self, rows: Sequence[dict[str, Any]]) -> Rows:
        """Rows as columns; each column is given the type Spark asks for where batches are made."""
        columns = {name: [row.get(name) for row in rows] for name in self._reading.columns}
        for name in ("bornTimestamp", "storeTimestamp"):
            if name in columns:
                columns[name] = [None if ms is None else microseconds(ms) for ms in columns[name]]
        offsets = np.array([row["commitLogOffset"] for row in rows], dtype=np.int64)
        return Rows(columns, offsets, [row.get("verdict") for row in rows])


def planned_rows(files: LogFiles, reading: Reading, ranges: Sequence[LogRange], lost: LostRange) -> Iterator[Rows]:
    """The rows of ranges that were planned a while ago, of the log as it is now.

    Args:
        lost: told what is not there any more (log offsets, and why), range by range; unless it raises, the others are
            read.
    Raises:
        StoreDamaged: there is damage, and the reading fails on it.
    """
    with LogFileReader(files) as read:
        reader = RangeReader(read, reading)
        for wanted in ranges:
            if wanted.start < files.start:
                lost(wanted.start, wanted.end, f"are gone: the log begins at {files.start}")
                continue
            if wanted.end > files.capacity_end:
                lost(wanted.start, wanted.end, SHORTER)
                continue
            try:
                yield from reader.rows(wanted)
            except OffsetGone:
                lost(reader.end, wanted.end, DELETED)
                continue
            if reader.lost is not None:
                lost(*reader.lost, SHORTER)


def lost_text(start: int, end: int, why: str) -> str:
    """For people: what is lost."""
    return f"log offsets [{start}, {end}) {why}"


def _named(record: Record, name: bytes) -> str | None:
    """The value of a property, None where it is absent or empty."""
    value = property_value(record.properties, name)
    return value.decode("utf-8", "replace") if value else None


class BatchMaker:
    """Makes record batches of one Arrow schema out of rows."""

    def __init__(self, files: LogFiles, schema: Any) -> None:
        """`schema` has names of MESSAGE and DETAIL."""
        self._files = files
        self._schema = schema
        self._bounds = [start for _, start in files.epochs]
        self._epochs = np.array([0, *(epoch for epoch, _ in files.epochs)], dtype=np.int64)

    def batch(self, rows: Rows) -> Any:
        """One batch."""
        count = len(rows.offsets)
        arrays = []
        for field in self._schema:
            if field.name == "brokerName":
                array = pa.repeat(pa.scalar(self._files.broker_name), count)
            elif field.name == "epoch":
                array = pa.array(self._epochs[np.searchsorted(self._bounds, rows.offsets, side="right")])
            elif field.name == "verdict":
                array = pa.array(rows.verdicts, type=pa.string()) if rows.verdicts else pa.nulls(count, pa.string())
            else:
                array = rows.columns[field.name]
            arrays.append(array if isinstance(array, pa.Array) else _typed(array, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _typed(values: Any, kind: Any) -> Any:
    if pa.types.is_map(kind):
        values = [None if value is None else list(value.items()) for value in values]
    return pa.array(values, type=kind)
