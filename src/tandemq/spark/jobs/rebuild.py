"""Rebuild: consume queues and key index from the log, equal to the broker's.

    OUTPUT/.rebuild/job      parameters of the rebuild; the same command resumes it
    log      with `allows_loss`: the log is copied into OUTPUT (`spark.jobs.salvage`), and the copy is processed
    scan     range ─► (topic, queue, queue offset, log offset, size, tags code) and keys, in files of the range
    shuffle  by queue, in log order
    write    storage.ConsumeQueue, in a directory of the task, moved into place when complete, then recorded
    index    keys in log order, through storage.KeyIndex on the driver

An interrupted rebuild resumes: scanned ranges and finished queues are not processed again. Queues equal the broker's
byte for byte if the log still has its start; otherwise they begin with the first message that still exists. Queue
offsets without a message between others become holes. Source: docs/internals/storage.md, "consume queue", "index";
docs/guides/pipeline.md, "Rebuild".
"""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tandemq.engine import KEY_ROW, key_hash
from tandemq.errors import ConfigError, OffsetGone
from tandemq.model.topic import topic_name_error
from tandemq.real.disk import RealDisk
from tandemq.spark.jobs.entries import Scan
from tandemq.spark.jobs.restored_config import ConfigWriter, RestoredConfig, RestoredQueue
from tandemq.spark.jobs.salvage import MADE, salvage
from tandemq.spark.jobs.saved_config import SavedConfig, config_of_files
from tandemq.spark.jobs.tasks import LOST, ProgressCallback, RangeJob, Result, gaps_lost, no_progress, run_tasks
from tandemq.spark.runtime.local_paths import local_path
from tandemq.spark.runtime.location import Place
from tandemq.spark.sources.log.files import LogFiles, open_log
from tandemq.spark.sources.log.gaps import Gap, gaps_between, log_bounds
from tandemq.spark.sources.log.ranges import RANGE_BYTES, LogRange, describe_loss, split
from tandemq.storage.consume_queue import ConsumeQueue, QueueFiles
from tandemq.storage.key_index import KeyIndex

ENTRY = np.dtype([("log_offset", ">i8"), ("size", ">i4"), ("code", ">i8")])
ENTRIES = "topic string, queueId int, queueOffset long, logOffset long, size int, code long"
COUNTS = "topic string, queueId int, entries long"
WORK = ".rebuild"
CONFIG = "config"
FLUSH_ENTRIES = 50_000
PENDING_KEYS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildOptions:
    """Options of a rebuild, with the broker's settings that determine the files."""

    store: Place
    """Store directory, or directory of log files, also at a URL."""
    output: Path
    queue_file_bytes: int = 6_000_000
    index: bool = True
    slots: int = 5_000_000
    entries: int = 20_000_000
    delays_ms: tuple[int, ...] = ()
    range_bytes: int = RANGE_BYTES
    allows_loss: bool = False
    """Whether missing bytes of the log are accepted; the output is then a store with a copy of the log."""
    config: SavedConfig | None = field(default=None, repr=False)
    """With `allows_loss`: configuration of a live broker; by default that of the store's files, if it has them."""


@dataclass(slots=True)
class RebuildResult:
    """Result of a rebuild."""

    queues: int = 0
    entries: int = 0
    keys: int = 0
    index_files: int = 0
    lost: list[Result] = field(default_factory=list)
    """start, end, why: log offsets that are missing."""
    holes: list[Result] = field(default_factory=list)
    """topic, queueId, start, end: queue offsets without a message, between others, because of missing bytes or
    damage."""
    config: RestoredConfig | None = None
    """With `allows_loss`: the configuration of the output."""


def rebuild(
    spark: SparkSession,
    options: RebuildOptions,
    phase: Callable[[str], None] = lambda _: None,
    progress: ProgressCallback = no_progress,
) -> RebuildResult:
    """Build `consumequeue/` and `index/` in `options.output`, or resume an interrupted rebuild. Damage is skipped, as
    brokers do.

    Args:
        phase: called at the start of each phase: "log" (with `allows_loss`), "scan", "consume queues", "key index".
        progress: called with the progress of the copy, then of the scan.
    Raises:
        ConfigError: the output contains other files, or another unfinished rebuild. Also as `open_log` and `run_tasks`.
        OffsetGone: files of the log are missing, and `allows_loss` is not set, or log offsets are gone since the
            rebuild began; nothing is put in place.
    """
    output = local_path(options.output, "the output").absolute()
    files = open_log(options.store)
    work = output / WORK
    lost: list[Gap] = []
    saved: SavedConfig | None = None
    if options.allows_loss:
        saved = options.config or config_of_files(files.store)
        phase("log")
        lost = salvage(spark, files, output, work, progress)
        files = open_log(output)
    end = _start_or_resume(files, options, output)
    scan = Scan(files, str(work / "scan"), options.delays_ms, options.index)
    ranges = split(files, files.start, end, options.range_bytes)
    phase("scan")
    job = RangeJob(f"rebuild {files.directory} {options.range_bytes}", scan)
    counts = run_tasks(spark, ranges, job, state=work / "ranges", progress=progress)
    phase("consume queues")
    paths = [str(scan.path(piece.start, piece.end, "entries")) for piece in ranges]
    _write_queues(spark, paths, _QueueWriter(str(output), options.queue_file_bytes, files.segment_bytes))
    queues = _finished_queues(work)
    done = RebuildResult(len(queues), sum(queue.entries for queue in queues), lost=gaps_lost(lost)[LOST])
    done.holes = [hole for queue in queues for hole in queue.holes()]
    if options.index:
        phase("key index")
        done.keys = sum(count["keys"] for count in counts)
        done.index_files = _write_index(scan, ranges, options, output)
    if options.allows_loss:
        shutil.rmtree(output / CONFIG, ignore_errors=True)  # of a run that was killed after it had written it
        ends = {(queue.topic, queue.queue_id): queue.end for queue in queues}
        done.config = ConfigWriter(output, ends).write(saved, ranges[-1].end)
    shutil.rmtree(work)
    return done


def _start_or_resume(files: LogFiles, options: RebuildOptions, output: Path) -> int:
    """Create the job file, or check the existing one; returns the end of the log when the rebuild began."""
    job = {
        "directory": files.directory,
        "start": files.start,
        "queue_file_bytes": options.queue_file_bytes,
        "index": options.index,
        "slots": options.slots,
        "entries": options.entries,
        "delays_ms": list(options.delays_ms),
        "range_bytes": options.range_bytes,
    }
    note = output / WORK / "job"
    if note.exists():
        known = json.loads(note.read_text(encoding="utf-8"))
        end = int(known.pop("end"))
        if known != job:
            name = next(name for name in job if known.get(name) != job[name])
            raise ConfigError(
                f"{output} contains another unfinished rebuild: {name} was {known.get(name)!r}, is {job[name]!r}",
                hint="give another directory, or delete this one",
            )
        _check_whole(files, gaps_between(files, files.start, end))
        return end
    own = (WORK, CONFIG, *MADE) if options.allows_loss else (WORK,)
    if output.exists() and any(entry for entry in output.iterdir() if entry.name not in own):
        raise ConfigError(f"{output} is not empty", hint="give a new directory, then move its contents into the store")
    end, gaps = log_bounds(files)
    _check_whole(files, gaps)
    for name in ("scan", "queues", "parts"):
        (output / WORK / name).mkdir(parents=True, exist_ok=True)
    part = note.with_name("job.part")
    part.write_text(json.dumps(job | {"end": end}), encoding="utf-8")
    part.replace(note)
    return end


def _check_whole(files: LogFiles, gaps: Iterable[Gap]) -> None:
    for gap in gaps:
        raise OffsetGone(
            f"{files.directory}: {describe_loss(*gap)}",
            hint="queues without their messages would differ from the broker's: put back the files, or a replica's; "
            "with --allow-loss the output is a store that lacks them",
        )


class _Finished(NamedTuple):
    """A finished queue, as its note has it."""

    topic: str
    queue_id: int
    entries: int
    end: RestoredQueue
    missing: list[tuple[int, int]]
    """Queue offsets `[start, end)` of its holes."""

    def holes(self) -> Iterator[Result]:
        """Yield the holes as results."""
        for start, end in self.missing:
            yield {"topic": self.topic, "queueId": self.queue_id, "start": start, "end": end}


def _finished_queues(work: Path) -> list[_Finished]:
    """Return the finished queues, by topic and queue id."""
    notes = (json.loads(path.read_text(encoding="utf-8")) for path in (work / "queues").glob("*.json"))
    return sorted(_Finished(**note | {"end": RestoredQueue(*note["end"])}) for note in notes)


def _write_queues(spark: SparkSession, paths: Sequence[str], writer: "_QueueWriter") -> None:
    if not paths:
        return
    entries = spark.read.schema(ENTRIES).parquet(*paths)
    made = [(queue.topic, queue.queue_id) for queue in _finished_queues(Path(writer.output) / WORK)]
    if made:
        known = spark.createDataFrame(made, "topic string, queueId int")
        entries = entries.join(known, ["topic", "queueId"], "left_anti").select(*entries.columns)
    ordered = entries.repartition("topic", "queueId").sortWithinPartitions("topic", "queueId", "logOffset")
    ordered.mapInArrow(writer, COUNTS).collect()


class _QueueWriter:
    """Writes the queues of one partition; a repeated task replaces its earlier files."""

    def __init__(self, output: str, file_bytes: int, log_file_bytes: int) -> None:
        """`output`: directory of the store; sizes of the queues' files, and of the log's."""
        self.output = output
        self._sizes = file_bytes, log_file_bytes

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        output = Path(self.output)
        work = output / WORK / "parts" / uuid4().hex
        disk = RealDisk(work)
        queue: ConsumeQueue | None = None
        missing: list[tuple[int, int]] = []
        for batch in batches:
            for topic, queue_id, rows in _runs(batch):
                if topic_name_error(topic) is not None or queue_id < 0:
                    continue
                if queue is None or (queue.topic, queue.queue_id) != (topic, queue_id):
                    if queue is not None:
                        yield _finished(queue, missing, work, output)
                    queue = ConsumeQueue(disk, QueueFiles(disk, files_max=4), topic, queue_id, *self._sizes)
                    missing = []
                missing += _enter(queue, rows)
        if queue is not None:
            yield _finished(queue, missing, work, output)
        shutil.rmtree(work)


def _runs(batch: Any) -> Iterator[tuple[str, int, Any]]:
    """Split a sorted batch by queue; yields topic, queue id and rows."""
    if not batch.num_rows:
        return
    topics, ids = batch.column(0).dictionary_encode(), batch.column(1).to_numpy()
    places = topics.indices.to_numpy()
    bounds = np.flatnonzero((np.diff(places) != 0) | (np.diff(ids) != 0)) + 1
    for start, stop in zip([0, *bounds.tolist()], [*bounds.tolist(), len(ids)], strict=True):
        yield topics.dictionary[int(places[start])].as_py(), int(ids[start]), batch.slice(start, stop - start)


def _enter(queue: ConsumeQueue, rows: Any) -> list[tuple[int, int]]:
    """Append entries: consecutive ones in one call, others one by one, as a broker does at start. Returns the queue
    offsets of the holes between them."""
    holes = []
    offsets = rows.column(2).to_numpy()
    entries = np.empty(len(offsets), dtype=ENTRY)
    for name, index in (("log_offset", 3), ("size", 4), ("code", 5)):
        entries[name] = rows.column(index).to_numpy()
    follows = int(offsets[0]) == queue.next_offset and bool((np.diff(offsets) == 1).all())
    if follows:
        queue.stage_packed(entries.tobytes())
        queue.commit_staged()
    else:
        for queue_offset, entry in zip(offsets.tolist(), entries.tolist(), strict=True):
            expected = queue.next_offset
            if queue.enter(queue_offset, *entry) and 0 < expected < queue_offset:
                holes.append((expected, queue_offset))
    if queue.max_offset - queue.tail_start > FLUSH_ENTRIES:
        queue.flush()
    return holes


def _finished(queue: ConsumeQueue, missing: list[tuple[int, int]], work: Path, output: Path) -> Any:
    """Flush a queue, move it into place, and record its number of entries. Returns a batch of COUNTS."""
    queue.flush()
    place = output / "consumequeue" / queue.topic / str(queue.queue_id)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(place, ignore_errors=True)
    (work / "consumequeue" / queue.topic / str(queue.queue_id)).rename(place)
    end = RestoredQueue(queue.max_offset, queue.entry(queue.max_offset - 1).log_offset)
    note = _Finished(queue.topic, queue.queue_id, queue.max_offset - queue.min_offset, end, missing)
    path = output / WORK / "queues" / f"{queue.topic}@{queue.queue_id}.json"
    path.write_text(json.dumps(note._asdict()), encoding="utf-8")
    values = [[queue.topic], [queue.queue_id], [queue.max_offset - queue.min_offset]]
    columns = [
        pa.array(column, type=kind) for column, kind in zip(values, (pa.string(), pa.int32(), pa.int64()), strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, ["topic", "queueId", "entries"])


def _write_index(scan: Scan, ranges: Sequence[LogRange], options: RebuildOptions, output: Path) -> int:
    """Build the key index from all keys; returns the number of files."""
    shutil.rmtree(output / "index", ignore_errors=True)
    index = KeyIndex(RealDisk(output), options.slots, options.entries)
    for piece in ranges:
        with pq.ParquetFile(scan.path(piece.start, piece.end, "keys")) as file:
            for batch in file.iter_batches(PENDING_KEYS):
                columns = (column.to_pylist() for column in batch.columns)
                for topic, key, log_offset, ms in zip(*columns, strict=True):
                    index.pending += KEY_ROW.pack(key_hash(topic, key.encode()), log_offset, ms)
                index.absorb()
    made = len(index.files)
    index.close()
    return made
