"""The text formats of Prometheus (0.0.4) and of OpenMetrics (1.0), rendered in slices.

    TextRenderer.render(batch)  ─► chunks of at most CHUNK_SERIES series, then the next batch
    page(families, is_openmetrics)  ─► the bytes of a response, from the chunks of all families

The lines of both formats are the same, their headers differ. The texts before values, names and labels, are kept from
one rendering to the next, and dropped when those of a family are twice as many as its series. A chunk is kept as long
as it has the same series, and its text as long as they have the same values: a series costs a sixth of a microsecond,
or next to nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, islice
from typing import NamedTuple

from tandemq.boundary import Now
from tandemq.telemetry.families import Batch, Distribution, Family, Labels, MetricKind

CHUNK_SERIES = 100
TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_HELP_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n"})
_SPARE_PREFIXES = 100


class RenderedFamily(NamedTuple):
    """The lines of one family, without its header."""

    family: Family
    chunks: list[bytes]


class _Chunk:
    """Series of one family that were rendered together, as they were rendered last."""

    __slots__ = ("keys", "prefixes", "text", "values")

    def __init__(self) -> None:
        self.keys: list[Labels] = []
        self.prefixes: list[str] = []
        self.values: list[float] = []
        self.text = b""


class TextRenderer:
    """Renders batches; one per node, because it keeps the texts of series."""

    def __init__(self, series_max: int) -> None:
        """Begin with nothing rendered; of a family at most `series_max` series are rendered."""
        self.series_max = series_max
        self.series = 0
        """Number of series rendered since `begin`."""
        self.dropped = 0
        """Number of series left out because of `series_max`, since the start."""
        self._chunks: dict[str, list[_Chunk]] = {}
        self._prefixes: dict[str, dict[Labels, str]] = {}
        self._bucket_prefixes: dict[str, dict[Labels, list[str]]] = {}

    def begin(self, _now: Now) -> None:
        """Begin to count the series of a new page."""
        self.series = 0

    def render(self, batch: Batch, constant: Mapping[str, str]) -> Iterator[bytes]:
        """Yield the lines of a batch, CHUNK_SERIES series at a time. `constant`: labels of every series."""
        if batch.family.kind is MetricKind.HISTOGRAM:
            yield from self._render_distributions(batch, constant)
        else:
            yield from self._render_values(batch, constant)

    def _render_values(self, batch: Batch, constant: Mapping[str, str]) -> Iterator[bytes]:
        family = batch.family
        chunks = self._chunks.setdefault(family.name, [])
        prefixes = self._prefixes.setdefault(family.name, {})
        count = self._admitted(len(batch.values))
        if len(prefixes) > 2 * count + _SPARE_PREFIXES:
            prefixes.clear()
        del chunks[-(-count // CHUNK_SERIES) :]
        keys, values = iter(batch.values), iter(batch.values.values())
        for number, start in enumerate(range(0, count, CHUNK_SERIES)):
            size = min(CHUNK_SERIES, count - start)
            chunk_keys, chunk_values = list(islice(keys, size)), list(islice(values, size))
            if number == len(chunks):
                chunks.append(_Chunk())
            chunk = chunks[number]
            if chunk.keys != chunk_keys:
                chunk.keys, chunk.values = chunk_keys, []
                for key in chunk_keys:
                    if key not in prefixes:
                        prefixes[key] = f"{family.name}{label_text(family, key, constant)} "
                chunk.prefixes = [prefixes[key] for key in chunk_keys]
            if chunk.values != chunk_values:
                chunk.values = chunk_values
                chunk.text = "".join(map("%s%s\n".__mod__, zip(chunk.prefixes, chunk_values, strict=True))).encode()
            yield chunk.text

    def _render_distributions(self, batch: Batch, constant: Mapping[str, str]) -> Iterator[bytes]:
        family = batch.family
        prefixes = self._bucket_prefixes.setdefault(family.name, {})
        per_histogram = len(family.bounds) + 3
        count = self._admitted(len(batch.distributions) * per_histogram) // per_histogram
        if len(prefixes) > 2 * count + _SPARE_PREFIXES:
            prefixes.clear()
        items = iter(batch.distributions.items())
        step = max(1, CHUNK_SERIES // per_histogram)
        for start in range(0, count, step):
            lines: list[str] = []
            for labels, value in islice(items, min(step, count - start)):
                texts = prefixes.get(labels)
                if texts is None:
                    texts = prefixes[labels] = _bucket_texts(family, labels, constant)
                lines += map("%s%s\n".__mod__, zip(texts, _bucket_values(value), strict=True))
            yield "".join(lines).encode()

    def _admitted(self, series: int) -> int:
        admitted = min(series, self.series_max)
        self.dropped += series - admitted
        self.series += admitted
        return admitted


def _bucket_values(value: Distribution) -> list[float]:
    cumulative = list(accumulate(value.counts))
    return [*cumulative, value.sum, cumulative[-1]]


def _bucket_texts(family: Family, labels: Labels, constant: Mapping[str, str]) -> list[str]:
    """Return the texts before the values of `_bucket_values`."""
    pairs = label_text(family, labels, constant).strip("{}")
    before = f"{pairs}," if pairs else ""
    bounds = [*(repr(float(bound)) for bound in family.bounds), "+Inf"]
    inside = f"{{{pairs}}}" if pairs else ""
    return [
        *(f'{family.name}_bucket{{{before}le="{bound}"}} ' for bound in bounds),
        f"{family.name}_sum{inside} ",
        f"{family.name}_count{inside} ",
    ]


def label_text(family: Family, labels: Labels, constant: Mapping[str, str]) -> str:
    """Return the labels of a series in braces, "" if there are none."""
    pairs = [*constant.items(), *zip(family.labels, labels, strict=True)]
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in pairs) + "}" if pairs else ""


def page(families: Iterable[RenderedFamily], *, is_openmetrics: bool) -> bytes:
    """Return the body of a response."""
    parts: list[bytes] = []
    for family, chunks in families:
        # OpenMetrics names a family of counters without the end of its samples' names.
        name = family.name.removesuffix("_total") if is_openmetrics else family.name
        text = family.help.translate(_ESCAPES if is_openmetrics else _HELP_ESCAPES)
        parts.append(f"# HELP {name} {text}\n# TYPE {name} {family.kind.value}\n".encode())
        parts += chunks
    if is_openmetrics:
        parts.append(b"# EOF\n")
    return b"".join(parts)
