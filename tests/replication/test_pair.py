"""A master and its slaves on wires, under one clock: what is copied, what is told to senders, what survives."""

import json
import logging
from pathlib import Path

import pytest

from tandemq.boundary import Job, JobDone, LinkKind
from tandemq.config import BrokerConfig
from tandemq.errors import DiskFailed
from tandemq.model.codes import RequestCode, ResponseCode
from tests.broker.harness import CLIENT, Harness, messages_in, run_job, send_fields
from tests.replication.group import Group, Member
from tests.spec import spec

OK = ResponseCode.SUCCESS
DEFAULTS = BrokerConfig()


def ha_status(member: Harness) -> list[tuple[str, int]]:
    """(peer, acknowledged offset) of each slave that counts."""
    masters = member.node.replication.masters
    return [(masters.peers[link], session.acked_offset) for link, session in masters.sessions.items()]


# Copying.


@spec("R14", "V12", "T01", "T14", "G15", "H01")
def test_slave_holds_the_same_bytes_and_builds_the_same_queues_and_index(tmp_path: Path) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER")
    for number in range(80):
        group.send(bytes([number]) * 1500, f"Topic{number % 3}", TAGS=f"tag{number % 2}", KEYS=f"key{number}")
    group.settle()
    group.assert_same_logs()
    assert len(group.master.node.store.log.segment_starts) > 3
    files = sorted((tmp_path / "master" / "commitlog").iterdir())[:-1]
    for file in files:
        assert (tmp_path / "slave1" / "commitlog" / file.name).read_bytes() == file.read_bytes()
    for name in ("Topic0", "Topic1", "Topic2"):
        ours, theirs = group.master.node.store.queues[name, 0], group.slave.node.store.queues[name, 0]
        assert ours.read(0, 1000) == theirs.read(0, 1000)
        assert ours.max_offset == theirs.max_offset > 20
    for key in ("key0", "key41", "key79"):
        assert _found_by_key(group.slave, key) == _found_by_key(group.master, key) == 1


def _found_by_key(member: Member, key: str) -> int:
    fields = {
        "topic": f"Topic{int(key[3:]) % 3}",
        "key": key,
        "maxNum": 10,
        "beginTimestamp": 0,
        "endTimestamp": 1 << 60,
    }
    return len(messages_in(member.ask(RequestCode.QUERY_MESSAGE, fields)))


@spec("T14", "V14", "G15")
def test_slave_rebuilds_deleted_queues_and_index_from_its_log(tmp_path: Path) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER")
    for number in range(30):
        group.send(b"x" * 900, KEYS=f"key{number}")
    group.settle()
    before = group.slave.node.store.queues["TopicA", 0].read(0, 1000)
    group.slave.pass_time(2_000)
    group.stop(group.slave, clean=True)
    for name in ("consumequeue", "index"):
        _delete(tmp_path / "slave1" / name)
    slave = group.slaves[0] = group.start_slave(1)
    assert slave.node.store.queues["TopicA", 0].read(0, 1000) == before
    fields = {"topic": "TopicA", "key": "key7", "maxNum": 10, "beginTimestamp": 0, "endTimestamp": 1 << 60}
    assert len(messages_in(slave.ask(RequestCode.QUERY_MESSAGE, fields))) == 1
    at = {"topic": "TopicA", "queueId": 0, "timestamp": 0}
    assert slave.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, at).fields["offset"] == "0"


def _delete(path: Path) -> None:
    for child in path.rglob("*"):
        if child.is_file():
            child.unlink()
    for child in sorted(path.rglob("*"), reverse=True):
        child.rmdir()


@spec("R12")
def test_synchronous_and_asynchronous_copy_give_equal_logs(tmp_path: Path) -> None:
    logs = []
    for role in ("SYNC_MASTER", "ASYNC_MASTER"):
        group = Group(tmp_path / role, role=role)
        group.send_many(40, 700)
        group.assert_same_logs()
        logs.append(group.slave.log_bytes())
    assert logs[0] == logs[1]


@spec("T06", "H09")
def test_asynchronous_copy_needs_no_timer(tmp_path: Path) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER")
    group.send()
    group.settle()
    group.assert_same_logs()
    assert ha_status(group.master)[0][1] == group.master.log_end


@spec("T15", "H21", "W13")
def test_slave_killed_again_and_again_ends_with_the_same_bytes(tmp_path: Path) -> None:
    """Cut at any byte: the slave restarts, goes on where it stopped, nothing is missing or doubled."""
    group = Group(tmp_path, role="ASYNC_MASTER", ha_reconnect_ms=10)
    for number in range(60):
        for _ in range(3):
            group.send(bytes([number]) * (100 + 37 * number))
        for _ in range(number % 5):
            for wire in list(group.wires):
                wire.carry(group.pieces)
        if number % 3 == 0:
            group.restart_slave()
        else:
            group.cut()
        group.pass_time(10)
    group.pass_time(200)
    group.assert_same_logs()


@spec("T05")
def test_message_of_100_kb_survives_a_kill_between_its_frames(tmp_path: Path) -> None:
    group = Group(
        tmp_path, role="ASYNC_MASTER", message_bytes_max=120_000, segment_bytes=1 << 20, ha_batch_bytes=32 * 1024,
        ha_reconnect_ms=10,
    )  # fmt: skip
    group.send(b"small")
    group.settle()
    group.pieces = None
    group.wire.stalls_down = True
    group.send(b"b" * 100_000)
    waiting = group.master.out[group.wire.top_link]
    assert len(waiting) > 100_000 + 3 * 12
    del waiting[50_000:]
    group.wire.stalls_down = False
    group.settle()
    assert group.slave.log_end < group.master.log_end
    group.restart_slave()
    group.pass_time(100)
    group.assert_same_logs()


@spec("H22")
def test_slow_slave_does_not_slow_the_others(tmp_path: Path) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER", slaves=3)
    slow = next(wire for wire in group.wires if wire.bottom is group.slaves[1])
    slow.stalls_down = True
    group.send_many(50, 1000)
    assert [slave.log_end == group.master.log_end for slave in group.slaves] == [True, False, True]
    slow.stalls_down = False
    group.settle()
    group.assert_same_logs()


@spec("T03")
def test_empty_tandem_slave_gets_everything_still_held(tmp_path: Path) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER", connects=False)
    group.send_many(100, 1000)
    group.refuses = False
    group.pass_time(5_000)
    group.assert_same_logs()
    assert group.slave.node.store.log.start == 0


@spec("T03")
def test_empty_slave_may_ask_for_the_last_file_only(tmp_path: Path) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER", connects=False, sync_from_last_file=True)
    group.send_many(100, 1000)
    group.refuses = False
    group.pass_time(5_000)
    start = group.slave.node.store.log.start
    assert start == group.master.log_end - group.master.log_end % group.master.config.segment_bytes > 0
    group.assert_same_logs()
    first = group.slave.node.store.queues["TopicA", 0].min_offset
    answer = group.slave.pull("TopicA", first - 1)
    assert answer is not None
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, str(first))
    found = group.slave.pull("TopicA", first)
    assert found is not None
    assert messages_in(found)[0].queue_offset == first


@spec("T02", "T16")
def test_slave_with_a_log_is_served_from_its_end(tmp_path: Path) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER")
    group.send_many(5)
    end = group.slave.log_end
    group.cut()
    group.pass_time(200)
    group.send_many(3)
    down = bytes(group.wire.went_down)
    assert f'"start":{end},'.encode() in down
    assert down.partition(b"}")[2][:8] == end.to_bytes(8)


@spec("T09")
def test_bit_flipped_on_the_way_is_refused_and_fetched_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER", ha_reconnect_ms=50)
    group.send_many(3)
    good = group.slave.log_end
    group.wire.change_down = lambda data: data[:-30] + bytes([data[-30] ^ 1]) + data[-29:] if len(data) > 30 else data
    group.send(b"precious" * 20)
    group.pieces = None
    with caplog.at_level(logging.ERROR):
        group.settle()
    assert "damaged record" in caplog.text
    assert group.slave.log_end == good
    assert group.wires == []
    group.pass_time(100)
    group.assert_same_logs()


@spec("T09")
def test_record_damaged_three_times_makes_the_master_suspect_and_is_not_asked_for_in_a_hurry(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER")
    group.send_many(3)
    good = group.slave.log_end
    group.refuses = True
    group.cut()
    group.send(b"rotten" * 20)
    group.refuses = False
    log = group.master.node.store.log
    log.last_write = (log.written_end, b"")
    with (tmp_path / "master" / log.segment_path(0)).open("r+b") as file:
        file.seek(good + 100)
        file.write(b"!")
    with caplog.at_level(logging.ERROR):
        group.pass_time(60_000)
    assert group.slave.log_end == good
    assert "suspect" in caplog.text
    assert len(group.all_wires) < 20


# Connecting.


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
def test_slave_learns_its_master_from_the_name_server_and_follows_a_change(tmp_path: Path) -> None:
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
def test_slave_tries_every_5s_for_ever_and_keeps_nothing(tmp_path: Path) -> None:
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
def test_master_that_does_not_even_refuse_is_given_up_in_time(tmp_path: Path) -> None:
    group = Group(tmp_path, connects=False)
    group.refuses = False
    group.is_silent = True
    group.pass_time(26_000)
    assert any("does not answer" in reason for _, reason in group.slave.closes)
    group.is_silent = False
    group.pass_time(30_000)
    assert len(group.wires) == 1


@spec("H18", "H02")
def test_thousand_connections_leave_nothing_behind(tmp_path: Path) -> None:
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
def test_dead_slave_is_closed_after_20s_though_the_master_keeps_sending(tmp_path: Path) -> None:
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


@spec("H08", "H15", "G04")
def test_idle_pair_exchanges_one_heartbeat_each_way_per_5s(tmp_path: Path) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER")
    group.send_many(1)
    group.pass_time(10_000)
    up, down = len(group.wire.went_up), len(group.wire.went_down)
    group.pass_time(50_000)
    assert (len(group.wire.went_up) - up, len(group.wire.went_down) - down) == (10 * 9, 10 * 12)
    assert bytes(group.wire.went_down[-12:]) == group.master.log_end.to_bytes(8) + bytes(4)
    assert bytes(group.wire.went_up[-9:]) == b"\0" + group.slave.log_end.to_bytes(8)


@spec("H21")
def test_link_cut_in_the_middle_of_a_frame_costs_no_byte(tmp_path: Path) -> None:
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
    double = Member(tmp_path / "double", group.slave.config, machine=group.slave.node.machine, now=group.now, seed=99)
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
def test_slave_of_another_group_or_make_is_refused_with_the_reason(
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
    _delete(tmp_path / "slave1")
    (tmp_path / "slave1").rmdir()
    (tmp_path / "other" / "slave1").rename(tmp_path / "slave1")
    group.slaves[0] = group.start_slave(1)
    group.settle()
    assert any("differ from ours" in reason for _, reason in group.slave.closes)


# What senders are told.


@spec("R06", "W02", "W04")
def test_sync_master_without_a_slave_says_so_at_once_and_has_stored_it(tmp_path: Path) -> None:
    master = Harness(tmp_path, role="SYNC_MASTER")
    for _ in range(5):
        assert master.send("TopicA", b"alone").code == ResponseCode.SLAVE_NOT_AVAILABLE
    found = master.pull("TopicA")
    assert found is not None
    assert [message.body for message in messages_in(found)] == [b"alone"] * 5


@spec("W02", "W05", "W06", "R08", "W10")
def test_sender_hears_ok_when_the_report_equals_its_end(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.wire.stalls_up = True
    opaque = group.send()
    group.settle()
    assert group.slave.log_end == group.master.log_end
    assert group.code_of(opaque) is None
    assert bytes(group.slave.out[group.wire.bottom_link][-8:]) == group.master.log_end.to_bytes(8)
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
def test_stalled_slave_means_a_timeout_after_3s_and_the_message_is_stored(tmp_path: Path) -> None:
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
def test_hanging_sender_does_not_take_the_others_along(tmp_path: Path) -> None:
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
def test_slave_too_far_behind_counts_as_none(tmp_path: Path) -> None:
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
def test_slave_that_comes_back_empty_acknowledges_nothing_by_what_it_had(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.send_many(20)
    group.stop(group.slave)
    _delete(tmp_path / "slave1")
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
def test_second_connection_of_the_same_slave_counts_once_and_speaks_for_it(tmp_path: Path) -> None:
    group = Group(tmp_path, in_sync_replicas=3)
    double = Member(tmp_path / "double", group.slave.config, machine=group.slave.node.machine, now=group.now, seed=99)
    group.slaves.append(double)
    group.settle()
    assert group.send_and_settle() == ResponseCode.SLAVE_NOT_AVAILABLE
    assert len(group.master.node.replication.masters.acked_offsets()) == 1


@spec("H25", "W09")
def test_stranger_is_never_counted(tmp_path: Path) -> None:
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
    opaque = master.tell(RequestCode.SEND_MESSAGE_V2, _send_fields(), b"to both")
    assert master.answer_to(opaque) is None
    data = bytes(master.bytes_out[link])
    assert data[:12] == (0).to_bytes(8) + (len(data) - 12).to_bytes(4)
    master.turn([(link, (len(data) - 13).to_bytes(8))])
    assert master.answer_to(opaque) is None
    master.turn([(link, (len(data) - 12).to_bytes(8))])
    answer = master.answer_to(opaque)
    assert answer is not None
    assert answer.code == OK


def _send_fields() -> dict[str, object]:
    return send_fields("TopicA")


@spec("V02")
def test_slave_that_reports_nonsense_is_closed_and_one_that_stands_still_lags_visibly(tmp_path: Path) -> None:
    """A heartbeat proves no health: an offset that never moves keeps the link, acknowledges nothing, and shows."""
    master = Harness(tmp_path, role="SYNC_MASTER", ha_classic_peers=("10.0.0.66",))
    master.open(77, LinkKind.HA_MASTER, "10.0.0.66:5000")
    master.turn([(77, (0).to_bytes(8))])
    opaque = master.tell(RequestCode.SEND_MESSAGE_V2, _send_fields(), b"x")
    for _ in range(10):
        master.pass_time(4_000)
        master.turn([(77, (0).to_bytes(8))])
    answer = master.answer_to(opaque)
    assert answer is not None
    assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert ha_status(master) == [("10.0.0.66:5000", 0)]
    master.turn([(77, (1 << 50).to_bytes(8))])
    assert any(link == 77 for link, _ in master.closes)


# Disk and slave together.


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
def test_status_says_which_promise_is_missing(
    tmp_path: Path, disk_hangs: bool, slave_hangs: bool, code: ResponseCode
) -> None:
    group = Group(tmp_path, slave_changes={"flush_type": "ASYNC_FLUSH"}, flush_type="SYNC_FLUSH")
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
def test_failed_sync_acknowledges_nothing_ever_after(tmp_path: Path) -> None:
    """Not what waited, not what comes later, not by a next sync that succeeds, and no clean stop hides it."""
    master = Harness(tmp_path, flush_type="SYNC_FLUSH")
    master.send("TopicA", b"good")
    master.run_jobs = False
    opaque = master.tell(RequestCode.SEND_MESSAGE_V2, _send_fields(), b"doubtful")
    (job,) = [job for job in master.jobs if job.name == "flush"]
    safe = master.node.store.log.flushed_offset
    master.turn([], [JobDone(job, error=DiskFailed("the device is gone"))])
    answer = master.answer_to(opaque)
    assert answer is not None
    assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
    master.run_jobs = True
    assert master.send("TopicA", b"later").code == ResponseCode.SERVICE_NOT_AVAILABLE
    master.pass_time(60_000)
    assert master.node.store.log.flushed_offset == safe
    master.node.close()
    assert (tmp_path / "abort").exists()


@spec("W11")
def test_any_error_of_a_sync_counts_as_failed(tmp_path: Path) -> None:
    master = Harness(tmp_path, flush_type="SYNC_FLUSH")
    master.run_jobs = False
    opaque = master.tell(RequestCode.SEND_MESSAGE_V2, _send_fields(), b"doubtful")
    master.turn([], [JobDone(master.jobs[0], error=ValueError("a bug"))])
    answer = master.answer_to(opaque)
    assert answer is not None
    assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT


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
    """Do the jobs that wait, and those that follow."""
    member.run_jobs = True
    jobs: list[Job] = member.jobs
    member.jobs = []
    for job in jobs:
        member.turn([], [run_job(job)])


def test_sync_flush_slave_needs_no_timer_for_its_report(tmp_path: Path) -> None:
    group = Group(tmp_path, flush_type="SYNC_FLUSH")
    assert group.send_and_settle() == OK


def test_cut_while_a_sync_runs_does_not_make_later_bytes_flushed(tmp_path: Path) -> None:
    broker = Harness(tmp_path, flush_type="SYNC_FLUSH")
    broker.send("TopicA", b"stays")
    end = broker.node.store.log.written_end
    broker.run_jobs = False
    broker.tell(RequestCode.SEND_MESSAGE_V2, _send_fields(), b"x" * 500)
    job = next(job for job in broker.jobs if job.name == "flush")
    broker.node.set_aside(end)
    broker.turn([], [run_job(job)])
    assert broker.node.store.log.flushed_offset == end


# After an unclean stop of a machine.


def lose_tail(group: Group, keep: int) -> None:
    """The master's machine goes down and loses what lies behind `keep`."""
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
    _delete(group.path / "master" / "consumequeue")


@spec("W13")
def test_master_whose_machine_lost_its_tail_takes_it_back_before_it_takes_messages(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.send_many(10)
    middle = group.master.log_end
    group.send_many(10)
    end, whole = group.master.log_end, group.master.log_bytes()
    lose_tail(group, middle)
    group.refuses = True
    group.start_master(boot_id="boot-2")
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
def test_slave_keeps_what_it_copied_after_the_tail_came_back(tmp_path: Path) -> None:
    """No new history begins when nothing was given up: a reconnecting slave must not set good bytes aside."""
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
def test_async_master_accepts_the_loss_after_30s_and_the_slave_sets_its_tail_aside(tmp_path: Path) -> None:
    assert DEFAULTS.accept_loss_ms == 30_000
    group = Group(tmp_path, role="ASYNC_MASTER")
    group.send_many(10)
    middle = group.master.log_end
    group.send_many(10)
    tail = group.slave.log_bytes()[middle:]
    lose_tail(group, middle)
    group.refuses = True
    group.start_master(boot_id="boot-2")
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
def test_slave_that_answered_meanwhile_learns_of_the_new_history_at_once(tmp_path: Path) -> None:
    """Two slaves; one answers, the other never does; then the loss is accepted. The first must not be cut later."""
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


def test_killed_process_on_a_running_machine_waits_for_nobody(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.send_many(10)
    group.stop(group.master)
    group.refuses = True
    group.start_master(boot_id="boot-1")
    assert group.send_and_settle() == ResponseCode.SLAVE_NOT_AVAILABLE


@pytest.mark.parametrize("clean", [True, False])
def test_restart_while_waiting_for_a_slave_does_not_forget_the_wait(tmp_path: Path, clean: bool) -> None:
    """An impatient operator restarts the master: what the slave holds is still fetched first."""
    group = Group(tmp_path)
    group.send_many(10)
    middle = group.master.log_end
    group.send_many(10)
    end = group.master.log_end
    lose_tail(group, middle)
    group.refuses = True
    group.start_master(boot_id="boot-2")
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


# Configuration.


def learn_master(group: Group) -> None:
    for slave in group.slaves:
        group.tell_master(slave)


@spec("M01")
def test_topic_of_the_master_is_known_to_the_slave_within_10s(tmp_path: Path) -> None:
    assert DEFAULTS.metadata_sync_ms == 10_000
    group = Group(tmp_path)
    learn_master(group)
    group.send(topic="Fresh")
    group.pass_time(10_000)
    body = group.slave.json(RequestCode.GET_ALL_TOPIC_CONFIG)
    assert "Fresh" in body["topicConfigTable"]


@spec("M01")
def test_period_of_configuration_is_a_setting(tmp_path: Path) -> None:
    group = Group(tmp_path, metadata_sync_ms=500)
    learn_master(group)
    group.send(topic="Fresh")
    group.pass_time(500)
    assert "Fresh" in group.slave.json(RequestCode.GET_ALL_TOPIC_CONFIG)["topicConfigTable"]


@spec("M02")
def test_topics_file_is_written_only_when_the_version_changed(tmp_path: Path) -> None:
    group = Group(tmp_path)
    learn_master(group)
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


@spec("M03", "F03")
def test_consumer_offsets_are_merged_and_saved(tmp_path: Path) -> None:
    group = Group(tmp_path)
    learn_master(group)
    mine = {"consumerGroup": "only-here", "topic": "TopicA", "queueId": 0, "commitOffset": 3}
    group.slave.ask(RequestCode.UPDATE_CONSUMER_OFFSET, mine)
    commit = {"consumerGroup": "group", "topic": "TopicA", "queueId": 0, "commitOffset": 42}
    group.master.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
    group.pass_time(10_000)
    assert group.slave.node.offsets.get("TopicA", "group", 0) == 42
    assert group.slave.node.offsets.get("TopicA", "only-here", 0) == 3
    saved = json.loads(next((tmp_path / "slave1").rglob("consumerOffset.json")).read_bytes())
    assert saved["offsetTable"]["TopicA@group"] == {"0": 42}


@spec("M03")
def test_offset_of_a_deleted_group_stays_on_the_slave_every_time(tmp_path: Path) -> None:
    group = Group(tmp_path)
    learn_master(group)
    commit = {"consumerGroup": "group", "topic": "TopicA", "queueId": 0, "commitOffset": 42}
    group.master.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
    group.pass_time(10_000)
    group.master.node.offsets.remove_group("group")
    for _ in range(3):
        group.pass_time(10_000)
        assert group.slave.node.offsets.get("TopicA", "group", 0) == 42


@spec("M04")
def test_progress_of_delayed_messages_is_equal_on_both(tmp_path: Path) -> None:
    group = Group(tmp_path)
    learn_master(group)
    for level in ("1", "1", "2"):
        group.send(DELAY=level)
    group.settle()
    group.pass_time(20_000)
    assert group.slave.node.delay.progress == group.master.node.delay.progress == {1: 2, 2: 1}
    assert list((tmp_path / "slave1").rglob("delayOffset.json"))
    assert group.slave.node.delay.delivered == 0


@spec("M05")
def test_group_that_may_not_consume_is_obeyed_by_the_slave(tmp_path: Path) -> None:
    group = Group(tmp_path)
    learn_master(group)
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
    learn_master(group)
    group.wire.stalls_down = True
    end = group.slave.log_end
    group.send(topic="Fresh")
    group.pass_time(10_000)
    assert "Fresh" in group.slave.json(RequestCode.GET_ALL_TOPIC_CONFIG)["topicConfigTable"]
    assert group.slave.log_end == end


@spec("M06")
def test_messages_arrive_while_the_configuration_link_is_stalled(tmp_path: Path) -> None:
    group = Group(tmp_path)
    learn_master(group)
    for wire in group.all_wires:
        wire.stalls_up = wire.kind is not LinkKind.HA_MASTER
    group.send(topic="Fresh")
    group.settle()
    group.assert_same_logs()
    assert "Fresh" not in group.slave.json(RequestCode.GET_ALL_TOPIC_CONFIG)["topicConfigTable"]


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"{", b'{"offsetTable":5}', b'{"topicConfigTable":{"a":1}}',
                                  b'{"offsetTable":{"a":{"b":"c"}}}', b'{"dataVersion":7}', b"\xff"])  # fmt: skip
def test_unusable_tables_of_a_master_are_left_alone(tmp_path: Path, body: bytes) -> None:
    group = Group(tmp_path)
    side = group.slave.node.replication.slave
    assert side is not None
    for take in side.metadata._takers.values():
        answer = group.master.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        answer.body = body
        side.metadata._on_answer("m", RequestCode.GET_ALL_TOPIC_CONFIG, take)(answer, group.now)
    assert group.send_and_settle() == OK


# The slave serves.


@spec("R03")
def test_send_to_a_slave_is_refused_and_its_log_does_not_grow(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.send_many(2)
    end = group.slave.log_end
    assert group.slave.send("TopicA").code == ResponseCode.SERVICE_NOT_AVAILABLE
    group.slave.tell(RequestCode.SEND_MESSAGE_V2, _send_fields(), b"x", is_oneway=True)
    assert group.slave.ask(RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": 0, "group": "g", "delayLevel": 1}).code == 14
    group.slave.pass_time(60_000)
    assert group.slave.log_end == end


@spec("R07", "R09")
def test_consumers_go_on_from_the_slave_and_miss_only_the_uncopied_tail(tmp_path: Path) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER")
    for number in range(10):
        group.send(b"%d" % number)
    group.settle()
    group.wire.stalls_down = True
    for number in range(10, 15):
        group.send(b"%d" % number)
    group.stop(group.master)
    found = group.slave.pull("TopicA")
    assert found is not None
    assert [message.body for message in messages_in(found)] == [b"%d" % number for number in range(10)]


def test_pull_held_by_a_slave_is_woken_by_what_is_copied(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.send_many(1)
    learn_master(group)
    group.pass_time(10_000)
    assert group.slave.pull("TopicA", 1, wait_ms=15_000) is None
    group.send(b"woken")
    group.settle()
    (answer,) = group.slave.inbox[CLIENT]
    assert messages_in(answer)[0].body == b"woken"


@spec("V13", "V14")
def test_files_filled_to_many_remainders_give_equal_queue_offsets_after_a_rebuild(tmp_path: Path) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER", segment_bytes=4096, message_bytes_max=3000)
    for left in range(0, 200, 3):
        group.send(b"f" * (1500 + left))
        group.send(b"g" * 1900)
    group.settle()
    group.assert_same_logs()
    before = _entries(group.master)
    assert _entries(group.slave) == before
    group.stop(group.slave)
    _delete(tmp_path / "slave1" / "consumequeue")
    assert _entries(group.start_slave(1)) == before


def _entries(member: Member) -> list[tuple[int, int, int]]:
    queue = member.node.store.queues["TopicA", 0]
    return [queue.entry(offset) for offset in range(queue.max_offset)]
