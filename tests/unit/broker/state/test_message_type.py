"""Enforcement of the attribute `message.type`: off by default, as in Java's broker; else messages of other types are
refused.
"""

from pathlib import Path

import pytest

from tandemq.broker.state.message_type import message_type
from tandemq.codec.record.record import BatchPart, encode_batch
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.message import encode_properties
from tests.unit.broker.harness import Harness, send_fields

PROPERTIES = {
    "NORMAL": {"TAGS": "t"},
    "FIFO": {"__SHARDINGKEY": "k"},
    "DELAY": {"DELAY": "2", "__SHARDINGKEY": "k"},
    "TRANSACTION": {"TRAN_MSG": "true", "DELAY": "1"},
}


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    return Harness(tmp_path, message_type_check=True)


def create(broker: Harness, topic: str, kind: str = "") -> None:
    fields = {"topic": topic, "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
    if kind:
        fields["attributes"] = f"+message.type={kind}"
    answer = broker.ask(Code.UPDATE_AND_CREATE_TOPIC, fields)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def refused(broker: Harness, topic: str) -> set[str]:
    """Send a message of each type; return the types that are refused for their type."""
    answers = {
        kind: broker.ask(Code.SEND_MESSAGE_V2, send_fields(topic, 0, properties), b"body")
        for kind, properties in PROPERTIES.items()
    }
    return {kind for kind, answer in answers.items() if "message.type" in (answer.remark or "")}


@pytest.mark.parametrize("kind", ["NORMAL", "FIFO", "DELAY", "TRANSACTION"])
def test_topic_takes_messages_of_its_type_only(broker: Harness, kind: str) -> None:
    create(broker, "TopicA", kind)
    assert refused(broker, "TopicA") == set(PROPERTIES) - {kind}


def test_topic_without_the_attribute_is_normal_and_mixed_ones_take_all(broker: Harness) -> None:
    create(broker, "TopicA")
    assert refused(broker, "TopicA") == {"FIFO", "DELAY", "TRANSACTION"}
    assert broker.ask(Code.UPDATE_BROKER_CONFIG, None, b"enableMixedMessageType=true").code == 0
    for kind in ("MIXED", "UNSPECIFIED"):
        create(broker, kind, kind)
        assert refused(broker, kind) == set()


def test_refusal_names_both_types_and_a_way_out(broker: Harness) -> None:
    create(broker, "TopicA", "FIFO")
    answer = broker.ask(Code.SEND_MESSAGE_V2, send_fields("TopicA"), b"body")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert answer.remark == (
        "topic[TopicA] takes FIFO messages (message.type), this one is NORMAL; send it to a topic of its type, or "
        "change the topic: updateTopic -a +message.type=UNSPECIFIED"
    )


def test_every_message_of_a_batch_is_checked_and_none_stored(broker: Harness) -> None:
    create(broker, "TopicA", "FIFO")
    parts = [BatchPart(0, b"one", encode_properties({"__SHARDINGKEY": "k"}).encode()), BatchPart(0, b"two", b"")]
    for sent, code in ((parts, ResponseCode.MESSAGE_ILLEGAL), (parts[:1], ResponseCode.SUCCESS)):
        fields = send_fields("TopicA") | {"m": "true"}
        assert broker.ask(Code.SEND_BATCH_MESSAGE, fields, encode_batch(sent)).code == code
    assert broker.ask(Code.GET_MAX_OFFSET, {"topic": "TopicA", "queueId": 0}).fields["offset"] == "1"


def test_setting_is_off_by_default_and_can_change_while_the_broker_runs(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    create(broker, "TopicA", "FIFO")
    assert refused(broker, "TopicA") == set()
    assert broker.ask(Code.UPDATE_BROKER_CONFIG, None, b"enableTopicMessageTypeCheck=true").code == 0
    assert "NORMAL" in refused(broker, "TopicA")
    create(broker, "TopicB", "FIFO")
    assert "NORMAL" in refused(broker, "TopicB")
    assert broker.ask(Code.UPDATE_BROKER_CONFIG, None, b"enableTopicMessageTypeCheck=false").code == 0
    assert refused(broker, "TopicA") == refused(broker, "TopicB") == set()


def test_retry_topics_take_what_their_group_consumed(broker: Harness) -> None:
    broker.heartbeat("readers", {"TopicA": "*"})
    assert "message.type" not in str(refused(broker, "%RETRY%readers"))
    assert refused(broker, "%RETRY%readers") == set()


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({}, "NORMAL"),
        ({"TRAN_MSG": "TRUE"}, "TRANSACTION"),
        ({"TRAN_MSG": "no"}, "NORMAL"),
        ({"TIMER_DELAY_SEC": "3"}, "DELAY"),
        ({"TIMER_DELAY_MS": "3"}, "DELAY"),
        ({"TIMER_DELIVER_MS": "3"}, "DELAY"),
    ],
)
def test_type_follows_from_the_properties(properties: dict[str, str], kind: str) -> None:
    assert message_type(properties) == kind
