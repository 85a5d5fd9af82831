"""Archive: copies the log of a broker group into a lake, each record exactly once, whichever process is killed.

    log ─► micro-batch [start, end) ─► tasks write files ─► one commit: files, batch number, end ─► Spark's checkpoint

If the driver dies before the commit, its files belong to no table, and the batch is repeated. If it dies after the
commit, Spark repeats the batch, and the table's marks show that it is already there. Without a checkpoint the archive
continues at the table's position mark; marks of the log's epoch there and of its last record show whether it is still
the same log. Each batch must follow the table's position: nothing is left out, whatever a checkpoint says. The first
archive of a log sets the position mark to the start of the log before it reads anything. A loss by retention is
therefore detected, however often the first batch is started again.

The configuration of the broker is kept beside the log (`spark.jobs.saved_config`).

Source: docs/guides/pipeline.md, "Archive"; reliability: a driver killed between the two commits loses and doubles
nothing.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tandemq.errors import ConfigError, LocalError, OffsetGone, StoreDamaged
from tandemq.spark.jobs.saved_config import ConfigKeeper, ConfigSource
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
from tandemq.spark.runtime.location import Location, Place, locate
from tandemq.spark.sources.log.files import LogFileReader, log_end, open_log
from tandemq.spark.sources.log.gaps import Gap, gaps_before, gaps_behind, stored_end
from tandemq.spark.sources.log.options import parse_position
from tandemq.spark.sources.log.ranges import describe_loss
from tandemq.spark.sources.log.source import source_with_storage
from tandemq.spark.sources.log.tail import UNKNOWN, first_record, tail_checksum

log = logging.getLogger(__name__)
BATCH_BYTES = 4 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions:
    """Options of an archive."""

    store: Place
    """Store directory, or directory of log files, also at a URL."""
    lake: Place
    broker_name: str | None = None
    checkpoint: Place | None = None
    """By default in the lake's directory; of a remote lake a temporary one, because the lake has its position."""
    follows: bool = False
    trigger: str = "1 second"
    """With `follows`: interval of commits."""
    bytes_max: int = BATCH_BYTES
    """Bytes of log per commit."""
    fails_on_loss: bool = True
    compact_every: int = COMPACT_EVERY
    vacuum_hours: int = VACUUM_HOURS
    """With `follows`: minimum age in hours of files to delete since they left the table; 0: no vacuum."""
    config: ConfigSource | None = None
    """Reads the configuration of a live broker, to keep it; by default that in the store's files is kept."""


@dataclass(slots=True)
class ArchiveResult:
    """Progress and result of an archive: log offsets, and totals of this run."""

    start: int
    end: int
    log_end: int
    rows: int = 0
    bytes: int = 0
    files: int = 0
    commits: int = 0
    damaged: int = 0
    version: int | None = None
    config_ms: int | None = None
    """When the configuration that is kept was read; None: none was."""
    commit_error: LocalError | None = field(default=None, repr=False)


ArchiveProgress = Callable[[ArchiveResult], None]


def position_mark(broker_name: str) -> str:
    """Return the name of the position mark: the log offset up to which a lake holds the log of a broker group."""
    return f"tandemq-log:{broker_name}"


def epoch_mark(broker_name: str) -> str:
    """Return the name of the mark for the epoch of the last byte before the position."""
    return f"tandemq-epoch:{broker_name}"


def tail_mark(broker_name: str) -> str:
    """Return the name of the mark for the checksum of the last record before the position (`tail_checksum`)."""
    return f"tandemq-tail:{broker_name}"


class Archive:
    """One run of the job."""

    def __init__(
        self,
        options: ArchiveOptions,
        *,
        after_commit: Callable[[int], None] = lambda _: None,
        progress: ArchiveProgress = lambda _: None,
    ) -> None:
        """Open the log and the lake.

        Args:
            after_commit: called with the batch number between the table's commit and Spark's.
            progress: called after each commit.
        Raises:
            StoreDamaged: there is no log, or it is not the log that the lake holds.
            OffsetGone: the end of the log is missing, or its start, which the lake does not have.
            ConfigError: the table has other columns, or was filled by `spark.jobs.collect`.
            NetworkError, RemoteError: the broker that has the configuration does not answer, or refuses.
        """
        checkpoint = None if options.checkpoint is None else checkpoint_place(options.checkpoint)
        self._store = locate(options.store, "the log")
        files = open_log(self._store, options.broker_name)
        self._options = options
        self._broker_name = files.broker_name
        self._mark = position_mark(files.broker_name)
        self._lake: Lake = open_lake(options.lake, create=True)
        if self._lake.mark(COLLECTED) is not None:
            raise ConfigError(
                f"{options.lake} holds messages collected from a cluster; the log contains them too",
                hint="archive into another directory",
            )
        self._temporary: TemporaryDirectory[str] | None = None
        if checkpoint is None and not self._lake.location.is_local:
            self._temporary = TemporaryDirectory(prefix="tandemq-archive-")
            checkpoint = Location(self._temporary.name)
        self._checkpoint = checkpoint or Location(self._lake.location.child(f"_tandemq/{files.broker_name}"))
        self._after_commit = after_commit
        self._progress = progress
        self._care = LakeMaintenance(self._lake, options.compact_every, options.vacuum_hours)
        self._keeper = ConfigKeeper(self._lake.location, files.broker_name, self._store, options.config)
        self._keeper.take(self._present_end)
        known = self._lake.mark(self._mark)
        stored = stored_end(files)
        with LogFileReader(files) as read:
            end = log_end(read)
            if known is not None:
                self._check_same_log(read, known, end)
            missing = list(gaps_behind(read, end, stored))
        for gap in missing if known is not None else (*gaps_before(files), *missing):
            self._report_missing(gap)
        begin = files.start if known is None else known
        self.done = ArchiveResult(begin, begin, end)
        self._counting = threading.Lock()
        """Held from a commit until `done` counts it."""

    def _present_end(self) -> int:
        with LogFileReader(open_log(self._store, self._broker_name)) as read:
            return log_end(read)

    def _check_same_log(self, read: LogFileReader, known: int, end: int) -> None:
        """Refuse a log that was rewritten before the lake's position, or another log with the same name. A checkpoint
        only has the epoch, and may be lost."""
        files = read.files
        archived, found = self._lake.mark(epoch_mark(files.broker_name)), files.epoch_at(known - 1)
        holds = f"{self._lake.location} holds the log of {files.broker_name} up to {known}"
        if archived is not None and known > files.start and found != archived:
            what = (
                f"{holds}, in epoch {archived}; in {self._store} these bytes belong to epoch {found}: "
                "the log was rewritten after a failover"
            )
            self._refuse_rewritten(what)
        if end < known:
            raise StoreDamaged(
                f"{holds}, and {self._store} ends at {end}",
                hint="a slave may lag: archive again later; if the log lost its end, archive into another directory",
            )
        tail = self._lake.mark(tail_mark(files.broker_name)) or UNKNOWN
        if found == archived and tail != UNKNOWN and tail_checksum(read, known) not in (tail, UNKNOWN):
            self._refuse_rewritten(
                f"{holds}, and {self._store} has another record before that offset: it is the log of another "
                "broker group (--broker-name distinguishes them), it was rewritten, or the last archived record is "
                "damaged by now (tandemq spark scrub lists damage)"
            )

    def _refuse_rewritten(self, what: str) -> None:
        if self._options.fails_on_loss:
            raise StoreDamaged(
                what,
                hint="archive into another directory to have the present log; with --allow-loss the lake keeps its "
                "rows and continues after them",
            )
        log.warning("archive: %s; continuing after it", what)

    def _report_missing(self, gap: Gap) -> None:
        what = f"{self._store}: {describe_loss(*gap)}"
        if self._options.fails_on_loss:
            raise OffsetGone(what, hint="--allow-loss continues without them")
        log.warning("archive: %s; continuing without", what)

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start the streaming query of this run."""
        spark.dataSource.register(source_with_storage(self._store.options, self._lake.location.options))
        known = self._lake.mark(self._mark)
        if known is None:
            known = self.done.start
            self._lake.commit([], {self._mark: known})
        options = {
            "path": str(self._store),
            "brokerName": self._broker_name,
            "writeTo": self._lake.location.url,
            "startingOffsets": str(known),
            "maxBytesPerTrigger": str(self._options.bytes_max),
            "failOnDataLoss": str(self._options.fails_on_loss).lower(),
        }
        rows = spark.readStream.format("rocketmq-log").options(**options).load()
        name = f"archive {self._broker_name} to {self._lake.location.url}"
        every = self._options.trigger if self._options.follows else ""
        return start_query(rows, self._commit, self._checkpoint, name=name, every=every)

    def run(self, spark: SparkSession, stop: threading.Event | None = None) -> ArchiveResult:
        """Run the archive to its end; with `follows` until it is interrupted.

        Args:
            stop: ends it between two commits when it is set.
        Raises:
            LocalError: a commit was refused. StreamingQueryException: the log cannot be read.
        """
        try:
            run_to_end(self.start(spark), lambda: self.done.commit_error, stop)
        finally:
            if self._temporary is not None:
                self._temporary.cleanup()
        with self._counting:  # Spark may have ended in the middle of a commit
            if stop is None or not stop.is_set():
                self._keeper.finish(self._lake.mark(self._mark) or 0)
            self.done.config_ms = self._keeper.kept_ms
            return self.done

    def _commit(self, frame: DataFrame, batch: int) -> None:
        """Process one micro-batch: tasks write files, then one commit adds them."""
        app = f"tandemq-archive:{checkpoint_id(self._checkpoint)}"
        before = self._lake.mark(app)
        if before is not None and before >= batch:
            log.info("archive: batch=%d is already in the table", batch)
            return
        marks = {app: batch} | self._log_marks(batch)
        rows = frame.collect()
        if not rows:
            return
        start, end = min(row.start for row in rows), max(row.end for row in rows)
        known = self._lake.mark(self._mark)
        assert known is not None, "start() has set the position mark"
        if end <= known:
            log.info("archive: log offsets [%d, %d) are already in the table", start, end)
            return
        self._check_joins(known, start, end)
        self._add(rows, marks | {self._mark: end})
        self._after_commit(batch)
        self._keeper.reached(end, self._present_end)
        if self._options.follows:
            self._care.committed()

    def _check_joins(self, known: int, start: int, end: int) -> None:
        """Check that a batch starts at the table's position, or after the blank of a file's end that follows it."""
        if start == known:
            return
        if start < known:
            hint = "another process archives it too; delete the checkpoint to continue at the lake's position"
        else:
            with LogFileReader(open_log(self._store, self._broker_name)) as read:
                due = first_record(read, known)
            if start <= due:
                return
            hint = (
                f"if it is ahead of the lake, delete it to start at {due}; "
                "--allow-loss continues without the bytes between"
            )
            if not self._options.fails_on_loss:
                log.warning("archive: log offsets [%d, %d) are left out", due, start)
                return
        self.done.commit_error = LocalError(
            f"{self._lake.location} holds the log of {self._broker_name} up to {known}, and the checkpoint "
            f"{self._checkpoint} would add [{start}, {end})",
            hint=hint,
        )
        raise self.done.commit_error

    def _add(self, rows: Sequence[Any], marks: dict[str, int]) -> None:
        files = [DataFile(row.file, row.rows, row.bytes, row.stats) for row in rows if row.file is not None]
        done = self.done
        with self._counting:
            done.version = self._lake.commit(files, marks)
            done.commits += 1
            done.files += len(files)
            done.rows += sum(file.rows for file in files)
            done.bytes += sum(file.bytes for file in files)
            done.damaged += sum(row.damaged for row in rows)
            done.end = marks[self._mark]
            done.log_end = max(done.log_end, done.end)
        self._progress(done)

    def _log_marks(self, batch: int) -> dict[str, int]:
        """Return the marks of epoch and last record at the end of a micro-batch, taken before its tasks read: if the
        log is rewritten in between, the batch counts as part of the old log."""
        position = parse_position(planned_end(self._checkpoint, batch), self._broker_name)
        with LogFileReader(open_log(self._store, self._broker_name)) as read:
            tail = tail_checksum(read, min(position.log_offset, read.files.capacity_end))
        return {epoch_mark(self._broker_name): position.epoch, tail_mark(self._broker_name): tail}
