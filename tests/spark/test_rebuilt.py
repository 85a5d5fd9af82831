"""Encoding of rows as records, byte for byte."""

from typing import Any

import pytest

from tandemq.codec.record.record import decode_host, encode_host, encode_record, parse_record
from tandemq.errors import StoreDamaged
from tandemq.spark.lake.records import blank_bytes, encode_row, fill_segment

V4, V6 = encode_host(bytes([10, 0, 0, 7]), 4711), encode_host(bytes(range(16)), 12)


def made(
    offset: int, body: bytes = b"hello", topic: bytes = b"Orders", host: bytes = V4
) -> tuple[bytes, dict[str, Any]]:
    """Return a record, and its row in a lake."""
    record = encode_record(
        topic=topic,
        queue_id=3,
        queue_offset=8,
        log_offset=offset,
        body=body,
        properties=b"TAGS\x01a\x02",
        flag=5,
        sys_flag=1,
        born_ms=77,
        born_host=host,
        store_ms=99,
        store_host=V4,
        reconsume_times=2,
        prepared_offset=4,
    )
    parsed = parse_record(record, 0, len(record))
    assert not isinstance(parsed, str)
    return record, {
        "body": body,
        "topic": topic.decode(),
        "queueId": 3,
        "queueOffset": 8,
        "commitLogOffset": offset,
        "bornTimestamp": 77,
        "storeTimestamp": 99,
        "bornHost": decode_host(host),
        "storeHost": decode_host(V4),
        "reconsumeTimes": 2,
        "properties": parsed.properties.decode(),
        "verdict": None,
        "size": parsed.size,
        "flag": 5,
        "sysFlag": parsed.sys_flag,
        "bodyCrc": parsed.body_crc,
        "preparedTransactionOffset": 4,
        "epoch": 1,
    }


@pytest.mark.parametrize(("topic", "host"), [(b"Orders", V4), (b"Orders", V6), (b"%RETRY%" + b"g" * 150, V4)])
def test_row_encodes_to_its_record(topic: bytes, host: bytes) -> None:
    record, row = made(1_000, topic=topic, host=host)
    assert encode_row(row) == record


def test_changed_row_is_refused() -> None:
    for name, value, says in (
        ("body", b"hellO", "CRC does not match"),
        ("storeTimestamp", 98, "CRC does not match"),
        ("properties", "TAGS\x01b\x02", "it has"),
    ):
        with pytest.raises(StoreDamaged, match=says):
            encode_row(made(1_000)[1] | {name: value})


def test_damage_is_encoded_unchanged() -> None:
    assert encode_row({"verdict": "no record", "body": b"\x00garbage"}) == b"\x00garbage"


def test_segment_with_a_gap_or_a_duplicate_is_refused() -> None:
    (first, row), (second, _) = made(4_096), made(4_096)
    after, next_row = made(4_096 + len(first))
    assert list(fill_segment([row, next_row], 4_096, 4_096)) == [(0, first), (len(first), after)]
    with pytest.raises(StoreDamaged, match=f"nothing for log offsets {4_096 + len(first)} to 5999"):
        list(fill_segment([row, made(6_000)[1]], 4_096, 4_096))
    with pytest.raises(StoreDamaged, match="log offset 4096 twice"):
        list(fill_segment([row, row], 4_096, 4_096))
    with pytest.raises(StoreDamaged, match="does not fit into a file of 100 bytes"):
        list(fill_segment([row], 4_096, 100))
    assert second == first
    assert blank_bytes(50)[:4] == (50).to_bytes(4)
