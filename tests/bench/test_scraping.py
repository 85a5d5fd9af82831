"""The comparison of windows with and without scrapes."""

import math
from random import Random

import pytest

from bench.scraping import INTERVAL_S, Interval, Pair, Scraped, Window, interval_of


def test_interval_of_few_values_is_all_of_them() -> None:
    assert interval_of([3.0, 1.0, 2.0]) == Interval(2.0, 1.0, 3.0)


def test_interval_leaves_out_as_many_values_as_the_confidence_permits() -> None:
    # Of 16 values the 4th and the 13th: the median is outside with a probability of 2.1 %; with the 5th it is 7.7 %.
    assert interval_of([float(number) for number in range(16)]) == Interval(7.5, 3.0, 12.0)


def test_interval_has_the_true_median_at_least_as_often_as_it_says() -> None:
    random, rounds = Random(5), 2_000
    hits = 0
    for _ in range(rounds):
        found = interval_of([random.lognormvariate(0, 0.2) for _ in range(16)])
        hits += found.low <= 1.0 <= found.high
    assert hits / rounds > 0.95


def pair(scrape_s: float, speed: float) -> Pair:
    """Return windows of a broker of some speed that each scrape costs CPU time."""
    without = Window(0.6, int(60e6 * speed), 1.2)
    scraped = Window(0.6 + 2 * scrape_s, int(60e6 * speed), 1.2)
    return Pair(without, scraped)


@pytest.mark.parametrize("scrape_ms", [0, 5, 10])
def test_noise_that_both_windows_of_a_pair_have_does_not_count(scrape_ms: float) -> None:
    random = Random(3)
    pairs = [pair(scrape_ms / 1000, random.uniform(0.3, 1)) for _ in range(20)]
    found = Scraped(pairs, 0, 0, [1.0], 10_000)
    expected = 1 + scrape_ms / 1000 * 2 / 0.6 * INTERVAL_S
    for value in found.cpu:
        assert math.isclose(value, expected, rel_tol=1e-6)
    assert math.isclose(found.kept.median, 1 / expected, rel_tol=1e-6)
    assert found.kept.low <= found.kept.median <= found.kept.high
    assert found.throughput.median == 1
