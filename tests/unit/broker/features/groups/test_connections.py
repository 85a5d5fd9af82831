"""Requests of operators about connected clients."""

from pathlib import Path

import pytest

from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tests.unit.broker.harness import CLIENT, Harness


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    broker = Harness(tmp_path)
    broker.open(7)
    broker.heartbeat("group", {"TopicA": "a || b"}, producers=["makers"])
    broker.heartbeat("group", {"TopicA": "a || b"}, link=7, client_id="client-7", language="GO", version=317)
    return broker


def test_consumers_are_listed_with_their_subscriptions(broker: Harness) -> None:
    found = broker.json(Code.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "group"})
    assert found["connectionSet"] == [
        {"clientAddr": "10.0.0.1:30001", "clientId": "client-1", "language": "JAVA", "version": 409},
        {"clientAddr": "10.0.0.1:30007", "clientId": "client-7", "language": "GO", "version": 317},
    ]
    assert (found["consumeType"], found["messageModel"], found["consumeFromWhere"]) == (
        "CONSUME_PASSIVELY",
        "CLUSTERING",
        "CONSUME_FROM_LAST_OFFSET",
    )
    assert found["subscriptionTable"]["TopicA"]["subString"] == "a || b"
    broker.close(7)
    left = broker.json(Code.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "group"})
    assert len(left["connectionSet"]) == 1


def test_group_without_members_is_not_online(broker: Harness) -> None:
    answer = broker.ask(Code.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "missing"})
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE


def test_producers_are_listed_by_group_and_all_together(broker: Harness) -> None:
    found = broker.json(Code.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "makers"})
    assert [connection["clientId"] for connection in found["connectionSet"]] == ["client-1"]
    assert broker.ask(Code.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "no"}).code == ResponseCode.SYSTEM_ERROR
    heard_ms = broker.now.wall_ms
    broker.pass_time(5_000)
    assert broker.json(Code.GET_ALL_PRODUCER_INFO) == {
        "data": {
            "makers": [
                {
                    "clientId": "client-1",
                    "language": "JAVA",
                    "lastUpdateTimestamp": heard_ms,
                    "remoteIP": "10.0.0.1:30001",
                    "version": 409,
                }
            ]
        }
    }
    broker.close(CLIENT)
    broker.open(CLIENT)
    assert broker.json(Code.GET_ALL_PRODUCER_INFO) == {"data": {}}


def test_topics_and_subscription_of_a_group_are_returned(broker: Harness) -> None:
    broker.create_topic("T")
    broker.ask(Code.UPDATE_CONSUMER_OFFSET, {"consumerGroup": "group", "topic": "T", "queueId": 0, "commitOffset": 1})
    assert broker.json(Code.QUERY_TOPICS_BY_CONSUMER, {"group": "group"})["topicList"] == ["T"]
    found = broker.json(Code.QUERY_SUBSCRIPTION_BY_CONSUMER, {"group": "group", "topic": "TopicA"})
    assert found["subscriptionData"]["subString"] == "a || b"
    assert broker.json(Code.QUERY_SUBSCRIPTION_BY_CONSUMER, {"group": "group", "topic": "T"}) == {
        "group": "group",
        "topic": "T",
    }
