"""Latency summaries of reports."""

from tandemq.load.results.report import latency_histogram, summarize


def test_empty_histogram_summarizes_to_zero() -> None:
    assert summarize(latency_histogram()).p99_ms == 0


def test_summary_of_a_thousand_values_is_in_milliseconds() -> None:
    histogram = latency_histogram()
    for microseconds in range(1, 1001):
        histogram.add(microseconds * 1000)
    summary = summarize(histogram)
    assert summary.count == 1000
    assert abs(summary.p50_ms - 0.5) < 0.02
    assert abs(summary.p99_ms - 0.99) < 0.04
    assert summary.max_ms == 1.0
