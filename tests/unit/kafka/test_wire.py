"""Values of Kafka's protocol: limits of what is read, and the numbers of variable length."""

import pytest

from tandemq.errors import ProtocolError
from tandemq.kafka.wire import ELEMENTS_MAX, WireReader, WireWriter, zigzag
from tests.spec import spec


def read_zigzag(data: bytes) -> int:
    """Decode a number as protobuf's sint64 does."""
    rest = sum((byte & 0x7F) << 7 * at for at, byte in enumerate(data))
    return (rest >> 1) ^ -(rest & 1)


def test_numbers_of_variable_length_have_zigzag_form() -> None:
    known = {0: "00", -1: "01", 1: "02", 63: "7e", -64: "7f", 64: "8001", 300: "d804", -(1 << 63): "ff" * 9 + "01"}
    assert {value: zigzag(value).hex() for value in known} == known
    for value in (1 << 31, -(1 << 31), (1 << 63) - 1, 1_700_000_000_000):
        assert read_zigzag(zigzag(value)) == value


def test_what_a_writer_writes_a_reader_reads() -> None:
    writer = WireWriter()
    writer.int8(-1)
    writer.int16(-2)
    writer.int32(-3)
    writer.int64(-4)
    writer.string("Grüße")
    writer.string(None)
    writer.int32(2)
    writer.int16(7)
    writer.int16(8)
    reader = WireReader(bytes(writer.data))
    assert (reader.int8(), reader.int16(), reader.int32(), reader.int64()) == (-1, -2, -3, -4)
    assert (reader.string(), reader.string()) == ("Grüße", None)
    assert reader.array(reader.int16) == [7, 8]


@spec("P45")
def test_a_request_that_ends_within_a_value_is_refused() -> None:
    for data, read in (
        (b"\0", WireReader.int16),
        (b"\0\0\0", WireReader.int32),
        (b"", WireReader.int8),
        (b"\0\5abc", WireReader.string),
    ):
        with pytest.raises(ProtocolError, match="ends within"):
            read(WireReader(data))


@spec("P45")
def test_an_array_with_too_many_elements_is_refused_before_they_are_read() -> None:
    reader = WireReader((ELEMENTS_MAX + 1).to_bytes(4, "big"))
    with pytest.raises(ProtocolError, match="at most"):
        reader.array(lambda: pytest.fail("an element was read"))


def test_a_string_that_is_no_utf_8_is_refused() -> None:
    with pytest.raises(ProtocolError, match="no UTF-8"):
        WireReader(b"\0\2\xff\xff").string()
