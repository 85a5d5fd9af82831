"""Counted durations and sampled counters, as plain values.

`Histogram` counts milliseconds 0 to 65,535 in a table of 256 rows of 256 counters; a row exists once it is needed.
`Series` keeps samples of a counter that only grows, and tells its sum and rate over a minute, an hour and a day:

    minute  a sample each 10 s, the last 7        hour  each 10 min, the last 7        day  each hour, the last 25

Does not know: what is counted, the time. Source: requirement G14; RocketMQ StatsItem.
"""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

LARGEST_MS = 65_535
"""Longer durations count as this."""
_ROW = 256


class Histogram:
    """Durations in whole milliseconds."""

    __slots__ = ("_rows", "count", "highest", "lowest")

    def __init__(self) -> None:
        """Nothing was counted yet."""
        self._rows: list[list[int] | None] = [None] * _ROW
        self.count = 0
        self.lowest = 0
        """The shortest duration, 0 before the first; `highest` the longest."""
        self.highest = 0

    def add(self, ms: int, times: int = 1) -> None:
        """Count a duration, `times` times; outside 0…65,535 it counts as the nearest end."""
        if times <= 0:
            return
        ms = 0 if ms < 0 else LARGEST_MS if ms > LARGEST_MS else ms
        row = self._rows[ms >> 8]
        if row is None:
            row = self._rows[ms >> 8] = [0] * _ROW
        row[ms & 0xFF] += times
        self.lowest = ms if not self.count or ms < self.lowest else self.lowest
        self.highest = ms if ms > self.highest else self.highest
        self.count += times

    def merge(self, other: "Histogram") -> None:
        """Count everything another histogram has counted."""
        for ms, times in other.counts():
            self.add(ms, times)

    def counts(self) -> Iterator[tuple[int, int]]:
        """Each duration that occurred, ascending, and how often."""
        for number, row in enumerate(self._rows):
            for column, times in enumerate(row or ()):
                if times:
                    yield number << 8 | column, times

    def percentile(self, percent: float) -> int:
        """The shortest duration that at least `percent` of all do not exceed; 0 if nothing was counted."""
        wanted = self.count * percent / 100
        seen = 0
        for ms, times in self.counts():
            seen += times
            if seen >= wanted:
                return ms
        return 0

    def between(self, start: int, end: int) -> int:
        """How many durations were in [start, end) ms. Cost: one step per millisecond in rows that exist."""
        total = 0
        for number, row in enumerate(self._rows):
            base = number << 8
            if row is not None and base < end and base + _ROW > start:
                total += sum(row[max(0, start - base) : max(0, end - base)])
        return total

    @property
    def rows_used(self) -> int:
        """Rows of counters that exist."""
        return sum(row is not None for row in self._rows)


class Summary(NamedTuple):
    """What a counter did in a span: its growth, its growth per second, and its growth per occurrence."""

    total: int = 0
    per_second: float = 0.0
    per_time: float = 0.0


class Series:
    """Samples of one counter. `value` and `times` are its present state: an amount, and in how many steps it came."""

    __slots__ = ("_samples", "times", "value")

    def __init__(self, now_ms: int) -> None:
        """A counter that is 0 now."""
        self.value = 0
        self.times = 0
        start = (now_ms, 0, 0)
        self._samples = (deque([start], 7), deque([start], 7), deque([start], 25))

    def add(self, amount: int, times: int) -> None:
        """The counter grew."""
        self.value += amount
        self.times += times

    def sample(self, span: int, now_ms: int) -> None:
        """Note the present state for the minute (0), the hour (1) or the day (2)."""
        self._samples[span].append((now_ms, self.value, self.times))

    def summary(self, span: int) -> Summary:
        """The minute (0), the hour (1) or the day (2) up to the last sample."""
        first, last = self._samples[span][0], self._samples[span][-1]
        total, times = last[1] - first[1], last[2] - first[2]
        elapsed_ms = last[0] - first[0]
        return Summary(total, total * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0, total / times if times else 0.0)
