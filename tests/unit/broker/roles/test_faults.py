"""Failures of disk, tables and connections of a broker in a group with a registry."""

from pathlib import Path
from random import Random

import pytest

from lab.sim.world.disk import SimDisk
from tandemq.boundary import JobDone, LinkKind
from tandemq.broker.features.delay.progress import NOTHING, LevelProgress
from tandemq.broker.features.delay.service import DelayedMessages
from tandemq.broker.kernel.role import LogDoubted
from tandemq.broker.roles import offset_barrier
from tandemq.broker.state import generations
from tandemq.coordination.registry.records import Mode
from tandemq.errors import DiskFailed, DiskFull, StoreDamaged
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.real.disk import RealDisk, RealFile
from tests.unit.broker.harness import messages_in, run_job, send_fields
from tests.unit.broker.roles.registry_group import Broker, RegistryGroup

OFFSET = {"consumerGroup": "group", "topic": "TopicA", "queueId": 0}


@pytest.fixture
def pair(tmp_path: Path) -> RegistryGroup:
    return RegistryGroup(tmp_path, Mode.ELECT)


def full(*_: object) -> None:
    """Replacement of `save_epochs` that fails."""
    raise DiskFull("epochFileCheckpoint: no space left")


def do_jobs(broker: Broker) -> None:
    """Run the jobs that were waiting for the device."""
    broker.run_jobs = True
    while broker.jobs:
        broker.turn([], [run_job(broker.jobs.pop(0))])


def test_message_waiting_for_its_topic_is_not_acknowledged_after_another_became_master(pair: RegistryGroup) -> None:
    old = pair.brokers[0]
    assert pair.send(old, b"kept") == ResponseCode.SUCCESS
    for wire in pair.wires:
        wire.stalls_down = True
    old.run_jobs = False
    waits = old.send_request(Code.SEND_MESSAGE_V2, send_fields("TopicB", 0, {}), b"lost")
    assert old.answer_to(waits) is None, "its topic is not saved yet"
    pair.cut_off.add(0)
    pair.apart.add(0)
    pair.pass_time(5_000)
    new = pair.serving
    assert new is pair.brokers[1]
    for number in range(20):
        pair.send(new, b"new %d" % number)
    pair.cut_off.clear()
    pair.apart.clear()
    pair.pass_time(3_000)
    assert old.stage == "slave"
    assert old.log_bytes() == new.log_bytes()
    do_jobs(old)
    pair.pass_time(3_000)
    answer = old.answer_to(waits)
    assert answer is not None
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE, answer.remark


def test_master_with_a_doubtful_log_serves_reads_again_after_an_offset_handover(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.SLAVE_CONSUME)
    master = group.brokers[0]
    group.send(master)
    group.pass_time(1_500)
    master.failover.report(LogDoubted("a check found damage"), group.now)
    group.cut_off.add(0)
    group.apart.add(0)
    group.pass_time(5_000)
    assert group.brokers[1].may == "R"
    group.cut_off.clear()
    group.apart.clear()
    group.pass_time(6_000)
    assert (master.may, group.brokers[1].may) == ("RW", "")


@pytest.mark.parametrize("mode", [Mode.ELECT, Mode.SLAVE_CONSUME])
def test_epoch_that_cannot_be_saved_on_a_full_disk_begins_when_there_is_room(
    tmp_path: Path, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = RegistryGroup(tmp_path, mode, settles=False)
    with monkeypatch.context() as patch:
        patch.setattr(generations, "save_epochs", full)
        group.pass_time(6_000)
        assert [broker.may for broker in group.brokers.values()] == ["", ""]
    group.pass_time(3_000)
    assert group.serving is group.brokers[0]
    group.pass_time(3_000)
    assert group.send(group.brokers[0]) == ResponseCode.SUCCESS


def test_elected_member_with_a_full_disk_serves_when_there_is_room(
    pair: RegistryGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.send(pair.brokers[0])
    pair.kill(0)
    with monkeypatch.context() as patch:
        patch.setattr(generations, "save_epochs", full)
        pair.pass_time(6_000)
        assert pair.brokers[1].may == ""
    pair.pass_time(3_000)
    assert pair.brokers[1].may == "RW"


def test_static_mode_begins_when_a_full_disk_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = RegistryGroup(tmp_path, Mode.STATIC, settles=False)
    with monkeypatch.context() as patch:
        patch.setattr(generations, "save_epochs", full)
        group.settle()
        group.pass_time(3_000)
        assert group.brokers[0].send("TopicA").code == ResponseCode.NO_PERMISSION
    group.pass_time(3_000)
    assert group.brokers[0].node.failover is None
    assert group.brokers[0].node.replication.generations == [(1, 0)]


def test_offsets_handed_over_twice_are_answered_only_when_they_are_saved(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.SLAVE_CONSUME)
    group.send(group.brokers[0])
    slave = group.let_slave_read()
    slave.commit(1)
    group.apart.add(0)
    master = group.start(0)
    group.pass_time(3_000)
    assert master.stage == "awaiting hand-back"
    body = b'{"offsets":{"offsetTable":{"TopicA@group":{0:1}}},"delays":{}}'
    fields = {"from": 1, "token": master.failover.member.view.version}
    master.run_jobs = False

    def hand_over_and_fail() -> int:
        asked = master.send_request(Code.TANDEM_HAND_OFFSETS, fields, body)
        answer = master.answer_to(asked)
        assert answer is None, "answered before it is saved"
        assert master.stage == "awaiting hand-back"
        for job in master.jobs:
            fails = job.name == "save tables"
            master.turn([], [JobDone(job, error=DiskFailed("consumerOffset.json")) if fails else run_job(job)])
        master.jobs.clear()
        answer = master.answer_to(asked)
        assert answer is not None
        return answer.code

    assert hand_over_and_fail() == ResponseCode.SYSTEM_ERROR
    assert hand_over_and_fail() == ResponseCode.SYSTEM_ERROR


def test_slave_whose_disk_failed_is_not_elected(pair: RegistryGroup) -> None:
    pair.send(pair.brokers[0])
    pair.pass_time(1_000)
    slave = pair.brokers[1]
    slave.node.flush.disk_failed(DiskFailed("commitlog: input/output error"), slave.node.kernel.turn.out, pair.now)
    pair.pass_time(3_000)
    assert not slave.failover.member.is_log_whole
    pair.kill(0)
    pair.pass_time(6_000)
    assert slave.may == ""
    assert slave.stage == "slave"


def test_master_whose_writes_fail_hands_over_and_nothing_is_lost(tmp_path: Path) -> None:
    disks = {number: SimDisk(Random(number)) for number in range(2)}
    pair = RegistryGroup(tmp_path, Mode.ELECT, disks=disks)
    old, new = pair.brokers.values()
    assert pair.send(old, b"kept") == ResponseCode.SUCCESS
    disks[0].fail("pwrite", 1, times=1 << 20, error=DiskFailed, prefix="commitlog/")
    assert pair.send(old, b"refused") not in (ResponseCode.SUCCESS, None)
    pair.pass_time(2_000)
    assert (pair.serving, old.stage) == (new, "slave")
    pair.send(new, b"new")
    pair.pass_time(16_000)
    assert pair.record.in_sync == (1,), "a slave that cannot write leaves the set"
    assert pair.send(new, b"last") == ResponseCode.SLAVE_NOT_AVAILABLE  # stored, in one copy
    answer = new.pull("TopicA", 0)
    assert answer is not None
    assert [message.body for message in messages_in(answer)] == [b"kept", b"new", b"last"]


def test_accepting_a_loss_once_does_not_accept_later_ones(pair: RegistryGroup) -> None:
    master = pair.brokers[0]
    pair.send(master)
    pair.kill(1)
    pair.pass_time(6_000)
    assert master.failover.member.in_sync_count == 1
    master.failover.report(LogDoubted("a check found damage"), pair.now)
    pair.pass_time(1_000)
    assert master.may == ""
    assert master.ask(Code.TANDEM_FORCE_MASTER, {}).code == ResponseCode.SUCCESS
    pair.pass_time(2_000)
    assert master.may == "RW"
    master.failover.report(LogDoubted("a check found other damage"), pair.now)
    pair.pass_time(2_000)
    assert master.may == ""


def test_progress_of_delayed_messages_is_not_replicated_before_their_delivery(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.ELECT, ha_bytes_per_second=3_000)
    master = group.brokers[0]
    group.pass_time(1_000)
    asked = master.send_request(Code.SEND_MESSAGE_V2, send_fields("TopicA", 0, {"DELAY": "1"}), b"delayed")
    group.settle()
    answer = master.answer_to(asked)
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS
    group.pass_time(900)
    for _ in range(3):  # uses up the transfer rate
        master.send_request(Code.SEND_MESSAGE_V2, send_fields("TopicB", 0, {}), bytes(2_500))
    group.pass_time(250)
    assert master.node.features.find(DelayedMessages).progress == {1: LevelProgress(1)}
    slave = group.brokers[1]
    assert slave.log_end < master.log_end
    assert slave.node.features.find(DelayedMessages).progress.get(1, NOTHING) == NOTHING
    group.kill(0)
    group.pass_time(6_000)
    assert slave.may == "RW"
    assert delivered(slave) == [b"delayed"]


def delivered(broker: Broker) -> list[bytes]:
    answer = broker.pull("TopicA")
    return [] if answer is None else [message.body for message in messages_in(answer)]


def test_progress_of_truncated_deliveries_is_reverted(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.ELECT)
    old = group.brokers[0]
    assert group.send(old) == ResponseCode.SUCCESS
    group.pass_time(1_000)
    asked = old.send_request(Code.SEND_MESSAGE_V2, send_fields("TopicA", 0, {"DELAY": "1"}), b"delayed")
    group.settle()
    answer = old.answer_to(asked)
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS
    for wire in group.wires:
        wire.stalls_down = True
    group.pass_time(1_200)
    assert old.node.features.find(DelayedMessages).progress == {1: LevelProgress(1)}
    old.node.features.find(DelayedMessages).save()
    old.turn()
    group.kill(0)
    group.pass_time(4_000)
    new = group.brokers[1]
    assert new.may == "RW"
    new.node.features.find(DelayedMessages).progress[1] = NOTHING  # as if it had not delivered it yet
    new.node.features.find(DelayedMessages).version.counter += 1
    old = group.start(0)
    group.settle()
    assert old.node.features.find(DelayedMessages).progress.get(1, NOTHING) == NOTHING


def test_stalled_connection_does_not_delay_tables_for_other_members(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.ELECT, members=3)
    group.pass_time(2_000)
    master = group.brokers[0]
    group.send(master)
    (stalled,) = [wire for wire in group.wires if wire.bottom is group.brokers[2] and wire.kind is LinkKind.HA_MASTER]
    stalled.stalls_down = True
    master.outbox.waiting[stalled.top_link] = 5 << 20
    group.send(master)
    commit = master.send_request(Code.UPDATE_CONSUMER_OFFSET, OFFSET | {"commitOffset": 1})
    group.pass_time(100)
    assert master.answer_to(commit) is None
    assert group.brokers[1].node.offsets.get("TopicA", "group", 0) == 1
    assert group.brokers[2].node.offsets.get("TopicA", "group", 0) is None
    master.outbox.waiting[stalled.top_link] = 0
    stalled.stalls_down = False
    group.pass_time(500)
    assert group.brokers[2].node.offsets.get("TopicA", "group", 0) == 1
    answer = master.answer_to(commit)
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS


def test_member_whose_log_becomes_doubtful_during_a_claim_is_not_elected(pair: RegistryGroup) -> None:
    pair.send(pair.brokers[0])
    pair.pass_time(1_000)
    member = pair.brokers[0].failover.member
    member._service.reclaim("a hand-over was given up", pair.now)
    member.tick(pair.now)
    assert member.view.pending is not None
    pair.brokers[0].failover.report(LogDoubted("a check found damage"), pair.now)
    pair.pass_time(3_000)
    assert pair.brokers[1].may == "RW"


def test_member_whose_log_becomes_doubtful_while_the_record_is_written_is_not_elected(pair: RegistryGroup) -> None:
    pair.send(pair.brokers[0])
    pair.pass_time(1_000)
    member = pair.brokers[0].failover.member
    assert member.view.state is not None
    member.view.propose(member.view.state)
    pair.brokers[0].failover.report(LogDoubted("a check found damage"), pair.now)
    pair.pass_time(3_000)
    assert pair.brokers[1].may == "RW"


def test_loss_found_by_a_start_that_failed_is_found_again_by_the_next(pair: RegistryGroup) -> None:
    pair.send(pair.brokers[0])
    pair.kill(1)
    disk = RealDisk(pair.path / "b1")
    (pair.path / "b1" / "config" / "subscriptionGroup.json").write_text("{")
    with pytest.raises(StoreDamaged):
        pair.start(1, boot_id="boot-2")
    disk.replace("config/subscriptionGroup.json", b'{"subscriptionGroupTable": {}}')
    pair.kill(0)
    slave = pair.start(1, boot_id="boot-2")
    pair.pass_time(6_000)
    assert (slave.may, slave.failover.member.is_log_whole) == ("", False)
    pair.start(0)
    pair.pass_time(6_000)
    assert slave.failover.member.is_log_whole
    pair.kill(1)
    assert pair.start(1, boot_id="boot-2").failover.member.is_log_whole


def test_offsets_of_a_removed_topic_are_not_restored(pair: RegistryGroup) -> None:
    master, slave = pair.brokers[0], pair.brokers[1]
    pair.send(master)
    master.commit(1)
    pair.settle()
    assert slave.node.offsets.get("TopicA", "group", 0) == 1
    assert master.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "TopicA"}).code == ResponseCode.SUCCESS
    pair.settle()
    assert slave.node.offsets.table == {}


def after_room_and_kill(group: RegistryGroup, disks: dict[int, SimDisk]) -> Broker:
    """Free the full disk of the master, kill both members half a second later, return the restarted master."""
    group.pass_time(1_000)
    disks[0].heal()
    group.pass_time(450)
    for number in (0, 1):
        group.kill(number)
        disks[number].kill()
    return group.start(0)


def test_commits_refused_by_a_full_disk_are_saved_as_soon_as_there_is_room(tmp_path: Path) -> None:
    """Found by chaos run 20080: the disk was full, had room again, and half a second later the process was killed."""
    disks = {number: SimDisk(Random(number)) for number in range(2)}
    group = RegistryGroup(tmp_path, Mode.SLAVE_CONSUME, disks=disks, offsets_persist_ms=60_000)
    for _ in range(3):
        group.send(group.brokers[0])
    disks[0].fail("pwrite", times=-1, error=DiskFull, prefix="config/")
    group.brokers[0].send_request(Code.UPDATE_CONSUMER_OFFSET, OFFSET | {"commitOffset": 3})
    assert after_room_and_kill(group, disks).node.offsets.get("TopicA", "group", 0) == 3


def test_offsets_removed_while_the_disk_was_full_stay_removed(tmp_path: Path) -> None:
    disks = {number: SimDisk(Random(number)) for number in range(2)}
    group = RegistryGroup(tmp_path, Mode.SLAVE_CONSUME, disks=disks, offsets_persist_ms=60_000)
    group.send(group.brokers[0])
    group.brokers[0].commit(1)
    disks[0].fail("pwrite", times=-1, error=DiskFull, prefix="config/consumerOffset")
    group.brokers[0].node.offsets.remove_topic("TopicA")
    assert after_room_and_kill(group, disks).node.offsets.table == {}


def test_held_pull_of_an_unreadable_queue_is_answered_and_the_broker_continues(
    pair: RegistryGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = pair.brokers[0]
    pair.send(master, b"0")
    for wire in pair.wires:
        wire.stalls_up = True
    assert pair.send(master, b"1") is None, "only one member has it, so it may not be shown"
    pair.pass_time(1_200)
    assert master.pull("TopicA", 1, wait_ms=20_000) is None
    held = master._opaque
    read = RealFile.pread

    def pread(file: RealFile, size: int, position: int) -> bytes:
        if "consumequeue" in file.path:
            raise DiskFailed("Input/output error")
        return read(file, size, position)

    monkeypatch.setattr(RealFile, "fileno", lambda _: -1)
    monkeypatch.setattr(RealFile, "pread", pread)
    monkeypatch.setattr(RealFile, "pread_cached", pread)
    pair.pass_time(100)
    assert master.answer_to(held) is None, "it waits for its message"
    for wire in pair.wires:
        wire.stalls_up = False
    pair.settle()
    answer = master.answer_to(held)
    assert answer is not None
    assert answer.code == ResponseCode.SYSTEM_ERROR
    monkeypatch.undo()
    answer = master.pull("TopicA", 1)
    assert answer is not None
    assert [message.body for message in messages_in(answer)] == [b"1"]


@pytest.mark.parametrize("mode", [Mode.ELECT, Mode.SLAVE_CONSUME])
def test_offset_refused_by_a_full_disk_is_not_reported_before_it_is_saved(tmp_path: Path, mode: Mode) -> None:
    """Chaos run 101005: full disk, killed right after, master again within its session: offsets went back by 150."""
    disks = {number: SimDisk(Random(number)) for number in range(2)}
    group = RegistryGroup(tmp_path, mode, disks=disks, offsets_persist_ms=60_000)
    group.pass_time(2_000)
    master = group.brokers[0]
    for _ in range(3):
        group.send(master)
    master.commit(1)
    group.pass_time(200)
    disks[0].fail("pwrite", times=-1, error=DiskFull, prefix="config/")
    commit = master.send_request(Code.UPDATE_CONSUMER_OFFSET, OFFSET | {"commitOffset": 3})
    query = master.send_request(Code.QUERY_CONSUMER_OFFSET, OFFSET)
    group.pass_time(300)
    assert (master.answer_to(commit), master.answer_to(query)) == (None, None)
    later = master.send_request(Code.QUERY_CONSUMER_OFFSET, OFFSET)
    group.pass_time(100)
    assert master.answer_to(later) is None
    group.kill(0)
    disks[0].kill()
    again = group.start(0)
    group.pass_time(200)
    assert again.node.offsets.get("TopicA", "group", 0) == 1, "no other offset was reported"


def test_offsets_are_reported_again_as_soon_as_the_full_disk_has_room(tmp_path: Path) -> None:
    disks = {number: SimDisk(Random(number)) for number in range(2)}
    group = RegistryGroup(tmp_path, Mode.ELECT, disks=disks, offsets_persist_ms=60_000)
    group.pass_time(2_000)
    master = group.brokers[0]
    for _ in range(3):
        group.send(master)
    disks[0].fail("pwrite", times=-1, error=DiskFull, prefix="config/")
    waiting = [master.send_request(Code.UPDATE_CONSUMER_OFFSET, OFFSET | {"commitOffset": 3}) for _ in range(3)]
    group.pass_time(300)
    assert [master.answer_to(asked) for asked in waiting] == [None] * 3
    disks[0].heal()
    group.pass_time(300)
    answers = [master.answer_to(asked) for asked in waiting]
    assert [answer.code for answer in answers if answer is not None] == [ResponseCode.SUCCESS] * 3
    assert master.committed() == 3


def test_requests_that_wait_for_a_full_disk_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_barrier, "WAITING_MAX", 2)
    disks = {number: SimDisk(Random(number)) for number in range(2)}
    group = RegistryGroup(tmp_path, Mode.ELECT, disks=disks, offsets_persist_ms=60_000)
    group.pass_time(2_000)
    master = group.brokers[0]
    group.send(master)
    disks[0].fail("pwrite", times=-1, error=DiskFull, prefix="config/")
    master.send_request(Code.UPDATE_CONSUMER_OFFSET, OFFSET | {"commitOffset": 1})
    asked = [master.send_request(Code.QUERY_CONSUMER_OFFSET, OFFSET) for _ in range(3)]
    group.pass_time(100)
    answers = [master.answer_to(number) for number in asked]
    assert [answer.code for answer in answers if answer is not None] == [ResponseCode.SYSTEM_BUSY]
