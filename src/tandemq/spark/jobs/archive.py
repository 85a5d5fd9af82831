"""Archive: the log of a broker group into a lake, each record once, whoever is killed when.

    log ─► micro-batch [start, end) ─► tasks write files ─► one commit: files, batch number, end ─► Spark's checkpoint

If the driver dies before the commit, the files belong to nothing, and the batch is done again; if it dies after it,
Spark does the batch again, and the table's marks say that it is there already. Without a checkpoint the archive goes on
where the table's mark says the log is archived up to; marks of the log's generation there, and of its last record, tell
whether it is that log still. Each batch joins to what the table holds: whatever a checkpoint says, nothing is left out.
The first archive of a log puts that mark where the log begins, before anything is read: what retention takes meanwhile
is missed, however often the first batch is begun anew.

Source: docs/guides/pipeline.md, "Archive"; reliability: a driver killed between the two commits loses and doubles
nothing.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tandemq.errors import ConfigError, LocalError, StoreDamaged
from tandemq.spark.lake.delta import COLLECTED, VACUUM_HOURS, DataFile, DeltaLake, Lake
from tandemq.spark.lake.streaming import COMPACT_EVERY, Care, checkpoint_id, planned_end, run_to_end, start_query
from tandemq.spark.runtime.local_paths import local_path
from tandemq.spark.sources.log.files import LogFileReader, log_end, open_log
from tandemq.spark.sources.log.options import parse_place
from tandemq.spark.sources.log.source import RocketMQLogDataSource
from tandemq.spark.sources.log.tail import UNKNOWN, first_record, tail_checksum

log = logging.getLogger(__name__)
BATCH_BYTES = 4 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions:
    """What to archive, and how."""

    store: Path
    lake: Path
    broker_name: str | None = None
    checkpoint: Path | None = None
    """By default in the lake's directory."""
    follows: bool = False
    trigger: str = "1 second"
    """How often an archive that follows commits."""
    bytes_max: int = BATCH_BYTES
    """Bytes of log per commit."""
    fails_on_loss: bool = True
    compact_every: int = COMPACT_EVERY
    vacuum_hours: int = VACUUM_HOURS
    """An archive that follows deletes files that have not been part of the lake for so long; 0: it deletes none."""


@dataclass(slots=True)
class Archived:
    """How far it is; log offsets and totals of this run."""

    start: int
    end: int
    log_end: int
    rows: int = 0
    bytes: int = 0
    files: int = 0
    commits: int = 0
    damaged: int = 0
    version: int | None = None
    trouble: LocalError | None = field(default=None, repr=False)


Progress = Callable[[Archived], None]


def position_mark(broker_name: str) -> str:
    """The name of the mark that says up to which log offset a lake holds the log of a broker group."""
    return f"tandemq-log:{broker_name}"


def epoch_mark(broker_name: str) -> str:
    """The name of the mark that says to which generation of the log the last byte before that offset belongs."""
    return f"tandemq-epoch:{broker_name}"


def tail_mark(broker_name: str) -> str:
    """The name of the mark that tells the log by its last record before that offset (`tail_checksum`)."""
    return f"tandemq-tail:{broker_name}"


class Archive:
    """One run of the job."""

    def __init__(
        self,
        options: ArchiveOptions,
        *,
        after_commit: Callable[[int], None] = lambda _: None,
        progress: Progress = lambda _: None,
    ) -> None:
        """Open both ends.

        Args:
            after_commit: called with the batch number between the table's commit and Spark's.
            progress: called after each commit.
        Raises:
            StoreDamaged: there is no log, or it is not the one any more that the lake holds the beginning of.
            ConfigError: the lake is none of ours, or was filled by `spark.jobs.collect`.
        """
        if options.checkpoint is not None:
            local_path(options.checkpoint, "the checkpoint")
        files = open_log(options.store, options.broker_name)
        self._options = options
        self._broker_name = files.broker_name
        self._mark = position_mark(files.broker_name)
        self._lake: Lake = DeltaLake(options.lake, create=True)
        if self._lake.mark(COLLECTED) is not None:
            raise ConfigError(
                f"{options.lake} holds messages that were collected from a cluster; the log has them too",
                hint="archive into another directory",
            )
        self._checkpoint = options.checkpoint or self._lake.path / "_tandemq" / files.broker_name
        self._after_commit = after_commit
        self._progress = progress
        self._care = Care(self._lake, options.compact_every, options.vacuum_hours)
        known = self._lake.mark(self._mark)
        with LogFileReader(files) as read:
            end = log_end(read)
            if known is not None:
                self._check_same_log(read, known, end)
        begin = files.start if known is None else known
        self.done = Archived(begin, begin, end)

    def _check_same_log(self, read: LogFileReader, known: int, end: int) -> None:
        """Notice a log that was written anew before the offset up to which the lake holds it, or is another one of the
        same name: a checkpoint tells only of generations, and may be lost."""
        files = read.files
        archived, found = self._lake.mark(epoch_mark(files.broker_name)), files.epoch_at(known - 1)
        holds = f"{self._lake.path} holds the log of {files.broker_name} up to {known}"
        if archived is not None and known > files.start and found != archived:
            what = (
                f"{holds}, of generation {archived} there; in {self._options.store} that is of generation {found}: "
                "the log was written anew after a failover"
            )
            self._refuse_anew(what)
        if end < known:
            raise StoreDamaged(
                f"{holds}, and {self._options.store} ends at {end}",
                hint="a slave may lag: archive again later; if the end was lost, archive into another directory",
            )
        tail = self._lake.mark(tail_mark(files.broker_name)) or UNKNOWN
        if found == archived and tail != UNKNOWN and tail_checksum(read, known) not in (tail, UNKNOWN):
            self._refuse_anew(
                f"{holds}, and in {self._options.store} another record lies before that: it is the log of another "
                "broker group (--broker-name tells them apart), it was written anew, or the last record that was "
                "archived is damaged by now (tandemq spark scrub names damage)"
            )

    def _refuse_anew(self, what: str) -> None:
        if self._options.fails_on_loss:
            raise StoreDamaged(
                what,
                hint="archive into another directory to have the log as it is now; with --allow-loss the "
                "lake keeps what is there and goes on behind it",
            )
        log.warning("archive: %s; going on behind it", what)

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start the query that does it."""
        spark.dataSource.register(RocketMQLogDataSource)
        known = self._lake.mark(self._mark)
        if known is None:
            known = self.done.start
            self._lake.commit([], {self._mark: known})
        options = {
            "path": str(self._options.store),
            "brokerName": self._broker_name,
            "writeTo": str(self._lake.path),
            "startingOffsets": str(known),
            "maxBytesPerTrigger": str(self._options.bytes_max),
            "failOnDataLoss": str(self._options.fails_on_loss).lower(),
        }
        rows = spark.readStream.format("rocketmq-log").options(**options).load()
        return start_query(
            rows, self._commit, self._checkpoint, every=self._options.trigger if self._options.follows else ""
        )

    def run(self, spark: SparkSession) -> Archived:
        """Do it; an archive that follows runs until it is interrupted.

        Raises:
            LocalError: a commit was refused. StreamingQueryException: the log cannot be read.
        """
        run_to_end(self.start(spark), lambda: self.done.trouble)
        return self.done

    def _commit(self, frame: DataFrame, batch: int) -> None:
        """One micro-batch: let the tasks write, then add their files."""
        app = f"tandemq-archive:{checkpoint_id(self._checkpoint)}"
        before = self._lake.mark(app)
        if before is not None and before >= batch:
            log.info("archive: batch=%d is in the table already", batch)
            return
        marks = {app: batch} | self._planned(batch)
        rows = frame.collect()
        if not rows:
            return
        start, end = min(row.start for row in rows), max(row.end for row in rows)
        known = self._lake.mark(self._mark)
        assert known is not None, "where the archive begins is on record"
        if end <= known:
            log.info("archive: log offsets [%d, %d) are in the table already", start, end)
            return
        self._check_joins(known, start, end)
        self._add(rows, marks | {self._mark: end})
        self._after_commit(batch)
        if self._options.follows:
            self._care.committed()

    def _check_joins(self, known: int, start: int, end: int) -> None:
        """A batch begins where the table ends: not before it, and behind it only by the blank at a file's end."""
        if start == known:
            return
        if start < known:
            hint = "someone else archives it too; delete the checkpoint to go on there"
        else:
            with LogFileReader(open_log(self._options.store, self._broker_name)) as read:
                due = first_record(read, known)
            if start <= due:
                return
            hint = (
                f"if it is ahead of the lake, delete it to begin at {due}; --allow-loss goes on without what is between"
            )
            if not self._options.fails_on_loss:
                log.warning("archive: log offsets [%d, %d) are left out", due, start)
                return
        self.done.trouble = LocalError(
            f"{self._lake.path} holds the log of {self._broker_name} up to {known}, and the checkpoint "
            f"{self._checkpoint} wants to add [{start}, {end})",
            hint=hint,
        )
        raise self.done.trouble

    def _add(self, rows: Sequence[Any], marks: dict[str, int]) -> None:
        files = [DataFile(row.file, row.rows, row.bytes, row.stats) for row in rows if row.file is not None]
        done = self.done
        done.version = self._lake.commit(files, marks)
        done.commits += 1
        done.files += len(files)
        done.rows += sum(one.rows for one in files)
        done.bytes += sum(one.bytes for one in files)
        done.damaged += sum(row.damaged for row in rows)
        done.end = marks[self._mark]
        done.log_end = max(done.log_end, done.end)
        self._progress(done)

    def _planned(self, batch: int) -> dict[str, int]:
        """Marks of what the log is at the end of a micro-batch, as it was before its tasks read: if the log is written
        anew meanwhile, what they read counts as the old one."""
        place = parse_place(planned_end(self._checkpoint, batch), self._broker_name)
        with LogFileReader(open_log(self._options.store, self._broker_name)) as read:
            tail = tail_checksum(read, min(place.log_offset, read.files.capacity_end))
        return {epoch_mark(self._broker_name): place.epoch, tail_mark(self._broker_name): tail}
