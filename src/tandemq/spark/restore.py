"""Restore: from a lake back to commit log files, byte for byte, so that a fresh slave starts with the whole history.

    lake ─► shuffle by file of the log, in order ─► records put together from their columns, checked ─► file, moved into
    place when whole

Everything a record consists of is in the lake, what is damaged included. The blank that ends a file is made anew: what
follows its eight bytes is zero. A gap in what the lake holds is refused: a log has none.

Source: docs/storage.md, "record"; docs/pipeline.md, "Restore".
"""

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from tandemq.codec.entries import BLANK, BLANK_MAGIC
from tandemq.codec.record import encode_host, join_record, parse_record, record_fault
from tandemq.errors import ConfigError, StoreDamaged
from tandemq.real.disk import RealDisk
from tandemq.spark.lake import DeltaLake
from tandemq.storage.epochs import save_epochs
from tandemq.storage.seglog import NAME_DIGITS

FILES = "start long, records long, end long"
FIELDS = (
    "commitLogOffset", "verdict", "size", "body", "topic", "properties", "queueId", "flag", "queueOffset", "sysFlag",
    "bornHost", "storeHost", "reconsumeTimes", "preparedTransactionOffset", "bodyCrc",
)  # fmt: skip


@dataclass(slots=True)
class Restored:
    """What was written: `[start, end)` of the log."""

    start: int
    end: int
    records: int
    files: int


def restore(
    spark: SparkSession, lake: Path, store: Path, *, segment_bytes: int, broker_name: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Restored:  # fmt: skip
    """Write the log of a broker group into the new store directory `store`.

    Args:
        segment_bytes: the broker's mappedFileSizeCommitLog.
        broker_name: which of the lake's groups; not needed if it holds one only.
    Raises:
        ConfigError: `store` holds files, the lake is empty, or holds several groups or another one.
        StoreDamaged: the lake lacks part of the log, or what it holds does not make the record it was.
    """
    store = store.absolute()
    if store.exists() and any(store.iterdir()):
        raise ConfigError(f"{store} is not empty", hint="give a new directory for the store")
    files = DeltaLake(lake).data_files()
    if not files:
        raise ConfigError(f"{lake} holds no messages yet", hint="tandemq spark archive fills it")
    frame = spark.read.parquet(*files)
    name = _chosen(sorted(row[0] for row in frame.select("brokerName").distinct().collect()), broker_name)
    frame = frame.where(fn.col("brokerName") == name)
    (store / "commitlog").mkdir(parents=True, exist_ok=True)
    progress(f"the log of {name}")
    done = _write(frame, store, segment_bytes)
    shutil.rmtree(store / ".work", ignore_errors=True)
    generations = frame.where("epoch > 0").groupBy("epoch").agg(fn.min("commitLogOffset").alias("start")).collect()
    if generations:
        save_epochs(RealDisk(store), sorted((row.epoch, row.start) for row in generations))
    return done


def _chosen(held: list[str], wanted: str | None) -> str:
    if wanted is None and len(held) == 1:
        return held[0]
    if wanted not in held:
        what = "no broker name is given" if wanted is None else f"the lake holds nothing of {wanted!r}"
        raise ConfigError(f"{what}; it holds {', '.join(held)}", hint="choose one with --broker-name")
    return wanted


def _write(frame: DataFrame, store: Path, segment_bytes: int) -> Restored:
    bounds = frame.agg(fn.min("commitLogOffset").alias("start"), fn.max("commitLogOffset").alias("last")).collect()[0]
    if bounds.start % segment_bytes:
        raise StoreDamaged(
            f"the lake begins at log offset {bounds.start}, where no file of {segment_bytes} bytes begins",
            hint="give the broker's mappedFileSizeCommitLog; a log can only be restored from the beginning of a file",
        )
    segment = fn.floor(fn.col("commitLogOffset") / segment_bytes)
    columns: list[Any] = [
        *FIELDS, fn.unix_millis("bornTimestamp").alias("bornMs"), fn.unix_millis("storeTimestamp").alias("storeMs")
    ]  # fmt: skip
    count = (bounds.last - bounds.start) // segment_bytes + 1
    ordered = (
        frame.select([*columns, segment.alias("segment")]).repartition(int(count), "segment")
        .sortWithinPartitions("segment", "commitLogOffset")
    )  # fmt: skip
    writer = _SegmentWriter(str(store), segment_bytes, bounds.last // segment_bytes)
    rows = sorted(ordered.mapInArrow(writer, FILES).collect(), key=lambda row: int(row.start))
    for before, row in zip(rows, rows[1:], strict=False):
        if row.start != before.start + segment_bytes:
            raise StoreDamaged(f"the lake lacks the log from {before.start + segment_bytes} to {row.start}")
    return Restored(rows[0].start, rows[-1].end, sum(row.records for row in rows), len(rows))


class _SegmentWriter:
    """Writes the files of one partition; a task that is repeated replaces what it wrote before."""

    def __init__(self, store: str, segment_bytes: int, last: int) -> None:
        self._store = store
        self._bytes = segment_bytes
        self._last = last

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        work = Path(self._store) / ".work" / uuid4().hex
        work.mkdir(parents=True)
        open_file: _Segment | None = None
        for batch in batches:
            for row in batch.to_pylist():
                start = row["segment"] * self._bytes
                if open_file is None or open_file.start != start:
                    if open_file is not None:
                        yield self._finished(open_file)
                    open_file = _Segment(work / f"{start:0{NAME_DIGITS}d}", start, self._bytes)
                open_file.add(row)
        if open_file is not None:
            yield self._finished(open_file)
        shutil.rmtree(work)

    def _finished(self, segment: "_Segment") -> Any:
        segment.close(is_last=segment.start // self._bytes == self._last)
        segment.path.replace(Path(self._store) / "commitlog" / segment.path.name)
        told = {"start": [segment.start], "records": [segment.records], "end": [segment.end]}
        return pa.RecordBatch.from_pydict(told, pa.schema(dict.fromkeys(told, pa.int64())))


class _Segment:
    """One file of the log, being written."""

    def __init__(self, path: Path, start: int, size: int) -> None:
        self.path = path
        self.start = self.end = start
        self.records = 0
        self._size = size
        self._file = open(path, "wb")  # noqa: SIM115  # `close` closes it
        self._file.truncate(size)

    def add(self, row: dict[str, Any]) -> None:
        at = row["commitLogOffset"]
        if at != self.end:
            raise StoreDamaged(f"the lake lacks the log from {self.end} to {at}")
        raw = row["body"] if row["verdict"] is not None else _record(row)
        self._file.write(raw)
        self.end += len(raw)
        self.records += row["verdict"] is None

    def close(self, *, is_last: bool) -> None:
        room = self.start + self._size - self.end
        if not is_last and room:
            self._file.write(BLANK.pack(room, BLANK_MAGIC))
        self._file.close()


def _record(row: dict[str, Any]) -> bytes:
    """The record of a row.

    Raises:
        StoreDamaged: it is not the one that was archived.
    """
    raw = join_record(
        topic=row["topic"].encode(), body=row["body"], properties=row["properties"].encode(), queue_id=row["queueId"],
        flag=row["flag"], queue_offset=row["queueOffset"], log_offset=row["commitLogOffset"], sys_flag=row["sysFlag"],
        born_ms=row["bornMs"], born_host=_host(row["bornHost"]), store_ms=row["storeMs"],
        store_host=_host(row["storeHost"]), reconsume_times=row["reconsumeTimes"],
        prepared_offset=row["preparedTransactionOffset"], body_crc=row["bodyCrc"],
    )  # fmt: skip
    record = parse_record(raw, 0, len(raw))
    wrong = record if isinstance(record, str) else record_fault(
        raw, 0, record.size, record.body_start, record.body_end, record.body_crc
    )  # fmt: skip
    if wrong is not None or len(raw) != row["size"]:
        what = wrong or "another size"
        raise StoreDamaged(
            f"the row at log offset {row['commitLogOffset']} does not make the record it was: {what}",
            hint="the lake was changed by others, or its files are damaged",
        )
    return raw


@lru_cache(maxsize=4096)
def _host(text: str) -> bytes:
    """The bytes of "ip:port"."""
    address, _, port = text.rpartition(":")
    return encode_host(ip_address(address.strip("[]")).packed, int(port))
