"""Rates and lag of the cluster, of topics and of consumer groups in the last hour, for charts; in memory only.

A sample compares two tables of the progress of all groups: what the queues have grown by was sent, what the committed
offsets have grown by was consumed. Only queues in both tables count, so a broker that is away makes no jump. A series
takes at most `SAMPLES_MAX` * 24 bytes, and there are at most `NAMES_MAX` of topics and as many of groups.
"""

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tandemq.client.admin.groups import ConsumeProgress
from tandemq.model.message import MessageQueue
from tandemq.model.topic import RETRY_PREFIX, is_system_group

SPAN_MS = 3_600_000
SAMPLES_MAX = 120
NAMES_MAX = 10_000
GAP_MS_MIN = 500
"""Two samples that are closer together are one."""
Progress = Mapping[str, Mapping[MessageQueue, ConsumeProgress]]
"""Progress by group."""


@dataclass(frozen=True, slots=True)
class Point:
    """A sample. Rates: messages per second since the one before."""

    at_ms: int
    lag: int
    sent: float
    consumed: float


class SampleSeries:
    """Samples of one name, oldest first."""

    __slots__ = ("_consumed", "_lags", "_sent", "_times")

    def __init__(self) -> None:
        """Empty."""
        self._times, self._lags = array("q"), array("q")
        self._sent, self._consumed = array("f"), array("f")

    def append(self, point: Point) -> None:
        """Add a sample, and drop those that are older than an hour."""
        count = len(self._times)
        old = max(0, count + 1 - SAMPLES_MAX)
        while old < count and self._times[old] < point.at_ms - SPAN_MS:
            old += 1
        columns: tuple[tuple[array[int] | array[float], int | float], ...] = (
            (self._times, point.at_ms),
            (self._lags, point.lag),
            (self._sent, point.sent),
            (self._consumed, point.consumed),
        )
        for column, value in columns:
            del column[:old]
            column.append(value)  # type: ignore[arg-type]  # each column has its type

    def points(self) -> list[Point]:
        """Return the samples."""
        columns = zip(self._times, self._lags, self._sent, self._consumed, strict=True)
        return [Point(at_ms, lag, sent, consumed) for at_ms, lag, sent, consumed in columns]

    def lags(self) -> list[int]:
        """Return the lag of each sample."""
        return self._lags.tolist()


@dataclass(slots=True)
class _Sums:
    """Lag, and messages sent and consumed since the sample before."""

    lag: int = 0
    sent: int = 0
    consumed: int = 0


class RateHistory:
    """The series. Owner: the event loop."""

    def __init__(self) -> None:
        """Empty."""
        self._groups: dict[str, SampleSeries] = {}
        self._topics: dict[str, SampleSeries] = {}
        self._cluster = SampleSeries()
        self._before: tuple[int, Progress, Mapping[MessageQueue, int]] | None = None

    def record(self, at_ms: int, progress: Progress, ends: dict[MessageQueue, int]) -> None:
        """Add a sample of every group and topic; the first one has no rates, and is kept to compare with.

        Args:
            at_ms: calendar time.
            progress: of all groups.
            ends: end offsets of queues that no group reads.
        """
        present = {queue: one.broker_offset for queues in progress.values() for queue, one in queues.items()} | ends
        before = self._before
        if before is not None and at_ms - before[0] < GAP_MS_MIN:
            return
        self._before = at_ms, progress, present
        if before is None:
            return
        seconds = (at_ms - before[0]) / 1000
        topics: dict[str, _Sums] = {}
        for queue, end in present.items():
            if not queue.topic.startswith(RETRY_PREFIX):
                sums = topics.setdefault(queue.topic, _Sums())
                sums.sent += max(0, end - before[2].get(queue, end))
        groups = {
            name: _sums_of(queues, before[1].get(name, {}), topics)
            for name, queues in progress.items()
            if not is_system_group(name)
        }
        _append(self._groups, groups, at_ms, seconds)
        _append(self._topics, topics, at_ms, seconds)

    def record_cluster(self, point: Point) -> None:
        """Add a sample of the whole cluster."""
        self._cluster.append(point)

    def of_group(self, name: str) -> list[Point]:
        """Return the samples of a group, oldest first."""
        return self._groups[name].points() if name in self._groups else []

    def lags_of(self, group: str) -> list[int]:
        """Return the lag of a group in each sample, oldest first."""
        return self._groups[group].lags() if group in self._groups else []

    def of_topic(self, name: str) -> list[Point]:
        """Return the samples of a topic, oldest first; its lag is that of all groups in it."""
        return self._topics[name].points() if name in self._topics else []

    def of_cluster(self) -> list[Point]:
        """Return the samples of the cluster, oldest first."""
        return self._cluster.points()


def _sums_of(
    queues: Mapping[MessageQueue, ConsumeProgress],
    before: Mapping[MessageQueue, ConsumeProgress],
    topics: Mapping[str, _Sums],
) -> _Sums:
    """Return the sums of a group, and add its lag and what it consumed to those of its topics."""
    found = _Sums()
    for queue, now in queues.items():
        old = before.get(queue, now)
        consumed = max(0, now.consumer_offset - old.consumer_offset)
        found.lag += now.lag
        found.sent += max(0, now.broker_offset - old.broker_offset)
        found.consumed += consumed
        if queue.topic in topics:
            topics[queue.topic].lag += now.lag
            topics[queue.topic].consumed += consumed
    return found


def _append(series: dict[str, SampleSeries], sums: Mapping[str, _Sums], at_ms: int, seconds: float) -> None:
    """Add a sample to each series; remove those of names that are gone."""
    for name in series.keys() - sums.keys():
        del series[name]
    for name, one in sums.items():
        if name not in series:
            if len(series) >= NAMES_MAX:
                continue
            series[name] = SampleSeries()
        series[name].append(Point(at_ms, one.lag, one.sent / seconds, one.consumed / seconds))


def sampling_pauses(first_s: float, last_s: float) -> Iterator[float]:
    """Yield the pauses between samples, in seconds: short ones at first, so that charts soon have a line."""
    uptime_s = 0.0
    while True:
        pause_s = min(last_s, max(first_s, uptime_s / 10))
        uptime_s += pause_s
        yield pause_s
