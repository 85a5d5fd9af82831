"""Metadata of a slave in a group with a registry: topics arrive before their messages, and removals are applied."""

from pathlib import Path

import pytest

from tandemq.boundary import LinkKind
from tandemq.broker.ha import metadata_stream
from tandemq.codec.ha import KIND_DELAYS, KIND_GROUPS, KIND_OFFSETS, KIND_TOPICS
from tandemq.codec.remoting.fastjson import dumps
from tandemq.coordination.registry.records import BrokerPermission, Mode
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tests.spec import spec
from tests.unit.broker.harness import messages_in, run_job, send_fields
from tests.unit.broker.roles.registry_group import Broker, RegistryGroup

OK = ResponseCode.SUCCESS
STORED = (ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE)


@pytest.fixture
def pair(tmp_path: Path) -> RegistryGroup:
    return RegistryGroup(tmp_path, Mode.ELECT)


def send(group: RegistryGroup, broker: Broker, topic: str, queue_id: int, queues: int, body: bytes = b"body") -> int:
    """Send as a producer whose route has this number of queues; return the code of the response."""
    opaque = broker.send_request(Code.SEND_MESSAGE_V2, send_fields(topic, queue_id) | {"d": queues}, body)
    group.settle()
    answer = broker.answer_to(opaque)
    assert answer is not None
    return answer.code


def transfer_only_the_log(group: RegistryGroup) -> None:
    """Drop all requests between members on the port for clients from now on."""
    for wire in group.wires:
        if wire.kind is not LinkKind.HA_MASTER:
            wire.stalls_up = wire.stalls_down = True


# Before the first message.


@spec("R11", "M01")
@pytest.mark.parametrize("is_created_by_operator", [False, True])
def test_topic_keeps_its_queues_when_the_master_dies_right_after_its_first_message(
    pair: RegistryGroup, is_created_by_operator: bool
) -> None:
    master = pair.brokers[0]
    transfer_only_the_log(pair)
    if is_created_by_operator:
        master.create_topic("Fresh", queues=6)
    queues = 6 if is_created_by_operator else 3
    assert send(pair, master, "Fresh", queues - 1, queues, b"first") == OK
    config = master.node.topics.table["Fresh"].config
    (went,) = [bytes(wire.went_down) for wire in pair.wires if wire.kind is LinkKind.HA_MASTER]
    assert 0 < went.index(b'"topicName":"Fresh"') < went.index(b"first"), "the topic comes before its message"
    pair.kill(0)
    pair.pass_time(4_000)
    new = pair.serving
    assert new is pair.brokers[1]
    assert new.node.topics.table["Fresh"].config == config
    assert config.write_queue_nums == config.read_queue_nums == queues
    assert send(pair, new, "Fresh", queues - 1, queues, b"second") in STORED
    answer = new.pull("Fresh", queue_id=queues - 1)
    assert answer is not None
    bodies = [message.body for message in messages_in(answer)]
    assert bodies == [b"first", b"second"]
    assert "Fresh" in new.json(Code.GET_ALL_TOPIC_CONFIG)["topicConfigTable"]


def test_changed_queues_and_groups_reach_the_slave_before_the_next_message(pair: RegistryGroup) -> None:
    master, slave = pair.brokers[0], pair.brokers[1]
    transfer_only_the_log(pair)
    master.create_topic("Fresh", queues=2)
    master.create_topic("Fresh", queues=9)
    assert (
        master.ask(
            Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, dumps({"groupName": "readers", "consumeEnable": False})
        ).code
        == OK
    )
    forbidden = {"group": "readers", "topic": "Fresh", "readable": "false"}
    assert master.ask(Code.UPDATE_AND_GET_GROUP_FORBIDDEN, forbidden).code == OK
    assert send(pair, master, "Fresh", 8, 9) == OK
    assert slave.node.groups.forbidden.forbids("readers", "Fresh")
    assert slave.node.topics.table["Fresh"].config == master.node.topics.table["Fresh"].config
    assert not slave.node.groups.table["readers"].consume_enable
    assert slave.node.topics.version == master.node.topics.version
    assert slave.node.groups.version == master.node.groups.version


@spec("R11")
def test_joining_member_has_the_topics_of_the_messages_it_acknowledges(pair: RegistryGroup) -> None:
    master = pair.brokers[0]
    pair.kill(1)
    pair.pass_time(6_000)
    assert send(pair, master, "Fresh", 2, 3, b"alone") in STORED
    pair.start(1)
    pair.settle()
    transfer_only_the_log(pair)
    pair.pass_time(3_000)
    assert master.failover.member.must_ack == {0, 1}
    pair.kill(0)
    pair.pass_time(4_000)
    assert pair.serving.node.topics.table["Fresh"].config.write_queue_nums == 3
    assert send(pair, pair.serving, "Fresh", 2, 3) in STORED


@spec("R11")
def test_message_of_a_new_topic_waits_until_the_slave_has_saved_the_topic(pair: RegistryGroup) -> None:
    master, slave = pair.brokers[0], pair.brokers[1]
    slave.run_jobs = False
    opaque = master.send_request(Code.SEND_MESSAGE_V2, send_fields("Fresh") | {"d": 3})
    pair.settle()
    assert slave.log_end == master.log_end
    assert master.answer_to(opaque) is None, "a killed slave would not have the topic"
    jobs, slave.jobs = slave.jobs, []
    for job in jobs:
        slave.turn([], [run_job(job)])
    pair.settle()
    answer = master.answer_to(opaque)
    assert answer is not None
    assert answer.code == OK
    slave.run_jobs = True
    pair.kill(1)
    assert "Fresh" in pair.start(1).node.topics.table


@spec("F03")
def test_reading_slave_has_the_topic_of_the_last_message(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.SLAVE_CONSUME)
    transfer_only_the_log(group)
    assert send(group, group.brokers[0], "Fresh", 0, 3) == OK
    group.kill(0)
    group.pass_time(4_000)
    assert group.brokers[1].may == "R"
    assert group.brokers[1].node.topics.table["Fresh"].config.write_queue_nums == 3
    answer = group.brokers[1].pull("Fresh")
    assert answer is not None
    assert len(messages_in(answer)) == 1


def test_connection_with_a_full_backlog_is_closed_before_it_misses_a_topic(
    pair: RegistryGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = pair.brokers[0], pair.brokers[1]
    monkeypatch.setattr(metadata_stream, "BACKLOG_BYTES_MAX", 1_000)
    (link,) = master.node.replication.masters.sessions
    master.outbox.waiting[link] = 1_001
    master.create_topic("Fresh")
    assert [reason for number, reason in master.closes if number == link] == [
        "it takes no bytes, and topics or groups have to be sent"
    ]
    pair.pass_time(1_000)
    assert "Fresh" in slave.node.topics.table
    assert pair.send(master) == OK


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (KIND_TOPICS, b""),
        (KIND_TOPICS, b"[]"),
        (KIND_TOPICS, b'{"topicConfigTable": {"x": 1}}'),
        (KIND_TOPICS, b'{"topicConfigTable": {}, "tandemRemoved": "TopicA"}'),
        (KIND_GROUPS, b'{"subscriptionGroupTable": [1]}'),
        (KIND_GROUPS, b'{"tandemRemoved": [1]}'),
        (KIND_OFFSETS, b'{"offsetTable": {"TopicA@group": 7}, "tandemWhole": true}'),
        (KIND_DELAYS, b"7"),
    ],
)
def test_tables_that_cannot_be_read_change_nothing(
    pair: RegistryGroup, kind: int, payload: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    pair.send(pair.brokers[0])
    pair.brokers[0].commit(1)
    pair.pass_time(1_000)
    node = pair.brokers[1].node
    before = (node.topics.as_json(), node.groups.as_json(), node.offsets.as_json())
    pair.brokers[1].node.replication.stream.take(kind, payload)
    assert (node.topics.as_json(), node.groups.as_json(), node.offsets.as_json()) == before
    assert "metadata of the master cannot be used" in caplog.text


# What was removed while a slave was away.


@spec("M02", "M03", "M05", "F03")
@pytest.mark.parametrize("mode", [Mode.ELECT, Mode.SLAVE_CONSUME])
def test_topics_and_groups_removed_while_a_slave_was_down_are_removed_there_when_it_returns(
    tmp_path: Path, mode: Mode
) -> None:
    group = RegistryGroup(tmp_path, mode)
    master = group.brokers[0]
    for topic in ("Gone", "Kept"):
        master.create_topic(topic)
        assert send(group, master, topic, 0, 4) == OK
        for name in ("old", "readers"):
            master.commit(1, topic=topic, group=name)
    for name in ("old", "readers"):
        master.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, dumps({"groupName": name}))
    group.pass_time(1_000)
    slave = group.brokers[1]
    assert set(slave.node.offsets.table) == {"Gone@old", "Gone@readers", "Kept@old", "Kept@readers"}
    assert "old" in slave.node.groups.table
    group.kill(1)
    assert master.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "Gone"}).code == OK
    assert master.ask(Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "old", "removeOffset": True}).code == OK
    slave = group.start(1)
    assert "Gone@old" in slave.node.offsets.table, "unchanged since it was stopped"
    group.pass_time(1_000)
    for _ in range(2):
        assert slave.node.offsets.table == master.node.offsets.table == {"Kept@readers": {0: 1}}
        assert "Gone" not in slave.node.topics.table
        assert "Kept" in slave.node.topics.table
        assert "old" not in slave.node.groups.table
        assert "readers" in slave.node.groups.table
        group.kill(1)
        slave = group.start(1)  # what it applied is on its disk
    group.kill(0)


def test_topic_created_again_begins_without_offsets_on_a_slave_that_was_down(pair: RegistryGroup) -> None:
    master = pair.brokers[0]
    pair.send(master)
    master.commit(1)
    pair.pass_time(1_000)
    pair.kill(1)
    pair.pass_time(6_000)
    assert master.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "TopicA"}).code == OK
    assert send(pair, master, "TopicA", 0, 2) in STORED
    slave = pair.start(1)
    pair.pass_time(4_000)
    assert slave.node.offsets.table == {}
    assert slave.node.topics.table["TopicA"].config.write_queue_nums == 2


@spec("R11")
def test_member_joins_only_when_it_has_the_offsets_reported_to_consumers(
    pair: RegistryGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = pair.brokers[0]
    pair.kill(1)
    pair.pass_time(6_000)
    pair.send(master)
    master.commit(1)
    with monkeypatch.context() as patch:
        patch.setattr(metadata_stream, "BACKLOG_BYTES_MAX", -1)  # as if log bytes had to wait all the time
        slave = pair.start(1)
        pair.pass_time(4_000)
        assert slave.node.store.log.written_end == master.node.store.log.written_end
        assert slave.node.offsets.table == {}
        assert 1 not in pair.record.in_sync
    pair.pass_time(4_000)
    assert slave.node.offsets.table == master.node.offsets.table != {}
    assert pair.record.in_sync == (0, 1)


@spec("R11")
def test_master_with_only_write_permission_publishes_its_offsets_to_joining_members(pair: RegistryGroup) -> None:
    master = pair.brokers[0]
    pair.kill(1)
    pair.pass_time(6_000)
    pair.send(master)
    master.commit(1)
    pair.allow(0, BrokerPermission.WRITE)
    pair.pass_time(1_000)
    assert master.may == "W"
    pair.start(1)
    pair.pass_time(4_000)
    assert pair.record.in_sync == (0, 1)
    pair.kill(0)
    pair.pass_time(6_000)
    slave = pair.brokers[1]
    assert slave.may == "RW"
    assert slave.node.offsets.table == master.node.offsets.table != {}


@spec("F29")
def test_slave_without_the_offsets_does_not_serve_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_stream, "BACKLOG_BYTES_MAX", -1)  # as if log bytes had to wait all the time
    group = RegistryGroup(tmp_path, Mode.SLAVE_CONSUME)
    master, slave = group.brokers[0], group.brokers[1]
    group.send(master)
    master.commit(1)
    group.pass_time(2_000)
    assert slave.node.store.log.written_end == master.node.store.log.written_end > 0
    assert group.record.in_sync == (0,)
    group.kill(0)
    group.pass_time(10_000)
    assert slave.may == ""


def test_reading_slave_keeps_its_offsets_until_the_handover(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.SLAVE_CONSUME)
    group.send(group.brokers[0])
    slave = group.let_slave_read()
    slave.commit(1, group="born-here")
    master = group.start(0)
    group.pass_time(4_000)
    assert master.may == "RW"
    for broker in (master, slave):
        assert broker.node.offsets.get("TopicA", "born-here", 0) == 1


@spec("M01")
def test_slave_that_was_reading_gets_the_topics_of_its_master_after_the_handover(tmp_path: Path) -> None:
    """The master sends its tables as soon as it serves; the slave may learn that from the registry a moment later."""
    group = RegistryGroup(tmp_path, Mode.SLAVE_CONSUME)
    group.pass_time(1_500)
    group.apart.update((0, 1))
    group.pass_time(100)
    group.brokers[0].create_topic("Late")
    slave = group.let_slave_read()
    group.apart.clear()
    assert "Late" not in slave.node.topics.table
    master = group.start(0)
    group.pass_time(4_000)
    assert (master.may, slave.may) == ("RW", "")
    assert "Late" in slave.node.topics.table


@spec("V18", "M01")
@pytest.mark.parametrize("mode", [Mode.ELECT, Mode.SLAVE_CONSUME])
def test_switch_waits_until_the_next_master_has_all_topics_and_groups(tmp_path: Path, mode: Mode) -> None:
    group = RegistryGroup(tmp_path, mode)
    group.send(group.brokers[0])
    group.pass_time(1_500)
    stalled = [wire for wire in group.wires if wire.kind is LinkKind.HA_MASTER]
    for wire in stalled:
        wire.stalls_down = wire.stalls_up = True
    group.brokers[0].create_topic("New")
    asked = group.brokers[0].send_request(Code.TANDEM_SWITCH, {"target": 1})
    group.pass_time(400)
    assert group.brokers[0].answer_to(asked) is None
    for wire in stalled:
        wire.stalls_down = wire.stalls_up = False
    group.pass_time(400)
    answer = group.brokers[0].answer_to(asked)
    assert answer is not None
    assert answer.code == OK, answer.remark
    assert group.serving is group.brokers[1]
    assert "New" in group.brokers[1].node.topics.table


def test_reading_slave_keeps_its_offsets_while_the_record_is_lost(tmp_path: Path) -> None:
    """Found by simulation seed 1931270: a master that had been paused published its older offsets just then."""
    group = RegistryGroup(tmp_path, Mode.SLAVE_CONSUME)
    group.send(group.brokers[0])
    slave = group.let_slave_read()
    commit = {"consumerGroup": "group", "topic": "TopicA", "queueId": 0, "commitOffset": 1}
    assert slave.ask(Code.UPDATE_CONSUMER_OFFSET, commit).code == OK
    older = b'{"offsetTable": {}, "tandemWhole": true}'
    slave.node.replication.stream.take(KIND_OFFSETS, older)
    group.cut_off.add(1)
    group.pass_time(5_000)
    group.lose_record()
    group.cut_off.clear()
    group.pass_time(1_000)
    assert slave.failover.member.view.state is None
    slave.node.replication.stream.take(KIND_OFFSETS, older)
    assert slave.node.offsets.table["TopicA@group"] == {0: 1}
