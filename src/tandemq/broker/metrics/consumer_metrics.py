"""Lag of consumer groups in messages and time, and connected clients, under RocketMQ 5's names.

    committed offset ──── in flight ──── next offset to pull ──── ready ──── end of the queue
    └───────────────────────────────── lag ───────────────────────────────┘

The lag in time is the age of the first message not committed. That needs its record, so the time is kept as long as the
offset stays the same, and at most READS_PER_SLICE records are read per slice. Of a group's members only the one that
consumers commit to exports lag: the others have copies of the offsets, and a sum over the group would count them twice.
Source: docs/guides/monitoring.md; RocketMQ ConsumerLagCalculator.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tandemq.boundary import Now
from tandemq.broker.metrics.topic_metrics import is_retry_topic, is_system_topic, truth
from tandemq.broker.pull.counters import PullCounters
from tandemq.broker.role import CurrentRole
from tandemq.broker.state.clients import Clients, Member
from tandemq.broker.state.consumer_offsets import SEPARATOR, ConsumerOffsets
from tandemq.errors import StoreError
from tandemq.model.topic import is_system_group
from tandemq.storage.consume_queue import ConsumeQueue
from tandemq.storage.store import Store
from tandemq.telemetry.families import PAUSE_EVERY, Batch, Family, Labels, Values, gauge

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
_MODES = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push"}


class _KnownTime(NamedTuple):
    """Store time of the message at an offset of a queue."""

    offset: int
    stored_ms: int


class _KnownTimes:
    """What is kept of one group and topic: labels, and store times of the first messages by queue."""

    __slots__ = ("committed", "group", "labels", "pulled", "topic")

    def __init__(self, key: str) -> None:
        self.topic, _, self.group = key.partition(SEPARATOR)
        system = truth(is_system_topic(self.topic) or is_system_group(self.group))
        self.labels: Labels = (self.group, self.topic, truth(is_retry_topic(self.topic)), system)
        self.committed: dict[int, _KnownTime] = {}
        """Of the first message not committed."""
        self.pulled: dict[int, _KnownTime] = {}
        """Of the first message not pulled, if that is another one."""


class _Lag:
    """Lag of one group in one topic; store times of the oldest messages not committed and not pulled, 0: none."""

    __slots__ = ("in_flight", "queueing_since_ms", "ready", "since_ms")

    def __init__(self) -> None:
        self.in_flight = self.ready = self.since_ms = self.queueing_since_ms = 0


class ConsumerMetrics:
    """The source of the families above."""

    def __init__(
        self, store: Store, offsets: ConsumerOffsets, counters: PullCounters, clients: Clients, role: CurrentRole
    ) -> None:
        """Take the collaborators."""
        self._role = role
        self._store = store
        self._offsets = offsets
        self._counters = counters
        self._clients = clients
        self._known: dict[str, _KnownTimes] = {}
        """By topic and group, of the last collection."""
        self._reads = 0

    def collect(self, now: Now) -> Iterator[Batch | None]:
        """Yield the batches."""
        if self._role.role.keeps_offsets(now):
            yield from self._collect_lags(now)
        yield from self._collect_clients()

    def _collect_lags(self, now: Now) -> Iterator[Batch | None]:
        found: dict[Family, Values] = {family: {} for family in (LAG, LAG_MS, IN_FLIGHT, QUEUEING_MS, READY)}
        lags, lag_times, in_flight, queueing_times, ready = found.values()
        known: dict[str, _KnownTimes] = {}
        for number, key in enumerate(list(self._offsets.table)):
            lag = _Lag()
            times = known[key] = self._known.get(key) or _KnownTimes(key)
            yield from self._walk(key, lag, times)
            labels = times.labels
            lags[labels] = lag.in_flight + lag.ready
            in_flight[labels] = lag.in_flight
            ready[labels] = lag.ready
            lag_times[labels] = max(0, now.wall_ms - lag.since_ms) if lag.since_ms else 0
            queueing_times[labels] = max(0, now.wall_ms - lag.queueing_since_ms) if lag.queueing_since_ms else 0
            if number % (PAUSE_EVERY // 4) == 0:
                yield None
        self._known = known
        for family, values in found.items():
            yield Batch(family, values)

    def _walk(self, key: str, lag: _Lag, times: _KnownTimes) -> Iterator[None]:
        """Add up the queues of one group and topic; times of offsets that are not the first any more are forgotten."""
        topic, queues = times.topic, self._store.queues
        counts = self._counters.by_group.get((topic, times.group))
        pulled = counts.next_offsets if counts is not None else {}
        committed_times: dict[int, _KnownTime] = {}
        pulled_times: dict[int, _KnownTime] = {}
        for queue_id, committed in list(self._offsets.table.get(key, {}).items()):
            queue = queues.get((topic, queue_id))
            if queue is None or committed >= queue.max_offset:
                continue
            end, first = queue.max_offset, max(committed, queue.min_offset)
            following = min(max(first, pulled.get(queue_id, 0)), end)
            lag.in_flight += following - first
            lag.ready += end - following
            time = times.committed.get(queue_id)
            if time is None or time.offset != first:
                time = self._read(queue, first)
            committed_times[queue_id] = time
            if time.stored_ms and (time.stored_ms < lag.since_ms or not lag.since_ms):
                lag.since_ms = time.stored_ms
            if following < end:
                if following != first:
                    time = times.pulled.get(queue_id)
                    if time is None or time.offset != following:
                        time = self._read(queue, following)
                    pulled_times[queue_id] = time
                if time.stored_ms and (time.stored_ms < lag.queueing_since_ms or not lag.queueing_since_ms):
                    lag.queueing_since_ms = time.stored_ms
            if self._reads >= READS_PER_SLICE:
                self._reads = 0
                yield None
        times.committed, times.pulled = committed_times, pulled_times

    def _read(self, queue: ConsumeQueue, offset: int) -> _KnownTime:
        """Read the store time of a message, 0 if that is not possible."""
        self._reads += 1
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
