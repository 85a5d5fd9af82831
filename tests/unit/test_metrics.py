"""Histogram and series against the plain arithmetic."""

import math

from hypothesis import given
from hypothesis import strategies as st

from tandemq.metrics import LARGEST_MS, Histogram, Series
from tests.spec import spec


@spec("G14")
@given(st.lists(st.integers(-5, 70_000), min_size=1, max_size=200), st.sampled_from([50.0, 90.0, 99.0, 99.9, 100.0]))
def test_percentiles_are_those_of_the_sorted_list(times: list[int], percent: float) -> None:
    counted = Histogram()
    for ms in times:
        counted.add(ms)
    ordered = sorted(min(max(ms, 0), LARGEST_MS) for ms in times)
    assert counted.percentile(percent) == ordered[max(1, math.ceil(len(ordered) * percent / 100)) - 1]
    assert (counted.lowest, counted.highest, counted.count) == (ordered[0], ordered[-1], len(ordered))


@spec("G14")
def test_rows_exist_only_where_something_was_counted() -> None:
    counted = Histogram()
    assert (counted.rows_used, counted.percentile(99)) == (0, 0)
    for ms in (0, 255, 256, 100_000):
        counted.add(ms)
    assert counted.rows_used == 3
    assert counted.highest == LARGEST_MS


@given(st.lists(st.integers(0, 70_000), max_size=50), st.integers(0, 66_000), st.integers(0, 66_000))
def test_counts_between_are_half_open(times: list[int], start: int, end: int) -> None:
    counted = Histogram()
    for ms in times:
        counted.add(ms)
    assert counted.between(start, end) == sum(start <= min(ms, LARGEST_MS) < end for ms in times)


def test_merged_histogram_has_counted_both() -> None:
    one, other = Histogram(), Histogram()
    one.add(5, 2)
    other.add(3)
    other.add(9_000, 4)
    one.merge(other)
    assert list(one.counts()) == [(3, 1), (5, 2), (9_000, 4)]
    assert (one.lowest, one.highest, one.count) == (3, 9_000, 7)


def test_nothing_is_counted_no_times() -> None:
    counted = Histogram()
    counted.add(7, 0)
    assert (counted.count, counted.highest) == (0, 0)


def test_series_tells_growth_over_the_last_samples_only() -> None:
    series = Series(0)
    for second in range(0, 100, 10):
        series.add(10, 5)
        series.sample(0, (second + 10) * 1_000)
    assert series.summary(0) == (60, 1.0, 2.0), "six periods of ten seconds"
    assert series.summary(1) == (0, 0.0, 0.0)
