"""Header fields of requests as structs: text is converted to numbers, errors name the field."""

import json

import pytest

from tandemq.codec.remoting.requests import (
    PullFields,
    QueryMessageFields,
    QueueFields,
    SendFields,
    SendFieldsV1,
    decode_pull_frame,
    is_true,
    read_fields,
)
from tandemq.errors import ProtocolError

V1 = {
    "producerGroup": "g",
    "topic": "t",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "2",
    "sysFlag": "0",
    "bornTimestamp": "1700000000000",
    "flag": "-1",
    "properties": "a\x01b",
    "reconsumeTimes": "3",
    "unitMode": "false",
    "batch": "false",
    "maxReconsumeTimes": "16",
    "bname": "broker-a",
}
V2 = {
    "a": "g",
    "b": "t",
    "c": "TBW102",
    "d": "4",
    "e": "2",
    "f": "0",
    "g": "1700000000000",
    "h": "-1",
    "i": "a\x01b",
    "j": "3",
    "k": "false",
    "l": "16",
    "m": "false",
    "n": "broker-a",
}


def test_both_forms_of_a_send_have_the_same_fields() -> None:
    one, two = read_fields(SendFieldsV1, V1), read_fields(SendFields, V2)
    for name in SendFields.__struct_fields__:
        assert getattr(one, name) == getattr(two, name)
    assert (two.queue_id, two.born_timestamp, two.flag, two.max_reconsume_times) == (2, 1700000000000, -1, 16)


def test_whole_pull_header_is_decoded_in_one_step() -> None:
    fields = {"consumerGroup": "g", "topic": "t", "queueId": "1", "queueOffset": "9", "maxMsgNums": 32, "subVersion": 0}
    frame = decode_pull_frame(json.dumps({"code": 11, "opaque": 1, "extFields": fields}).encode())
    assert frame.extFields == PullFields("g", "t", 1, 9, 32)


@pytest.mark.parametrize("text", ["", "x", "1x", " 1", "0x1", "null", "1.5", "9" * 20, "9" * 5000])
def test_malformed_number_is_a_protocol_error_that_names_the_field(text: str) -> None:
    with pytest.raises(ProtocolError, match="queueId"):
        read_fields(QueueFields, {"topic": "t", "queueId": text})


@pytest.mark.parametrize("name", sorted(set(V2) - set("ijklmn")))
def test_missing_field_is_a_protocol_error(name: str) -> None:
    with pytest.raises(ProtocolError):
        read_fields(SendFields, {key: value for key, value in V2.items() if key != name})


@pytest.mark.parametrize(("name", "value"), [("e", 1 << 31), ("h", 1 << 31), ("f", -(1 << 31) - 1), ("g", 1 << 63)])
def test_number_beyond_32_bits_is_refused(name: str, value: int) -> None:
    fields = {**V2, name: str(value)}
    with pytest.raises(ProtocolError):
        read_fields(SendFields, fields)


def test_times_have_64_bits() -> None:
    fields = {"topic": "t", "key": "k", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str((1 << 63) - 1)}
    assert read_fields(QueryMessageFields, fields).end_timestamp == (1 << 63) - 1


@pytest.mark.parametrize(("text", "expected"), [("true", True), ("TRUE", True), ("1", False), ("", False)])
def test_booleans_are_parsed_as_in_java(text: str, expected: bool) -> None:
    assert is_true(text) is expected
