"""Statistics of a broker: messages per topic and group, rates, totals per day, and send times.

The hot paths count per turn or per response; everything else is derived here from their counters:

    each second   totals of sends and pulls, for rates over 10, 60 and 600 s; replication rates; end of the day
    each 10 s     growth of every queue since the last sample: TOPIC_PUT_NUMS and TOPIC_PUT_SIZE
    each minute   a new histogram of send times; the last one is published

A send time is the time from the turn in which the send arrived to the turn in which its response was sent; 0 if that is
the same turn.
Source: docs/reference/requests.md, "statistics"; RocketMQ StoreStatsService, BrokerStatsManager, BrokerStats.
"""

import logging
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple

from tandemq.boundary import Now
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.pulls import Pulls
from tandemq.broker.kernel.statistics import Statistics
from tandemq.codec.record.entries import HOLE_SIZE_MIN
from tandemq.errors import StoreError
from tandemq.metrics import Histogram, Series, StatsSnapshot
from tandemq.not_cached import NotCached
from tandemq.storage.consume_queue import ConsumeQueue, unpack_entries
from tandemq.turn_budget import advance

log = logging.getLogger(__name__)
SECOND_MS = 1_000
SAMPLE_MS = (10_000, 600_000, 3_600_000)
"""Sampling periods of the minute, the hour and the day of a series."""
DAY_MS = 86_400_000
RATE_SPANS_S = (10, 60, 600)
SERIES_MAX = 50_000
SIZE_BOUNDS = (1_024, 4_096, 524_288, 1_048_576, 2_097_152, 4_194_304)
"""Upper bounds of the classes in which record sizes are counted, bytes; RocketMQ's."""
SIZES_READ_MAX = 4_096
"""Maximum number of entries read per queue and sample; the mean size of these is used for the rest."""
SIZES_READ_IN_ALL = 32_768
"""Maximum number of entries read per sample, but SIZES_READ_MIN of each queue in any case."""
SIZES_READ_MIN = 8
SAMPLE_US = 3_000
NOTED_AT_ONCE = 1_024
QUEUES_AT_ONCE = 8
SERIES_AT_ONCE = 256
"""Time for the samples of one turn; number of queues looked at, queues counted, and series sampled in one step."""


class Totals(NamedTuple):
    """Counters since the start."""

    puts: int
    finds: int
    """Pulls answered with messages."""
    misses: int
    """Pulls answered without messages."""
    given: int
    """Messages sent to consumers."""


class Rates(NamedTuple):
    """Growth per second over three spans, or since the start if that is shorter."""

    last_10_s: float
    last_60_s: float
    last_600_s: float


class CounterSummaries(NamedTuple):
    """Sum and rates of a counter in its last minute, hour and day."""

    minute: StatsSnapshot
    hour: StatsSnapshot
    day: StatsSnapshot


class Day(NamedTuple):
    """Messages in and out from the broker's start until the last two midnights."""

    puts_yesterday: int = 0
    puts_today: int = 0
    gets_yesterday: int = 0
    gets_today: int = 0


class _Growth(NamedTuple):
    """Messages of a queue that are not counted yet."""

    queue: ConsumeQueue
    messages: int
    end: int
    """Queue offset behind the last of them."""


class Stats(Feature, Statistics):
    """Statistics of one broker."""

    def __init__(self, kernel: Kernel) -> None:
        """Begin to sample; messages that are stored already do not count."""
        self._outbox = kernel.outbox
        self._store = kernel.store
        self._puts = kernel.puts
        self._counters = kernel.features.find(Pulls).counters
        self._turn = kernel.turn
        self._current = kernel.current
        self._utc_offset_s = kernel.machine.utc_offset_s
        self._series: dict[tuple[str, str], Series] = {}
        self._seen = {key: queue.max_offset for key, queue in kernel.store.queues.items()}
        """Queue offsets up to which messages are counted, or are in `_grown`."""
        self._grown: dict[tuple[str, int], _Growth] = {}
        """Messages that the sample in progress has still to count."""
        self._samples: dict[int, Iterator[None]] = {}
        """Samples in progress, by span."""
        self._was_master = False
        """The role in which the messages since the last count were stored."""
        self._given: dict[tuple[str, str], tuple[int, int, int]] = {}
        self.sizes: dict[str, list[int]] = {}
        """Number of records by SIZE_BOUNDS, the last for larger ones, by topic; estimated beyond SIZES_READ_MAX."""
        self._seconds: deque[tuple[int, Totals]] = deque([(kernel.began.mono_ms, self.totals())], RATE_SPANS_S[-1] + 1)
        self._sampled_ms = kernel.began.mono_ms
        """Time of the last sample of the minute; a new series counts from then on."""
        self._day_number = self._day_of(kernel.began)
        self.day = Day()
        self.last_put_times: Histogram | None = None
        """Send times of the last whole minute; None before the first has ended."""
        self.all_put_times = Histogram()
        """Send times of all whole minutes."""
        kernel.every(SECOND_MS, self._each_second)
        kernel.every(60 * SECOND_MS, self._each_minute)
        for span, period_ms in enumerate(SAMPLE_MS):
            kernel.every(partial(self._pause_ms, span, period_ms), partial(self._sample, span))

    # Counters by name and key, as mqadmin requests them.

    def add(self, name: str, key: str, amount: int, times: int) -> None:
        """Add to a counter."""
        series = self._series.get((name, key))
        if series is None:
            if len(self._series) >= SERIES_MAX:
                return
            series = self._series[name, key] = Series(self._sampled_ms)
        series.add(amount, times)

    def summaries(self, name: str, key: str) -> CounterSummaries | None:
        """Return the last minute, hour and day of a counter; None if there is no such counter."""
        series = self._series.get((name, key))
        return None if series is None else CounterSummaries(*map(series.summary, range(3)))

    def per_second(self, name: str, key: str) -> float:
        """Return the rate of a counter over the last minute."""
        series = self._series.get((name, key))
        return 0.0 if series is None else series.summary(0).per_second

    def total(self, name: str, key: str) -> int:
        """Return a counter's amount so far, 0 if there is no such counter."""
        series = self._series.get((name, key))
        return 0 if series is None else series.value

    def uncounted(self, queues: Iterable[ConsumeQueue]) -> dict[str, int]:
        """Return, by topic, the messages of queues that TOPIC_PUT_NUMS will have with the next sample."""
        seen, is_master = self._seen, self._was_master
        found: dict[str, int] = {}
        for queue in queues:
            key = queue.topic, queue.queue_id
            grown = max(0, queue.max_offset - seen.get(key, 0)) if is_master else 0
            if (waiting := self._grown.get(key)) is not None:
                grown += waiting.messages
            found[queue.topic] = found.get(queue.topic, 0) + grown
        return found

    def topic_removed(self, topic: str, _now: Now) -> None:
        """Remove the counters of a topic."""
        self._forget(lambda key: key.split("@")[0] == topic)
        self._seen = {key: seen for key, seen in self._seen.items() if key[0] != topic}
        self._grown = {key: grown for key, grown in self._grown.items() if key[0] != topic}
        self.sizes.pop(topic, None)

    def group_removed(self, group: str, _now: Now) -> None:
        """Remove the counters of a group."""
        self._forget(lambda key: key.partition("@")[2] == group)

    def _forget(self, is_gone: Callable[[str], bool]) -> None:
        for name, key in [found for found in self._series if is_gone(found[1])]:
            del self._series[name, key]

    def before_commit(self, _now: Now) -> None:
        """Count what was stored in another role, if the role has changed.

        So a new master does not count what it had copied, and one that becomes a slave does not lose what it stored.
        """
        is_master = self._turn.serving.is_master
        if is_master != self._was_master:
            self._note_growth(self._store.queues.items())
            self._was_master = is_master

    def _pause_ms(self, span: int, period_ms: int) -> int:
        return 1 if span in self._samples else period_ms

    def _sample(self, span: int, now: Now) -> None:
        """Begin a sample, or continue the one in progress."""
        steps = self._samples.setdefault(span, self._sampling(span, now.mono_ms))
        if advance(steps, self._outbox, SAMPLE_US):
            del self._samples[span]

    def _sampling(self, span: int, mono_ms: int) -> Iterator[None]:
        """Take a sample in steps: with many queues or counters it is too much for one turn."""
        if span == 0:
            queues = self._store.queues
            keys = list(queues)
            for first in range(0, len(keys), NOTED_AT_ONCE):
                some = keys[first : first + NOTED_AT_ONCE]
                self._note_growth((key, queues[key]) for key in some if key in queues)
                yield
            most = min(SIZES_READ_MAX, max(SIZES_READ_MIN, SIZES_READ_IN_ALL // (len(self._grown) or 1)))
            while self._grown:
                self._count_puts(most)
                yield
            self._count_gets()
        for number, series in enumerate(list(self._series.values()), 1):
            series.sample(span, mono_ms)
            if number % SERIES_AT_ONCE == 0:
                yield
        if span == 0:
            self._sampled_ms = mono_ms

    def _note_growth(self, queues: Iterable[tuple[tuple[str, int], ConsumeQueue]]) -> None:
        """Note the messages of queues since the last time; those that a slave copied were put at its master."""
        seen, is_master = self._seen, self._was_master
        for key, queue in queues:
            start, end = seen.get(key, 0), queue.max_offset
            if start == end:
                continue
            seen[key] = end
            if is_master and end > start:
                waiting = self._grown.get(key)
                self._grown[key] = _Growth(queue, end - start + (0 if waiting is None else waiting.messages), end)

    def _count_puts(self, most: int) -> None:
        """Count messages of up to QUEUES_AT_ONCE queues. `most`: maximum number of entries to read of each."""
        puts = 0
        for key in list(islice(self._grown, QUEUES_AT_ONCE)):
            queue, count, end = self._grown.pop(key)
            puts += count
            size = self._size_of(queue, end, count, most)
            self.add("TOPIC_PUT_NUMS", key[0], count, count)
            self.add("TOPIC_PUT_SIZE", key[0], size, count)
        self.add("BROKER_PUT_NUMS", self._current.config.cluster, puts, puts)

    def _size_of(self, queue: ConsumeQueue, end: int, count: int, most: int) -> int:
        """Return the bytes of the last records before a queue offset, estimated beyond `most`."""
        first = end - min(count, most)
        largest = min(self._store.config.segment_bytes, HOLE_SIZE_MIN - 1)  # damaged entries may state larger sizes
        try:
            _, stated = unpack_entries(queue.read(first, end - first, may_wait=False))
        except NotCached:
            return count * self.total("TOPIC_PUT_SIZE", queue.topic) // (self.total("TOPIC_PUT_NUMS", queue.topic) or 1)
        except StoreError as error:
            log.warning("stats: sizes in queue %s/%d were not counted: %s", queue.topic, queue.queue_id, error)
            return 0
        sizes = [size for size in stated if 0 < size <= largest]
        if not sizes:
            return 0
        self._count_sizes(queue.topic, sizes, count)
        return sum(sizes) * count // len(sizes)

    def _count_sizes(self, topic: str, sizes: list[int], count: int) -> None:
        counts = self.sizes.get(topic)
        if counts is None:
            if len(self.sizes) >= SERIES_MAX:
                return
            counts = self.sizes[topic] = [0] * (len(SIZE_BOUNDS) + 1)
        for size_class, found in Counter(map(partial(bisect_left, SIZE_BOUNDS), sizes)).items():
            counts[size_class] += found * count // len(sizes)

    def _count_gets(self) -> None:
        gets = 0
        for (topic, group), counts in self._counters.by_group.items():
            before = self._given.get((topic, group), (0, 0, 0))
            grown = counts.messages - before[0]
            if grown:
                self._given[topic, group] = (counts.messages, counts.bytes, counts.answers)
                gets += grown
                answers = counts.answers - before[2]
                self.add("GROUP_GET_NUMS", f"{topic}@{group}", grown, answers)
                self.add("GROUP_GET_SIZE", f"{topic}@{group}", counts.bytes - before[1], answers)
        self.add("BROKER_GET_NUMS", self._current.config.cluster, gets, gets)

    # Totals, rates, days.

    def totals(self) -> Totals:
        """Return the current totals."""
        pull = self._counters
        return Totals(self._puts.count, pull.finds, pull.misses, pull.messages)

    def rates(self, field: str) -> Rates:
        """Return the rates of one of the totals, by its field name."""
        newest_ms, newest = self._seconds[-1]
        found: list[float] = []
        for span in RATE_SPANS_S:
            oldest_ms, oldest = self._seconds[max(0, len(self._seconds) - 1 - span)]
            elapsed_ms = newest_ms - oldest_ms
            grown = getattr(newest, field) - getattr(oldest, field)
            found.append(grown * 1000 / elapsed_ms if elapsed_ms else 0.0)
        return Rates(*found)

    def _each_second(self, now: Now) -> None:
        totals = self.totals()
        self._seconds.append((now.mono_ms, totals))
        number = self._day_of(now)
        if number != self._day_number:
            self._day_number = number
            self.day = Day(self.day.puts_today, totals.puts, self.day.gets_today, totals.given)

    def _day_of(self, now: Now) -> int:
        return (now.wall_ms + self._utc_offset_s * 1000) // DAY_MS

    # Send times.

    @property
    def failed_puts(self) -> int:
        """Messages that could not be written; none of them was acknowledged."""
        return self._puts.failures

    def _each_minute(self, _now: Now) -> None:
        self.last_put_times = self._puts.take_put_times()
        self.all_put_times.merge(self.last_put_times)

    def put_times_so_far(self) -> Histogram:
        """Return the send times since the start."""
        found = Histogram()
        found.merge(self.all_put_times)
        found.merge(self._puts.put_times)
        return found
