"""Pulled records as batches, without Spark: one malformed record does not affect the others."""

import zlib
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from tandemq.codec.record.record import CRC_PROPERTY_BYTES, decode_messages, encode_host, encode_record, parse_record
from tandemq.errors import ProtocolError
from tandemq.model.message import SYSTEM_PROPERTIES, MessageQueue, SysFlag
from tandemq.spark.jobs import replay
from tandemq.spark.sources import records
from tandemq.spark.sources.cluster.decode import BATCH_BYTES, Decoder, merge
from tandemq.spark.sources.cluster.epochs import Epochs
from tandemq.spark.sources.cluster.plan import QueueRange
from tandemq.spark.sources.cluster.reader import PulledRecords
from tandemq.spark.sources.records import MILLISECONDS_MAX
from tandemq.spark.sources.schema import message_schema

HOST = encode_host(b"\x7f\0\0\1", 10911)


def pulled(*bodies: bytes, sys_flag: int = 0, born_ms: int = 0) -> PulledRecords:
    records = [
        encode_record(
            topic=b"T",
            queue_id=0,
            queue_offset=n,
            log_offset=n * 1000,
            body=body,
            properties=b"",
            flag=0,
            sys_flag=sys_flag,
            born_ms=born_ms,
            born_host=HOST,
            store_ms=1,
            store_host=HOST,
        )
        for n, body in enumerate(bodies)
    ]
    return PulledRecords(QueueRange(MessageQueue("T", "a", 0), 0, len(bodies)), b"".join(records), len(bodies))


@pytest.mark.parametrize("born_ms", [(1 << 63) - 1, -(1 << 63)])
def test_time_beyond_the_timestamp_range_is_clamped(born_ms: int) -> None:
    batch = Decoder(message_schema(), kafka=False).batch(pulled(b"0", b"1", born_ms=born_ms), Epochs())
    assert batch.column("body").to_pylist() == [b"0", b"1"]


def test_body_that_cannot_be_decompressed_is_a_row_with_a_verdict_or_an_error_that_names_it() -> None:
    some = pulled(zlib.compress(b"sound"), b"no zlib", sys_flag=int(SysFlag.COMPRESSED))
    batch = Decoder(message_schema(details=True), kafka=False).batch(some, Epochs())
    verdicts = batch.column("verdict").to_pylist()
    assert (batch.column("body").to_pylist()[0], verdicts[0]) == (b"sound", None)
    assert "cannot be decompressed" in verdicts[1]
    with pytest.raises(ProtocolError, match=r"offset 1: the body cannot be decompressed.*details=true"):
        Decoder(message_schema(), kafka=False).batch(some, Epochs())
    stored = Decoder(message_schema(), kafka=False, inflates=False).batch(some, Epochs())
    assert stored.column("body").to_pylist()[1] == b"no zlib"


@pytest.mark.parametrize("others", [[], [b"no zlib"]])
def test_bodies_that_are_large_together_become_several_batches(
    monkeypatch: pytest.MonkeyPatch, others: list[bytes]
) -> None:
    """Records of 4 MiB may have bodies of 4 GiB. One that cannot be read makes all of them be decoded one by one."""
    monkeypatch.setattr(records, "BATCH_INFLATED_BYTES", 1_000)
    plain = [bytes([number]) * size for number, size in enumerate((400, 400, 300, 5_000, 10, 20, 990, 400))]
    some = pulled(*map(zlib.compress, plain), *others, sys_flag=int(SysFlag.COMPRESSED))
    batches = list(Decoder(message_schema(details=True), kafka=False).batches(some, Epochs()))
    bodies = [body for batch in batches for body in batch.column("body").to_pylist()]
    assert bodies[: len(plain)] == plain
    sizes = [sum(map(len, batch.column("body").to_pylist())) for batch in batches]
    assert [size for size in sizes if size > 1_100] == [5_000]
    offsets = [offset for batch in batches for offset in batch.column("queueOffset").to_pylist()]
    assert offsets == list(range(len(plain) + len(others)))


def test_replayed_bodies_that_are_large_together_become_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "BATCH_INFLATED_BYTES", 1_000)
    plain = [bytes([number]) * size for number, size in enumerate((400, 400, 300, 5_000, 10, 20, 990, 400))]
    compressed = int(SysFlag.COMPRESSED)
    flags = [compressed if number % 3 else 0 for number in range(len(plain))]
    stored = [zlib.compress(body) if flag else body for body, flag in zip(plain, flags, strict=True)]
    whole = pa.RecordBatch.from_pydict({"sysFlag": flags, "body": stored, "number": list(range(len(plain)))})
    batches = list(replay._inflated(iter([whole, whole.slice(0, 1)])))
    assert [body for batch in batches for body in batch.column("body").to_pylist()] == [*plain, plain[0]]
    assert [number for batch in batches for number in batch.column("number").to_pylist()] == [*range(len(plain)), 0]
    sizes = [sum(map(len, batch.column("body").to_pylist())) for batch in batches]
    assert [size for size in sizes if size > 1_000] == [5_000]


def record(number: int, **changed: Any) -> bytes:
    """A record of a broker's log; each number has another key and length."""
    properties = b"KEYS\x01key%d k2\x02TAGS\x01tag\x02UNIQ_KEY\x01%032X\x02own\x01value %d\x02" % (
        number,
        number,
        number,
    )
    fields: dict[str, Any] = {
        "topic": b"T",
        "queue_id": 3,
        "queue_offset": number,
        "log_offset": 5_000 + number * 1000,
        "body": b"body %d" % number * (number % 5),
        "properties": properties,
        "flag": number % 3,
        "sys_flag": 0,
        "born_ms": 1_700_000_000_000 + number,
        "born_host": HOST,
        "store_ms": 1_700_000_000_500 + number,
        "store_host": encode_host(b"\x7f\0\0\2", 10_000 + number % 2),
        "reconsume_times": number % 2,
    }
    return encode_record(**(fields | changed))


IPV6 = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
V6_HOST = encode_host(bytes(15) + b"\1", 10911)
ODD: dict[str, dict[str, Any]] = {
    "compressed": {"body": zlib.compress(b"sound" * 9), "sys_flag": int(SysFlag.COMPRESSED)},
    "IPv6": {"sys_flag": IPV6, "born_host": V6_HOST, "store_host": V6_HOST},
    "long topic": {"topic": b"t" * 200},
    "no properties": {"properties": b""},
    "no body": {"body": b""},
    "empty key": {"properties": b"KEYS\x01\x02TAGS\x01\x02"},
    "a name twice": {"properties": b"KEYS\x01one\x02KEYS\x01two\x02AKEYS\x01no\x02"},
    "no UTF-8": {"properties": b"KEYS\x01\xff\xfe\x02"},
    "text": {"properties": "KEYS\x01schlüssel\x02TAGS\x01標\x02".encode()},
    "the last separator is missing": {"properties": b"TAGS\x01t\x02KEYS\x01open"},
    "far future": {"born_ms": (1 << 63) - 1},
}


def expected(data: bytes, *, kafka: bool, is_map: bool) -> list[dict[str, Any]]:
    """Rows of sound records, each from the message that a consumer gets."""
    rows = []
    for message in decode_messages(data):
        text = message.properties
        row: dict[str, Any] = {
            "key": text.get("KEYS"),
            "body": message.body,
            "topic": message.topic,
            "tags": text.get("TAGS"),
            "brokerName": "a",
            "queueId": message.queue_id,
            "queueOffset": message.queue_offset,
            "commitLogOffset": message.log_offset,
            "bornHost": message.born_host,
            "reconsumeTimes": message.reconsume_times,
            "epoch": 1 if message.log_offset < 8_000 else 4,
            "verdict": None,
            "size": message.size,
            "flag": message.flag,
            "sysFlag": message.sys_flag,
            "storeHost": message.store_host,
            "preparedTransactionOffset": 0,
        }
        own = [{"key": name, "value": value.encode()} for name, value in text.items() if name not in SYSTEM_PROPERTIES]
        row["headers"] = own or None
        if is_map:
            row["properties"] = list(text.items())
        if kafka:
            key = text.get("KEYS")
            row = {
                "key": None if key is None else key.encode(),
                "value": message.body,
                "topic": message.topic,
                "partition": message.queue_id,
                "offset": message.queue_offset,
                "timestampType": 0,
                "headers": own or None,
            }
        rows.append(row)
    return rows


@pytest.mark.parametrize("odd", [None, *ODD])
@pytest.mark.parametrize("at", [0, 4, 9])
@pytest.mark.parametrize(("kafka", "is_map"), [(False, False), (False, True), (True, False)])
def test_batch_has_what_a_consumer_gets_whatever_a_record_looks_like(
    odd: str | None, at: int, kafka: bool, is_map: bool
) -> None:
    records = [record(number, **(ODD[odd] if odd and number == at else {})) for number in range(10)]
    some = PulledRecords(QueueRange(MessageQueue("T", "a", 3), 0, 10), b"".join(records), 10)
    schema = message_schema(kafka=kafka, map_properties=is_map, details=not kafka, headers=True)
    epochs = Epochs(((1, 0), (4, 8_000)))
    batch = Decoder(schema, kafka=kafka).batch(some, epochs)
    want = expected(some.data, kafka=kafka, is_map=is_map)
    assert batch.select(list(want[0])).to_pylist() == want
    times = batch.column("timestamp" if kafka else "bornTimestamp").cast("int64").to_pylist()
    assert times == [1000 * min(message.born_ms, MILLISECONDS_MAX) for message in decode_messages(some.data)]


def without_record_crc(raw: bytes) -> bytes:
    """The record as RocketMQ 4 stores it: with the CRC of its body only."""
    one = parse_record(raw, 0, len(raw))
    assert not isinstance(one, str)
    at = one.body_end + 1 + len(one.topic)
    head = (len(raw) - CRC_PROPERTY_BYTES).to_bytes(4) + raw[4:at]
    return head + (len(one.properties) - CRC_PROPERTY_BYTES).to_bytes(2) + raw[at + 2 : -CRC_PROPERTY_BYTES]


def test_records_without_a_crc_of_their_own_are_checked_by_their_bodies() -> None:
    records = [record(number) if number % 3 else without_record_crc(record(number)) for number in range(10)]
    some = PulledRecords(QueueRange(MessageQueue("T", "a", 3), 0, 10), b"".join(records), 10)
    batch = Decoder(message_schema(), kafka=False).batch(some, Epochs())
    want = [(message.body, message.properties["KEYS"]) for message in decode_messages(some.data)]
    assert list(zip(batch.column("body").to_pylist(), batch.column("key").to_pylist(), strict=True)) == want
    damaged = bytearray(some.data)
    damaged[sum(map(len, records[:9])) + 90] ^= 1
    with pytest.raises(ProtocolError, match="offset 9: the body's CRC does not match"):
        Decoder(message_schema(), kafka=False).batch(PulledRecords(some.range, bytes(damaged), 10), Epochs())


def test_corrupt_record_among_sound_ones_is_a_row_in_its_place() -> None:
    damaged = bytearray(record(4))
    damaged[90] ^= 1
    records = [record(number) if number != 4 else bytes(damaged) for number in range(10)]
    some = PulledRecords(QueueRange(MessageQueue("T", "a", 3), 0, 10), b"".join(records), 10)
    batch = Decoder(message_schema(details=True), kafka=False).batch(some, Epochs())
    assert batch.column("queueOffset").to_pylist() == list(range(10))
    verdicts = batch.column("verdict").to_pylist()
    assert [at for at, verdict in enumerate(verdicts) if verdict] == [4]
    assert batch.column("body").to_pylist()[4] == bytes(damaged)
    with pytest.raises(ProtocolError, match="offset 4: the record's CRC does not match"):
        Decoder(message_schema(), kafka=False).batch(some, Epochs())


def test_no_column_at_all_keeps_the_number_of_rows() -> None:
    assert Decoder(StructType([]), kafka=False).batch(pulled(b"0", b"1"), Epochs()).num_rows == 2


def test_responses_of_a_range_are_merged_in_order_and_ranges_are_not() -> None:
    def response(queue_id: int, number: int, size: int) -> PulledRecords:
        return PulledRecords(QueueRange(MessageQueue("T", "a", queue_id), 0, 99), b"%d" % number * size, 1)

    large = BATCH_BYTES // 2 + 1
    responses = [response(0, 1, 2), response(0, 2, 3), response(1, 3, large), response(1, 4, large), response(1, 5, 1)]
    merged = list(merge(responses))
    assert [(one.range.queue.queue_id, one.count, len(one.data)) for one in merged] == [
        (0, 2, 5),
        (1, 2, 2 * large),
        (1, 1, 1),
    ]
    assert b"".join(one.data for one in merged) == b"".join(one.data for one in responses)
