"""Requests relayed to clients: responses, timeouts, and connections that close meanwhile."""

from pathlib import Path

import pytest

from tandemq.broker.features.groups import broker_to_client
from tandemq.broker.kernel import client_requests
from tandemq.codec.remoting.fastjson import loads
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tests.unit.broker.harness import CLIENT, Harness, messages_in

CONSUMER = 7
ASK = {"consumerGroup": "group", "clientId": "client-7", "jstackEnable": True}


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    broker = Harness(tmp_path)
    broker.open(CONSUMER)
    broker.heartbeat("group", {"TopicA": "*"}, link=CONSUMER, client_id="client-7")
    return broker


def test_running_info_is_requested_from_the_client_and_returned(broker: Harness) -> None:
    asked = broker.send_request(Code.GET_CONSUMER_RUNNING_INFO, ASK)
    assert broker.answer_to(asked) is None
    [request] = broker.take_requests(Code.GET_CONSUMER_RUNNING_INFO, link=CONSUMER)
    assert not request.is_oneway
    assert request.fields == {"consumerGroup": "group", "clientId": "client-7", "jstackEnable": "true"}
    broker.reply(request, link=CONSUMER, body=b'{"jstack":"all well"}')
    answer = broker.answer_to(asked)
    assert answer is not None
    assert (answer.code, answer.body) == (ResponseCode.SUCCESS, b'{"jstack":"all well"}')


def test_refusal_of_a_client_is_returned(broker: Harness) -> None:
    asked = broker.send_request(Code.GET_CONSUMER_RUNNING_INFO, ASK)
    [request] = broker.take_requests(Code.GET_CONSUMER_RUNNING_INFO, link=CONSUMER)
    broker.reply(request, link=CONSUMER, code=ResponseCode.SYSTEM_ERROR, remark="not mine")
    answer = broker.answer_to(asked)
    assert answer is not None
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "not mine")


def test_request_to_an_offline_client_fails_at_once(broker: Harness) -> None:
    answer = broker.ask(Code.GET_CONSUMER_RUNNING_INFO, ASK | {"clientId": "missing"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "not online" in (answer.remark or "")


def test_request_to_a_client_times_out_after_ten_seconds(broker: Harness) -> None:
    broker.pass_time(37)  # nothing else is due in the same millisecond
    asked = broker.send_request(Code.GET_CONSUMER_RUNNING_INFO, ASK)
    broker.pass_time(9_999)
    assert broker.answer_to(asked) is None
    broker.pass_time(1)
    answer = broker.answer_to(asked)
    assert answer is not None
    assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT
    [request] = broker.take_requests(Code.GET_CONSUMER_RUNNING_INFO, link=CONSUMER)
    broker.reply(request, link=CONSUMER)
    assert broker.answer_to(asked) is None, "the response came too late"
    assert (CONSUMER, "no answer in time") not in broker.closes


def test_request_fails_when_the_client_disconnects(broker: Harness) -> None:
    asked = broker.send_request(Code.GET_CONSUMER_RUNNING_INFO, ASK)
    broker.close(CONSUMER)
    answer = broker.answer_to(asked)
    assert answer is not None
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert not len(broker.node.kernel.client_calls)


def test_response_for_a_closed_connection_is_dropped(broker: Harness) -> None:
    broker.send_request(Code.GET_CONSUMER_RUNNING_INFO, ASK)
    [request] = broker.take_requests(Code.GET_CONSUMER_RUNNING_INFO, link=CONSUMER)
    broker.close(CLIENT)
    turn = broker.reply(request, link=CONSUMER)
    assert CLIENT not in turn.sends


def test_response_of_another_client_is_ignored(broker: Harness) -> None:
    broker.open(8)
    asked = broker.send_request(Code.GET_CONSUMER_RUNNING_INFO, ASK)
    [request] = broker.take_requests(Code.GET_CONSUMER_RUNNING_INFO, link=CONSUMER)
    broker.reply(request, link=8, body=b"forged")
    assert broker.answer_to(asked) is None


def test_waiting_requests_are_limited(broker: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_requests, "WAITING_MAX", 20)
    for _ in range(20):
        broker.send_request(Code.GET_CONSUMER_RUNNING_INFO, ASK)
    answer = broker.ask(Code.GET_CONSUMER_RUNNING_INFO, ASK)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "wait already" in (answer.remark or "")
    broker.pass_time(10_000)
    assert not len(broker.node.kernel.client_calls)


# Consume a message directly.


def test_message_is_sent_to_a_client_to_consume_directly(broker: Harness) -> None:
    sent = broker.send("TopicA", b"again", TAGS="a")
    fields = {"consumerGroup": "group", "clientId": "client-7", "msgId": sent.fields["msgId"], "topic": "TopicA"}
    asked = broker.send_request(Code.CONSUME_MESSAGE_DIRECTLY, fields)
    [request] = broker.take_requests(Code.CONSUME_MESSAGE_DIRECTLY, link=CONSUMER)
    assert [message.body for message in messages_in(request)] == [b"again"]
    assert request.fields["brokerName"] == "broker-a"
    assert (request.fields["topicSysFlag"], request.fields["groupSysFlag"]) == ("0", "0")
    broker.reply(request, link=CONSUMER, body=b'{"consumeResult":"CR_SUCCESS"}')
    answer = broker.answer_to(asked)
    assert answer is not None
    assert answer.body == b'{"consumeResult":"CR_SUCCESS"}'


@pytest.mark.parametrize(
    "message_id", ["", "zz", "7F00000100002A9F00000000000F0000", "7F00000100002A9FFFFFFFFFFFFFFFFF"]
)
def test_missing_message_is_not_sent_to_a_client(broker: Harness, message_id: str) -> None:
    broker.send("TopicA")
    fields = {"consumerGroup": "group", "clientId": "client-7", "msgId": message_id}
    answer = broker.ask(Code.CONSUME_MESSAGE_DIRECTLY, fields)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert broker.take_requests(Code.CONSUME_MESSAGE_DIRECTLY, link=CONSUMER) == []


# Offsets reported by clients.

QUEUE = '{"brokerName":"broker-a","queueId":0,"topic":"TopicA"}'


def test_offsets_of_all_members_are_collected(broker: Harness) -> None:
    broker.open(8)
    broker.open(9)
    for link in (8, 9):
        broker.heartbeat("group", {"TopicA": "*"}, link=link, client_id=f"client-{link}")
    asked = broker.send_request(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "TopicA", "group": "group"})
    bodies = {7: f'{{"messageQueueTable":{{{QUEUE}:12}}}}', 8: "garbage"}
    for link, body in bodies.items():
        [request] = broker.take_requests(Code.GET_CONSUMER_STATUS_FROM_CLIENT, link=link)
        assert request.fields == {"topic": "TopicA", "group": "group"}
        broker.reply(request, link=link, body=body.encode())
    assert broker.answer_to(asked) is None, "one member has not responded yet"
    broker.pass_time(5_000)
    answer = broker.answer_to(asked)
    assert answer is not None
    assert answer.body == f'{{"consumerTable":{{"client-7":{{{QUEUE}:12}}}}}}'.encode()
    assert loads(answer.body)["consumerTable"] == {"client-7": {QUEUE: 12}}


def test_offsets_that_are_too_large_together_are_left_out(broker: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group may have 10,000 members, and each may answer with the largest frame."""
    monkeypatch.setattr(broker_to_client, "STATUS_BYTES_MAX", 1_000)
    broker.open(8)
    broker.heartbeat("group", {"TopicA": "*"}, link=8, client_id="client-8")
    asked = broker.send_request(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "TopicA", "group": "group"})
    for link, padding in ((7, 0), (8, 1_000)):
        [request] = broker.take_requests(Code.GET_CONSUMER_STATUS_FROM_CLIENT, link=link)
        body = f'{{"messageQueueTable":{{{QUEUE}:12}},"padding":"{"x" * padding}"}}'
        broker.reply(request, link=link, body=body.encode())
    answer = broker.answer_to(asked)
    assert answer is not None
    assert list(loads(answer.body)["consumerTable"]) == ["client-7"]


def test_offsets_of_one_member_are_requested_only_from_it(broker: Harness) -> None:
    broker.open(8)
    broker.heartbeat("group", {"TopicA": "*"}, link=8, client_id="client-8")
    fields = {"topic": "TopicA", "group": "group", "clientAddr": "client-8"}
    broker.send_request(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, fields)
    assert broker.take_requests(Code.GET_CONSUMER_STATUS_FROM_CLIENT, link=CONSUMER) == []
    assert len(broker.take_requests(Code.GET_CONSUMER_STATUS_FROM_CLIENT, link=8)) == 1
    unknown = broker.json(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, fields | {"clientAddr": "missing"})
    assert unknown == {"consumerTable": {}}


def test_offsets_of_an_offline_group_are_refused(broker: Harness) -> None:
    answer = broker.ask(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "TopicA", "group": "missing"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
