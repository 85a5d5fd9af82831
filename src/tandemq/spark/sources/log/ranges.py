"""Reader of one physical range of a log: batches of rows, damage included.

    |--- range ---|--- range ---|       a row belongs to the range in which its record begins; a range that begins
       rec|rec|rec|rec|rec|rec|         inside a record finds its first record by magic, log offset and checksum

Damage extends from the end of a sound record to the next sound record. It belongs to the range in which the record
before it begins; that range therefore checks whether its last record is followed by another. Bytes that are not sound
at the end of the log, with no sound record after them, are a torn tail and no row: a broker truncates them at start. If
the log extended beyond them when the ranges were planned, they are a loss. Ranges do not extend into gaps, and damage
ends at one.

Source: docs/internals/storage.md, "recovery"; docs/guides/pipeline.md, "Damage".
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

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
from tandemq.spark.sources.log.gaps import describe_gap
from tandemq.spark.sources.records import (
    BATCH_INFLATED_BYTES,
    BatchTooLarge,
    Heads,
    microseconds,
    read_heads,
    regular_columns,
)

REMOVED = "removed"
"""Verdict of a removed record (codec.record.removal): no damage, but no message either."""
WINDOW_BYTES = 8 << 20
RECORD_BYTES_MAX = 128 << 20
DAMAGE_BYTES_MAX = 4 << 20
"""Maximum damage per row; longer damage becomes several rows."""
RANGE_BYTES = 64 << 20
STEP_BYTES = 256 << 10
"""Bytes decoded column by column after a record that was decoded alone: more irregular ones may follow. Doubles with
each success."""


SHORTER = "no longer exist: the log is shorter"
DELETED = "are gone: their file was deleted during the read"
LossCallback = Callable[[int, int, str], None]
"""Called with start, end and reason of lost log offsets `[start, end)`. The reason completes "log offsets [0, 10)
…"."""


@dataclass(frozen=True, slots=True)
class LogRange:
    """Log offsets `[start, end)` within one file."""

    start: int
    end: int
    starts_at_record: bool
    """Whether a record begins at `start`."""
    checks_end: bool
    """Whether the next range does not start at a record, so that this one reports damage after its last record."""
    log_end: int
    """Lower bound of the log's end when the range was planned."""


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """Settings for decoding records into rows."""

    columns: tuple[str, ...]
    """Column names of MESSAGE and DETAIL."""
    checks: bool = True
    """Whether checksums are verified."""
    inflates: bool = True
    """Whether compressed bodies are decompressed; a lake keeps them as stored."""
    keeps_damage: bool = False
    """Whether damage becomes a row; otherwise it is skipped, or an error if `fails_on_damage`. Removed records become
    rows too, and are skipped otherwise."""
    fails_on_damage: bool = True
    maps_properties: bool = False


def split(files: LogFiles, start: int, end: int, range_bytes: int = RANGE_BYTES) -> list[LogRange]:
    """Split `[start, end)` of a log into ranges, leaving out its gaps; `start` is a record boundary."""
    ranges = []
    position = start
    while position < end:
        file_end = files.file_end(position)
        if file_end <= position:
            position += files.segment_bytes - position % files.segment_bytes
            continue
        stop = min(position + range_bytes, file_end, end)
        if file_end - stop < range_bytes // 4:
            stop = min(file_end, end)
        starts_at_record = position == start or position % files.segment_bytes == 0
        ranges.append(LogRange(position, stop, starts_at_record, checks_end=stop < min(end, file_end), log_end=end))
        position = stop
    return ranges


class _Inspection(NamedTuple):
    """Result of inspecting the bytes at one position."""

    size: int
    data: bytes = b""
    """Bytes of the record; empty for a blank."""
    fault: str | None = None
    """Reason why the bytes are not a sound record; None for a record or a blank."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows as columns by name (without brokerName, epoch and verdict), with their log offsets."""

    columns: dict[str, Any]
    offsets: Any
    verdicts: list[str | None] | None = None
    """None if all rows are sound."""


class LogRangeReader:
    """Reads ranges of one log, one after another."""

    def __init__(self, read: LogFileReader, reading: DecodeOptions) -> None:
        """`read` stays open; its owner closes it."""
        self._read = read
        self._files = read.files
        self._reading = reading
        self._buffer = bytearray(WINDOW_BYTES)
        self.end = 0
        """Log offset after the last record or damage returned."""
        self.lost: tuple[int, int] | None = None
        """Log offsets (start, end) of the last range without any sound record, though the log extended there when
        planned."""

    def rows(self, wanted: LogRange) -> Iterator[Rows]:
        """Yield all rows that begin in a range, by log offset.

        Raises:
            StoreDamaged: the range is damaged, and `fails_on_damage` is set.
            OffsetGone: retention has deleted the file.
        """
        position: int | None = wanted.start
        if not wanted.starts_at_record:
            position = find_record(self._read, wanted.start, wanted.end)
        self.end, self.lost = wanted.start, None
        base, size, step = wanted.start, 0, WINDOW_BYTES
        while position is not None and position < wanted.end:
            at = position - base
            if size - at < RECORD_BYTES_MIN:
                base, at = position, 0
                size = self._fill(position, wanted.end)
                if size < BLANK_BYTES_MIN:
                    self.lost = (position, wanted.end) if position + size < wanted.end else None
                    return
            stop = min(size, at + step)
            heads = read_heads(self._buffer, at, stop, base, checks=self._reading.checks)
            if heads is not None:
                position = self.end = base + int(heads.stops[-1])
                step = min(2 * step, WINDOW_BYTES)
                yield from self._regular(heads, base)
            elif at and peek(self._buffer, at)[0] > size - at:
                base, size = position, 0  # the window may cut the record off: start a new window at it
            else:
                position, rows = self._irregular(position, wanted.log_end)
                self.end = position if position is not None else self.end
                step = STEP_BYTES
                yield from rows
        if wanted.checks_end and position is not None:
            yield from self._damage_at_end(position, wanted)

    def _fill(self, position: int, end: int) -> int:
        """Read a window from a position on, up to the range's end plus one record head; returns its size."""
        wanted = max(end - position, RECORD_BYTES_MIN)
        return self._read.read_into(memoryview(self._buffer)[:wanted], position)

    def _regular(self, heads: Heads, base: int) -> Iterator[Rows]:
        reading = self._reading
        columns = None
        if not reading.maps_properties and not (heads.fields["sys_flag"] & int(SysFlag.REMOVED)).any():
            try:
                columns = regular_columns(self._buffer, heads, reading.columns, inflates=reading.inflates)
            except BatchTooLarge:
                middle = len(heads) // 2
                yield from self._regular(heads.first(middle), base)
                yield from self._regular(heads.of(slice(middle, None)), base)
                return
        if columns is not None:
            yield Rows(columns, heads.fields["log_offset"].astype(np.int64))
            return
        rows: list[dict[str, Any]] = []
        size = 0
        for start, stop in zip(heads.starts.tolist(), heads.stops.tolist(), strict=True):
            row = self._single(bytes(self._buffer[start:stop]), base + start)
            if row is None:
                continue
            size += len(row["body"])
            if rows and size > BATCH_INFLATED_BYTES:
                yield self._to_columns(rows)
                rows, size = [], len(row["body"])
            rows.append(row)
        yield self._to_columns(rows)

    def _irregular(self, position: int, log_end: int) -> tuple[int | None, list[Rows]]:
        """Read one record alone, a blank, or damage. Returns the next position (None at the end of the log) and the
        rows."""
        found = self._inspect(position)
        if found.fault is None:
            row = self._single(found.data, position) if found.data else None
            return position + found.size, [self._to_columns([row])] if row is not None else []
        resumes = find_record(self._read, position + 1, self._files.capacity_end)
        if resumes is None:
            segment_end = position - position % self._files.segment_bytes + self._files.segment_bytes
            self.lost = (position, min(log_end, segment_end)) if position < log_end else None
            return None, []
        end = min(resumes, self._files.gap_after(position))
        return end, self._damage(position, end, found.fault) if end > position else []

    def _damage_at_end(self, position: int, wanted: LogRange) -> list[Rows]:
        """Return damage at the position where the first record of the next range should begin."""
        if position < wanted.end or position % self._files.segment_bytes == 0 or self._inspect(position).fault is None:
            return []
        return self._irregular(position, wanted.log_end)[1]

    def _inspect(self, position: int) -> _Inspection:
        """Inspect the bytes at a position: a record, a blank, or damage."""
        room = self._files.segment_bytes - position % self._files.segment_bytes
        head = self._read(position, RECORD_BYTES_MIN)
        size, magic = peek(head, 0) if len(head) >= BLANK_BYTES_MIN else (0, 0)
        if magic == BLANK_MAGIC and size == room:
            return _Inspection(size)
        if magic not in (MAGIC_V1, MAGIC_V2) or not RECORD_BYTES_MIN <= size <= min(room, RECORD_BYTES_MAX):
            return _Inspection(0, fault=f"size {size} and magic {magic:#x} are not those of a record")
        data = self._read(position, size)
        record = parse_record(data, 0, len(data))
        return _Inspection(size, data, record if isinstance(record, str) else self._fault(data, position, record))

    def _fault(self, data: bytes, position: int, record: Record) -> str | None:
        if record.log_offset != position:
            return f"the record states log offset {record.log_offset}"
        if not self._reading.checks:
            return None
        return record_fault(data, 0, record.size, record.body_start, record.body_end, record.body_crc)

    def _damage(self, start: int, end: int, fault: str) -> list[Rows]:
        """Return the rows of damage, with the fields of the record if exactly one record is corrupt."""
        self._fail_on_damage(start, end, fault)
        if not self._reading.keeps_damage:
            return []
        found = []
        for position in range(start, end, DAMAGE_BYTES_MAX):
            data = self._bytes(position, min(end, position + DAMAGE_BYTES_MAX))
            row: dict[str, Any] = {"commitLogOffset": position, "size": len(data), "body": data, "verdict": fault}
            record = parse_record(data, 0, len(data)) if len(data) >= RECORD_BYTES_MIN else ""
            if not isinstance(record, str) and position == start and record.size == end - start:
                row = self._fields(data, record) | row
            found.append(row)
        return [self._to_columns(found)]

    def _fail_on_damage(self, start: int, end: int, fault: str) -> None:
        if self._reading.fails_on_damage and not self._reading.keeps_damage:
            raise StoreDamaged(
                f"{self._files.directory}: damage in [{start}, {end}): {fault}",
                hint="select the column verdict to get it as a row, or set failOnDataLoss to false to skip it",
            )

    def _bytes(self, start: int, end: int) -> bytes:
        pieces = []
        while start < end and (piece := self._read(start, end - start)):  # nothing, if the file was cut off meanwhile
            pieces.append(piece)
            start += len(piece)
        return b"".join(pieces)

    def _single(self, data: bytes, position: int) -> dict[str, Any] | None:
        """Return the row of a structurally sound record; None if it is skipped: it was removed, or its text or body is
        unreadable."""
        record = parse_record(data, 0, len(data))
        assert not isinstance(record, str), "its structure has been checked"
        row = self._fields(data, record)
        if record.sys_flag & SysFlag.REMOVED:
            return row | {"body": data, "verdict": REMOVED} if self._reading.keeps_damage else None
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
        self._fail_on_damage(position, position + record.size, wrong)
        return row | {"body": data, "verdict": wrong} if self._reading.keeps_damage else None

    def _fields(self, data: bytes, record: Record) -> dict[str, Any]:
        """Return all fields of a record but its body; invalid UTF-8 is replaced."""
        head = unpack_head(data, 0)
        properties = record.properties.decode("utf-8", "replace")
        return {
            "key": _property(record, b"KEYS"),
            "uniqueKey": _property(record, b"UNIQ_KEY"),
            "tags": _property(record, b"TAGS"),
            "topic": record.topic.decode("utf-8", "replace"),
            "queueId": record.queue_id,
            "queueOffset": record.queue_offset,
            "commitLogOffset": record.log_offset,
            "bornTimestamp": record.born_ms,
            "storeTimestamp": record.store_ms,
            "bornHost": decode_host(head.born_host),
            "reconsumeTimes": head.reconsume_times,
            "properties": decode_properties(properties) if self._reading.maps_properties else properties,
            "size": record.size,
            "flag": head.flag,
            "sysFlag": record.sys_flag,
            "bodyCrc": head.body_crc & 0x7FFFFFFF,
            "storeHost": decode_host(head.store_host),
            "preparedTransactionOffset": head.prepared_offset,
        }

    def _to_columns(self, rows: Sequence[dict[str, Any]]) -> Rows:
        """Convert rows to columns; `BatchBuilder` converts each column to its type."""
        columns = {name: [row.get(name) for row in rows] for name in self._reading.columns}
        for name in ("bornTimestamp", "storeTimestamp"):
            if name in columns:
                columns[name] = [None if ms is None else microseconds(ms) for ms in columns[name]]
        offsets = np.array([row["commitLogOffset"] for row in rows], dtype=np.int64)
        return Rows(columns, offsets, [row.get("verdict") for row in rows])


def read_planned(
    files: LogFiles, reading: DecodeOptions, ranges: Sequence[LogRange], lost: LossCallback
) -> Iterator[Rows]:
    """Yield the rows of ranges planned earlier, as the log is now.

    Args:
        lost: called for log offsets that are gone by now, range by range; if it does not raise, reading continues with
            the next range.
    Raises:
        StoreDamaged: a range is damaged, and `reading.fails_on_damage` is set.
    """
    with LogFileReader(files) as read:
        reader = LogRangeReader(read, reading)
        for wanted in ranges:
            if wanted.start < files.start:
                lost(wanted.start, wanted.end, f"are gone: the log begins at {files.start}")
                continue
            if wanted.end > files.capacity_end:
                lost(wanted.start, wanted.end, SHORTER)
                continue
            present = files.file_end(wanted.start)
            rest = range(max(wanted.start, present), wanted.end)
            if rest:
                lost(rest.start, rest.stop, describe_gap(files, rest.start, rest.stop))
                if rest.start == wanted.start:
                    continue
                wanted = replace(wanted, end=present, checks_end=False)
            try:
                yield from reader.rows(wanted)
            except OffsetGone:
                lost(reader.end, wanted.end, DELETED)
                continue
            if reader.lost is not None:
                lost(*reader.lost, SHORTER)


def describe_loss(start: int, end: int, why: str) -> str:
    """Return a message about lost log offsets."""
    return f"log offsets [{start}, {end}) {why}"


def _property(record: Record, name: bytes) -> str | None:
    """Return the value of a property; None if it is absent or empty."""
    value = property_value(record.properties, name)
    return value.decode("utf-8", "replace") if value else None


class BatchBuilder:
    """Builds Arrow record batches of one schema from rows."""

    def __init__(self, files: LogFiles, schema: Any) -> None:
        """`schema`: columns of MESSAGE and DETAIL."""
        self._files = files
        self._schema = schema
        self._bounds = [start for _, start in files.epochs]
        self._epochs = np.array([0, *(epoch for epoch, _ in files.epochs)], dtype=np.int64)

    def batch(self, rows: Rows) -> Any:
        """Build one batch."""
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
