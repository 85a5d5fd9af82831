"""Lag of consumer groups in messages and time, and connected clients, under RocketMQ 5's names.

    committed offset ──── in flight ──── next offset to pull ──── ready ──── end of the queue
    └───────────────────────────────── lag ───────────────────────────────┘

The lag in time is the age of the first message not committed. That needs its record, so the time is kept as long as the
offset stays the same, and at most READS_PER_SLICE records are read per slice. Of a group's members only the one that
consumers commit to exports lag: the others have copies of the offsets, and a sum over the group would count them twice.
Source: docs/guides/monitoring.md; RocketMQ ConsumerLagCalculator.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tandemq.boundary import Now
from tandemq.broker.features.statistics.topic_metrics import is_retry_topic, is_system_topic, truth
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.pulls import Pulls
from tandemq.broker.state.clients import Member
from tandemq.broker.state.consumer_offsets import SEPARATOR
from tandemq.errors import StoreError
from tandemq.model.topic import is_system_group
from tandemq.telemetry.families import PAUSE_EVERY, Batch, Family, Labels, Source, Values, gauge

READS_PER_SLICE = 16
VERSION_MAX = 999
"""Clients choose the version they report; larger numbers are reported as unknown, so that labels stay few."""
_BY_GROUP = ("consumer_group", "topic", "is_retry", "is_system")
LAG = gauge("rocketmq_consumer_lag_messages", "Messages that a group has not committed.", *_BY_GROUP)
LAG_MS = gauge(
    "rocketmq_consumer_lag_latency_milliseconds",
    "Age of the oldest message that a group has not committed.",
    *_BY_GROUP,
)
IN_FLIGHT = gauge("rocketmq_consumer_inflight_messages", "Messages pulled by a group and not committed.", *_BY_GROUP)
QUEUEING_MS = gauge(
    "rocketmq_consumer_queueing_latency_milliseconds", "Age of the oldest message not pulled by a group.", *_BY_GROUP
)
READY = gauge("rocketmq_consumer_ready_messages", "Messages that a group has not pulled.", *_BY_GROUP)
PRODUCERS = gauge("rocketmq_producer_connections", "Connections of producers.", "language", "version", "protocol_type")
CONSUMERS = gauge(
    "rocketmq_consumer_connections",
    "Connections of consumers.",
    "language",
    "version",
    "protocol_type",
    "consumer_group",
    "consume_mode",
    "is_system",
)
_MODES = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}


class _KnownTime(NamedTuple):
    """Store time of the message at an offset of a queue."""

    offset: int
    stored_ms: int


_Spans = dict[int, tuple[int, int]]
"""Lowest offset and end of each queue of a topic, by queue id."""


class _GroupLag:
    """Lag of one group in one topic at the last count, and the inputs of that count.

    `since_ms` and `queueing_since_ms` are store times of the oldest messages not committed and not pulled, 0: none.
    """

    __slots__ = (
        "committed",
        "committed_times",
        "group",
        "in_flight",
        "labels",
        "pulled",
        "pulled_times",
        "queueing_since_ms",
        "ready",
        "since_ms",
        "spans",
        "topic",
    )

    def __init__(self, key: str) -> None:
        self.topic, _, self.group = key.partition(SEPARATOR)
        system = truth(is_system_topic(self.topic) or is_system_group(self.group))
        self.labels: Labels = (self.group, self.topic, truth(is_retry_topic(self.topic)), system)
        self.spans: _Spans = {}
        self.committed: dict[int, int] = {}
        self.pulled: dict[int, int] = {}
        self.committed_times: dict[int, _KnownTime] = {}
        """Of the first message not committed, by queue."""
        self.pulled_times: dict[int, _KnownTime] = {}
        """Of the first message not pulled, if that is another one."""
        self.in_flight = self.ready = self.since_ms = self.queueing_since_ms = 0


_NO_OFFSETS: dict[int, int] = {}


class ConsumerMetrics(Feature):
    """The source of the families above."""

    def __init__(self, kernel: Kernel) -> None:
        """Begin."""
        self._turn = kernel.turn
        self._store = kernel.store
        self._offsets = kernel.offsets
        self._counters = kernel.features.find(Pulls).counters
        self._clients = kernel.clients
        self._lags: dict[str, _GroupLag] = {}
        """By topic and group, of the last collection."""
        self._reads = 0

    def sources(self) -> Sequence[Source]:
        """See `Feature`."""
        return (self.collect,)

    def collect(self, now: Now) -> Iterator[Batch | None]:
        """Yield the batches."""
        if self._turn.serving.keeps_offsets:
            yield from self._collect_lags(now)
        yield from self._collect_clients()

    def _collect_lags(self, now: Now) -> Iterator[Batch | None]:
        """Yield the families of lag. Lags whose inputs have not changed are not counted again."""
        found: dict[Family, Values] = {family: {} for family in (LAG, LAG_MS, IN_FLIGHT, QUEUEING_MS, READY)}
        lags, lag_times, in_flight, queueing_times, ready = found.values()
        spans_by_topic: dict[str, _Spans] = {}
        yield from self._collect_spans(spans_by_topic)
        kept: dict[str, _GroupLag] = {}
        wall_ms, by_group, table = now.wall_ms, self._counters.by_group, self._offsets.table
        for number, key in enumerate(list(table)):
            lag = kept[key] = self._lags.get(key) or _GroupLag(key)
            spans = spans_by_topic.get(lag.topic, {})
            committed = table.get(key, _NO_OFFSETS)
            counts = by_group.get((lag.topic, lag.group))
            pulled = counts.next_offsets if counts is not None else _NO_OFFSETS
            if lag.committed != committed or lag.spans != spans or lag.pulled != pulled:
                lag.committed, lag.spans, lag.pulled = committed.copy(), spans, pulled.copy()
                yield from self._count(lag)
            labels, since_ms, queueing_ms = lag.labels, lag.since_ms, lag.queueing_since_ms
            lags[labels] = lag.in_flight + lag.ready
            in_flight[labels] = lag.in_flight
            ready[labels] = lag.ready
            lag_times[labels] = wall_ms - since_ms if 0 < since_ms < wall_ms else 0
            queueing_times[labels] = wall_ms - queueing_ms if 0 < queueing_ms < wall_ms else 0
            if number % (PAUSE_EVERY // 4) == 0:
                yield None
        self._lags = kept
        for family, values in found.items():
            yield Batch(family, values)

    def _collect_spans(self, spans_by_topic: dict[str, _Spans]) -> Iterator[None]:
        """Note the offsets of all queues of topics that some group has offsets of."""
        for number, key in enumerate(list(self._offsets.table)):
            spans_by_topic[key.partition(SEPARATOR)[0]] = {}
            if number % PAUSE_EVERY == 0:
                yield None
        for number, ((topic, queue_id), queue) in enumerate(list(self._store.queues.items())):
            spans = spans_by_topic.get(topic)
            if spans is not None:
                spans[queue_id] = queue.min_offset, queue.max_offset
            if number % PAUSE_EVERY == 0:
                yield None

    def _count(self, lag: _GroupLag) -> Iterator[None]:
        """Add up the queues of one group and topic; times of offsets that are not the first any more are forgotten."""
        lag.in_flight = lag.ready = lag.since_ms = lag.queueing_since_ms = 0
        committed_times: dict[int, _KnownTime] = {}
        pulled_times: dict[int, _KnownTime] = {}
        for queue_id, committed in lag.committed.items():
            low, end = lag.spans.get(queue_id, (0, 0))
            if committed >= end:
                continue
            first = max(committed, low)
            following = min(max(first, lag.pulled.get(queue_id, 0)), end)
            lag.in_flight += following - first
            lag.ready += end - following
            time = lag.committed_times.get(queue_id)
            if time is None or time.offset != first:
                time = self._read(lag.topic, queue_id, first)
            committed_times[queue_id] = time
            if time.stored_ms and (time.stored_ms < lag.since_ms or not lag.since_ms):
                lag.since_ms = time.stored_ms
            if following < end:
                if following != first:
                    time = lag.pulled_times.get(queue_id)
                    if time is None or time.offset != following:
                        time = self._read(lag.topic, queue_id, following)
                    pulled_times[queue_id] = time
                if time.stored_ms and (time.stored_ms < lag.queueing_since_ms or not lag.queueing_since_ms):
                    lag.queueing_since_ms = time.stored_ms
            if self._reads >= READS_PER_SLICE:
                self._reads = 0
                yield None
        lag.committed_times, lag.pulled_times = committed_times, pulled_times

    def _read(self, topic: str, queue_id: int, offset: int) -> _KnownTime:
        """Read the store time of a message, 0 if that is not possible."""
        self._reads += 1
        queue = self._store.queues.get((topic, queue_id))
        if queue is None:
            return _KnownTime(offset, 0)
        try:
            return _KnownTime(offset, self._store.stored_ms(queue, offset))
        except StoreError:
            return _KnownTime(offset, 0)

    def _collect_clients(self) -> Iterator[Batch | None]:
        producers: Values = {}
        counted = 0
        for members in list(self._clients.producers.values()):
            for member in list(members.values()):
                _count(producers, _client_labels(member))
                counted += 1
                if counted % PAUSE_EVERY == 0:
                    yield None
        consumers: Values = {}
        for group in list(self._clients.consumers.values()):
            of_group = group.name, _MODES.get(group.consume_type, "push"), truth(is_system_group(group.name))
            for member in list(group.members.values()):
                _count(consumers, (*_client_labels(member), *of_group))
                counted += 1
                if counted % PAUSE_EVERY == 0:
                    yield None
        yield Batch(PRODUCERS, producers)
        yield Batch(CONSUMERS, consumers)


def _client_labels(member: Member) -> Labels:
    version = str(member.version) if 0 <= member.version <= VERSION_MAX else "unknown"
    return member.language.lower(), version, "remoting"


def _count(values: Values, labels: Labels) -> None:
    values[labels] = values.get(labels, 0) + 1
