"""Replication between a master and its slaves, and requests that a slave serves."""

import logging
from pathlib import Path

import pytest

from tandemq.broker.ha import master
from tandemq.config.settings import BrokerConfig
from tandemq.errors import DiskFailed
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.not_cached import FileRange, read_ranges
from tandemq.real.disk import RealFile
from tests.spec import spec
from tests.unit.broker.ha.group import Group, Member, delete_files
from tests.unit.broker.harness import CLIENT, Harness, messages_in, run_job, send_fields

OK = ResponseCode.SUCCESS
DEFAULTS = BrokerConfig()


def ha_status(member: Harness) -> list[tuple[str, int]]:
    """Return peer and acknowledged offset of each slave that counts."""
    masters = member.node.replication.masters
    return [(masters.peers[link], session.acked_offset) for link, session in masters.sessions.items()]


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


@spec("T01", "H01")
def test_slave_gets_what_the_masters_page_cache_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER")
    for number in range(80):
        group.send(bytes([number]) * 1500)
    group.settle()
    group.cut()
    monkeypatch.setattr(RealFile, "fileno", lambda _: -1)
    monkeypatch.setattr(RealFile, "pread_cached", lambda *_: None)
    read: list[FileRange] = []

    def note(ranges: list[FileRange]) -> None:
        read.extend(ranges)
        read_ranges(ranges)

    monkeypatch.setattr(master, "read_ranges", note)
    for number in range(80):
        group.send(bytes([number]) * 1500)
    group.master.node.store.log.recent.restart(group.master.node.store.log.end)
    group.pass_time(10_000)
    group.settle()
    group.assert_same_logs()
    assert {Path(found.file.path).parent.name for found in read} == {"commitlog"}


def test_device_that_fails_ends_the_session_of_the_slave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER")
    group.send()
    group.settle()
    group.cut()
    group.send()
    group.master.node.store.log.recent.restart(group.master.node.store.log.end)
    monkeypatch.setattr(RealFile, "fileno", lambda _: -1)
    monkeypatch.setattr(RealFile, "pread_cached", lambda *_: None)

    def fail(_ranges: list[FileRange]) -> None:
        raise DiskFailed("bad sector")

    with monkeypatch.context() as failing:
        failing.setattr(master, "read_ranges", fail)
        group.pass_time(10_000)
        assert group.master.node.store.log.end > group.slave.node.store.log.end
    group.pass_time(10_000)
    group.settle()
    group.assert_same_logs()


def test_slaves_whose_reads_hang_leave_threads_to_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER", slaves=3)
    group.settle()
    group.cut()
    for _ in range(5):
        group.send(bytes(1_500))
    group.master.node.store.log.recent.restart(group.master.node.store.log.end)
    monkeypatch.setattr(RealFile, "fileno", lambda _: -1)
    monkeypatch.setattr(RealFile, "pread_cached", lambda *_: None)
    group.master.run_jobs = False
    with caplog.at_level(logging.ERROR):
        group.pass_time(30_000)
    reads = [job for job in group.master.jobs if job.name == master.READ_JOB]
    assert len(reads) == master.READS_MAX == 2
    late = [record for record in caplog.records if "the device has not returned" in record.message]
    assert len(late) == 2, "once for each"
    group.master.run_jobs = True
    for job in group.master.jobs:
        group.master.turn([], [run_job(job)])
    group.pass_time(30_000)
    group.settle()
    group.assert_same_logs()


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
        delete_files(tmp_path / "slave1" / name)
    slave = group.slaves[0] = group.start_slave(1)
    assert slave.node.store.queues["TopicA", 0].read(0, 1000) == before
    fields = {"topic": "TopicA", "key": "key7", "maxNum": 10, "beginTimestamp": 0, "endTimestamp": 1 << 60}
    assert len(messages_in(slave.ask(RequestCode.QUERY_MESSAGE, fields))) == 1
    at = {"topic": "TopicA", "queueId": 0, "timestamp": 0}
    assert slave.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, at).fields["offset"] == "0"


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
    """Killed at any byte: the slave restarts and continues where it stopped, without gaps or duplicates."""
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
        tmp_path,
        role="ASYNC_MASTER",
        message_bytes_max=120_000,
        segment_bytes=1 << 20,
        ha_batch_bytes=32 * 1024,
        ha_reconnect_ms=10,
    )
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
def test_empty_tandem_slave_gets_the_whole_stored_log(tmp_path: Path) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER", connects=False)
    group.send_many(100, 1000)
    group.refuses = False
    group.pass_time(5_000)
    group.assert_same_logs()
    assert group.slave.node.store.log.start == 0


@spec("T03")
def test_empty_slave_may_request_the_last_file_only(tmp_path: Path) -> None:
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
def test_bit_flipped_in_flight_is_detected_and_fetched_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
def test_record_damaged_three_times_is_reported_to_the_master_and_requested_less_often(
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
    log.recent.restart(log.written_end)
    with (tmp_path / "master" / log.segment_path(0)).open("r+b") as file:
        file.seek(good + 100)
        file.write(b"!")
    with caplog.at_level(logging.ERROR):
        group.pass_time(60_000)
    assert group.slave.log_end == good
    assert "suspect" in caplog.text
    assert len(group.all_wires) < 20


@spec("R03")
def test_send_to_a_slave_is_refused_and_its_log_does_not_grow(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.send_many(2)
    end = group.slave.log_end
    assert group.slave.send("TopicA").code == ResponseCode.SERVICE_NOT_AVAILABLE
    group.slave.send_request(RequestCode.SEND_MESSAGE_V2, send_fields("TopicA"), b"x", is_oneway=True)
    assert group.slave.ask(RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": 0, "group": "g", "delayLevel": 1}).code == 14
    group.slave.pass_time(60_000)
    assert group.slave.log_end == end


@spec("R07", "R09")
def test_consumers_continue_at_the_slave_and_miss_only_the_tail_that_was_not_replicated(tmp_path: Path) -> None:
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


def test_pull_held_by_a_slave_is_woken_by_replicated_messages(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.send_many(1)
    group.tell_master(group.slave)
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
    delete_files(tmp_path / "slave1" / "consumequeue")
    assert _entries(group.start_slave(1)) == before


def _entries(member: Member) -> list[tuple[int, int, int]]:
    queue = member.node.store.queues["TopicA", 0]
    return [queue.entry(offset) for offset in range(queue.max_offset)]
