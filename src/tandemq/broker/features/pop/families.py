"""POP consumption: messages that come back and progress of the revive topic, under RocketMQ's names; pops and
acknowledgements under our own, as RocketMQ counts none.

Source: docs/reference/pop.md; RocketMQ PopMetricsManager.
"""

from collections.abc import Iterator, Sequence

from tandemq.boundary import Now
from tandemq.broker.features.pop.acks import Acks
from tandemq.broker.features.pop.processor import PopProcessor
from tandemq.broker.features.pop.revive import Revival
from tandemq.broker.kernel.feature import Feature
from tandemq.telemetry.families import Batch, Source, counter, gauge, single

REVIVED = counter(
    "rocketmq_pop_revive_retry_messages_total",
    "Messages that came back because they were not acknowledged.",
    "topic",
    "consumer_group",
)
LAG = gauge("rocketmq_pop_revive_lag", "Records of the revive topic that are not done with.", "queue_id")
LATENCY = gauge(
    "rocketmq_pop_revive_latency", "How long the oldest message that has to come back is late, ms.", "queue_id"
)
POPPED = counter("tandemq_popped_messages_total", "Messages that consumers popped.")
ACKED = counter("tandemq_pop_acknowledged_total", "Popped messages that were acknowledged.")
DEAD = counter("tandemq_pop_dead_letters_total", "Popped messages that became dead letters.")
WAITING = gauge("tandemq_pops_waiting", "Pops that wait for messages.")


class PopFamilies(Feature):
    """The source of the families above."""

    def __init__(self, pops: PopProcessor, acks: Acks, revival: Revival) -> None:
        """Take what counts."""
        self._pops = pops
        self._acks = acks
        self._revival = revival

    def sources(self) -> Sequence[Source]:
        """See `Feature`."""
        return (self.collect,)

    def collect(self, now: Now) -> Iterator[Batch | None]:
        """Yield the batches; none of the progress on a slave, which has none of its own."""
        revival = self._revival
        if revival.is_loaded:
            lags = revival.lags(now)
            yield Batch(LAG, {(str(number),): lag.records for number, lag in lags.items()})
            yield Batch(LATENCY, {(str(number),): lag.late_ms for number, lag in lags.items()})
        yield Batch(REVIVED, {(topic, group): count for (topic, group), count in revival.revived.items()})
        yield single(POPPED, self._pops.popped)
        yield single(ACKED, self._acks.acked)
        yield single(DEAD, revival.dead_lettered)
        yield single(WAITING, self._pops.waiting.size)
