"""Flushes of the queues in parts: what a kill, a power loss, a full disk or a deletion in between leaves."""

import logging
from random import Random

import pytest

from lab.sim.world.disk import SimDisk
from tandemq.errors import DiskFull
from tandemq.storage.checkpoint import REBUILDING
from tandemq.storage.consume_queue import ConsumeQueue
from tandemq.storage.quarantine import quarantine_tail
from tandemq.storage.store import Store
from tests.unit.storage.harness import NOW_MS, OTHER_BOOT, check, fill, new_disk, put, reopen, start

TOPICS = 6
QUEUES = 2 * TOPICS


def sync(store: Store, disk: SimDisk) -> None:
    """Sync log, queues and index, as a broker does every ten seconds."""
    store.flush()
    for path in store.take_unsynced(store.marks.synced):
        disk.open(path).datasync()
    store.synced_up_to(min(store.marks.written, store.log.flushed_offset))


def entries_in_files(store: Store) -> int:
    return sum(queue.tail_start for queue in store.queues.values())


@pytest.fixture
def no_rebuild(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The log, without which no rebuild of the queues can be noticed."""
    caplog.set_level(logging.WARNING, "tandemq.storage")
    return caplog


def test_flush_writes_what_was_in_memory_when_it_began_and_nothing_later() -> None:
    store = start(new_disk())
    fill(store, 60, topics=TOPICS)
    end = store.log.written_end
    for at in range(QUEUES - 1):
        assert not store.flush_some_queues(1)
        fill(store, 12, first=60 + 12 * at, topics=TOPICS)
        assert store.marks.written == 0, "the marks are written with the last queue"
    assert store.flush_some_queues(1)
    assert (store.marks.written, store.marks.entries, entries_in_files(store)) == (end, 60, 60)
    assert store.queued_ms == NOW_MS + 590
    assert len(store.dirty_queues) == QUEUES, "they have newer entries"
    store.flush_queues()
    assert not store.dirty_queues
    assert store.marks.entries == entries_in_files(store) == 60 + 12 * (QUEUES - 1)


def test_whole_flush_finishes_the_one_in_progress_and_writes_the_rest() -> None:
    store = start(new_disk())
    fill(store, 60, topics=TOPICS)
    store.flush_some_queues(3)
    fill(store, 60, first=60, topics=TOPICS)
    store.flush_queues()
    assert not store.dirty_queues
    assert (store.marks.written, store.marks.entries) == (store.log.written_end, 120)


def test_kill_between_two_parts_of_a_flush_loses_nothing(no_rebuild: pytest.LogCaptureFixture) -> None:
    for parts in range(QUEUES + 1):
        disk = new_disk(parts)
        store = start(disk)
        fill(store, 60, topics=TOPICS)
        store.flush_queues()
        fill(store, 60, first=60, topics=TOPICS)
        written = store.marks.written
        for _ in range(parts):
            store.flush_some_queues(1)
            fill(store, 1, first=120, topics=TOPICS)
        store, recovered = reopen(disk)
        if parts < QUEUES:
            assert recovered.checked_from == written
        assert check(store) == [*range(120), *[120] * parts]
    assert not no_rebuild.messages


def test_kill_after_a_flush_searches_no_queue(
    no_rebuild: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many queues a start would take long."""
    disk = new_disk()
    store = start(disk)
    fill(store, 60, topics=TOPICS)
    while not store.flush_some_queues(1):
        fill(store, 5, first=60, topics=TOPICS)
    disk.kill()
    searched: list[ConsumeQueue] = []
    monkeypatch.setattr(ConsumeQueue, "truncate_from", lambda queue, *_, **__: searched.append(queue))
    store = start(disk)
    assert not searched
    assert store.entries_total() == 60 + 5 * (QUEUES - 1)
    assert not no_rebuild.messages


def queue_paths(disk: SimDisk) -> list[str]:
    return [
        f"consumequeue/{topic}/{number}/{name}"
        for topic in disk.list("consumequeue")
        for number in disk.list(f"consumequeue/{topic}")
        for name in disk.list(f"consumequeue/{topic}/{number}")
    ]


def flushed_in_part(disk: SimDisk, parts: int) -> Store:
    """Return a store with 60 flushed messages, 60 of which some are flushed, and 12 that are not."""
    store = start(disk)
    fill(store, 60, topics=TOPICS)
    store.flush_queues()
    fill(store, 60, first=60, topics=TOPICS)
    store.flush_some_queues(parts)
    fill(store, 12, first=120, topics=TOPICS)
    return store


@pytest.mark.parametrize("parts", range(1, QUEUES))
def test_topic_dropped_during_a_flush_is_not_counted(parts: int) -> None:
    store = flushed_in_part(new_disk(), parts)
    store.drop_topic("T1")
    assert store.marks.entries == 50, "those of the flush before"
    while not store.flush_some_queues(1):
        pass
    assert store.marks.entries == entries_in_files(store) == 100


@pytest.mark.parametrize("parts", range(1, QUEUES))
def test_topic_deleted_during_a_flush_causes_no_rebuild(parts: int, no_rebuild: pytest.LogCaptureFixture) -> None:
    disk = new_disk()
    store = flushed_in_part(disk, parts)
    store.delete_topic("T1", NOW_MS)
    assert store.marks.entries == REBUILDING, "the record of the deletion may be lost"
    store.flush()
    while not store.flush_some_queues(1):
        pass
    assert store.marks.entries == entries_in_files(store) == 100
    disk.kill()
    store, _ = reopen(disk)
    assert store.entries_total() == 110
    assert not no_rebuild.messages


def test_full_disk_keeps_the_rest_for_the_next_call() -> None:
    disk = new_disk()
    store = start(disk)
    fill(store, 60, topics=TOPICS)
    store.flush_some_queues(5)
    disk.fail("pwrite", nth=2, error=DiskFull, prefix="consumequeue/")
    with pytest.raises(DiskFull):
        store.flush_some_queues(5)
    fill(store, 6, first=60, topics=TOPICS)
    while not store.flush_some_queues(1):
        pass
    assert store.marks.entries == entries_in_files(store) == 60
    store.flush_queues()
    store, _ = reopen(disk)
    assert check(store) == list(range(66))


def test_power_loss_between_parts_of_flushes_and_syncs_loses_no_synced_message() -> None:
    for seed in range(150):
        random, disk = Random(seed), new_disk(seed)
        store, count, synced = start(disk), 0, 0
        for _ in range(random.randrange(1, 14)):
            step = random.random()
            if step < 0.5:
                fill(store, 7, first=count, topics=TOPICS)
                count += 7
            elif step < 0.8:
                store.flush_some_queues(random.randrange(1, QUEUES))
            elif step < 0.9:
                store.not_synced(store.take_unsynced(store.marks.synced))  # a sync that failed
            else:
                sync(store, disk)
                synced = count
        disk.crash()
        store, _ = reopen(disk, OTHER_BOOT)
        held = check(store)
        assert held == list(range(len(held))), f"seed {seed}"
        assert len(held) >= synced, f"seed {seed}"
        assert not store.damaged, f"seed {seed}"


@pytest.mark.parametrize("fails", [False, True])
def test_close_syncs_what_a_sync_in_progress_has_taken(fails: bool) -> None:
    """The job may still wait for the device, or its failure come too late for the broker."""
    disk = new_disk()
    store = start(disk)
    fill(store, 60, topics=TOPICS)
    store.flush_queues()
    taken = store.take_unsynced(0)
    store.delete_topic("T1", NOW_MS)
    if fails:
        store.not_synced(taken)
    store.close()
    for path in queue_paths(disk):
        assert disk.peek(path, 200, 0, safe=True) == disk.peek(path, 200, 0, safe=False)


def test_start_after_a_kill_knows_the_time_of_the_last_entry() -> None:
    """The next sync writes it to RocketMQ's checkpoint; 0 would have RocketMQ read the whole log."""
    disk = new_disk()
    store = start(disk)
    fill(store, 60, topics=TOPICS)
    store.flush_queues()
    store, _ = reopen(disk)
    assert store.queued_ms == NOW_MS + 590
    fill(store, 5, first=60, topics=TOPICS)
    store, _ = reopen(disk)
    assert store.queued_ms == 0, "not known before the first flush"
    store.flush_queues()
    assert store.queued_ms == NOW_MS + 640


def test_log_truncation_syncs_what_a_start_removed() -> None:
    """The next start could not know that those entries are still on the device."""
    disk = new_disk()
    store = start(disk)
    fill(store, 60, topics=TOPICS)
    store.flush_queues()
    sync(store, disk)
    end = store.log.written_end
    fill(store, 60, first=60, topics=TOPICS)
    store.flush()
    store.flush_some_queues(QUEUES // 2)
    store, _ = reopen(disk)
    store.not_synced(["index/gone"])  # the sync of a file failed that was deleted meanwhile
    quarantine_tail(store, end)
    assert check(store) == list(range(60))
    for path in queue_paths(disk):
        assert disk.peek(path, 200, 0, safe=True) == disk.peek(path, 200, 0, safe=False)


def test_files_are_synced_once_after_they_changed() -> None:
    disk = new_disk()
    store = start(disk)
    fill(store, 60, topics=TOPICS)
    store.flush_queues()
    first = [path for path in store.take_unsynced(0) if path.startswith("consumequeue/")]
    assert sorted(first) == sorted(queue_paths(disk))
    assert not [path for path in store.take_unsynced(0) if path.startswith("consumequeue/")]
    store.not_synced(first)
    store.drop_topic("T1")
    fill(store, 1, first=60, topics=TOPICS)
    store.flush_queues()
    again = [path for path in store.take_unsynced(0) if path.startswith("consumequeue/")]
    assert sorted(again) == sorted(queue_paths(disk))
    fill(store, 1, first=60, topics=TOPICS)
    store.flush_queues()
    assert [path.split("/")[1:3] for path in store.take_unsynced(0) if path.startswith("consumequeue/")] == [
        ["T0", "0"]
    ]


def test_start_begins_at_marks_before_the_rest_of_a_file() -> None:
    """Otherwise it would begin at the start of the file, and write and sync the files of all queues."""
    disk = new_disk()
    store = start(disk)
    fill(store, 10, topics=TOPICS)
    store.flush_queues()
    put(store, 10, topic="T3", queue_id=1, size=3_000)  # the queue of the last message before the mark
    put(store, 11)
    store.commit()
    assert not store.flush_some_queues(1)
    written = store.marks.written
    assert written % 4096 and store.log.end > 4096 + 3_000, "the record is in the next file"
    store, recovered = reopen(disk)
    assert recovered.checked_from == written
    assert check(store) == list(range(12))
