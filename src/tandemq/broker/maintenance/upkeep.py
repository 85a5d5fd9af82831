"""What runs by the clock: syncing what is trusted, deleting what is old, refusing when the disk is full.

Source: docs/internals/storage.md, "flush" and "retention".
"""

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from tandemq.boundary import Disk, Job, Now
from tandemq.broker.context import BrokerRole, CurrentConfig, CurrentTurn
from tandemq.broker.send.delay import DelayedMessages
from tandemq.broker.send.processor import SendPath
from tandemq.broker.state.failure_log import Failures
from tandemq.broker.state.schedule import Schedule
from tandemq.config.settings import BrokerConfig
from tandemq.errors import StoreError
from tandemq.storage.checkpoint import Checkpoint, write_checkpoint
from tandemq.storage.retention import LogSegment, RetentionConfig, decide, parse_hours
from tandemq.storage.store import Store

log = logging.getLogger(__name__)
SYNC_EVERY_MS = 10_000
HOUR_MS = 3_600_000
DISK_FULL = "disk full"
FULL_REMARK = "the disk is {:.0%} full; messages are taken again when it is below {:.0%}"


class _SyncWork(NamedTuple):
    """Paths of queue files and index files, synced on a worker; afterwards the log below `end` needs no check.

    `checkpoint` tells of the last record below `end`; None if it is not known when that was stored.
    """

    disk: Disk
    paths: list[str]
    end: int
    checkpoint: Checkpoint | None
    truncations: int
    """How often the log had been cut: after a cut it says nothing any more."""

    def run(self) -> None:
        for path in self.paths:
            if self.disk.exists(path):
                self.disk.open(path).datasync()
        if self.checkpoint is not None:
            write_checkpoint(self.disk, self.checkpoint)


class Upkeep:
    """The periodic work of one broker."""

    def __init__(
        self,
        store: Store,
        disk: Disk,
        send: SendPath,
        delay: DelayedMessages,
        schedule: Schedule,
        role: BrokerRole,
        current: CurrentConfig,
        turn: CurrentTurn,
        replicas_need: Callable[[], dict[str, int]],
        utc_offset_s: int,
        now: Now,
    ) -> None:
        """Begin all periods. `replicas_need` returns the first log offset that each replica lacks, by its name."""
        self._store = store
        self._disk = disk
        self._send = send
        self._delay = delay
        self._schedule = schedule
        self._role = role
        self._current = current
        self._turn = turn
        self._replicas_need = replicas_need
        self._utc_offset_s = utc_offset_s
        config = current.config
        self.adopt_config(config)
        self._syncing: Job | None = None
        self._expired_end = 0
        """End of a log file that may go as soon as the entries of its queues are on the device; 0: of none."""
        self._said = ""
        self._asked = 0
        self.is_full = False
        self.write_failures = Failures(
            logging.ERROR, "a write failed, nothing of it was acknowledged", "writes succeed again"
        )
        self._queue_failures = Failures(
            logging.WARNING, "queue entries stay in memory for now", "queue entries are written again"
        )
        every = schedule.every
        every(
            lambda: current.config.queue_flush_interval_ms,
            self._flush_queues,
            first_ms=now.mono_ms + config.queue_flush_interval_ms,
        )
        every(SYNC_EVERY_MS, self._begin_sync, first_ms=now.mono_ms + SYNC_EVERY_MS)
        every(lambda: current.config.clean_interval_ms, self.clean, first_ms=now.mono_ms + config.clean_interval_ms)

    def adopt_config(self, config: BrokerConfig) -> None:
        """Take the settings of retention, at the start and when they change."""
        self.retention = RetentionConfig(
            config.reserved_hours * HOUR_MS,
            parse_hours(config.delete_when),
            config.disk_used_ratio_max / 100,
            config.disk_force_ratio,
            config.disk_full_ratio,
            config.clean_force_enable,
        )

    # Queues and index.

    def _flush_queues(self, now: Now) -> None:
        try:
            self._store.flush_queues()
        except StoreError as error:
            self._queue_failures.note(error, now)
        else:
            self._queue_failures.over(now)

    def _begin_sync(self, _now: Now) -> None:
        store = self._store
        store.log.reader.forget_if_idle()
        if self._syncing is not None or store.marks.written <= store.marks.synced or store.log.refused is not None:
            return
        end = min(store.marks.written, store.log.flushed_offset)
        checkpoint = store.checkpoint(store.queued_ms) if end == store.marks.written else None
        work = _SyncWork(self._disk, store.paths_to_sync(), end, checkpoint, store.log.truncations)
        self._syncing = Job("sync queues", work.run, work)
        self._turn.out.jobs.append(self._syncing)

    def job_done(self, job: Job, error: Exception | None) -> bool:
        """A job ended; False if it is none of ours."""
        if job is not self._syncing:
            return False
        self._syncing = None
        work = job.token
        assert isinstance(work, _SyncWork), "our job carries our work"
        if error is not None:
            log.warning("store: queue files could not be synced: %s", error)
            return True
        if work.truncations != self._store.log.truncations:
            return True
        try:
            self._store.synced_up_to(work.end)
        except StoreError as error_of_marks:
            log.warning("store: how far the log is synced could not be noted: %s", error_of_marks)
        if 0 < self._expired_end <= self._store.marks.synced:
            self._schedule.at(0, self.clean)
        return True

    # Retention.

    def delete_expired(self) -> None:
        """An operator asks for expired files to go now, in whatever hour."""
        self._asked = 20

    def clean(self, now: Now) -> None:
        """Delete what may go; refuse or take messages by how full the disk is."""
        store = self._store
        try:
            usage = self._disk.usage()
            starts, changed = store.log.segment_starts, self._disk.modified_ms
            segments = [
                LogSegment(start, start + store.config.segment_bytes, changed(store.log.segment_path(start)))
                for start in starts
            ]
            hour = datetime.fromtimestamp(now.wall_ms / 1000 + self._utc_offset_s, UTC).hour
            decision = decide(
                self.retention,
                segments,
                usage,
                wall_ms=now.wall_ms,
                hour=hour,
                needed=self._needed(),
                asked=self._asked > 0,
            )
            self._asked = max(0, self._asked - 1)
            self._expired_end = 0
            for segment in decision.delete:
                if segment.end > store.marks.synced:
                    self._expired_end = segment.end
                    self._flush_queues(now)
                    self._begin_sync(now)
                    break  # without the entries of its queues, these would begin again below them after a power loss
                store.drop_first_segment()
                self._say_deleted(segment, decision.forced)
        except StoreError as error:
            log.error("retention: %s", error)
            return
        self._say_kept(decision.kept_for)
        self._set_full(decision.is_full, usage.ratio)

    def _needed(self) -> dict[str, int]:
        needed = self._replicas_need()
        delayed = self._delay.needed_from()
        if delayed is not None and self._role.is_master:
            needed["delayed messages"] = delayed
        return needed

    def _say_deleted(self, segment: LogSegment, forced: str) -> None:
        if forced:
            log.warning(
                "retention: deleted log=[%d,%d) although needed by %s: the disk is too full",
                segment.start,
                segment.end,
                forced,
            )
        else:
            log.info("retention: deleted log=[%d,%d)", segment.start, segment.end)

    def _say_kept(self, who: str) -> None:
        if who != self._said:
            self._said = who
            if who:
                log.warning("retention: an expired file stays, it is needed by %s", who)

    def _set_full(self, is_full: bool, ratio: float) -> None:
        if is_full == self.is_full:
            return
        self.is_full = is_full
        send = self._send
        if is_full:
            send.refuse(DISK_FULL, FULL_REMARK.format(ratio, self.retention.full_ratio))
            log.error("retention: the disk is %.0f%% full, messages are refused", ratio * 100)
        else:
            send.admit(DISK_FULL)
            log.warning("retention: the disk is %.0f%% full, messages are taken again", ratio * 100)
