"""Records: round trips, detection of any damage, no reads beyond the given bytes."""

import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemq.codec.record.record import (
    BATCH_PARTS_MAX,
    MAGIC_V1,
    MAGIC_V2,
    BatchPart,
    decode_batch,
    decode_host,
    decode_message,
    decode_messages,
    deflate,
    encode_batch,
    encode_host,
    encode_record,
    inflate,
    message_id,
    parse_message_id,
    parse_record,
    property_value,
    record_fault,
    tags_code,
    unfinished_record,
)
from tandemq.errors import ProtocolError, RecordTooLarge
from tandemq.model.java_hash import java_hash
from tandemq.model.message import SysFlag

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
HOSTS = st.builds(encode_host, st.sampled_from([b"\x0a\0\0\1", bytes(range(16))]), st.integers(0, 65535))
RECORDS = st.fixed_dictionaries(
    {
        "topic": st.text("Tab_-|%", min_size=1, max_size=200).map(str.encode),
        "queue_id": INT32,
        "queue_offset": INT64,
        "log_offset": st.just(4096),
        "body": st.binary(max_size=80),
        "properties": st.sampled_from([b"", b"TAGS\x01a\x02", b"KEYS\x01k1 k2\x02UNIQ_KEY\x01u\x02"]),
        "flag": INT32,
        "sys_flag": st.sampled_from([0, 4, 8, 12]),
        "born_ms": INT64,
        "born_host": HOSTS,
        "store_ms": INT64,
        "store_host": HOSTS,
        "reconsume_times": INT32,
        "prepared_offset": INT64,
    }
)
PLAIN: dict[str, Any] = {
    "topic": b"T",
    "queue_id": 1,
    "queue_offset": 2,
    "log_offset": 4096,
    "body": b"body",
    "properties": b"TAGS\x01a\x02",
    "flag": 3,
    "sys_flag": 0,
    "born_ms": 5,
    "born_host": encode_host(b"\1\2\3\4", 6),
    "store_ms": 7,
    "store_host": encode_host(b"\5\6\7\x08", 9),
    "reconsume_times": 10,
    "prepared_offset": 11,
}


def fault_of(raw: bytes, start: int = 0) -> str | None:
    record = parse_record(raw, start, len(raw))
    if isinstance(record, str):
        return record
    if record.log_offset != 4096:
        return "its offset is another"
    return record_fault(raw, start, record.size, record.body_start, record.body_end, record.body_crc)


@given(RECORDS, st.integers(0, 9), st.integers(0, 9))
def test_record_round_trip(fields: dict[str, Any], before: int, behind: int) -> None:
    raw = encode_record(**fields)
    data = bytes(before) + raw + bytes(behind)
    record = parse_record(data, before, len(data))
    assert not isinstance(record, str)
    assert record.size == len(raw)
    for name in ("topic", "queue_id", "queue_offset", "log_offset", "born_ms", "store_ms"):
        assert getattr(record, name) == fields[name]
    assert data[record.body_start : record.body_end] == fields["body"]
    assert record.properties[:-20] == fields["properties"]
    assert fault_of(data[before:]) is None
    assert int.from_bytes(raw[4:8]) == (MAGIC_V1 if len(fields["topic"]) <= 127 else MAGIC_V2)
    v6 = 12 * (len(fields["born_host"]) == 20) + 12 * (len(fields["store_host"]) == 20)
    overhead = 91 + 20 + v6 + (len(fields["topic"]) > 127)
    assert len(raw) == overhead + len(fields["body"]) + len(fields["topic"]) + len(fields["properties"])


@pytest.mark.parametrize("missing", range(1, 20))
def test_record_without_its_last_bytes_is_damaged(missing: int) -> None:
    """Found by simulation seed 39: a page that ends within the CRC property, followed by zeroes."""
    raw = encode_record(**PLAIN)
    assert fault_of(raw[:-missing] + bytes(missing)) is not None


def test_fields_have_rocketmqs_positions() -> None:
    raw = encode_record(**PLAIN)
    assert int.from_bytes(raw[0:4]) == len(raw)
    assert raw[4:8] == bytes.fromhex("DAA320A7")
    assert int.from_bytes(raw[8:12]) == zlib.crc32(b"body") & 0x7FFFFFFF
    assert [int.from_bytes(raw[a:b]) for a, b in ((12, 16), (16, 20), (20, 28), (28, 36), (36, 40), (40, 48))] == [
        1,
        3,
        2,
        4096,
        0,
        5,
    ]
    assert raw[48:56] == b"\1\2\3\4\0\0\0\6"
    assert int.from_bytes(raw[56:64]) == 7
    assert raw[64:72] == b"\5\6\7\x08\0\0\0\x09"
    assert int.from_bytes(raw[72:76]) == 10
    assert int.from_bytes(raw[76:84]) == 11
    assert raw[84:92] == b"\0\0\0\4body"
    assert raw[92:94] == b"\1T"
    digits = f"{zlib.crc32(raw[:-20]) & 0x7FFFFFFF:010d}"[::-1].encode()
    assert raw[94:] == (7 + 20).to_bytes(2) + b"TAGS\x01a\x02__CRC32#\x01" + digits + b"\x02"


@given(RECORDS, st.data())
@settings(max_examples=150)
def test_any_changed_byte_is_detected(fields: dict[str, Any], data: st.DataObject) -> None:
    raw = bytearray(encode_record(**fields))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    assert fault_of(bytes(raw) + bytes(64)) is not None


def test_every_flipped_bit_of_a_record_is_detected() -> None:
    sound = encode_record(**PLAIN)
    for bit in range(len(sound) * 8):
        raw = bytearray(sound)
        raw[bit // 8] ^= 1 << bit % 8
        assert fault_of(bytes(raw)) is not None, f"bit {bit}"


def test_record_truncated_anywhere_is_invalid() -> None:
    raw = encode_record(**PLAIN)
    for end in range(len(raw)):
        assert isinstance(parse_record(raw, 0, end), str)
        assert isinstance(parse_record(raw[:end], 0, end), str)


@given(RECORDS, st.integers(0, 9))
def test_beginning_of_a_record_says_how_much_more_is_needed(fields: dict[str, Any], before: int) -> None:
    raw = encode_record(**fields)
    for end in range(8, len(raw)):
        needed = unfinished_record(bytes(before) + raw, before, before + end)
        assert isinstance(needed, int), end
        assert end < needed <= len(raw)


@given(RECORDS, st.integers(1, 1 << 20))
def test_record_with_too_large_a_size_is_detected_once_it_has_arrived(fields: dict[str, Any], longer: int) -> None:
    raw = encode_record(**fields)
    assert isinstance(unfinished_record((len(raw) + longer).to_bytes(4) + raw[4:], 0, len(raw)), str)


def test_lengths_that_java_reads_as_negative_are_invalid() -> None:
    for topic, properties in ((b"t" * 128, b""), (b"t", b"p" * 32768)):
        fixed = encode_record(**PLAIN)[4:84]
        rest = b"\0\0\0\0" + len(topic).to_bytes(1) + topic + len(properties).to_bytes(2) + properties
        raw = (4 + len(fixed) + len(rest)).to_bytes(4) + fixed + rest
        assert "negative" in str(parse_record(raw, 0, len(raw)))


@given(st.binary(max_size=300))
def test_garbage_is_not_a_record_and_raises_no_error(raw: bytes) -> None:
    found = parse_record(raw, 0, len(raw))
    assert isinstance(found, str) or found.size <= len(raw)
    magic = raw[:4] + bytes.fromhex("DAA320A7") + raw[8:]
    found = parse_record(magic, 0, len(magic))
    assert isinstance(found, str) or found.size <= len(magic)


def test_topic_or_properties_too_long_are_refused() -> None:
    with pytest.raises(RecordTooLarge):
        encode_record(**{**PLAIN, "properties": b"p" * 32748})
    assert encode_record(**{**PLAIN, "properties": b"p" * 32747})
    assert encode_record(**{**PLAIN, "topic": b"t" * 255})


def test_message_is_decoded_whole() -> None:
    raw = encode_record(**PLAIN)
    message = decode_message(raw, 0, len(raw))
    assert (message.topic, message.queue_id, message.queue_offset, message.log_offset) == ("T", 1, 2, 4096)
    assert (message.body, message.tags, message.flag, message.reconsume_times) == (b"body", "a", 3, 10)
    assert (message.born_ms, message.born_host) == (5, "1.2.3.4:6")
    assert (message.store_ms, message.store_host) == (7, "5.6.7.8:9")
    assert message.offset_message_id == "0506070800000009" + "0000000000001000"


def test_messages_of_a_pull_answer_are_decoded_in_order_and_damage_is_an_error() -> None:
    raw = encode_record(**PLAIN)
    assert [m.body for m in decode_messages(raw * 3)] == [b"body"] * 3
    with pytest.raises(ProtocolError):
        decode_messages(raw + raw[:-1])
    with pytest.raises(ProtocolError, match="CRC"):
        decode_messages(raw.replace(b"body", b"bodY"))
    with pytest.raises(ProtocolError, match="the record's CRC"):
        decode_messages(raw.replace(b"TAGS\x01a", b"TAGS\x01b"))


def test_compressed_body_is_inflated() -> None:
    body = zlib.compress(b"x" * 5000)
    raw = encode_record(**{**PLAIN, "body": body, "sys_flag": 1})
    assert decode_message(raw, 0, len(raw)).body == b"x" * 5000
    assert inflate(body, 1 | SysFlag.COMPRESSION_ZLIB) == b"x" * 5000


@given(st.binary(max_size=300), st.integers(0, 5000), st.integers(0, 9))
def test_compressed_body_is_a_zlib_stream_at_every_level(part: bytes, copies: int, level: int) -> None:
    """Java clients read it with their `Inflater`, which is zlib's."""
    packed = deflate(part * copies, level)
    assert zlib.decompress(packed) == part * copies == inflate(packed, 1)


@pytest.mark.parametrize("level", range(1, 10))
def test_compression_makes_repetitive_bodies_small(level: int) -> None:
    body = b",".join(b'{"order": %d, "amount": %d}' % (n, n * 7919 % 1000) for n in range(500))
    assert len(deflate(body, level)) < 1.1 * len(zlib.compress(body, level))


@pytest.mark.parametrize(
    ("body", "sys_flag"),
    [(b"junk", 1), (zlib.compress(b"x" * 5000)[:-5], 1), (b"", 1), (zlib.compress(b"x"), 1 | 0x100), (b"", 1 | 0x200)],
)
def test_body_that_cannot_be_inflated_is_an_error(body: bytes, sys_flag: int) -> None:
    with pytest.raises(ProtocolError):
        inflate(body, sys_flag)


def test_body_that_inflates_beyond_the_limit_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="more than"):
        inflate(zlib.compress(bytes((64 << 20) + 1), 1), 1)


@given(
    st.sampled_from([4, 16]).flatmap(lambda n: st.binary(min_size=n, max_size=n)),
    st.integers(0, 65535),
    st.integers(-(1 << 63), (1 << 63) - 1),  # a damaged record may state a negative one
)
def test_message_id_contains_host_and_offset(address: bytes, port: int, offset: int) -> None:
    host = encode_host(address, port)
    text = message_id(host, offset)
    assert len(text) == (32 if len(address) == 4 else 56)
    assert text == text.upper()
    assert parse_message_id(text) == (decode_host(host), offset)


@pytest.mark.parametrize("text", ["", "00", "zz" * 16, "00" * 17, "é" * 32, "00" * 28 + "0"])
def test_malformed_message_id_is_an_error(text: str) -> None:
    with pytest.raises(ProtocolError):
        parse_message_id(text)


@given(st.lists(st.builds(BatchPart, INT32, st.binary(max_size=40), st.binary(max_size=40)), min_size=1, max_size=6))
def test_batch_round_trip(parts: list[BatchPart]) -> None:
    assert decode_batch(encode_batch(parts)) == parts


@given(
    st.lists(st.builds(BatchPart, INT32, st.binary(max_size=20), st.binary(max_size=20)), min_size=1, max_size=3),
    st.data(),
)
def test_damaged_batch_raises_nothing_but_protocol_errors(parts: list[BatchPart], data: st.DataObject) -> None:
    raw = bytearray(encode_batch(parts))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    for piece in (bytes(raw), bytes(raw[: data.draw(st.integers(0, len(raw)))])):
        try:
            found = decode_batch(piece)
        except ProtocolError:
            continue
        assert sum(22 + len(p.body) + len(p.properties) for p in found) == len(piece)


@pytest.mark.parametrize("raw", [b"", b"\0" * 22, b"\xff" * 40, encode_batch([BatchPart(0, b"a", b"")]) + b"\0"])
def test_empty_or_malformed_batch_is_an_error(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_batch(raw)


def test_batch_of_too_many_messages_is_an_error() -> None:
    part = encode_batch([BatchPart(0, b"", b"")])
    with pytest.raises(ProtocolError):
        decode_batch(part * (BATCH_PARTS_MAX + 1))
    assert len(decode_batch(part * BATCH_PARTS_MAX)) == BATCH_PARTS_MAX


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        (b"TAGS\x01a\x02", b"a"),
        (b"KEYS\x01k\x02TAGS\x01a", b"a"),
        (b"XTAGS\x01b\x02TAGS\x01a\x02", b"a"),
        (b"XTAGS\x01b\x02", None),
        (b"", None),
        (b"TAGS", None),
        (b"TAGS\x01\x02", b""),
        (b"TAGS\x01a\x02TAGS\x01b\x02", b"b"),
        (b"TAGS\x01a\x02XTAGS\x01b\x02", b"a"),
        (b"K\x01TAGS\x01b\x02TAGS\x01a\x02", b"a"),
        (b"TAGSX\x01b\x02TAGS\x01a\x02", b"a"),
    ],
)
def test_property_is_found_by_its_whole_name(properties: bytes, expected: bytes | None) -> None:
    assert property_value(properties, b"TAGS") == expected


def test_tags_code_is_javas_hash_sign_extended() -> None:
    assert tags_code(b"TAGS\x01polygenelubricants\x02") == -(1 << 31)
    assert tags_code("TAGS\x01é\U0001f600\x02".encode()) == java_hash("é\U0001f600")
    assert tags_code(b"") == 0
    assert tags_code(b"TAGS\x01\x02") == 0
