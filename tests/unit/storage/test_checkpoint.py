"""Marks and checkpoint of a store."""

from tandemq.storage.checkpoint import read_checkpoint
from tests.unit.storage.harness import NOW_MS, check, fill, new_disk, reopen, start
from tests.unit.storage.test_recovery import sync_all


def test_checkpoint_covers_only_synced_records() -> None:
    disk = new_disk()
    store = start(disk)
    fill(store, 10)
    store.flush_queues()
    queued_ms = store.queued_ms
    fill(store, 10, first=10)
    assert queued_ms == NOW_MS + 90
    assert store.queued_ms == queued_ms
    found = store.checkpoint(queued_ms)
    assert (found.log_ms, found.queue_ms) == (queued_ms, queued_ms)


def test_queues_are_rebuilt_if_they_have_more_entries_than_the_marks_state() -> None:
    disk = new_disk()
    store = start(disk)
    fill(store, 20, topics=2)
    sync_all(store)
    store.queues["T0", 0].correct(2, 5, 170, 0)
    store.marks.entries -= 1
    store.save_marks()
    store, _ = reopen(disk)
    assert check(store) == list(range(20))


def test_time_of_the_last_record_is_known_after_a_clean_start() -> None:
    """Also to the file that a Java broker reads: with 0 it would read the whole log after a crash."""
    disk = new_disk()
    store = start(disk)
    fill(store, 10, topics=3)
    store.close()
    for _ in range(2):
        store, recovered = reopen(disk)
        assert (recovered.clean, recovered.records) == (True, 0)
        assert store.last_store_ms == store.queued_ms == NOW_MS + 90
        store.close()
        assert read_checkpoint(disk).log_ms == NOW_MS + 90
