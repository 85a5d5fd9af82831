"""Messages: checked when they are made, with the same attributes in all clients."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tandemq.client.blocking import BlockingMessage
from tandemq.client.consumer.received_message import MessageView, ReceivedMessage
from tandemq.client.consumer.subscription import make_subscription
from tandemq.client.core.settings import ClientConfig, ProducerOptions
from tandemq.client.producer.encoder import prepare, prepare_batches
from tandemq.errors import ConfigError, InvalidMessage, LocalError
from tandemq.model.message import Message, MessageQueue, SendResult, SendStatus, decode_properties


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"body": "hello"}, "body must be bytes, not str; encode it"),
        ({"body": None}, "body must be bytes, not NoneType"),
        ({"body": [1, 2]}, "body must be bytes, not list"),
        ({"topic": 7}, "topic must be a str"),
        ({"tags": ["a"]}, "a message has one tag"),
        ({"keys": 7}, "keys must be a str or several"),
        ({"keys": [7]}, "a key must be a str"),
        ({"properties": ["a"]}, "properties must be a dict"),
        ({"properties": {"a": 1}}, "the property a must be a str"),
        ({"properties": {1: "a"}}, "the name of a property must be a str"),
        ({"delay_level": "1"}, "delay_level and flag must be int"),
        ({"flag": 1.5}, "delay_level and flag must be int"),
        ({"delay": "30s"}, "delay must be a timedelta or a number of seconds, not str"),
        ({"delay": True}, "not bool"),
        ({"priority": "3"}, "priority must be an int"),
        ({"priority": True}, "priority must be an int"),
        ({"deliver_at": "2026-01-01"}, "deliver_at must be a datetime or a number of seconds, not str"),
        ({"deliver_at": timedelta(seconds=1)}, "not timedelta"),
        ({"deliver_at": datetime(2026, 1, 1)}, "has no time zone"),  # noqa: DTZ001
    ],
)
def test_field_of_another_type_is_a_type_error_when_the_message_is_made(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(TypeError, match=reason):
        Message(**({"topic": "Orders", "body": b"x"} | fields))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"topic": ""}, "topic name is empty"),
        ({"topic": "a b"}, "illegal characters"),
        ({"topic": "x" * 128}, "at most 127"),
        ({"tags": "a||b"}, "one tag, without |"),
        ({"tags": " a"}, "spaces around it"),
        ({"tags": "a\x01b"}, "0x01 or 0x02"),
        ({"keys": "a b"}, "has a space in it"),
        ({"keys": ["a\x02"]}, "0x01 or 0x02"),
        ({"properties": {"": "x"}}, "has no name"),
        ({"properties": {"TAGS": "x"}}, "use the message's own field"),
        ({"properties": {"a\x01": "x"}}, "0x01 or 0x02"),
        ({"properties": {"a": "x\x02"}}, "0x01 or 0x02"),
        ({"delay_level": -1}, "the delay level is -1"),
        ({"flag": 1 << 31}, "does not fit into 32 bits"),
        ({"delay": -0.001}, "must not be negative"),
        ({"delay": float("inf")}, "and a number"),
        ({"delay": float("nan")}, "and a number"),
        ({"deliver_at": 1e12}, "and a number"),
        ({"delay": 1, "deliver_at": 1}, "only one of"),
        ({"priority": -1}, "the priority is -1"),
        ({"priority": 1 << 31}, "the priority is 2147483648"),
        ({"priority": 1, "delay": 1}, "cannot have a priority"),
        ({"priority": 1, "delay_level": 1}, "cannot have a priority"),
        ({"delay": 1, "delay_level": 1}, "only one of"),
        ({"delay": 1, "properties": {"TIMER_DELAY_SEC": "1"}}, "only one of"),
        ({"tags": "\ud800"}, "tags cannot be encoded as UTF-8"),
        ({"keys": ["a\udfff"]}, "a key cannot be encoded"),
        ({"properties": {"a": "\ud800"}}, "the property a cannot be encoded"),
    ],
)
def test_invalid_value_is_a_value_error_when_the_message_is_made(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as raised:
        Message(**({"topic": "Orders", "body": b"x"} | fields))
    assert isinstance(raised.value, InvalidMessage)


def test_bytes_of_any_kind_and_keys_of_any_kind_are_taken() -> None:
    for body in (b"x", bytearray(b"x"), memoryview(b"x")):
        assert Message("T", body).body == b"x"  # type: ignore[arg-type]
    assert list(Message("T", b"", keys="one").keys) == ["one"]
    assert list(Message("T", b"", keys=(key for key in ("a", "b"))).keys) == ["a", "b"]


def test_delay_level_is_one_of_the_brokers_table() -> None:
    options = ProducerOptions(group="g")
    assert "DELAY\x0118\x02" in prepare(Message("T", b"", delay_level=18), "k", options).properties
    with pytest.raises(ValueError, match=r"the delay level is 19; it must be 0 \(no delay\) to 18"):
        prepare(Message("T", b"", delay_level=19), "k", options)
    more = ProducerOptions(group="g", delay_levels=20)
    assert "DELAY\x0119\x02" in prepare(Message("T", b"", delay_level=19), "k", more).properties


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("body", "text", "body must be bytes, not str"),
        ("tags", ["a"], "a message has one tag"),
        ("properties", {"a": 1}, "the property a must be a str"),
    ],
)
def test_field_that_was_replaced_is_checked_when_the_message_is_sent(field: str, value: object, reason: str) -> None:
    message = Message("T", b"x")
    setattr(message, field, value)
    with pytest.raises(TypeError, match=reason):
        prepare(message, "k", ProducerOptions(group="g"))


def test_former_names_of_ids_hold_for_one_release() -> None:
    result = SendResult(SendStatus.SEND_OK, "unique", "place", MessageQueue("T", "b", 0), 7)
    with pytest.warns(DeprecationWarning, match="unique_key"):
        assert result.message_id == "unique"


def test_message_of_the_blocking_consumer_has_the_attributes_of_the_other() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(BlockingMessage) == public(ReceivedMessage) > public(MessageView)


@pytest.mark.parametrize("expression", ["||", "a | b", " | ", "a|||b|"])
def test_invalid_expression_is_refused_at_once(expression: str) -> None:
    with pytest.raises(ConfigError, match="write `"):
        make_subscription("T", expression, 0)


def test_expression_of_another_type_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="must be str"):
        make_subscription("T", ["a"], 0)  # type: ignore[arg-type]


def test_address_with_a_scheme_gets_a_hint() -> None:
    with pytest.raises(ConfigError, match="leave out the scheme http://: 127"):
        ClientConfig(name_servers=("http://127.0.0.1:9876",), client_id="c")


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"delay": 0}, "TIMER_DELAY_MS", "0"),
        ({"delay": 0.0001}, "TIMER_DELAY_MS", "1"),
        ({"delay": 1.1}, "TIMER_DELAY_MS", "1100"),
        ({"delay": timedelta(minutes=1, microseconds=1)}, "TIMER_DELAY_MS", "60001"),
        ({"deliver_at": 1_700_000_000}, "TIMER_DELIVER_MS", "1700000000000"),
        ({"deliver_at": 1_700_000_000.123}, "TIMER_DELIVER_MS", "1700000000123"),
        ({"deliver_at": datetime(2026, 1, 1, tzinfo=UTC)}, "TIMER_DELIVER_MS", "1767225600000"),
        (
            {"deliver_at": datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))},
            "TIMER_DELIVER_MS",
            "1767225600000",
        ),
    ],
)
def test_delay_and_time_of_delivery_are_properties_in_milliseconds(
    fields: dict[str, Any], name: str, value: str
) -> None:
    message = Message("Orders", b"x", **fields)
    request = prepare(message, "KEY", ProducerOptions(group="g"))
    assert decode_properties(request.properties)[name] == value
    assert message.is_delayed
    with pytest.raises(LocalError, match="neither delay nor priority"):
        prepare_batches([message], ["KEY"], ProducerOptions(group="g"))


def test_priority_is_a_property_of_the_message_which_then_has_its_own_request() -> None:
    options = ProducerOptions(group="p")
    urgent = Message("T", b"x", priority=3)
    assert decode_properties(prepare(urgent, "U", options).properties)["_SYS_MSG_PRIORITY_"] == "3"
    for message in (urgent, Message("T", b"x", properties={"_SYS_MSG_PRIORITY_": "3"})):
        with pytest.raises(LocalError, match="neither delay nor priority"):
            prepare_batches([Message("T", b"x"), message], ["U", "V"], options)
