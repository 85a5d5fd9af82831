"""Encoding of messages: what is refused, and how the rest is encoded."""

import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.client.core.settings import ProducerOptions
from tandemq.client.producer.encoder import SendEncoder, SendRequest, prepare, prepare_batches
from tandemq.codec.record.record import decode_batch
from tandemq.codec.remoting.frame import FrameDecoder, decode_command, encode_request
from tandemq.errors import InvalidMessage, LocalError, RecordTooLarge
from tandemq.model.command import Command
from tandemq.model.message import Message, MessageQueue, SysFlag, decode_properties

OPTIONS = ProducerOptions(group="g")


@pytest.mark.parametrize(
    "changes",
    [
        {"topic": ""},
        {"topic": "white space"},
        {"topic": "T" * 128},
        {"topic": "SCHEDULE_TOPIC_XXXX"},
        {"keys": ["two words"]},
        {"delay_level": -1},
        {"properties": {"KEYS": "k"}},
        {"properties": {"a": "b\x02c"}},
        {"properties": {"a\x01": "b"}},
    ],
)
def test_message_that_was_made_invalid_later_is_refused_when_it_is_sent(changes: dict[str, Any]) -> None:
    message = Message("T", b"x")
    for name, value in changes.items():
        setattr(message, name, value)
    with pytest.raises(LocalError):
        prepare(message, "ID", OPTIONS)


@pytest.mark.parametrize(
    "message", [Message("T", bytes((4 << 20) + 1)), Message("T", b"x", properties={"a": "ä" * 16_000})]
)
def test_too_large_messages_are_refused(message: Message) -> None:
    with pytest.raises(RecordTooLarge):
        prepare(message, "ID", OPTIONS)


def test_properties_contain_the_fields_of_the_message() -> None:
    message = Message("T", b"x", "tag", ["a", "b"], {"colour": "red"}, 3, wait_store_ok=False)
    assert decode_properties(prepare(message, "ID", OPTIONS).properties) == {
        "colour": "red",
        "UNIQ_KEY": "ID",
        "WAIT": "false",
        "TAGS": "tag",
        "KEYS": "a b",
        "DELAY": "3",
    }


def test_one_key_may_be_given_as_text() -> None:
    assert decode_properties(prepare(Message("T", b"x", keys="whole"), "ID", OPTIONS).properties)["KEYS"] == "whole"


def test_bodies_above_the_limit_are_compressed_if_that_helps() -> None:
    text, noise = b"a" * 4096, zlib.compress(bytes(range(256)) * 16)[:10] * 1
    packed = prepare(Message("T", text), "ID", OPTIONS)
    assert packed.sys_flag == SysFlag.COMPRESSED
    assert zlib.decompress(packed.body) == text
    assert prepare(Message("T", text[:-1]), "ID", OPTIONS).sys_flag == 0
    assert prepare(Message("T", noise), "ID", ProducerOptions(group="g", compress_above_bytes=1)).body == noise


def test_batch_parts_keep_their_own_properties() -> None:
    messages = [Message("T", b"1", "a"), Message("T", b"2", "b")]
    (batch,) = prepare_batches(messages, ["K1", "K2"], OPTIONS)
    parts = decode_batch(batch.body)
    assert [part.body for part in parts] == [b"1", b"2"]
    assert [decode_properties(part.properties.decode())["UNIQ_KEY"] for part in parts] == ["K1", "K2"]
    assert batch.unique_keys == ("K1", "K2")


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [Message("T", b"1"), Message("U", b"2")],
        [Message("T", b"1", delay_level=1)],
        [Message("T", b"1"), Message("T", b"2", wait_store_ok=False)],
        [Message("%RETRY%g", b"1")],
    ],
)
def test_invalid_batches_are_refused(messages: list[Message]) -> None:
    with pytest.raises(LocalError):
        prepare_batches(messages, ["K"] * len(messages), OPTIONS)


@pytest.mark.parametrize("wrong", [[Message("T", b"x")], "text", b"bytes", None])
def test_argument_that_is_not_a_message_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="several at once: send_batch"):
        prepare(wrong, "ID", OPTIONS)


TEXTS = st.text(st.characters(codec="utf-8"), max_size=30)
INTS = st.integers(-(1 << 31), (1 << 31) - 1)


@given(
    TEXTS, TEXTS, TEXTS, st.binary(max_size=40), INTS, INTS, st.booleans(), INTS, st.none() | INTS, st.booleans(), TEXTS
)
def test_encoded_request_is_that_of_the_fields(
    topic: str,
    broker_name: str,
    properties: str,
    body: bytes,
    sys_flag: int,
    flag: int,
    is_batch: bool,
    reconsume_times: int,
    max_reconsume_times: int | None,
    oneway: bool,
    user: str,
) -> None:
    encoder = SendEncoder('group "1"', 5)
    for queue_id in (0, 7, 0):
        queue = MessageQueue(topic, broker_name, queue_id)
        request = SendRequest(
            topic,
            body,
            properties,
            sys_flag,
            flag,
            ("k",),
            is_batch,
            reconsume_times,
            max_reconsume_times,
            on_behalf_of=user,
        )
        frame = encode_request(encoder.encode(request, queue, 1_700_000_000_000), 77, oneway=oneway)
        command = request.command('group "1"', broker_name, queue_id, 1_700_000_000_000, 5)
        assert decoded(frame) == decoded(encode_request(command, 77, oneway=oneway))


def test_head_of_a_queue_is_not_used_for_another_topic_or_for_batches() -> None:
    encoder = SendEncoder("g", 4)
    queue = MessageQueue("T", "a", 1)
    single = SendRequest("T", b"", "", 0, 0, ("k",))
    batch = SendRequest("T", b"", "", 0, 0, ("k",), is_batch=True)
    other = SendRequest("U", b"", "", 0, 0, ("k",))
    for request in (single, batch, other, single, batch, other):
        command = decoded(encode_request(encoder.encode(request, queue, 1), 1))
        wanted = request.command("g", "a", 1, 1, 4)
        assert (command.code, command.fields) == (wanted.code, wanted.fields)


def test_heads_are_forgotten_when_there_are_many() -> None:
    encoder = SendEncoder("g", 4)
    for number in range(5_000):
        topic = f"T{number}"
        request = SendRequest(topic, b"", "", 0, 0, ("k",))
        fields = decoded(encode_request(encoder.encode(request, MessageQueue(topic, "a", 0), 1), 1)).fields
        assert fields["b"] == topic
    assert len(encoder._heads) <= 4096


def decoded(frame: bytes) -> Command:
    (raw,) = FrameDecoder().feed(frame)
    return decode_command(raw)


@pytest.mark.parametrize(
    "changes",
    [
        {"tags": " a"},
        {"tags": "a|b"},
        {"tags": "a\x02"},
        {"tags": "\ud800"},
        {"keys": ["a b"]},
        {"keys": ("a", "b\x01")},
        {"keys": "a b"},
        {"keys": ["ä", "\ud800"]},
        {"properties": {"": "x"}},
        {"properties": {"a": "\x01"}},
        {"properties": {"TAGS": "x"}},
        {"properties": {"a": "\ud800"}},
    ],
)
def test_text_that_needs_a_closer_look_is_refused_with_an_ordinary_message(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage):
        Message("T", b"x", **changes)


@pytest.mark.parametrize(
    "changes", [{"tags": 5}, {"keys": [5]}, {"keys": 5}, {"properties": {"a": 5}}, {"properties": 5}]
)
def test_values_that_are_no_text_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Message("T", b"x", **changes)
    message = Message("T", b"x", "tag", ["key"], {"a": "b"})
    for name, value in changes.items():
        setattr(message, name, value)
    with pytest.raises(TypeError):
        prepare(message, "ID", OPTIONS)


def test_keys_of_any_kind_become_a_tuple() -> None:
    assert Message("T", b"x", keys=["a", "ä"]).keys == ("a", "ä")
    assert Message("T", b"x", keys="a").keys == ("a",)
    assert Message("T", b"x", keys=(key for key in "ab")).keys == ("a", "b")
