"""Rebuild: consume queues and key index made anew from the log, the same as the broker's.

    scan     range ─► (topic, queue, queue offset, log offset, size, tags code)
    shuffle  by queue, in the log's order
    write    storage.ConsumeQueue, in a directory of the task's own, moved into place when whole
    index    keys in the log's order, through storage.KeyIndex on the driver

Queues equal the broker's byte for byte where the log reaches back to its start; where it does not, they begin with the
first message that is still there. Source: docs/storage.md, "consume queue", "index"; docs/pipeline.md, "Rebuild".
"""

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from tandemq.codec.record import property_value
from tandemq.errors import ConfigError
from tandemq.model.hashing import cached_java_hash
from tandemq.model.message import TRANSACTION_MASK, SysFlag
from tandemq.model.topic import SCHEDULE_TOPIC, topic_name_error
from tandemq.real.disk import RealDisk
from tandemq.spark.logfiles import LogFiles, LogReader, log_end, open_log
from tandemq.spark.logranges import RANGE_BYTES, BatchMaker, LogRange, RangeReader, Reading, split
from tandemq.storage.consumequeue import ConsumeQueue
from tandemq.storage.index import KeyIndex
from tandemq.storage.seglog import FileCache

ENTRY = np.dtype([("log_offset", ">i8"), ("size", ">i4"), ("code", ">i8")])
ENTRIES = "topic string, queueId int, queueOffset long, logOffset long, size int, code long"
KEYS = "topic string, key string, logOffset long, storeMs long"
COUNTS = "topic string, queueId int, entries long"
FLUSH_ENTRIES = 50_000
PENDING_KEYS = 8192
UNKNOWN_DELAY_MS = 1000
_PREPARED = int(SysFlag.TRANSACTION_PREPARED)
_ROLLBACK = int(SysFlag.TRANSACTION_ROLLBACK)
_SCAN = pa.schema(
    {"topic": pa.string(), "queueId": pa.int32(), "queueOffset": pa.int64(), "commitLogOffset": pa.int64(),
     "size": pa.int32(), "sysFlag": pa.int32(), "storeTimestamp": pa.timestamp("us", tz="UTC"), "tags": pa.string(),
     "key": pa.string(), "uniqueKey": pa.string(), "properties": pa.string(), "verdict": pa.string()}
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildOptions:
    """What to rebuild, and the broker's settings that decide the form of the files."""

    store: Path
    output: Path
    queue_file_bytes: int = 6_000_000
    index: bool = True
    slots: int = 5_000_000
    entries: int = 20_000_000
    delays_ms: tuple[int, ...] = ()
    range_bytes: int = RANGE_BYTES


@dataclass(slots=True)
class Rebuilt:
    """What was made."""

    queues: int = 0
    entries: int = 0
    keys: int = 0
    index_files: int = 0


def rebuild(spark: SparkSession, options: RebuildOptions, progress: Callable[[str], None] = lambda _: None) -> Rebuilt:
    """Make `consumequeue/` and `index/` in `options.output`.

    Raises:
        ConfigError: the output holds files already. What `open_log` and reading raise; damage is passed over, as
            brokers do.
    """
    files = open_log(options.store)
    output = options.output.absolute()
    if output.exists() and any(output.iterdir()):
        raise ConfigError(f"{output} is not empty", hint="give a new directory, then move what is in it into the store")
    output.mkdir(parents=True, exist_ok=True)
    with LogReader(files) as read:
        ranges = split(files, files.start, log_end(read), options.range_bytes)
    done = Rebuilt()
    progress("consume queues")
    entries = _scanned(spark, files, ranges, ENTRIES, _EntriesOf(options.delays_ms))
    ordered = entries.repartition("topic", "queueId").sortWithinPartitions("topic", "queueId", "logOffset")
    writer = _QueueWriter(str(output), options.queue_file_bytes)
    for row in ordered.mapInArrow(writer, COUNTS).collect():
        done.queues += 1
        done.entries += row.entries
    shutil.rmtree(output / ".work", ignore_errors=True)
    if options.index:
        progress("key index")
        _rebuild_index(_scanned(spark, files, ranges, KEYS, _keys_of), options, output, done)
    return done


def _scanned(
    spark: SparkSession, files: LogFiles, ranges: list[LogRange], schema: str, made: Callable[[Any], Any]
) -> DataFrame:
    """Rows made of the records of all ranges; partitions are ranges, in order."""

    def scan(batches: Iterable[Any]) -> Iterator[Any]:
        reading = Reading(tuple(_SCAN.names), inflates=False, keeps_damage=True)
        maker = BatchMaker(files, _SCAN)
        with LogReader(files) as read:
            reader = RangeReader(read, reading)
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    for rows in reader.rows(ranges[number]):
                        whole = maker.batch(rows)
                        yield made(whole.filter(pc.is_null(whole.column("verdict"))))

    return spark.range(0, len(ranges), 1, max(1, len(ranges))).mapInArrow(scan, schema)


class _EntriesOf:
    """Queue entries of records; transactions that are not committed have none."""

    def __init__(self, delays_ms: tuple[int, ...]) -> None:
        self._delays_ms = delays_ms

    def __call__(self, batch: Any) -> Any:
        kind = batch.column("sysFlag").to_numpy() & TRANSACTION_MASK
        batch = batch.filter(pa.array((kind != _PREPARED) & (kind != _ROLLBACK)))
        words = batch.column("tags").dictionary_encode()
        hashes = np.array([*(cached_java_hash(word) for word in words.dictionary.to_pylist()), 0], dtype=np.int64)
        codes = hashes[words.indices.fill_null(len(words.dictionary)).to_numpy()]
        topics = batch.column("topic")
        for at in np.flatnonzero(pc.equal(topics, SCHEDULE_TOPIC).to_numpy(zero_copy_only=False)).tolist():
            codes[at] = self._deliver_ms(batch, at, int(codes[at]))
        names = ["queueId", "queueOffset", "commitLogOffset", "size"]
        columns = [topics, *(batch.column(name) for name in names), pa.array(codes)]
        return pa.RecordBatch.from_arrays(columns, ["topic", "queueId", "queueOffset", "logOffset", "size", "code"])

    def _deliver_ms(self, batch: Any, at: int, code: int) -> int:
        """The code of an entry on the delay topic: when the message is due."""
        level = property_value(batch.column("properties")[at].as_py().encode(), b"DELAY") or b""
        if not level.isdigit() or not int(level):
            return code
        delays = self._delays_ms
        delay = delays[min(int(level), len(delays)) - 1] if delays else UNKNOWN_DELAY_MS
        return int(batch.column("storeTimestamp").cast(pa.int64())[at].as_py() // 1000 + delay)


def _keys_of(batch: Any) -> Any:
    """The keys that are indexed of each record, in the order brokers enter them."""
    kind = batch.column("sysFlag").to_numpy() & TRANSACTION_MASK
    batch = batch.filter(pa.array(kind != _ROLLBACK))
    times = (batch.column("storeTimestamp").cast(pa.int64()).to_numpy() // 1000).tolist()
    rows = zip(
        batch.column("topic").to_pylist(), batch.column("uniqueKey").to_pylist(), batch.column("key").to_pylist(),
        batch.column("commitLogOffset").to_pylist(), times, strict=True,
    )  # fmt: skip
    found = [
        (topic, key, log_offset, store_ms)
        for topic, unique, keys, log_offset, store_ms in rows
        for key in ([unique] if unique else []) + [one for one in (keys or "").split(" ") if one]
    ]
    kinds = (pa.string(), pa.string(), pa.int64(), pa.int64())
    columns = [pa.array([row[at] for row in found], type=kind) for at, kind in enumerate(kinds)]
    return pa.RecordBatch.from_arrays(columns, ["topic", "key", "logOffset", "storeMs"])


class _QueueWriter:
    """Writes the queues of one partition; a task that is repeated replaces what it wrote before."""

    def __init__(self, output: str, file_bytes: int) -> None:
        self._output = output
        self._file_bytes = file_bytes

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        output = Path(self._output)
        work = output / ".work" / uuid4().hex
        disk = RealDisk(work)
        queue: ConsumeQueue | None = None
        for batch in batches:
            for topic, queue_id, rows in _runs(batch):
                if topic_name_error(topic) is not None or queue_id < 0:
                    continue
                if queue is None or (queue.topic, queue.queue_id) != (topic, queue_id):
                    if queue is not None:
                        yield _finished(queue, work, output)
                    queue = ConsumeQueue(disk, FileCache(disk, files_max=4), topic, queue_id, self._file_bytes)
                _enter(queue, rows)
        if queue is not None:
            yield _finished(queue, work, output)
        shutil.rmtree(work)


def _runs(batch: Any) -> Iterator[tuple[str, int, Any]]:
    """The rows of a sorted batch, queue by queue."""
    if not batch.num_rows:
        return
    topics, ids = batch.column(0).dictionary_encode(), batch.column(1).to_numpy()
    places = topics.indices.to_numpy()
    bounds = np.flatnonzero((np.diff(places) != 0) | (np.diff(ids) != 0)) + 1
    for start, stop in zip([0, *bounds.tolist()], [*bounds.tolist(), len(ids)], strict=True):
        yield topics.dictionary[int(places[start])].as_py(), int(ids[start]), batch.slice(start, stop - start)


def _enter(queue: ConsumeQueue, rows: Any) -> None:
    """Entries that continue the queue go in together, others one by one, as in a broker that starts."""
    offsets = rows.column(2).to_numpy()
    entries = np.empty(len(offsets), dtype=ENTRY)
    for name, at in (("log_offset", 3), ("size", 4), ("code", 5)):
        entries[name] = rows.column(at).to_numpy()
    follows = int(offsets[0]) == queue.next_offset and bool((np.diff(offsets) == 1).all())
    if follows and queue.stage_packed(int(offsets[0]), entries.tobytes()):
        queue.enter_staged()
    else:
        for queue_offset, entry in zip(offsets.tolist(), entries.tolist(), strict=True):
            queue.enter(queue_offset, *entry)
    if queue.max_offset - queue.written_entries > FLUSH_ENTRIES:
        queue.flush()


def _finished(queue: ConsumeQueue, work: Path, output: Path) -> Any:
    """Write a queue out, move it to its place, and tell how many entries it has."""
    queue.flush()
    place = output / "consumequeue" / queue.topic / str(queue.queue_id)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(place, ignore_errors=True)
    (work / "consumequeue" / queue.topic / str(queue.queue_id)).rename(place)
    told = [[queue.topic], [queue.queue_id], [queue.max_offset - queue.min_offset]]
    columns = [pa.array(one, type=kind) for one, kind in zip(told, (pa.string(), pa.int32(), pa.int64()), strict=True)]
    return pa.RecordBatch.from_arrays(columns, ["topic", "queueId", "entries"])


def _rebuild_index(keys: DataFrame, options: RebuildOptions, output: Path, done: Rebuilt) -> None:
    index = KeyIndex(RealDisk(output), options.slots, options.entries)
    for topic, key, log_offset, store_ms in keys.toLocalIterator(prefetchPartitions=True):
        index.pending.append((topic, key.encode(), log_offset, store_ms))
        done.keys += 1
        if len(index.pending) >= PENDING_KEYS:
            index.absorb()
    index.absorb()
    done.index_files = len(index.files)
    index.close()
