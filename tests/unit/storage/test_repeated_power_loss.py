"""A power loss, truncation or rebuild, then new messages and another power loss: no old data replace new ones."""

from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest

from lab.sim.world.disk import PowerLoss, SimDisk
from tandemq.errors import DiskFull
from tandemq.storage.quarantine import quarantine_tail
from tandemq.storage.recovery import open_store
from tandemq.storage.store import Store
from tests.unit.storage.harness import (
    CONFIG,
    OTHER_BOOT,
    check,
    fill,
    flags,
    new_disk,
    put,
    queue_entries,
    reopen,
    start,
)
from tests.unit.storage.test_recovery import CHANGES, flush, sync_all


def test_torn_tail_truncated_by_recovery_does_not_come_back() -> None:
    for seed in range(152_000, 152_040):
        disk = new_disk(seed)
        store = start(disk)
        fill(store, 18, first=100)
        sync_all(store)
        fill(store, 30, first=140)
        disk.crash()
        store, _ = reopen(disk, OTHER_BOOT)
        held = check(store)
        fill(store, 3, first=200)
        flush(store)
        fill(store, 6, first=300)
        disk.crash()
        store, _ = reopen(disk, CONFIG)
        now = check(store)
        assert now[: len(held) + 3] == [*held, 200, 201, 202]
        assert all(number >= 300 for number in now[len(held) + 3 :])


def test_failed_write_does_not_come_back_with_a_power_loss() -> None:
    for seed in range(60):
        disk = new_disk(seed)
        store = start(disk)
        fill(store, 20, first=100)
        sync_all(store)
        disk.fail("pwrite", error=DiskFull, prefix="commitlog/")
        for number in range(200, 201 + seed % 40):
            put(store, number, topic="T0", queue_id=number % 2)
        with pytest.raises(DiskFull):
            store.commit()
        disk.crash()
        store, _ = reopen(disk, OTHER_BOOT)
        assert check(store) == list(range(100, 120)), f"seed {seed}"


def aged(disk: SimDisk) -> Store:
    """Return a store whose first files were deleted, with all seven messages of the queue X."""
    store = start(disk)
    for number in range(7):
        put(store, number, topic="X")
    store.commit()
    fill(store, 80, first=100, topics=2)
    sync_all(store)
    store.drop_first_segment()
    store.drop_first_segment()
    return store


def is_whole(store: Store) -> bool:
    """Whether the queues have an entry for each record of the log."""
    entries = {entry[0] for queue in queue_entries(store).values() for entry in queue}
    return len(entries) == len(flags(store)) and all(q.next_offset == q.max_offset for q in store.queues.values())


def test_kill_after_a_truncation_needs_no_rebuild() -> None:
    disk = new_disk()
    store = start(disk)
    fill(store, 60)
    sync_all(store)
    cut_at = sorted(entry for queue in queue_entries(store).values() for entry in queue)[10][0]
    quarantine_tail(store, cut_at)
    store, recovered = reopen(disk)
    assert check(store) == list(range(10))
    assert recovered.checked_from == cut_at


@pytest.mark.parametrize("closes", [False, True])
def test_truncation_of_a_whole_queue_or_log_keeps_its_start(closes: bool) -> None:
    for to in range(3):
        disk = new_disk()
        store = aged(disk)
        entries = sorted(entry for queue in queue_entries(store).values() for entry in queue)
        before = {key: queue.min_offset for key, queue in store.queues.items()}
        log_start = store.log.start
        quarantine_tail(store, entries[to][0] if to else log_start)
        if closes:
            store.close()
        store, _ = reopen(disk)
        assert store.log.start == log_start
        assert len(flags(store)) == to
        assert is_whole(store)
        assert store.queue("X", 0).next_offset == 7
        for key, queue in store.queues.items():
            assert queue.next_offset >= before[key]
        fill(store, 20, first=200, topics=2)
        store, _ = reopen(disk)
        assert is_whole(store)


def test_power_loss_of_all_entries_of_a_queue_keeps_its_offsets() -> None:
    for seed in range(20):
        disk = new_disk(seed)
        store = start(disk)
        fill(store, 20, first=100)
        sync_all(store)
        fill(store, 60, first=200, size=100)
        store.flush_queues()
        flush(store)
        while len(store.log.segment_starts) > 2:
            store.drop_first_segment()
        least = {key: queue.min_offset for key, queue in store.queues.items()}
        disk.crash()
        store, _ = reopen(disk, OTHER_BOOT)
        for key, queue in store.queues.items():
            assert queue.next_offset >= min(least[key], 10)
        assert is_whole(store)


def test_rebuild_of_the_queues_reuses_no_offset() -> None:
    for seed in range(20):
        disk = new_disk(seed)
        store = aged(disk)
        store.drop_topic("T1")
        disk.replace("config/topics.json", b"{}")
        disk.crash()
        store, _ = reopen(disk, OTHER_BOOT)
        assert store.queue("X", 0).next_offset == 7


def test_rebuild_of_the_queues_interrupted_by_a_power_loss_is_repeated() -> None:
    for seed in range(60):
        disk = new_disk(seed)
        store = start(disk)
        fill(store, 40, topics=3)
        sync_all(store)
        fill(store, 20, first=100)
        store.flush_queues()
        store.marks.entries -= 1
        store.save_marks()
        disk.kill()
        disk.stop_at(Random(seed).randrange(1, 40), CHANGES)
        with pytest.raises(PowerLoss):
            open_store(disk, CONFIG)
        disk.crash()
        store, _ = reopen(disk, OTHER_BOOT)
        assert check(store)[:40] == list(range(40)), f"seed {seed}"


def test_rebuild_of_the_index_interrupted_by_a_power_loss_is_repeated() -> None:
    for seed in range(60):
        disk = new_disk(seed)
        store = start(disk)
        fill(store, 60)
        sync_all(store)
        fill(store, 60, first=100)
        disk.kill()
        disk.remove("index")
        disk.stop_at(Random(seed).randrange(15, 80), CHANGES)
        with suppress(PowerLoss):
            open_store(disk, CONFIG)
        disk.crash()
        store, _ = reopen(disk, OTHER_BOOT)
        assert check(store)[:60] == list(range(60)), f"seed {seed}"


def test_start_below_the_synced_mark_interrupted_by_a_kill_loses_no_synced_entry() -> None:
    """Where nothing proves that the synced mark is a boundary, synced entries are removed, and built from the log.

    Once those of the queue of the last record are written, the next start takes the mark for a boundary.
    """
    for nth in range(20, 100):
        disk = new_disk()
        store = start(disk)
        fill(store, 34, topics=6)
        put(store, 34, topic="T0")
        store.commit()
        sync_all(store)
        synced = store.marks.synced
        fill(store, 60, first=35, topics=6)
        store.flush_queues()
        disk.kill()  # the power loss: the log after the mark is lost, the entries of its records are not
        for name in disk.list("commitlog"):
            file = disk.open(f"commitlog/{name}")
            file.truncate(max(0, min(4096, synced - int(name))))
            file.truncate(4096)
        disk.stop_at(nth, CHANGES)
        with suppress(PowerLoss):
            open_store(disk, OTHER_BOOT)
        store, _ = reopen(disk, OTHER_BOOT)
        assert check(store) == list(range(35)), f"call {nth}"


def test_damage_is_no_torn_tail_after_a_rebuild_and_a_power_loss() -> None:
    disk = new_disk()
    store = start(disk)
    fill(store, 60)
    sync_all(store)
    store.marks.entries -= 1
    store.save_marks()
    store, _ = reopen(disk)
    end = store.log.written_end
    disk.crash()
    disk.flip("commitlog/" + "0" * 20, 300)
    disk.remove("index")
    store, _ = reopen(disk, OTHER_BOOT)
    assert store.log.written_end == end
    assert not disk.list("set-aside")


def test_truncation_interrupted_by_a_kill_leaves_no_damage() -> None:
    config = replace(CONFIG, segment_bytes=4 << 20)
    for nth in range(1, 8):
        disk = new_disk()
        store = start(disk, config)
        fill(store, 20, size=200_000)
        cut_at = sorted(entry for queue in queue_entries(store).values() for entry in queue)[5][0]
        disk.stop_at(nth, ("pwrite",))
        with pytest.raises(PowerLoss):
            quarantine_tail(store, cut_at)
            disk.open("commitlog/" + "0" * 20).pwrite(b"", 0)
        store, _ = reopen(disk, config)
        assert not store.damaged, f"write {nth}"


def test_start_after_a_kill_leaves_queue_files_to_the_periodic_sync() -> None:
    """The synced mark stays, so that a power loss before that sync has the entries rebuilt from the log."""
    for seed in range(20):
        disk = new_disk(seed)
        store = start(disk)
        fill(store, 30, topics=2)
        sync_all(store)
        synced = store.marks.synced
        fill(store, 30, first=30, topics=2)
        store.flush_queues()
        fill(store, 5, first=60, topics=2)
        store, _ = reopen(disk)
        assert (store.marks.synced, store.log.flushed_offset) == (synced, store.log.written_end)
        assert check(store) == list(range(65))
        disk.crash()
        store, _ = reopen(disk, OTHER_BOOT)
        assert check(store) == list(range(65)), "the log was synced at the start"
        assert not store.damaged
        assert store.marks.synced == store.log.written_end
