"""Vectorized batches: the same messages as decoded one by one, the same records as encoded one by one, or None."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.codec.record.columns import encode_parts, part_bytes, read_parts, record_bytes
from tandemq.codec.record.record import (
    HEAD_V4,
    MAGIC_V1,
    BatchPart,
    decode_batch,
    encode_batch,
    encode_host,
    encode_record,
)

HOST = encode_host(b"\x0a\0\0\1", 10911)
KEYS = st.text("0123456789ABCDEF", min_size=6, max_size=6)
WORDS = st.sampled_from([b"", b"TAGS\x01t\x02", b"A\x01b\x02", b"WAIT\x01true\x02"])


@st.composite
def batches(draw: st.DrawFn) -> list[BatchPart]:
    size, before, after = draw(st.integers(1, 300)), draw(WORDS), draw(WORDS)
    return [
        BatchPart(
            draw(st.integers(-(1 << 31), (1 << 31) - 1)),
            draw(st.binary(min_size=size, max_size=size)),
            before + b"UNIQ_KEY\x01" + key.encode() + b"\x02" + after,
        )
        for key in draw(st.lists(KEYS, min_size=1, max_size=6))
    ]


@given(batches(), st.integers(0, 1 << 60), st.integers(0, 1 << 60), st.integers(0, 3))
def test_records_equal_those_encoded_one_by_one(
    messages: list[BatchPart], log_offset: int, queue_offset: int, queues: int
) -> None:
    parts = read_parts(encode_batch(messages))
    assert parts is not None
    assert len(parts) == len(messages)
    before, after = parts.properties.split(parts.keys()[:6], 1)
    after += b"CLUSTER\x01c\x02"
    length = len(before) + 6 + len(after) + 20
    middle = b"\x06TopicA" + length.to_bytes(2) + before
    size = record_bytes(parts, middle, after)
    head = HEAD_V4.pack(size, MAGIC_V1, 0, queues, 0, 0, 0, 8, 1234, HOST, 5678, HOST, 0, 0, parts.body_bytes)
    offsets = np.arange(queue_offset, queue_offset + len(messages))
    data = encode_parts(parts, head * 2, [1, len(messages) - 1], offsets, log_offset, middle, after)
    assert data == b"".join(
        encode_record(
            topic=b"TopicA",
            queue_id=queues,
            queue_offset=queue_offset + number,
            log_offset=log_offset + number * size,
            body=message.body,
            properties=message.properties + b"CLUSTER\x01c\x02",
            flag=message.flag,
            sys_flag=8,
            born_ms=1234,
            born_host=HOST,
            store_ms=5678,
            store_host=HOST,
        )
        for number, message in enumerate(messages)
    )


@given(batches(), st.data())
def test_damaged_batch_is_read_as_one_by_one_or_not_at_all(messages: list[BatchPart], data: st.DataObject) -> None:
    raw = bytearray(encode_batch(messages))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    body = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    parts = read_parts(body)
    if parts is None:
        return
    found = decode_batch(body)
    assert part_bytes(body) * len(found) == len(body)
    keys = parts.keys()
    for number, (flag, text, properties) in enumerate(found):
        row = parts.rows[number].tobytes()
        key = keys[number * parts.key_bytes : (number + 1) * parts.key_bytes]
        assert (int.from_bytes(row[12:16], signed=True), row[20 : parts.body_end]) == (flag, text)
        assert properties == parts.properties.replace(keys[: parts.key_bytes], key)
        assert key.isascii()
        assert 2 not in key


@pytest.mark.parametrize(
    "odd",
    [
        b"",
        b"\0" * 22,
        b"\0\0\0\1" * 50,
        b"\xff" * 400,
        encode_batch([BatchPart(0, b"", b"UNIQ_KEY\x01a\x02")] * 9),
        encode_batch([BatchPart(0, b"x", b"")] * 9),
        encode_batch([BatchPart(0, b"x", b"UNIQ_KEY\x01a")] * 9),
        encode_batch([BatchPart(0, b"x", b"UNIQ_KEY\x01\x02")] * 9),
        encode_batch([BatchPart(0, b"x", b"A\x01" + b"b" * 3000 + b"\x02UNIQ_KEY\x01a\x02")] * 9),
        encode_batch([BatchPart(0, b"x", b"UNIQ_KEY\x01a\x02")] * 9) + b"\0",
        encode_batch([BatchPart(0, b"x", b"UNIQ_KEY\x01a\x02"), BatchPart(0, b"x", b"UNIQ_KEY\x01\x02\x02")]),
    ],
)
def test_messages_of_different_layouts_or_without_body_or_key_are_not_read(odd: bytes) -> None:
    assert read_parts(odd) is None
