"""The text formats: escapes, headers, buckets, and limits."""

from collections.abc import Iterator
from random import Random

import pytest

from tandemq.boundary import Now
from tandemq.telemetry.buckets import SECONDS_BOUNDS, DurationBuckets
from tandemq.telemetry.collection import Collection
from tandemq.telemetry.exposition import CHUNK_SERIES, TextRenderer, page
from tandemq.telemetry.families import Batch, Distribution, Metrics, counter, gauge, histogram
from tests.spec import spec
from tests.unit.telemetry.pages import text_of, value

NOW = Now(0, 0)
SENT = counter("tandemq_sent_total", "Sent \\ messages,\nall.", "topic")
WAIT = histogram("tandemq_wait_seconds", "Waits.", "kind", bounds=(0.5, 1))


def _metrics(*batches: Batch) -> Metrics:
    metrics = Metrics({"tandemq": {"broker": "broker-a"}})
    metrics.add(lambda _now: iter(batches))
    return metrics


def test_label_values_and_help_are_escaped() -> None:
    text = text_of(_metrics(Batch(SENT, {('a"b\\c\nd',): 3})), NOW)
    assert text.splitlines() == [
        "# HELP tandemq_sent_total Sent \\\\ messages,\\nall.",
        "# TYPE tandemq_sent_total counter",
        'tandemq_sent_total{broker="broker-a",topic="a\\"b\\\\c\\nd"} 3',
    ]


def test_openmetrics_names_the_family_without_its_suffix_and_ends_the_page() -> None:
    text = text_of(_metrics(Batch(SENT, {("a",): 3})), NOW, is_openmetrics=True)
    assert "# TYPE tandemq_sent counter\n" in text
    assert 'tandemq_sent_total{broker="broker-a",topic="a"} 3\n' in text
    assert text.endswith("# EOF\n")


def test_buckets_of_a_histogram_are_cumulative() -> None:
    text = text_of(_metrics(Batch(WAIT, distributions={("disk",): Distribution((2, 0, 1), 4.5)})), NOW)
    assert [line.rpartition("{")[0] + line.rpartition(",")[2] for line in text.splitlines()[2:5]] == [
        'tandemq_wait_seconds_bucketle="0.5"} 2',
        'tandemq_wait_seconds_bucketle="1.0"} 2',
        'tandemq_wait_seconds_bucketle="+Inf"} 3',
    ]
    assert value(text, "tandemq_wait_seconds_sum") == 4.5
    assert value(text, "tandemq_wait_seconds_count") == 3


def test_family_without_values_is_left_out() -> None:
    assert text_of(_metrics(Batch(SENT), Batch(WAIT)), NOW) == ""


def test_series_beyond_the_limit_are_dropped_and_counted() -> None:
    renderer = TextRenderer(10)
    chunks = list(renderer.render(Batch(SENT, {(str(n),): n for n in range(25)}), {}))
    assert b"".join(chunks).count(b"\n") == 10
    assert renderer.dropped == 15
    histograms = Batch(WAIT, distributions={(str(n),): Distribution((1, 1, 1), 1.0) for n in range(5)})
    assert b"".join(renderer.render(histograms, {})).count(b"\n") == 10, "whole histograms only"


def test_texts_of_series_that_are_gone_are_dropped() -> None:
    renderer = TextRenderer(50_000)
    for start in range(0, 10_000, 1_000):
        list(renderer.render(Batch(SENT, {(str(n),): n for n in range(start, start + 1_000)}), {}))
    assert len(renderer._prefixes[SENT.name]) <= 4_000


def test_kept_texts_are_those_of_a_renderer_that_keeps_none() -> None:
    random, renderer = Random(7), TextRenderer(50_000)
    values: dict[tuple[str, ...], float] = {}
    for number in range(60):
        for _ in range(random.choice((0, 1, 40))):
            values[str(random.randrange(700)),] = random.choice((1, 2, 2.5))
        for labels in random.sample(list(values), min(len(values), random.choice((0, 0, 3)))):
            del values[labels]
        kept = b"".join(renderer.render(Batch(SENT, dict(values)), {"broker": "b"}))
        assert kept == b"".join(TextRenderer(50_000).render(Batch(SENT, dict(values)), {"broker": "b"})), number
        assert kept.count(b"\n") == len(values)


@spec("O03")
def test_no_step_of_a_collection_renders_more_than_a_chunk_or_takes_more_than_one_batch() -> None:
    def walk(_now: Now) -> Iterator[Batch | None]:
        for _ in range(3):
            yield None
        yield Batch(SENT, {(str(n),): n for n in range(2_050)})
        yield Batch(WAIT, distributions={(str(n),): Distribution((1, 1, 1), 1.0) for n in range(500)})

    metrics = Metrics({})
    metrics.add(walk)
    collection = Collection(metrics, TextRenderer(50_000), NOW)
    before, steps = 0, 0
    while not collection.step():
        lines = page(collection.families, is_openmetrics=False).count(b"\n")
        assert lines - before <= CHUNK_SERIES + 2
        before, steps = lines, steps + 1
    assert steps >= 3 + 2_050 // CHUNK_SERIES
    assert before == 2_050 + 500 * 5 + 4


def test_durations_are_exported_by_powers_of_two_of_a_nanosecond() -> None:
    buckets = DurationBuckets()
    for duration_ns in (0, 5_000, 20_000, 1_000_000):
        buckets.add(duration_ns)
    buckets.add_many(40 * 10**9, 2)
    found = buckets.distribution()
    assert len(found.counts) == len(SECONDS_BOUNDS) + 1
    assert sum(found.counts) == buckets.count == 6
    assert found.counts[:2] == [2, 1]
    assert found.counts[-1] == 2
    assert found.sum == pytest.approx(80.001025)
    assert sum(buckets.distribution_in((1, 3)).counts) == 6


@pytest.mark.parametrize(
    ("name", "kind"), [("tandemq_sent", counter), ("tandemq_sent_total", gauge), ("Tandemq", gauge), ("a-b", gauge)]
)
def test_names_that_contradict_their_type_are_refused(name: str, kind: type) -> None:
    with pytest.raises(AssertionError):
        kind(name, "Text.")
