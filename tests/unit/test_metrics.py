"""Histogram and series, compared with plain arithmetic."""

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tandemq.metrics import LARGEST_MS, Histogram, Series
from tests.spec import spec


@spec("G14")
@given(st.lists(st.integers(-5, 70_000), min_size=1, max_size=200), st.sampled_from([50.0, 90.0, 99.0, 99.9, 100.0]))
def test_percentiles_equal_those_of_the_sorted_list(times: list[int], percent: float) -> None:
    counted = Histogram()
    for ms in times:
        counted.add(ms)
    ordered = sorted(min(max(ms, 0), LARGEST_MS) for ms in times)
    assert counted.percentile(percent) == ordered[max(1, math.ceil(len(ordered) * percent / 100)) - 1]
    assert (counted.lowest, counted.highest, counted.count) == (ordered[0], ordered[-1], len(ordered))


def rows_of(counted: Histogram) -> int:
    """Return the number of allocated rows of counters."""
    return sum(row is not None for row in counted._rows)


@spec("G14")
def test_rows_are_allocated_only_where_values_were_counted() -> None:
    counted = Histogram()
    assert (rows_of(counted), counted.percentile(99)) == (0, 0)
    for ms in (0, 255, 256, 100_000):
        counted.add(ms)
    assert rows_of(counted) == 3
    assert counted.highest == LARGEST_MS


@given(st.lists(st.integers(0, 70_000), max_size=50), st.integers(0, 66_000), st.integers(0, 66_000))
def test_counts_between_are_half_open(times: list[int], start: int, end: int) -> None:
    counted = Histogram()
    for ms in times:
        counted.add(ms)
    assert counted.between(start, end) == sum(start <= min(ms, LARGEST_MS) < end for ms in times)


def test_merged_histogram_has_the_counts_of_both() -> None:
    one, other = Histogram(), Histogram()
    one.add(5, 2)
    other.add(3)
    other.add(9_000, 4)
    one.merge(other)
    assert list(one.counts()) == [(3, 1), (5, 2), (9_000, 4)]
    assert (one.lowest, one.highest, one.count) == (3, 9_000, 7)


def fine() -> Histogram:
    """Return a histogram with 3.2 % precision, like that of the load generator."""
    return Histogram(exact_below=64, largest=(1 << 63) - 1)


@given(st.integers(min_value=0, max_value=10**18))
def test_middle_of_a_bucket_is_within_three_percent_of_the_value(value: int) -> None:
    buckets = fine()
    middle = buckets.middle_of(buckets.bucket_of(value))
    assert abs(middle - value) <= value * 0.033


@given(st.integers(min_value=0, max_value=10**15), st.integers(min_value=0, max_value=10**15))
def test_buckets_are_in_the_order_of_their_values(one: int, other: int) -> None:
    buckets = fine()
    assert (buckets.bucket_of(one) <= buckets.bucket_of(other)) or one > other


@given(st.lists(st.integers(min_value=1, max_value=10**12), min_size=1, max_size=300), st.floats(0, 100))
def test_percentile_lies_near_the_sorted_value(values: list[int], percent: float) -> None:
    counted = fine()
    for value in values:
        counted.add(value)
    found = counted.percentile(percent)
    assert [v for v in values if abs(v - found) <= v * 0.033]
    assert counted.lowest <= found <= counted.highest
    below = sum(value <= found * 1.033 for value in values)
    assert below >= percent / 100 * len(values)


@given(st.lists(st.integers(0, 10**12), max_size=50), st.lists(st.integers(0, 10**12), max_size=50))
def test_merging_equals_counting_all_values_in_one_histogram(some: list[int], others: list[int]) -> None:
    merged, other, whole = fine(), fine(), fine()
    for value in some:
        merged.add(value)
    for value in others:
        other.add(value)
    for value in some + others:
        whole.add(value)
    merged.merge(other)
    assert list(merged.counts()) == list(whole.counts())
    assert (merged.lowest, merged.highest, merged.count) == (whole.lowest, whole.highest, whole.count)
    assert all(one < next_one for (one, _), (next_one, _) in pairwise(merged.counts()))


def test_memory_is_bounded_for_all_values() -> None:
    counted = fine()
    for bits in range(63):
        counted.add((1 << bits) + 1)
    assert rows_of(counted) <= 8
    counted.add(1 << 70)
    assert counted.highest == (1 << 63) - 1


def test_value_counted_zero_times_changes_nothing() -> None:
    counted = Histogram()
    counted.add(7, 0)
    assert (counted.count, counted.highest) == (0, 0)


def test_series_reports_growth_over_the_last_samples_only() -> None:
    series = Series(0)
    for second in range(0, 100, 10):
        series.add(10, 5)
        series.sample(0, (second + 10) * 1_000)
    assert series.summary(0) == (60, 1.0, 2.0), "six periods of ten seconds"
    assert series.summary(1) == (0, 0.0, 0.0)
