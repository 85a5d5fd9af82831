"""OTLP requests, decoded with the official messages."""

from collections.abc import Iterator
from random import Random

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

from tandemq.boundary import Now
from tandemq.telemetry.collection import Collection
from tandemq.telemetry.exposition import CHUNK_SERIES
from tandemq.telemetry.families import Batch, Distribution, Family, Labels, Metrics, Values, counter, gauge, histogram
from tandemq.telemetry.otlp import OtlpRenderer, fields_of, varint
from tests.spec import spec
from tests.unit.telemetry.otlp import attributes_of, collected, decoded, metrics_of, points_of, total

STARTED_MS = 1_000_000
SENT = counter("tandemq_sent_total", "Sent.", "topic")
BYTES = gauge("tandemq_free_bytes", "Free.")
WAIT = histogram("tandemq_wait_seconds", "Waits.", "kind", bounds=(0.5, 1))


def _now(seconds: float) -> Now:
    return Now(mono_ms=0, wall_ms=STARTED_MS + int(1000 * seconds))


def _metrics(*batches: Batch) -> Metrics:
    metrics = Metrics({"tandemq": {"broker": "broker-a"}}, {"zone": "east"})
    metrics.add(lambda _now: iter(batches))
    return metrics


def _renderer(*, is_delta: bool = False, series_max: int = 50_000) -> OtlpRenderer:
    return OtlpRenderer(series_max, {"service.name": "tandemq-broker"}, "1.2", STARTED_MS, is_delta=is_delta)


@spec("O10")
def test_request_has_resource_scope_and_every_kind_of_metric() -> None:
    metrics = _metrics(
        Batch(SENT, {("Ünï\ncode",): 3, ("b",): 2.5}),
        Batch(BYTES, {(): 1 << 40}),
        Batch(WAIT, distributions={("disk",): Distribution((2, 0, 1), 4.5)}),
        Batch(gauge("tandemq_empty", "Nothing."), {}),
    )
    request = decoded(collected(_renderer(), metrics, _now(60)))
    assert len(request.resource_metrics) == 1
    assert attributes_of(request.resource_metrics[0].resource.attributes) == {"service.name": "tandemq-broker"}
    scope = request.resource_metrics[0].scope_metrics[0].scope
    assert (scope.name, scope.version) == ("tandemq", "1.2")
    found = metrics_of(request)
    assert [*found] == ["tandemq_sent_total", "tandemq_free_bytes", "tandemq_wait_seconds"]
    sent = found["tandemq_sent_total"]
    assert (sent.description, sent.unit, sent.sum.is_monotonic) == ("Sent.", "", True)
    assert sent.sum.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    first, second = points_of(sent)
    assert first.labels == {"broker": "broker-a", "zone": "east", "topic": "Ünï\ncode"}
    assert (first.value, second.value) == (3, 2.5)
    assert (first.start_ns, first.time_ns) == (STARTED_MS * 10**6, (STARTED_MS + 60_000) * 10**6)
    (free,) = points_of(found["tandemq_free_bytes"])
    assert (free.value, free.start_ns, found["tandemq_free_bytes"].unit) == (1 << 40, 0, "By")
    (waited,) = points_of(found["tandemq_wait_seconds"])
    assert found["tandemq_wait_seconds"].unit == "s"
    point = waited.value
    assert (point.count, point.sum, [*point.bucket_counts], [*point.explicit_bounds]) == (3, 4.5, [2, 0, 1], [0.5, 1])


@spec("O10")
def test_any_values_are_decoded_to_themselves() -> None:
    random, renderer = Random(11), _renderer()
    for round_number in range(20):
        size = random.randrange(300)
        values: Values = {(f"t{random.randrange(400)}" * random.randrange(1, 40),): _any(random) for _ in range(size)}
        waits: dict[Labels, Distribution] = {
            (str(number),): Distribution([random.randrange(1 << random.randrange(50)) for _ in range(3)], _any(random))
            for number in range(random.randrange(90))
        }
        request = decoded(
            collected(renderer, _metrics(Batch(SENT, values), Batch(WAIT, distributions=waits)), _now(round_number))
        )
        found = metrics_of(request)
        if values:
            points = [*points_of(found["tandemq_sent_total"])]
            assert {(point.labels["topic"],): point.value for point in points} == values
        if waits:
            points = [*points_of(found["tandemq_wait_seconds"])]
            assert {point.labels["kind"]: [*point.value.bucket_counts] for point in points} == {
                labels[0]: wait.counts for labels, wait in waits.items()
            }


def _any(random: Random) -> float:
    return random.choice((0, 1, 1.5, 1e300, (1 << 63) - 1, float(1 << 70), random.random()))


@spec("O10")
def test_deltas_begin_at_the_last_accepted_request_and_lose_nothing() -> None:
    renderer = _renderer(is_delta=True)
    sent: dict[Labels, float] = {("a",): 5}
    counts = [1, 0, 0]

    def walk(_now: Now) -> Iterator[Batch | None]:
        yield Batch(SENT, dict(sent))
        yield Batch(BYTES, {(): 7})
        yield Batch(WAIT, distributions={("disk",): Distribution(tuple(counts), float(sum(counts)))})

    metrics = Metrics({})
    metrics.add(walk)
    first = decoded(collected(renderer, metrics, _now(10)))
    temporality = metrics_of(first)["tandemq_sent_total"].sum.aggregation_temporality
    assert temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
    assert total(first, "tandemq_sent_total") == 5
    renderer.accepted()
    sent["a",], counts[1] = 8, 4
    lost = decoded(collected(renderer, metrics, _now(20)))
    assert total(lost, "tandemq_sent_total") == 3
    sent["a",], sent["b",] = 9, 2
    third = decoded(collected(renderer, metrics, _now(30)))
    assert total(third, "tandemq_sent_total", topic="a") == 4, "with what the lost one had"
    assert total(third, "tandemq_sent_total", topic="b") == 2, "a new series"
    assert total(third, "tandemq_free_bytes") == 7, "a gauge has no delta"
    (point,) = points_of(metrics_of(third)["tandemq_wait_seconds"])
    assert ([*point.value.bucket_counts], point.value.count, point.value.sum) == ([0, 4, 0], 4, 4.0)
    assert (point.start_ns, point.time_ns) == (_now(10).wall_ms * 10**6, _now(30).wall_ms * 10**6)
    renderer.accepted()
    sent["a",] = 1
    assert total(decoded(collected(renderer, metrics, _now(40))), "tandemq_sent_total") == 1, "it began anew"


def test_clock_that_is_set_back_ends_no_span_before_its_start() -> None:
    request = decoded(collected(_renderer(), _metrics(Batch(SENT, {("a",): 1})), _now(-50)))
    (point,) = points_of(metrics_of(request)["tandemq_sent_total"])
    assert point.time_ns == point.start_ns


def test_series_beyond_the_limit_are_dropped_and_counted() -> None:
    renderer = _renderer(series_max=10)
    waits: dict[Labels, Distribution] = {(str(n),): Distribution((1, 1, 1), 1.0) for n in range(5)}
    metrics = _metrics(Batch(SENT, {(str(n),): n for n in range(25)}), Batch(WAIT, distributions=waits))
    found = metrics_of(decoded(collected(renderer, metrics, _now(1))))
    assert len([*points_of(found["tandemq_sent_total"])]) == 10
    assert len([*points_of(found["tandemq_wait_seconds"])]) == 2, "whole histograms only"
    assert renderer.dropped == 15 + 25 - 10


def test_bytes_of_series_that_are_gone_are_dropped() -> None:
    renderer = _renderer()
    for start in range(0, 10_000, 1_000):
        list(renderer.render(Batch(SENT, {(str(n),): n for n in range(start, start + 1_000)}), {}))
    assert len(renderer._heads[SENT.name]) <= 4_000


@spec("O03")
def test_no_step_of_a_collection_renders_more_than_a_chunk() -> None:
    metrics = Metrics({})
    metrics.add(
        lambda _now: iter(
            [
                Batch(SENT, {(str(n),): n for n in range(1_050)}),
                Batch(WAIT, distributions={(str(n),): Distribution((1, 1, 1), 1.0) for n in range(200)}),
            ]
        )
    )
    renderer = _renderer()
    collection = Collection(metrics, renderer, _now(1))
    sizes = [0]
    while not collection.step():
        found = metrics_of(decoded(renderer.request(collection.families)))
        sizes.append(sum(_series(metric) for metric in found.values()))
    assert max(after - before for before, after in zip(sizes, sizes[1:], strict=False)) <= CHUNK_SERIES
    assert sizes[-1] == 1_050 + 200 * 5


def _series(metric: object) -> int:
    return sum(5 if hasattr(point.value, "count") else 1 for point in points_of(metric))


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, (1 << 32) - 1, (1 << 63) - 1])
def test_numbers_are_read_as_they_are_written(value: int) -> None:
    assert [*fields_of(varint(1 << 3) + varint(value))] == [(1, value)]


def test_fields_of_an_official_response_are_read() -> None:
    response = ExportMetricsServiceResponse()
    response.partial_success.rejected_data_points = 300
    response.partial_success.error_message = "too old"
    ((number, inner),) = fields_of(response.SerializeToString())
    assert number == 1
    assert isinstance(inner, bytes)
    assert [*fields_of(inner)] == [(1, 300), (2, b"too old")]


@pytest.mark.parametrize(
    "data", [b"\x80", b"\x0a\x05ab", b"\x09\x00", b"\x0b", b"\x80" * 12, b"\x0a\xff\xff\xff\xff\x7f"]
)
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"does not end|longer than"):
        list(fields_of(data))


def test_families_of_both_formats_have_the_same_names() -> None:
    for family in (SENT, BYTES, WAIT):
        assert isinstance(family, Family)
        request = decoded(collected(_renderer(), _metrics(_one(family)), _now(1)))
        assert [*metrics_of(request)] == [family.name]


def _one(family: Family) -> Batch:
    labels = ("x",) * len(family.labels)
    if family.bounds:
        return Batch(family, distributions={labels: Distribution((1,) * (len(family.bounds) + 1), 1.0)})
    return Batch(family, {labels: 1})
