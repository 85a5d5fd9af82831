"""Prepared frames: they equal those of a Java producer, and no two messages have the same key."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from tandemq.load.wire.frames import PullFrames, SendFrames, SendShape, body_text

_WALL_MS = 1_700_000_000_000


def parse(data: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Return header and body of every frame; the frames must fill the data exactly."""
    position = 0
    while position < len(data):
        size, header_bytes = struct.unpack_from(">II", data, position)
        header = data[position + 8 : position + 8 + header_bytes]
        yield json.loads(header), data[position + 8 + header_bytes : position + 4 + size]
        position += 4 + size
    assert position == len(data)


def properties(text: str) -> dict[str, str]:
    return dict(pair.split("\x01") for pair in text.split("\x02") if pair)


def sub_messages(body: bytes) -> Iterator[tuple[bytes, dict[str, str]]]:
    position = 0
    while position < len(body):
        size, magic, crc, flag, body_bytes = struct.unpack_from(">IIIII", body, position)
        assert (magic, crc, flag) == (0, 0, 0)
        at = position + 20 + body_bytes
        property_bytes = struct.unpack_from(">H", body, at)[0]
        assert size == 20 + body_bytes + 2 + property_bytes
        yield body[position + 20 : at], properties(body[at + 2 : at + 2 + property_bytes].decode())
        position += size
    assert position == len(body)


def test_frame_carries_what_a_java_producer_sends() -> None:
    frames = SendFrames(SendShape("orders", 128, 4, tag="t1"), identity=7, slots=8, wall_ms=_WALL_MS)
    [(header, body)] = parse(frames.take(1, _WALL_MS))
    assert header["code"] == 310
    assert (header["flag"], header["language"], header["version"]) == (0, "JAVA", 479)
    assert header["serializeTypeCurrentRPC"] == "JSON"
    fields = header["extFields"]
    assert (fields["a"], fields["b"], fields["c"], fields["d"]) == ("load_producer", "orders", "TBW102", "4")
    assert (fields["e"], fields["f"], fields["h"], fields["j"]) == ("0", "0", "0", "0")
    assert (fields["g"], fields["k"], fields["m"]) == (str(_WALL_MS), "false", "false")
    assert all(isinstance(value, str) for value in fields.values())
    assert properties(fields["i"]).keys() == {"UNIQ_KEY", "WAIT", "TAGS"}
    assert properties(fields["i"])["WAIT"] == "true"
    assert len(properties(fields["i"])["UNIQ_KEY"]) == 32
    assert body == body_text(128)


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 30])
def test_every_message_has_its_own_opaque_and_key_in_any_run_of_sends(count: int) -> None:
    frames = SendFrames(SendShape("t", 10, 4), identity=1, slots=8, wall_ms=_WALL_MS)
    opaques, keys, queues = [], [], []
    for _ in range(50):
        data = frames.take(count, _WALL_MS)
        parsed = list(parse(data))
        assert len(parsed) == count
        assert len(data) == count * frames.frame_bytes
        assert parsed[0][0]["opaque"] == int(frames.first_opaque())
        opaques += [header["opaque"] for header, _ in parsed]
        keys += [properties(header["extFields"]["i"])["UNIQ_KEY"] for header, _ in parsed]
        queues += [header["extFields"]["e"] for header, _ in parsed]
    assert len(set(opaques)) == len(opaques)
    assert all(0 < opaque < 2**31 for opaque in opaques)
    assert len(set(keys)) == len(keys)
    assert queues == [str(number % 4) for number in range(50 * count)]


def test_messages_of_a_batch_have_different_keys() -> None:
    frames = SendFrames(SendShape("t", 100, 2, batch=32), identity=1, slots=4, wall_ms=_WALL_MS)
    keys: list[str] = []
    for _ in range(5):
        for header, body in parse(frames.take(3, _WALL_MS)):
            assert (header["code"], header["extFields"]["m"]) == (320, "true")
            messages = list(sub_messages(body))
            assert len(messages) == 32
            assert all(message == body_text(100) for message, _ in messages)
            keys += [properties(header["extFields"]["i"])["UNIQ_KEY"], *(found["UNIQ_KEY"] for _, found in messages)]
    assert len(set(keys)) == len(keys) == 5 * 3 * 33


def test_born_timestamp_follows_the_clock() -> None:
    frames = SendFrames(SendShape("t", 10, 4), identity=1, slots=8, wall_ms=_WALL_MS)
    [(before, _)] = parse(frames.take(1, _WALL_MS + 1))
    [(after, _)] = parse(frames.take(1, _WALL_MS + 1000))
    assert before["extFields"]["g"] == str(_WALL_MS)
    assert after["extFields"]["g"] == str(_WALL_MS + 1000)


def test_keys_stay_different_when_the_chunk_numbers_run_out() -> None:
    frames = SendFrames(SendShape("t", 10, 4), identity=1, slots=4, wall_ms=_WALL_MS)
    keys = []
    for start in (100_000, 999_999):
        frames._chunk = start
        for _ in range(3):
            keys += [properties(h["extFields"]["i"])["UNIQ_KEY"] for h, _ in parse(frames.take(4, _WALL_MS))]
    assert len(set(keys)) == len(keys)


def test_pull_frame_requests_one_queue_from_one_offset() -> None:
    [(header, body)] = parse(PullFrames("%RETRY%g", group="g%").frame(3, 12345, 77))
    assert (header["code"], header["opaque"], body) == (11, 77, b"")
    fields = header["extFields"]
    assert (fields["topic"], fields["consumerGroup"]) == ("%RETRY%g", "g%")
    assert (fields["queueId"], fields["queueOffset"], fields["maxMsgNums"]) == ("3", "12345", "32")
    assert fields["sysFlag"] == "4"


def test_long_poll_frame_has_the_suspend_flag_and_timeout() -> None:
    [(header, _)] = parse(PullFrames("t", suspend_ms=15_000).frame(0, 0, 1))
    assert (header["extFields"]["sysFlag"], header["extFields"]["suspendTimeoutMillis"]) == ("6", "15000")
