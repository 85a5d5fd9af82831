"""Requests of OTLP as their official messages, and what tests ask of them."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tandemq.boundary import Now
from tandemq.telemetry.collection import Collection
from tandemq.telemetry.families import Metrics
from tandemq.telemetry.otlp import OtlpRenderer


class Point(NamedTuple):
    """A data point: a number, or a histogram's message."""

    labels: dict[str, str]
    value: Any
    start_ns: int
    time_ns: int


def collected(renderer: OtlpRenderer, metrics: Metrics, now: Now) -> bytes:
    """Return a request with all metrics of a node."""
    collection = Collection(metrics, renderer, now)
    while not collection.step():
        continue
    return renderer.request(collection.families)


def decoded(data: bytes) -> Any:
    """Return a request as its message; it has no field that the official messages do not have."""
    request = ExportMetricsServiceRequest()
    request.ParseFromString(data)
    size = request.ByteSize()
    request.DiscardUnknownFields()
    assert request.ByteSize() == size
    return request


def metrics_of(request: Any) -> dict[str, Any]:
    """Return the metrics of a request by name."""
    scopes = request.resource_metrics[0].scope_metrics
    return {metric.name: metric for metric in scopes[0].metrics}


def attributes_of(pairs: Any) -> dict[str, str]:
    """Return the attributes of a resource or a data point."""
    return {pair.key: pair.value.string_value for pair in pairs}


def points_of(metric: Any) -> Iterator[Point]:
    """Yield the data points of a metric."""
    kind = metric.WhichOneof("data")
    for point in getattr(metric, kind).data_points:
        value = point if kind == "histogram" else getattr(point, point.WhichOneof("value"))
        yield Point(attributes_of(point.attributes), value, point.start_time_unix_nano, point.time_unix_nano)


def total(request: Any, name: str, **labels: str) -> float:
    """Return the sum of the points of a metric that have these labels, 0 if there is none."""
    metric = metrics_of(request).get(name)
    points = () if metric is None else points_of(metric)
    return float(sum(point.value for point in points if labels.items() <= point.labels.items()))
