"""Record batches: what they contain, offsets without a message, checksums."""

import struct
from dataclasses import dataclass

import pytest

from tandemq.kafka.batches import OVERHEAD_BYTES, _wrapped, encode_batch, record_bytes
from tandemq.kafka.wire import zigzag
from tandemq.model.message import StoredMessage
from tests.spec import spec

POLYNOMIAL = 0x82F63B78


def crc32c(data: bytes) -> int:
    """Compute CRC-32C bit by bit."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (POLYNOMIAL if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def stored(offset: int, body: bytes = b"body", born_ms: int = 1_000, **properties: str) -> StoredMessage:
    return StoredMessage(
        topic="Orders",
        queue_id=0,
        queue_offset=offset,
        log_offset=0,
        body=body,
        properties=properties,
        flag=0,
        sys_flag=0,
        born_ms=born_ms,
        born_host="127.0.0.1:1",
        store_ms=born_ms,
        store_host="127.0.0.1:2",
        reconsume_times=0,
        prepared_offset=0,
        size=100,
        offset_message_id="",
    )


@dataclass
class Cursor:
    """Reads a batch value by value."""

    data: bytes
    at: int = 0

    def take(self, form: str) -> int:
        (value,) = struct.unpack_from(f">{form}", self.data, self.at)
        self.at += struct.calcsize(f">{form}")
        return int(value)

    def zigzag(self) -> int:
        rest = shift = 0
        while True:
            byte = self.take("B")
            rest |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (rest >> 1) ^ -(rest & 1)

    def sized(self) -> bytes | None:
        size = self.zigzag()
        if size < 0:
            return None
        self.at += size
        return self.data[self.at - size : self.at]


@spec("P43")
def test_a_batch_has_the_offsets_times_keys_bodies_and_properties_of_messages() -> None:
    messages = [
        stored(7, b"one", 1_000, KEYS="k1 k2", TAGS="paid", region="north", UNIQ_KEY="0A"),
        stored(8, b"", 900),
        stored(200, b"x" * 300, 70_000),
    ]
    cursor = Cursor(encode_batch(messages, 5, 210))
    assert (cursor.take("q"), cursor.take("i"), cursor.take("i"), cursor.take("b")) == (7, len(cursor.data) - 12, -1, 2)
    assert cursor.take("I") == crc32c(cursor.data[cursor.at :])
    assert (cursor.take("h"), cursor.take("i")) == (0, 209 - 7)
    assert (cursor.take("q"), cursor.take("q")) == (1_000, 70_000)
    assert [cursor.take(form) for form in "qhi"] == [-1, -1, -1]
    found = []
    for _ in range(cursor.take("i")):
        end = cursor.zigzag() + cursor.at
        assert cursor.take("b") == 0
        born_ms, offset, key, body = 1_000 + cursor.zigzag(), 7 + cursor.zigzag(), cursor.sized(), cursor.sized()
        headers = {cursor.sized(): cursor.sized() for _ in range(cursor.zigzag())}
        assert cursor.at == end
        found.append((offset, born_ms, key, body, headers))
    assert cursor.at == len(cursor.data)
    assert found == [
        (7, 1_000, b"k1 k2", b"one", {b"TAGS": b"paid", b"region": b"north"}),
        (8, 900, None, b"", {}),
        (200, 70_000, None, b"x" * 300, {}),
    ]


@spec("P43")
def test_offsets_without_messages_are_a_batch_without_records() -> None:
    cursor = Cursor(encode_batch([], 5, 9))
    assert len(cursor.data) == OVERHEAD_BYTES
    assert cursor.take("q") == 5
    cursor.at += 13
    assert cursor.take("h") == 0
    assert cursor.take("i") == 3


@spec("P45")
def test_a_record_is_never_larger_than_its_estimate() -> None:
    for message in (stored(0), stored(1, b"x" * 10_000, KEYS="k" * 300), stored(2, b"", ä="ö" * 500)):
        batch = encode_batch([message], message.queue_offset, message.queue_offset + 1)
        assert len(batch) - OVERHEAD_BYTES <= record_bytes(message)


@pytest.mark.parametrize("times", [(-(1 << 63), (1 << 63) - 1, 5), ((1 << 63) - 1, -(1 << 63)), (0, -1, 1)])
def test_differences_of_any_two_times_have_64_bits(times: tuple[int, ...]) -> None:
    for time_ms in times:
        found = _wrapped(time_ms - times[0])
        assert -(1 << 63) <= found < 1 << 63
        assert (times[0] + found - time_ms) % (1 << 64) == 0
        assert len(zigzag(found)) <= 10
