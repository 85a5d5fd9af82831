"""Durations counted in powers of two of a nanosecond: cheap enough for each turn of an event loop.

    bucket n   values of n bits: 2^(n-1) … 2^n - 1 ns      `add` costs one addition to a list

As a histogram of Prometheus it has one bound per power of two between 16 µs and 17 s.
"""

from collections.abc import Sequence

from tandemq.telemetry.families import Distribution

BITS = 64
FIRST_BIT, LAST_BIT = 14, 34
SECONDS_BOUNDS = tuple((1 << bit) / 1e9 for bit in range(FIRST_BIT, LAST_BIT + 1))
"""Upper bounds of the exported buckets, seconds."""


class DurationBuckets:
    """Counts of durations."""

    __slots__ = ("_counts", "sum_ns")

    def __init__(self) -> None:
        """Begin with no duration."""
        self._counts = [0] * (BITS + 1)
        self.sum_ns = 0

    def add(self, duration_ns: int) -> None:
        """Count a duration, nanoseconds, 0 or more."""
        self._counts[duration_ns.bit_length()] += 1
        self.sum_ns += duration_ns

    def add_many(self, duration_ns: int, times: int) -> None:
        """Count the same duration several times."""
        self._counts[duration_ns.bit_length()] += times
        self.sum_ns += duration_ns * times

    @property
    def count(self) -> int:
        """Number of durations."""
        return sum(self._counts)

    def distribution(self) -> Distribution:
        """Return the counts by SECONDS_BOUNDS, and the sum in seconds."""
        counts = self._counts
        exported = [sum(counts[: FIRST_BIT + 1]), *counts[FIRST_BIT + 1 : LAST_BIT + 1], sum(counts[LAST_BIT + 1 :])]
        return Distribution(exported, self.sum_ns / 1e9)

    def distribution_in(self, bounds_ms: Sequence[int]) -> Distribution:
        """Return the counts by other bounds, milliseconds, and the sum in milliseconds.

        A power of two that contains a bound counts as below it: values up to twice the bound may be counted there.
        """
        counts, overflow = [0] * (len(bounds_ms) + 1), len(bounds_ms)
        for bit, times in enumerate(self._counts):
            if times:
                lowest_ms = (1 << bit) / 2e6
                counts[next((index for index, bound in enumerate(bounds_ms) if lowest_ms < bound), overflow)] += times
        return Distribution(counts, self.sum_ns / 1e6)
