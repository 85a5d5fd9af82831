"""Replies: pushed to the requester, stored, answered; every case in which they do not reach it."""

from pathlib import Path

import pytest

from tandemq.broker.features.replies import reply_message
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import SysFlag, decode_properties
from tests.unit.broker.harness import CLIENT, START_WALL_MS, Harness, messages_in, send_fields

REQUESTER = 7
TOPIC = "DefaultCluster_REPLY_TOPIC"
PROPERTIES = {"MSG_TYPE": "reply", "CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "client-7", "TTL": "3000"}
NOT_FOUND = "push reply message fail, channel of <client-7> not found."


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    broker = Harness(tmp_path, cluster="DefaultCluster")
    broker.open(REQUESTER)
    broker.heartbeat("", client_id="client-7", producers=["askers"], link=REQUESTER)
    return broker


def reply(broker: Harness, body: bytes = b"pong", *, code: int = Code.SEND_REPLY_MESSAGE_V2, **changes: object) -> int:
    fields = send_fields(TOPIC, 0, PROPERTIES) | changes
    return broker.send_request(code, fields, body)


def pushed(broker: Harness, link: int = REQUESTER) -> list[Command]:
    return broker.take_requests(Code.PUSH_REPLY_MESSAGE_TO_CLIENT, link=link)


def answer(broker: Harness, opaque: int) -> Command:
    found = broker.answer_to(opaque)
    assert found is not None, "no response"
    return found


def stored(broker: Harness) -> list[bytes]:
    found = broker.pull(TOPIC)
    assert found is not None
    return [message.body for message in messages_in(found)] if found.code == ResponseCode.SUCCESS else []


def test_reply_is_pushed_to_the_requester_then_stored_then_answered(broker: Harness) -> None:
    opaque = reply(broker)
    [push] = pushed(broker)
    assert (push.body, push.is_oneway) == (b"pong", False)
    properties = decode_properties(push.fields.pop("properties"))
    assert properties == PROPERTIES | {"PUSH_REPLY_TIME": str(broker.now.wall_ms)}
    assert push.fields == {
        "producerGroup": "producers",
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": str(START_WALL_MS),
        "flag": "0",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "bornHost": f"10.0.0.1:{30_000 + CLIENT}",
        "storeHost": "127.0.0.1:10911",
        "storeTimestamp": str(broker.now.wall_ms),
    }
    assert broker.answer_to(opaque) is None
    assert stored(broker) == []
    broker.reply(push, link=REQUESTER)
    found = answer(broker, opaque)
    assert (found.code, found.remark) == (ResponseCode.SUCCESS, None)
    assert (found.fields["queueId"], found.fields["queueOffset"]) == ("0", "0")
    assert len(found.fields["msgId"]) == 32
    assert (found.fields["MSG_REGION"], found.fields["TRACE_ON"]) == ("DefaultRegion", "true")
    assert stored(broker) == [b"pong"]


def test_reply_by_the_old_code_is_pushed_too(broker: Harness) -> None:
    short = send_fields(TOPIC, -1, PROPERTIES)
    names = {
        "a": "producerGroup",
        "b": "topic",
        "c": "defaultTopic",
        "d": "defaultTopicQueueNums",
        "e": "queueId",
        "f": "sysFlag",
        "g": "bornTimestamp",
        "h": "flag",
        "i": "properties",
    }
    long = {names[name]: value for name, value in short.items() if name in names}
    opaque = broker.send_request(Code.SEND_REPLY_MESSAGE, long, b"old")
    [push] = pushed(broker)
    assert push.fields["queueId"] == "-1"
    broker.reply(push, link=REQUESTER)
    assert answer(broker, opaque).fields["queueId"] == "0"


def test_reply_that_is_not_to_be_stored_is_answered_with_the_id_zero(broker: Harness) -> None:
    broker.ask(Code.UPDATE_BROKER_CONFIG, None, b"storeReplyMessageEnable=false")
    opaque = reply(broker)
    [push] = pushed(broker)
    broker.reply(push, link=REQUESTER)
    found = answer(broker, opaque)
    assert found.code == ResponseCode.SUCCESS
    assert [found.fields[name] for name in ("msgId", "queueId", "queueOffset")] == ["0", "0", "0"]
    assert stored(broker) == []


def test_compressed_reply_is_stored_with_its_mark(broker: Harness) -> None:
    flag = SysFlag.COMPRESSED | SysFlag.TRANSACTION_PREPARED
    reply(broker, f=int(flag))
    [push] = pushed(broker)
    assert push.fields["sysFlag"] == str(int(flag))
    broker.reply(push, link=REQUESTER)
    record = broker.node.store.record_at(0)
    assert record is not None
    assert int.from_bytes(record[36:40]) == SysFlag.COMPRESSED


def test_reply_without_a_requester_is_refused_and_stored(broker: Harness) -> None:
    found = answer(broker, reply(broker, i="MSG_TYPE\x01reply\x02"))
    assert (found.code, found.remark) == (1, "reply message properties[REPLY_TO_CLIENT] is null")
    assert found.fields["queueOffset"] == "0"
    assert stored(broker) == [b"pong"]


@pytest.mark.parametrize("leave", ["close", "unregister", "never"])
def test_reply_to_a_requester_that_is_not_connected_is_refused_and_stored(broker: Harness, leave: str) -> None:
    if leave == "close":
        broker.close(REQUESTER)
    else:
        broker.ask(Code.UNREGISTER_CLIENT, {"clientID": "client-7", "producerGroup": "askers"}, link=REQUESTER)
    if leave == "never":  # a consumer of that id is no producer
        broker.heartbeat("group", {"TopicA": "*"}, client_id="client-7", link=REQUESTER)
    found = answer(broker, reply(broker))
    assert (found.code, found.remark) == (1, NOT_FOUND)
    assert len(found.fields["msgId"]) == 32
    assert stored(broker) == [b"pong"]
    assert pushed(broker) == []


def test_reply_goes_to_the_newest_connection_of_a_requester(broker: Harness) -> None:
    broker.open(8)
    broker.heartbeat("", client_id="client-7", producers=["askers"], link=8)
    reply(broker)
    assert (len(pushed(broker)), len(pushed(broker, 8))) == (0, 1)
    broker.close(REQUESTER)
    reply(broker)
    assert len(pushed(broker, 8)) == 1


def test_connection_that_changes_its_id_is_no_longer_found_by_the_old_one(broker: Harness) -> None:
    broker.heartbeat("", client_id="client-8", producers=["askers"], link=REQUESTER)
    assert answer(broker, reply(broker)).remark == NOT_FOUND


@pytest.mark.parametrize("case", ["refused", "late", "gone"])
def test_reply_that_a_requester_does_not_take_is_refused_and_stored(broker: Harness, case: str) -> None:
    broker.pass_time(37)
    opaque = reply(broker)
    [push] = pushed(broker)
    if case == "refused":
        broker.reply(push, link=REQUESTER, code=1, remark="process reply message fail")
    elif case == "gone":
        broker.close(REQUESTER)
    else:
        broker.pass_time(9_999)
        assert broker.answer_to(opaque) is None
        broker.pass_time(1)
    found = answer(broker, opaque)
    assert (found.code, found.remark) == (1, "push reply message to client-7fail.")
    assert stored(broker) == [b"pong"]
    assert not len(broker.node.kernel.client_calls)


def test_reply_of_a_responder_that_left_is_still_stored(broker: Harness) -> None:
    broker.open(9)
    broker.send_request(Code.SEND_REPLY_MESSAGE_V2, send_fields(TOPIC, 0, PROPERTIES), b"pong", link=9)
    broker.close(9)
    [push] = pushed(broker)
    broker.reply(push, link=REQUESTER)
    assert stored(broker) == [b"pong"]


def test_oneway_reply_is_pushed_and_not_answered(broker: Harness) -> None:
    opaque = broker.send_request(Code.SEND_REPLY_MESSAGE_V2, send_fields(TOPIC, 0, PROPERTIES), b"o", is_oneway=True)
    [push] = pushed(broker)
    broker.reply(push, link=REQUESTER)
    assert broker.answer_to(opaque) is None
    assert stored(broker) == [b"o"]


def test_reply_is_checked_as_a_send(broker: Harness) -> None:
    found = answer(broker, reply(broker, b=""))
    assert found.code == ResponseCode.SYSTEM_ERROR
    assert found.fields["MSG_REGION"] == "DefaultRegion"
    assert answer(broker, reply(broker, e=1)).code == ResponseCode.SYSTEM_ERROR
    assert answer(broker, reply(broker, b="SCHEDULE_TOPIC_XXXX")).code == ResponseCode.NO_PERMISSION
    assert answer(broker, reply(broker, g="never")).code == ResponseCode.SYSTEM_ERROR
    big = b"x" * (broker.config.message_bytes_max + 1)
    assert answer(broker, reply(broker, big)).code == ResponseCode.MESSAGE_ILLEGAL
    assert pushed(broker) == []


def test_reply_with_properties_that_cannot_be_stored_reaches_the_requester(broker: Harness) -> None:
    text = "".join(f"{name}\x01{value}\x02" for name, value in PROPERTIES.items())
    opaque = reply(broker, i=f"{text}long\x01{'x' * 40_000}\x02")
    [push] = pushed(broker)
    broker.reply(push, link=REQUESTER)
    found = answer(broker, opaque)
    assert (found.code, found.fields["msgId"]) == (0, "0")
    assert stored(broker) == []


def test_reply_is_pushed_while_the_broker_refuses_messages(broker: Harness) -> None:
    broker.node.puts.refuse("disk full", "no space")
    opaque = reply(broker)
    [push] = pushed(broker)
    broker.reply(push, link=REQUESTER)
    assert answer(broker, opaque).fields["msgId"] == "0"
    broker.node.puts.admit("disk full")
    assert stored(broker) == []


def test_requester_that_takes_nothing_holds_up_only_its_own_replies(broker: Harness) -> None:
    broker.open(8)
    broker.heartbeat("", client_id="client-8", producers=["askers"], link=8)
    broker.outbox.waiting[REQUESTER] = reply_message.BYTES_PER_REQUESTER_MAX
    found = answer(broker, reply(broker))
    assert found.code == ResponseCode.SYSTEM_BUSY
    assert "wait for <client-7>" in (found.remark or "")
    reply(broker, i="REPLY_TO_CLIENT\x01client-8\x02")
    assert len(pushed(broker, 8)) == 1


def test_number_and_bytes_of_waiting_replies_are_limited(broker: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_message, "PENDING_PER_REQUESTER_MAX", 3)
    opaques = [reply(broker) for _ in range(4)]
    assert answer(broker, opaques.pop()).code == ResponseCode.SYSTEM_BUSY
    for push in pushed(broker):
        broker.reply(push, link=REQUESTER)
    assert {answer(broker, opaque).code for opaque in opaques} == {0}
    monkeypatch.setattr(reply_message, "PENDING_BYTES_MAX", 1)
    assert answer(broker, reply(broker)).code == ResponseCode.SYSTEM_BUSY
