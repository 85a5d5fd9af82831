"""Encoding of messages: what is refused, and how the rest is encoded."""

import zlib
from typing import Any

import pytest

from tandemq.client.core.settings import ProducerOptions
from tandemq.client.producer.encoder import prepare, prepare_batches
from tandemq.codec.record.record import decode_batch
from tandemq.errors import LocalError, RecordTooLarge
from tandemq.model.message import Message, SysFlag, decode_properties

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
