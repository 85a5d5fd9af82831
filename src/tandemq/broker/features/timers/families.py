"""Timed messages: how many wait, and how late they are delivered; under RocketMQ's names.

Source: docs/reference/timers.md; RocketMQ DefaultStoreMetricsConstant, TimerMetrics.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from tandemq.boundary import Now
from tandemq.broker.features.timers.metrics import DELAY_BOUNDS_S
from tandemq.broker.features.timers.service import TimedMessages
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.labels import LOCAL_DISK, LOCAL_LABELS
from tandemq.telemetry.families import PAUSE_EVERY, Batch, Distribution, Source, counter, gauge, histogram, single

BOUNDS_S = (5, 60, 300, 900, 3_600, 14_400, 28_800, 86_400)
WAITING = gauge(
    "rocketmq_timing_messages",
    "Timed messages that wait for their time; recalled ones count until then.",
    "topic",
    *LOCAL_LABELS,
)
SNAPSHOT = gauge(
    "rocketmq_timer_message_snapshot",
    "Timed messages by the time until they are due: at most timer_bound_s, but more than the bound before.",
    "timer_bound_s",
    *LOCAL_LABELS,
)
ENQUEUE_LAG = gauge(
    "rocketmq_timer_enqueue_lag", "Timed messages in the log that were not read yet, after a failover.", *LOCAL_LABELS
)
ENQUEUE_LATENCY = gauge(
    "rocketmq_timer_enqueue_latency_milliseconds",
    "Age of the oldest timed message in the log that was not read yet.",
    *LOCAL_LABELS,
)
DELAY = histogram(
    "rocketmq_delay_message_latency_seconds",
    "Delays of timed messages, when they were taken.",
    "topic",
    *LOCAL_LABELS,
    bounds=DELAY_BOUNDS_S,
)
DEQUEUE_LAG = gauge("rocketmq_timer_dequeue_lag", "Timed messages that are due and not delivered yet.", *LOCAL_LABELS)
DEQUEUE_LATENCY = gauge(
    "rocketmq_timer_dequeue_latency_milliseconds",
    "Time for which the oldest message that is due has been so.",
    *LOCAL_LABELS,
)
ENQUEUED = counter("rocketmq_timer_enqueue_total", "Timed messages that were taken.", "topic", *LOCAL_LABELS)
DEQUEUED = counter("rocketmq_timer_dequeue_total", "Timed messages that were delivered.", "topic", *LOCAL_LABELS)
DELETED = counter("tandemq_timers_deleted_total", "Timed messages that were recalled or deleted before their time.")
DAMAGED = gauge("tandemq_timers_damaged", "Timed messages that wait for the repair of their record.")


class TimedMessageMetrics(Feature):
    """The source of the families above."""

    def __init__(self, timers: TimedMessages) -> None:
        """Take the timed messages."""
        self._timers = timers

    def sources(self) -> Sequence[Source]:
        """See `Feature`."""
        return (self.collect,)

    def collect(self, now: Now) -> Iterator[Batch | None]:
        """Yield the batches; none of the waiting messages on a slave, which does not read them."""
        timers, metrics = self._timers, self._timers.metrics
        yield Batch(ENQUEUED, {(topic, *LOCAL_DISK): count for topic, count in metrics.enqueued_total.items()})
        yield Batch(DEQUEUED, {(topic, *LOCAL_DISK): count for topic, count in metrics.dequeued_total.items()})
        yield single(DELETED, metrics.deleted_total)
        table, progress = timers.table, timers.check(now)
        yield Batch(
            DELAY,
            distributions={
                (topic, *LOCAL_DISK): Distribution(tuple(delays.counts), delays.sum_s)
                for topic, delays in metrics.delays.items()
            },
        )
        yield Batch(ENQUEUE_LAG, {LOCAL_DISK: timers.unread()})
        yield Batch(ENQUEUE_LATENCY, {LOCAL_DISK: timers.unread_ms(now)})
        if table is None or progress is None:
            return
        yield single(DAMAGED, len(timers.damaged))
        yield Batch(DEQUEUE_LATENCY, {LOCAL_DISK: timers.behind_ms(now)})
        yield Batch(WAITING, {(topic, *LOCAL_DISK): count for topic, count in metrics.by_topic().items()})
        due, within = 0, dict.fromkeys(BOUNDS_S, 0)
        bounds_ms = [bound * 1_000 for bound in BOUNDS_S]
        for number, out_ms in enumerate(list(table.slots)):
            count = table.count_at(out_ms)
            left_ms = out_ms + timers.precision_ms - now.wall_ms
            due += count if left_ms <= 0 else 0
            bound_index = bisect_left(bounds_ms, left_ms)
            if left_ms > 0 and bound_index < len(BOUNDS_S):
                within[BOUNDS_S[bound_index]] += count
            if number % PAUSE_EVERY == 0:
                yield None
        yield Batch(DEQUEUE_LAG, {LOCAL_DISK: due})
        yield Batch(SNAPSHOT, {(str(bound), *LOCAL_DISK): count for bound, count in within.items()})
