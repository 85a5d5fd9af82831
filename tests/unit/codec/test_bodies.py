"""JSON bodies of peers, read by the rules of Java's fastjson: every body in every variation that Java accepts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from tandemq.broker.features.groups.consumer_manage import LockBody
from tandemq.broker.state.consumer_offsets import parse_offsets
from tandemq.broker.state.groups import parse_groups
from tandemq.broker.state.topics import parse_topics
from tandemq.client.core.routes import decode_route
from tandemq.codec.remoting.admin_requests import CreateTopicFields, DeleteGroupFields, ResetOffsetFields
from tandemq.codec.remoting.bodies import convert, decode_body, integer
from tandemq.codec.remoting.fastjson import dumps
from tandemq.codec.remoting.header import FORM_JSON, decode_header
from tandemq.codec.remoting.requests import PullFields, read_fields
from tandemq.errors import ProtocolError, RemoteError
from tandemq.model.command import Command
from tandemq.model.group import ConsumerData, HeartbeatData, SubscriptionData, SubscriptionGroupConfig
from tandemq.model.topic import TopicConfig
from tandemq.nameserver.registration import read_registration, read_version
from tandemq.storage.json_tables import DataVersion

SUBSCRIPTION = {
    "topic": "T",
    "subString": "a || b",
    "tagsSet": ["a", "b"],
    "codeSet": [97, 98],
    "subVersion": 1_700_000_000_000,
    "classFilterMode": False,
    "expressionType": "TAG",
}
CONSUMER = {
    "groupName": "g",
    "consumeType": "CONSUME_PASSIVELY",
    "messageModel": "CLUSTERING",
    "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
    "subscriptionDataSet": [SUBSCRIPTION],
    "unitMode": False,
}
HEARTBEAT = {
    "clientID": "c",
    "consumerDataSet": [CONSUMER],
    "producerDataSet": [{"groupName": "p"}],
    "heartbeatFingerprint": 7,
    "withoutSub": True,
}
GROUP = {
    "groupName": "g",
    "consumeEnable": True,
    "consumeFromMinEnable": False,
    "consumeBroadcastEnable": True,
    "consumeMessageOrderly": False,
    "retryQueueNums": 2,
    "retryMaxTimes": 3,
    "brokerId": 0,
    "whichBrokerWhenConsumeSlowly": 1,
    "notifyConsumerIdsChangedEnable": True,
    "groupSysFlag": 0,
    "consumeTimeoutMinute": 15,
    "groupRetryPolicy": {
        "type": "EXPONENTIAL",
        "exponentialRetryPolicy": {"initial": 1000, "max": 60000, "multiplier": 3},
        "customizedRetryPolicy": {"next": [1000]},
    },
    "attributes": {"+k": "v"},
}
TOPIC = {
    "topicName": "T",
    "readQueueNums": 4,
    "writeQueueNums": 8,
    "perm": 6,
    "topicFilterType": "MULTI_TAG",
    "topicSysFlag": 0,
    "order": True,
    "attributes": {"+message.type": "FIFO"},
}


@dataclass(frozen=True)
class Body:
    """A body with all fields, its required fields, and the function that reads it."""

    value: dict[str, Any]
    required: tuple[str, ...]
    read: Callable[[Any], Any]


LOCK = {
    "consumerGroup": "g",
    "clientId": "c",
    "mqSet": [{"topic": "T", "queueId": 3, "brokerName": "broker-a"}],
}
BODIES = {
    "heartbeat": Body(HEARTBEAT, ("clientID",), lambda value: convert(value, HeartbeatData, "heartbeat")),
    "consumer": Body(CONSUMER, ("groupName",), lambda value: convert(value, ConsumerData, "consumer")),
    "subscription": Body(SUBSCRIPTION, ("topic",), lambda value: convert(value, SubscriptionData, "subscription")),
    "group": Body(GROUP, ("groupName",), lambda value: convert(value, SubscriptionGroupConfig, "group")),
    "lock request": Body(LOCK, ("consumerGroup", "clientId"), lambda value: convert(value, LockBody, "lock request")),
    "topic": Body(TOPIC, ("topicName",), lambda value: convert(value, TopicConfig, "topic")),
}


def with_numbers_as_text(value: Any) -> Any:
    return _deep(value, lambda item: str(item) if isinstance(item, int) and not isinstance(item, bool) else item)


def with_whole_fractions(value: Any) -> Any:
    return _deep(value, lambda item: float(item) if isinstance(item, int) and not isinstance(item, bool) else item)


def with_booleans_as_text(value: Any) -> Any:
    return _deep(value, lambda item: str(item).upper() if isinstance(item, bool) else item)


def with_booleans_as_numbers(value: Any) -> Any:
    return _deep(value, lambda item: int(item) if isinstance(item, bool) else item)


def with_enums_by_position(value: Any) -> Any:
    positions = {"CONSUME_PASSIVELY": 1, "CLUSTERING": 1, "CONSUME_FROM_FIRST_OFFSET": 4, "MULTI_TAG": 1}
    return _deep(value, lambda item: positions.get(item, item) if isinstance(item, str) else item)


def with_enums_in_small_letters(value: Any) -> Any:
    names = ("CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_FIRST_OFFSET", "MULTI_TAG")
    return _deep(value, lambda item: item.lower() if item in names else item)


def with_unknown_fields(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() - {"+k", "+message.type"}:
        return {key: with_unknown_fields(item) for key, item in value.items()} | {"later": {"x": [1]}}
    return [with_unknown_fields(item) for item in value] if isinstance(value, list) else value


def with_null_entries(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: with_null_entries(item) for key, item in value.items()}
    return [None, *map(with_null_entries, value)] if isinstance(value, list) else value


def _deep(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _deep(item, change) for key, item in value.items()}
    return [_deep(item, change) for item in value] if isinstance(value, list) else change(value)


VARIATIONS = (
    with_numbers_as_text,
    with_whole_fractions,
    with_booleans_as_text,
    with_booleans_as_numbers,
    with_enums_by_position,
    with_enums_in_small_letters,
    with_unknown_fields,
    with_null_entries,
)


@pytest.mark.parametrize("vary", VARIATIONS)
@pytest.mark.parametrize("name", BODIES)
def test_variations_of_a_body_are_read_the_same(name: str, vary: Callable[[Any], Any]) -> None:
    body = BODIES[name]
    plain = body.read(body.value)
    assert msgspec.to_builtins(plain) == body.value
    assert body.read(vary(body.value)) == plain


@pytest.mark.parametrize("name", BODIES)
def test_field_that_is_null_or_missing_has_its_default_unless_it_is_required(name: str) -> None:
    body = BODIES[name]
    least = {key: body.value[key] for key in body.required}
    default = body.read(least)
    for key in body.value:
        without = {other: item for other, item in body.value.items() if other != key}
        if key in body.required:
            for wrong in (without, without | {key: None}):
                with pytest.raises(ProtocolError, match=f"{name}: .*{key}"):
                    body.read(wrong)
        else:
            assert msgspec.to_builtins(body.read(without))[key] == msgspec.to_builtins(default)[key]
            null = msgspec.to_builtins(body.read(body.value | {key: None}))[key]
            assert null in (None, msgspec.to_builtins(default)[key])


@pytest.mark.parametrize("name", BODIES)
def test_wrong_value_is_an_error_that_names_the_field(name: str) -> None:
    body = BODIES[name]
    for key, item in body.value.items():
        wrong: Any = {"x": 1} if isinstance(item, (list, bool)) else [{}] if isinstance(item, (int, dict)) else None
        if wrong is not None:
            with pytest.raises(ProtocolError, match=f"{name}: .*{key}"):
                body.read(body.value | {key: wrong})


@pytest.mark.parametrize("body", [b"5", b"[]", b"null", b'"text"', b"{", b"\xff"])
def test_body_that_is_not_an_object_is_an_error(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_body(body, HeartbeatData, "heartbeat")


def test_unknown_enum_name_is_null_and_unknown_ordinal_is_an_error() -> None:
    read = BODIES["consumer"].read
    assert read(CONSUMER | {"consumeType": "", "messageModel": "LATER"}).consume_type is None
    for position in (-1, 3):
        with pytest.raises(ProtocolError, match="0 to 2"):
            read(CONSUMER | {"consumeType": position})
    names = [read(CONSUMER | {"consumeFromWhere": position}).consume_from_where for position in range(6)]
    assert names == [
        "CONSUME_FROM_LAST_OFFSET",
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        "CONSUME_FROM_MIN_OFFSET",
        "CONSUME_FROM_MAX_OFFSET",
        "CONSUME_FROM_FIRST_OFFSET",
        "CONSUME_FROM_TIMESTAMP",
    ]


def test_text_accepts_any_value() -> None:
    read = BODIES["subscription"].read
    texts = [read(SUBSCRIPTION | {"subString": value}).sub_string for value in (5, True, 1.5, {"a": [1]})]
    assert texts == ["5", "true", "1.5", '{"a":[1]}']


@pytest.mark.parametrize("value", ["1.5", "five", "9" * 19, "9" * 5000, 1 << 63, 1.5, True, [], float("inf")])
def test_value_that_is_not_a_64_bit_number_is_an_error(value: Any) -> None:
    with pytest.raises(ProtocolError, match="offset: an integer is expected"):
        integer(value, "offset")


def test_lone_surrogate_is_an_error_where_it_must_be_encoded() -> None:
    with pytest.raises(ProtocolError, match=r"subscription: .*subString"):
        decode_body(b'{"topic":"T","subString":{"a":"\\ud800"}}', SubscriptionData, "subscription")
    with pytest.raises(ProtocolError, match="offset: an integer is expected"):
        integer("\ud800", "offset")


def test_numbers_are_bounded_as_in_java() -> None:
    for key in ("readQueueNums", "perm", "topicSysFlag"):
        with pytest.raises(ProtocolError, match=key):
            BODIES["topic"].read(TOPIC | {key: 1 << 31})


# Tables.


def test_tables_accept_numbers_as_text_and_null_entries() -> None:
    table = {"topicConfigTable": {"T": {"perm": "4", "order": "1"}, "U": None}}
    assert parse_topics(table) == [TopicConfig("T", perm=4, order=True)]
    groups = {"subscriptionGroupTable": {"g": {"retryMaxTimes": "3", "groupName": None}, "h": None}}
    assert parse_groups(groups)["g"].retry_max_times == 3
    assert parse_offsets({"offsetTable": {"T@g": {"0": "12", "1": None, "2": 3.0}}}) == {"T@g": {0: 12, 2: 3}}
    assert DataVersion.from_json({"counter": "3", "timestamp": None}).counter == 3


def test_registration_accepts_what_java_accepts() -> None:
    fields = {"brokerName": "b", "brokerAddr": "h:1", "clusterName": "c", "brokerId": "0"}
    wrapper = {
        "dataVersion": {"counter": "3", "timestamp": None},
        "topicConfigTable": {"T": {"perm": "6", "readQueueNums": None}, "U": None},
        "topicQueueMappingInfoMap": {"T": {"topic": "T", "bname": "b", "currIdMap": {"0": "7"}, "dirty": "true"}},
    }
    body = dumps({"topicConfigSerializeWrapper": wrapper, "filterServerList": [None], "later": 1})
    registration = read_registration(Command(103, fields=fields, body=body, version=409))
    assert registration.topics == {"T": (6, 16, 16, 0)}
    assert registration.version == read_version({"counter": 3})
    assert registration.mappings["T"]["dirty"] is True
    assert registration.mappings["T"]["currIdMap"] == {0: 7}


def test_route_accepts_numbers_as_text() -> None:
    route = decode_route(
        "T",
        b'{"brokerDatas":[{"brokerAddrs":{0:"h:1"},"brokerName":"b","cluster":null}],"queueDatas":[{"brokerName":"b",'
        b'"perm":"6","readQueueNums":"4","writeQueueNums":4.0,"topicSysFlag":null}],"orderTopicConf":null}',
    )
    assert [(data.perm, data.read_queue_nums, data.write_queue_nums) for data in route.queues] == [(6, 4, 4)]


# Headers.


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("queueId", 3, "3"),
        ("batch", True, "true"),
        ("offset", 1.0, "1.0"),
        ("body", {"a": [1]}, '{"a":[1]}'),
        ("list", [1], "[1]"),
    ],
)
def test_header_field_of_any_type_is_text(field: str, value: Any, text: str) -> None:
    command = decode_header(FORM_JSON, dumps({"code": 11, "extFields": {field: value, "absent": None}}), b"")
    assert command.fields == {field: text}


def test_header_accepts_numbers_as_text_null_and_a_language_by_its_ordinal() -> None:
    header = b'{"code":"34","flag":null,"opaque":"5","version":null,"language":1,"remark":5,"extFields":null,"x":{}}'
    command = decode_header(FORM_JSON, header, b"")
    assert (command.code, command.flag, command.opaque, command.version) == (34, 0, 5, 0)
    assert (command.language, command.remark, command.fields) == ("CPP", "5", {})


def test_header_booleans_are_true_only_for_the_text_true() -> None:
    base = {"topic": "T", "group": "g", "timestamp": "+5"}
    words = {"true": True, "TRUE": True, "false": False, "1": False, "yes": False, "": False}
    assert {word: read_fields(ResetOffsetFields, base | {"isForce": word}).is_force for word in words} == words
    assert read_fields(DeleteGroupFields, {"groupName": "g", "cleanOffset": "true"}).clean_offset


def test_empty_header_number_is_missing() -> None:
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "+3", "maxMsgNums": "32"}
    pull = read_fields(PullFields, fields | {"commitOffset": "", "subVersion": ""})
    assert (pull.queue_offset, pull.commit_offset) == (3, 0)
    with pytest.raises(ProtocolError, match=r"header fields: .*queueId"):
        read_fields(PullFields, fields | {"queueId": ""})
    with pytest.raises(ProtocolError, match="topicSysFlag"):
        read_fields(
            CreateTopicFields,
            {"topic": "T", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "topicSysFlag": "9" * 30},
        )


def test_route_of_a_static_topic_is_refused_with_the_reason() -> None:
    body = b'{"brokerDatas":[],"queueDatas":[],"topicQueueMappingByBroker":{"a":{"bname":"a","currIdMap":{0:1}}}}'

    with pytest.raises(RemoteError, match="topic T is static, this client has no logical queues"):
        decode_route("T", body)
