"""The latency histogram: buckets that grow, quantiles that hold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandemq.load.results.histogram import Histogram, bucket_middle, bucket_of, summarize


@given(st.integers(min_value=0, max_value=10**18))
def test_bucket_stands_for_its_value_to_three_percent(value: int) -> None:
    middle = bucket_middle(bucket_of(value))
    assert abs(middle - value) <= value * 0.033


@given(st.integers(min_value=0, max_value=10**15), st.integers(min_value=0, max_value=10**15))
def test_buckets_are_in_the_order_of_their_values(one: int, other: int) -> None:
    assert (bucket_of(one) <= bucket_of(other)) or one > other


@given(st.lists(st.integers(min_value=1, max_value=10**12), min_size=1, max_size=300), st.floats(0, 1))
def test_quantile_lies_near_the_sorted_value(values: list[int], share: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    around = [v for v in values if abs(v - histogram.quantile(share)) <= v * 0.033]
    assert around
    assert histogram.smallest <= histogram.quantile(share) <= histogram.largest
    below = sum(value <= histogram.quantile(share) * 1.033 for value in values)
    assert below >= share * len(values)


def test_empty_histogram_summarizes_to_zero() -> None:
    assert summarize(Histogram()).p99_ms == 0


def test_summary_of_a_thousand_values_is_in_milliseconds() -> None:
    histogram = Histogram()
    for microseconds in range(1, 1001):
        histogram.record(microseconds * 1000)
    summary = summarize(histogram)
    assert summary.count == 1000
    assert abs(summary.p50_ms - 0.5) < 0.02
    assert abs(summary.p99_ms - 0.99) < 0.04
    assert summary.max_ms == 1.0
