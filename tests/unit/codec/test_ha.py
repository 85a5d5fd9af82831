"""Frames and hellos of the replication protocol."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.codec.ha import (
    HELLO_BYTES_MAX,
    HELLO_MARK,
    REPORT,
    TRANSFER,
    MasterHello,
    SlaveHello,
    decode_master_hello,
    decode_slave_hello,
    encode_hello,
    frame_transfer,
    hello_length,
)
from tandemq.errors import ProtocolError
from tests.spec import spec

OFFSETS = st.integers(0, (1 << 63) - 1)


@spec("H07", "T01")
def test_report_has_8_bytes_and_transfer_header_12() -> None:
    assert REPORT.pack(1 << 40) == (1 << 40).to_bytes(8)
    assert TRANSFER.pack(1 << 40, 7) == (1 << 40).to_bytes(8) + (7).to_bytes(4)
    assert REPORT.size == 8
    assert TRANSFER.size == 12


@spec("T04")
@given(st.binary(max_size=500), OFFSETS.filter(lambda n: n < 1 << 62), st.integers(1, 200))
def test_transfers_carry_all_bytes_in_order_none_above_the_limit(body: bytes, offset: int, limit: int) -> None:
    stream = b"".join(bytes(buffer) for buffer in frame_transfer(offset, body, limit))
    found = b""
    at = 0
    while at < len(stream):
        start, size = TRANSFER.unpack_from(stream, at)
        assert start == offset + len(found)
        assert size <= limit
        found += stream[at + 12 : at + 12 + size]
        at += 12 + size
    assert found == body


@given(
    st.builds(
        SlaveHello,
        st.text(max_size=9),
        st.text(max_size=9),
        st.integers(0, 9),
        OFFSETS,
        OFFSETS,
        OFFSETS,
        OFFSETS,
        st.lists(st.tuples(OFFSETS, OFFSETS), max_size=3),
    )
)
def test_slave_hello_round_trip(hello: SlaveHello) -> None:
    raw = encode_hello(hello)
    assert raw.startswith(HELLO_MARK)
    assert hello_length(raw) == len(raw)
    assert decode_slave_hello(raw[12:]) == hello


def test_master_hello_round_trip() -> None:
    hello = MasterHello(0, 1, 2, 3, 4, True, "no", [(1, 2)])
    assert decode_master_hello(encode_hello(hello)[12:]) == hello


def test_hello_mark_is_not_a_valid_offset() -> None:
    assert int.from_bytes(HELLO_MARK, signed=True) < 0


def test_length_is_known_after_twelve_bytes_and_limited() -> None:
    raw = encode_hello(MasterHello(0))
    for count in range(12):
        assert hello_length(raw[:count]) is None
    for length in (0, -1, HELLO_BYTES_MAX + 1, 0x7FFFFFFF):
        with pytest.raises(ProtocolError):
            hello_length(HELLO_MARK + length.to_bytes(4, signed=True))


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b"null", b"\xff", b'{"brokerId":"x"}', b'{"x":' + b"[" * 100_000, b'{"brokerId":0} x']
)
def test_malformed_hello_is_a_protocol_error(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_slave_hello(body)
    with pytest.raises(ProtocolError):
        decode_master_hello(body)
