"""A broker in a group with a registry: effects of its member's decisions on clients, slaves and name servers."""

from pathlib import Path

import pytest

from tandemq.broker.kernel.role import LogDoubted
from tandemq.broker.roles import journal
from tandemq.broker.state.consumer_offsets import ConsumerOffsets
from tandemq.broker.state.persistence import Saver
from tandemq.codec.remoting.fastjson import loads
from tandemq.coordination.registry.records import BrokerPermission, Mode
from tandemq.errors import DiskFull
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.real.disk import RealDisk
from tandemq.storage.json_tables import TableFile
from tests.spec import spec
from tests.unit.broker.harness import messages_in, send_fields
from tests.unit.broker.roles.registry_group import RegistryGroup

NO_PERMISSION = ResponseCode.NO_PERMISSION
OFFSET = {"consumerGroup": "group", "topic": "TopicA", "queueId": 0}


@pytest.fixture
def pair(tmp_path: Path) -> RegistryGroup:
    return RegistryGroup(tmp_path, Mode.ELECT)


def test_group_begins_with_one_active_member_and_one_slave(pair: RegistryGroup) -> None:
    assert (pair.brokers[0].may, pair.brokers[1].may) == ("RW", "")
    assert pair.send(pair.brokers[0]) == ResponseCode.SUCCESS
    assert pair.brokers[0].failover.member.must_ack == {0, 1}
    assert pair.brokers[0].log_bytes() == pair.brokers[1].log_bytes() != b""


@spec("F06", "F12")
def test_inactive_member_refuses_every_request_of_clients_with_a_reason(pair: RegistryGroup) -> None:
    pair.send(pair.brokers[0])
    pair.pass_time(2_000)
    slave = pair.brokers[1]
    queue = {"topic": "TopicA", "queueId": 0}
    answers = [
        slave.send("TopicA"), slave.pull("TopicA"),
        slave.ask(Code.UPDATE_CONSUMER_OFFSET, OFFSET | {"commitOffset": 1}),
        slave.ask(Code.QUERY_CONSUMER_OFFSET, OFFSET), slave.ask(Code.GET_MAX_OFFSET, queue),
        slave.ask(Code.CONSUMER_SEND_MSG_BACK, {"offset": 0, "group": "group", "delayLevel": 0}),
    ]  # fmt: skip
    for answer in answers:
        assert answer is not None
        assert answer.code == NO_PERMISSION
        assert str(answer.remark) == "broker 1 (slave) may not serve this: the group begins"


@spec("R11")
def test_elected_slave_continues_writes_reads_and_offsets(pair: RegistryGroup) -> None:
    for number in range(5):
        assert pair.send(pair.brokers[0], b"%d" % number) == ResponseCode.SUCCESS
    pair.brokers[0].commit(3)
    pair.pass_time(1_500)
    pair.kill(0)
    pair.pass_time(2_000)
    assert pair.brokers[1].may == ""
    pair.pass_time(2_000)
    master = pair.serving
    assert master is pair.brokers[1]
    assert master.node.replication.generations[-1] == (2, master.log_end)
    assert master.committed() == 3
    # Alone in sync: stored, and the response says that the second copy is missing.
    assert pair.send(master, b"5") == ResponseCode.SLAVE_NOT_AVAILABLE
    answer = master.pull("TopicA")
    assert answer is not None
    bodies = [message.body for message in messages_in(answer)]
    assert bodies == [b"0", b"1", b"2", b"3", b"4", b"5"]


@spec("F04")
def test_old_master_truncates_unacknowledged_messages_and_follows(pair: RegistryGroup) -> None:
    old = pair.brokers[0]
    pair.send(old, b"kept")
    for wire in pair.wires:
        wire.stalls_down = True
    assert pair.send(old, b"lost") is None, "no response without the slave"
    before = old.log_end
    pair.kill(0)
    pair.pass_time(4_000)
    new = pair.serving
    assert new.log_end < before
    pair.send(new, b"new")
    old = pair.start(0)
    pair.pass_time(1_000)
    assert old.stage == "slave"
    assert old.log_bytes() == new.log_bytes()
    assert b"lost" not in old.log_bytes()
    assert new.failover.member.must_ack == {0, 1}
    assert pair.send(new, b"both") == ResponseCode.SUCCESS
    assert old.node.replication.generations == new.node.replication.generations


def test_messages_are_shown_only_when_all_members_in_sync_have_them(pair: RegistryGroup) -> None:
    master = pair.brokers[0]
    pair.send(master, b"0")
    held = master.send_request(Code.PULL_MESSAGE, {
        "consumerGroup": "group", "topic": "TopicA", "queueId": 0, "queueOffset": 1, "maxMsgNums": 32, "sysFlag": 6,
        "commitOffset": 0, "suspendTimeoutMillis": 20_000, "subscription": "*", "subVersion": 0,
        "expressionType": "TAG",
    })  # fmt: skip
    for wire in pair.wires:
        wire.stalls_up = True
    assert pair.send(master, b"1") is None
    assert master.answer_to(held) is None
    answer = master.pull("TopicA")
    assert answer is not None
    assert [message.body for message in messages_in(answer)] == [b"0"]
    assert answer.fields["maxOffset"] == "1"
    assert master.ask(Code.GET_MAX_OFFSET, {"topic": "TopicA", "queueId": 0}).fields["offset"] == "1"
    for wire in pair.wires:
        wire.stalls_up = False
    pair.settle()
    answer = master.answer_to(held)
    assert answer is not None, "the held pull is answered as soon as the message is safe"
    assert [message.body for message in messages_in(answer)] == [b"1"]


def test_pull_held_after_a_message_was_stored_is_answered_when_it_is_replicated(pair: RegistryGroup) -> None:
    master = pair.brokers[0]
    pair.send(master, b"0")
    for wire in pair.wires:
        wire.stalls_up = True
    assert pair.send(master, b"1") is None
    assert master.pull("TopicA", 1, wait_ms=20_000) is None
    held = master._opaque
    for wire in pair.wires:
        wire.stalls_up = False
    pair.settle()
    answer = master.answer_to(held)
    assert answer is not None
    assert [message.body for message in messages_in(answer)] == [b"1"]


def test_held_pulls_are_refused_when_the_permission_to_be_read_ends(pair: RegistryGroup) -> None:
    master = pair.brokers[0]
    pair.send(master)
    master.pull("TopicA", 1, wait_ms=30_000)
    held = master._opaque
    pair.cut_off.add(0)
    pair.apart.add(0)
    pair.pass_time(5_000)
    answer = master.answer_to(held)
    assert answer is not None
    assert answer.code == NO_PERMISSION
    assert "lonely" in str(answer.remark)
    assert pair.serving is pair.brokers[1]


@spec("F15")
def test_master_without_registry_continues_while_its_slave_gets_heartbeats(pair: RegistryGroup) -> None:
    pair.registry_is_up = False
    pair.pass_time(10_000)
    assert pair.brokers[0].may == "RW"
    assert pair.send(pair.brokers[0]) == ResponseCode.SUCCESS


@spec("F16")
def test_isolated_master_stops_serving(pair: RegistryGroup) -> None:
    pair.registry_is_up = False
    pair.kill(1)
    pair.pass_time(2_000)
    assert pair.brokers[0].may == ""
    answer = pair.brokers[0].send("TopicA")
    assert answer.code == NO_PERMISSION
    assert "lonely" in str(answer.remark)


def test_nothing_is_served_before_the_registry_was_read(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.ELECT, settles=False)
    group.registry_is_up = False
    group.pass_time(5_000)
    assert [broker.may for broker in group.brokers.values()] == ["", ""]
    assert group.brokers[0].send("TopicA").code == NO_PERMISSION
    group.registry_is_up = True
    group.pass_time(3_000)
    assert group.serving.may == "RW"


def test_mode_static_follows_the_settings(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.STATIC, settles=False)
    group.settle()
    master, slave = group.brokers[0].node, group.brokers[1].node
    assert master.failover is None
    assert slave.failover is None
    assert (master.is_master, slave.is_master) == (True, False)
    assert (master.registration.broker_id, slave.registration.broker_id) == (0, 1)
    assert group.brokers[0].send("TopicA").code == ResponseCode.SLAVE_NOT_AVAILABLE


def test_consumer_far_behind_is_sent_to_the_slave_in_mode_static(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.STATIC, settles=False, slave_read_enable=True, memory_ratio_max=0)
    group.settle()
    group.pass_time(4_000)
    for _ in range(3):
        group.send(group.brokers[0])
    answer = group.brokers[0].pull("TopicA", 0)
    assert answer is not None
    assert answer.fields["suggestWhichBrokerId"] == "1"


def test_send_with_too_few_members_in_sync_is_refused_before_storing(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.ELECT, min_in_sync=2)
    master = group.brokers[0]
    assert group.send(master) == ResponseCode.SUCCESS
    group.kill(1)
    group.pass_time(6_000)
    end = master.log_end
    answer = master.send("TopicA")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "2 are needed" in str(answer.remark)
    assert master.log_end == end
    group.start(1)
    group.pass_time(3_000)
    assert group.send(master) == ResponseCode.SUCCESS


def test_waiting_message_is_not_acknowledged_after_its_replica_left(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.ELECT, slave_timeout_ms=20_000)
    master = group.brokers[0]
    assert group.send(master) == ResponseCode.SUCCESS
    for wire in group.wires:
        wire.stalls_up = True
    waits = master.send_request(Code.SEND_MESSAGE_V2, send_fields("TopicA", 0, {}), b"alone")
    group.kill(1)
    group.pass_time(6_000)
    assert master.failover.member.in_sync_count == 1
    assert master.answer_to(waits) is None, "two copies are required, and there is one"
    group.pass_time(20_000)
    answer = master.answer_to(waits)
    assert answer is not None
    assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT


def test_send_back_is_acknowledged_when_all_members_in_sync_have_it(pair: RegistryGroup) -> None:
    """Found by chaos run 1027: an isolated master accepted sent-back messages, which its successor did not have."""
    master = pair.brokers[0]
    pair.send(master)
    for wire in pair.wires:
        wire.stalls_up = True
    waits = master.send_request(Code.CONSUMER_SEND_MSG_BACK, {"offset": 0, "group": "group", "delayLevel": 0})
    pair.settle()
    assert master.answer_to(waits) is None
    for wire in pair.wires:
        wire.stalls_up = False
    pair.pass_time(500)
    answer = master.answer_to(waits)
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS


def test_full_disk_while_the_state_of_the_log_is_saved_does_not_stop_the_broker(
    pair: RegistryGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = pair.brokers[0]

    def full(*_: object) -> None:
        raise DiskFull("failover.json: no space left")

    with monkeypatch.context() as patch:
        patch.setattr(TableFile, "save", full)
        master.failover.report(LogDoubted("a check found damage"), pair.now)
        pair.pass_time(6_000)
    pair.pass_time(1_000)
    assert pair.send(pair.brokers[1]) == ResponseCode.SUCCESS
    member = master.failover.member
    saved = journal.FILE.load(master.node.kernel.disk)
    assert (saved["isLogWhole"], saved["held"]) == (member.is_log_whole, list(member.held))
    assert saved["seen"]["epoch"] == pair.record.epoch


def test_registration_at_name_servers_follows_the_roles(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.ELECT)
    names = [broker.node.registration.broker_id for broker in group.brokers.values()]
    assert names == [0, 1]
    group.kill(0)
    group.pass_time(4_000)
    assert group.brokers[1].node.registration.broker_id == 0
    assert group.brokers[1].node.registration.epoch == 2
    group.start(0)
    group.pass_time(1_000)
    assert group.brokers[0].node.registration.broker_id == 1, "the id that its master does not use"


# Planned switch.


@spec("V18", "V19", "V17")
def test_switch_moves_the_master_role_with_offsets_at_once(pair: RegistryGroup) -> None:
    for number in range(3):
        pair.send(pair.brokers[0], b"%d" % number)
    pair.pass_time(1_200)
    pair.brokers[0].commit(2)
    asked = pair.brokers[0].send_request(Code.TANDEM_SWITCH, {"target": 1})
    pair.pass_time(400)
    answer = pair.brokers[0].answer_to(asked)
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert pair.serving is pair.brokers[1]
    assert pair.brokers[1].committed() == 2
    assert pair.brokers[0].send("TopicA").code == NO_PERMISSION
    pair.pass_time(1_000)
    assert pair.send(pair.brokers[1]) == ResponseCode.SUCCESS


@spec("V18")
def test_impossible_switch_is_refused_with_the_reason(pair: RegistryGroup) -> None:
    refusals = {
        pair.brokers[0].ask(Code.TANDEM_SWITCH, {"target": 7}).remark,
        pair.brokers[1].ask(Code.TANDEM_SWITCH, {"target": 1}).remark,
    }
    assert refusals == {
        "broker 7 is not a member of the group", "broker 1 is not the serving master; the record names broker 0",
    }  # fmt: skip
    assert pair.brokers[0].ask(Code.TANDEM_SWITCH, {"target": 0}).code == ResponseCode.SUCCESS


# Reading from the slave.


@spec("F09", "F22", "F26")
def test_slave_serves_reads_for_its_dead_master_and_hands_its_offsets_over_later(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.SLAVE_CONSUME)
    master = group.brokers[0]
    for number in range(6):
        assert group.send(master, b"%d" % number) == ResponseCode.SUCCESS
    master.commit(2)
    slave = group.let_slave_read()
    assert slave.send("TopicA").code == NO_PERMISSION
    assert slave.committed() == 2
    answer = slave.pull("TopicA", 2)
    assert answer is not None
    assert [message.body for message in messages_in(answer)] == [b"2", b"3", b"4", b"5"]
    slave.commit(5)
    master = group.start(0)
    group.pass_time(3_000)
    assert (master.may, slave.may) == ("RW", "")
    assert master.committed() == 5
    assert group.send(master) == ResponseCode.SUCCESS


@spec("M07")
def test_master_that_was_down_for_five_minutes_sets_no_offset_back(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.SLAVE_CONSUME)
    for _ in range(7):
        group.send(group.brokers[0])
    for reader in ("busy", "idle"):
        group.brokers[0].commit(1, group=reader)
    slave = group.let_slave_read()
    for minute in range(1, 6):
        slave.commit(1 + minute, group="busy")
        group.pass_time(60_000)
    slave.commit(3, group="new")
    master = group.start(0)
    group.pass_time(20_000)
    assert group.serving is master
    for broker in (master, slave):
        assert broker.node.offsets.table == {"TopicA@busy": {0: 6}, "TopicA@idle": {0: 1}, "TopicA@new": {0: 3}}


def test_replica_of_a_removed_member_does_not_count(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.SLAVE_CONSUME)
    master = group.brokers[0]
    assert group.send(master) == ResponseCode.SUCCESS
    del group.allowed[1]
    group.configure()
    group.pass_time(500)
    assert group.send(master) == ResponseCode.SLAVE_NOT_AVAILABLE
    group.allow(1, BrokerPermission.READ)
    group.pass_time(500)
    assert group.send(master) == ResponseCode.SUCCESS


@spec("F23")
def test_returning_master_is_not_registered_for_clients_before_the_handover(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.SLAVE_CONSUME)
    group.send(group.brokers[0])
    group.brokers[1].heartbeat("group", {"TopicA": "*"})
    group.kill(0)
    group.pass_time(4_000)
    group.brokers[1].heartbeat("group", {"TopicA": "*"})
    master = group.start(0)
    group.pass_time(500)
    assert master.stage == "awaiting hand-back"
    assert master.node.registration.broker_id is None
    group.pass_time(2_500)
    assert master.node.registration.broker_id == 0


@spec("F22", "M07")
def test_higher_offset_wins_and_a_reset_takes_precedence(tmp_path: Path) -> None:
    ours, theirs = (ConsumerOffsets(Saver(RealDisk(tmp_path / name)), 0) for name in ("ours", "theirs"))
    for queue_id, offset in enumerate([10, 5, 90]):
        ours.commit("T", "G", queue_id, offset)
    for queue_id, offset in enumerate([7, 8, 4]):
        theirs.commit("T", "G", queue_id, offset)
    theirs.reset("T", "G", 2, 3)
    theirs.commit("T", "H", 0, 1)
    before = loads(bytes(str(ours.as_json()).replace("'", '"'), "ascii"))
    ours.merge_positions(theirs.as_json())
    assert ours.table == {"T@G": {0: 10, 1: 8, 2: 3}, "T@H": {0: 1}}
    theirs.merge_positions(before)
    assert theirs.table == ours.table


def test_invalid_handovers_change_no_offset(pair: RegistryGroup) -> None:
    pair.send(pair.brokers[0])
    pair.brokers[0].commit(1)
    body = b'{"offsets":{"offsetTable":{"TopicA@group":{0:1000}}},"delays":{}}'
    for giver, token in ((1, 0), (0, 99), (1, 99)):
        answer = pair.brokers[0].ask(Code.TANDEM_HAND_OFFSETS, {"from": giver, "token": token}, body)
        assert answer.code != ResponseCode.SUCCESS
    assert pair.brokers[0].committed() == 1


# Status and timeline.


def test_status_and_timeline_show_the_active_member_its_time_and_reason(pair: RegistryGroup) -> None:
    status = pair.brokers[1].json(Code.TANDEM_FAILOVER_STATUS)
    assert (status["mode"], status["stage"], status["epoch"], status["master"]) == ("elect", "slave", 1, 0)
    assert status["inSync"] == [0, 1]
    assert (status["mayRead"], status["mayWrite"], status["registry"]) == (False, False, "up")
    pair.kill(0)
    pair.pass_time(4_000)
    status = pair.brokers[1].json(Code.TANDEM_FAILOVER_STATUS)
    assert (status["stage"], status["mayWrite"], status["epoch"]) == ("serving", True, 2)
    assert "broker 1 follows 0" in status["why"]
    assert status["timeline"][-1]["text"].startswith("may be read and written")
    assert {"ms", "epoch", "text"} == set(status["timeline"][-1])


def test_timeline_continues_after_a_kill(pair: RegistryGroup) -> None:
    before = pair.brokers[0].failover.timeline
    assert before
    pair.kill(0)
    pair.pass_time(4_000)
    again = pair.start(0)
    pair.pass_time(4_000)
    assert again.failover.timeline[: len(before)] == before
    assert again.failover.timeline[-1]["epoch"] > before[-1]["epoch"]


# Metadata that follows the log.


def test_commits_and_new_topics_are_replicated_at_once(pair: RegistryGroup) -> None:
    master, slave = pair.brokers[0], pair.brokers[1]
    master.create_topic("TopicB", queues=2)
    pair.send(master)
    master.heartbeat("group", {"TopicA": "*"})
    master.commit(1)
    pair.settle()
    assert slave.node.offsets.get("TopicA", "group", 0) == 1
    assert "TopicB" in slave.node.topics.table
    master.commit(0)
    pair.settle()
    assert slave.node.offsets.get("TopicA", "group", 0) == 0, "also when a consumer goes back"


@spec("F16", "R11")
def test_no_offset_is_reported_to_consumers_that_the_next_master_does_not_have(pair: RegistryGroup) -> None:
    """Found by chaos run 20051: an isolated master acknowledged commits until its lease was over."""
    master = pair.brokers[0]
    for _ in range(3):
        pair.send(master)
    master.commit(1)
    pair.apart.add(0)
    pair.cut_off.add(0)
    pair.pass_time(0)
    later = master.send_request(Code.UPDATE_CONSUMER_OFFSET, OFFSET | {"commitOffset": 3})
    asked = master.send_request(Code.QUERY_CONSUMER_OFFSET, OFFSET)
    pair.pass_time(200)
    assert master.may == "RW"
    assert master.answer_to(later) is None
    assert master.answer_to(asked) is None
    pair.pass_time(6_000)
    refusals = [master.answer_to(later), master.answer_to(asked)]
    assert [answer.code for answer in refusals if answer is not None] == [ResponseCode.NO_PERMISSION] * 2
    assert pair.serving is pair.brokers[1]
    assert pair.brokers[1].committed() == 1
    pair.brokers[1].commit(3)


@spec("F16")
def test_isolated_master_refuses_commits_and_offset_queries_at_once(pair: RegistryGroup) -> None:
    master = pair.brokers[0]
    pair.send(master)
    pair.registry_is_up = False
    pair.kill(1)
    pair.pass_time(2_000)
    assert master.may == ""
    for code in (Code.UPDATE_CONSUMER_OFFSET, Code.QUERY_CONSUMER_OFFSET):
        answer = master.answer_to(master.send_request(code, OFFSET | {"commitOffset": 1}))
        assert answer is not None
        assert answer.code == NO_PERMISSION


def test_offsets_from_before_the_connection_are_sent_when_it_opens(pair: RegistryGroup) -> None:
    pair.send(pair.brokers[0])
    pair.kill(1)
    pair.brokers[0].send_request(Code.UPDATE_CONSUMER_OFFSET, OFFSET | {"commitOffset": 1})
    slave = pair.start(1)
    pair.pass_time(1_000)
    assert slave.node.offsets.get("TopicA", "group", 0) == 1


def test_invalid_tables_are_logged_and_ignored_by_a_slave(
    pair: RegistryGroup, caplog: pytest.LogCaptureFixture
) -> None:
    stream = pair.brokers[1].node.replication.stream
    for kind, payload in ((5, b"[1]"), (5, b"{"), (5, b'{"offsetTable":{"T@G":7}}'), (6, b'{"offsetTable":[1]}')):
        stream.take(kind, payload)
    assert caplog.text.count("metadata of the master cannot be used") == 4
    assert pair.brokers[1].node.offsets.table == {}


def test_commits_survive_a_kill_of_the_only_member_that_has_them(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.SLAVE_CONSUME)
    for number in range(6):
        group.send(group.brokers[0], b"%d" % number)
    group.brokers[0].commit(5)
    group.kill(1)
    group.kill(0)  # both at once, before any table was saved
    master = group.start(0)
    group.pass_time(3_500)
    assert master.may == "RW"
    assert master.committed() == 5
    master.node.offsets.save()
    group.pass_time(100)
    assert not [name for name in master.disk.list("config") if name.startswith("consumerOffset.changes")]


def test_incomplete_line_of_changes_is_skipped_and_the_next_start_continues_behind_it(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    offsets = ConsumerOffsets(Saver(disk), 0)
    offsets.note(b'{"offsetTable":{"T@G":{0:5}}}')
    offsets.note(b'{"offsetTable":{"T@G":{0:4}}}')
    path = tmp_path / "config" / "consumerOffset.changes-0"
    path.write_bytes(path.read_bytes()[:-9])
    again = ConsumerOffsets(Saver(disk), 0)
    assert again.table == {"T@G": {0: 5}}
    again.note(b'{"offsetTable":{"T@G":{1:7}}}')
    assert ConsumerOffsets(Saver(disk), 0).table == {"T@G": {0: 5, 1: 7}}


def test_changes_included_in_a_newer_table_are_not_read_again(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    saver = Saver(disk)
    offsets = ConsumerOffsets(saver, 0)
    offsets.follow({"offsetTable": {"T@G": {0: 5}}}, b'{"offsetTable":{"T@G":{0:5}}}')
    before = (tmp_path / "config" / "consumerOffset.changes-0").read_bytes()
    offsets.follow({"offsetTable": {"T@G": {0: 9}}}, b'{"offsetTable":{"T@G":{0:9}}}')
    offsets.save()
    saver.finish()
    (tmp_path / "config" / "consumerOffset.changes-0").write_bytes(before)  # as if its removal and its end were lost
    again = ConsumerOffsets(Saver(disk), 0)
    assert again.table == {"T@G": {0: 9}}
    again.note(b'{"offsetTable":{"T@G":{0:11}}}')
    assert ConsumerOffsets(Saver(disk), 0).table == {"T@G": {0: 11}}


def test_delayed_message_of_a_dead_master_is_delivered_once_by_the_next(pair: RegistryGroup) -> None:
    old = pair.brokers[0]
    pair.send(old)
    for level in ("1", "3"):  # 1 s and 10 s
        opaque = old.send_request(Code.SEND_MESSAGE_V2, send_fields("TopicA", 0, {"DELAY": level}), level.encode())
        pair.settle()
        answer = old.answer_to(opaque)
        assert answer is not None
        assert answer.code == ResponseCode.SUCCESS
    pair.pass_time(2_500)
    pair.kill(0)
    pair.pass_time(4_000)
    new = pair.serving
    queue = new.node.store.queues["TopicA", 0]
    assert queue.max_offset == 2, "the one that was delivered before is not delivered again"
    pair.pass_time(6_000)
    bodies: list[bytes] = []
    while len(bodies) < queue.max_offset:
        answer = new.pull("TopicA", len(bodies))
        assert answer is not None
        bodies += [message.body for message in messages_in(answer)]
    assert bodies == [b"body", b"1", b"3"]
