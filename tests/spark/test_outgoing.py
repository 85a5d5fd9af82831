"""Rows of the sink encoded by columns: the same bytes as message by message, and rows that are left to that way."""

import base64
import random
import re
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, LongType, MapType, StringType, StructField, StructType

from tandemq.client.producer.encoder import prepare
from tandemq.codec.record.record import decode_batch
from tandemq.errors import ConfigError, LocalError
from tandemq.model.message import MessageQueue, SysFlag
from tandemq.spark.sources.cluster.options import SinkOptions, sink_options
from tandemq.spark.sources.cluster.outgoing import (
    BATCH_BYTES,
    BATCH_MESSAGES,
    COMPRESS_ABOVE_BYTES,
    KEY_CHARACTERS,
    PRODUCER,
    SLICE_BYTES,
    SLICE_ROWS,
    EncodedRequest,
    encode,
    slices,
    unique_keys,
)
from tandemq.spark.sources.cluster.parcels import MessageParcel, make_parcels
from tandemq.spark.sources.cluster.row_messages import make_message, rows_of
from tandemq.spark.sources.cluster.sink import check_sink_schema

OPTIONS = sink_options({"nameServer": "127.0.0.1:9876"})
ONE_TOPIC = sink_options({"nameServer": "127.0.0.1:9876", "topic": "T"})
MAP = pa.map_(pa.string(), pa.string())
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
COLUMNS: dict[str, tuple[list[Any], tuple[pa.DataType, ...]]] = {
    "topic": (["A", "B", "C-1"], (pa.string(), pa.large_string())),
    "key": ([None, "", "k", "a b", " a  b ", "ключ", "x" * 300], (pa.string(), pa.binary())),
    "tags": ([None, "", "t", "a b", "день"], (pa.string(),)),
    "uniqueKey": ([None, "", "0A" * 16, "short"], (pa.string(),)),
}
MAPS: list[Any] = [
    None,
    {},
    {"a": "1"},
    {"a": "", "день": "ночь", "CLUSTER": "x"},
    {"KEYS": "from map", "TAGS": "t9", "z": "2"},
    {"CLUSTER": "x"},
]
OTHERS: list[Any] = [None, {}, {"h": "1"}, {"h": "", "час": "день", "REAL_TOPIC": "x"}]
TEXTS = [
    None,
    "",
    "a\x011\x02",
    "a\x011\x02b\x01две",
    "KEYS\x01k1 k2\x02TAGS\x01t\x02CLUSTER\x01c\x02",
    "UNIQ_KEY\x01u\x02q\x01r",
]


def table(rng: random.Random, count: int) -> pa.RecordBatch:
    """Columns of random presence, types, NULLs and lengths; a slice, so that offsets do not begin at 0."""
    sizes = rng.choice([(0, 1), (0, 300), (1024, 1025), (0, 9_000), (COMPRESS_ABOVE_BYTES, 9_000)])
    bodies = [rng.choice((rng.randbytes, bytes))(rng.randrange(*sizes)) for _ in range(count)]
    columns = {rng.choice(("body", "value")): pa.array(bodies, rng.choice((pa.binary(), pa.large_binary())))}
    if rng.random() < 0.2:
        columns = {"body": pa.array([body.hex() for body in bodies], pa.string())}
    for name, (values, kinds) in COLUMNS.items():
        if name == "topic" or rng.random() < 0.6:
            some = rng.sample(values, rng.randint(1, len(values)))
            kind = rng.choice(kinds)
            found = [rng.choice(some) for _ in range(count)]
            is_binary = pa.types.is_binary(kind)
            columns[name] = pa.array([one.encode() if is_binary and one is not None else one for one in found], kind)
    form = rng.randrange(6)
    if form in (1, 4):
        maps = [rng.choice(MAPS) for _ in range(count)]
        columns["properties"] = pa.array([None if one is None else list(one.items()) for one in maps], MAP)
    elif form in (2, 5):
        columns["properties"] = pa.array([rng.choice(TEXTS) for _ in range(count)], pa.string())
    if form >= 3:  # with 4 and 5 beside properties, with other names
        maps = MAPS if form == 3 else OTHERS
        pairs = [rng.choice(maps) for _ in range(count)]
        lists = [
            None if one is None else [{"key": name, "value": value.encode()} for name, value in one.items()]
            for one in pairs
        ]
        columns["headers"] = pa.array(lists, HEADERS)
    batch = pa.RecordBatch.from_pydict(columns)
    return batch.slice(rng.randrange(3)) if count > 3 else batch


def no_queues(topic: str) -> list[MessageQueue]:
    raise AssertionError(f"the queues of {topic} are not needed")


def by_message(batch: Any, options: SinkOptions, keys: str) -> list[tuple[Any, ...]]:
    found = []
    for row, values in enumerate(rows_of(batch)):
        key = values.get("uniqueKey") or keys[row * KEY_CHARACTERS : (row + 1) * KEY_CHARACTERS]
        one = prepare(make_message(values, options, row), key, PRODUCER)
        found.append((row, one.topic, one.body, one.properties, one.sys_flag, key))
    return found


def by_column(requests: list[EncodedRequest]) -> list[tuple[Any, ...]]:
    found = []
    for request, _, numbers in requests:
        assert len(request.unique_keys) == len(numbers) <= BATCH_MESSAGES
        if not request.is_batch:
            parts = [(request.body, request.properties)]
        else:
            assert request.properties == "WAIT\x01true\x02"
            assert len(request.body) <= PRODUCER.batch_bytes_max
            decoded = decode_batch(request.body)
            assert sum(len(part.body) for part in decoded) <= BATCH_BYTES
            parts = [(part.body, part.properties.decode()) for part in decoded]
        for number, (body, properties), key in zip(numbers, parts, request.unique_keys, strict=True):
            found.append((number, request.topic, body, properties, request.sys_flag, key))
    return found


def without_rows(found: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(one[1:] for one in found)


def test_rows_encoded_by_columns_are_the_same_bytes_as_message_by_message() -> None:
    for seed in range(150):
        rng = random.Random(seed)
        batch = table(rng, rng.choice((1, 2, 40, 300)))
        keys = unique_keys("q", "1", 3, 17, batch.num_rows)
        requests = encode(batch, OPTIONS, keys, no_queues)
        assert requests is not None, seed
        assert without_rows(by_column(requests)) == without_rows(by_message(batch, OPTIONS, keys)), seed
        alone = [
            EncodedRequest(rows.single(number), rows, (number,)) for _, rows, numbers in requests for number in numbers
        ]
        assert sorted(by_column(alone)) == sorted(by_column(requests)), seed


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"tags": "a|b"}, "row 6 of its partition: the tag 'a|b'"),
        ({"tags": " a"}, "row 6 of its partition: the tag ' a'"),
        ({"tags": "a\x01"}, "row 6 .*0x01 or 0x02"),
        ({"key": "a\x02b"}, "row 6 .*a key has a byte 0x01 or 0x02"),
        ({"properties": [("", "x")]}, "row 6 .*a property has no name"),
        ({"properties": [("a\x01b", "x")]}, "row 6 .*a property's name has a byte"),
        ({"properties": [("a", "x\x02")]}, "row 6 .*the property a has a byte"),
        ({"topic": "a/b"}, "row 6 .*topic"),
        ({"topic": ""}, "row 6 of its partition has no topic"),
        ({"topic": None}, "row 6 of its partition has no topic"),
        ({"body": None}, "row 6 of its partition has no body"),
        ({"headers": [{"key": "a", "value": b"\xff"}]}, "row 6 .*header 'a' is not UTF-8 text"),
        ({"headers": [{"key": "a", "value": None}]}, "row 6 .*header 'a' is not UTF-8 text"),
        ({"headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}]}, "row 6 .*header 'a' twice"),
    ],
)
def test_row_that_cannot_be_sent_is_named(columns: dict[str, Any], says: str) -> None:
    kinds = {"properties": MAP, "headers": HEADERS, "body": pa.binary()}
    good = {"body": b"x", "topic": "T", "properties": [], "headers": []}
    rows = {
        name: pa.array(
            [good.get(name), columns.get(name, good.get(name)), good.get(name)], kinds.get(name, pa.string())
        )
        for name in {"body": 0, "topic": 0} | columns
    }
    with pytest.raises(LocalError, match=says):
        make_parcels(pa.RecordBatch.from_pydict(rows), OPTIONS, unique_keys("q", "", 0, 5, 3), 5, no_queues)


@pytest.mark.parametrize(
    "columns",
    [
        {"topic": "%RETRY%g"},
        {"topic": "RMQ_SYS_TRANS_HALF_TOPIC"},
        {"body": bytes(PRODUCER.body_bytes_max + 1)},
        {"properties": [("a", "x" * 32_000)]},
        {"properties": [("MSG_TYPE", "reply")]},
        {"properties": [("a", "1"), ("a", "2")]},
        {"properties": [("a", "1")], "headers": [{"key": "a", "value": b"2"}]},
    ],
)
def test_unusual_rows_are_left_to_the_producer_of_messages(columns: dict[str, Any]) -> None:
    kinds = {"properties": MAP, "headers": HEADERS, "body": pa.binary()}
    rows = {
        name: pa.array([value], kinds.get(name, pa.string()))
        for name, value in ({"body": b"x", "topic": "T"} | columns).items()
    }
    batch = pa.RecordBatch.from_pydict(rows)
    keys = unique_keys("q", "", 0, 0, 1)
    assert encode(batch, OPTIONS, keys, no_queues) is None
    assert all(isinstance(one, MessageParcel) for one in make_parcels(batch, OPTIONS, keys, 0, no_queues))


@pytest.mark.parametrize(
    ("text", "level", "kept", "is_alone"),
    [
        ("DELAY\x013\x02a\x011\x02", 3, {"a": "1"}, True),
        ("TIMER_DELIVER_MS\x011700000000000\x02", 0, {"TIMER_DELIVER_MS": "1700000000000"}, True),
        ("TIMER_DELAY_SEC\x015\x02", 0, {"TIMER_DELAY_SEC": "5"}, True),
        # A stored message whose time has come.
        (
            "TIMER_DELIVER_MS\x011700000000000\x02REAL_TOPIC\x01T\x02TIMER_OUT_MS\x011\x02a\x011\x02",
            0,
            {"a": "1"},
            False,
        ),
        ("DELAY\x013\x02REAL_TOPIC\x01T\x02", 0, {}, False),
    ],
)
def test_row_that_asks_for_a_delay_is_sent_alone_with_it(
    text: str, level: int, kept: dict[str, str], *, is_alone: bool
) -> None:
    batch = pa.RecordBatch.from_pydict({"body": [b"x", b"y", b"z"], "properties": ["a\x012\x02", text, ""]})
    parcels = make_parcels(batch, ONE_TOPIC, unique_keys("q", "", 0, 0, 3), 0, no_queues)
    assert all(isinstance(one, MessageParcel) for one in parcels)
    batches = [[message for message, _ in one.messages] for one in parcels if isinstance(one, MessageParcel)]
    assert sorted(map(len, batches)) == ([1, 2] if is_alone else [3])
    (found,) = [message for one in batches for message in one if message.body == b"y"]
    assert (found.delay_level, found.properties, found.is_delayed) == (level, kept, is_alone)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("DELAY", "soon", "'soon', no level"),
        ("DELAY", "", "'', no level"),
        ("DELAY", "-1", "'-1', no level"),
        ("DELAY", "2147483648", "'2147483648', no level"),
        ("DELAY", "9" * 5_000, f"'{'9' * 64}', no level"),
        ("TIMER_DELAY_MS", "soon", "'soon', no time"),
        ("TIMER_DELIVER_MS", "9" * 19, f"'{'9' * 19}', no time"),
        ("TIMER_DELAY_SEC", "9" * 5_000, f"'{'9' * 64}', no time"),
    ],
)
def test_delay_that_is_no_level_or_time_is_an_error_that_names_the_row(name: str, value: str, says: str) -> None:
    batch = pa.RecordBatch.from_pydict({"body": [b"x"], "properties": pa.array([[(name, value)]], MAP)})
    with pytest.raises(LocalError, match=f"row 5 of its partition: the property {name} is {says}"):
        make_parcels(batch, ONE_TOPIC, unique_keys("q", "", 0, 5, 1), 5, no_queues)


@pytest.mark.parametrize("name", ["DELAY", "TIMER_DELAY_MS", "UNIQ_KEY", "KEYS", "TAGS", "REAL_TOPIC", "a"])
def test_property_that_is_null_counts_as_absent(name: str) -> None:
    rows = pa.array([[(name, None), ("b", "1")]], MAP)
    batch = pa.RecordBatch.from_pydict({"body": [b"x"], "properties": rows})
    [parcel] = make_parcels(batch, ONE_TOPIC, unique_keys("q", "", 0, 0, 1), 0, no_queues)
    assert isinstance(parcel, MessageParcel)
    (message,) = (one for one, _ in parcel.messages)
    assert (message.properties, message.is_delayed, message.tags, message.keys) == ({"b": "1"}, False, "", ())


def test_map_of_properties_with_other_values_than_texts_is_refused() -> None:
    body = StructField("body", StringType())
    for kind in (MapType(StringType(), LongType()), MapType(StringType(), BinaryType())):
        with pytest.raises(
            ConfigError, match=rf"column properties is {kind.simpleString()} \(a map must be map<string,s"
        ):
            check_sink_schema(StructType([body, StructField("properties", kind)]), ONE_TOPIC)
    for given in (StringType(), MapType(StringType(), StringType())):
        check_sink_schema(StructType([body, StructField("properties", given)]), ONE_TOPIC)


def test_properties_that_are_malformed_are_read_as_before() -> None:
    for text, want in (("a\x02b\x011\x02", {"b": "1"}), ("a\x011\x02a\x012\x02", {"a": "2"}), ("\x01v\x02", {})):
        batch = pa.RecordBatch.from_pydict({"body": [b"x"], "properties": [text]})
        [parcel] = make_parcels(batch, ONE_TOPIC, unique_keys("q", "", 0, 0, 1), 0, no_queues)
        assert isinstance(parcel, MessageParcel)
        assert parcel.messages[0][0].properties == want


def test_large_arrow_batches_are_divided() -> None:
    many = pa.RecordBatch.from_pydict({"body": [b"x"] * (2 * SLICE_ROWS + 1)})
    assert [one.num_rows for one in slices(many)] == [SLICE_ROWS, SLICE_ROWS, 1]
    large = pa.RecordBatch.from_pydict({"body": [bytes(SLICE_BYTES // 2)] * 5})
    assert max(one.num_rows for one in slices(large)) <= 2
    assert sum(one.num_rows for one in slices(large)) == 5
    assert list(slices(many.slice(0, 0))) == []


def test_batches_hold_no_more_messages_than_may_be_in_flight() -> None:
    options = sink_options({"nameServer": "127.0.0.1:9876", "topic": "T", "maxInFlight": "10"})
    batch = pa.RecordBatch.from_pydict({"body": [b"x"] * 95})
    requests = encode(batch, options, unique_keys("q", "", 0, 0, 95), no_queues)
    assert requests is not None
    assert [len(one.numbers) for one in requests] == [10] * 9 + [5]


LARGE = 2 * COMPRESS_ABOVE_BYTES


@pytest.mark.parametrize(
    ("body", "is_compressed"),
    [
        (random.Random(1).randbytes(LARGE), False),
        (zlib.compress(base64.b64encode(random.Random(4).randbytes(LARGE)))[:LARGE], False),
        (base64.b64encode(random.Random(2).randbytes(LARGE)), True),
        ("Ночь, улица, фонарь, аптека. ".encode() * 200, True),
        (np.random.default_rng(3).normal(size=LARGE // 8).round(2).tobytes(), True),
        (np.arange(LARGE // 4, dtype=">u4").tobytes(), True),
        (bytes(LARGE), True),
    ],
)
def test_large_bodies_are_compressed_or_sent_in_batches(body: bytes, *, is_compressed: bool) -> None:
    batch = pa.RecordBatch.from_pydict({"body": [body] * 20})
    requests = encode(batch, ONE_TOPIC, unique_keys("q", "", 0, 0, 20), no_queues)
    assert requests is not None
    assert [one.request.is_batch for one in requests] == ([False] * 20 if is_compressed else [True])
    for one in requests:
        assert one.request.sys_flag == (SysFlag.COMPRESSED if is_compressed else 0)
        assert one.rows.single(0).sys_flag == one.request.sys_flag


def test_requests_are_larger_if_there_are_many_messages_so_that_queues_are_filled_evenly() -> None:
    for rows, sizes in ((100, [100]), (1_000, [128] * 7 + [104]), (2_048, [256] * 8), (4_096, [512] * 8)):
        batch = pa.RecordBatch.from_pydict({"body": [b"x"] * rows})
        requests = encode(batch, ONE_TOPIC, unique_keys("q", "", 0, 0, rows), no_queues)
        assert requests is not None
        assert [len(one.numbers) for one in requests] == sizes


def test_unique_keys_differ_by_each_of_their_parts() -> None:
    parts = [("q", "1", 3, 0), ("r", "1", 3, 0), ("q", "2", 3, 0), ("q", "1", 4, 0), ("q", "1", 3, 1 << 40)]
    keys = [unique_keys(query, batch, partition, first, 300) for query, batch, partition, first in parts]
    found = {key[at : at + KEY_CHARACTERS] for key in keys for at in range(0, len(key), KEY_CHARACTERS)}
    assert len(found) == 300 * len(parts)
    assert all(re.fullmatch(r"[0-9A-F]{32}", key) for key in found)
    assert unique_keys("q", "1", 3, 100, 200) == keys[0][100 * KEY_CHARACTERS :]
