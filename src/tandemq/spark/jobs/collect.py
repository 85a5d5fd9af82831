"""Collect: messages of a running cluster into a lake, each once, whoever is killed when. No file of a broker is read.

    queues ─► micro-batch ─► Spark's rows ─► tasks write files ─► one commit: files, batch number ─► Spark's checkpoint

A lake is collected by one checkpoint, from its first micro-batch on, without a gap: each commit carries the
checkpoint's identity, the batch's number, and a checksum of where it ends. A batch that is done again is known by them;
a checkpoint that is older than the lake, newer, or another one is refused, as its rows would be twice in the table or
missing.

Where the log's files can be read, `spark.jobs.archive` is quicker: rows do not pass through the JVM.
Source: docs/guides/pipeline.md, "Collect".
"""

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tandemq.errors import LocalError
from tandemq.spark.lake.delta import COLLECTED, VACUUM_HOURS, DataFile, DeltaLake, Lake
from tandemq.spark.lake.parquet_writer import lake_schema, write_file
from tandemq.spark.lake.streaming import COMPACT_EVERY, Care, checkpoint_id, planned_end, run_to_end, start_query
from tandemq.spark.runtime.local_paths import local_path
from tandemq.spark.sources.cluster.source import RocketMQDataSource
from tandemq.spark.sources.log.source import FILES

CHECKPOINT = "collect"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectOptions:
    """What to collect, and how."""

    source: Mapping[str, str]
    """Options of `format("rocketmq")`: nameServer, what to read, limits."""
    lake: Path
    checkpoint: Path | None = None
    """By default in the lake's directory."""
    follows: bool = False
    trigger: str = "1 second"
    """How often a query that follows commits."""
    compact_every: int = COMPACT_EVERY
    vacuum_hours: int = VACUUM_HOURS


@dataclass(slots=True)
class Collected:
    """Totals of this run."""

    rows: int = 0
    bytes: int = 0
    files: int = 0
    commits: int = 0
    damaged: int = 0
    version: int | None = None
    trouble: LocalError | None = field(default=None, repr=False)


Progress = Callable[[Collected], None]


class Collect:
    """One run of the job."""

    def __init__(
        self,
        options: CollectOptions,
        *,
        after_commit: Callable[[int], None] = lambda _: None,
        progress: Progress = lambda _: None,
    ) -> None:
        """Open the lake.

        Args:
            after_commit: called with the batch number between the table's commit and Spark's.
            progress: called after each commit.
        Raises:
            ConfigError: the lake is none of ours.
        """
        if options.checkpoint is not None:
            local_path(options.checkpoint, "the checkpoint")
        self._options = options
        self._lake: Lake = DeltaLake(options.lake, create=True)
        self._checkpoint = (options.checkpoint or self._lake.path / "_tandemq" / CHECKPOINT).absolute()
        self._care = Care(self._lake, options.compact_every, options.vacuum_hours)
        self._after_commit = after_commit
        self._progress = progress
        self.done = Collected()

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start the query that does it."""
        spark.dataSource.register(RocketMQDataSource)
        options = {"startingOffsets": "earliest"} | dict(self._options.source) | {"details": "true", "inflate": "false"}
        rows = spark.readStream.format("rocketmq").options(**options).load()
        return start_query(
            rows, self._commit, self._checkpoint, every=self._options.trigger if self._options.follows else ""
        )

    def run(self, spark: SparkSession) -> Collected:
        """Do it; a query that follows runs until it is interrupted.

        Raises:
            LocalError: a commit was refused. StreamingQueryException: the cluster cannot be read.
        """
        run_to_end(self.start(spark), lambda: self.done.trouble)
        return self.done

    def _commit(self, frame: DataFrame, batch: int) -> None:
        """One micro-batch: let the tasks write, then add their files."""
        name = checkpoint_id(self._checkpoint)
        app, end = f"tandemq-collect:{name}", f"tandemq-collect-end:{name}"
        place = json.dumps(planned_end(self._checkpoint, batch), sort_keys=True)
        marks = {COLLECTED: zlib.crc32(name.encode()), app: batch, end: zlib.crc32(place.encode())}
        if self._is_done(batch, self._lake.mark(app), self._lake.mark(end) == marks[end], marks[COLLECTED]):
            return
        rows = frame.mapInArrow(_FileOf(str(self._lake.path)), FILES).collect()
        files = [DataFile(row.file, row.rows, row.bytes, row.stats) for row in rows if row.file is not None]
        done = self.done
        done.version = self._lake.commit(files, marks)
        done.commits += 1
        done.files += len(files)
        done.rows += sum(one.rows for one in files)
        done.bytes += sum(one.bytes for one in files)
        done.damaged += sum(row.damaged for row in rows)
        self._progress(done)
        self._after_commit(batch)
        if self._options.follows:
            self._care.committed()

    def _is_done(self, batch: int, before: int | None, ends_alike: bool, checkpoint: int) -> bool:
        """Whether a batch is in the table; if not, it is the next one.

        Args:
            before: the last batch of this checkpoint that the table holds.
            ends_alike: whether that one ended where this batch ends.
        Raises:
            LocalError: it is neither.
        """
        known = self._lake.mark(COLLECTED)
        if before == batch and ends_alike and known == checkpoint:
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
        self.done.trouble = LocalError(
            f"{self._lake.path}: {why}, and the checkpoint {self._checkpoint} wants to add batch {batch}: messages "
            "would be twice in the lake, or missing",
            hint="go on with the checkpoint that the lake was filled with, or collect into another directory",
        )
        raise self.done.trouble


class _FileOf:
    """Writes the rows of one task to a file in the lake's directory; travels to tasks."""

    def __init__(self, lake: str) -> None:
        self._lake = lake

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        schema = lake_schema()
        rows = (batch.select(schema.names).cast(schema) for batch in batches if batch.num_rows)
        yield write_file(Path(self._lake) / f"part-{uuid4().hex}.parquet", rows, 0, 0)
