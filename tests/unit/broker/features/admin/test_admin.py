"""Requests of operators to change topics and groups: accepted and refused changes, and their publication."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from tandemq.boundary import LinkKind, Opened
from tandemq.broker.kernel.upkeep import DISK_FULL
from tandemq.codec.remoting.fastjson import dumps, loads
from tandemq.codec.remoting.frame import encode_command
from tandemq.errors import DiskFull
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tests.request_fields import topic_fields
from tests.spec import spec
from tests.unit.broker.harness import CLIENT, Harness, messages_in, run_job, send_fields


def create(broker: Harness, topic: str, **changes: object) -> Command:
    return broker.ask(Code.UPDATE_AND_CREATE_TOPIC, topic_fields(topic) | changes)


def topic_config(broker: Harness, topic: str) -> Any:
    return broker.json(Code.GET_TOPIC_CONFIG, {"topic": topic})


def registrations(broker: Harness) -> list[Any]:
    """Return the topic tables registered at the name server so far."""
    [link] = {connect.link for connect in broker.connects}
    requests = broker.take_requests(Code.REGISTER_BROKER, link=link)
    return [loads(command.body)["topicConfigSerializeWrapper"] for command in requests]


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    return Harness(tmp_path)


# Topics.


def test_topic_is_created_changed_and_kept_over_a_restart(broker: Harness) -> None:
    assert create(broker, "TopicA").code == ResponseCode.SUCCESS
    assert create(broker, "TopicA", writeQueueNums=5, perm=4, order=True).code == ResponseCode.SUCCESS
    found = topic_config(broker.restart(), "TopicA")
    assert found == {
        "topicName": "TopicA",
        "readQueueNums": 2,
        "writeQueueNums": 5,
        "perm": 4,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": True,
        "attributes": {},
    }


def test_topic_change_is_registered_once_with_a_new_version(tmp_path: Path) -> None:
    broker = Harness(tmp_path, name_servers=("10.0.0.9:9876",))
    [connect] = broker.connects
    broker.turn([], [Opened(connect.link, LinkKind.PEER, "10.0.0.9:9876")])
    [request] = broker.take_requests(Code.REGISTER_BROKER, link=connect.link)
    broker.reply(request, link=connect.link)
    first = loads(request.body)["topicConfigSerializeWrapper"]
    create(broker, "TopicA")
    [second] = registrations(broker)
    assert "TopicA" not in first["topicConfigTable"]
    assert set(second["topicConfigTable"]) == {"TopicA"}
    assert second["topicConfigTable"]["TopicA"]["writeQueueNums"] == 2
    assert second["dataVersion"]["counter"] == first["dataVersion"]["counter"] + 1
    create(broker, "TopicA")
    assert registrations(broker) == [], "nothing changed"


@pytest.mark.parametrize(
    ("topic", "changes", "remark"),
    [
        ("bad!name", {}, "illegal characters"),
        ("", {}, "empty"),
        ("x" * 128, {}, "128 characters"),
        ("TBW102", {}, "conflict with system topic"),
        ("DefaultCluster", {}, "conflict with system topic"),
        ("broker-a", {}, "conflict with system topic"),
        ("rmq_sys_anything", {}, "conflict with system topic"),
        ("TopicA", {"writeQueueNums": 0}, "0 queues"),
        ("TopicA", {"readQueueNums": 1 << 30}, "queues"),
        ("TopicA", {"perm": 16}, "not a permission"),
        ("TopicA", {"attributes": "message.type"}, "+name=value"),
        ("TopicA", {"attributes": "+other=1"}, "unsupported key: 'other'"),
        ("TopicA", {"attributes": "+queue.type=Nonsense"}, "value is not in set"),
        ("TopicA", {"attributes": "+queue.type=BatchCQ"}, "not supported"),
        ("TopicA", {"attributes": "+cleanup.policy=COMPACTION"}, "compaction is not supported"),
        ("TopicA", {"attributes": "+message.type=FIFO", "topicFilterType": "x" * 100_000}, "topicFilterType"),
        ("TopicA", {"topicSysFlag": "9" * 4_000}, ""),
    ],
)
def test_invalid_topic_is_refused_with_a_reason(
    broker: Harness, topic: str, changes: dict[str, object], remark: str
) -> None:
    before = set(broker.node.topics.table)
    answer = create(broker, topic, **changes)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert remark in (answer.remark or "")
    assert set(broker.node.topics.table) == before


def test_mixed_message_type_is_refused_as_by_rocketmq_unless_a_setting_allows_it(broker: Harness) -> None:
    listed = [{"topicName": "Good"}, {"topicName": "Mixed", "attributes": {"+message.type": "MIXED"}}]
    many = dumps({"topicConfigList": listed})
    for answer in (
        create(broker, "Mixed", attributes="+message.type=MIXED"),
        broker.ask(Code.UPDATE_AND_CREATE_TOPIC_LIST, None, many),
    ):
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert (answer.remark or "").startswith("MIXED message type is not supported")
    assert broker.node.topics.get("Good") is None
    broker.ask(Code.UPDATE_BROKER_CONFIG, None, b"enableMixedMessageType=true")
    assert create(broker, "Mixed", attributes="+message.type=MIXED").code == ResponseCode.SUCCESS
    broker.ask(Code.UPDATE_BROKER_CONFIG, None, b"enableMixedMessageType=false")
    assert create(broker, "Mixed", perm=4).code == ResponseCode.SUCCESS
    assert topic_config(broker, "Mixed")["attributes"] == {"message.type": "MIXED"}


def test_topic_attributes_are_added_changed_and_removed(broker: Harness) -> None:
    create(broker, "TopicA", attributes="+message.type=FIFO,+cleanup.policy=DELETE")
    both = {"message.type": "FIFO", "cleanup.policy": "DELETE"}
    assert topic_config(broker, "TopicA")["attributes"] == both
    create(broker, "TopicA", perm=4)
    assert topic_config(broker, "TopicA")["attributes"] == both, "a 4.9 tool sends none"
    create(broker, "TopicA", attributes="-message.type")
    assert topic_config(broker, "TopicA")["attributes"] == {"cleanup.policy": "DELETE"}
    refused = create(broker, "TopicA", attributes="+cleanup.policy=DELETE")
    assert "unchangeable" in (refused.remark or "")


@pytest.mark.parametrize("attributes", [{"+queue.type": "BatchCQ"}, {"+x": "1"}, {"message.type": "FIFO"}])
def test_topic_list_with_an_invalid_attribute_is_refused_completely(
    broker: Harness, attributes: dict[str, str]
) -> None:
    listed = [{"topicName": "Good"}, {"topicName": "Bad", "attributes": attributes}]
    answer = broker.ask(Code.UPDATE_AND_CREATE_TOPIC_LIST, None, dumps({"topicConfigList": listed}))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert broker.node.topics.get("Good") is None


def test_topic_that_is_listed_twice_gets_the_second_configuration(broker: Harness) -> None:
    listed = [{"topicName": "T", "attributes": {"+message.type": "FIFO"}}, {"topicName": "T", "readQueueNums": 3}]
    broker.ask(Code.UPDATE_AND_CREATE_TOPIC_LIST, None, dumps({"topicConfigList": listed}))
    found = topic_config(broker, "T")
    assert (found["readQueueNums"], found["attributes"]) == (3, {"message.type": "FIFO"})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"attributes": {"+k": "x" * 200_000}}, "at most 16384"),
        ({"attributes": {"+k": "1"}}, "unsupported key"),
        ({"retryMaxTimes": 1 << 40}, "$.retryMaxTimes"),
        ({"brokerId": 10**400}, "$.brokerId"),
    ],
)
def test_group_that_is_too_large_is_refused(broker: Harness, changes: dict[str, object], reason: str) -> None:
    answer = broker.ask(
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, json.dumps({"groupName": "g"} | changes).encode()
    )
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert reason in (answer.remark or "")
    assert "g" not in broker.node.groups.table


def test_requests_of_operators_are_logged_in_one_bounded_line(
    broker: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    names = [{"topicName": f"{number:04}" + "t" * 120} for number in range(300)]
    broker.ask(Code.UPDATE_AND_CREATE_TOPIC_LIST, None, dumps({"topicConfigList": names}))
    groups = [{"groupName": f"{number:04}" + "g" * 250} for number in range(800)]
    broker.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, None, dumps({"groupConfigList": groups}))
    lines = [line for line in caplog.messages if line.startswith("admin:")]
    assert ["300 topics written by" in lines[0], "800 groups written by" in lines[1]] == [True, True]
    assert len(lines) == 2
    assert max(map(len, lines)) < 4_000


def test_topic_list_is_created_completely_or_not_at_all(broker: Harness) -> None:
    def listed(*names: str) -> bytes:
        return dumps({"topicConfigList": [{"topicName": name, "readQueueNums": 3, "perm": 6} for name in names]})

    answer = broker.ask(Code.UPDATE_AND_CREATE_TOPIC_LIST, None, listed("TopicA", "TBW102"))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert broker.node.topics.get("TopicA") is None
    assert broker.ask(Code.UPDATE_AND_CREATE_TOPIC_LIST, None, listed("TopicA", "TopicB")).code == ResponseCode.SUCCESS
    assert topic_config(broker, "TopicB")["readQueueNums"] == 3


@pytest.mark.parametrize("body", [b"", b"[]", b'{"topicConfigList":3}', b'{"topicConfigList":[3]}', b"\xff"])
def test_malformed_topic_list_is_refused(broker: Harness, body: bytes) -> None:
    assert broker.ask(Code.UPDATE_AND_CREATE_TOPIC_LIST, None, body).code == ResponseCode.SYSTEM_ERROR


def test_unknown_topic_has_no_config(broker: Harness) -> None:
    assert broker.ask(Code.GET_TOPIC_CONFIG, {"topic": "missing"}).code == ResponseCode.TOPIC_NOT_EXIST


def test_topic_without_write_permission_accepts_no_more_sends(broker: Harness) -> None:
    create(broker, "TopicA")
    assert broker.send("TopicA").code == ResponseCode.SUCCESS
    create(broker, "TopicA", perm=4)
    assert broker.send("TopicA").code == ResponseCode.NO_PERMISSION
    assert broker.pull("TopicA") is not None


def test_deleting_a_topic_removes_its_queues_offsets_and_held_pulls(broker: Harness) -> None:
    broker.send("TopicA", b"old")
    broker.ask(
        Code.UPDATE_CONSUMER_OFFSET, {"consumerGroup": "group", "topic": "TopicA", "queueId": 0, "commitOffset": 1}
    )
    assert broker.pull("TopicA", 1, wait_ms=20_000) is None
    assert broker.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "TopicA"}).code == ResponseCode.SUCCESS
    assert [command.code for command in broker.inbox[CLIENT]] == [ResponseCode.PULL_NOT_FOUND], (
        "the held pull is answered"
    )
    assert broker.disk.list("consumequeue/TopicA") == []
    assert broker.node.offsets.get("TopicA", "group", 0) is None
    broker.send("TopicA", b"new")
    answer = broker.pull("TopicA")
    assert answer is not None
    assert [(found.queue_offset, found.body) for found in messages_in(answer)] == [(0, b"new")]


def test_topic_deleted_in_the_turn_of_a_send_leaves_no_queue_behind(broker: Harness) -> None:
    broker.send("TopicA", b"first")
    sent = {key: str(value) for key, value in send_fields("TopicA").items()}
    frames = encode_command(Command(Code.SEND_MESSAGE_V2, 900, fields=sent, body=b"last"))
    frames += encode_command(Command(Code.DELETE_TOPIC_IN_BROKER, 901, fields={"topic": "TopicA"}))
    broker.turn([(CLIENT, frames)])
    assert {command.opaque: command.code for command in broker.inbox[CLIENT]} == {900: 0, 901: 0}
    broker.pass_time(2_000)
    assert broker.disk.list("consumequeue/TopicA") == []
    assert ("TopicA", 0) not in broker.node.store.queues


@spec("T21")
def test_deletion_is_answered_when_its_record_is_on_the_device(broker: Harness) -> None:
    create(broker, "T")
    broker.send("T")
    broker.pass_time(2_000)
    broker.run_jobs = False
    asked = broker.send_request(Code.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    waiting = list(broker.jobs)
    assert {job.name for job in waiting} == {"flush", "save tables"}
    for job in sorted(waiting, key=lambda job: job.name == "flush"):
        assert broker.answer_to(asked) is None
        broker.turn([], [run_job(job)])
    answer = broker.answer_to(asked)
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS


@spec("T21")
def test_topic_stays_if_its_deletion_cannot_be_recorded(broker: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    create(broker, "T")
    broker.send("T")
    log = broker.node.store.log
    with monkeypatch.context() as failing:
        failing.setattr(log, "write", _disk_full)
        answer = broker.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "no space left" in str(answer.remark)
    assert broker.ask(Code.GET_TOPIC_CONFIG, {"topic": "T"}).code == ResponseCode.SUCCESS
    assert broker.pull("T") is not None
    assert broker.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == ResponseCode.SUCCESS


def _disk_full() -> int:
    raise DiskFull("no space left on the device")


def test_system_topic_cannot_be_deleted(broker: Harness) -> None:
    assert broker.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "TBW102"}).code == ResponseCode.SYSTEM_ERROR
    assert broker.node.topics.get("TBW102") is not None


def test_system_topics_are_listed(broker: Harness) -> None:
    listed = broker.json(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)["topicList"]
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "DefaultCluster", "broker-a", "DefaultCluster_REPLY_TOPIC"} <= set(listed)


# Groups.


def test_group_is_created_read_and_kept_over_a_restart(broker: Harness) -> None:
    config = {"groupName": "group", "retryMaxTimes": 3, "consumeEnable": False, "attributes": None, "newer": [1]}
    assert broker.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, dumps(config)).code == ResponseCode.SUCCESS
    found = broker.restart().json(Code.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "group"})
    assert (found["groupName"], found["retryMaxTimes"], found["consumeEnable"]) == ("group", 3, False)


def test_group_that_may_not_consume_is_refused_at_its_pull(broker: Harness) -> None:
    broker.send("TopicA")
    broker.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, dumps({"groupName": "group", "consumeEnable": False}))
    answer = broker.pull("TopicA", group="group")
    assert answer is not None
    assert answer.code == ResponseCode.NO_PERMISSION


def test_group_list_is_created_completely_or_not_at_all(broker: Harness) -> None:
    wrong = dumps({"groupConfigList": [{"groupName": "one"}, {"groupName": "bad!"}]})
    assert broker.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, None, wrong).code == ResponseCode.SYSTEM_ERROR
    assert "one" not in broker.node.groups.table
    right = dumps({"groupConfigList": [{"groupName": "one"}, {"groupName": "two"}]})
    assert broker.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, None, right).code == ResponseCode.SUCCESS
    assert {"one", "two"} <= set(broker.node.groups.table)


@pytest.mark.parametrize(
    "body", [b"", b"3", b"{}", dumps({"groupName": "a b"}), dumps({"groupName": "g", "retryQueueNums": -1})]
)
def test_invalid_group_is_refused(broker: Harness, body: bytes) -> None:
    assert broker.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body).code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize(
    ("field", "kept"), [({"removeOffset": True}, False), ({"cleanOffset": True}, False), ({}, True)]
)
def test_deleted_group_loses_its_offsets_if_asked_in_either_spelling(
    broker: Harness, field: dict[str, object], kept: bool
) -> None:
    broker.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, dumps({"groupName": "group"}))
    broker.create_topic("T")
    broker.ask(Code.UPDATE_CONSUMER_OFFSET, {"consumerGroup": "group", "topic": "T", "queueId": 0, "commitOffset": 1})
    assert broker.ask(Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "group"} | field).code == ResponseCode.SUCCESS
    assert "group" not in broker.node.groups.table
    assert (broker.node.offsets.get("T", "group", 0) is not None) is kept


def test_unknown_group_is_refused_if_groups_are_not_created_on_use(tmp_path: Path) -> None:
    broker = Harness(tmp_path, auto_create_group=False)
    answer = broker.ask(Code.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "missing"})
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


# Slaves.


@pytest.mark.parametrize(
    ("code", "fields", "body"),
    [
        (Code.UPDATE_AND_CREATE_TOPIC, {"topic": "T", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}, b""),
        (Code.UPDATE_AND_CREATE_TOPIC_LIST, {}, dumps({"topicConfigList": [{"topicName": "T"}]})),
        (Code.DELETE_TOPIC_IN_BROKER, {"topic": "T"}, b""),
        (Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, dumps({"groupName": "g"})),
        (Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, dumps({"groupConfigList": [{"groupName": "g"}]})),
        (Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "TOOLS_CONSUMER"}, b""),
        (Code.CLEAN_UNUSED_TOPIC, {}, b""),
    ],
)
def test_slave_refuses_changes(tmp_path: Path, code: Code, fields: dict[str, object], body: bytes) -> None:
    slave = Harness(tmp_path, role="SLAVE", broker_id=1)
    before = (set(slave.node.topics.table), set(slave.node.groups.table))
    answer = slave.ask(code, fields, body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "master" in (answer.remark or "")
    assert (set(slave.node.topics.table), set(slave.node.groups.table)) == before


# Cleaning.


def test_cleaning_unused_topics_drops_queues_without_a_topic(broker: Harness) -> None:
    broker.send("TopicA")
    broker.send("TopicB")
    del broker.node.topics.table["TopicA"]
    assert broker.ask(Code.CLEAN_UNUSED_TOPIC).code == ResponseCode.SUCCESS
    assert {topic for topic, _ in broker.node.store.queues} == {"TopicB"}


def test_cleaning_queues_drops_entries_of_deleted_log_files(broker: Harness) -> None:
    for _ in range(300):
        broker.send("TopicA", bytes(200))
    broker.node.store.flush_queues()
    broker.node.store.drop_first_segment()
    queue = broker.node.store.queues["TopicA", 0]
    assert broker.ask(Code.CLEAN_EXPIRED_CONSUMEQUEUE).code == ResponseCode.SUCCESS
    assert queue.entry(queue.min_offset).log_offset >= broker.node.store.log.start > 0
    assert queue.max_offset == 300


def test_expired_log_files_are_deleted_on_request_at_any_hour(tmp_path: Path) -> None:
    broker = Harness(tmp_path, delete_when="23")
    for _ in range(300):
        broker.send("TopicA", bytes(200))
    broker.now.wall_ms = broker.disk.modified_ms("config/topics.json") + 100 * 3_600_000
    assert broker.node.store.log.start == 0
    broker.pass_time(1_000)  # the log is flushed
    broker.run_jobs = False
    assert broker.ask(Code.DELETE_EXPIRED_COMMITLOG).code == ResponseCode.SUCCESS
    assert broker.node.store.log.start == 0, "the entries of its queues are not on the device yet"
    broker.turn([], [run_job(job) for job in broker.jobs])
    broker.turn()
    assert broker.node.store.log.start > 0


@pytest.mark.parametrize("code", [Code.DELETE_TOPIC_IN_BROKER, Code.CLEAN_UNUSED_TOPIC])
def test_no_deletion_is_recorded_while_messages_are_refused(broker: Harness, code: int) -> None:
    broker.send("TopicA")
    end = broker.node.store.log.end
    broker.node.puts.refuse("lost tail", "waits for slaves")
    answer = broker.ask(code, {"topic": "TopicA"})
    assert (answer.code, answer.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, "waits for slaves")
    assert broker.node.store.log.end == end
    assert "TopicA" in broker.node.topics.table


def test_topic_is_deleted_although_the_disk_is_full(broker: Harness) -> None:
    broker.send("TopicA")
    broker.node.puts.refuse(DISK_FULL, "too full")
    assert broker.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "TopicA"}).code == ResponseCode.SUCCESS
    assert "TopicA" not in broker.node.topics.table


def test_group_list_beyond_the_limit_creates_no_group(tmp_path: Path) -> None:
    broker = Harness(tmp_path, groups_max=100)
    before = set(broker.node.groups.table)
    groups = [{"groupName": f"g{number}"} for number in range(130)]
    answer = broker.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, None, dumps({"groupConfigList": groups}))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert set(broker.node.groups.table) == before
