"""Tables that a slave copies from its master: topics, groups, offsets, delay progress."""

import json
from pathlib import Path
from typing import Any

import pytest

from tandemq.boundary import LinkKind
from tandemq.broker.features.delay.progress import LevelProgress
from tandemq.broker.features.delay.service import DelayedMessages
from tandemq.broker.features.timers.service import TimedMessages
from tandemq.broker.kernel import shared_tables
from tandemq.broker.kernel.shared_tables import OffsetsTable, TopicsTable
from tandemq.broker.state.topics import parse_topics
from tandemq.config.settings import BrokerConfig
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.topic import TopicConfig
from tests.spec import spec
from tests.unit.broker.ha.group import Group, delete_files

OK = ResponseCode.SUCCESS
DEFAULTS = BrokerConfig()


def publish_master(group: Group) -> None:
    for slave in group.slaves:
        group.tell_master(slave)


@spec("M01")
def test_topic_of_the_master_reaches_the_slave_within_10s(tmp_path: Path) -> None:
    assert DEFAULTS.metadata_sync_ms == 10_000
    group = Group(tmp_path)
    publish_master(group)
    group.send(topic="Fresh")
    group.pass_time(10_000)
    body = group.slave.json(RequestCode.GET_ALL_TOPIC_CONFIG)
    assert "Fresh" in body["topicConfigTable"]


@spec("M01")
def test_period_of_configuration_is_a_setting(tmp_path: Path) -> None:
    group = Group(tmp_path, metadata_sync_ms=500)
    publish_master(group)
    group.send(topic="Fresh")
    group.pass_time(500)
    assert "Fresh" in group.slave.json(RequestCode.GET_ALL_TOPIC_CONFIG)["topicConfigTable"]


@spec("M02")
def test_topics_file_is_written_only_when_the_version_changed(tmp_path: Path) -> None:
    group = Group(tmp_path)
    publish_master(group)
    group.send(topic="First")
    group.pass_time(10_000)
    file = tmp_path / "slave1" / "config" / "topics.json"
    file = file if file.exists() else next((tmp_path / "slave1").rglob("topics.json"))
    written = file.stat().st_mtime_ns
    group.pass_time(60_000)
    assert file.stat().st_mtime_ns == written
    group.send(topic="Second")
    group.pass_time(10_000)
    assert file.stat().st_mtime_ns > written
    ours = json.loads(next((tmp_path / "master").rglob("topics.json")).read_bytes())
    theirs = json.loads(file.read_bytes())
    assert theirs["dataVersion"] == ours["dataVersion"]
    assert "Second" in theirs["topicConfigTable"]


def test_the_same_topics_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(tmp_path)
    publish_master(group)
    group.send(topic="First")
    group.pass_time(20_000)
    read: list[int] = []

    def counted(raw: dict[str, Any]) -> list[TopicConfig]:
        read.append(len(raw["topicConfigTable"]))
        return parse_topics(raw)

    monkeypatch.setattr(shared_tables, "parse_topics", counted)
    group.pass_time(30_000)
    assert read == []
    group.send(topic="Second")
    group.pass_time(30_000)
    assert len(read) == 1
    topics = group.slave.node.topics
    topics.put(TopicConfig("OnlyHere"), group.now.wall_ms)
    group.pass_time(30_000)
    assert len(read) == 2, "a change of the slave's own table is taken back"
    assert topics.get("OnlyHere") is None
    assert topics.version == group.master.node.topics.version


@spec("M03", "F03")
def test_consumer_offsets_are_merged_and_saved(tmp_path: Path) -> None:
    group = Group(tmp_path)
    publish_master(group)
    group.send_many(1)
    group.slave.commit(3, group="only-here")
    group.master.commit(42)
    group.pass_time(10_000)
    assert group.slave.node.offsets.get("TopicA", "group", 0) == 42
    assert group.slave.node.offsets.get("TopicA", "only-here", 0) == 3
    saved = json.loads(next((tmp_path / "slave1").rglob("consumerOffset.json")).read_bytes())
    assert saved["offsetTable"]["TopicA@group"] == {"0": 42}


@spec("M03")
def test_offset_of_a_deleted_group_stays_on_the_slave_every_time(tmp_path: Path) -> None:
    group = Group(tmp_path)
    publish_master(group)
    group.send_many(1)
    group.master.commit(42)
    group.pass_time(10_000)
    group.master.node.offsets.remove_group("group")
    for _ in range(3):
        group.pass_time(10_000)
        assert group.slave.node.offsets.get("TopicA", "group", 0) == 42


@spec("M02", "M03")
def test_offsets_of_a_topic_deleted_while_the_slave_was_down_are_removed_when_it_returns(tmp_path: Path) -> None:
    group = Group(tmp_path)
    publish_master(group)
    for topic in ("Gone", "Kept"):
        group.send_many(1, topic=topic)
        group.master.commit(1, topic=topic)
    group.pass_time(10_000)
    group.slave.commit(1, topic="Kept", group="only-here")
    assert set(group.slave.node.offsets.table) == {"Gone@group", "Kept@group", "Kept@only-here"}
    group.stop(group.slave, clean=True)
    assert group.master.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Gone"}).code == OK
    group.restart_slave()
    publish_master(group)
    group.pass_time(10_000)
    assert set(group.slave.node.offsets.table) == {"Kept@group", "Kept@only-here"}
    assert group.slave.node.topics.get("Gone") is None
    saved = json.loads(next((tmp_path / "slave1").rglob("consumerOffset.json")).read_bytes())
    assert set(saved["offsetTable"]) == {"Kept@group", "Kept@only-here"}


@spec("M03")
def test_master_that_refuses_the_slaves_log_removes_no_offsets(tmp_path: Path) -> None:
    group = Group(tmp_path)
    publish_master(group)
    group.send_many(1, topic="Kept")
    group.master.commit(1, topic="Kept")
    group.pass_time(10_000)
    group.stop(group.master)
    delete_files(tmp_path / "master")
    group.start_master()
    group.settle()
    publish_master(group)
    group.pass_time(30_000)
    assert group.slave.node.topics.get("Kept") is None, "topics follow the version"
    assert group.slave.node.offsets.get("Kept", "group", 0) == 1


@spec("M03")
def test_offsets_of_a_topic_newer_than_the_list_of_topics_stay(tmp_path: Path) -> None:
    group = Group(tmp_path)
    publish_master(group)
    group.pass_time(10_000)
    group.pass_time(9_000)
    upstream = group.slave.node.replication.by_settings
    assert upstream is not None
    master = "127.0.0.1:10911"
    topics, offsets = (
        next(table for table in group.slave.node.features.tables if isinstance(table, kind))
        for kind in (TopicsTable, OffsetsTable)
    )
    assert isinstance(topics, TopicsTable)

    def take(body: bytes) -> None:
        upstream.metadata._on_answer(master, offsets, Command(ResponseCode.SUCCESS, body=body), group.now)

    topics._listed = (master, frozenset({"TBW102"}))
    take(b'{"offsetTable":{"Young@group":{"0":3}}}')
    assert group.slave.node.offsets.get("Young", "group", 0) == 3
    take(b'{"offsetTable":{}}')
    assert group.slave.node.offsets.get("Young", "group", 0) == 3, "no topics were published since"
    topics._listed = (master, frozenset({"Young"}))
    take(b'{"offsetTable":{}}')
    assert group.slave.node.offsets.get("Young", "group", 0) == 3
    topics._listed = (master, frozenset({"TBW102"}))
    take(b'{"offsetTable":{}}')
    assert group.slave.node.offsets.get("Young", "group", 0) is None


@spec("M04")
def test_progress_of_delayed_messages_is_equal_on_both(tmp_path: Path) -> None:
    group = Group(tmp_path)
    publish_master(group)
    for level in ("1", "1", "2"):
        group.send(DELAY=level)
    group.settle()
    group.pass_time(20_000)
    wanted = {1: LevelProgress(2), 2: LevelProgress(1)}
    assert (
        group.slave.node.features.find(DelayedMessages).progress
        == group.master.node.features.find(DelayedMessages).progress
        == wanted
    )
    assert list((tmp_path / "slave1").rglob("delayOffset.json"))
    assert group.slave.node.features.find(DelayedMessages).delivered == 0


def test_counts_of_timed_messages_are_those_of_the_master_and_of_a_slave_that_becomes_one(tmp_path: Path) -> None:
    group = Group(tmp_path)
    publish_master(group)
    for delay_ms in (15_000, 40_000, 50_000):
        group.send(TIMER_DELAY_MS=str(delay_ms))
    group.settle()
    group.pass_time(10_000)

    def file() -> dict[str, int]:
        table = json.loads(next((tmp_path / "slave1").rglob("timermetrics")).read_bytes())["timingCount"]
        return {topic: counted["count"] for topic, counted in table.items()}

    assert group.slave.node.features.find(TimedMessages).metrics.by_topic() == file() == {"TopicA": 3}
    assert group.slave.json(RequestCode.GET_TIMER_METRICS)["timingCount"]["TopicA"]["count"] == 3
    group.pass_time(20_000)
    assert group.slave.node.features.find(TimedMessages).metrics.by_topic() == file() == {"TopicA": 2}
    assert not list((tmp_path / "slave1").rglob("timercheck")), "it would mislead a Java broker without a wheel"


@spec("M05")
def test_slave_refuses_a_group_that_may_not_consume(tmp_path: Path) -> None:
    group = Group(tmp_path)
    publish_master(group)
    group.send_many(1)
    config = group.master.node.groups.find("group", 0)
    assert config is not None
    group.pass_time(10_000)
    found = group.slave.pull("TopicA")
    assert found is not None
    assert found.code == OK
    config.consume_enable = False
    group.master.node.groups.put(config, 1)
    group.pass_time(10_000)
    refused = group.slave.pull("TopicA")
    assert refused is not None
    assert refused.code == ResponseCode.NO_PERMISSION
    assert list((tmp_path / "slave1").rglob("subscriptionGroup.json"))


@spec("M06")
def test_configuration_arrives_while_the_replication_link_is_stalled(tmp_path: Path) -> None:
    group = Group(tmp_path)
    publish_master(group)
    group.wire.stalls_down = True
    end = group.slave.log_end
    group.send(topic="Fresh")
    group.pass_time(10_000)
    assert "Fresh" in group.slave.json(RequestCode.GET_ALL_TOPIC_CONFIG)["topicConfigTable"]
    assert group.slave.log_end == end


@spec("M06")
def test_messages_arrive_while_the_configuration_link_is_stalled(tmp_path: Path) -> None:
    group = Group(tmp_path)
    publish_master(group)
    for wire in group.all_wires:
        wire.stalls_up = wire.kind is not LinkKind.HA_MASTER
    group.send(topic="Fresh")
    group.settle()
    group.assert_same_logs()
    assert "Fresh" not in group.slave.json(RequestCode.GET_ALL_TOPIC_CONFIG)["topicConfigTable"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"offsetTable":5}',
        b'{"topicConfigTable":{"a":1}}',
        b'{"offsetTable":{"a":{"b":"c"}}}',
        b'{"dataVersion":7}',
        b'{"timingCount":[]}',
        b'{"timingCount":{"TopicA":{"count":"many"}}}',
        b"\xff",
    ],
)
def test_invalid_tables_of_a_master_are_ignored(tmp_path: Path, body: bytes) -> None:
    group = Group(tmp_path)
    upstream = group.slave.node.replication.by_settings
    assert upstream is not None
    answer = group.master.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    answer.body = body
    for table in group.slave.node.features.tables:
        upstream.metadata._on_answer("m", table, answer, group.now)
    assert group.slave.node.features.find(TimedMessages).metrics.by_topic() == {}
    assert group.send_and_settle() == OK
