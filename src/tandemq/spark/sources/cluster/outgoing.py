"""Rows of the sink as send requests, made column by column: Arrow and numpy, no objects per row.

    columns ─► properties, keys and tags joined ─► heads, bodies and properties joined ─► cut into batches
               one buffer for all rows             one buffer: the bodies of all requests

`encode` makes the same bytes as `prepare_batches` and `prepare` do from messages. It leaves rows that need a closer
look (None) to those: whatever is invalid or unusual, so that errors are made in one place and name the row.

Source: docs/internals/storage.md, "batches"; docs/reference/requests.md, "sending".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandemq.client.core.settings import ProducerOptions
from tandemq.client.producer.encoder import PROPERTIES_BYTES_MAX, SendRequest, batch_request, single_request
from tandemq.errors import InvalidMessage
from tandemq.model.message import DELAY, KEYS, SYSTEM_PROPERTIES, TAGS, TIMER_NAMES, Message
from tandemq.model.replies import MSG_TYPE
from tandemq.model.topic import RETRY_PREFIX, takes_no_sends
from tandemq.spark.sources.cluster.queue_choice import Lane, QueueBy, QueuesOf, places_of
from tandemq.spark.sources.schema import HEADERS

if TYPE_CHECKING:
    from tandemq.spark.sources.cluster.options import SinkOptions

SLICE_ROWS = 4096
SLICE_BYTES = 8 << 20
"""Rows and bytes of an Arrow batch that are encoded at once; a larger row is alone."""
BATCH_MESSAGES = 512
BATCH_BYTES = 256 << 10
"""Limits of a request. All its messages go to one queue, so that larger ones would fill queues unevenly."""
BATCH_MESSAGES_FEW, REQUESTS_MIN = 128, 8
"""Messages of a request if a slice would have less than so many requests."""
PRODUCER = ProducerOptions(group="spark")
COMPRESS_ABOVE_BYTES = PRODUCER.compress_above_bytes
_UNCOMPRESSED = replace(PRODUCER, compress_above_bytes=PRODUCER.body_bytes_max + 1)
SAMPLED_RUNS, SAMPLED_RUN_BYTES = 16, 16
"""Parts of a body, evenly spaced, that show whether compression can make it smaller."""
DISTINCT_MIN = 130
"""Distinct values among the 256 sampled bytes from which on it cannot: random ones have 162, deviating by 5; text,
Base64 and records of numbers have less."""
KEY_CHARACTERS, _HASH_DIGITS = 32, 20
_HEXADECIMAL = np.frombuffer(b"0123456789ABCDEF", np.uint8)
DELAYS = TIMER_NAMES | {DELAY}
"""Properties by which a message asks for a delayed delivery; brokers accept none in a batch."""
DELAY_COLUMNS = ("delayLevel", "deliverAt")
"""Columns that set them."""
_HEAD = np.dtype([("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body", ">i4")])
_OVERHEAD = _HEAD.itemsize + 2
_NAME_END, _PROPERTY_END = b"\x01", b"\x02"
Column = Any
"""An Arrow array."""


class _Unusual(Exception):  # not an error: the rows go another way
    """The rows must be looked at one by one."""


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Rows of one slice by lane: the columns from which their requests are made."""

    lanes: list[Lane]
    keys: Column
    bodies: Column
    properties: Column
    compressed: Any
    """Whether the body of each row is compressed, if that makes it smaller."""

    def single(self, row: int) -> SendRequest:
        """Return the request of one row."""
        properties, key = self.properties[row].as_py().decode(), self.keys[row].as_py().decode()
        producer = PRODUCER if self.compressed[row] else _UNCOMPRESSED
        return single_request(self.lanes[row].topic, self.bodies[row].as_py(), properties, key, producer)


class EncodedRequest(NamedTuple):
    """A request, and the rows in it, which are of one lane."""

    request: SendRequest
    rows: EncodedRows
    numbers: tuple[int, ...]

    @property
    def lane(self) -> Lane:
        """Where it goes."""
        return self.rows.lanes[self.numbers[0]]


def unique_keys(query: str, batch: str, partition: int, first: int, count: int) -> str:
    """Return the unique keys of `count` rows, one behind the other: each the hash of (query, batch, partition) and the
    row, 32 hexadecimal digits; equal arguments give equal keys."""
    begin = blake2b("\x00".join((query, batch, str(partition))).encode(), digest_size=_HASH_DIGITS // 2).hexdigest()
    keys = np.empty((count, KEY_CHARACTERS), np.uint8)
    keys[:, :_HASH_DIGITS] = np.frombuffer(begin.upper().encode(), np.uint8)
    rows = np.arange(first, first + count, dtype=np.int64)[:, None]
    shifts = 4 * np.arange(KEY_CHARACTERS - _HASH_DIGITS - 1, -1, -1)
    keys[:, _HASH_DIGITS:] = _HEXADECIMAL[rows >> shifts & 15]
    return keys.tobytes().decode()


def slices(batch: Any) -> Iterator[Any]:
    """Divide an Arrow batch into parts of at most `SLICE_ROWS` rows and about `SLICE_BYTES`, at least one row each."""
    average = batch.nbytes // max(batch.num_rows, 1) + 1
    step = max(1, min(SLICE_ROWS, SLICE_BYTES // average))
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def encode(batch: Any, options: SinkOptions, keys: str, queues_of: QueuesOf) -> list[EncodedRequest] | None:
    """Return the requests that send the rows of a slice; None if some row must be looked at by itself.

    Args:
        batch: an Arrow batch.
        options: of the sink.
        keys: the unique keys of the rows, see `unique_keys`.
        queues_of: called for each topic if rows choose queues.
    """
    try:
        return _encode(batch, options, keys, queues_of)
    except (_Unusual, pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _encode(batch: Any, options: SinkOptions, keys: str, queues_of: QueuesOf) -> list[EncodedRequest]:
    columns = {
        "body" if name == "value" else name: batch.column(index) for index, name in enumerate(batch.schema.names)
    }
    count = batch.num_rows
    bodies = _binary(columns["body"])
    if bodies.null_count or int(_sizes(bodies).max(initial=0)) > PRODUCER.body_bytes_max:
        raise _Unusual
    unique = _fixed(np.frombuffer(keys.encode(), np.uint8), KEY_CHARACTERS)
    if "uniqueKey" in columns:
        unique = _if_any(_binary(columns["uniqueKey"]), unique)
    if any(name in columns and columns[name].null_count < count for name in DELAY_COLUMNS):
        raise _Unusual
    properties, of_rows = _properties(columns, options, count, unique)
    if int(_sizes(properties).max(initial=0)) > PROPERTIES_BYTES_MAX:
        raise _Unusual
    compressed = _compressible(bodies)
    topics, codes = _topics(columns, options, count)
    if options.queue_by is QueueBy.ANY:
        lanes, order = [Lane(topic) for topic in topics], np.lexsort((~compressed, codes))
    else:
        places = _places(columns, options, of_rows, topics, codes, queues_of)
        lanes, codes = _lanes(topics, codes, places, queues_of)
        order = np.argsort(codes, kind="stable")
    if (np.diff(order) != 1).any():
        bodies, properties, unique = (column.take(pa.array(order)) for column in (bodies, properties, unique))
        compressed, codes = compressed[order], codes[order]
    rows = EncodedRows([lanes[code] for code in codes.tolist()], unique, bodies, properties, compressed)
    return list(_requests(rows, options))


# Requests.


def messages_per_request(rows: int, options: SinkOptions) -> int:
    """Return the maximum number of messages of the requests of a slice: fewer if it is small, for the same reason."""
    return min(BATCH_MESSAGES, max(BATCH_MESSAGES_FEW, rows // REQUESTS_MIN), options.in_flight_max)


def _requests(rows: EncodedRows, options: SinkOptions) -> Iterator[EncodedRequest]:
    """Return requests of adjacent rows of one lane, in their order; a row that may be compressed has its own."""
    is_batched = ~rows.compressed
    bodies, properties, keys = rows.bodies, rows.properties, rows.keys
    if not is_batched.all():
        bodies, properties, keys = (column.filter(pa.array(is_batched)) for column in (bodies, properties, keys))
    wire = _batch_parts(bodies, properties)
    data, ends, body_ends = wire.buffers()[2], _bounds(wire), _bounds(bodies)
    names = keys.cast(pa.string()).to_pylist()
    place = np.cumsum(is_batched) - is_batched  # of each row among those in batches
    alone = np.append(np.flatnonzero(rows.compressed), len(is_batched))
    messages_max = messages_per_request(len(is_batched), options)
    start = 0
    for lane, end in _runs(rows.lanes):
        while start < end:
            first = int(place[start])
            last = first + min(messages_max, end - start, int(alone[np.searchsorted(alone, start)]) - start)
            if last > first + 1:
                last = min(last, int(np.searchsorted(body_ends, body_ends[first] + BATCH_BYTES, "right")) - 1)
                last = min(last, int(np.searchsorted(ends, ends[first] + PRODUCER.batch_bytes_max, "right")) - 1)
            count = max(last - first, 1)
            if count == 1:
                request = rows.single(start)
            else:
                body = data[int(ends[first]) : int(ends[last])].to_pybytes()
                request = batch_request(lane.topic, body, tuple(names[first:last]))
            yield EncodedRequest(request, rows, tuple(range(start, start + count)))
            start += count


def _compressible(bodies: Column) -> Any:
    """Return which bodies are large enough to be compressed and do not look random.

    Those that are compressed or encrypted do: compression does not make them smaller, and they can be sent in batches.
    """
    found = _sizes(bodies) >= COMPRESS_ABOVE_BYTES
    rows = np.flatnonzero(found)
    if len(rows):
        bounds, data = _bounds(bodies), np.frombuffer(bodies.buffers()[2], np.uint8)
        steps = np.arange(SAMPLED_RUNS) / (SAMPLED_RUNS - 1)
        runs = bounds[rows, None] + ((bounds[rows + 1] - bounds[rows])[:, None] - SAMPLED_RUN_BYTES) * steps
        places = runs.astype(np.int64)[:, :, None] + np.arange(SAMPLED_RUN_BYTES)
        is_there = np.zeros((len(rows), 256), bool)
        is_there[np.arange(len(rows))[:, None, None], data[places]] = True
        found[rows] = is_there.sum(axis=1) < DISTINCT_MIN
    return found


def _batch_parts(bodies: Column, properties: Column) -> Column:
    """Return each message as it is in the body of a batch; see `encode_batch`."""
    heads = np.zeros(len(bodies), _HEAD)
    body_sizes, property_sizes = _sizes(bodies), _sizes(properties)
    heads["size"] = _OVERHEAD + body_sizes + property_sizes
    heads["body"] = body_sizes
    lengths = property_sizes.astype(">u2")
    return pc.binary_join_element_wise(
        _fixed(heads.view(np.uint8), _HEAD.itemsize), bodies, _fixed(lengths.view(np.uint8), 2), properties, b""
    )


def _runs(lanes: list[Lane]) -> Iterator[tuple[Lane, int]]:
    """Return each lane and the end of its rows; those of a lane are adjacent."""
    if lanes[0] is lanes[-1]:
        yield lanes[0], len(lanes)
        return
    for row in range(1, len(lanes)):
        if lanes[row] is not lanes[row - 1]:
            yield lanes[row - 1], row
    yield lanes[-1], len(lanes)


def _topics(columns: dict[str, Column], options: SinkOptions, count: int) -> tuple[list[str], Any]:
    """Return the topics, and the number of each row's topic among them."""
    if options.topic:
        _check_topic(options.topic)
        return [options.topic], np.zeros(count, np.int64)
    column = _text(columns["topic"])
    if column.null_count:
        raise _Unusual
    encoded = pc.dictionary_encode(column)
    names = [name.decode() for name in encoded.dictionary.to_pylist()]
    for name in names:
        _check_topic(name)
    return names, encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _places(
    columns: dict[str, Column],
    options: SinkOptions,
    keys: Column | None,
    topics: list[str],
    codes: Any,
    queues_of: QueuesOf,
) -> Any:
    """Return the number of each row's queue among those of its topic; -1: any."""
    count = len(codes)
    if options.queue_by is QueueBy.PARTITION:
        given = columns["partition"].cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
        is_null = columns["partition"].is_null().to_numpy(zero_copy_only=False)
        sizes = np.array([len(queues_of(topic)) for topic in topics])[codes]
        if ((~is_null & (given < 0)) | (given >= sizes)).any():
            raise _Unusual
        return given
    if keys is None:
        return np.full(count, -1)
    encoded = pc.dictionary_encode(keys)
    names = [name.decode() for name in encoded.dictionary.to_pylist()]
    by_topic = np.array([places_of(names, len(queues_of(topic))) for topic in topics])
    return by_topic[codes, encoded.indices.to_numpy(zero_copy_only=False)]


def _lanes(topics: list[str], codes: Any, places: Any, queues_of: QueuesOf) -> tuple[list[Lane], Any]:
    """Return the lanes, and the number of each row's lane among them."""
    pairs, numbers = np.unique(np.stack((codes, places), axis=1), axis=0, return_inverse=True)
    lanes = [
        Lane(topics[code], queues_of(topics[code])[place] if place >= 0 else None) for code, place in pairs.tolist()
    ]
    return lanes, numbers.reshape(-1)


def _check_topic(topic: str) -> None:
    if topic.startswith(RETRY_PREFIX) or takes_no_sends(topic):
        raise _Unusual
    _check(topic=topic)


def _check(topic: str = "T", tags: str = "") -> None:
    try:
        Message(topic, b"", tags=tags)
    except InvalidMessage:
        raise _Unusual from None


# Properties.


class _Entries(NamedTuple):
    """Names and values of the properties of all rows; row n has the entries `[bounds[n], bounds[n + 1])`."""

    names: Column
    values: Column
    bounds: Any


class _Given(NamedTuple):
    """Encoded properties of each row without system properties, and the keys and tags among these."""

    encoded: Column | None
    keys: Column | None
    tags: Column | None


def _properties(
    columns: dict[str, Column], options: SinkOptions, count: int, unique: Column
) -> tuple[Column, Column | None]:
    """Return the properties of each row, as `encoder.prepare` writes them, and the keys among them."""
    given = _given(columns, options, count)
    keys, tags = columns.get("key"), columns.get("tags")
    keys = _or_else(None if keys is None else _text(keys), given.keys)
    tags = _or_else(None if tags is None else _text(tags), given.tags)
    parts = [] if given.encoded is None else [given.encoded]
    parts += [b"UNIQ_KEY\x01", unique, b"\x02WAIT\x01true\x02"]
    if tags is not None:
        for tag in pc.unique(tags).to_pylist():
            _check(tags=tag.decode())
        parts += _named(TAGS, tags)
    if keys is not None:
        keys = _words(keys)
        parts += _named(KEYS, keys)
    return pc.binary_join_element_wise(*parts, b""), keys


def _named(name: str, values: Column) -> list[Column]:
    """Return the parts of a property to append to each row; they are empty for a row whose value is empty."""
    begin = f"{name}\x01".encode()
    sizes = _sizes(values)
    if sizes.all():
        return [begin, values, _PROPERTY_END]
    if not sizes.any():
        return []
    return [_where(sizes > 0, pc.binary_join_element_wise(begin, values, _PROPERTY_END, b""))]


def _words(keys: Column) -> Column:
    """Return keys with one space between them."""
    if _has(keys, b"\x01", b"\x02"):
        raise _Unusual
    if not _has(keys, b" "):
        return keys
    texts = [b" ".join([word for word in text.split(b" ") if word]) for text in keys.to_pylist()]
    return pa.array(texts, pa.binary())


def _given(columns: dict[str, Column], options: SinkOptions, count: int) -> _Given:
    properties = columns.get("properties")
    headers = columns.get(HEADERS) if options.headers else None
    found = [column for column in (properties, headers) if column is not None and column.null_count < count]
    if not found:
        return _Given(None, None, None)
    parts = [_of_headers(column) if column is headers else _of_properties(column) for column in found]
    return _kept(parts[0] if len(parts) == 1 else _together(parts, count), count)


def _together(parts: list[_Entries], count: int) -> _Entries:
    """Return the properties of several columns as one; in each row they are in the order of the columns."""
    rows = np.concatenate([np.repeat(np.arange(count), np.diff(part.bounds)) for part in parts])
    order = pa.array(np.argsort(rows, kind="stable"))
    names = pa.concat_arrays([part.names for part in parts]).take(order)
    values = pa.concat_arrays([part.values for part in parts]).take(order)
    return _Entries(names, values, sum(part.bounds for part in parts))


def _kept(entries: _Entries, count: int) -> _Given:
    names, values, bounds = entries
    if not len(names):
        return _Given(None, None, None)
    if names.null_count or values.null_count or _has(values, b"\x01", b"\x02"):
        raise _Unusual
    encoded = pc.dictionary_encode(names)
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    known = [name.decode() for name in encoded.dictionary.to_pylist()]
    if (
        "" in known
        or MSG_TYPE in known
        or not DELAYS.isdisjoint(known)
        or any("\x01" in name or "\x02" in name for name in known)
    ):
        raise _Unusual
    row = np.repeat(np.arange(count), np.diff(bounds))
    if len(np.unique(row * len(known) + codes)) < len(codes):
        raise _Unusual  # twice in a row
    joined = pc.binary_join_element_wise(names, _NAME_END, values, _PROPERTY_END, b"")
    is_kept = np.array([name not in SYSTEM_PROPERTIES for name in known])[codes]
    if not is_kept.all():
        joined = _where(is_kept, joined)
    ends = _bounds(joined)[bounds].astype(np.int32)
    rows = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), joined.buffers()[2]])
    keys, tags = (
        _spread(values, row, codes == known.index(name), count) if name in known else None for name in (KEYS, TAGS)
    )
    return _Given(rows, keys, tags)


def _spread(values: Column, row: Any, chosen: Any, count: int) -> Column:
    """Return the chosen values as a column of all rows, empty where a row has none."""
    place = np.zeros(count, np.int32)
    absent = np.ones(count, bool)
    place[row[chosen]], absent[row[chosen]] = np.flatnonzero(chosen), False
    return values.take(pa.array(place, mask=absent)).fill_null(b"")


def _of_properties(column: Column) -> _Entries:
    return _of_map(column) if pa.types.is_map(column.type) else _of_text(_text(column))


def _of_map(column: Column) -> _Entries:
    bounds = _list_bounds(column)
    first, size = int(bounds[0]), int(bounds[-1] - bounds[0])
    names, values = column.keys.slice(first, size), column.items.slice(first, size)
    return _Entries(_text(names), _text(values), bounds - first)


def _of_headers(column: Column) -> _Entries:
    bounds = _list_bounds(column)
    first = int(bounds[0])
    pairs = column.values.slice(first, int(bounds[-1]) - first)
    fields = dict(zip([field.name for field in pairs.type], pairs.flatten(), strict=True))
    return _Entries(_text(fields["key"]), _text(fields["value"]), bounds - first)


def _list_bounds(column: Column) -> Any:
    bounds = column.offsets.to_numpy()
    if column.null_count and np.diff(bounds)[column.is_null().to_numpy(zero_copy_only=False)].any():
        raise _Unusual  # values below a NULL
    return bounds


def _of_text(column: Column) -> _Entries:
    """Return properties in their stored form. Each must have a name and a value; the last end may be missing."""
    column = column.fill_null(b"") if column.null_count else column
    data, bounds = _bytes(column), _bounds(column)
    is_open = np.zeros(len(column), bool)
    filled = bounds[1:] > bounds[:-1]
    is_open[filled] = data[bounds[1:][filled] - 1 - bounds[0]] != 2
    if is_open.any():
        ends = _where(is_open, pa.array([b"\x02"] * len(column), pa.binary()))
        column = pc.binary_join_element_wise(column, ends, b"")
        data, bounds = _bytes(column), _bounds(column)
    bounds = bounds - bounds[0]
    middle, end = np.flatnonzero(data == 1), np.flatnonzero(data == 2)
    start = np.concatenate(([0], end[:-1] + 1)) if len(end) else end
    if len(middle) != len(end) or not ((start < middle) & (middle + 1 < end)).all():
        raise _Unusual
    edges = np.empty(4 * len(end) + 1, np.int32)
    edges[0:-1:4], edges[1::4], edges[2::4], edges[3::4] = start, middle, middle + 1, end
    edges[-1] = len(data)
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(data)]
    pieces = pa.Array.from_buffers(pa.binary(), 4 * len(end), buffers)
    names, values = (pieces.take(pa.array(np.arange(offset, 4 * len(end), 4))) for offset in (0, 2))
    return _Entries(names, values, np.searchsorted(end, bounds))


# Columns.


def _text(column: Column) -> Column:
    """Return a column of texts in UTF-8 as bytes; pa.ArrowInvalid if a value is not UTF-8."""
    return _binary(column.cast(pa.string()) if pa.types.is_binary(column.type) else column)


def _binary(column: Column) -> Column:
    """Return a column of texts or bytes as bytes. Texts are checked, since Spark does not do that."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column.validate(full=True)
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())


def _or_else(column: Column | None, other: Column | None) -> Column | None:
    """Return a column in which the values of another column replace NULL; if one is missing, NULL becomes empty."""
    if column is None or other is None:
        found = other if column is None else column
        return found if found is None or not found.null_count else found.fill_null(b"")
    return pc.coalesce(column, other)


def _if_any(column: Column, other: Column) -> Column:
    """Return a column in which the values of another column replace NULL and empty values."""
    return pc.if_else(pc.equal(column.fill_null(b""), b""), other, column)


def _where(chosen: Any, column: Column) -> Column:
    """Return a column with empty values in the rows that are not chosen."""
    return pc.if_else(pa.array(chosen), column, b"")


def _fixed(data: Any, size: int) -> Column:
    """Return bytes as a column of values of one size."""
    count = len(data) // size
    edges = np.arange(0, (count + 1) * size, size, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(edges), pa.py_buffer(data)])


def _bounds(column: Column) -> Any:
    """Return where the values of a column of bytes begin in its buffer, and the end of the last one."""
    if not len(column):
        return np.zeros(1, np.int64)
    edges = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)
    return edges.astype(np.int64)


def _sizes(column: Column) -> Any:
    return np.diff(_bounds(column))


def _bytes(column: Column) -> Any:
    """Return the bytes of all values of a column, one behind the other."""
    bounds, buffer = _bounds(column), column.buffers()[2]
    if buffer is None or bounds[0] == bounds[-1]:
        return np.zeros(0, np.uint8)
    return np.frombuffer(buffer, np.uint8)[bounds[0] : bounds[-1]]


def _has(column: Column, *searched: bytes) -> bool:
    """Return whether a byte occurs in a value."""
    data = _bytes(column)
    text = data.tobytes()
    return any(byte in text for byte in searched)
