"""Collect: copies messages of a running cluster into a lake, each exactly once, whichever process is killed. Reads no
files of brokers.

    queues ─► micro-batch ─► Spark's rows ─► tasks write files ─► one commit: files, batch number ─► Spark's checkpoint

A lake is filled by one checkpoint, from its first micro-batch on, without a gap. Each commit carries the checkpoint's
id, the batch number, and a checksum of the batch's end offset, by which a repeated batch is recognized. A checkpoint
that is older or newer than the lake, or another one, is refused: its rows would be duplicates, or rows would be
missing.

If the files of the log can be read, `spark.jobs.archive` is faster: rows do not pass through the JVM.
Source: docs/guides/pipeline.md, "Collect".
"""

import json
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tandemq.errors import ConfigError, LocalError
from tandemq.spark.lake.delta import COLLECTED, VACUUM_HOURS, DataFile, Lake
from tandemq.spark.lake.formats import open_lake
from tandemq.spark.lake.streaming import (
    COMPACT_EVERY,
    LakeMaintenance,
    checkpoint_id,
    checkpoint_place,
    planned_end,
    run_to_end,
    start_query,
)
from tandemq.spark.runtime.location import ICEBERG, Location, Place, locate
from tandemq.spark.sources.cluster.source import RocketMQDataSource
from tandemq.spark.sources.log.parquet_writer import lake_schema, write_file
from tandemq.spark.sources.log.source import FILES

CHECKPOINT = "collect"
SELECTIONS = ("subscribe", "subscribepattern", "assign")


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectOptions:
    """Options of a collect."""

    source: Mapping[str, str]
    """Options of `format("rocketmq")`: nameServer, topics, limits."""
    lake: Place
    checkpoint: Place | None = None
    """By default in the lake's directory; a remote lake needs one."""
    follows: bool = False
    trigger: str = "1 second"
    """With `follows`: interval of commits."""
    compact_every: int = COMPACT_EVERY
    vacuum_hours: int = VACUUM_HOURS


@dataclass(slots=True)
class CollectResult:
    """Totals of this run."""

    rows: int = 0
    bytes: int = 0
    files: int = 0
    commits: int = 0
    damaged: int = 0
    version: int | None = None
    commit_error: LocalError | None = field(default=None, repr=False)


CollectProgress = Callable[[CollectResult], None]


class Collect:
    """One run of the job."""

    def __init__(
        self,
        options: CollectOptions,
        *,
        after_commit: Callable[[int], None] = lambda _: None,
        progress: CollectProgress = lambda _: None,
    ) -> None:
        """Open the lake.

        Args:
            after_commit: called with the batch number between the table's commit and Spark's.
            progress: called after each commit.
        Raises:
            ConfigError: the table has other columns.
        """
        self._options = options
        self._lake, self._checkpoint = _open(locate(options.lake, "the lake"), options.checkpoint)
        self._care = LakeMaintenance(self._lake, options.compact_every, options.vacuum_hours)
        self._after_commit = after_commit
        self._progress = progress
        self.done = CollectResult()
        self._counting = threading.Lock()
        """Held from a commit until `done` counts it."""

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start the streaming query of this run."""
        spark.dataSource.register(RocketMQDataSource)
        options = {"startingOffsets": "earliest"} | dict(self._options.source) | {"details": "true", "inflate": "false"}
        rows = spark.readStream.format("rocketmq").options(**options).load()
        selected = (value for name, value in options.items() if name.lower() in SELECTIONS)
        name = f"collect {' '.join(selected)} to {self._lake.location.url}"
        every = self._options.trigger if self._options.follows else ""
        return start_query(rows, self._commit, self._checkpoint, name=name, every=every)

    def run(self, spark: SparkSession, stop: threading.Event | None = None) -> CollectResult:
        """Run the collect to its end; with `follows` until it is interrupted.

        Args:
            stop: ends it between two commits when it is set.
        Raises:
            LocalError: a commit was refused. StreamingQueryException: the cluster cannot be read.
        """
        run_to_end(self.start(spark), lambda: self.done.commit_error, stop)
        with self._counting:  # Spark may have ended in the middle of a commit
            return self.done

    def _commit(self, frame: DataFrame, batch: int) -> None:
        """Process one micro-batch: tasks write files, then one commit adds them."""
        name = checkpoint_id(self._checkpoint)
        app, end = f"tandemq-collect:{name}", f"tandemq-collect-end:{name}"
        end_offset = json.dumps(planned_end(self._checkpoint, batch), sort_keys=True)
        marks = {COLLECTED: zlib.crc32(name.encode()), app: batch, end: zlib.crc32(end_offset.encode())}
        if self._is_done(batch, self._lake.mark(app), self._lake.mark(end) == marks[end], marks[COLLECTED]):
            return
        rows = frame.mapInArrow(_FileWriter(self._lake.location), FILES).collect()
        files = [DataFile(row.file, row.rows, row.bytes, row.stats) for row in rows if row.file is not None]
        done = self.done
        with self._counting:
            done.version = self._lake.commit(files, marks)
            done.commits += 1
            done.files += len(files)
            done.rows += sum(file.rows for file in files)
            done.bytes += sum(file.bytes for file in files)
            done.damaged += sum(row.damaged for row in rows)
        self._progress(done)
        self._after_commit(batch)
        if self._options.follows:
            self._care.committed()

    def _is_done(self, batch: int, before: int | None, has_same_end: bool, checkpoint: int) -> bool:
        """Return whether a batch is already in the table; if not, it is the next one.

        Args:
            before: the last batch of this checkpoint in the table.
            has_same_end: whether that batch ended at the end offset of this one.
        Raises:
            LocalError: the batch is neither in the table nor the next one.
        """
        known = self._lake.mark(COLLECTED)
        if before == batch and has_same_end and known == checkpoint:
            return True
        if known is None and self._lake.data_files():
            why = "the lake holds messages that were not collected"
        elif known not in (None, checkpoint):
            why = "another checkpoint fills the lake"
        elif batch != (0 if before is None else before + 1):
            held = "no batch" if before is None else f"batches up to {before}"
            why = f"the lake holds {held} of this checkpoint"
        else:
            return False
        self.done.commit_error = LocalError(
            f"{self._lake.location}: {why}, and the checkpoint {self._checkpoint} would add batch {batch}: messages "
            "would be duplicated in the lake, or missing",
            hint="continue with the checkpoint that filled the lake, or collect into another directory",
        )
        raise self.done.commit_error


def _open(lake: Location, checkpoint: Place | None) -> tuple[Lake, Location]:
    """Return a lake, created if there is none, and the location of the checkpoint. Raises ConfigError."""
    is_table = lake.scheme == ICEBERG  # its catalogue knows its directory
    opened = open_lake(lake, create=True) if is_table else None
    directory = opened.location if opened is not None else lake
    if checkpoint is None and not directory.is_local:
        raise ConfigError(
            f"{lake} is remote, and Spark's checkpoint, without which it cannot be continued, is not",
            hint="name a directory that lasts: --checkpoint DIRECTORY",
        )
    place = checkpoint_place(directory.child(f"_tandemq/{CHECKPOINT}") if checkpoint is None else checkpoint)
    return opened or open_lake(lake, create=True), place


class _FileWriter:
    """Writes the rows of one task to a file in the lake's directory; serialized to tasks."""

    def __init__(self, lake: Location) -> None:
        self._lake = lake

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        schema = lake_schema()
        rows = (batch.select(schema.names).cast(schema) for batch in batches if batch.num_rows)
        yield write_file(self._lake, f"part-{uuid4().hex}.parquet", rows, 0, 0)
