"""Records without their bodies."""

import zlib

import pytest

from tandemq.codec.record.bodies import without_bodies
from tandemq.codec.record.record import CRC_PROPERTY_BYTES, encode_host, encode_record, parse_record, record_fault
from tandemq.model.message import SysFlag

HOSTS = encode_host(bytes([127, 0, 0, 1]), 10911), encode_host(bytes(15) + b"\1", 40_000)


def record(body: bytes, *, host: bytes = HOSTS[0], topic: bytes = b"Orders", sys_flag: int = 0) -> bytes:
    return encode_record(
        topic=topic, queue_id=1, queue_offset=2, log_offset=3, body=body, properties=b"KEYS\x01k\x02", flag=4,
        sys_flag=sys_flag, born_ms=5, born_host=host, store_ms=6, store_host=host,
    )  # fmt: skip


def bare(raw: bytes) -> bytes:
    """Return a record without the CRC of the whole, as RocketMQ's brokers write it."""
    kept = len(b"KEYS\x01k\x02")
    end = len(raw) - CRC_PROPERTY_BYTES
    return end.to_bytes(4) + raw[4 : end - kept - 2] + kept.to_bytes(2) + raw[end - kept : end]


@pytest.mark.parametrize("form", [bytes, bare])
@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("topic", [b"Orders", b"T" * 200])
@pytest.mark.parametrize("body", [b"", b"x", b"x" * 70_000])
def test_records_keep_all_but_their_bodies(form: type[bytes], host: bytes, topic: bytes, body: bytes) -> None:
    raw = form(record(body, host=host, topic=topic))
    found = without_bodies(raw * 3)
    assert len(found) == 3 * (len(raw) - len(body))
    cut, whole = parse_record(found, 0, len(found)), parse_record(raw, 0, len(raw))
    assert not isinstance(cut, str) and not isinstance(whole, str)
    assert record_fault(found, 0, cut.size, cut.body_start, cut.body_end, cut.body_crc) is None
    assert cut.properties[:8] == whole.properties[:8]
    same = {"size", "properties", "body_end", "body_crc"}
    assert {name for name, value in cut._asdict().items() if value != getattr(whole, name)} <= same


def test_compressed_body_is_not_compressed_when_it_is_empty() -> None:
    raw = record(zlib.compress(bytes(9_000)), sys_flag=SysFlag.COMPRESSED | SysFlag.TRANSACTION_COMMIT)
    cut = parse_record(found := without_bodies(raw), 0, len(found))
    assert not isinstance(cut, str)
    assert cut.sys_flag == SysFlag.TRANSACTION_COMMIT


@pytest.mark.parametrize(("form", "at"), [(bytes, 3_000), (bytes, -30), (bare, 3_000)])
def test_corrupt_records_stay_as_they_are(form: type[bytes], at: int) -> None:
    sound = form(record(b"x" * 4_000))
    corrupt = bytearray(sound)
    corrupt[at] ^= 1
    cut = without_bodies(sound)
    assert len(cut) < 200
    assert without_bodies(sound + bytes(corrupt) + sound) == cut + bytes(corrupt) + cut


@pytest.mark.parametrize("size", [-1, 0, 90, 1 << 30])
def test_bytes_that_are_no_record_stay_as_they_are(size: int) -> None:
    sound = record(b"x" * 4_000)
    broken = size.to_bytes(4, signed=True) + sound[4:]
    assert without_bodies(sound + broken) == without_bodies(sound) + broken
