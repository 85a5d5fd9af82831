"""Messages and bytes in and out, by topic and group, under RocketMQ 5's names.

Nothing is counted per message: messages in are the growth of the queues (`Stats`), messages out the counters of pulls.
A delayed message counts in its own topic when it is delivered there.
Source: docs/guides/monitoring.md; RocketMQ BrokerMetricsManager.
"""

from collections.abc import Iterator, Sequence

from tandemq.boundary import Now
from tandemq.broker.features.statistics.stats import SIZE_BOUNDS, Stats
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.pulls import Pulls
from tandemq.model.topic import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_TOPICS, is_system_group
from tandemq.telemetry.families import (
    PAUSE_EVERY,
    Batch,
    Distribution,
    Labels,
    Source,
    Values,
    counter,
    gauge,
    histogram,
    single,
)

_IN, _OUT = ("topic", "message_type", "is_system"), ("topic", "consumer_group", "is_system")
MESSAGES_IN = counter("rocketmq_messages_in_total", "Messages stored for producers since the start.", *_IN)
THROUGHPUT_IN = counter("rocketmq_throughput_in_total", "Bytes of their records, counted each 10 s.", *_IN)
MESSAGE_SIZE = histogram(
    "rocketmq_message_size", "Sizes of stored records, bytes, counted each 10 s.", *_IN, bounds=SIZE_BOUNDS
)
MESSAGES_OUT = counter("rocketmq_messages_out_total", "Messages sent to consumers since the start.", *_OUT)
THROUGHPUT_OUT = counter("rocketmq_throughput_out_total", "Bytes of their records.", *_OUT)
TO_DLQ = counter(
    "rocketmq_send_to_dlq_messages_total",
    "Messages stored in dead letter topics since the start.",
    "consumer_group",
    "topic",
    "is_system",
)
TOPIC_NUMBER = gauge("rocketmq_topic_number", "Topics of this broker.")
GROUP_NUMBER = gauge("rocketmq_consumer_group_number", "Consumer groups of this broker.")
QUEUES_PER_SLICE = 500
_TYPES = {"FIFO": "fifo", "DELAY": "delay", "TRANSACTION": "transaction"}


def truth(value: bool) -> str:
    """Return a label value."""
    return "true" if value else "false"


def is_system_topic(topic: str) -> bool:
    """Return whether a topic is RocketMQ's own."""
    return topic in SYSTEM_TOPICS


def is_retry_topic(topic: str) -> bool:
    """Return whether a topic holds messages that a group did not consume."""
    return topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


class TopicMetrics(Feature):
    """The source of the families above."""

    def __init__(self, kernel: Kernel, stats: Stats) -> None:
        """Begin."""
        self._store = kernel.store
        self._topics = kernel.topics
        self._groups = kernel.groups
        self._counters = kernel.features.find(Pulls).counters
        self._stats = stats

    def sources(self) -> Sequence[Source]:
        """See `Feature`."""
        return (self.collect,)

    def collect(self, _now: Now) -> Iterator[Batch | None]:
        """Yield the batches."""
        yield single(TOPIC_NUMBER, len(self._topics.table))
        yield single(GROUP_NUMBER, len(self._groups.table))
        yield from self._collect_in()
        yield from self._collect_out()

    def _collect_in(self) -> Iterator[Batch | None]:
        stats = self._stats
        grown: dict[str, int] = {}
        queues = list(self._store.queues.values())
        for start in range(0, len(queues), QUEUES_PER_SLICE):
            for topic, puts in stats.uncounted(queues[start : start + QUEUES_PER_SLICE]).items():
                grown[topic] = grown.get(topic, 0) + puts
            yield None
        messages: Values = {}
        size: Values = {}
        dead: Values = {}
        sizes: dict[Labels, Distribution] = {}
        for number, (topic, uncounted) in enumerate(grown.items()):
            labels = self._labels(topic)
            messages[labels] = stats.total("TOPIC_PUT_NUMS", topic) + uncounted
            size[labels] = stats.total("TOPIC_PUT_SIZE", topic)
            if topic in stats.sizes:
                sizes[labels] = Distribution(tuple(stats.sizes[topic]), size[labels])
            if topic.startswith(DLQ_PREFIX):
                dead[topic.removeprefix(DLQ_PREFIX), topic, labels[2]] = messages[labels]
            if number % PAUSE_EVERY == 0:
                yield None
        yield Batch(MESSAGES_IN, messages)
        yield Batch(THROUGHPUT_IN, size)
        yield Batch(MESSAGE_SIZE, distributions=sizes)
        yield Batch(TO_DLQ, dead)

    def _labels(self, topic: str) -> Labels:
        known = self._topics.table.get(topic)
        kind = "" if known is None else known.config.attributes.get("message.type", "")
        return topic, _TYPES.get(kind, "normal"), truth(is_system_topic(topic))

    def _collect_out(self) -> Iterator[Batch | None]:
        messages: Values = {}
        size: Values = {}
        for number, ((topic, group), counts) in enumerate(list(self._counters.by_group.items())):
            system = truth(is_system_topic(topic) or is_system_group(group))
            labels = topic, group, system
            messages[labels] = counts.messages
            size[labels] = counts.bytes
            if number % PAUSE_EVERY == 0:
                yield None
        yield Batch(MESSAGES_OUT, messages)
        yield Batch(THROUGHPUT_OUT, size)
