"""Malicious and malformed requests: each is answered or closes its connection, and the broker serves all others."""

import logging
import random
from collections.abc import Callable
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from tandemq.boundary import LinkKind
from tandemq.broker.kernel.feature import BODY_BYTES_MAX
from tandemq.codec.ha import HELLO_MARK
from tandemq.codec.remoting.fastjson import dumps
from tandemq.codec.remoting.frame import encode_command
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.topic import TopicConfig
from tests.spec import spec
from tests.unit.broker.harness import Harness, messages_in, send_fields

OTHER = 2


def send_with(broker: Harness, body: bytes = b"x", **fields: Any) -> Command:
    return broker.ask(RequestCode.SEND_MESSAGE_V2, send_fields("TopicA") | fields, body)


def raw_header(broker: Harness, header: bytes, body: bytes = b"") -> list[str]:
    """Send a frame with this header on connection 2; return the reasons for closing that connection."""
    before = len(broker.closes)
    broker.open(OTHER)
    broker.turn([(OTHER, pack(">II", 4 + len(header) + len(body), len(header)) + header + body)])
    return [reason for link, reason in broker.closes[before:] if link == OTHER]


def assert_serves(broker: Harness) -> None:
    """Assert that another client is served as before."""
    assert broker.send("TopicB", b"still here").code == ResponseCode.SUCCESS
    broker.pass_time(30_000)
    found = broker.pull("TopicB")
    assert found is not None
    assert messages_in(found)[-1].body == b"still here"


@pytest.mark.parametrize(
    "fields",
    [
        {"h": 1 << 40},
        {"h": -(1 << 40)},
        {"f": 1 << 40},
        {"g": 1 << 70},
        {"j": 1 << 40},
        {"e": 1 << 40},
        {"d": 1 << 80},
        {"h": "1e3"},
        {"h": ""},
        {"i": "DELAY\x01²\x02"},
        {"i": "DELAY\x01" + "9" * 5000 + "\x02"},
        {"i": "DELAY\x01-1\x02"},
        {"i": 'UNIQ_KEY\x01"quoted\\\x02'},
        {"i": "UNIQ_KEY\x01line\nfeed\x03\x02"},
        {"i": "A\x01" + "b" * 32_000 + "\x02"},
        {"i": "A\x01" + "b" * 40_000 + "\x02"},
        {"i": "\x02\x02\x01\x01\x02"},
        {"b": "../../etc"},
        {"b": "a/b"},
        {"b": ""},
        {"b": "%RETRY%" + "x" * 300},
    ],
    ids=str,
)
def test_send_with_odd_header_fields_is_answered(tmp_path: Path, fields: dict[str, Any]) -> None:
    broker = Harness(tmp_path, message_bytes_max=100_000, segment_bytes=256 * 1024)
    broker.send("TopicA")
    answer = send_with(broker, **fields)
    assert answer.code in set(ResponseCode)
    assert_serves(broker)


@pytest.mark.parametrize(
    "fields",
    [
        {"h": 1 << 40},
        {"h": -(1 << 40)},
        {"f": 1 << 40},
        {"g": 1 << 70},
        {"g": 10**18},
        {"e": "0003"},
        {"e": 10**9},
        {"i": "UNIQ_KEY\x01" + "K" * 3_000 + "\x02"},
        {"i": "UNIQ_KEY\x01" + "K" * 65 + "\x02TAGS\x01t\x02"},
    ],
    ids=lambda fields: str(fields)[:40],
)
def test_ordinary_send_with_odd_fields_is_answered_each_time(tmp_path: Path, fields: dict[str, Any]) -> None:
    """With a unique key, so that the fast path is tried, and header patterns are made where possible."""
    broker = Harness(tmp_path, message_bytes_max=100_000, segment_bytes=256 * 1024)
    for _ in range(4):
        broker.send("TopicA", UNIQ_KEY="K1")
        answer = send_with(broker, **{"i": "UNIQ_KEY\x01K1\x02", **fields})
        assert answer.code in set(ResponseCode)
    assert_serves(broker)


@pytest.mark.parametrize("opaque", [1 << 31, -(1 << 31) - 1, 10**30, 10**400])
def test_send_with_an_invalid_opaque_affects_no_other_client(tmp_path: Path, opaque: int) -> None:
    broker = Harness(tmp_path)
    fields = b'{"b":"TopicA","e":"0","f":"0","g":"1","h":"0","i":"UNIQ_KEY\\u0001K\\u0002"}'
    header = b'{"code":310,"extFields":%b,"opaque":%b}'
    broker.send("TopicA")
    raw_header(broker, header % (fields, str(opaque).encode()))
    assert_serves(broker)


def test_unique_key_with_quotes_is_returned_unchanged(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA")
    answer = send_with(broker, i='UNIQ_KEY\x01a"b\\c\x02')
    assert answer.fields["transactionId"] == 'a"b\\c'


def test_message_larger_than_a_log_file_is_refused(tmp_path: Path) -> None:
    broker = Harness(tmp_path, segment_bytes=4096, message_bytes_max=10_000)
    broker.send("TopicA")
    assert send_with(broker, bytes(9_000)).code == ResponseCode.MESSAGE_ILLEGAL
    assert_serves(broker)


def test_random_queue_of_a_topic_without_queues_is_refused(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.node.topics.put(TopicConfig("TopicA", 0, 0, 6), 0)
    assert send_with(broker, e=-1).code == ResponseCode.NO_PERMISSION
    assert_serves(broker)


def test_delayed_message_with_a_body_that_cannot_be_inflated_is_delivered(tmp_path: Path) -> None:
    """The broker does not read bodies: a body that a producer marks as compressed is delivered unchanged."""
    broker = Harness(tmp_path)
    broker.send("TopicA")
    assert send_with(broker, b"no zlib", f=1, i="DELAY\x011\x02").code == ResponseCode.SUCCESS
    broker.pass_time(3_000)
    found = broker.pull("TopicA", 1)
    assert found is not None
    assert found.code == ResponseCode.SUCCESS
    assert b"no zlib" in found.body


def test_message_with_the_most_deliveries_goes_to_the_dead_letters(tmp_path: Path) -> None:
    """A producer may set any number of deliveries; consumers must be able to send the message back nevertheless."""
    broker = Harness(tmp_path)
    sent = send_with(broker, j=(1 << 31) - 1)
    fields = {"offset": int(sent.fields["msgId"][16:], 16), "group": "group", "delayLevel": 0, "originMsgId": ""}
    assert broker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields).code == ResponseCode.SUCCESS
    found = broker.pull("%DLQ%group")
    assert found is not None
    assert [message.reconsume_times for message in messages_in(found)] == [(1 << 31) - 1]


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (RequestCode.LOCK_BATCH_MQ, b'{"clientId":"c","consumerGroup":"g","mqSet":[{"queueId":"abc","topic":"t"}]}'),
        (RequestCode.LOCK_BATCH_MQ, b'{"clientId":"c","consumerGroup":"g","mqSet":[{"queueId":[1],"topic":"t"}]}'),
        (RequestCode.LOCK_BATCH_MQ, b'{"clientId":"c","consumerGroup":"g","mqSet":[{"topic":"t"}]}'),
        (RequestCode.LOCK_BATCH_MQ, b'{"clientId":"c","consumerGroup":"g","mqSet":5}'),
        (RequestCode.UNLOCK_BATCH_MQ, b'{"mqSet":[3]}'),
        (RequestCode.HEART_BEAT, b"["),
        (RequestCode.HEART_BEAT, b"[]"),
        (RequestCode.HEART_BEAT, b"null"),
        (RequestCode.HEART_BEAT, b'{"clientID":"\xff"}'),
        (RequestCode.HEART_BEAT, b'{"clientID":5,"consumerDataSet":{"a":1}}'),
        (RequestCode.HEART_BEAT, b"[" * 50_000 + b"]" * 50_000),
        (RequestCode.HEART_BEAT, b'{"a":' * 30_000 + b"1" + b"}" * 30_000),
        (RequestCode.CHECK_CLIENT_CONFIG, b"{"),
        (RequestCode.SEND_BATCH_MESSAGE, b"\0" * 40),
    ],
)
def test_request_with_an_odd_body_is_answered(tmp_path: Path, code: RequestCode, body: bytes) -> None:
    broker = Harness(tmp_path)
    assert broker.ask(code, send_fields("TopicA") | {"m": "true"}, body).code != ResponseCode.SUCCESS
    assert_serves(broker)


@pytest.mark.parametrize(
    "header",
    [
        b'{"code":34,"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"code":310,"opaque":1,"extFields":' + b'{"a":' * 30_000 + b"1" + b"}" * 30_000 + b"}",
        b'{"code":11,"opaque":1,"extFields":' + b'{"a":' * 30_000 + b"1" + b"}" * 30_000 + b"}",
        b'{"code":310,"extFields":{"i":"\\ud800"}}',
        b'{"code":310,"extFields":{"i":"\xff\xfe"}}',
        b'{"code":',
        b"\x16\x03\x01\x02\x00",
    ],
    ids=["deep", "deep send", "deep pull", "half a surrogate", "no UTF-8", "cut off", "TLS"],
)
def test_invalid_header_closes_only_its_connection(tmp_path: Path, header: bytes) -> None:
    broker = Harness(tmp_path, frame_bytes_max=1 << 20)
    assert len(raw_header(broker, header)) == 1
    assert_serves(broker)


@pytest.mark.parametrize("length", [0, 3, 1 << 20, (1 << 31) - 1, (1 << 32) - 1])
def test_frame_of_invalid_length_closes_only_its_connection(tmp_path: Path, length: int) -> None:
    broker = Harness(tmp_path)
    broker.open(OTHER)
    broker.turn([(OTHER, pack(">II", length, 0))])
    assert [link for link, _ in broker.closes] == [OTHER]
    assert_serves(broker)


def test_unknown_header_form_closes_only_its_connection(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.open(OTHER)
    broker.turn([(OTHER, pack(">II", 8, 7 << 24 | 4) + b"abcd")])
    assert [link for link, _ in broker.closes] == [OTHER]
    assert_serves(broker)


FIELD_NAMES = [
    "topic",
    "consumerGroup",
    "group",
    "queueId",
    "queueOffset",
    "maxMsgNums",
    "sysFlag",
    "commitOffset",
    "suspendTimeoutMillis",
    "subscription",
    "subVersion",
    "expressionType",
    "offset",
    "delayLevel",
    "key",
    "maxNum",
    "beginTimestamp",
    "endTimestamp",
    "timestamp",
    "boundaryType",
    "clientID",
    "producerGroup",
    "a",
    "b",
    "c",
    "d",
    "e",
    "f",
    "g",
    "h",
    "i",
    "j",
    "k",
    "l",
    "m",
]
FIELD_VALUES = [
    "TopicA",
    "0",
    "1",
    "-1",
    "",
    "x",
    "true",
    "2147483648",
    "9223372036854775808",
    "-9223372036854775808",
    "TBW102",
    "*",
    "a||b",
    "%RETRY%g",
    "KEYS\x01k\x02",
    "nan",
    "1e9",
    "\x00",
    "é",
    "4",
]


def test_every_request_with_random_fields_is_answered(tmp_path: Path) -> None:
    """Any content of header fields and body leaves the broker running and serving."""
    broker = Harness(tmp_path)
    broker.send("TopicA")
    dice = random.Random(7)
    bodies: list[Callable[[], bytes]] = [
        lambda: b"",
        lambda: dice.randbytes(dice.randrange(60)),
        lambda: dumps({"clientID": "c", "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [None]}]}),
        lambda: dumps({"a": [1, 2, {"b": None}]}),
    ]
    skipped = _stopping_codes()
    for code in list(RequestCode):
        if code in skipped:
            continue
        for _ in range(12):
            fields: dict[str, Any] = {
                name: dice.choice(FIELD_VALUES) for name in dice.sample(FIELD_NAMES, dice.randrange(len(FIELD_NAMES)))
            }
            command = Command(code, 5, fields=fields, body=dice.choice(bodies)())
            link = dice.randrange(10, 1 << 30)
            broker.open(link)
            broker.turn([(link, encode_command(command))])
            broker.close(link)
    assert_serves(broker)


def _stopping_codes() -> set[int]:
    """Return the requests by which an operator changes the broker's behaviour, which would look like a fault later."""
    return {RequestCode.UPDATE_BROKER_CONFIG, RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.WIPE_WRITE_PERM_OF_BROKER}


@spec("G03")
def test_silent_connection_is_closed_after_its_idle_time(tmp_path: Path) -> None:
    broker = Harness(tmp_path, connection_idle_ms=60_000)
    broker.open(OTHER)
    broker.pass_time(55_000)
    broker.heartbeat("group")
    assert broker.closes == []
    broker.pass_time(20_000)
    assert [link for link, _ in broker.closes] == [OTHER]


def test_slow_loris_buffers_at_most_one_frame_until_its_connection_closes(tmp_path: Path) -> None:
    """A frame that arrives byte by byte delays no other client, and is dropped with its connection."""
    broker = Harness(tmp_path)
    broker.open(OTHER)
    frame = encode_command(Command(RequestCode.GET_ALL_TOPIC_CONFIG, 9))
    for byte in frame[:-1]:
        broker.turn([(OTHER, bytes([byte]))])
        assert broker.inbox[OTHER] == []
    assert_serves(broker)
    broker.turn([(OTHER, frame[-1:])])
    assert [answer.opaque for answer in broker.inbox[OTHER]] == [9]


def test_partial_frames_of_many_connections_share_one_budget_and_others_are_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Harness(tmp_path, unfinished_bytes_max=1 << 20)
    begun = pack(">II", 200 * 1024, 10) + bytes(100 * 1024)
    with caplog.at_level(logging.WARNING):
        for link in range(10, 60):
            broker.open(link)
            broker.turn([(link, begun)])
            assert broker.node.kernel.partial_frames.total <= 1 << 20
            for number in {number for number, _ in broker.closes} & broker.node.links.keys():
                broker.close(number)
    assert [link for link, _ in broker.closes] == list(range(10, 10 + len(broker.closes))), "the oldest first"
    assert 40 <= len(broker.closes) < 50
    assert sum("unfinishedFramesMax" in record.message for record in caplog.records) == 1, "once per address and minute"
    assert_serves(broker)
    for link in broker.node.links.copy():
        broker.close(link)
    assert broker.node.kernel.partial_frames.total == 0


def test_partial_hellos_on_the_replication_port_count_as_partial_frames(tmp_path: Path) -> None:
    broker = Harness(tmp_path, unfinished_bytes_max=1 << 20)
    hello = HELLO_MARK + pack(">i", 1 << 20) + bytes(200 * 1024)
    for link in range(10, 20):
        broker.open(link, LinkKind.HA_MASTER)
        broker.turn([(link, hello)])
        for number in {number for number, _ in broker.closes} & broker.node.replication.masters.sessions.keys():
            broker.close(number)
    assert [link for link, _ in broker.closes] == list(range(10, 10 + len(broker.closes))), "the oldest first"
    assert 4 <= len(broker.closes) < 10
    assert_serves(broker)
    for link in list(broker.node.replication.masters.sessions):
        broker.close(link)
    assert broker.node.kernel.partial_frames.total == 0


def test_incomplete_frame_closes_its_connection_although_bytes_still_arrive(tmp_path: Path) -> None:
    broker = Harness(tmp_path, connection_idle_ms=60_000)
    broker.open(OTHER)
    broker.turn([(OTHER, pack(">II", 200 * 1024, 10))])
    for _ in range(7):
        broker.pass_time(10_000)
        broker.turn([(OTHER, b"x")])
        broker.heartbeat("group")
    assert broker.closes == [(OTHER, "partial frame")]
    assert_serves(broker)


def test_nothing_more_is_read_from_a_connection_that_is_closed_in_this_turn(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA")
    broker.open(OTHER)
    fields = {name: str(value) for name, value in send_fields("TopicA").items()}
    later = encode_command(Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=b"late", opaque=9))
    broker.turn([(OTHER, pack(">II", 6, 2) + b"{]"), (OTHER, later), (OTHER, later)])
    assert [link for link, _ in broker.closes] == [OTHER], "closed once"
    assert broker.answer_to(9, link=OTHER) is None
    found = broker.pull("TopicA")
    assert found is not None
    assert len(messages_in(found)) == 1


@pytest.mark.parametrize(
    ("code", "size"),
    [
        (RequestCode.CHECK_CLIENT_CONFIG, 256 << 10),
        (RequestCode.LOCK_BATCH_MQ, 1 << 20),
        (RequestCode.UNLOCK_BATCH_MQ, 1 << 20),
        (RequestCode.HEART_BEAT, BODY_BYTES_MAX),
        (RequestCode.BATCH_ACK_MESSAGE, BODY_BYTES_MAX),
    ],
)
def test_body_beyond_the_limit_of_its_request_is_refused_unread(tmp_path: Path, code: RequestCode, size: int) -> None:
    broker = Harness(tmp_path, frame_bytes_max=16 << 20)
    answer = broker.ask(code, None, b"[" * (size + 1))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert f"the body has {size + 1} bytes, at most {size} are allowed" == answer.remark
    assert "JSON" in (broker.ask(code, None, b"[").remark or "")
