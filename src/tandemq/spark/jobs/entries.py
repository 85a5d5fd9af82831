"""Scan of a log for rebuild: the entries of consume queues and key index, written to files range by range.

    range ─► WORK/scan/<start>-<end>.entries    (topic, queue, queue offset, log offset, size, tags code)
          └► WORK/scan/<start>-<end>.keys       (topic, key, log offset, store time), in the order brokers enter them

Files appear atomically, so that an interrupted rebuild continues with the ranges that are missing.
Source: docs/internals/storage.md, "consume queue", "index".
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tandemq.codec.record.record import property_value
from tandemq.errors import OffsetGone
from tandemq.model.java_hash import cached_java_hash
from tandemq.model.message import TRANSACTION_MASK, SysFlag
from tandemq.model.topic import SCHEDULE_TOPIC
from tandemq.spark.jobs.tasks import Result
from tandemq.spark.sources.log.files import LogFiles
from tandemq.spark.sources.log.ranges import (
    REMOVED,
    BatchBuilder,
    DecodeOptions,
    LogRange,
    describe_loss,
    read_planned,
)

ENTRIES = pa.schema(
    {
        "topic": pa.string(),
        "queueId": pa.int32(),
        "queueOffset": pa.int64(),
        "logOffset": pa.int64(),
        "size": pa.int32(),
        "code": pa.int64(),
    }
)
KEYS = pa.schema({"topic": pa.string(), "key": pa.string(), "logOffset": pa.int64(), "storeMs": pa.int64()})
UNKNOWN_DELAY_MS = 1000
_PREPARED = int(SysFlag.TRANSACTION_PREPARED)
_ROLLBACK = int(SysFlag.TRANSACTION_ROLLBACK)
_SCAN = pa.schema(
    {
        "topic": pa.string(),
        "queueId": pa.int32(),
        "queueOffset": pa.int64(),
        "commitLogOffset": pa.int64(),
        "size": pa.int32(),
        "sysFlag": pa.int32(),
        "storeTimestamp": pa.timestamp("us", tz="UTC"),
        "tags": pa.string(),
        "key": pa.string(),
        "uniqueKey": pa.string(),
        "properties": pa.string(),
        "verdict": pa.string(),
    }
)


@dataclass(frozen=True, slots=True)
class Scan:
    """Function that scans one range and writes its entries below a directory."""

    files: LogFiles
    directory: str
    delays_ms: tuple[int, ...]
    index: bool

    def path(self, start: int, end: int, kind: str) -> Path:
        """Return the file of a range; `kind`: entries or keys."""
        return Path(self.directory) / f"{start:020d}-{end:020d}.{kind}"

    def __call__(self, wanted: LogRange) -> Result:
        """Scan one range; runs in a worker. Damage is skipped, as brokers do. Returns the number of rows by kind.

        Raises:
            OffsetGone: log offsets that existed when the rebuild began are gone.
        """
        reading = DecodeOptions(tuple(_SCAN.names), inflates=False, keeps_damage=True)
        maker = BatchBuilder(self.files, _SCAN)
        kinds: list[tuple[str, Any, Callable[[Any], Any]]] = [("entries", ENTRIES, QueueEntries(self.delays_ms))]
        if self.index:
            kinds.append(("keys", KEYS, index_keys))
        written = [_File(self.path(wanted.start, wanted.end, kind), schema, convert) for kind, schema, convert in kinds]
        for rows in read_planned(self.files, reading, [wanted], self._lost):
            whole = maker.batch(rows)
            verdict = whole.column("verdict")
            # A removed record keeps its queue entry; it has no tags and no keys.
            sound = whole.filter(pc.fill_null(pc.equal(verdict, REMOVED), fill_value=True))
            for file in written:
                file.add(sound)
        return {kind: file.close() for (kind, _, _), file in zip(kinds, written, strict=True)}

    def _lost(self, start: int, end: int, why: str) -> None:
        output = Path(self.directory).parent.parent
        raise OffsetGone(
            f"{self.files.directory}: {describe_loss(start, end, why)}",
            hint=f"the result would be incomplete: delete {output}, and rebuild from the present log",
        )


class _File:
    """A Parquet file of rows derived from records; it gets its name when it is complete."""

    def __init__(self, path: Path, schema: Any, convert: Callable[[Any], Any]) -> None:
        self._path = path
        self._part = path.with_name(f".{path.name}.{uuid4().hex}")
        self._schema = schema
        self._convert = convert
        self._writer = pq.ParquetWriter(self._part, schema, compression="zstd", compression_level=1)
        self._rows = 0

    def add(self, batch: Any) -> None:
        rows = self._convert(batch).cast(self._schema)
        self._writer.write_batch(rows)
        self._rows += rows.num_rows

    def close(self) -> int:
        """Finish the file; returns the number of rows."""
        self._writer.close()
        self._part.replace(self._path)
        return self._rows


class QueueEntries:
    """Function that derives queue entries from records; uncommitted transactions have none."""

    def __init__(self, delays_ms: tuple[int, ...]) -> None:
        """`delays_ms`: the broker's delay levels."""
        self._delays_ms = delays_ms

    def __call__(self, batch: Any) -> Any:
        """Return a batch of `ENTRIES`."""
        kind = batch.column("sysFlag").to_numpy() & TRANSACTION_MASK
        batch = batch.filter(pa.array((kind != _PREPARED) & (kind != _ROLLBACK)))
        words = batch.column("tags").dictionary_encode()
        hashes = np.array([*(cached_java_hash(word) for word in words.dictionary.to_pylist()), 0], dtype=np.int64)
        codes = hashes[words.indices.fill_null(len(words.dictionary)).to_numpy()]
        topics = batch.column("topic")
        for row in np.flatnonzero(pc.equal(topics, SCHEDULE_TOPIC).to_numpy(zero_copy_only=False)).tolist():
            codes[row] = self._deliver_ms(batch, row, int(codes[row]))
        names = ["queueId", "queueOffset", "commitLogOffset", "size"]
        columns = [topics, *(batch.column(name) for name in names), pa.array(codes)]
        return pa.RecordBatch.from_arrays(columns, ["topic", "queueId", "queueOffset", "logOffset", "size", "code"])

    def _deliver_ms(self, batch: Any, row: int, code: int) -> int:
        """Return the tags code of an entry on the delay topic: the delivery time in milliseconds."""
        level = property_value(batch.column("properties")[row].as_py().encode(), b"DELAY") or b""
        if not level.isdigit() or not int(level):
            return code
        delays = self._delays_ms
        delay = delays[min(int(level), len(delays)) - 1] if delays else UNKNOWN_DELAY_MS
        return int(batch.column("storeTimestamp").cast(pa.int64())[row].as_py() // 1000 + delay)


def index_keys(batch: Any) -> Any:
    """Return the indexed keys of records, a batch of `KEYS`, in the order in which brokers enter them."""
    kind = batch.column("sysFlag").to_numpy() & TRANSACTION_MASK
    batch = batch.filter(pa.array(kind != _ROLLBACK))
    times = (batch.column("storeTimestamp").cast(pa.int64()).to_numpy() // 1000).tolist()
    rows = zip(
        batch.column("topic").to_pylist(),
        batch.column("uniqueKey").to_pylist(),
        batch.column("key").to_pylist(),
        batch.column("commitLogOffset").to_pylist(),
        times,
        strict=True,
    )
    found = [
        (topic, key, log_offset, store_ms)
        for topic, unique, keys, log_offset, store_ms in rows
        for key in ([unique] if unique else []) + [word for word in (keys or "").split(" ") if word]
    ]
    kinds = (pa.string(), pa.string(), pa.int64(), pa.int64())
    columns = [pa.array([row[index] for row in found], type=kind) for index, kind in enumerate(kinds)]
    return pa.RecordBatch.from_arrays(columns, ["topic", "key", "logOffset", "storeMs"])
