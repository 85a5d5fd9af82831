"""Decoding column by column equals decoding one by one."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemq.codec.record.record import CRC_PROPERTY_BYTES, encode_record, parse_record, property_value, record_fault
from tandemq.spark.sources import records
from tandemq.spark.sources.records import Heads, read_all_heads, read_heads, regular_columns
from tests.spark.logs import HOST_V4

PIECES = [b"KEYS", b"TAGS", b"UNIQ_KEY", b"UNIQ_KE", b"KEYS1", b"\x01", b"\x02", b"a", b"of eight", "ä".encode()]
NAMES = {"key": b"KEYS", "tags": b"TAGS", "uniqueKey": b"UNIQ_KEY"}
ONE_EACH = b"KEYS\x01k\x02UNIQ_KEY\x01u\x02TAGS\x01t\x02"
PROPERTIES = st.one_of(st.just(ONE_EACH), st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join))


def records_of(properties: list[bytes]) -> bytes:
    data = b""
    for number, one in enumerate(properties):
        data += encode_record(
            topic=b"T",
            queue_id=0,
            queue_offset=number,
            log_offset=len(data),
            body=b"b" * number,
            properties=one,
            flag=0,
            sys_flag=0,
            born_ms=1,
            born_host=HOST_V4,
            store_ms=1,
            store_host=HOST_V4,
        )
    return data


@settings(max_examples=300)
@given(properties=st.lists(PROPERTIES, min_size=1, max_size=8))
def test_properties_are_those_that_each_record_has(properties: list[bytes]) -> None:
    data = records_of(properties)
    heads = read_heads(data, 0, len(data), 0, checks=True)
    assert heads is not None
    assert len(heads) == len(properties)
    columns = regular_columns(data, heads, [*NAMES, "properties"], inflates=True)
    assert columns is not None
    stored = [text.encode() for text in columns["properties"].to_pylist()]
    for column, name in NAMES.items():
        wanted = [property_value(one, name) or None for one in stored]
        assert [text and text.encode() for text in columns[column].to_pylist()] == wanted


@settings(max_examples=100)
@given(properties=st.lists(PROPERTIES, min_size=1, max_size=8), at=st.integers(0, 1 << 30), checks=st.booleans())
def test_records_are_the_same_with_and_without_a_compiler(properties: list[bytes], at: int, checks: bool) -> None:
    data = bytearray(records_of(properties))
    if at % 3:
        data[at % len(data)] ^= 1 << at % 8
    with pytest.MonkeyPatch.context() as patch:
        heads = read_heads(data, 0, len(data), 0, checks=checks)
        every = read_all_heads(data)
        names = ["key", "tags", "uniqueKey", "properties", "body", "topic"]
        columns = None if heads is None else regular_columns(data, heads, names, inflates=True)
        patch.setattr(records, "parse_records", lambda *_args, **_named: None)
        patch.setattr(records, "property_spans", lambda *_args: None)
        patch.setattr(records, "copy_spans", lambda *_args: None)
        assert columns == (None if heads is None else regular_columns(data, heads, names, inflates=True))
        assert _places(read_heads(data, 0, len(data), 0, checks=checks)) == _places(heads)
        others, rows, positions = read_all_heads(data)
    assert _places(others) == _places(every[0])
    assert (rows, positions) == every[1:]


def _places(heads: Heads | None) -> list[list[int]]:
    if heads is None:
        return []
    places = heads.starts, heads.stops, heads.body_stops, heads.topic_stops, heads.fields["queue_offset"]
    return [place.tolist() for place in places]


def test_invalid_text_is_detected_with_any_column() -> None:
    data = records_of([b"KEYS\x01a\x02", b"KEYS\x01b\x02TAGS\x01\xff\x02"])
    heads = read_heads(data, 0, len(data), 0, checks=True)
    assert heads is not None
    for name in ("key", "tags", "properties"):
        assert regular_columns(data, heads, [name], inflates=True) is None
    made = regular_columns(data, heads, ["queueOffset"], inflates=True)
    assert made is not None
    assert made["queueOffset"].equals(pa.array(np.arange(2)))


def test_every_changed_byte_is_detected_with_a_crc_of_the_record_or_of_the_body() -> None:
    base = len(records_of([ONE_EACH]))
    whole = records_of([ONE_EACH, ONE_EACH])[base:]
    properties = len(ONE_EACH)
    bare = bytearray(whole[:-CRC_PROPERTY_BYTES])
    bare[:4] = len(bare).to_bytes(4)
    bare[-properties - 2 : -properties] = properties.to_bytes(2)
    for data in (whole, bytes(bare)):
        heads = read_heads(data, 0, len(data), base, checks=True)
        assert heads is not None
        assert int(heads.stops[-1]) == len(data)
        for at in range(len(data)):
            changed = bytearray(data)
            changed[at] ^= 1
            taken = read_heads(changed, 0, len(changed), base, checks=True)
            for start in taken.starts.tolist() if taken is not None else []:
                record = parse_record(bytes(changed), start, len(changed))
                assert not isinstance(record, str)
                ends = record.body_start, record.body_end
                assert record_fault(changed, start, record.size, *ends, record.body_crc) is None, at


def test_crc_with_other_bytes_than_digits_is_invalid() -> None:
    data, first = records_of([ONE_EACH, ONE_EACH]), len(records_of([ONE_EACH]))
    for digit in range(len(data) - 11, len(data) - 2):
        changed = bytearray(data)
        changed[digit] += 10
        changed[digit + 1] -= 1  # the same sum, if any byte counted as a digit
        heads = read_heads(changed, 0, len(changed), 0, checks=True)
        assert heads is not None
        assert heads.stops.tolist() == [first]
        record = parse_record(bytes(changed), first, len(changed))
        assert not isinstance(record, str)
        ends = record.body_start, record.body_end
        assert record_fault(changed, first, record.size, *ends, record.body_crc) is not None
