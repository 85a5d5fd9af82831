"""One collection of all metrics of a node, advanced in slices.

    while not collection.step():   each step: one batch at most, of which at most CHUNK_SERIES series are rendered
        …                          the node's turns go on in between

The renderer makes text or protobuf of it.
"""

from collections.abc import Iterator, Mapping
from typing import Protocol

from tandemq.boundary import Node, Now
from tandemq.telemetry.exposition import RenderedFamily
from tandemq.telemetry.families import Batch, Metrics


class MonitoredNode(Node, Protocol):
    """A node with metrics."""

    metrics: Metrics

    def turn_took(self, duration_ns: int) -> None:
        """Count the duration of the turn that has ended."""

    def not_ready(self, now: Now) -> list[str]:
        """Return the reasons why the node cannot serve clients now; empty if it can."""


class Renderer(Protocol):
    """A format of metrics."""

    def begin(self, now: Now) -> None:
        """Begin a page or a request."""

    def render(self, batch: Batch, constant: Mapping[str, str]) -> Iterator[bytes]:
        """Yield the bytes of a batch, at most CHUNK_SERIES series at a time. `constant`: labels of every series."""


class Collection:
    """A collection in progress."""

    def __init__(self, metrics: Metrics, renderer: Renderer, now: Now) -> None:
        """Begin; nothing is collected yet."""
        self.families: list[RenderedFamily] = []
        self._metrics = metrics
        self._renderer = renderer
        self._batches = metrics.collect(now)
        self._chunks: Iterator[bytes] | None = None
        renderer.begin(now)

    def step(self) -> bool:
        """Do the next slice; return whether the collection is complete."""
        if self._chunks is not None:
            chunk = next(self._chunks, None)
            if chunk is not None:
                self.families[-1].chunks.append(chunk)
                return False
            self._chunks = None
        try:
            batch = next(self._batches)
        except StopIteration:
            return True
        if batch is None:
            return False
        if batch.values or batch.distributions:
            self.families.append(RenderedFamily(batch.family, []))
            self._chunks = self._renderer.render(batch, self._metrics.constant_labels(batch.family))
        return False
