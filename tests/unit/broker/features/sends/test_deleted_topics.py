"""Messages that are delivered later than they were sent, to a topic that was deleted meanwhile."""

from pathlib import Path
from typing import Any

import pytest

from tandemq.broker.features.timers.service import TimedMessages
from tandemq.broker.features.transactions.service import Transactions
from tandemq.codec.record.record import decode_messages
from tandemq.codec.remoting.fastjson import dumps
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.topic import dead_letter_topic, retry_topic
from tests.unit.broker.features.transactions.producer import COMMIT, ROLLBACK, end, half
from tests.unit.broker.harness import Harness

OK = ResponseCode.SUCCESS
TOPIC = "Orders"
KINDS = ["delay", "time", "transaction", "sent back"]


def ready(path: Path, **changes: Any) -> Harness:
    broker = Harness(path, delay_levels="5s 5s", auto_create_topic=False, **changes)
    broker.create_topic(TOPIC)
    broker.pass_time(1_000)
    return broker


def delete(broker: Harness, topic: str = TOPIC) -> None:
    assert broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}).code == OK


def send(broker: Harness, kind: str) -> str:
    """Send or send back a message that is delivered later; return the topic that it is delivered to."""
    if kind == "delay":
        assert broker.send(TOPIC, b"later", DELAY="1").code == OK
    elif kind == "time":
        assert broker.send(TOPIC, b"later", TIMER_DELAY_SEC="4").code == OK
    elif kind == "transaction":
        assert half(broker, b"later", topic=TOPIC).code == OK
    else:
        broker.heartbeat("group", {TOPIC: "*"})
        sent = broker.send(TOPIC, b"later")
        log_offset = int(sent.fields["msgId"][16:], 16)
        fields = {"group": "group", "offset": log_offset, "delayLevel": 1, "originTopic": TOPIC}
        assert broker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields).code == OK
        return retry_topic("group")
    return TOPIC


def become_due(broker: Harness, kind: str) -> None:
    if kind == "transaction":
        assert end(broker, 0, COMMIT).code == OK
    broker.pass_time(8_000)


def bodies(broker: Harness, topic: str) -> list[bytes]:
    """Return what is stored in all queues of a topic."""
    store = broker.node.store
    found: list[bytes] = []
    for (name, _), queue in sorted(store.queues.items()):
        for at in range(queue.max_offset if name == topic else 0):
            record = store.record_of(queue, at)
            assert record is not None
            found += [message.body for message in decode_messages(record[1])]
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("restarts", [False, True])
def test_deleted_topic_is_not_created_by_a_message_that_becomes_due(
    tmp_path: Path, kind: str, restarts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It is stored in the queue, and is there if the topic is created again; so the next master decides the same."""
    broker = ready(tmp_path)
    topic = send(broker, kind)
    delete(broker, topic)
    if restarts:
        broker = broker.restart(clean=False)
        broker.pass_time(1_000)
    caplog.clear()
    become_due(broker, kind)

    assert broker.node.topics.get(topic) is None
    assert topic not in str(broker.json(RequestCode.GET_ALL_TOPIC_CONFIG)["topicConfigTable"])
    assert bodies(broker, topic) == [b"later"]
    assert bodies(broker, dead_letter_topic("group")) == []
    lines = [line for line in caplog.messages if "does not exist" in line]
    assert len(lines) == 1
    assert f"topic={topic} does not exist: messages=1 are stored in its queues" in lines[0]
    broker = broker.restart()
    assert broker.node.topics.get(topic) is None
    broker.create_topic(topic)
    broker.pass_time(8_000)
    assert bodies(broker, topic) == [b"later"]


def test_consumer_that_returns_gets_what_was_sent_back_for_its_deleted_retry_topic(tmp_path: Path) -> None:
    broker = ready(tmp_path)
    topic = send(broker, "sent back")
    delete(broker, topic)
    become_due(broker, "sent back")
    assert broker.node.topics.get(topic) is None
    broker.heartbeat("group", {TOPIC: "*"})
    assert broker.node.topics.get(topic) is not None
    found = broker.pull(topic, group="group")
    assert found is not None
    assert found.code == OK


def test_one_line_a_minute_is_logged_for_a_deleted_topic(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broker = ready(tmp_path)
    for _ in range(50):
        broker.send(TOPIC, b"x", DELAY="1")
    delete(broker)
    broker.pass_time(8_000)
    assert len([line for line in caplog.messages if "does not exist" in line]) == 1
    assert len(bodies(broker, TOPIC)) == 50


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
def test_metrics_do_not_return_with_messages_of_a_deleted_topic(tmp_path: Path, outcome: int) -> None:
    broker = ready(tmp_path)
    send(broker, "time")
    send(broker, "transaction")
    delete(broker)
    timers, transactions = (
        broker.node.features.find(TimedMessages).metrics,
        broker.node.features.find(Transactions).metrics,
    )
    assert timers.by_topic() == transactions.by_topic() == {TOPIC: 1}
    assert end(broker, 0, outcome).code == OK
    broker.pass_time(8_000)
    for metrics in (timers, transactions):
        assert metrics.by_topic() == {}
        assert TOPIC.encode() not in dumps(metrics.as_json())
    assert (timers.dequeued_total, transactions.commits, transactions.rollbacks) == ({}, {}, {})
