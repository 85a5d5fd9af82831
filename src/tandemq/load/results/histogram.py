"""A latency histogram with buckets that grow with the value.

Every power of two is cut into 32 buckets, so a recorded value is known to 3.2 % whatever its size, and the whole
range from a nanosecond to a century fits in two thousand counters. Values are integers; the unit is the caller's
(here always nanoseconds).

    value      0 1 2 … 63 | 64 66 68 … 126 | 128 132 136 … 252 | …
    bucket     0 1 2 … 63 | 64 65 66 …  95 |  96  97  98 … 127 | …

Does not know: clocks, what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_SUB_BITS = 5
_EXACT = 2 << _SUB_BITS  # Below this every value has a bucket of its own.


def bucket_of(value: int) -> int:
    """Return the bucket of a value; negative values count as zero."""
    if value < _EXACT:
        return value if value > 0 else 0
    shift = value.bit_length() - _SUB_BITS - 1
    return (shift << _SUB_BITS) + (value >> shift)


def bucket_middle(bucket: int) -> int:
    """Return the value that stands for a bucket: the middle of its range."""
    if bucket < _EXACT:
        return bucket
    shift = (bucket >> _SUB_BITS) - 1
    low = (bucket - (shift << _SUB_BITS)) << shift
    return low + (1 << shift) // 2


@dataclass(slots=True)
class Histogram:
    """Counts per bucket, with the exact smallest and largest value beside them."""

    counts: dict[int, int] = field(default_factory=dict)
    total: int = 0
    smallest: int = 0
    largest: int = 0

    def record(self, value: int) -> None:
        """Count one value. Cost: one dict update."""
        bucket = bucket_of(value)
        self.counts[bucket] = self.counts.get(bucket, 0) + 1
        if value > self.largest:
            self.largest = value
        if self.total == 0 or value < self.smallest:
            self.smallest = value
        self.total += 1

    def quantile(self, share: float) -> int:
        """Return the value below which `share` (0 to 1) of all recorded values lie, to 3.2 %; 0 if there is none."""
        assert 0.0 <= share <= 1.0
        seen = 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= share * self.total:
                return max(self.smallest, min(bucket_middle(bucket), self.largest))
        return self.largest


@dataclass(frozen=True, slots=True)
class Latency:
    """The quantiles of a histogram of nanoseconds, in milliseconds."""

    count: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float


def summarize(histogram: Histogram) -> Latency:
    """Return the quantiles that reports print."""

    def ms(value: int) -> float:
        return round(value / 1e6, 4)

    return Latency(
        count=histogram.total,
        p50_ms=ms(histogram.quantile(0.5)),
        p99_ms=ms(histogram.quantile(0.99)),
        p999_ms=ms(histogram.quantile(0.999)),
        max_ms=ms(histogram.largest),
    )
