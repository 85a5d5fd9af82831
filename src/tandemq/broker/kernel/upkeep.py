"""Periodic work on the store: syncing queues and index, deleting expired files, refusing sends when the disk is full.

Source: docs/internals/storage.md, "flush" and "retention".
"""

import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from tandemq.boundary import Disk, DiskUsage, Job, JobDone, Now, Turn
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.state.failure_log import Failures
from tandemq.config.settings import BrokerConfig
from tandemq.errors import StoreError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.storage.checkpoint import Checkpoint, write_checkpoint
from tandemq.storage.retention import Decision, LogSegment, RetentionConfig, decide, parse_hours
from tandemq.turn_budget import advance

log = logging.getLogger(__name__)
SYNC_EVERY_MS = 10_000
FLUSH_US = 3_000
FLUSHED_AT_ONCE = 2
"""Time for writing the entries of queues in one turn, and number of queues between two looks at it."""
DELETION_US = 3_000
"""Time for deleting log files in one turn."""
HOUR_MS = 3_600_000
DISK_FULL = "disk full"
FULL_REMARK = "the disk is {:.0%} full; messages are accepted again when it is below {:.0%}"


class _SyncWork(NamedTuple):
    """Sync of queue and index files on a worker; afterwards the log below `end` needs no check at the start."""

    disk: Disk
    paths: list[str]
    end: int
    """Log offset."""
    checkpoint: Checkpoint | None
    """State at the last record below `end`; None if its store time is not known."""
    truncations: int
    """Number of truncations of the log when the sync began; after another one its result is not valid."""

    def run(self) -> None:
        for path in self.paths:
            if self.disk.exists(path):
                self.disk.open(path).datasync()
        if self.checkpoint is not None:
            write_checkpoint(self.disk, self.checkpoint)


class Upkeep(Feature):
    """The periodic work of one broker."""

    def __init__(self, kernel: Kernel) -> None:
        """Schedule the periodic work."""
        self._store = kernel.store
        self._disk = kernel.disk
        self._outbox = kernel.outbox
        self._puts = kernel.puts
        self._schedule = kernel.schedule
        self._current = kernel.current
        self._turn = kernel.turn
        self._features = kernel.features
        self._utc_offset_s = kernel.machine.utc_offset_s
        config = kernel.current.config
        self.adopt_config(config)
        self._is_syncing = False
        self._is_flushing = False
        """Whether a flush of the queues goes on in the next turn."""
        self._expired_end = 0
        """End of a log file to be deleted once the entries of its queues are on the device; 0: none."""
        self._deletion: Iterator[None] | None = None
        """The deletion of log files in progress, and the time of the turn."""
        self._deletion_now = kernel.began
        self._kept_for = ""
        """Reason logged last why an expired file is kept; "": none is."""
        self._requested = 0
        """Number of further runs that delete expired files at any hour."""
        self.is_full = False
        self._queue_failures = Failures(
            logging.WARNING, "queue entries stay in memory for now", "queue entries are written again"
        )
        kernel.every(
            lambda: 1 if self._is_flushing else kernel.current.config.queue_flush_interval_ms, self._flush_queues
        )
        kernel.every(SYNC_EVERY_MS, self._begin_sync)
        kernel.every(lambda: kernel.current.config.clean_interval_ms, self.clean)

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

    def requests(self) -> dict[RequestCode, Request]:
        """See `Feature`."""
        return {RequestCode.DELETE_EXPIRED_COMMITLOG: Request(self._on_clean_log)}

    def _on_clean_log(self, _link: Link, command: Command, now: Now) -> Command | None:
        """Delete expired log files now, at any hour."""
        self.delete_expired()
        self.clean(now)
        return command.answer(ResponseCode.SUCCESS)

    # Queues and index.

    def _flush_queues(self, now: Now) -> None:
        if not self._is_flushing:
            self._store.log.recent.age()
            self._store.log.reader.age()
        try:
            self._is_flushing = not self._flush_some()
        except StoreError as error:
            self._is_flushing = False  # the next flush continues it
            self._queue_failures.note(error, now)
        else:
            self._queue_failures.over(now)

    def _flush_some(self) -> bool:
        """Begin or continue a flush for as long as this turn may take; return whether it is done."""
        until_us = self._outbox.elapsed_us() + FLUSH_US
        while not (is_done := self._store.flush_some_queues(FLUSHED_AT_ONCE)):
            if self._outbox.elapsed_us() >= until_us:
                break
        return is_done

    def _begin_sync(self, _now: Now) -> None:
        store = self._store
        store.log.reader.forget_if_idle()
        if self._is_syncing or store.marks.written <= store.marks.synced or store.log.refused is not None:
            return
        end = min(store.marks.written, store.log.flushed_offset)
        checkpoint = store.checkpoint(store.queued_ms) if end == store.marks.written and store.queued_ms else None
        paths = store.take_unsynced(store.marks.synced)
        work = _SyncWork(self._disk, paths, end, checkpoint, store.log.truncations)
        self._is_syncing = True
        job = Job("sync queues", work.run, done=partial(self._synced, work))
        self._turn.out.jobs.append(job)

    def _synced(self, work: _SyncWork, event: JobDone, _turn: Turn, _now: Now) -> None:
        self._is_syncing = False
        if event.error is not None:
            log.warning("store: queue files could not be synced: %s", event.error)
            self._store.not_synced(work.paths)
            return
        if work.truncations != self._store.log.truncations:
            return
        try:
            self._store.synced_up_to(work.end)
        except StoreError as error_of_marks:
            log.warning("store: the synced offset of the log could not be saved: %s", error_of_marks)
        if 0 < self._expired_end <= self._store.marks.synced:
            self._schedule.at(0, self.clean)

    # Retention.

    def delete_expired(self) -> None:
        """Delete expired files in the next runs at any hour, as an operator requested."""
        self._requested = 20

    def clean(self, now: Now) -> None:
        """Begin to delete expired files; refuse or accept sends by the usage of the disk."""
        try:
            usage = self._disk.usage()
            asked = self._requested > 0
            decision = self._decision(usage, now, asked=asked)
        except StoreError as error:
            log.error("retention: %s", error)
            return
        self._requested = max(0, self._requested - 1)
        if self._deletion is None:
            self._deletion = self._delete(decision, asked=asked)
            self._delete_some(now)
        self._log_kept(decision.kept_for)
        self._set_full(decision.is_full, usage.ratio)

    def _decision(self, usage: DiskUsage, now: Now, *, asked: bool) -> Decision:
        store, changed = self._store, self._disk.modified_ms
        segments = [
            LogSegment(start, start + store.config.segment_bytes, changed(store.log.segment_path(start)))
            for start in store.log.segment_starts
        ]
        hour = datetime.fromtimestamp(now.wall_ms / 1000 + self._utc_offset_s, UTC).hour
        return decide(
            self.retention, segments, usage, wall_ms=now.wall_ms, hour=hour, needed=self._needed(), asked=asked
        )

    def _delete_some(self, now: Now) -> None:
        """Go on with a deletion for as long as this turn may take."""
        self._deletion_now = now
        try:
            if self._deletion is not None and not advance(self._deletion, self._outbox, DELETION_US):
                self._schedule.at(now.mono_ms + 1, self._delete_some)
                return
        except StoreError as error:
            log.error("retention: %s", error)
        self._deletion = None

    def _delete(self, decision: Decision, *, asked: bool) -> Iterator[None]:
        """Delete log files in steps: each queue is corrected, of which there may be many."""
        store = self._store

        def is_still_expired() -> bool:
            now = self._deletion_now
            return store.log.start in {
                segment.start for segment in self._decision(self._disk.usage(), now, asked=asked).delete
            }

        self._expired_end = 0
        for segment in decision.delete:
            if segment.end > store.marks.synced:
                self._expired_end = segment.end
                self._flush_queues(self._deletion_now)
                self._begin_sync(self._deletion_now)
                # Deleted before its queue entries are synced, its queues would restart lower after a power loss.
                return
            for _ in store.dropping_first_segment(is_still_expired):
                yield
            if store.log.start < segment.end:
                return
            self._log_deleted(segment, decision.forced)

    def _needed(self) -> dict[str, int]:
        return self._features.needs_log_from()

    def _log_deleted(self, segment: LogSegment, forced: str) -> None:
        if forced:
            log.warning(
                "retention: deleted log=[%d,%d) although needed by %s: the disk is too full",
                segment.start,
                segment.end,
                forced,
            )
        else:
            log.info("retention: deleted log=[%d,%d)", segment.start, segment.end)

    def _log_kept(self, kept_for: str) -> None:
        if kept_for != self._kept_for:
            self._kept_for = kept_for
            if kept_for:
                log.warning("retention: an expired file stays, it is needed by %s", kept_for)

    def _set_full(self, is_full: bool, ratio: float) -> None:
        if is_full == self.is_full:
            return
        self.is_full = is_full
        puts = self._puts
        if is_full:
            puts.refuse(DISK_FULL, FULL_REMARK.format(ratio, self.retention.full_ratio))
            log.error("retention: the disk is %.0f%% full, messages are refused", ratio * 100)
        else:
            puts.admit(DISK_FULL)
            log.warning("retention: the disk is %.0f%% full, messages are accepted again", ratio * 100)
