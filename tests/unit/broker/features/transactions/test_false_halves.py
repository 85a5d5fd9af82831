"""Records that look like half messages, and are none: they cannot be resumed, and end no transaction."""

from pathlib import Path

import pytest

from tandemq.broker.kernel.connection import pack_host
from tandemq.codec.record.record import HEAD_V4, encode_record, message_id
from tandemq.model.codes import RequestCode
from tandemq.model.message import encode_properties
from tandemq.model.topic import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from tests.unit.broker.features.transactions.producer import (
    COMMIT,
    GROUP,
    OK,
    at_offset,
    checking,
    delivered,
    end,
    half,
)
from tests.unit.broker.features.transactions.test_transactions import append_as_java
from tests.unit.broker.harness import send_fields


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "ReadOnly"])
def test_message_that_only_looks_like_a_half_message_cannot_be_resumed(tmp_path: Path, topic: str) -> None:
    """Else its commit would write to a topic that accepts no messages."""
    broker = checking(tmp_path)
    properties = {"REAL_TOPIC": topic, "REAL_QID": "0", "PGROUP": GROUP, "UNIQ_KEY": "K1"}
    sent = broker.ask(RequestCode.SEND_MESSAGE_V2, send_fields("TopicA", 1, properties), b"x")
    answer = broker.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": sent.fields["msgId"]})
    assert (answer.code, "is a message of TopicA, no half message" in (answer.remark or "")) == (1, True)
    assert (HALF_TOPIC, 0) not in broker.node.store.queues


@pytest.mark.parametrize("topic", [HALF_TOPIC, CHECK_MAX_TIME_TOPIC])
def test_bytes_in_a_body_that_look_like_a_half_message_are_none(tmp_path: Path, topic: str) -> None:
    """Else a producer could write to any topic, and end the transactions of others."""
    broker = checking(tmp_path)
    half(broker, b"of another producer")
    log_offset = broker.node.store.log.written_end + HEAD_V4.size
    properties = {"REAL_TOPIC": "SCHEDULE_TOPIC_XXXX", "REAL_QID": "0", "PGROUP": GROUP, "UNIQ_KEY": "K1"}
    body = encode_record(
        topic=topic.encode(),
        queue_id=0,
        queue_offset=0,
        log_offset=log_offset,
        body=b"evil",
        properties=encode_properties(properties).encode(),
        flag=0,
        sys_flag=0,
        born_ms=broker.now.wall_ms,
        born_host=pack_host("10.0.0.9:1"),
        store_ms=broker.now.wall_ms,
        store_host=pack_host("127.0.0.1:10911"),
    )
    broker.ask(RequestCode.SEND_MESSAGE_V2, send_fields("TopicA", 1), body)
    assert broker.node.store.record_at(log_offset) == body
    if topic == HALF_TOPIC:
        refused = end(broker, 0, COMMIT, commitLogOffset=log_offset)
    else:
        wanted = {"msgId": message_id(pack_host("127.0.0.1:10911"), log_offset)}
        refused = broker.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, wanted)
    assert refused.code == 1
    assert ("SCHEDULE_TOPIC_XXXX", 0) not in broker.node.store.queues
    assert broker.node.store.queues[HALF_TOPIC, 0].max_offset == 1
    assert end(broker, 0, COMMIT).code == OK
    assert delivered(broker)[-1].body == b"of another producer"


def test_parked_message_for_a_queue_that_no_topic_can_have_cannot_be_resumed(tmp_path: Path) -> None:
    broker = checking(tmp_path)
    half(broker)
    like = at_offset(broker, HALF_TOPIC, 0)
    append_as_java(broker, like, CHECK_MAX_TIME_TOPIC, b"x", **like.properties | {"REAL_QID": str(1 << 31)})
    parked = at_offset(broker, CHECK_MAX_TIME_TOPIC, 0)
    answer = broker.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": parked.offset_message_id})
    assert (answer.code, "is no half message" in (answer.remark or "")) == (1, True)
