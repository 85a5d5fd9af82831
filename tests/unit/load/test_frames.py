"""Prepared frames: they equal those of Java producers, and no two messages have the same key."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tandemq.codec.remoting.frame import FrameDecoder, decode_command
from tandemq.codec.remoting.signature import signed
from tandemq.load.wire.frames import (
    FORMS,
    RARE_TAG,
    TAGS,
    Form,
    PullFrames,
    SendFrames,
    SendShape,
    body_text,
)
from tandemq.load.wire.signing import signed_frames
from tandemq.model.access import Credentials
from tandemq.model.command import Command

_WALL_MS = 1_700_000_000_000
_CAPTURED = Path(__file__).parents[2] / "golden" / "frames"
_CODES = {"json": 310, "v5": 310, "binary": 310, "v1": 10}
_KEY = re.compile(r"7F000001[0-9A-F]{24}")


def parse(data: bytes | memoryview) -> list[Command]:
    """Decode the frames; they must fill the data exactly."""
    decoder = FrameDecoder()
    commands = [decode_command(frame) for frame in decoder.feed(bytes(data))]
    assert (decoder.error, decoder._pieces) == (None, [])
    return commands


def fields(command: Command) -> dict[str, str]:
    return command.fields


def properties(text: str) -> dict[str, str]:
    return dict(pair.split("\x01") for pair in text.split("\x02") if pair)


def properties_of(command: Command) -> dict[str, str]:
    return properties(fields(command)["properties" if command.code == 10 else "i"])


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


def first_of(shape: SendShape, count: int = 1) -> list[Command]:
    return parse(SendFrames(shape, identity=7, wall_ms=_WALL_MS, frames=count).take(count, _WALL_MS))


@pytest.mark.parametrize("form", ["json", "v5", "binary"])
@pytest.mark.parametrize("batch", [1, 3])
def test_frame_is_written_as_a_java_client_writes_it(form: Form, batch: int) -> None:
    """The same bytes around the values, field by field in the same order, as in the captured frame."""
    code = "320-send_batch_message" if batch > 1 else "310-send_message_v2"
    client = {"json": "client-4.9.8", "v5": "client-5.3.3", "binary": "client-4.9.8-binary"}[form]
    captured = (_CAPTURED / f"{client}-{code}.bin").read_bytes()
    shape = SendShape("t", 6, 1, batch=batch, form=form, varied=True)
    made = bytes(SendFrames(shape, identity=7, wall_ms=_WALL_MS, frames=1).take(1, _WALL_MS))
    assert made[4] == captured[4]
    [made_command], [captured_command] = parse(made), parse(captured)
    assert list(fields(made_command)) == list(fields(captured_command))
    assert (made_command.code, made_command.flag) == (captured_command.code, captured_command.flag)
    assert (made_command.version, made_command.language) == (captured_command.version, captured_command.language)
    made_text, captured_text = fields(made_command)["i"], fields(captured_command)["i"]
    assert [*properties(made_text)][: len(properties(captured_text))] == [*properties(captured_text)]
    assert made_text.endswith("\x02") is captured_text.endswith("\x02")
    if form != "binary":
        constant = re.compile(rb'":"[^"]*"|":\d+')
        assert constant.sub(b"", header(made)) == constant.sub(b"", header(captured))


def header(frame: bytes) -> bytes:
    return frame[8 : 8 + (int.from_bytes(frame[4:8]) & 0xFFFFFF)]


def test_code_10_has_the_fields_in_the_order_of_a_java_client() -> None:
    """Order as recorded from a 5.5.0 client with sendSmartMsg=false."""
    order = "queueId flag sysFlag reconsumeTimes batch unitMode defaultTopic defaultTopicQueueNums producerGroup bname"
    [command] = first_of(SendShape("t", form="v1"))
    assert [*fields(command)] == [*order.split(), "topic", "bornTimestamp", "properties"]


@pytest.mark.parametrize("form", FORMS)
def test_fields_are_those_of_a_producer(form: Form) -> None:
    [command] = first_of(SendShape("orders", 128, 4, tag="t1", form=form))
    assert (command.code, command.flag, command.language) == (_CODES[form], 0, "JAVA")
    names = "producerGroup topic defaultTopic defaultTopicQueueNums queueId sysFlag bornTimestamp flag properties"
    names += " reconsumeTimes unitMode batch bname"
    letters = dict(zip(names.split(), "abcdefghijkmn", strict=True))
    values = {name: fields(command)[name if form == "v1" else letter] for name, letter in letters.items()}
    text = values.pop("properties")
    assert values == {
        "producerGroup": "load_producer",
        "topic": "orders",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": str(_WALL_MS),
        "flag": "0",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "false",
        "bname": "broker-a",
    }
    assert properties(text).keys() == {"UNIQ_KEY", "WAIT", "TAGS"}
    assert _KEY.fullmatch(properties(text)["UNIQ_KEY"])
    assert command.body == body_text(128)


@pytest.mark.parametrize("form", FORMS)
def test_varied_messages_are_as_applications_send_them(form: Form) -> None:
    commands = first_of(SendShape("t", queue_count=1024, topics=3, form=form, varied=True), 3000)
    sizes = [len(command.body) for command in commands]
    assert min(sizes) >= 128
    assert max(sizes) <= 896
    assert len(set(sizes)) > 500
    found = [properties_of(command) for command in commands]
    assert {tuple(sorted(one)) for one in found} == {("KEYS", "TAGS", "UNIQ_KEY", "WAIT", "customer")}
    assert {len(one["KEYS"]) for one in found} == set(range(len("order-") + 1, len("order-") + 10))
    assert {one["TAGS"] for one in found} == set(TAGS)
    assert 0.005 < sum(one["TAGS"] == RARE_TAG for one in found) / len(found) < 0.02
    queue, topic = ("queueId", "topic") if form == "v1" else ("e", "b")
    assert {fields(command)[topic] for command in commands} == {"t-0", "t-1", "t-2"}
    assert len({fields(command)[queue] for command in commands}) > 900
    assert len({(command.body, one["customer"]) for command, one in zip(commands, found, strict=True)}) == 3000


def test_varied_messages_get_fresh_keys_each_time() -> None:
    frames = SendFrames(SendShape("t", varied=True), identity=7, wall_ms=_WALL_MS, frames=600)
    rounds = [[properties_of(command) for command in parse(frames.take(600, _WALL_MS))] for _ in range(3)]
    for before, after in ((rounds[0], rounds[1]), (rounds[1], rounds[2])):
        pairs = list(zip(before, after, strict=True))
        assert not any(one["UNIQ_KEY"] == other["UNIQ_KEY"] for one, other in pairs)
        long = [(one["KEYS"], other["KEYS"]) for one, other in pairs if len(one["KEYS"]) > len("order-") + 6]
        assert sum(one == other for one, other in long) < len(long) / 100
        assert all(one["customer"] == other["customer"] for one, other in pairs)


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 30, 700])
def test_every_message_has_its_own_key_in_any_run_of_sends(count: int) -> None:
    frames = SendFrames(SendShape("t", 10, 4), identity=1, wall_ms=_WALL_MS, frames=600)
    keys, queues = [], []
    for _ in range(50):
        commands = parse(frames.take(count, _WALL_MS))
        assert len(commands) == count
        assert commands[0].opaque == frames.first_opaque()
        assert len({command.opaque for command in commands}) == min(count, 600)
        keys += [properties_of(command)["UNIQ_KEY"] for command in commands]
        queues += [fields(command)["e"] for command in commands]
    assert len(set(keys)) == len(keys)
    assert queues == [str(number % 4) for number in range(50 * count)]


@pytest.mark.parametrize("form", ["json", "v5", "binary"])
@pytest.mark.parametrize("varied", [False, True])
def test_messages_of_a_batch_have_different_keys(form: Form, varied: bool) -> None:
    shape = SendShape("t", 100, 2, batch=32, form=form, varied=varied)
    frames = SendFrames(shape, identity=1, wall_ms=_WALL_MS, frames=4)
    keys: list[str] = []
    for _ in range(5):
        for command in parse(frames.take(3, _WALL_MS)):
            assert (command.code, fields(command)["m"]) == (320, "true")
            assert ("UNIQ_KEY" in properties_of(command)) is (form == "v5")
            messages = list(sub_messages(command.body))
            assert len(messages) == 32
            if not varied:
                assert all(message == body_text(100) for message, _ in messages)
            keys += [found["UNIQ_KEY"] for _, found in messages]
    assert len(set(keys)) == len(keys) == 5 * 3 * 32


def test_message_with_a_delay_has_its_level() -> None:
    [command] = first_of(SendShape("t", delay=3))
    assert properties_of(command)["DELAY"] == "3"


@pytest.mark.parametrize("varied", [False, True])
def test_timed_message_has_its_time(*, varied: bool) -> None:
    [command] = first_of(SendShape("t", delay_s=3, varied=varied))
    assert properties_of(command)["TIMER_DELAY_SEC"] == "3"


def test_born_timestamp_is_that_of_the_block() -> None:
    frames = SendFrames(SendShape("t", 10, 4), identity=1, wall_ms=_WALL_MS, frames=4)
    assert [fields(command)["g"] for command in parse(frames.take(4, _WALL_MS + 5))] == [str(_WALL_MS)] * 4
    assert [fields(command)["g"] for command in parse(frames.take(4, _WALL_MS + 9))] == [str(_WALL_MS + 9)] * 4


def test_pool_has_whole_rounds_of_queues_and_is_small_for_large_bodies() -> None:
    assert SendFrames(SendShape("t", 10, 1024), identity=1, wall_ms=0).count % 1024 == 0
    assert SendFrames(SendShape("t", 1 << 20, 4), identity=1, wall_ms=0).count <= 64


def test_pull_frame_requests_one_queue_from_one_offset() -> None:
    [command] = parse(PullFrames("%RETRY%g", group="g%").frame(3, 12345, 77))
    assert (command.code, command.opaque, command.body) == (11, 77, b"")
    assert (fields(command)["topic"], fields(command)["consumerGroup"]) == ("%RETRY%g", "g%")
    assert json.loads(header(PullFrames("t").frame(3, 5, 7)))["extFields"]["sysFlag"] == "4"
    assert (fields(command)["queueId"], fields(command)["queueOffset"]) == ("3", "12345")
    assert (fields(command)["maxMsgNums"], fields(command)["subscription"]) == ("32", "*")


def test_pull_frame_has_the_tag_expression() -> None:
    [command] = parse(PullFrames("t", expression="a || b").frame(0, 0, 1))
    assert fields(command)["subscription"] == "a || b"


def test_long_poll_frame_has_the_suspend_flag_and_timeout() -> None:
    [command] = parse(PullFrames("t", suspend_ms=15_000).frame(0, 0, 1))
    assert (fields(command)["sysFlag"], fields(command)["suspendTimeoutMillis"]) == ("6", "15000")


@pytest.mark.parametrize("form", FORMS)
def test_signed_frames_are_the_same_requests_with_a_signature(form: Form) -> None:
    user = Credentials("sender", "secret")
    source = SendFrames(SendShape("t", form=form, varied=True), identity=1, wall_ms=_WALL_MS, frames=20)
    frames = bytes(source.take(20, _WALL_MS))
    plain, with_user = parse(frames), parse(signed_frames(frames, user))
    for before, after in zip(plain, with_user, strict=True):
        assert after.fields == signed(before.fields, before.body, user)
        assert replace(after, fields=before.fields) == before
