"""Messages between the two forms: what is stored, what is refused, what clients receive."""

import gzip
import zlib
from hashlib import md5
from typing import Any

import pytest

from tandemq.model import message as names
from tandemq.model.message import StoredMessage, decode_properties
from tandemq.proxy.messages import (
    BODY_BYTES_MAX,
    ENCODED_BYTES_MAX,
    OPAQUE_BODY,
    PROPERTIES_MAX,
    PROPERTY_BYTES_MAX,
    RESERVED,
    prepare,
    received,
)
from tandemq.proxy.protocol import messaging_pb2 as pb
from tandemq.proxy.status import CallRefused
from tests.spec import spec
from tests.unit.proxy.cluster import duration, message, resource

PEER = "10.0.8.1:4000"
WALL_MS = 1_790_000_000_000


def properties_of(given: pb.Message) -> dict[str, str]:
    return decode_properties(prepare(given, "T", PEER).properties)


def refusal_of(given: pb.Message) -> str:
    with pytest.raises(CallRefused) as refused:
        prepare(given, "T", PEER)
    return pb.Code.Name(refused.value.grpc_code)


def stored(properties: dict[str, str], **changes: Any) -> StoredMessage:
    fields: dict[str, Any] = {
        "topic": "T",
        "queue_id": 1,
        "queue_offset": 7,
        "log_offset": 1000,
        "body": b"body",
        "properties": properties,
        "flag": 0,
        "sys_flag": 0,
        "born_ms": WALL_MS,
        "born_host": "10.0.0.9:50000",
        "store_ms": WALL_MS + 5,
        "store_host": "10.0.1.1:10911",
        "reconsume_times": 2,
        "prepared_offset": 0,
        "size": 100,
        "offset_message_id": "0A",
    }
    return StoredMessage(**{**fields, **changes})


def round_trip(given: pb.Message) -> pb.Message:
    prepared = prepare(given, "T", PEER)
    return received(stored(decode_properties(prepared.properties), body=prepared.body), resource("T"), "h", 3)


@spec("X01")
def test_all_that_a_client_gives_a_message_comes_back() -> None:
    given = message(
        "T",
        b"\x00\xff",
        message_id="01AB",
        tag="t-1",
        keys=["k1", "k2"],
        trace_context="trace",
        born_host="host-1",
        user={"colour": "blau-ü", "emoji": "\U0001f600"},
    )
    given.system_properties.born_timestamp.FromMilliseconds(WALL_MS - 1000)
    found = round_trip(given)
    system = found.system_properties
    assert found.body == given.body and found.user_properties == given.user_properties
    assert (system.message_id, system.tag, list(system.keys)) == ("01AB", "t-1", ["k1", "k2"])
    assert (system.trace_context, system.born_host) == ("trace", "host-1")
    assert system.born_timestamp == given.system_properties.born_timestamp
    assert system.message_type == pb.MessageType.NORMAL
    assert system.body_digest.type == pb.DigestType.MD5
    assert system.body_digest.checksum == md5(given.body, usedforsecurity=False).hexdigest().upper()
    assert (system.queue_id, system.queue_offset, system.receipt_handle) == (1, 7, "h")
    assert (system.delivery_attempt, system.store_host) == (3, "10.0.1.1:10911")
    assert system.store_timestamp.ToMilliseconds() == WALL_MS + 5
    assert not system.HasField("message_group") and not system.HasField("delivery_timestamp")


@spec("X01")
def test_what_a_type_needs_comes_back() -> None:
    cases: dict[pb.MessageType, dict[str, Any]] = {
        pb.MessageType.FIFO: {"message_group": "g-1"},
        pb.MessageType.DELAY: {"delivery_ms": WALL_MS + 10_000},
        pb.MessageType.PRIORITY: {"priority": 0},
        pb.MessageType.TRANSACTION: {"message_type": pb.MessageType.TRANSACTION},
    }
    for kind, given in cases.items():
        asked = message("T", **given)
        system = round_trip(asked).system_properties
        assert system.message_type == kind, kind
        assert system.message_group == asked.system_properties.message_group
        assert system.delivery_timestamp == asked.system_properties.delivery_timestamp
        assert system.HasField("priority") == (kind == pb.MessageType.PRIORITY)


def test_messages_are_stored_with_the_properties_of_java() -> None:
    given = message("T", message_id="01AB", tag="t", keys=["a", "b"], message_group="g", user={"x": "y"})
    assert properties_of(given) == {
        "x": "y",
        names.UNIQ_KEY: "01AB",
        names.WAIT: "true",
        "RECONSUME_TIME": "0",
        "TAGS": "t",
        "KEYS": "a b",
        "__SHARDINGKEY": "g",
        "__BORNHOST": "10.0.8.1",
    }


def test_the_half_message_of_a_transaction_says_when_it_is_first_checked() -> None:
    kind = pb.MessageType.TRANSACTION
    found = properties_of(message("T", message_type=kind, orphaned_transaction_recovery_duration=duration(90_000)))
    assert found["TRAN_MSG"] == "true" and found["PGROUP"] == "T"
    assert found["CHECK_IMMUNITY_TIME_IN_SECONDS"] == "90"
    for ms in (-1, 500, 3_601_000, 1 << 55):
        refused = message("T", message_type=kind, orphaned_transaction_recovery_duration=duration(ms))
        assert refusal_of(refused) == "BAD_REQUEST", ms


def test_a_type_that_is_not_asked_for_counts_as_none() -> None:
    assert prepare(message("T", tag="", message_group=""), "T", PEER).kind == pb.MessageType.NORMAL
    assert "TAGS" not in properties_of(message("T", tag=""))


@spec("X01")
def test_invalid_messages_are_refused_with_the_code_of_the_fault() -> None:
    lone = {f"n{number}": "v" for number in range(PROPERTIES_MAX + 1)}
    cases: dict[str, list[pb.Message]] = {
        "ILLEGAL_MESSAGE_ID": [message("T", message_id=""), message("T", message_id=" ")],
        "ILLEGAL_MESSAGE_TAG": [message("T", tag=" "), message("T", tag="a|b")],
        "ILLEGAL_MESSAGE_KEY": [message("T", keys=["a", " "]), message("T", keys=[""])],
        "ILLEGAL_MESSAGE_GROUP": [message("T", message_group=" "), message("T", message_group="g" * 64)],
        "ILLEGAL_MESSAGE_PROPERTY_KEY": [
            *(message("T", user={name: "v"}) for name in sorted(RESERVED)),
            message("T", user={"TIMER_OTHER": "v"}),
            message("T", user={" ": "v"}),
            *(message("T", user={f"a{chr(point)}": "v"}) for point in (0, 1, 2, 9, 10, 31, 127, 159)),
            message("T", user={"a": "v\x01w"}),
            message("T", user={"a": "v\x02w\x01x"}),
            message("T", tag="t\x02x\x01y"),
            message("T", keys=["k\n"]),
            message("T", trace_context="t\x01"),
            message("T", born_host="h\x02"),
            message("T", message_id="i\x01j"),
        ],
        "MESSAGE_PROPERTIES_TOO_LARGE": [
            message("T", user=lone),
            message("T", user={"a": "v" * PROPERTY_BYTES_MAX}),
            message("T", user={"a": "ü" * (PROPERTY_BYTES_MAX // 2)}),
            message("T", tag="t" * (PROPERTY_BYTES_MAX + 1)),
            message("T", tag="t", keys=["k" * PROPERTY_BYTES_MAX]),
            message("T", keys=["k"] * PROPERTY_BYTES_MAX),
            message("T", message_id="i" * ENCODED_BYTES_MAX),
            message("T", trace_context="t" * ENCODED_BYTES_MAX),
        ],
        "MESSAGE_BODY_EMPTY": [message("T", b""), gzipped(b"")],
        "MESSAGE_BODY_TOO_LARGE": [message("T", bytes(BODY_BYTES_MAX + 1)), gzipped(bytes(BODY_BYTES_MAX + 1))],
        "BAD_REQUEST": [message("T", priority=-1)],
        "UNSUPPORTED": [message("T", lite_topic="l"), message("T", message_type=pb.MessageType.LITE)],
    }
    for code, given in cases.items():
        for each in given:
            assert refusal_of(each) == code, str(each)[:300]


def test_values_at_the_limits_are_accepted() -> None:
    prepare(message("T", tag="t" * PROPERTY_BYTES_MAX), "T", PEER)
    part = PROPERTY_BYTES_MAX // 4
    prepare(message("T", tag="t" * part, keys=["k" * part], user={"n" * part: "ü" * (part // 2)}), "T", PEER)
    prepare(message("T", message_group="g" * 63), "T", PEER)
    prepare(message("T", user={f"n{number}": "v" for number in range(PROPERTIES_MAX)}), "T", PEER)
    prepare(message("T", bytes(BODY_BYTES_MAX)), "T", PEER)
    prepare(message("T", priority=(1 << 31) - 1), "T", PEER)


def gzipped(body: bytes) -> pb.Message:
    return message("T", gzip.compress(body), body_encoding=pb.Encoding.GZIP)


def test_compressed_bodies_are_stored_as_what_they_hold() -> None:
    for body in (b"x", bytes(BODY_BYTES_MAX)):
        assert prepare(gzipped(body), "T", PEER).body == body
    zipped = message("T", zlib.compress(b"x" * 1000), body_encoding=pb.Encoding.GZIP)
    assert prepare(zipped, "T", PEER).body == b"x" * 1000


def test_bodies_that_are_not_compressed_as_they_say_are_stored_as_they_are() -> None:
    whole = gzipped(b"x" * 1000)
    for broken in (whole.body[:-1], whole.body[:-9], b"x" * 100, whole.body + b"more", whole.body * 2):
        prepared = prepare(message("T", broken, body_encoding=pb.Encoding.GZIP), "T", PEER)
        assert prepared.body == broken
        assert decode_properties(prepared.properties)[OPAQUE_BODY] == "GZIP"
    assert OPAQUE_BODY not in decode_properties(prepare(whole, "T", PEER).properties)


def test_any_stored_message_can_be_received() -> None:
    """Remoting clients store messages with any numbers and properties."""
    forged = {
        "BORN_TIMESTAMP": "9" * 15,
        "TIMER_DELIVER_MS": "-1",
        "_SYS_MSG_PRIORITY_": str(1 << 31),
        "KEYS": " a  b ",
        "__SHARDINGKEY": "",
        "DLQ_ORIGIN_TOPIC": "O",
        "": "",
    }
    for born_ms in (0, -1, -(1 << 63), (1 << 63) - 1):
        found = received(stored(forged, born_ms=born_ms, store_ms=born_ms), resource("T"), "", 1)
        assert pb.Message.FromString(found.SerializeToString()) == found
        system = found.system_properties
        assert list(system.keys) == ["a", "b"] and system.message_id == "0A"
        assert system.dead_letter_queue.topic == "O" and not system.HasField("priority")
        assert not system.HasField("receipt_handle")
    for decimal in ("", "٣", "²", "1e3", " 5", "9" * 16, "9" * 5_000):
        odd = stored({"BORN_TIMESTAMP": decimal, "_SYS_MSG_PRIORITY_": decimal, "TIMER_DELIVER_MS": decimal})
        system = received(odd, resource("T"), "", 1).system_properties
        assert system.born_timestamp.ToMilliseconds() == WALL_MS and not system.HasField("priority"), decimal
    huge = stored({}, reconsume_times=(1 << 31) - 1, queue_offset=(1 << 63) - 1)
    assert received(huge, resource("T"), "", (1 << 31)).system_properties.delivery_attempt == (1 << 31) - 1
