"""Requests of the C++ client, byte for byte: enums as their ordinals, numbers as strings, missing fields.

Source: apache/rocketmq-client-cpp, HeartbeatData.h, SubscriptionData.cpp, CommandHeader.cpp, RemotingCommand.cpp.
"""

from pathlib import Path

import pytest

from tandemq.codec.remoting.fastjson import loads
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tests.unit.broker.harness import CLIENT, Harness, messages_in

HEARTBEAT = (
    b'{"clientID":"10.0.0.2@4711","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,"groupName":"cpp",'
    b'"messageModel":1,"subscriptionDataSet":[{"subString":"*","subVersion":"1700000000000","topic":"%RETRY%cpp"},'
    b'{"codeSet":[0],"subString":"red","subVersion":"1700000000000","tagsSet":["red"],"topic":"TopicA"}]}],'
    b'"producerDataSet":[{"groupName":"CLIENT_INNER_PRODUCER"}]}\n'
)
NO_CREDENTIALS = '"AccessKey":"","OnsChannel":"","Signature":""'


def ask(broker: Harness, code: int, fields: str = "", body: bytes = b"") -> Command:
    """Send a request as the C++ client encodes it: the header has empty credentials and ends with a line feed."""
    header = (
        f'{{"code":{code},"extFields":{{{NO_CREDENTIALS}{fields}}},"flag":0,"language":"CPP","opaque":9,"remark":"",'
        '"version":333}\n'
    ).encode()
    frame = (4 + len(header) + len(body)).to_bytes(4) + len(header).to_bytes(4) + header + body
    broker.turn([(CLIENT, frame)])
    answer = broker.answer_to(9)
    assert answer is not None
    return answer


def pull(broker: Harness, flags: int, subscription: str) -> Command:
    fields = (
        f',"commitOffset":"0","consumerGroup":"cpp","maxMsgNums":32,"queueId":0,"queueOffset":"0",'
        f'"subVersion":"1700000000000","subscription":"{subscription}","suspendTimeoutMillis":"15000","sysFlag":{flags},'
        '"topic":"TopicA"'
    )
    return ask(broker, Code.PULL_MESSAGE, fields)


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    """Return a broker whose TopicA has a message with the tag red and one with the tag blue."""
    broker = Harness(tmp_path)
    broker.send("TopicA", b"one", TAGS="red")
    broker.send("TopicA", b"two", TAGS="blue")
    return broker


@pytest.mark.parametrize(("flags", "subscription"), [(0, ""), (4, "red")])
def test_cpp_client_joins_its_group_and_pulls_messages(broker: Harness, flags: int, subscription: str) -> None:
    heartbeat = ask(broker, Code.HEART_BEAT, body=HEARTBEAT)
    assert (heartbeat.code, heartbeat.remark) == (ResponseCode.SUCCESS, None)
    members = ask(broker, Code.GET_CONSUMER_LIST_BY_GROUP, ',"consumerGroup":"cpp"')
    assert loads(members.body) == {"consumerIdList": ["10.0.0.2@4711"]}
    answer = pull(broker, flags, subscription)
    assert answer.code == ResponseCode.SUCCESS
    assert [message.body for message in messages_in(answer)] == [b"one"]


def test_operators_see_a_cpp_consumer_with_the_names_of_its_enums(broker: Harness) -> None:
    ask(broker, Code.HEART_BEAT, body=HEARTBEAT)
    reported = broker.json(Code.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "cpp"})
    assert reported["consumeType"] == "CONSUME_PASSIVELY"
    assert reported["messageModel"] == "CLUSTERING"
    assert reported["consumeFromWhere"] == "CONSUME_FROM_LAST_OFFSET"
    assert [item["language"] for item in reported["connectionSet"]] == ["CPP"]


def test_cpp_client_locks_a_queue_and_sends_a_message_back(broker: Harness) -> None:
    ask(broker, Code.HEART_BEAT, body=HEARTBEAT)
    body = (
        b'{"clientId":"10.0.0.2@4711","consumerGroup":"cpp",'
        b'"mqSet":[{"brokerName":"broker-a","queueId":0,"topic":"TopicA"}]}\n'
    )
    locked = loads(ask(broker, Code.LOCK_BATCH_MQ, body=body).body)
    assert locked == {"lockOKMQSet": [{"brokerName": "broker-a", "queueId": 0, "topic": "TopicA"}]}
    [first] = messages_in(pull(broker, 4, "red"))
    fields = f',"delayLevel":0,"group":"cpp","maxReconsumeTimes":16,"offset":"{first.log_offset}","unitMode":"0"'
    assert ask(broker, Code.CONSUMER_SEND_MSG_BACK, fields).code == ResponseCode.SUCCESS
