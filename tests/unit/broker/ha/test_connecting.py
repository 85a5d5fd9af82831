"""Connections between a master and its slaves: discovery, retries, timeouts, and refusals."""

import json
import logging
import shutil
from pathlib import Path

import pytest

from tandemq.boundary import LinkKind
from tandemq.codec.ha import KIND_REPORT, checked
from tandemq.config.settings import BrokerConfig
from tandemq.errors import DiskFailed
from tandemq.model.codes import RequestCode, ResponseCode
from tests.spec import spec
from tests.unit.broker.ha.group import Group, Member, delete_files
from tests.unit.broker.harness import ADDRESS, Harness

OK = ResponseCode.SUCCESS
DEFAULTS = BrokerConfig()


@spec("H05", "H20")
def test_first_bytes_up_introduce_the_slave_with_its_log_end(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.send_many(2)
    group.cut()
    group.pass_time(200)
    up = bytes(group.wire.went_up)
    assert up.startswith(b"\xffTandemQ")
    assert json.loads(up[12 : up.index(b"}") + 1])["logEnd"] == group.master.log_end


@spec("H03")
def test_slave_gets_its_master_from_the_name_server_and_follows_a_change(tmp_path: Path) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER", slave_changes={"ha_master_address": ""})
    assert group.all_wires == []
    group.tell_master(group.slave, "10.9.9.9")
    group.pass_time(10)
    assert [connect.address for connect in group.slave.connects if connect.kind is LinkKind.HA_SLAVE] == [
        "10.9.9.9:10912"
    ]
    group.tell_master(group.slave)
    group.pass_time(10)
    assert len(group.wires) == 1
    group.send_many(2)
    group.assert_same_logs()


@spec("H03")
def test_configured_address_wins_over_the_name_server(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.tell_master(group.slave, "10.9.9.9")
    group.cut()
    group.pass_time(10_000)
    assert len(group.wires) == 1


@spec("H04")
def test_slave_without_a_master_is_healthy_and_waits(tmp_path: Path) -> None:
    group = Group(tmp_path, slave_changes={"ha_master_address": ""})
    group.pass_time(60_000)
    assert group.slave.connects == []
    assert group.slave.session() is None
    assert group.slave.ask(RequestCode.GET_ALL_TOPIC_CONFIG).code == OK
    group.tell_master(group.slave)
    group.pass_time(1_000)
    assert len(group.wires) == 1


@spec("H17", "V08", "H18")
def test_slave_retries_every_5s_without_using_memory(tmp_path: Path) -> None:
    assert DEFAULTS.ha_reconnect_ms == 5_000
    group = Group(tmp_path, connects=False)
    group.pass_time(600_000)
    attempts = len(group.slave.connects)
    assert 118 <= attempts <= 122
    assert group.slave.node.replication.slave is not None
    assert group.slave.node.replication.slave.link == 0
    assert len(group.slave.node.links) == 1
    group.refuses = False
    group.pass_time(5_000)
    assert len(group.wires) == 1


@spec("H17")
def test_connection_attempt_to_a_silent_master_times_out(tmp_path: Path) -> None:
    group = Group(tmp_path, connects=False)
    group.refuses = False
    group.is_silent = True
    group.pass_time(26_000)
    assert any("does not answer" in reason for _, reason in group.slave.closes)
    group.is_silent = False
    group.pass_time(30_000)
    assert len(group.wires) == 1


@spec("H18", "H02")
def test_thousand_connections_leave_no_state_behind(tmp_path: Path) -> None:
    master = Harness(tmp_path, role="SYNC_MASTER")
    for number in range(1_000):
        link = 5_000 + number
        master.open(link, LinkKind.HA_MASTER, f"10.0.0.9:{40_000 + number}")
        if number % 3:
            master.turn([(link, b"\xffTand" if number % 2 else b"GET / HTTP/1.0\r\n")])
        master.close(link)
    masters = master.node.replication.masters
    assert (len(masters.sessions), len(masters.peers), masters.acked_offsets()) == (0, 0, [])


@spec("H16", "H19", "V04", "G03")
def test_dead_slave_is_closed_after_20s_although_the_master_keeps_sending(tmp_path: Path) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER")
    since = group.now.mono_ms
    group.wire.stalls_up = True
    first = group.wire
    while first.is_open:
        group.send()
        group.pass_time(500)
        assert group.now.mono_ms - since < 30_000
    assert 20_000 <= group.now.mono_ms - since <= 26_000
    assert any("no report" in reason for _, reason in group.master.closes)


@spec("H16", "G01")
def test_dead_master_is_closed_after_20s_and_connected_again(tmp_path: Path) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER")
    first = group.wire
    first.stalls_down = first.stalls_up = True
    group.pass_time(20_500)
    assert not first.is_open
    group.pass_time(5_000)
    assert group.wire is not first
    group.send_many(2)
    group.assert_same_logs()


@spec("H10")
def test_slave_whose_reports_do_not_arrive_connects_again_despite_heartbeats(tmp_path: Path) -> None:
    """The master has a long timeout here, so that only the slave can close the connection."""
    group = Group(
        tmp_path, role="ASYNC_MASTER", ha_housekeeping_ms=600_000, slave_changes={"ha_housekeeping_ms": 20_000}
    )
    first = group.wire
    first.stalls_up = True
    group.send_many(2)
    group.pass_time(19_000)
    assert first.is_open
    assert group.master.node.replication.masters.acked_offsets() == [0]
    group.pass_time(2_000)
    assert not first.is_open
    assert any("the master has read none for" in reason for _, reason in group.slave.closes)
    group.pass_time(5_000)
    assert group.wire is not first
    group.send_many(2)
    group.assert_same_logs()
    assert group.master.node.replication.masters.acked_offsets() == [group.master.log_end]


@spec("H08", "H15", "G04")
def test_idle_pair_exchanges_one_heartbeat_each_way_per_5s(tmp_path: Path) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER")
    group.send_many(1)
    group.pass_time(10_000)
    up, down = len(group.wire.went_up), len(group.wire.went_down)
    group.pass_time(50_000)
    assert (len(group.wire.went_up) - up, len(group.wire.went_down) - down) == (10 * 13, 10 * 12)
    assert bytes(group.wire.went_down[-12:]) == group.master.log_end.to_bytes(8) + bytes(4)
    assert bytes(group.wire.went_up[-13:]) == checked(KIND_REPORT, group.slave.log_end.to_bytes(8))


@spec("H21")
def test_connection_lost_in_the_middle_of_a_frame_loses_no_byte(tmp_path: Path) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER", ha_reconnect_ms=10)
    for cut in range(1, 60, 7):
        group.wire.stalls_down = True
        group.send(b"y" * 300)
        del group.master.out[group.wire.top_link][cut:]
        group.wire.stalls_down = False
        group.settle()
        group.cut()
        group.pass_time(200)
        group.assert_same_logs()


@spec("R01")
def test_two_processes_with_one_id_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    group = Group(tmp_path)
    double = Member(
        tmp_path / "double", group.slave.config, machine=group.slave.node.kernel.machine, now=group.now, seed=99
    )
    group.slaves.append(double)
    with caplog.at_level(logging.ERROR):
        group.pass_time(1_000)
    assert "id 1, which another process" in caplog.text
    assert len(group.master.node.replication.masters.acked_offsets()) == 1


@spec("R01", "H22")
def test_two_slaves_with_ids_of_their_own_both_count(tmp_path: Path) -> None:
    group = Group(tmp_path, slaves=2, in_sync_replicas=3)
    assert group.send_and_settle() == OK
    assert group.master.node.replication.masters.acked_offsets() == [group.master.log_end] * 2
    group.cut(group.slaves[1])
    group.refuses = True
    assert group.send_and_settle() == ResponseCode.SLAVE_NOT_AVAILABLE


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"cluster": "Other"}, "belongs to Other/broker-a"),
        ({"broker_name": "broker-b"}, "belongs to DefaultCluster/broker-b"),
        ({"segment_bytes": 64 * 1024}, "mappedFileSizeCommitLog"),
    ],
)
def test_slave_of_another_group_or_implementation_is_refused_with_the_reason(
    tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    group = Group(tmp_path, slave_changes=change)
    assert any(reason in text for _, text in group.slave.closes)
    assert group.send_and_settle() == ResponseCode.SLAVE_NOT_AVAILABLE
    assert group.slave.log_end == 0


def test_slave_with_another_history_is_refused(tmp_path: Path) -> None:
    """Its log is as long as the master's and differs in the last bytes."""
    group = Group(tmp_path)
    group.send(b"one thing")
    group.settle()
    group.stop(group.slave, clean=True)
    other = Group(tmp_path / "other")
    other.send(b"another !")
    other.settle()
    other.stop(other.slave, clean=True)
    delete_files(tmp_path / "slave1")
    (tmp_path / "slave1").rmdir()
    (tmp_path / "other" / "slave1").rename(tmp_path / "slave1")
    group.slaves[0] = group.start_slave(1)
    group.settle()
    assert any("differ from ours" in reason for _, reason in group.slave.closes)


def test_master_that_lost_its_store_is_refused_and_the_slave_keeps_its_own(tmp_path: Path) -> None:
    """An empty master has the generation with which every group begins; that must not count as an accepted loss."""
    group = Group(tmp_path)
    group.send_many(5)
    group.settle()
    held = group.slave.log_bytes()
    group.stop(group.master, clean=True)
    shutil.rmtree(tmp_path / "master")
    group.start_master()
    group.pass_time(10_000)
    assert held
    assert group.slave.log_bytes() == held
    assert not (tmp_path / "slave1" / "set-aside").exists()
    assert any("lost its store" in reason for _, reason in group.slave.closes)


def flip(path: Path, at: int) -> None:
    """Flip a bit in the first file of a log."""
    file = path / "commitlog" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    data[at] ^= 4
    file.write_bytes(data)


def test_master_with_damage_in_its_last_bytes_accepts_its_slave_with_a_warning_and_is_repaired(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    group = Group(tmp_path)
    group.send_many(60, size=400)
    end = group.master.log_end
    group.stop(group.master, clean=True)
    flip(tmp_path / "master", end - 1_500)
    group.start_master()
    group.pass_time(10_000)
    assert group.send_and_settle() == OK
    assert any("this master's copy and not that of slave 1" in record.message for record in caplog.records)
    assert group.master.ask(RequestCode.TANDEM_SCRUB, {"begin": "true", "bytesPerSecond": 1 << 20}).code == OK
    group.pass_time(20_000)
    group.assert_same_logs()


def test_damaged_master_refuses_a_slave_that_differs_elsewhere_too(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.send_many(60, size=400)
    end = group.master.log_end
    group.stop(group.master, clean=True)
    group.stop(group.slave, clean=True)
    flip(tmp_path / "master", end - 1_500)
    flip(tmp_path / "slave1", end - 9_000)
    group.start_master()
    group.slaves[0] = group.start_slave(1)
    group.settle()
    assert any("our own log is damaged at" in reason for _, reason in group.slave.closes)
    assert group.send_and_settle() == ResponseCode.SLAVE_NOT_AVAILABLE


def test_slave_with_damage_in_its_last_bytes_has_to_be_emptied(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.send_many(60, size=400)
    end = group.master.log_end
    group.stop(group.slave, clean=True)
    flip(tmp_path / "slave1", end - 1_500)
    group.slaves[0] = group.start_slave(1)
    group.settle()
    assert any("our records there are whole" in reason for _, reason in group.slave.closes)


@pytest.mark.parametrize("side", ["slave", "master"])
def test_unreadable_last_bytes_close_the_connection_and_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, side: str
) -> None:
    group = Group(tmp_path, ha_reconnect_ms=10)
    group.send_many(3)
    broken = (group.slave if side == "slave" else group.master).node

    def fail(offset: int, size: int) -> bytes:
        raise DiskFailed(f"no bytes at {offset}: {size} were asked for")

    with monkeypatch.context() as patched:
        patched.setattr(broken.store.log, "read", fail)
        group.cut()
        group.pass_time(200)
        assert group.master.node.replication.masters.acked_offsets() == []
    assert "cannot be read" in caplog.text
    assert not broken.faults
    group.pass_time(200)
    group.send_many(3)
    group.assert_same_logs()


@spec("H24")
def test_slave_that_falls_back_to_the_classic_protocol_without_a_proof_warns_once_per_master(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING and "classic" in r.getMessage()]

    group = Group(tmp_path, slave_changes={"ha_master_address": "", "ha_protocol": "auto"})
    group.tell_master(group.slave)
    group.pass_time(1_000)
    assert group.slave.node.replication.by_settings is not None
    assert (group.slave.node.replication.by_settings.is_classic, warnings()) == (False, [])
    # As a Java master, which does not know the request.
    del group.master.node.features.requests[RequestCode.TANDEM_PEER_INFO]
    group.cut()
    group.pass_time(20_000)
    (said,) = warnings()
    assert ADDRESS in said and "proves nothing" in said and "haProtocol = tandemq" in said
    group.cut()
    group.pass_time(20_000)
    assert len(warnings()) == 1, "each new connection sends the request again"
