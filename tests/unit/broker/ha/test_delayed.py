"""Damaged delayed messages wait for their repair from a replica, as other messages do, and are delivered intact."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from lab.sim.world.disk import SimDisk
from tandemq.broker.features.delay import service as delay
from tandemq.broker.features.delay.progress import LevelProgress
from tandemq.broker.features.delay.service import APART_MS, DelayedMessages
from tandemq.broker.kernel.log_queue import DOUBT_MS
from tandemq.codec.remoting.fastjson import dumps_java
from tandemq.model.codes import RequestCode
from tandemq.model.topic import SCHEDULE_TOPIC
from tandemq.storage.json_tables import TableFile
from tests.spec import spec
from tests.unit.broker.ha.group import Group
from tests.unit.broker.ha.test_repair import SEGMENT, flip, paths, read_from_disk, state
from tests.unit.broker.harness import Harness, messages_in

LEVEL_2_MS = 5_000


def delayed(path: Path, **changes: Any) -> Group:
    """Return a group with ten delayed messages, a second before they are due."""
    group = Group(path, role="SYNC_MASTER", segment_bytes=SEGMENT, **changes)
    for number in range(10):
        group.send(bytes([number]) * 700, DELAY="2")
    group.settle()
    group.pass_time(LEVEL_2_MS - 1_000)
    group.assert_same_logs()
    return group


def place(member: Harness, number: int) -> tuple[int, int]:
    """Return log offset and size of a delayed message."""
    entry = member.node.store.queues[SCHEDULE_TOPIC, 1].entry(number)
    return entry.log_offset, entry.size


def bodies(member: Harness) -> list[bytes]:
    """Return the delivered bodies, in order."""
    answer = member.pull("TopicA")
    assert answer is not None
    return [message.body for message in messages_in(answer)] if answer.code == 0 else []


def wanted(*numbers: int) -> list[bytes]:
    return [bytes([number]) * 700 for number in numbers]


@spec("T19")
@pytest.mark.parametrize("where", [0, 4, 28, 36, 88, 300, -3])
def test_delayed_message_that_is_damaged_when_due_is_repaired_and_delivered_in_order(
    tmp_path: Path, where: int
) -> None:
    group = delayed(tmp_path)
    at, size = place(group.master, 3)
    flip(paths(group)["master"], at + (where if where >= 0 else size + where))
    read_from_disk(group.master)
    group.pass_time(10_000)
    assert bodies(group.master) == wanted(*range(10))
    assert [(one["start"], one["end"]) for one in state(group.master)["repaired"]] == [(at, at + size)]
    group.assert_same_logs()


def test_damaged_delayed_message_waits_alone_while_the_replica_is_down(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    group = delayed(tmp_path, in_sync_replicas=1)
    group.refuses = True
    group.cut()
    at, _ = place(group.master, 3)
    flip(paths(group)["master"], at + 300)
    read_from_disk(group.master)
    group.pass_time(1_000 + APART_MS - 500)
    assert bodies(group.master) == wanted(0, 1, 2), "a quick repair would keep the order"
    group.pass_time(3 * DOUBT_MS)
    rest = wanted(0, 1, 2, *range(4, 10))
    assert bodies(group.master) == rest
    group.send(b"retried", DELAY="2")
    group.pass_time(LEVEL_2_MS + 500)
    assert bodies(group.master) == [*rest, b"retried"]
    assert not group.master.node.features.find(DelayedMessages).is_drained(2)
    said = [record for record in caplog.records if "delay: level 2 has messages that wait" in record.getMessage()]
    assert 3 <= len(said) <= 5, "once a minute"
    group.refuses = False
    group.pass_time(30_000)
    assert bodies(group.master) == [*rest, b"retried", *wanted(3)]
    assert group.master.node.features.find(DelayedMessages).is_drained(2)
    group.assert_same_logs()


def test_messages_that_wait_apart_are_kept_over_a_restart_and_delivered_once(tmp_path: Path) -> None:
    group = delayed(tmp_path, in_sync_replicas=1)
    group.refuses = True
    group.cut()
    for number in (3, 6):
        at, _ = place(group.master, number)
        flip(paths(group)["master"], at + 300)
    read_from_disk(group.master)
    group.pass_time(10_000)
    assert group.master.node.features.find(DelayedMessages).progress[2] == LevelProgress(10, (3, 6))
    rest = wanted(0, 1, 2, 4, 5, 7, 8, 9)
    assert bodies(group.master) == rest
    group.pass_time(20_000)
    table = TableFile("delayOffset.json").load(group.master.disk)
    assert (table["offsetTable"], table["waitingTable"]) == ({"2": 10}, {"2": [3, 6]})
    group.restart_master(clean=True)
    group.pass_time(10_000)
    assert bodies(group.master) == rest
    group.refuses = False
    group.pass_time(30_000)
    assert bodies(group.master) == [*rest, *wanted(3, 6)]


def test_retention_keeps_the_log_of_a_message_that_waits_apart(tmp_path: Path) -> None:
    group = delayed(tmp_path, in_sync_replicas=1)
    group.refuses = True
    group.cut()
    at, _ = place(group.master, 3)
    flip(paths(group)["master"], at + 300)
    read_from_disk(group.master)
    group.pass_time(10_000)
    assert group.master.node.features.find(DelayedMessages).keeps_log_from() == at
    group.refuses = False
    group.pass_time(30_000)
    assert group.master.node.features.find(DelayedMessages).keeps_log_from() is None


def test_level_with_too_many_damaged_messages_waits_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delay, "WAITING_MAX", 2)
    group = delayed(tmp_path, in_sync_replicas=1)
    group.refuses = True
    group.cut()
    for number in (1, 3, 5):
        at, _ = place(group.master, number)
        flip(paths(group)["master"], at + 300)
    read_from_disk(group.master)
    group.pass_time(10_000)
    assert group.master.node.features.find(DelayedMessages).progress[2] == LevelProgress(5, (1, 3))
    group.refuses = False
    group.pass_time(30_000)
    assert sorted(bodies(group.master)) == wanted(*range(10))


def test_replica_that_becomes_the_master_delivers_what_the_old_one_could_not(tmp_path: Path) -> None:
    group = delayed(tmp_path, in_sync_replicas=1)
    group.refuses = True
    group.cut()
    at, _ = place(group.master, 3)
    flip(paths(group)["master"], at + 300)
    read_from_disk(group.master)
    group.pass_time(10_000)
    assert group.master.node.features.find(DelayedMessages).progress[2] == LevelProgress(10, (3,))
    for member in group.members:
        group.stop(member)
    successor = Harness(group.path / "slave1", segment_bytes=SEGMENT, now=group.now)
    successor.pass_time(5_000)
    assert bodies(successor) == wanted(*range(10)), "also those whose delivery had not been replicated"


def test_slave_takes_the_list_of_waiting_messages_and_delivers_only_those_as_master(tmp_path: Path) -> None:
    group = delayed(tmp_path)
    group.pass_time(30_000)
    table = group.master.node.features.find(DelayedMessages).as_json() | {"waitingTable": {"2": [3]}}
    group.stop(group.master)
    group.slave.node.features.find(DelayedMessages).adopt_body(dumps_java(table))
    group.stop(group.slave, clean=True)
    successor = Harness(group.path / "slave1", segment_bytes=SEGMENT, now=group.now)
    successor.pass_time(5_000)
    assert bodies(successor) == [*wanted(*range(10)), *wanted(3)]


def test_delayed_message_that_no_replica_has_is_logged_and_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    group = delayed(tmp_path)
    at, _ = place(group.master, 3)
    for path in paths(group).values():
        flip(path, at + 300)
    read_from_disk(group.master, *group.slaves)
    group.pass_time(DOUBT_MS)
    assert bodies(group.master) == wanted(0, 1, 2, *range(4, 10))
    said = [record for record in caplog.records if f"log offset {at} is lost in damage" in record.getMessage()]
    assert len(said) == 1


def test_unreadable_delayed_message_waits_until_it_can_be_read() -> None:
    disk = SimDisk.__new__(SimDisk)
    disk = SimDisk(Random(1))
    broker = Harness(disk)
    broker.send("TopicA", b"late", DELAY="1")
    disk.fail("pread", times=-1, prefix="commitlog/")
    broker.pass_time(2 * DOUBT_MS)
    disk.heal()
    broker.ask(RequestCode.TANDEM_SCRUB, {"begin": "true"})
    broker.pass_time(10_000)
    assert bodies(broker) == [b"late"]
    assert broker.node.features.find(DelayedMessages).is_drained(1)


def test_wrong_queue_entry_of_a_delayed_message_is_corrected_and_the_message_delivered(tmp_path: Path) -> None:
    group = delayed(tmp_path)
    queue = group.master.node.store.queues[SCHEDULE_TOPIC, 1]
    at, size = place(group.master, 3)
    queue.correct(3, at, size - 5, queue.entry(3).tags_code)
    group.pass_time(DOUBT_MS - 10_000)
    assert bodies(group.master) == wanted(*range(10))
