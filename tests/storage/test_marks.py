"""What marks and checkpoint say of a store."""

from tests.storage.harness import NOW_MS, fill, new_disk, start


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
