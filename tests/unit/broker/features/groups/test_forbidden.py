"""Topics that operators forbid groups to read (353): pulls, held pulls, restarts, slaves, Java's form in the file."""

import json
from pathlib import Path

import pytest

from tandemq.broker.state import forbidden
from tandemq.broker.state.forbidden import ForbiddenTopics, parse_forbidden
from tandemq.errors import ProtocolError, StoreDamaged
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tests.unit.broker.ha.group import Group
from tests.unit.broker.ha.test_metadata_sync import publish_master
from tests.unit.broker.harness import CLIENT, Harness

REMARK = "the consumer group[readers] is forbidden for topic[TopicA]"


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    return Harness(tmp_path)


def forbid(broker: Harness, topic: str = "TopicA", group: str = "readers", *, readable: bool | None = False) -> bool:
    """Send 353; without `readable` (None) only ask. Return whether the group may read the topic now."""
    fields = {"group": group, "topic": topic}
    if readable is not None:
        fields["readable"] = str(readable).lower()
    body = broker.json(Code.UPDATE_AND_GET_GROUP_FORBIDDEN, fields)
    assert (body["group"], body["topic"]) == (group, topic)
    return bool(body["readable"])


def test_forbidden_group_gets_no_messages_with_and_without_its_subscription_in_the_pull(broker: Harness) -> None:
    broker.send("TopicA")
    assert forbid(broker, readable=None)
    assert not forbid(broker)
    broker.heartbeat("readers", {"TopicA": "*"})
    with_subscription = broker.pull("TopicA", group="readers")
    place = {"consumerGroup": "readers", "topic": "TopicA", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1}
    without = broker.ask(
        Code.PULL_MESSAGE, place | {"sysFlag": 0, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0}
    )
    for answer in (with_subscription, without):
        assert answer is not None
        assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, REMARK)
        assert answer.fields["forbiddenType"] == "5"
    others = broker.pull("TopicA", group="others")
    assert others is not None
    assert others.code == ResponseCode.SUCCESS
    assert forbid(broker, readable=True)
    again = broker.pull("TopicA", group="readers")
    assert again is not None
    assert again.code == ResponseCode.SUCCESS


def test_pull_held_before_is_refused_and_those_of_others_stay(broker: Harness) -> None:
    broker.send("TopicA")
    assert broker.pull("TopicA", 1, group="readers", wait_ms=20_000) is None
    assert broker.pull("TopicA", 1, group="others", wait_ms=20_000) is None
    forbid(broker)
    assert [(answer.code, answer.remark) for answer in broker.inbox[CLIENT]] == [(ResponseCode.NO_PERMISSION, REMARK)]
    broker.inbox[CLIENT].clear()
    broker.send("TopicA")
    assert ResponseCode.SUCCESS in [answer.code for answer in broker.inbox[CLIENT]]


def test_allowing_one_topic_keeps_the_other_forbidden_also_after_restarts(broker: Harness) -> None:
    for topic in ("TopicA", "TopicB"):
        forbid(broker, topic)
    assert forbid(broker, "TopicA", readable=True)
    broker.pass_time(10_000)
    after = broker.restart(clean=False)
    assert forbid(after, "TopicA", readable=None)
    assert not forbid(after, "TopicB", readable=None)
    after = after.restart()
    assert not forbid(after, "TopicB", readable=None)


def test_file_has_the_form_of_java_and_other_bits_are_kept(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    forbid(broker)
    broker.node.close()
    file = next(tmp_path.rglob("subscriptionGroup.json"))
    table = json.loads(file.read_bytes())
    assert table["forbiddenTable"] == {"readers": {"TopicA": 4}}
    table["forbiddenTable"] = {"readers": {"TopicA": 4, "TopicB": 6}, "java": {"TopicC": 2}}
    file.write_text(json.dumps(table))
    after = Harness(tmp_path)
    assert not forbid(after, "TopicB", readable=None)
    assert forbid(after, "TopicC", "java", readable=None)
    assert forbid(after, "TopicB", readable=True)
    assert after.node.groups.forbidden.table == {"readers": {"TopicA": 4, "TopicB": 2}, "java": {"TopicC": 2}}


def test_deleted_group_is_no_longer_forbidden(broker: Harness) -> None:
    broker.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, b'{"groupName":"readers"}')
    forbid(broker)
    broker.ask(Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "readers"})
    assert forbid(broker, readable=None)


def test_slave_copies_the_table_answers_questions_and_refuses_changes(tmp_path: Path) -> None:
    group = Group(tmp_path)
    publish_master(group)
    forbid(group.master)
    group.pass_time(10_000)
    assert not forbid(group.slave, readable=None)
    refused = group.slave.ask(
        Code.UPDATE_AND_GET_GROUP_FORBIDDEN, {"group": "readers", "topic": "TopicA", "readable": "true"}
    )
    assert (refused.code, "from slave broker" in (refused.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    forbid(group.master, readable=True)
    group.pass_time(10_000)
    assert forbid(group.slave, readable=None)


@pytest.mark.parametrize("fields", [{"group": "a b", "topic": "TopicA"}, {"group": "readers", "topic": "a b"}])
def test_invalid_names_are_refused(broker: Harness, fields: dict[str, str]) -> None:
    answer = broker.ask(Code.UPDATE_AND_GET_GROUP_FORBIDDEN, fields | {"readable": "false"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert broker.node.groups.forbidden.table == {}


def test_number_of_entries_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forbidden, "ENTRIES_MAX", 2)
    table = ForbiddenTopics()
    assert table.set("g", "A", readable=False)
    assert table.set("h", "A", readable=False)
    assert not table.set("h", "A", readable=False)
    with pytest.raises(ProtocolError, match="2 topics are forbidden"):
        table.set("h", "B", readable=False)
    assert table.set("g", "A", readable=True)
    assert table.table == {"h": {"A": 4}}


@pytest.mark.parametrize("table", ["x", {"g": []}, {"g": {"t": "4"}}, {"g": {"t": True}}])
def test_unreadable_table_is_damage(table: object) -> None:
    with pytest.raises(StoreDamaged, match="forbiddenTable"):
        parse_forbidden({"forbiddenTable": table})
