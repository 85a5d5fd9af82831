"""Histograms and sampled counters, as plain values.

`Histogram` counts whole numbers in buckets that grow with the value: exact up to a limit, of a known precision above.
`Series` keeps samples of a growing counter and summarizes them over a minute, an hour and a day:

    minute  a sample each 10 s, the last 7        hour  each 10 min, the last 7        day  each hour, the last 25

Times are passed in. Source: requirement G14; RocketMQ StatsItem.
"""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

LARGEST_MS = 65_535
"""Longer durations are counted as this value."""
_ROW_BITS = 8
_ROW = 1 << _ROW_BITS


class Histogram:
    """Counts of whole numbers per bucket, and the exact lowest and highest value.

    Every value below `exact_below` has a bucket of its own; above it every power of two is divided into
    `exact_below / 2` buckets. With 64, the relative error is at most 3.2 %, and 1,920 counters cover values to 2^63:

        value      0 1 2 … 63 | 64 66 68 … 126 | 128 132 136 … 252 | …
        bucket     0 1 2 … 63 | 64 65 66 …  95 |  96  97  98 … 127 | …

    Counters are allocated in rows of 256, on first use. The defaults count milliseconds exactly, up to 65,535 ms.
    """

    __slots__ = ("_exact_below", "_largest", "_rows", "_sub_bits", "count", "highest", "lowest")

    def __init__(self, *, exact_below: int = LARGEST_MS + 1, largest: int = LARGEST_MS) -> None:
        """Create an empty histogram; `exact_below` is a power of two, values above `largest` count as `largest`."""
        assert exact_below > 1 and exact_below & (exact_below - 1) == 0
        self._exact_below = exact_below
        self._sub_bits = exact_below.bit_length() - 2
        self._largest = largest
        self._rows: list[list[int] | None] = [None] * ((self.bucket_of(largest) >> _ROW_BITS) + 1)
        self.count = 0
        self.lowest = 0
        """The lowest value, 0 before the first; `highest` the highest."""
        self.highest = 0

    def add(self, value: int, times: int = 1) -> None:
        """Count a value, `times` times; a value outside 0…largest counts as the nearer bound."""
        if times <= 0:
            return
        value = 0 if value < 0 else self._largest if value > self._largest else value
        bucket = value if value < self._exact_below else self.bucket_of(value)
        row = self._rows[bucket >> _ROW_BITS]
        if row is None:
            row = self._rows[bucket >> _ROW_BITS] = [0] * _ROW
        row[bucket & (_ROW - 1)] += times
        self.lowest = value if not self.count or value < self.lowest else self.lowest
        self.highest = value if value > self.highest else self.highest
        self.count += times

    def merge(self, other: "Histogram") -> None:
        """Add the counts of another histogram of the same layout."""
        if not other.count:
            return
        lowest = min(self.lowest, other.lowest) if self.count else other.lowest
        highest = max(self.highest, other.highest)
        for value, times in other.counts():
            self.add(value, times)
        self.lowest, self.highest = lowest, highest

    def counts(self) -> Iterator[tuple[int, int]]:
        """Yield (middle of the bucket, count) of each bucket that is not empty, ascending."""
        for number, row in enumerate(self._rows):
            for column, times in enumerate(row or ()):
                if times:
                    yield self.middle_of(number << _ROW_BITS | column), times

    def percentile(self, percent: float) -> int:
        """Return a percentile: the lowest value that at least `percent` % of the values do not exceed; 0 if empty.

        The result lies between the lowest and the highest value counted.
        """
        wanted = self.count * percent / 100
        seen = 0
        for value, times in self.counts():
            seen += times
            if seen >= wanted:
                return max(self.lowest, min(value, self.highest))
        return 0

    def between(self, start: int, end: int) -> int:
        """Return the number of values in [start, end); exact if both are below `exact_below` or begin a bucket.

        Cost: one step per bucket of the allocated rows.
        """
        first, last = self.bucket_of(start), self.bucket_of(end)
        total = 0
        for number, row in enumerate(self._rows):
            base = number << _ROW_BITS
            if row is not None and base < last and base + _ROW > first:
                total += sum(row[max(0, first - base) : max(0, last - base)])
        return total

    def bucket_of(self, value: int) -> int:
        """Return the number of a value's bucket; negative values count as 0."""
        if value < self._exact_below:
            return value if value > 0 else 0
        shift = value.bit_length() - self._sub_bits - 1
        return (shift << self._sub_bits) + (value >> shift)

    def middle_of(self, bucket: int) -> int:
        """Return the middle of a bucket's range."""
        if bucket < self._exact_below:
            return bucket
        shift = (bucket >> self._sub_bits) - 1
        lowest = (bucket - (shift << self._sub_bits)) << shift
        return lowest + (1 << shift) // 2


class StatsSnapshot(NamedTuple):
    """Growth of a counter over a span: the amount, the amount per second, and the amount per addition."""

    total: int = 0
    per_second: float = 0.0
    per_time: float = 0.0


class Series:
    """Samples of one counter: `value` is the amount counted so far, `times` the number of additions."""

    __slots__ = ("_samples", "times", "value")

    def __init__(self, now_ms: int) -> None:
        """Create a counter that is 0 at `now_ms`."""
        self.value = 0
        self.times = 0
        start = (now_ms, 0, 0)
        self._samples = (deque([start], 7), deque([start], 7), deque([start], 25))

    def add(self, amount: int, times: int) -> None:
        """Add an amount that `times` additions make up."""
        self.value += amount
        self.times += times

    def sample(self, span: int, now_ms: int) -> None:
        """Record a sample for the minute (0), the hour (1) or the day (2)."""
        self._samples[span].append((now_ms, self.value, self.times))

    def summary(self, span: int) -> StatsSnapshot:
        """Return the growth over the minute (0), the hour (1) or the day (2) up to the last sample."""
        first, last = self._samples[span][0], self._samples[span][-1]
        total, times = last[1] - first[1], last[2] - first[2]
        elapsed_ms = last[0] - first[0]
        return StatsSnapshot(
            total, total * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0, total / times if times else 0.0
        )
