"""Damage in the log of one replica: found by the scrubber, isolated, repaired from the other; in both directions."""

import logging
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lab.sim.world.disk import SimDisk
from tandemq.boundary import Now
from tandemq.broker.features.scrub.scrubber import FIRST_MS, Scrubber
from tandemq.broker.kernel.role import LogDoubted, Report
from tandemq.codec.record.entries import HOLE_SIZE_MAX
from tandemq.codec.record.record import RECORD_BYTES_MIN
from tandemq.codec.remoting.frame import FrameDecoder, decode_command, encode_command
from tandemq.model.codes import RequestCode, ResponseCode
from tests.spec import spec
from tests.unit.broker.ha.group import Group, Member
from tests.unit.broker.harness import Harness, messages_in

SEGMENT = 32 * 1024


def read_from_disk(*brokers: Harness) -> None:
    """Forget the newest bytes of the log, which are in memory and therefore sound."""
    for broker in brokers:
        broker.node.store.log.recent.restart(broker.node.store.log.written_end)


def flip(path: Path, log_offset: int, mask: int = 1, count: int = 1) -> None:
    """Flip bits in the log of a store."""
    file = path / "commitlog" / f"{log_offset - log_offset % SEGMENT:020d}"
    with file.open("r+b") as log:
        log.seek(log_offset % SEGMENT)
        found = log.read(count)
        log.seek(log_offset % SEGMENT)
        log.write(bytes(byte ^ mask for byte in found))


def log_files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted((path / "commitlog").iterdir())}


def scrub(member: Member) -> Any:
    return member.json(RequestCode.TANDEM_SCRUB, {"begin": True})


def state(member: Member) -> Any:
    return member.json(RequestCode.TANDEM_SCRUB)


def places(member: Member) -> list[tuple[int, int]]:
    """Return log offset and size of the messages in the queue."""
    queue = member.node.store.queues["TopicA", 0]
    return [(e.log_offset, e.size) for e in (queue.entry(n) for n in range(queue.min_offset, queue.max_offset))]


def paths(group: Group) -> dict[str, Path]:
    return {"master": group.path / "master", "slave": group.path / "slave1"}


def filled(path: Path, count: int = 200, **changes: Any) -> Group:
    group = Group(path, role="SYNC_MASTER", **changes)
    group.send_many(count, 700)
    group.pass_time(2_000)
    group.assert_same_logs()
    return group


@spec("T19", "H24")
@pytest.mark.parametrize("side", ["master", "slave"])
def test_replicas_with_a_secret_repair_each_other(tmp_path: Path, side: str) -> None:
    secret = b"one secret for all of the group"
    group = filled(tmp_path, secrets={0: secret, 1: secret})
    member: Member = getattr(group, side)
    before = {name: log_files(path) for name, path in paths(group).items()}
    at, _ = places(member)[70]
    flip(paths(group)[side], at + 88)
    scrub(member)
    group.pass_time(5_000)
    assert {name: log_files(path) for name, path in paths(group).items()} == before
    assert state(member)["repairedTotal"] == 1


@spec("T19")
@pytest.mark.parametrize("side", ["master", "slave"])
@pytest.mark.parametrize("where", [0, 4, 8, 20, 28, 36, 88, 300, -3])
def test_flipped_bit_is_found_and_repaired_from_the_replica(
    tmp_path: Path, side: str, where: int, caplog: pytest.LogCaptureFixture
) -> None:
    group = filled(tmp_path)
    member: Member = getattr(group, side)
    before = {name: log_files(path) for name, path in paths(group).items()}
    at, size = places(member)[70]
    flip(paths(group)[side], at + (where if where >= 0 else size + where))
    assert {name: log_files(path) for name, path in paths(group).items()} != before
    scrub(member)
    group.pass_time(5_000)
    assert {name: log_files(path) for name, path in paths(group).items()} == before
    found = state(member)
    assert found["damaged"] == []
    assert [(one["start"], one["end"]) for one in found["repaired"]] == [(at, at + size)]
    assert found["repairedTotal"] == 1
    assert found["last"]["damaged"] == 1
    assert found["last"]["bytes"] == member.log_end
    said = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert len(said) == 1
    assert f"[{at},{at + size})" in said[0].getMessage()


@pytest.mark.parametrize("side", ["master", "slave"])
def test_whole_files_and_file_ends_are_repaired_in_pieces(tmp_path: Path, side: str) -> None:
    group = filled(tmp_path, 500)
    before = log_files(paths(group)[side])
    member: Member = getattr(group, side)
    flip(paths(group)[side], SEGMENT, 0x55, SEGMENT)
    blank = max(at + size for at, size in places(member) if at < 3 * SEGMENT)
    flip(paths(group)[side], blank + 1)
    scrub(member)
    group.pass_time(5_000)
    assert log_files(paths(group)[side]) == before
    assert [(one["start"], one["end"]) for one in state(member)["repaired"]] == [
        (SEGMENT, 2 * SEGMENT),
        (blank, 3 * SEGMENT),
    ]


def test_a_pass_is_limited_to_its_rate_and_continues_after_a_restart(tmp_path: Path) -> None:
    group = filled(tmp_path, 400, scrub_bytes_per_second=64 << 10, scrub_interval_ms=300_000)
    master = group.master
    group.pass_time(FIRST_MS + 2_000)
    running = state(master)
    assert running["state"] == "running"
    assert 4 * (64 << 10) <= running["position"] <= 4 * (64 << 10) + SEGMENT  # four seconds, and one step
    master = group.restart_master(clean=True)
    assert state(master)["position"] == running["position"]
    at, _ = next(place for place in places(master) if place[0] >= running["position"])
    flip(paths(group)["master"], at)
    group.pass_time(FIRST_MS + 10_000)
    done = state(master)
    assert (done["state"], done["last"]["bytes"], done["last"]["records"]) == ("waiting", master.log_end, 399)
    assert done["repairedTotal"] == 1
    group.pass_time(300_000)
    assert state(master)["last"]["beganMs"] >= done["last"]["beganMs"] + 300_000


def test_large_records_are_limited_to_the_rate_too(tmp_path: Path) -> None:
    group = Group(
        tmp_path,
        segment_bytes=4 << 20,
        message_bytes_max=1 << 20,
        frame_bytes_max=2 << 20,
        scrub_bytes_per_second=64 << 10,
    )
    group.send_many(4, 500_000)
    ends = [at + size for at, size in places(group.master)]
    group.pass_time(FIRST_MS + 2_000)
    assert state(group.master)["position"] == ends[0]
    group.pass_time(8_000)
    assert state(group.master)["position"] == ends[1]
    group.pass_time(30_000)
    assert state(group.master)["last"]["records"] == 4


def test_scrubbing_can_be_off_and_requested(tmp_path: Path) -> None:
    group = filled(tmp_path, scrub_bytes_per_second=0)
    group.pass_time(600_000)
    assert state(group.master)["state"] == "off"
    refused = group.master.ask(RequestCode.TANDEM_SCRUB, {"begin": True})
    assert refused.code == ResponseCode.INVALID_PARAMETER
    group.master.ask(RequestCode.TANDEM_SCRUB, {"begin": True, "bytesPerSecond": 1 << 20})
    group.pass_time(5_000)
    assert state(group.master)["last"]["bytes"] == group.master.log_end


@spec("T19")
def test_messages_wait_for_their_repair_and_are_delivered_intact(tmp_path: Path) -> None:
    group = filled(tmp_path)
    master = group.master
    group.refuses = True
    group.cut()
    at, size = places(master)[5]
    flip(paths(group)["master"], at + 200)
    scrub(master)
    group.pass_time(30_000)
    (damage,) = state(master)["damaged"]
    assert (damage["start"], damage["end"], damage["isLost"]) == (at, at + size, False)
    assert "slave 1" in damage["trouble"]
    found = master.pull("TopicA", 0)
    assert found is not None
    assert len(messages_in(found)) == 5
    waits = master.pull("TopicA", 5)
    assert waits is not None
    assert waits.code == ResponseCode.SYSTEM_ERROR
    assert "waits for its repair" in (waits.remark or "")
    group.refuses = False
    group.pass_time(30_000)
    assert state(master)["damaged"] == []
    found = master.pull("TopicA", 5)
    assert found is not None
    assert messages_in(found)[0].body == bytes([5]) * 700


@spec("T19")
def test_damaged_message_with_a_damaged_entry_waits_too(tmp_path: Path) -> None:
    """The entry points outside the damage, but damage that waits for its repair may contain its record."""
    group = filled(tmp_path)
    master = group.master
    group.refuses = True
    group.cut()
    queue = master.node.store.queues["TopicA", 0]
    right, (at, _) = queue.entry(5), places(master)[5]
    flip(paths(group)["master"], at + 200)
    queue.correct(5, 0, 0, 0)
    for _ in range(3):
        waits = master.pull("TopicA", 5)
        assert waits is not None
        assert waits.code == ResponseCode.SYSTEM_ERROR
        group.pass_time(10_000)
    assert queue.entry(5) == (0, 0, 0)
    group.refuses = False
    group.pass_time(30_000)
    assert queue.entry(5) == right
    found = master.pull("TopicA", 5)
    assert found is not None
    assert messages_in(found)[0].body == bytes([5]) * 700


def test_record_that_no_replica_has_is_logged_and_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = filled(tmp_path)
    doubts: list[str] = []

    def note(report: Report, _now: Now) -> int:
        doubts.extend([report.why] if isinstance(report, LogDoubted) else [])
        return 0

    monkeypatch.setattr(group.master.node.role, "report", note)
    at, size = places(group.master)[9]
    for path in paths(group).values():
        flip(path, at + 300)
    before = log_files(paths(group)["master"])
    scrub(group.master)
    group.pass_time(40_000)
    (damage,) = state(group.master)["damaged"]
    assert (damage["start"], damage["end"], damage["isLost"]) == (at, at + size, True)
    assert "damaged at" in damage["trouble"]
    assert [str(at) in why for why in doubts] == [True]
    assert log_files(paths(group)["master"]) == before
    found = group.master.pull("TopicA", 8, most=3)
    assert found is not None
    assert [message.queue_offset for message in messages_in(found)] == [8, 10]
    assert len([r for r in caplog.records if r.levelno == logging.CRITICAL]) == 1


def test_damage_without_any_replica_is_remembered_over_restarts(tmp_path: Path) -> None:
    group = filled(tmp_path, slaves=0, in_sync_replicas=1)
    at, size = places(group.master)[3]
    flip(paths(group)["master"], at + 300)
    scrub(group.master)
    group.pass_time(1_000)
    master = group.restart_master()
    (damage,) = state(master)["damaged"]
    assert (damage["start"], damage["end"], damage["isLost"]) == (at, at + size, True)
    assert "no replica is known" in damage["trouble"]


@pytest.mark.parametrize("side", ["master", "slave"])
def test_damage_known_from_before_is_repaired_after_a_restart(tmp_path: Path, side: str) -> None:
    group = filled(tmp_path)
    member: Member = getattr(group, side)
    at, size = places(member)[70]
    flip(paths(group)[side], at + 300)
    member.node.kernel.damages.add(at, at + size, "found by the run before", group.now.wall_ms)
    member.node.features.find(Scrubber).save()
    member.turn()
    restarted = group.restart_master() if side == "master" else group.restart_slave()
    assert len(state(restarted)["damaged"]) == 1
    group.pass_time(10_000)
    assert state(restarted)["damaged"] == []
    group.assert_same_logs()


def test_temporarily_unreadable_messages_are_delivered_again(tmp_path: Path) -> None:
    disk = SimDisk(Random(1))
    broker = Harness(disk, segment_bytes=SEGMENT)
    for number in range(100):
        broker.send("TopicA", bytes([number]) * 700)
    disk.fail("pread", times=-1, prefix="commitlog/")
    broker.ask(RequestCode.TANDEM_SCRUB, {"begin": "true"})
    broker.pass_time(10_000)
    assert broker.node.kernel.damages.ranges
    disk.heal()
    answer = broker.pull("TopicA")
    assert answer is not None
    assert answer.code == ResponseCode.SYSTEM_ERROR
    broker.ask(RequestCode.TANDEM_SCRUB, {"begin": "true"})
    broker.pass_time(10_000)
    assert broker.node.kernel.damages.ranges == []
    found = broker.pull("TopicA")
    assert found is not None
    assert messages_in(found)[0].body == bytes(700)


def test_damage_found_by_recovery_is_repaired_and_its_placeholder_filled(tmp_path: Path) -> None:
    group = filled(tmp_path)
    group.stop(group.slave)
    at, size = places(group.master)[150]
    flip(paths(group)["slave"], at + 4)
    (group.path / "slave1" / "tandemq.marks").unlink()
    slave = group.slaves[0] = group.start_slave(1)
    queue = slave.node.store.queues["TopicA", 0]
    assert queue.entry(150).is_hole
    group.pass_time(10_000)
    assert queue.entry(150)[:2] == (at, size)
    assert state(slave)["damaged"] == []
    group.assert_same_logs()


def test_damage_found_by_recovery_that_crosses_files_is_repaired(tmp_path: Path) -> None:
    group = filled(tmp_path)
    group.stop(group.slave)
    border = 4 * SEGMENT
    starts = [at for at, _ in places(group.master)]
    first, last = max(at for at in starts if at < border - 2_000), min(at for at in starts if at > border + 2_000)
    flip(paths(group)["slave"], first, 0x55, border - first)
    flip(paths(group)["slave"], border, 0x55, last - border)
    (group.path / "slave1" / "tandemq.marks").unlink()
    slave = group.slaves[0] = group.start_slave(1)
    assert slave.node.store.damaged[0][:2] == (first, last)
    group.pass_time(10_000)
    assert state(slave)["damaged"] == []
    group.assert_same_logs()


@pytest.mark.parametrize("side", ["master", "slave"])
def test_wrong_queue_entries_are_corrected_from_the_log(tmp_path: Path, side: str) -> None:
    group = filled(tmp_path)
    member: Member = getattr(group, side)
    queue = member.node.store.queues["TopicA", 0]
    before = queue.read(0, 1000), queue.read(100, 1000)
    queue.correct(20, 5, 600, 7)
    queue.correct(120, 5, HOLE_SIZE_MAX, 0)
    scrub(member)
    group.pass_time(2_000)
    assert (queue.read(0, 1000), queue.read(100, 1000)) == before
    assert state(member)["corrected"] == 2


# Invalid responses of a replica.


def changed_answer(change: Callable[[Any], None]) -> Callable[[bytes], bytes]:
    """Return a function that changes responses to TANDEM_LOG_RECORDS in flight."""
    decoder = FrameDecoder()

    def apply(data: bytes) -> bytes:
        out = b""
        for frame in decoder.feed(data):
            command = decode_command(frame)
            if "beforeCrc" in command.fields:
                change(command)
            out += encode_command(command)
        return out

    return apply


def _other_bytes(command: Any) -> None:
    command.body = command.body[:200] + bytes([command.body[200] ^ 1]) + command.body[201:]


def _other_offset(command: Any) -> None:
    command.body = command.body[:28] + (0).to_bytes(8) + command.body[36:]


def _too_long(command: Any) -> None:
    command.body += command.body


def _too_short(command: Any) -> None:
    command.body = command.body[:-1]


def _empty(command: Any) -> None:
    command.body = b""


def _other_group(command: Any) -> None:
    command.fields["brokerName"] = "broker-x"


def _other_history(command: Any) -> None:
    command.fields["generations"] = "7-0"


def _parted_history(command: Any) -> None:
    command.fields["generations"] += ";9-100"


def _unreadable_history(command: Any) -> None:
    command.fields["generations"] = "one"


def _other_context(command: Any) -> None:
    command.fields["beforeCrc"] = "1"


def _huge_context(command: Any) -> None:
    command.fields["behindSize"] = str(1 << 40)


def _no_fields(command: Any) -> None:
    command.fields = {"beforeCrc": "1"}


@pytest.mark.parametrize(
    "change",
    [
        _other_bytes,
        _other_offset,
        _too_long,
        _too_short,
        _empty,
        _other_group,
        _other_history,
        _parted_history,
        _unreadable_history,
        _other_context,
        _huge_context,
        _no_fields,
    ],
)
@pytest.mark.parametrize("side", ["master", "slave"])
def test_invalid_responses_change_nothing(tmp_path: Path, side: str, change: Callable[[Any], None]) -> None:
    group = filled(tmp_path)
    group.pieces = None
    group.tell_master(group.slave)
    member: Member = getattr(group, side)
    at, size = places(member)[40]
    flip(paths(group)[side], at + 100)
    before = log_files(paths(group)[side])
    join = group._join

    def joined(*arguments: Any) -> None:
        join(*arguments)
        group.all_wires[-1].change_down = changed_answer(change)

    group._join = joined  # type: ignore[method-assign, assignment]
    for wire in group.all_wires:
        if wire.is_open and wire not in group.wires:
            wire.change_down = changed_answer(change)
    scrub(member)
    group.pass_time(12_000)
    assert log_files(paths(group)[side]) == before
    (damage,) = state(member)["damaged"]
    assert (damage["start"], damage["end"]) == (at, at + size)
    assert damage["trouble"]
    group._join = join  # type: ignore[method-assign]
    for wire in group.all_wires:
        wire.change_down = None
    group.pass_time(12_000)
    assert state(member)["damaged"] == []
    group.assert_same_logs()


def test_a_replica_with_other_records_next_to_the_damage_is_refused(tmp_path: Path) -> None:
    """Its bytes verify, but the records next to the damage differ from the local ones."""
    group = filled(tmp_path)
    other = Group(tmp_path / "other")
    other.send_many(200, 701)
    at, _ = places(group.master)[40]
    flip(paths(group)["master"], at + 100)
    group.slaves[0].node.store.log = other.slave.node.store.log
    group.slaves[0].node.store.disk = other.slave.node.store.disk
    before = log_files(paths(group)["master"])
    scrub(group.master)
    group.pass_time(12_000)
    assert log_files(paths(group)["master"]) == before
    assert len(state(group.master)["damaged"]) == 1


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"offset": -1, "size": 10}, ResponseCode.INVALID_PARAMETER),
        ({"offset": 0, "size": 0}, ResponseCode.INVALID_PARAMETER),
        ({"offset": 0, "size": SEGMENT + 1}, ResponseCode.INVALID_PARAMETER),
        ({"offset": 0, "size": 1 << 62}, ResponseCode.INVALID_PARAMETER),
        ({"offset": "x", "size": 1}, ResponseCode.SYSTEM_ERROR),
        ({"size": 1}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_invalid_requests_for_records_are_refused(tmp_path: Path, fields: Any, code: int) -> None:
    group = filled(tmp_path, 20)
    assert group.master.ask(RequestCode.TANDEM_LOG_RECORDS, fields).code == code


def test_records_are_returned_complete_and_never_from_within_one(tmp_path: Path) -> None:
    group = filled(tmp_path, 20)
    master = group.master
    (first, size), (second, _) = places(master)[:2]

    def ask(offset: int, length: int) -> Any:
        opaque = master.send_request(RequestCode.TANDEM_LOG_RECORDS, {"offset": offset, "size": length, "before": 9999})
        answer = master.answer_to(opaque)
        assert answer is not None
        return answer

    assert ask(first, size).body == master.log_bytes()[first : first + size]
    assert ask(first, 2 * size).body == master.log_bytes()[first : first + 2 * size]
    assert ask(second, size).fields["beforeSize"] == "256"
    assert "damaged" in ask(first + 1, size).fields["fault"]
    assert ask(first, RECORD_BYTES_MIN).body == b""
    assert "held here" in ask(SEGMENT // 2, SEGMENT // 2).fields["fault"]


# A suspect master.


@spec("T19")
def test_master_checks_a_record_that_arrived_damaged_three_times_and_repairs_it_from_another_slave(
    tmp_path: Path,
) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER", slaves=2)
    group.send_many(50, 700)
    late = group.slaves[1]
    group.stop(late)
    group.slaves.remove(late)
    group.send_many(100, 700)
    group.pass_time(2_000)
    at, _ = places(group.master)[80]
    flip(paths(group)["master"], at + 300)
    read_from_disk(group.master)
    group.slaves.append(group.start_slave(2))
    group.pass_time(40_000)
    found = state(group.master)
    assert found["suspicion"]["source"] == "broker 2"
    assert "CRC" in found["suspicion"]["found"]
    assert found["damaged"] == []
    assert found["repaired"][0]["source"] == "slave 1"
    group.assert_same_logs()


def test_suspicion_of_valid_bytes_is_logged_as_unfounded(tmp_path: Path) -> None:
    group = filled(tmp_path)
    at, _ = places(group.master)[80]
    suspicion = {"offset": at, "brokerId": 7, "reason": "it looked bad"}
    assert group.master.ask(RequestCode.TANDEM_LOG_SUSPECT, suspicion).code == ResponseCode.SUCCESS
    group.pass_time(1_000)
    found = state(group.master)
    assert (found["suspicion"]["found"], found["damaged"]) == ("sound here", [])
    for offset in (-1, 1 << 62, at + 13):
        group.master.ask(RequestCode.TANDEM_LOG_SUSPECT, suspicion | {"offset": offset})
    group.pass_time(1_000)
    assert state(group.master)["damaged"] == []


def test_forged_suspicions_are_logged_as_reports_once_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    group = filled(tmp_path)
    for at, _ in places(group.master)[:20]:
        group.master.ask(RequestCode.TANDEM_LOG_SUSPECT, {"offset": at, "brokerId": 7, "reason": "forged\n" * 1_000})
        group.pass_time(1_000)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    for start in ("repair: slave 7 at", "scrub: log offset"):
        lines = [message for message in caplog.messages if message.startswith(start)]
        assert len(lines) == 1
        assert len(lines[0]) < 1_000


def test_a_pull_that_finds_no_record_has_it_repaired(tmp_path: Path) -> None:
    group = filled(tmp_path)
    at, _ = places(group.master)[60]
    flip(paths(group)["master"], at + 5)
    read_from_disk(group.master)
    answer = group.master.pull("TopicA", 60, most=1)
    assert answer is not None
    assert answer.code == ResponseCode.SYSTEM_ERROR
    group.pass_time(3_000)
    found = group.master.pull("TopicA", 60, most=1)
    assert found is not None
    assert messages_in(found)[0].queue_offset == 60
