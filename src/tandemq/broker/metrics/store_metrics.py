"""The store: log offsets, disk, retention, and the verification of the log.

Source: docs/guides/monitoring.md; RocketMQ DefaultStoreMetricsManager.
"""

from collections.abc import Iterator, Sequence

from tandemq.boundary import Disk, Now
from tandemq.broker.integrity.scrubber import Scrubber
from tandemq.broker.kernel.context import CurrentConfig
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.labels import LOCAL_DISK, LOCAL_LABELS
from tandemq.broker.maintenance.upkeep import Upkeep
from tandemq.broker.send.processor import SendPath
from tandemq.broker.state.damage_table import Damages
from tandemq.errors import StoreError
from tandemq.storage.store import Store
from tandemq.telemetry.families import Batch, Source, counter, gauge, single

SIZE = gauge("rocketmq_storage_size_bytes", "Bytes of the commit log.", *LOCAL_LABELS)
FLUSH_BEHIND = gauge("rocketmq_storage_flush_behind_bytes", "Bytes of the log written and not synced.", *LOCAL_LABELS)
DISPATCH_BEHIND = gauge(
    "rocketmq_storage_dispatch_behind_bytes", "Always 0: queues are entered in the turn of the write.", *LOCAL_LABELS
)
RESERVE_MS = gauge(
    "rocketmq_storage_message_reserve_time_milliseconds", "Age of the oldest message of the log.", *LOCAL_LABELS
)
PERMISSION = gauge("rocketmq_broker_permission", "brokerPermission: 4 is read, 2 is write, 6 is both.")
START = gauge("tandemq_store_start_offset", "Log offset of the oldest byte of the commit log.")
END = gauge("tandemq_store_end_offset", "Log offset behind the last byte of the commit log.")
FLUSHED = gauge("tandemq_store_flushed_offset", "Log offset up to which the log is synced.")
REFUSING = gauge("tandemq_store_refusing", "Whether sends are refused at present, for whatever reason.")
WRITE_FAILURES = gauge("tandemq_store_write_failures", "Consecutive failed writes to the commit log.")
DISK_RATIO = gauge("tandemq_disk_used_ratio", "Used share of the store's device.")
DISK_FREE = gauge("tandemq_disk_free_bytes", "Free bytes of the store's device.")
SCRUB_RATIO = gauge("tandemq_scrub_position_ratio", "Share of the commit log that this pass has verified.")
SCRUB_PASS = gauge(
    "tandemq_scrub_last_pass_timestamp_seconds", "Calendar time of the end of the last complete pass; 0: none yet."
)
SCRUB_BYTES = gauge("tandemq_scrub_pass_bytes", "Bytes that this pass has verified.")
DAMAGED = gauge("tandemq_damaged_ranges", "Damaged ranges of the commit log.", "state")
REPAIRED = counter("tandemq_repaired_ranges_total", "Damaged ranges that were repaired.")


class StoreMetrics(Feature):
    """The source of the families above."""

    def __init__(
        self,
        store: Store,
        disk: Disk,
        send: SendPath,
        upkeep: Upkeep,
        scrubber: Scrubber,
        damages: Damages,
        current: CurrentConfig,
    ) -> None:
        """Take the collaborators."""
        self._store = store
        self._disk = disk
        self._send = send
        self._upkeep = upkeep
        self._scrubber = scrubber
        self._damages = damages
        self._current = current
        self._oldest = (-1, 0)
        """Log offset and store time of the oldest record, when it was read last."""

    def sources(self) -> Sequence[Source]:
        """See `Feature`."""
        return (self.collect,)

    def collect(self, now: Now) -> Iterator[Batch | None]:
        """Yield the batches."""
        log = self._store.log
        yield Batch(SIZE, {LOCAL_DISK: log.written_end - log.start})
        yield Batch(FLUSH_BEHIND, {LOCAL_DISK: log.written_end - log.flushed_offset})
        yield Batch(DISPATCH_BEHIND, {LOCAL_DISK: 0})
        yield Batch(RESERVE_MS, {LOCAL_DISK: self._oldest_ms(now)})
        yield single(PERMISSION, self._current.config.permission)
        yield single(START, log.start)
        yield single(END, log.written_end)
        yield single(FLUSHED, log.flushed_offset)
        yield single(REFUSING, self._send.refusal is not None)
        yield single(WRITE_FAILURES, self._upkeep.write_failures.count)
        yield from self._collect_disk()
        yield from self._collect_integrity()

    def _oldest_ms(self, now: Now) -> int:
        log = self._store.log
        if log.start >= log.written_end:
            return 0
        if self._oldest[0] != log.start:
            try:
                self._oldest = (log.start, self._store.store_time(log.start, 0))
            except StoreError:
                return 0
        return max(0, now.wall_ms - self._oldest[1]) if self._oldest[1] else 0

    def _collect_disk(self) -> Iterator[Batch]:
        try:
            usage = self._disk.usage()
        except StoreError:
            return
        yield single(DISK_RATIO, usage.ratio)
        yield single(DISK_FREE, usage.free_bytes)

    def _collect_integrity(self) -> Iterator[Batch]:
        scrubber, log = self._scrubber, self._store.log
        until, start = scrubber.current_pass.until, log.start
        whole = max(1, until - start)
        yield single(SCRUB_RATIO, min(1.0, max(0, scrubber.position - start) / whole) if until else 0.0)
        yield single(SCRUB_PASS, scrubber.last_pass.ended_ms / 1000)
        yield single(SCRUB_BYTES, scrubber.current_pass.bytes)
        ranges = self._damages.ranges
        lost, unread = sum(one.is_lost for one in ranges), sum(one.is_unread and not one.is_lost for one in ranges)
        waits = len(ranges) - lost - unread
        yield Batch(DAMAGED, {("waits",): waits, ("lost",): lost, ("unread",): unread})
        yield single(REPAIRED, self._damages.repaired_total)
