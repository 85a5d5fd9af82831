"""Decoder of pulled records into Arrow batches with the requested columns.

    pull responses of a range ─► merged to some MiB ─► regular records, column by column ─► one batch, in queue order
                                                    └► all others, one by one           ┘

A corrupt record (wrong checksum, or a body that cannot be decompressed) becomes a row with its `verdict`, and with the
stored bytes as body, if the column `verdict` is requested. Otherwise it is an error. It never looks like a sound row.

Source: docs/guides/pipeline.md, "Columns"; docs/internals/storage.md, "record".
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import MapType, StructType

from tandemq.codec.record.record import Record, decode_message, parse_record, property_value, record_fault
from tandemq.errors import ProtocolError
from tandemq.model.message import SYSTEM_PROPERTIES, StoredMessage, SysFlag, decode_properties
from tandemq.spark.sources.cluster.entries import PulledEntries, contain_all, epochs_at
from tandemq.spark.sources.cluster.epochs import Epochs
from tandemq.spark.sources.cluster.reader import Pulled, PulledRecords
from tandemq.spark.sources.records import (
    TIMESTAMP,
    BatchTooLarge,
    Heads,
    InflationBudget,
    microseconds,
    read_all_heads,
    regular_columns,
)
from tandemq.spark.sources.schema import HEADERS, KAFKA_SOURCES

BATCH_BYTES = 4 << 20
"""Records from which one batch is made; a broker returns 1 MiB at a time, or 32 messages, too few for columns to
pay."""


@dataclass(frozen=True, slots=True)
class _Row:
    """One parsed record. `verdict`: None if it is sound."""

    pulled: PulledRecords
    epochs: Epochs
    record: Record
    message: StoredMessage
    verdict: str | None


def _property(name: bytes) -> Callable[[_Row], str | None]:
    def value(row: _Row) -> str | None:
        found = property_value(row.record.properties, name)
        return found.decode("utf-8", "replace") if found else None

    return value


_MAKERS: dict[str, tuple[Any, Callable[[_Row], Any]]] = {
    "key": (pa.string(), _property(b"KEYS")),
    "body": (pa.binary(), lambda row: row.message.body),
    "topic": (pa.string(), lambda row: row.message.topic),
    "tags": (pa.string(), _property(b"TAGS")),
    "brokerName": (pa.string(), lambda row: row.pulled.range.queue.broker_name),
    "queueId": (pa.int32(), lambda row: row.message.queue_id),
    "queueOffset": (pa.int64(), lambda row: row.message.queue_offset),
    "commitLogOffset": (pa.int64(), lambda row: row.message.log_offset),
    "bornTimestamp": (TIMESTAMP, lambda row: microseconds(row.message.born_ms)),
    "storeTimestamp": (TIMESTAMP, lambda row: microseconds(row.message.store_ms)),
    "bornHost": (pa.string(), lambda row: row.message.born_host),
    "reconsumeTimes": (pa.int32(), lambda row: row.message.reconsume_times),
    "properties": (pa.string(), lambda row: row.record.properties.decode("utf-8", "replace")),
    "epoch": (pa.int64(), lambda row: row.epochs.at(row.record.log_offset)),
    "verdict": (pa.string(), lambda row: row.verdict),
    "size": (pa.int32(), lambda row: row.record.size),
    "flag": (pa.int32(), lambda row: row.message.flag),
    "sysFlag": (pa.int32(), lambda row: row.record.sys_flag),
    "bodyCrc": (pa.int32(), lambda row: row.record.body_crc),
    "storeHost": (pa.string(), lambda row: row.message.store_host),
    "preparedTransactionOffset": (pa.int64(), lambda row: row.message.prepared_offset),
}
_OF_WHOLE = frozenset(("body", "properties", "size", "sysFlag", "bodyCrc", "verdict"))
"""Columns that messages without their bodies do not have; the properties have another CRC."""
_MAP = (pa.map_(pa.string(), pa.string()), lambda row: list(row.message.properties.items()))
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_KAFKA_KINDS = {"key": pa.binary(), "timestampType": pa.int32()}


def merge(pulled: Iterable[Pulled]) -> Iterator[Pulled]:
    """Join successive records of a range, up to about `BATCH_BYTES`; entries are many already."""
    held: list[PulledRecords] = []
    size = 0
    for part in pulled:
        if isinstance(part, PulledEntries):
            if held:
                yield _joined(held)
                held, size = [], 0
            yield part
            continue
        if held and (held[0].range != part.range or size >= BATCH_BYTES):
            yield _joined(held)
            held, size = [], 0
        held.append(part)
        size += len(part.data)
    if held:
        yield _joined(held)


def _joined(held: Sequence[PulledRecords]) -> PulledRecords:
    if len(held) == 1:
        return held[0]
    return PulledRecords(held[0].range, b"".join(part.data for part in held), sum(part.count for part in held))


def _halves(pulled: PulledRecords) -> tuple[PulledRecords, PulledRecords]:
    """Split records in the middle; there are two at least."""
    count, position = pulled.count // 2, 0
    for _ in range(count):
        position += int.from_bytes(pulled.data[position : position + 4])
    first = PulledRecords(pulled.range, pulled.data[:position], count)
    return first, PulledRecords(pulled.range, pulled.data[position:], pulled.count - count)


class Decoder:
    """Builds batches of one set of columns; serialized to tasks."""

    def __init__(self, schema: StructType, *, kafka: bool, inflates: bool = True) -> None:
        """`schema`: columns of `spark.sources.schema`; `inflates`: whether compressed bodies are decompressed."""
        self._inflates = inflates
        self._names = [field.name for field in schema]
        self._maps = [isinstance(field.dataType, MapType) for field in schema]
        self._kafka = kafka
        self._sources = [KAFKA_SOURCES.get(name, name) for name in self._names] if kafka else self._names
        self.keeps_verdicts = "verdict" in self._names

    @property
    def takes_entries(self) -> bool:
        """Whether entries of queues have all columns."""
        return contain_all(self._sources)

    @property
    def takes_heads(self) -> bool:
        """Whether messages without their bodies have all columns."""
        return not self.takes_entries and _OF_WHOLE.isdisjoint(self._sources)

    def batches(self, pulled: Pulled, epochs: Epochs) -> Iterator[Any]:
        """Decode records into one `pyarrow.RecordBatch`, or several if their decompressed bodies are large.

        Args:
            epochs: the epochs of the broker group's log.
        Raises:
            ProtocolError: a record is corrupt, and the column `verdict` is not requested.
        """
        if isinstance(pulled, PulledEntries):
            yield self._from(pulled.columns(self._sources, epochs.pairs), pulled.count)
            return
        try:
            batch = self.batch(pulled, epochs)
        except BatchTooLarge:
            for half in _halves(pulled):
                yield from self.batches(half, epochs)
        else:
            yield batch

    def batch(self, pulled: PulledRecords, epochs: Epochs) -> Any:
        """Decode records into one `pyarrow.RecordBatch`.

        Raises:
            BatchTooLarge: their decompressed bodies are too large together.
            ProtocolError: as `batches`.
        """
        heads, numbers, positions = read_all_heads(pulled.data)
        columns = self._regular(pulled, epochs, heads) if len(heads) else None
        if columns is None:
            columns = self._singles(pulled, epochs, positions)
        elif len(heads) < len(positions):
            others = sorted(set(range(len(positions))).difference(numbers))
            singles = self._singles(pulled, epochs, [positions[index] for index in others])
            order = pa.array(np.argsort(np.array([*numbers, *others])))
            columns = [pa.concat_arrays(pair).take(order) for pair in zip(columns, singles, strict=True)]
        return self._from(columns, len(positions))

    def _from(self, columns: list[Any], count: int) -> Any:
        if not columns:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * count, type=pa.struct([])))
        return pa.RecordBatch.from_arrays(columns, names=self._names)

    def _regular(self, pulled: PulledRecords, epochs: Epochs, heads: Heads) -> list[Any] | None:
        """Return the columns of regular records; None if they must be decoded one by one."""
        wanted = ["properties" if name == HEADERS else name for name in self._sources]
        made = regular_columns(pulled.data, heads, wanted, inflates=self._inflates)
        if made is None:
            return None
        columns = []
        for name, source, is_map in zip(self._names, wanted, self._maps, strict=True):
            if name == HEADERS:
                headers = [_headers(decode_properties(text)) for text in made[source].to_pylist()]
                columns.append(pa.array(headers, type=_HEADERS))
            elif is_map:
                maps = [list(decode_properties(text).items()) for text in made[source].to_pylist()]
                columns.append(pa.array(maps, type=_MAP[0]))
            elif source in made:
                is_cast = self._kafka and name in _KAFKA_KINDS
                columns.append(made[source].cast(_KAFKA_KINDS[name]) if is_cast else made[source])
            else:
                columns.append(_outside(name, pulled, epochs, heads))
        return columns

    def _singles(self, pulled: PulledRecords, epochs: Epochs, positions: Sequence[int]) -> list[Any]:
        """Return the columns of records at some positions, decoded one by one."""
        rows = []
        budget = InflationBudget()
        for position in positions:
            size = int.from_bytes(pulled.data[position : position + 4])
            row = self._row(pulled, epochs, position, position + size)
            if self._inflates and row.record.sys_flag & SysFlag.COMPRESSED:
                budget.take(len(row.message.body))
            rows.append(row)
        return [self._column(name, rows, is_map) for name, is_map in zip(self._names, self._maps, strict=True)]

    def _column(self, name: str, rows: Sequence[_Row], is_map: bool) -> Any:
        if name == HEADERS:
            return pa.array([_headers(row.message.properties) for row in rows], type=_HEADERS)
        if self._kafka:
            if name == "timestampType":
                return pa.array([0] * len(rows), type=pa.int32())
            kind, make = _MAKERS[KAFKA_SOURCES[name]]
            column = pa.array([make(row) for row in rows], type=kind)
            return column.cast(_KAFKA_KINDS[name]) if name in _KAFKA_KINDS else column
        kind, make = _MAP if is_map else _MAKERS[name]
        return pa.array([make(row) for row in rows], type=kind)

    def _row(self, pulled: PulledRecords, epochs: Epochs, start: int, stop: int) -> _Row:
        record = parse_record(pulled.data, start, stop)
        if isinstance(record, str):
            raise ProtocolError(f"{pulled.range.queue}: a response contains no valid record: {record}")
        fault = record_fault(pulled.data, start, record.size, record.body_start, record.body_end, record.body_crc)
        if fault is None:
            try:
                return _Row(
                    pulled, epochs, record, decode_message(pulled.data, start, stop, inflates=self._inflates), None
                )
            except ProtocolError as error:
                fault = str(error)
        if not self.keeps_verdicts:
            raise ProtocolError(
                f"{pulled.range.queue} offset {record.queue_offset}: {fault}",
                hint="details=true returns such a record with its verdict",
            )
        return _Row(pulled, epochs, record, _corrupt_message(pulled.data, start, record), fault)


def _headers(properties: Mapping[str, str]) -> list[dict[str, Any]] | None:
    """Return the properties that are not the system's; None if there are none, as in Spark's Kafka source."""
    own = [(name, value) for name, value in properties.items() if name not in SYSTEM_PROPERTIES]
    return [{"key": name, "value": value.encode()} for name, value in own] or None


def _outside(name: str, pulled: PulledRecords, epochs: Epochs, heads: Heads) -> Any:
    """Return a column of regular records that is no part of a record."""
    count = len(heads)
    if name == "brokerName":
        return pa.repeat(pa.scalar(pulled.range.queue.broker_name), count)
    if name == "epoch":
        return epochs_at(heads.fields["log_offset"].astype(np.int64), epochs.pairs)
    if name == "timestampType":
        return pa.array(np.zeros(count, dtype=np.int32))
    assert name == "verdict", name
    return pa.nulls(count, pa.string())


def _corrupt_message(data: bytes, start: int, record: Record) -> StoredMessage:
    """Return the readable fields of a corrupt record, with its bytes as body."""
    return StoredMessage(
        topic=record.topic.decode("utf-8", "replace"),
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        log_offset=record.log_offset,
        body=data[start : start + record.size],
        properties={},
        flag=0,
        sys_flag=record.sys_flag,
        born_ms=record.born_ms,
        born_host="",
        store_ms=record.store_ms,
        store_host="",
        reconsume_times=0,
        prepared_offset=0,
        size=record.size,
        offset_message_id="",
    )
