"""Removed records: valid, of the same size and place, without anything of the message."""

import random

import pytest

from tandemq.codec.record.record import encode_host, encode_record, parse_record, record_fault, unpack_head
from tandemq.codec.record.removal import REMOVED_PROPERTY, removed_record
from tandemq.errors import ProtocolError
from tandemq.model.message import SysFlag
from tests.spec import spec

SECRET = b"customer-4711"
HOSTS = (encode_host(bytes([10, 20, 30, 40]), 5000), encode_host(bytes(range(16)), 5000))
CRC_BYTES = 20


def made(rng: random.Random, *, has_crc: bool) -> bytes:
    properties = b"".join(b"P%d\x01%s\x02" % (at, SECRET[: rng.randint(1, 13)]) for at in range(rng.randint(0, 3)))
    raw = encode_record(
        topic=b"T" * rng.choice((1, 5, 127, 200)),
        queue_id=rng.randrange(100),
        queue_offset=rng.randrange(1 << 40),
        log_offset=rng.randrange(1 << 40),
        body=SECRET * rng.randint(0, 4),
        properties=properties,
        flag=rng.randrange(1 << 31),
        sys_flag=rng.choice((0, 1, 0x101, 0x303, 4, 8, 2)),
        born_ms=1_700_000_000_000,
        born_host=rng.choice(HOSTS),
        store_ms=1_700_000_000_001,
        store_host=HOSTS[0],
        reconsume_times=3,
        prepared_offset=77,
    )
    if has_crc:
        return raw
    raw = raw[: -CRC_BYTES - len(properties) - 2] + len(properties).to_bytes(2) + properties
    return len(raw).to_bytes(4) + raw[4:]


@spec("P22")
def test_removed_record_is_valid_and_has_nothing_of_the_message() -> None:
    rng = random.Random(4711)
    for number in range(2000):
        crc_bytes = CRC_BYTES * (number % 2)
        raw = made(rng, has_crc=bool(crc_bytes))
        done = removed_record(raw)
        before, after = parse_record(raw, 0, len(raw)), parse_record(done, 0, len(done))
        assert not isinstance(before, str)
        assert not isinstance(after, str), after
        assert record_fault(done, 0, after.size, after.body_start, after.body_end, after.body_crc) is None
        for name in ("size", "queue_id", "queue_offset", "log_offset", "born_ms", "store_ms", "topic"):
            assert getattr(before, name) == getattr(after, name), (number, name)
        old, new = unpack_head(raw, 0), unpack_head(done, 0)
        assert (old.store_host, old.reconsume_times) == (new.store_host, new.reconsume_times)
        assert (new.flag, set(new.born_host)) == (0, {0})
        assert after.sys_flag & SysFlag.REMOVED
        assert not after.sys_flag & (SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK)
        assert (before.sys_flag ^ after.sys_flag) & (4 | 8 | 0x30) == 0
        assert not any(done[after.body_start : after.body_end])
        kept = after.properties[: len(after.properties) - crc_bytes]
        assert kept in (b"", REMOVED_PROPERTY)
        room = len(before.properties) + before.body_end - before.body_start - crc_bytes
        assert bool(kept) == (room >= len(REMOVED_PROPERTY))
        assert removed_record(done) == done


def test_bytes_that_are_no_record_are_refused() -> None:
    raw = made(random.Random(1), has_crc=True)
    for data in (raw[:-1], raw + b"x", bytes(200), b""):
        with pytest.raises(ProtocolError, match="not one record"):
            removed_record(data)
