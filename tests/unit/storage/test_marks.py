"""What marks and checkpoint say of a store."""

from tests.unit.storage.harness import NOW_MS, check, fill, new_disk, reopen, start
from tests.unit.storage.test_recovery import sync_all


def test_checkpoint_tells_no_more_than_is_synced() -> None:
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


def test_a_queue_entry_of_another_record_is_replaced_if_there_are_more_entries_than_the_marks_say() -> None:
    disk = new_disk()
    store = start(disk)
    fill(store, 20, topics=2)
    sync_all(store)
    store.queues["T0", 0].correct(2, 5, 170, 0)
    store.marks.entries -= 1
    store.note_marks()
    store, _ = reopen(disk)
    assert check(store) == list(range(20))
