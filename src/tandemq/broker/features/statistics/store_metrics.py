"""The store: log offsets, disk, and retention.

Source: docs/guides/monitoring.md; RocketMQ DefaultStoreMetricsManager.
"""

from collections.abc import Iterator, Sequence

from tandemq.boundary import Now
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.labels import LOCAL_DISK, LOCAL_LABELS
from tandemq.errors import StoreError
from tandemq.telemetry.families import Batch, Source, gauge, single

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


class StoreMetrics(Feature):
    """The source of the families above."""

    def __init__(self, kernel: Kernel) -> None:
        """Begin."""
        self._store = kernel.store
        self._disk = kernel.disk
        self._puts = kernel.puts
        self._write_failures = kernel.write_failures
        self._current = kernel.current
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
        yield single(REFUSING, self._puts.refusal is not None)
        yield single(WRITE_FAILURES, self._write_failures.count)
        yield from self._collect_disk()

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
