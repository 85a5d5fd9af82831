"""Damaged consume queue entries: they change neither end of their queue, and the store opens with them."""

import pytest

from lab.sim.world.disk import SimDisk
from tandemq.codec.record.entries import QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from tests.unit.storage.harness import CONFIG, OTHER_BOOT, fill, new_disk, put, queue_entries, reopen, start
from tests.unit.storage.test_consume_queue import FILE_BYTES, SIZE, enter, make
from tests.unit.storage.test_recovery import sync_all

DAMAGES = [
    (0, 0, 0),
    (5, -200, 0),
    (1 << 62, SIZE, 0),
    (-5000, SIZE, 0),
    (17_000, 1 << 30, 0),
    (1, SIZE, 0),
    (17_000, 0, 0),
    (-1, -1, -1),
]


def copy_of(disk: SimDisk) -> SimDisk:
    copy = new_disk()
    for path in disk.paths():
        data = disk.read(path)
        assert data is not None
        copy.replace(path, data)
    return copy


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_damaged_entry_changes_either_end_of_a_queue(damage: tuple[int, int, int]) -> None:
    """Searches by log offset had used the damaged entry, and an empty entry was taken for the end."""
    for number in range(30):
        check_ends(number, damage)


def check_ends(number: int, damage: tuple[int, int, int]) -> None:
    """Damage one of 30 entries, and check both ends of the queue for every start of the log."""
    disk = new_disk()
    queue = make(disk)
    for one in range(30):
        enter(queue, one)
    queue.flush()
    position = number * QUEUE_ENTRY_BYTES
    file = disk.open(f"consumequeue/T/0/{position - position % FILE_BYTES:020d}")
    file.pwrite(QUEUE_ENTRY.pack(*damage), position % FILE_BYTES)
    is_empty_end = number == 29 and damage == (0, 0, 0)
    disk_before = copy_of(disk)
    for log_start in range(0, 30_000, 1_000):
        where = f"entry {number}, log starts at {log_start}"
        first = log_start // 1_000
        queue = make(disk)
        assert queue.max_offset == 30 - is_empty_end, where
        queue.correct_min(log_start)
        if number == 0 and damage[0] == 1:
            assert queue.min_offset - first in (0, 1), f"{where}: by its log offset it was deleted with those before it"
        else:
            assert first - 3 * (abs(first - number) <= 3) <= queue.min_offset <= first, f"{where}: too low is harmless"
        queue = make(disk)
        queue.truncate_from(log_start)
        assert first - 3 * (abs(first - number) <= 3) <= queue.max_offset <= first, where
        disk = copy_of(disk_before)


@pytest.mark.parametrize("first", [0, 5, 12, 20])
@pytest.mark.parametrize("count", [2, 7, 15])
def test_zeroed_entries_do_not_hide_the_entries_after_them(first: int, count: int) -> None:
    disk = new_disk()
    queue = make(disk)
    for one in range(40):
        enter(queue, one)
    queue.flush()
    queue.rewrite(first, bytes(count * QUEUE_ENTRY_BYTES))
    queue = make(disk)
    assert (queue.max_offset, queue.last_log_end) == (40, 39_000 + SIZE)
    for log_start in range(0, 40_000, 1_000):
        start, queue = log_start // 1_000, make(disk)
        queue.correct_min(log_start)
        if not first <= start <= first + count:
            assert queue.min_offset == start
        else:
            assert first <= queue.min_offset <= start


ENTRY_DAMAGES = [
    (0, 0, 0),
    (1 << 62, 160, 0),
    (-(1 << 62), 160, 0),
    (300, -160, 0),
    (300, 1 << 30, 0),
    (0, 160, 0),
    (-1, -1, -1),
]


@pytest.mark.parametrize("damage", ENTRY_DAMAGES)
@pytest.mark.parametrize("end", ["clean", "kill", "power loss"])
def test_damaged_queue_entry_changes_no_end_of_its_queue_at_a_start(end: str, damage: tuple[int, int, int]) -> None:
    """With any damaged entry the queue keeps its first and last message, and the next one gets the next offset."""
    for number in range(25):
        disk = new_disk()
        store = start(disk)
        fill(store, 50)
        sync_all(store)
        queue = store.queues["T0", 0]
        before = queue_entries(store)
        if end == "clean":
            store.close()
        disk.kill()
        position = number * QUEUE_ENTRY_BYTES
        file = disk.open(f"consumequeue/T0/0/{position - position % 200:020d}")
        file.pwrite(QUEUE_ENTRY.pack(*damage), position % 200)
        file.datasync()
        if end == "power loss":
            disk.crash()
        store, _ = reopen(disk, OTHER_BOOT if end == "power loss" else CONFIG)
        queue = store.queues["T0", 0]
        assert (queue.min_offset, queue.max_offset, queue.next_offset) == (0, 25, 25)
        assert queue.last_log_end <= store.log.end
        found = queue_entries(store)
        wrong = [at for at in range(25) if found["T0", 0][at] != before["T0", 0][at]]
        assert wrong in ([], [number])
        assert found["T0", 1] == before["T0", 1]
        assert put(store, 50, topic="T0")[0] == 25
        store.commit()


def test_clean_start_with_a_damaged_queue_entry_does_not_read_the_log() -> None:
    for damage in ENTRY_DAMAGES:
        for number in (0, 12, 24):
            disk = new_disk()
            store = start(disk)
            fill(store, 50)
            store.close()
            position = number * QUEUE_ENTRY_BYTES
            path = f"consumequeue/T0/0/{position - position % 200:020d}"
            disk.open(path).pwrite(QUEUE_ENTRY.pack(*damage), position % 200)
            store, recovered = reopen(disk)
            is_end = number == 24 and damage == (0, 0, 0)  # counts as a missing entry
            assert (recovered.records == 0) == (not is_end)
            suspects = [(queue.topic, queue.queue_id, at) for queue, at in store.suspect_entries]
            if number == 24 and damage[0] != 0:
                assert ("T0", 0, 24) in suspects


@pytest.mark.parametrize("damage", ENTRY_DAMAGES)
def test_store_without_marks_opens_with_any_damaged_queue_entry(damage: tuple[int, int, int]) -> None:
    """Stores of RocketMQ have no marks."""
    for number in range(25):
        disk = new_disk()
        store = start(disk)
        fill(store, 50)
        store.close()
        disk.remove("tandemq.marks")
        position = number * QUEUE_ENTRY_BYTES
        file = disk.open(f"consumequeue/T0/0/{position - position % 200:020d}")
        file.pwrite(QUEUE_ENTRY.pack(*damage), position % 200)
        store, _ = reopen(disk)
        queue = store.queues["T0", 0]
        is_end = number == 24 and damage == (0, 0, 0)  # no trace of the entry is left
        assert (queue.min_offset, queue.max_offset) == (0, 25 - is_end)
