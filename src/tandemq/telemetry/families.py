"""Metric families, and their values at one moment.

A family has a name, a type, a help text and label names. A source of metrics is a function that yields batches: the
values of one family, by label values. A source that has to walk a long table yields None in between, so that the
collection may stop there and continue in a later turn:

    def collect(now: Now) -> Iterator[Batch | None]:
        sizes: Values = {}
        for number, queue in enumerate(list(queues)):      a copy: the table may change between two turns
            sizes[queue.topic,] = queue.size
            if number % PAUSE_EVERY == 0:
                yield None
        yield Batch(SIZES, sizes)

A batch is a fresh object that its source does not change afterwards: other threads may read it.
Source: docs/guides/monitoring.md; the exposition formats of Prometheus and OpenMetrics.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from tandemq.boundary import Now

PAUSE_EVERY = 200
"""Number of entries of a table after which a source yields None."""
_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")


class MetricKind(Enum):
    """Type of a family, by its name in the exposition formats."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """A metric family. Units are part of the name (`_seconds`, `_bytes`); a counter's name ends with `_total`."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets, ascending, without infinity."""

    def __post_init__(self) -> None:
        """Check the name and the bounds."""
        assert all(map(_NAME.match, (self.name, *self.labels))), f"{self.name}: not a name of a metric or label"
        assert self.name.endswith("_total") == (self.kind is MetricKind.COUNTER), f"{self.name}: counters end in _total"
        assert bool(self.bounds) == (self.kind is MetricKind.HISTOGRAM), f"{self.name}: bounds are of histograms"
        assert tuple(sorted(set(self.bounds))) == self.bounds, f"{self.name}: bounds ascend"


def counter(name: str, text: str, *labels: str) -> Family:
    """Return a family of counters; `text` is its help."""
    return Family(name, MetricKind.COUNTER, text, labels)


def gauge(name: str, text: str, *labels: str) -> Family:
    """Return a family of gauges."""
    return Family(name, MetricKind.GAUGE, text, labels)


def histogram(name: str, text: str, *labels: str, bounds: Sequence[float]) -> Family:
    """Return a family of histograms."""
    return Family(name, MetricKind.HISTOGRAM, text, labels, tuple(bounds))


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """Value of a histogram: the counts per bucket, not cumulative, the last one for values above all bounds."""

    counts: Sequence[int]
    sum: float


Labels = tuple[str, ...]
"""Label values, in the order of the family's label names."""
Values = dict[Labels, float]


@dataclass(slots=True, eq=False)
class Batch:
    """All values of one family at one moment."""

    family: Family
    values: Mapping[Labels, float] = field(default_factory=dict)
    distributions: Mapping[Labels, Distribution] = field(default_factory=dict)
    """Of a histogram; `values` is empty then."""


Source = Callable[[Now], Iterator[Batch | None]]
"""A source of metrics: yields batches, each family once, and None where it may be interrupted."""


class Metrics:
    """The sources of one node, and the labels that all series have."""

    def __init__(self, labels: Mapping[str, Mapping[str, str]], common: Mapping[str, str] | None = None) -> None:
        """Begin without sources.

        Args:
            labels: constant labels, by the first word of a family's name ("rocketmq").
            common: constant labels of all families.
        """
        self._common = common or {}
        self._labels = {word: {**pairs, **self._common} for word, pairs in labels.items()}
        self._sources: list[Source] = []

    def add(self, source: Source) -> None:
        """Add a source; its families follow the families of earlier sources."""
        self._sources.append(source)

    def constant_labels(self, family: Family) -> Mapping[str, str]:
        """Return the labels that every series of a family has."""
        return self._labels.get(family.name.partition("_")[0], self._common)

    def collect(self, now: Now) -> Iterator[Batch | None]:
        """Yield the batches of all sources."""
        for source in self._sources:
            yield from source(now)
            yield None


def single(family: Family, value: float) -> Batch:
    """Return the batch of a family that has one value and no labels; True counts as 1."""
    return Batch(family, {(): +value})
