"""A master whose machine fails and loses the end of its log, which its slave has."""

from pathlib import Path

import pytest

from tandemq.broker.features.delay.service import DelayedMessages
from tandemq.broker.features.scrub.repair import Repairs
from tandemq.broker.ha.lost_tail import REPAIR_MS
from tandemq.config.settings import BrokerConfig
from tandemq.errors import DiskFull
from tandemq.model.codes import ResponseCode
from tandemq.real.disk import RealDisk
from tests.spec import spec
from tests.unit.broker.ha.group import Group, Member, delete_files
from tests.unit.broker.harness import messages_in

OK = ResponseCode.SUCCESS
DEFAULTS = BrokerConfig()


def send_two_halves(group: Group) -> int:
    """Send twenty messages; return the end of the log after ten of them."""
    group.send_many(10)
    middle = group.master.log_end
    group.send_many(10)
    return middle


def lose_tail(group: Group, keep: int) -> None:
    """Stop the master's machine, which loses the log behind `keep`."""
    group.stop(group.master)
    log = group.master.node.store.log
    start = keep - keep % log.segment_bytes
    files = sorted((group.path / "master" / "commitlog").iterdir())
    for file in files:
        first = int(file.name)
        data = file.read_bytes()
        if first == start:
            file.write_bytes(data[: keep - first] + bytes(len(data) - (keep - first)))
        elif first > start:
            file.unlink()
    delete_files(group.path / "master" / "consumequeue")


def start_without_tail(group: Group, keep: int) -> None:
    """Restart the master without the log behind `keep`; its slaves do not reach it yet."""
    lose_tail(group, keep)
    group.refuses = True
    group.start_master(boot_id="boot-2")


@spec("W13")
def test_master_that_lost_its_tail_fetches_it_before_it_accepts_messages(tmp_path: Path) -> None:
    group = Group(tmp_path)
    middle = send_two_halves(group)
    end, whole = group.master.log_end, group.master.log_bytes()
    start_without_tail(group, middle)
    assert group.master.log_end == middle
    assert group.send_and_settle() == ResponseCode.SERVICE_NOT_AVAILABLE
    group.pass_time(120_000)
    assert group.send_and_settle() == ResponseCode.SERVICE_NOT_AVAILABLE
    group.refuses = False
    group.pass_time(6_000)
    assert group.master.log_end == end
    assert group.master.log_bytes() == whole
    assert group.send_and_settle() == OK
    assert group.master.node.store.queues["TopicA", 0].max_offset == 21
    group.assert_same_logs()
    assert not (tmp_path / "slave1" / "set-aside").exists()


@spec("W13")
def test_consumer_ahead_of_a_master_that_awaits_its_tail_keeps_its_offset(tmp_path: Path) -> None:
    group = Group(tmp_path)
    middle = send_two_halves(group)
    start_without_tail(group, middle)
    answer = group.master.pull("TopicA", 15)
    assert answer is not None
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "15")
    group.refuses = False
    group.pass_time(6_000)
    found = group.master.pull("TopicA", 15)
    assert found is not None
    assert len(messages_in(found)) == 5


def test_slave_that_deleted_the_lost_tail_is_not_treated_as_one_without_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Found by simulation seed 920891: the master continued the same history without the slave."""
    group = Group(tmp_path)
    group.send_many(10)
    middle = group.master.log_end
    group.send_many(60, size=5_000)
    start_without_tail(group, middle)
    while group.slave.node.store.log.start <= middle:
        group.slave.node.store.drop_first_segment()
    group.refuses = False
    group.pass_time(6_000)
    assert group.master.log_end == middle
    assert group.send_and_settle() == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "start this master with --accept-loss" in caplog.text
    group.stop(group.master)
    group.start_master(boot_id="boot-2", accept_loss=True)
    assert group.send_and_settle() in (OK, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE)
    assert group.master.node.replication.generations[-1][1] == middle


@spec("W13")
def test_slave_keeps_what_it_copied_after_the_tail_came_back(tmp_path: Path) -> None:
    """No new history begins when nothing was lost: a reconnecting slave must not quarantine valid bytes."""
    group = Group(tmp_path)
    group.send_many(10)
    lose_tail(group, group.master.log_end // 10 * 10 // 2 // 222 * 222)
    group.start_master(boot_id="boot-2")
    group.pass_time(6_000)
    assert group.send_and_settle() == OK
    group.cut()
    group.pass_time(200)
    assert group.send_and_settle() == OK
    group.assert_same_logs()
    assert not (tmp_path / "slave1" / "set-aside").exists()


@spec("W13")
def test_async_master_accepts_the_loss_after_30s_and_the_slave_quarantines_its_tail(tmp_path: Path) -> None:
    assert DEFAULTS.accept_loss_ms == 30_000
    group = Group(tmp_path, role="ASYNC_MASTER")
    middle = send_two_halves(group)
    tail = group.slave.log_bytes()[middle:]
    start_without_tail(group, middle)
    group.pass_time(29_900)
    assert group.send_and_settle() == ResponseCode.SERVICE_NOT_AVAILABLE
    group.pass_time(200)
    assert group.send_and_settle(b"new history") == OK
    group.refuses = False
    group.pass_time(10_000)
    group.assert_same_logs()
    (aside,) = (tmp_path / "slave1" / "set-aside").iterdir()
    assert aside.name == f"{middle:020d}"
    assert aside.read_bytes() == tail
    found = group.slave.pull("TopicA", 10)
    assert found is not None
    assert [message.body for message in messages_in(found)] == [b"new history"]


@spec("W13")
def test_slave_that_responded_meanwhile_gets_the_new_history_at_once(tmp_path: Path) -> None:
    """One slave responds, the other never does; then the loss is accepted. The first must not be truncated later."""
    group = Group(tmp_path, role="ASYNC_MASTER", slaves=2)
    group.send_many(10)
    group.stop(group.slaves.pop(1), clean=True)
    lose_tail(group, group.master.log_end)
    group.start_master(boot_id="boot-2")
    group.pass_time(31_000)
    assert group.send_and_settle() == OK
    group.pass_time(6_000)
    group.assert_same_logs()
    group.cut()
    group.pass_time(6_000)
    assert group.send_and_settle() == OK
    group.assert_same_logs()
    assert not (tmp_path / "slave1" / "set-aside").exists()


class FullDisk(RealDisk):
    """A disk that accepts no tables while it is full."""

    is_full = False

    def replace(self, path: str, data: bytes, *, is_secret: bool = False) -> None:
        if self.is_full:
            raise DiskFull(f"{path}: no space left on the device")
        super().replace(path, data, is_secret=is_secret)


def test_full_disk_does_not_prevent_a_slave_from_returning_the_tail(tmp_path: Path) -> None:
    """Found by simulation seed 5232: a slave's response could not be saved, and its connection was closed for that."""
    group = Group(tmp_path)
    middle = send_two_halves(group)
    end = group.master.log_end
    lose_tail(group, middle)
    disk = group.master_disk = FullDisk(tmp_path / "master")
    group.refuses = True
    group.start_master(boot_id="boot-2")
    disk.is_full = True
    group.refuses = False
    group.pass_time(6_000)
    assert group.master.log_end == end
    assert group.master.node.faults == 0
    assert group.send_and_settle() == OK
    group.assert_same_logs()


def test_slave_that_cannot_be_saved_on_a_full_disk_does_not_count(tmp_path: Path) -> None:
    """Found by simulation seed 255: at its second hello it was treated as saved."""
    group = Group(tmp_path, connects=False)
    group.stop(group.master, clean=True)
    disk = group.master_disk = FullDisk(tmp_path / "master")
    group.start_master()
    assert group.send_and_settle() == ResponseCode.SLAVE_NOT_AVAILABLE, "and its topic is saved"
    disk.is_full = True
    group.refuses = False
    group.pass_time(20_000)
    assert group.send_and_settle() == ResponseCode.SLAVE_NOT_AVAILABLE
    disk.is_full = False
    group.pass_time(6_000)
    assert group.send_and_settle() == OK
    group.assert_same_logs()


def test_two_slaves_return_the_same_tail_and_it_is_stored_once(tmp_path: Path) -> None:
    """Found by simulation seed 323: the tail of the second slave was appended to that of the first."""
    group = Group(tmp_path, slaves=2)
    middle = send_two_halves(group)
    end, whole = group.master.log_end, group.master.log_bytes()
    start_without_tail(group, middle)
    group.refuses = False
    group.pass_time(20_000)
    assert (group.master.log_end, group.master.log_bytes()) == (end, whole)
    assert group.send_and_settle() == OK
    group.assert_same_logs()


def test_full_disk_delays_the_acceptance_of_a_loss(tmp_path: Path) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER")
    group.send_many(10)
    lose_tail(group, group.master.log_end)
    disk = group.master_disk = FullDisk(tmp_path / "master")
    group.refuses = True
    group.start_master(boot_id="boot-2")
    history = list(group.master.node.replication.generations)
    disk.is_full = True
    group.pass_time(60_000)
    assert group.send_and_settle() == ResponseCode.SERVICE_NOT_AVAILABLE
    assert group.master.node.replication.generations == history
    disk.is_full = False
    group.pass_time(2_000)
    assert group.send_and_settle() == OK
    assert len(group.master.node.replication.generations) == len(history) + 1


def test_operator_accepts_the_loss(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.send_many(10)
    middle = group.master.log_end
    group.send_many(5)
    lose_tail(group, middle)
    group.start_master(boot_id="boot-2", accept_loss=True)
    group.pass_time(6_000)
    assert group.send_and_settle() == OK
    group.assert_same_logs()
    assert (tmp_path / "slave1" / "set-aside").exists()


def test_killed_process_on_a_running_machine_waits_for_no_slave(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.send_many(10)
    group.stop(group.master)
    group.refuses = True
    group.start_master(boot_id="boot-1")
    assert group.send_and_settle() == ResponseCode.SLAVE_NOT_AVAILABLE


@pytest.mark.parametrize("clean", [True, False])
def test_restart_while_waiting_for_a_slave_continues_to_wait(tmp_path: Path, clean: bool) -> None:
    """An operator restarts the master early: the slave's tail is still fetched first."""
    group = Group(tmp_path)
    middle = send_two_halves(group)
    end = group.master.log_end
    start_without_tail(group, middle)
    group.pass_time(5_000)
    group.stop(group.master, clean=clean)
    group.start_master(boot_id="boot-2")
    assert group.send_and_settle() == ResponseCode.SERVICE_NOT_AVAILABLE
    group.refuses = False
    group.pass_time(6_000)
    assert group.master.log_end == end
    assert group.send_and_settle() == OK
    group.stop(group.master, clean=clean)
    group.start_master(boot_id="boot-2")
    group.pass_time(6_000)
    assert group.send_and_settle() == OK


def offset_of(member: Member, group: str = "group", queue_id: int = 0) -> int | None:
    return member.node.offsets.get("TopicA", group, queue_id)


@spec("W13")
def test_offsets_beyond_the_end_are_set_to_it_when_the_loss_is_accepted_and_not_before(tmp_path: Path) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER")
    middle = send_two_halves(group)
    group.master.commit(20)
    group.master.commit(7, group="slow")
    group.master.node.offsets.save()
    group.master.turn()
    group.slave.commit(20)
    start_without_tail(group, middle)
    assert offset_of(group.master) == 20
    group.pass_time(30_100)
    assert group.master.node.store.queues["TopicA", 0].max_offset == 10
    assert offset_of(group.master) == 10
    assert offset_of(group.master, "slow") == 7
    assert group.send_and_settle(b"next") == OK
    found = group.master.pull("TopicA", 10)
    assert found is not None
    assert [message.body for message in messages_in(found)] == [b"next"]
    group.stop(group.master)
    group.start_master(boot_id="boot-2")
    assert offset_of(group.master) == 10
    assert offset_of(group.slave) == 20
    group.refuses = False
    group.pass_time(10_000)
    group.tell_master(group.slave)
    group.pass_time(10_000)
    assert offset_of(group.slave) == 10


def test_offsets_stay_when_the_tail_is_returned(tmp_path: Path) -> None:
    group = Group(tmp_path)
    middle = send_two_halves(group)
    group.master.commit(20)
    group.master.node.offsets.save()
    group.master.turn()
    lose_tail(group, middle)
    group.start_master(boot_id="boot-2")
    group.pass_time(6_000)
    assert group.send_and_settle() == OK
    assert offset_of(group.master) == 20


def test_slave_keeps_offsets_its_log_has_not_reached_yet(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.send_many(10)
    group.slave.commit(500)
    group.restart_slave(clean=True)
    assert offset_of(group.slave) == 500


def test_delay_progress_beyond_the_end_is_set_to_it(tmp_path: Path) -> None:
    group = Group(tmp_path, slaves=0, role="ASYNC_MASTER")
    group.master.send("TopicA", b"late", DELAY="1")
    group.pass_time(20_000)
    assert group.master.node.features.find(DelayedMessages).progress[1].offset == 1
    group.stop(group.master, clean=True)
    delete_files(tmp_path / "master" / "commitlog")
    delete_files(tmp_path / "master" / "consumequeue")
    delete_files(tmp_path / "master" / "index")
    (tmp_path / "master" / "tandemq.marks").unlink()
    group.start_master()
    assert group.master.node.features.find(DelayedMessages).progress[1].offset == 0
    group.master.send("TopicA", b"again", DELAY="1")
    group.pass_time(20_000)
    found = group.master.pull("TopicA", 0)
    assert found is not None
    assert [message.body for message in messages_in(found)] == [b"again"]


def test_killed_master_with_a_damaged_last_record_gives_its_offset_to_no_other_message(tmp_path: Path) -> None:
    """Found by simulation seed 6000159: a write was lost, and the entries of its record were not written yet."""
    group = Group(tmp_path)
    group.send_many(60, size=400)
    start = group.master.log_end
    group.send_many(1)
    end = group.master.log_end
    group.send_many(4, topic="TopicB")
    whole = group.master.log_bytes()
    group.stop(group.master)
    with (tmp_path / "master" / "commitlog" / ("0" * 20)).open("r+b") as log:
        log.seek(start)
        log.write(bytes(end - start))
    delete_files(tmp_path / "master" / "consumequeue")
    group.refuses = True
    group.start_master(boot_id="boot-1")
    group.pass_time(2_000)
    assert group.send_and_settle() == ResponseCode.SERVICE_NOT_AVAILABLE
    group.refuses = False
    for _ in range(REPAIR_MS // 100):
        if group.send_and_settle() == OK:
            break
        group.pass_time(100)
    assert group.master.log_bytes().startswith(whole)
    assert group.master.node.store.queues["TopicA", 0].max_offset == 62
    group.assert_same_logs()


def test_queue_whose_only_record_is_repaired_has_it_and_gives_its_offset_to_no_other(tmp_path: Path) -> None:
    """Found by simulation seed 5000519: the start did not make the queue, and the repair did not enter the record."""
    group = Group(tmp_path)
    group.send_many(60, size=400)
    start = group.master.log_end
    group.send_many(1, topic="TopicB")
    end = group.master.log_end
    group.send_many(4)
    group.pass_time(1_000)
    group.stop(group.master, clean=True)
    with (tmp_path / "master" / "commitlog" / ("0" * 20)).open("r+b") as log:
        log.seek(start)
        log.write(bytes(end - start))
    delete_files(tmp_path / "master" / "consumequeue")
    group.start_master(boot_id="boot-1")
    for _ in range(REPAIR_MS // 100):
        group.pass_time(100)
        if ("TopicB", 0) in group.master.node.store.queues:
            break
    assert group.master.node.store.queues["TopicB", 0].max_offset == 1
    group.send_many(1, topic="TopicB")
    assert group.master.node.store.queues["TopicB", 0].max_offset == 2
    group.assert_same_logs()


@pytest.mark.parametrize("is_reached", [True, False])
def test_queue_whose_last_record_is_damaged_gives_its_offset_to_no_other_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_reached: bool
) -> None:
    """Found by simulation seed 94: the marks were damaged too, so that a torn record in the middle was no tail."""
    group = Group(tmp_path)
    group.send_many(10)
    start = group.master.log_end
    group.send_many(1)
    end = group.master.log_end
    group.send_many(1, topic="TopicB")
    keep = group.master.log_end
    group.send_many(3, topic="TopicB")
    whole = group.master.log_bytes()
    lose_tail(group, keep)
    with (tmp_path / "master" / "commitlog" / ("0" * 20)).open("r+b") as log:
        log.seek(start)
        log.write(bytes(end - start))
    (tmp_path / "master" / "tandemq.marks").unlink()
    if not is_reached:
        monkeypatch.setattr(Repairs, "_ask", lambda _self, _now: None)
    group.start_master(boot_id="boot-2")
    if not is_reached:
        group.pass_time(2_000)
        assert group.send_and_settle() == ResponseCode.SERVICE_NOT_AVAILABLE
        group.pass_time(REPAIR_MS)
        assert group.send_and_settle() == OK, "the repair does not come"
        return
    for _ in range(REPAIR_MS // 100):
        if group.send_and_settle() == OK:
            break
        group.pass_time(100)
    assert group.master.log_bytes().startswith(whole)
    assert group.master.node.store.queues["TopicA", 0].max_offset == 12
    group.assert_same_logs()
