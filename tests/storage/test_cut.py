"""A cut of the log's tail holds, whatever the power does afterwards."""

from tandemq.storage.recovery import set_aside_tail
from tests.storage.harness import OTHER_BOOT, check, fill, new_disk, queue_entries, reopen, start
from tests.storage.test_recovery import sync_all


def test_what_was_cut_does_not_come_back_with_a_power_loss() -> None:
    """Found by simulation seed 1000235: the epochs said that the new history was there, and the log was the old one."""
    for seed in range(12):
        disk = new_disk(seed)
        store = start(disk)
        fill(store, 60)
        sync_all(store)
        middle = sorted(entry for queue in queue_entries(store).values() for entry in queue)[10][0]
        set_aside_tail(store, middle)
        fill(store, 5, first=100)
        disk.crash()
        store, _ = reopen(disk, OTHER_BOOT)
        assert not set(check(store)) & set(range(10, 60))
