"""Responses to sends that wait for slaves and for the disk."""

from pathlib import Path

import pytest

from tandemq.boundary import Job, JobDone, LinkKind
from tandemq.codec.ha import KIND_REPORT, checked
from tandemq.config.settings import BrokerConfig
from tandemq.errors import DiskFailed
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.storage.quarantine import quarantine_tail
from tests.spec import spec
from tests.unit.broker.ha.group import Group, Member, delete_files
from tests.unit.broker.harness import Harness, messages_in, run_job, send_fields

OK = ResponseCode.SUCCESS
DEFAULTS = BrokerConfig()


def ha_status(member: Harness) -> list[tuple[str, int]]:
    """Return peer and acknowledged offset of each slave that counts."""
    masters = member.node.replication.masters
    return [(masters.peers[link], session.acked_offset) for link, session in masters.sessions.items()]


@spec("R06", "W02", "W04")
def test_sync_master_without_a_slave_responds_at_once_and_stores_the_message(tmp_path: Path) -> None:
    master = Harness(tmp_path, role="SYNC_MASTER")
    for _ in range(5):
        assert master.send("TopicA", b"alone").code == ResponseCode.SLAVE_NOT_AVAILABLE
    found = master.pull("TopicA")
    assert found is not None
    assert [message.body for message in messages_in(found)] == [b"alone"] * 5


@spec("W02", "W05", "W06", "R08", "W10")
def test_send_is_acknowledged_when_the_reported_offset_reaches_its_end(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.wire.stalls_up = True
    opaque = group.send()
    group.settle()
    assert group.slave.log_end == group.master.log_end
    assert group.code_of(opaque) is None
    report = checked(KIND_REPORT, group.master.log_end.to_bytes(8))
    assert bytes(group.slave.out[group.wire.bottom_link][-len(report) :]) == report
    group.wire.stalls_up = False
    since = group.now.mono_ms
    group.settle()
    assert group.code_of(opaque) == OK
    assert group.now.mono_ms == since


@spec("W03")
def test_message_that_does_not_wait_is_answered_at_once(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.wire.stalls_down = True
    opaque = group.send(WAIT="false")
    assert group.code_of(opaque) == OK
    group.cut()
    group.refuses = True
    assert group.code_of(group.send(WAIT="false")) == OK
    assert group.code_of(group.send(WAIT="FALSE")) == OK


@spec("W03")
def test_asynchronous_master_never_waits(tmp_path: Path) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER")
    group.wire.stalls_down = True
    assert group.code_of(group.send()) == OK


@spec("W07", "W02")
def test_send_times_out_after_3s_with_a_stalled_slave_and_the_message_is_stored(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.wire.stalls_down = True
    opaque = group.send(b"kept")
    group.pass_time(2_999)
    assert group.code_of(opaque) is None
    group.pass_time(1)
    assert group.code_of(opaque) == ResponseCode.FLUSH_SLAVE_TIMEOUT
    found = group.master.pull("TopicA")
    assert found is not None
    assert messages_in(found)[0].body == b"kept"


@spec("W08")
def test_waiting_send_does_not_delay_others(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.wire.stalls_up = True
    first = group.send(b"first")
    group.pass_time(2_500)
    second = group.send(b"second")
    group.pass_time(600)
    assert group.code_of(first) == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert group.code_of(second) is None
    group.wire.stalls_up = False
    group.settle()
    assert group.code_of(second) == OK


@spec("W04")
def test_slave_too_far_behind_does_not_count(tmp_path: Path) -> None:
    group = Group(tmp_path, ha_lag_bytes_max=2_000)
    group.wire.stalls_down = True
    waiting = group.send(b"x" * 100)
    assert group.code_of(waiting) is None
    late = group.send(b"x" * 3_000)
    assert group.code_of(late) == ResponseCode.SLAVE_NOT_AVAILABLE
    group.wire.stalls_down = False
    group.settle()
    assert group.code_of(waiting) == OK
    assert group.send_and_settle() == OK


@spec("W09")
def test_slave_that_returns_empty_acknowledges_nothing_by_its_former_log(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.send_many(20)
    group.stop(group.slave)
    delete_files(tmp_path / "slave1")
    (tmp_path / "slave1").rmdir()
    group.slaves[0] = group.start_slave(1)
    group.slave.turn()
    group.pieces = None
    group.settle()
    group.cut()
    group.pass_time(200)
    group.wire.stalls_down = True
    opaque = group.send()
    group.settle()
    assert group.code_of(opaque) is None
    group.wire.stalls_down = False
    group.settle()
    assert group.code_of(opaque) == OK
    group.assert_same_logs()


@spec("W09")
def test_second_connection_of_the_same_slave_replaces_the_first(tmp_path: Path) -> None:
    group = Group(tmp_path, in_sync_replicas=3)
    double = Member(
        tmp_path / "double", group.slave.config, machine=group.slave.node.kernel.machine, now=group.now, seed=99
    )
    group.slaves.append(double)
    group.settle()
    assert group.send_and_settle() == ResponseCode.SLAVE_NOT_AVAILABLE
    assert len(group.master.node.replication.masters.acked_offsets()) == 1


@spec("H25", "W09")
def test_unauthenticated_peer_never_counts(tmp_path: Path) -> None:
    group = Group(tmp_path, connects=False)
    link = 77
    group.master.open(link, LinkKind.HA_MASTER, "10.0.0.66:5000")
    group.master.turn([(link, (0).to_bytes(8))])
    opaque = group.send()
    assert group.code_of(opaque) == ResponseCode.SLAVE_NOT_AVAILABLE
    assert bytes(group.master.bytes_out[link]) == b""
    assert any(number == link for number, _ in group.master.closes)


@spec("H07", "H25", "R08")
def test_classic_slave_from_an_admitted_address_is_a_few_lines(tmp_path: Path) -> None:
    master = Harness(tmp_path, role="SYNC_MASTER", ha_classic_peers=("10.0.0.66",))
    link = 77
    master.open(link, LinkKind.HA_MASTER, "10.0.0.66:5000")
    master.turn([(link, (0).to_bytes(8))])
    opaque = master.send_request(RequestCode.SEND_MESSAGE_V2, send_fields("TopicA"), b"to both")
    assert master.answer_to(opaque) is None
    data = bytes(master.bytes_out[link])
    assert data[:12] == (0).to_bytes(8) + (len(data) - 12).to_bytes(4)
    master.turn([(link, (len(data) - 13).to_bytes(8))])
    assert master.answer_to(opaque) is None
    master.turn([(link, (len(data) - 12).to_bytes(8))])
    answer = master.answer_to(opaque)
    assert answer is not None
    assert answer.code == OK


@spec("W09", "H07")
def test_classic_slaves_count_one_per_address(tmp_path: Path) -> None:
    peers = ("10.0.0.66", "10.0.0.67")
    master = Harness(tmp_path, role="SYNC_MASTER", in_sync_replicas=3, ha_classic_peers=peers)
    report_from(master, 77, "10.0.0.66:5000")
    report_from(master, 78, "10.0.0.66:5001")
    assert master.send("TopicA").code == ResponseCode.SLAVE_NOT_AVAILABLE
    assert [link for link, _ in master.closes] == [77]
    report_from(master, 79, "10.0.0.67:5000")
    opaque = master.send_request(RequestCode.SEND_MESSAGE_V2, send_fields("TopicA"), b"on three")
    end = master.node.store.log.written_end
    master.turn([(78, end.to_bytes(8))])
    assert master.answer_to(opaque) is None
    master.turn([(79, end.to_bytes(8))])
    answer = master.answer_to(opaque)
    assert answer is not None
    assert answer.code == OK


def report_from(master: Harness, link: int, peer: str) -> None:
    """Connect a classic slave that reports the end of the log."""
    master.open(link, LinkKind.HA_MASTER, peer)
    master.turn([(link, master.node.store.log.written_end.to_bytes(8))])


@spec("V02")
def test_slave_with_an_invalid_report_is_closed_and_one_without_progress_lags_visibly(tmp_path: Path) -> None:
    """An offset that never moves keeps the connection, acknowledges nothing, and is visible in the status."""
    master = Harness(tmp_path, role="SYNC_MASTER", ha_classic_peers=("10.0.0.66",))
    master.open(77, LinkKind.HA_MASTER, "10.0.0.66:5000")
    master.turn([(77, (0).to_bytes(8))])
    opaque = master.send_request(RequestCode.SEND_MESSAGE_V2, send_fields("TopicA"), b"x")
    for _ in range(10):
        master.pass_time(4_000)
        master.turn([(77, (0).to_bytes(8))])
    answer = master.answer_to(opaque)
    assert answer is not None
    assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert ha_status(master) == [("10.0.0.66:5000", 0)]
    master.turn([(77, (1 << 50).to_bytes(8))])
    assert any(link == 77 for link, _ in master.closes)


@spec("W11", "W12", "W02", "W01")
@pytest.mark.parametrize(
    ("disk_hangs", "slave_hangs", "code"),
    [
        (False, False, ResponseCode.SUCCESS),
        (True, False, ResponseCode.FLUSH_DISK_TIMEOUT),
        (False, True, ResponseCode.FLUSH_SLAVE_TIMEOUT),
        (True, True, ResponseCode.FLUSH_SLAVE_TIMEOUT),
    ],
)
def test_status_shows_which_guarantee_is_missing(
    tmp_path: Path, disk_hangs: bool, slave_hangs: bool, code: ResponseCode
) -> None:
    group = Group(tmp_path, slave_changes={"flush_type": "ASYNC_FLUSH"}, flush_type="SYNC_FLUSH")
    group.master.create_topic("TopicA")
    group.master.run_jobs = not disk_hangs
    group.wire.stalls_down = slave_hangs
    opaque = group.send(b"stored anyway")
    group.pass_time(5_000)
    assert group.code_of(opaque) == code
    for job in group.master.jobs:
        group.master.turn([], [run_job(job)])
    assert group.master.node.store.log.flushed_offset == group.master.log_end
    group.restart_master()
    found = group.master.pull("TopicA")
    assert found is not None
    assert messages_in(found)[0].body == b"stored anyway"


@spec("W11", "W13")
def test_failed_sync_acknowledges_no_message_from_then_on(tmp_path: Path) -> None:
    """Neither waiting messages nor later ones, not after a sync that succeeds, and a clean stop does not hide it."""
    master = Harness(tmp_path, flush_type="SYNC_FLUSH")
    master.send("TopicA", b"good")
    master.run_jobs = False
    opaque = master.send_request(RequestCode.SEND_MESSAGE_V2, send_fields("TopicA"), b"doubtful")
    (job,) = [job for job in master.jobs if job.name == "flush"]
    safe = master.node.store.log.flushed_offset
    master.turn([], [JobDone(job, error=DiskFailed("the device is gone"))])
    answer = master.answer_to(opaque)
    assert answer is not None
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "whether the message is stored is unknown" in (answer.remark or "")
    master.run_jobs = True
    assert master.send("TopicA", b"later").code == ResponseCode.SERVICE_NOT_AVAILABLE
    master.pass_time(60_000)
    assert master.node.store.log.flushed_offset == safe
    master.node.close()
    assert (tmp_path / "abort").exists()


@spec("W11")
def test_any_error_of_a_sync_counts_as_failed(tmp_path: Path) -> None:
    master = Harness(tmp_path, flush_type="SYNC_FLUSH")
    master.create_topic("TopicA")
    master.run_jobs = False
    opaque = master.send_request(RequestCode.SEND_MESSAGE_V2, send_fields("TopicA"), b"doubtful")
    master.turn([], [JobDone(master.jobs[0], error=ValueError("a bug"))])
    answer = master.answer_to(opaque)
    assert answer is not None
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "whether the message is stored is unknown" in (answer.remark or "")


@spec("T13")
def test_slave_that_syncs_reports_after_the_sync_also_when_it_reconnects(tmp_path: Path) -> None:
    group = Group(tmp_path, slave_changes={"flush_type": "SYNC_FLUSH"}, flush_type="ASYNC_FLUSH", ha_reconnect_ms=10)
    group.slave.run_jobs = False
    opaque = group.send()
    group.settle()
    assert group.slave.log_end == group.master.log_end
    assert group.code_of(opaque) is None
    group.cut()
    group.pass_time(200)
    assert group.code_of(opaque) is None
    _finish(group.slave)
    group.pass_time(200)
    assert group.code_of(opaque) == OK


def _finish(member: Member) -> None:
    """Run the waiting jobs, and those that they start."""
    member.run_jobs = True
    jobs: list[Job] = member.jobs
    member.jobs = []
    for job in jobs:
        member.turn([], [run_job(job)])


def test_sync_flush_slave_needs_no_timer_for_its_report(tmp_path: Path) -> None:
    group = Group(tmp_path, flush_type="SYNC_FLUSH")
    assert group.send_and_settle() == OK


def test_truncation_during_a_sync_does_not_mark_later_bytes_as_flushed(tmp_path: Path) -> None:
    broker = Harness(tmp_path, flush_type="SYNC_FLUSH")
    broker.send("TopicA", b"stays")
    end = broker.node.store.log.written_end
    broker.run_jobs = False
    broker.send_request(RequestCode.SEND_MESSAGE_V2, send_fields("TopicA"), b"x" * 500)
    job = next(job for job in broker.jobs if job.name == "flush")
    quarantine_tail(broker.node.store, end)
    broker.turn([], [run_job(job)])
    assert broker.node.store.log.flushed_offset == end
