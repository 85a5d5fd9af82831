"""Periodic work: retention, and logging of a disk that accepts no writes."""

import logging
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lab.sim.world.disk import SimDisk
from tandemq.boundary import DiskUsage, Now
from tandemq.broker.kernel.upkeep import DELETION_US, FLUSH_US, FLUSHED_AT_ONCE
from tandemq.broker.state.failure_log import Failures
from tandemq.errors import DiskFailed, DiskFull
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.storage.quarantine import quarantine_tail
from tests.unit.broker.harness import Harness, run_job

HOUR_MS = 3_600_000
LATER_MS = 100 * HOUR_MS
CALM: dict[str, Any] = {"delete_when": "23"}


def fill(broker: Harness) -> None:
    """Fill two log files and a part of the third, and flush them."""
    for _ in range(300):
        broker.send("TopicA", bytes(200))
    broker.pass_time(1_000)
    assert broker.node.store.log.written_end > 2 * broker.config.segment_bytes


def clean(broker: Harness) -> None:
    """Delete expired files a hundred hours later, as an operator requests it, including the syncs that this needs."""
    changed_ms = broker.disk.modified_ms(broker.node.store.log.segment_path(broker.node.store.log.start))
    for _ in range(2):
        broker.node.upkeep.delete_expired()
        broker.node.kernel.schedule.at(0, lambda now: broker.node.upkeep.clean(Now(now.mono_ms, changed_ms + LATER_MS)))
        broker.turn()


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def test_log_file_is_kept_until_its_delayed_message_is_delivered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Harness(tmp_path, **CALM)
    broker.send("TopicA", b"later", DELAY="4")
    fill(broker)
    clean(broker)
    clean(broker)
    assert broker.node.store.log.start == 0
    assert lines(caplog, logging.WARNING) == ["retention: an expired file stays, it is needed by delayed messages"]
    broker.pass_time(31_000)
    with caplog.at_level(logging.INFO):
        clean(broker)
    size = broker.config.segment_bytes
    gone = range(0, broker.node.store.log.start, size)
    said = [line for line in lines(caplog, logging.INFO) if "retention" in line]
    assert said == [f"retention: deleted log=[{start},{start + size})" for start in gone]
    assert len(said) > 1


def test_log_file_of_a_delayed_message_is_deleted_at_the_disk_limit_and_this_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Harness(tmp_path, delete_when="23", disk_force_ratio=0.85)
    broker.send("TopicA", b"later", DELAY="18")
    fill(broker)
    monkeypatch.setattr(broker.disk, "usage", lambda: DiskUsage(100, 13))
    clean(broker)
    size = broker.config.segment_bytes
    assert broker.node.store.log.start > 0
    assert lines(caplog, logging.WARNING)[0] == (
        f"retention: deleted log=[0,{size}) although needed by delayed messages: the disk is too full"
    )


def test_sync_from_before_a_truncation_of_the_log_is_ignored_after_it() -> None:
    disk = SimDisk(Random(1))
    broker = Harness(disk)
    for _ in range(20):
        broker.send("TopicA")
    broker.pass_time(5_000)
    broker.run_jobs = False
    broker.pass_time(6_000)
    [sync] = [job for job in broker.jobs if job.name == "sync queues"]
    store = broker.node.store
    cut_at = store.queue("TopicA", 0).entry(0).log_offset
    quarantine_tail(store, cut_at)
    broker.turn([], [run_job(sync)])
    assert store.marks.synced <= cut_at
    disk.kill()
    store = Harness(disk).node.store
    assert store.log.written_end == cut_at


def lines_of_store(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log lines about the store since the last call."""
    found = [record.getMessage() for record in caplog.records if record.getMessage().startswith("store: ")]
    caplog.clear()
    return found


def send_each_second(broker: Harness, seconds: int, code: int) -> None:
    for _ in range(seconds):
        assert broker.send("TopicA").code == code
        broker.pass_time(1_000)


def test_full_disk_is_logged_once_then_once_a_minute_and_at_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise DiskFull("no space")

    broker = Harness(tmp_path)
    broker.send("TopicA")
    monkeypatch.setattr(broker.node.store.log, "_write_pieces", refuse)
    for _ in range(500):
        assert broker.send("TopicA").code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert lines_of_store(caplog) == ["store: a write failed, none of its messages was acknowledged: no space"]
    send_each_second(broker, 60, ResponseCode.SERVICE_NOT_AVAILABLE)
    assert lines_of_store(caplog) == []
    send_each_second(broker, 60, ResponseCode.SERVICE_NOT_AVAILABLE)
    again = "store: a write failed, none of its messages was acknowledged (560 since the last line): no space"
    assert lines_of_store(caplog) == [again]
    monkeypatch.undo()
    broker.pass_time(1_000)
    assert lines_of_store(caplog) == [], "nothing was written yet"
    send_each_second(broker, 2, ResponseCode.SUCCESS)
    assert lines_of_store(caplog) == ["store: writes succeed again, after 620 failures in 121.0 s"]
    monkeypatch.setattr(broker.node.store.log, "_write_pieces", refuse)
    broker.send("TopicA")
    assert len(lines_of_store(caplog)) == 1, "a new failure is logged at once"


def test_another_kind_of_failure_is_logged_at_once(caplog: pytest.LogCaptureFixture) -> None:
    failures = Failures(logging.ERROR, "it failed", "it works")
    for error in (DiskFull("full"), DiskFull("full"), DiskFailed("broken"), DiskFailed("broken")):
        failures.note(error, Now(5, 5))
    assert lines_of_store(caplog) == ["store: it failed: full", "store: it failed (2 since the last line): broken"]


def test_queue_entries_that_cannot_be_written_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk(Random(1))
    broker = Harness(disk)
    disk.fail("pwrite", times=-1, error=DiskFull, prefix="consumequeue")
    broker.send("TopicA")
    broker.pass_time(20_000)
    [line] = lines_of_store(caplog)
    assert line.startswith("store: queue entries stay in memory for now: consumequeue/")
    disk.heal()
    broker.pass_time(2_000)
    [line] = lines_of_store(caplog)
    assert line.startswith("store: queue entries are written again, after ")


def test_queues_are_flushed_a_part_per_turn_and_requests_are_served_in_between(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    for number in range(30):
        broker.send(f"Topic{number:02}")
    end = broker.node.store.log.written_end
    broker.outbox.look_us = FLUSH_US  # the time of a turn is over at the first look
    broker.pass_time(1_000)
    marks = broker.node.store.marks
    for _ in range(30 // FLUSHED_AT_ONCE - 1):
        assert marks.written < end
        assert broker.send("Topic00").code == ResponseCode.SUCCESS
        broker.pass_time(1)
    assert marks.written == end
    broker.pass_time(1_000 + 30)
    assert marks.written == broker.node.store.log.written_end


def test_failed_flush_goes_on_at_the_next_interval(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk(Random(1))
    broker = Harness(disk)
    for number in range(4):
        broker.send(f"Topic{number:02}")
    disk.fail("pwrite", nth=3, error=DiskFull, prefix="consumequeue/")
    broker.pass_time(1_999)
    assert broker.node.store.marks.written == 0
    broker.pass_time(1)
    assert broker.node.store.marks.written == broker.node.store.log.written_end
    assert [line for line in lines(caplog, logging.WARNING) if "queue entries stay in memory" in line]


def begin_deletion(broker: Harness) -> None:
    """Fill three log files from 12 topics, and begin to delete the first one, one queue per turn."""
    for number in range(360):
        broker.send(f"Topic{number % 12:02}", b"%d" % number + bytes(200))
    broker.pass_time(30_000)
    store = broker.node.store
    assert store.log.written_end > 2 * broker.config.segment_bytes
    changed_ms = broker.disk.modified_ms(store.log.segment_path(0))
    broker.outbox.look_us = DELETION_US
    broker.now = Now(broker.now.mono_ms, changed_ms + LATER_MS)
    assert broker.ask(RequestCode.DELETE_EXPIRED_COMMITLOG).code == ResponseCode.SUCCESS


def test_log_file_of_many_queues_is_deleted_between_requests(tmp_path: Path) -> None:
    broker = Harness(tmp_path, **CALM)
    begin_deletion(broker)
    store, turns = broker.node.store, 0
    while store.log.start == 0 or any(queue.plausible_offset(queue.min_offset) == 0 for queue in store.queues.values()):
        assert broker.send("Topic00").code == ResponseCode.SUCCESS
        for topic in ("Topic00", "Topic05", "Topic11"):
            found = broker.pull(topic, 0)
            assert found is not None
            assert found.code in (ResponseCode.SUCCESS, ResponseCode.PULL_OFFSET_MOVED), "no record that is gone"
        broker.pass_time(1)
        turns += 1
    assert turns >= 12
    broker.outbox.look_us = 0
    broker.pass_time(10)
    for queue in store.queues.values():
        assert (queue.plausible_offset(queue.min_offset) or 0) >= broker.config.segment_bytes
    assert store.log.start >= broker.config.segment_bytes


def test_log_file_that_is_needed_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Harness(tmp_path, **CALM)
    begin_deletion(broker)
    broker.pass_time(3)
    monkeypatch.setattr(broker.node.kernel.features, "needs_log_from", lambda: {"a slave": 0})
    broker.outbox.look_us = 0
    broker.pass_time(1_000)
    assert broker.node.store.log.start == 0


def test_topic_deleted_during_the_deletion_of_a_log_file_is_left_out(tmp_path: Path) -> None:
    broker = Harness(tmp_path, **CALM)
    begin_deletion(broker)
    broker.pass_time(3)
    broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Topic11"})
    broker.outbox.look_us = 0
    broker.pass_time(1_000)
    assert broker.node.store.log.start >= broker.config.segment_bytes
    assert ("Topic11", 0) not in broker.node.store.queues
