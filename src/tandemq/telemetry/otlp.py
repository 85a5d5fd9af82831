"""OpenTelemetry's metrics protocol (OTLP) in protobuf, rendered in slices.

    OtlpRenderer.render(batch) ─► chunks: data points of at most CHUNK_SERIES series each
    OtlpRenderer.request(families) ─► ExportMetricsServiceRequest, from the chunks of all families

A data point begins with its labels, which are kept as bytes from one rendering to the next. Metrics have the names that
they have in the text formats, so that dashboards and rules work on either; their unit is that of the name's end.

Source: opentelemetry-proto, metrics/v1/metrics.proto and collector/metrics/v1/metrics_service.proto (the numbers of
fields below); the specification's "OTLP Metrics data model".
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from struct import Struct, pack

from tandemq.boundary import Now
from tandemq.telemetry.exposition import CHUNK_SERIES, RenderedFamily
from tandemq.telemetry.families import Batch, Distribution, Family, Labels, MetricKind

CONTENT_TYPE = "application/x-protobuf"
SCOPE = "tandemq"
_DELTA, _CUMULATIVE = 1, 2
_MS_NS = 1_000_000
_SPARE_HEADS = 100
_UNITS = {"milliseconds": "ms", "seconds": "s", "bytes": "By"}
_GAUGE, _SUM, _HISTOGRAM = 5, 7, 9
"""Fields of a Metric, by its kind."""
_NUMBER_LABELS, _HISTOGRAM_LABELS = 7, 9
"""Fields of the attributes of a NumberDataPoint and of a HistogramDataPoint."""

# Field 2 start_time_unix_nano, 3 time_unix_nano, 4 as_double, 6 as_int; all of 64 fixed bits.
_TIMES = Struct("<BQBQ")
_INT, _DOUBLE = Struct("<Bq"), Struct("<Bd")
# Field 4 count, 5 sum.
_COUNT_AND_SUM = Struct("<BQBd")
_START, _TIME, _AS_DOUBLE, _AS_INT, _COUNT, _SUM_VALUE = 0x11, 0x19, 0x21, 0x31, 0x21, 0x29
_INT_MAX = (1 << 63) - 1


def varint(value: int) -> bytes:
    """Return a number of 0 or more as protobuf's variable-length integer."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def message(number: int, data: bytes) -> bytes:
    """Return a field that has a length: a message, a text or packed numbers."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def fields_of(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of the fields of a message: whole numbers, or bytes.

    Raises:
        ValueError: the bytes are not a message.
    """
    position = 0

    def number() -> int:
        nonlocal position
        value = shift = 0
        while True:
            if position >= len(data) or shift > 63:
                raise ValueError("a number does not end")
            byte = data[position]
            position, value, shift = position + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    while position < len(data):
        key = number()
        if key & 7 == 0:
            yield key >> 3, number()
            continue
        size = {1: 8, 5: 4}.get(key & 7, -1)
        if key & 7 == 2:
            size = number()
        if not 0 <= size <= len(data) - position:
            raise ValueError("a field is longer than its message")
        yield key >> 3, data[position : position + size]
        position += size


class OtlpRenderer:
    """Renders batches; one per node. Its dropped series are those of one family above `series_max`."""

    def __init__(
        self, series_max: int, resource: Mapping[str, str], version: str, started_ms: int, *, is_delta: bool = False
    ) -> None:
        """Begin with nothing rendered.

        Args:
            series_max: maximum number of series of a family.
            resource: attributes of the process, such as `service.name`.
            version: that of the program.
            started_ms: calendar time since when counters count.
            is_delta: whether counters and histograms are rendered as their growth since `accepted`.
        """
        self.series_max = series_max
        self.series = self.dropped = 0
        """Number of series rendered since `begin`, and of those left out since the start."""
        resource_bytes = b"".join(_key_value(1, name, value) for name, value in resource.items())
        scope = message(1, SCOPE.encode()) + message(2, version.encode())
        self._before = message(1, resource_bytes), message(1, scope)
        self._is_delta = is_delta
        self._start_ns = self._time_ns = started_ms * _MS_NS
        self._heads: dict[str, dict[Labels, bytes]] = {}
        self._bounds: dict[str, bytes] = {}
        self._accepted: dict[str, dict[Labels, float | Distribution]] = {}
        self._rendered: dict[str, dict[Labels, float | Distribution]] = {}

    def begin(self, now: Now) -> None:
        """Begin a request, of this time."""
        self.series = 0
        self._rendered = {}
        # A clock that was set back must not end a span before its start.
        self._time_ns = max(now.wall_ms * _MS_NS, self._start_ns)

    def accepted(self) -> None:
        """Note that the receiver has the last request: the next deltas begin at it."""
        if self._is_delta:
            self._accepted, self._start_ns = self._rendered, self._time_ns

    def render(self, batch: Batch, constant: Mapping[str, str]) -> Iterator[bytes]:
        """Yield the data points of a batch, CHUNK_SERIES series at a time. `constant`: labels of every series."""
        family = batch.family
        if family.kind is MetricKind.HISTOGRAM:
            yield from self._render_histograms(family, batch.distributions, constant)
        else:
            yield from self._render_numbers(family, batch.values, constant)

    def _render_numbers(
        self, family: Family, values: Mapping[Labels, float], constant: Mapping[str, str]
    ) -> Iterator[bytes]:
        heads = self._heads_of(family, len(values))
        is_counter = family.kind is MetricKind.COUNTER
        times = _TIMES.pack(_START, self._start_ns, _TIME, self._time_ns) if is_counter else _time(self._time_ns)
        pack_int, pack_double = _INT.pack, _DOUBLE.pack
        size = len(times) + _INT.size
        before = self._accepted.get(family.name, {}) if is_counter and self._is_delta else {}
        if is_counter and self._is_delta:
            self._rendered[family.name] = {**values}
        items = iter(values.items())
        for count in _chunks(self._admitted(len(values))):
            parts: list[bytes] = []
            for labels, value in islice(items, count):
                head = heads.get(labels)
                if head is None:
                    head = heads[labels] = _point_head(family, labels, constant, _NUMBER_LABELS, size)
                if before:
                    value = _grown(value, before.get(labels, 0))
                if isinstance(value, int) and value <= _INT_MAX:
                    parts += (head, times, pack_int(_AS_INT, value))
                else:
                    parts += (head, times, pack_double(_AS_DOUBLE, value))
            yield b"".join(parts)

    def _render_histograms(
        self, family: Family, values: Mapping[Labels, Distribution], constant: Mapping[str, str]
    ) -> Iterator[bytes]:
        per_histogram = len(family.bounds) + 3
        heads = self._heads_of(family, len(values))
        bounds = self._bounds.get(family.name)
        if bounds is None:
            bounds = self._bounds[family.name] = message(7, pack(f"<{len(family.bounds)}d", *family.bounds))
        counts_head = varint(6 << 3 | 2) + varint(8 * (len(family.bounds) + 1))
        counts_of = Struct(f"<{len(family.bounds) + 1}Q").pack
        times = _TIMES.pack(_START, self._start_ns, _TIME, self._time_ns)
        size = len(times) + _COUNT_AND_SUM.size + len(counts_head) + 8 * (len(family.bounds) + 1) + len(bounds)
        before = self._accepted.get(family.name, {}) if self._is_delta else {}
        if self._is_delta:
            self._rendered[family.name] = {**values}
        items = iter(values.items())
        for count in _chunks(self._admitted(len(values) * per_histogram) // per_histogram, per_histogram):
            parts: list[bytes] = []
            for labels, value in islice(items, count):
                head = heads.get(labels)
                if head is None:
                    head = heads[labels] = _point_head(family, labels, constant, _HISTOGRAM_LABELS, size)
                grown = _grown_distribution(value, before.get(labels)) if before else value
                total = _COUNT_AND_SUM.pack(_COUNT, sum(grown.counts), _SUM_VALUE, grown.sum)
                parts += (head, times, total, counts_head, counts_of(*grown.counts), bounds)
            yield b"".join(parts)

    def _heads_of(self, family: Family, count: int) -> dict[Labels, bytes]:
        heads = self._heads.setdefault(family.name, {})
        if len(heads) > 2 * count + _SPARE_HEADS:
            heads.clear()
        return heads

    def _admitted(self, series: int) -> int:
        admitted = min(series, self.series_max)
        self.dropped += series - admitted
        self.series += admitted
        return admitted

    def request(self, families: Iterable[RenderedFamily]) -> bytes:
        """Return the request with these families. Any thread may call it."""
        resource, scope = self._before
        metrics = b"".join(message(2, self._metric(family, b"".join(chunks))) for family, chunks in families)
        return message(1, resource + message(2, scope + metrics))

    def _metric(self, family: Family, points: bytes) -> bytes:
        head = message(1, family.name.encode()) + message(2, family.help.encode())
        unit = _UNITS.get(family.name.removesuffix("_total").rpartition("_")[2])
        if unit is not None:
            head += message(3, unit.encode())
        temporality = bytes((2 << 3, _DELTA if self._is_delta else _CUMULATIVE))
        match family.kind:
            case MetricKind.GAUGE:
                return head + message(_GAUGE, points)
            case MetricKind.COUNTER:
                return head + message(_SUM, points + temporality + bytes((3 << 3, 1)))
            case MetricKind.HISTOGRAM:
                return head + message(_HISTOGRAM, points + temporality)


def _time(time_ns: int) -> bytes:
    return pack("<BQ", _TIME, time_ns)


def _chunks(count: int, series_of_each: int = 1) -> Iterator[int]:
    """Yield how many of `count` things are rendered at a time."""
    step = max(1, CHUNK_SERIES // series_of_each)
    for start in range(0, count, step):
        yield min(step, count - start)


def _key_value(number: int, name: str, value: str) -> bytes:
    return message(number, message(1, name.encode()) + message(2, message(1, value.encode())))


def _point_head(family: Family, labels: Labels, constant: Mapping[str, str], number: int, size: int) -> bytes:
    """Return field number and length of a data point, and its labels; `size`: bytes of the rest."""
    pairs = [*constant.items(), *zip(family.labels, labels, strict=True)]
    attributes = b"".join(_key_value(number, name, value) for name, value in pairs)
    return varint(1 << 3 | 2) + varint(len(attributes) + size) + attributes


def _grown(value: float, before: float | Distribution) -> float:
    """Return the growth of a counter; one that was restarted has grown by its value."""
    assert not isinstance(before, Distribution)
    return value - before if value >= before else value


def _grown_distribution(value: Distribution, before: float | Distribution | None) -> Distribution:
    if not isinstance(before, Distribution):
        return value
    counts = [now - then for now, then in zip(value.counts, before.counts, strict=True)]
    return value if min(counts) < 0 else Distribution(counts, max(0.0, value.sum - before.sum))
