"""Metrics of a node for assertions: collected at once, and parsed from the text format."""

import re
from collections.abc import Iterator

from tandemq.boundary import Now
from tandemq.telemetry.collection import Collection
from tandemq.telemetry.exposition import TextRenderer, page
from tandemq.telemetry.families import Metrics

_SAMPLE = re.compile(r"([a-z_0-9]+)(?:\{(.*)\})? (\S+)\Z")
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


def text_of(metrics: Metrics, now: Now, *, is_openmetrics: bool = False) -> str:
    """Return the metrics page of a node."""
    collection = Collection(metrics, TextRenderer(50_000), now)
    while not collection.step():
        continue
    return page(collection.families, is_openmetrics=is_openmetrics).decode()


def samples_in(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield name, labels and value of each sample of a page."""
    for line in text.splitlines():
        if not line.startswith("#"):
            match = _SAMPLE.match(line)
            assert match is not None, line
            yield match[1], dict(_LABEL.findall(match[2] or "")), float(match[3])


def value(text: str, name: str, **labels: str) -> float | None:
    """Return the sum of the samples with a name and at least these labels; None if there is none."""
    found = [
        number
        for sample_name, sample_labels, number in samples_in(text)
        if sample_name == name and labels.items() <= sample_labels.items()
    ]
    return sum(found) if found else None
