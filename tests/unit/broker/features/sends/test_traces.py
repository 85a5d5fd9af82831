"""What a broker with a topic for message traces stores with messages, and answers."""

from pathlib import Path

import pytest

from lab.samples import tiny
from tandemq.codec.record.record import BatchPart, encode_batch
from tandemq.errors import ConfigError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import StoredMessage
from tandemq.model.topic import TRACE_TOPIC
from tests.unit.broker.harness import Harness, messages_in, send_fields

REGION = {"MSG_REGION": "north", "TRACE_ON": "true"}


def stored(broker: Harness, answer: Command) -> list[StoredMessage]:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    ids = answer.fields["msgId"].split(",")
    found = [broker.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": int(one[16:], 16)}) for one in ids]
    return [message for record in found for message in messages_in(record)]


def traced(message: StoredMessage) -> dict[str, str]:
    return {name: value for name, value in message.properties.items() if name in REGION}


def test_trace_topic_is_created_at_the_start(tmp_path: Path) -> None:
    broker = Harness(tmp_path, trace_topic_enable=True)
    topic = broker.node.topics.get(TRACE_TOPIC)
    assert topic is not None
    assert (topic.config.read_queue_nums, topic.config.write_queue_nums, topic.config.perm) == (1, 1, 6)
    other = Harness(tmp_path / "other", trace_topic_enable=True, trace_topic="Traces")
    assert other.node.topics.get("Traces") is not None
    assert other.node.topics.get(TRACE_TOPIC) is None
    deleted = other.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Traces"})
    assert deleted.remark == "The topic[Traces] is conflict with system topic."


@pytest.mark.parametrize("is_second", [False, True])
def test_messages_are_stored_with_region_and_switch(tmp_path: Path, is_second: bool) -> None:
    broker = Harness(tmp_path, trace_topic_enable=True, region="north")
    if is_second:
        broker.send("T")  # the first one creates the topic, later ones are taken by the engine
    [message] = stored(broker, broker.send("T"))
    assert traced(message) == REGION
    fields = send_fields("T", 0, {"MSG_REGION": "south", "TRACE_ON": "false", "KEYS": "k"})
    [message] = stored(broker, broker.ask(RequestCode.SEND_MESSAGE_V2, fields, b"x"))
    assert traced(message) == REGION
    parts = encode_batch([BatchPart(0, b"a", b"KEYS\x01k\x02"), BatchPart(0, b"b", b"")])
    fields = send_fields("T", 0, {"MSG_REGION": "south"}) | {"m": "true"}
    batch = stored(broker, broker.ask(RequestCode.SEND_BATCH_MESSAGE, fields, parts))
    assert [traced(message) for message in batch] == [REGION, REGION]


def test_region_takes_39_bytes_of_a_record_as_in_rocketmq_5_and_none_without_a_trace_topic(tmp_path: Path) -> None:
    sizes = []
    for has_topic in (False, True):
        broker = Harness(tmp_path / str(has_topic), trace_topic_enable=has_topic)
        broker.send("T")
        [message] = stored(broker, broker.send("T"))
        sizes.append(message.size)
        assert traced(message) == ({"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"} if has_topic else {})
    assert sizes[1] - sizes[0] == len("MSG_REGION_DefaultRegion_TRACE_ON_true_")


def test_region_is_stored_once_the_first_trace_has_created_the_topic(tmp_path: Path) -> None:
    broker = Harness(tmp_path, region="north")
    broker.send("T")
    [before] = stored(broker, broker.send("T"))
    broker.send(TRACE_TOPIC)
    [after] = stored(broker, broker.send("T"))
    assert (traced(before), traced(after)) == ({}, REGION)


def test_switch_off_is_answered_and_stored_while_the_broker_runs(tmp_path: Path) -> None:
    broker = Harness(tmp_path, trace_topic_enable=True, region="north")
    broker.send("T")
    changed = broker.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"traceOn=false")
    assert changed.code == ResponseCode.SUCCESS, changed.remark
    for is_binary in (False, True):
        answer = broker.ask(RequestCode.SEND_MESSAGE_V2, send_fields("T", 0), b"x", binary=is_binary)
        assert answer.fields["TRACE_ON"] == "false"
        [message] = stored(broker, answer)
        assert traced(message) == {"MSG_REGION": "north", "TRACE_ON": "false"}


@pytest.mark.parametrize("name", ["a b", "SCHEDULE_TOPIC_XXXX", ""])
def test_trace_topic_that_nobody_may_send_to_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="msgTraceTopicName: "):
        tiny(trace_topic=name)
