"""Commit log: files end with a blank, and the same appends create the same files."""

from collections.abc import Callable
from hashlib import sha256

import pytest

from lab.sim.world.disk import SimDisk
from tandemq.errors import RecordTooLarge
from tandemq.storage.log.scan import Walker
from tandemq.storage.store import Store
from tests.spec import spec
from tests.unit.storage.harness import check, derived, fill, flags, new_disk, put, queue_entries, reopen, start

EMPTY_BYTES = 91 + 20 + len("T") + len("TAGS\x01t0\x02KEYS\x01k0 all\x02UNIQ_KEY\x01u00000000\x02")
"""A record of `put(store, 0..9, size=0)`."""


def _reader(base: int, data: bytes) -> Callable[[int, int], bytes]:
    return lambda at, size: data[at - base : at - base + size]


def copy_to(slave: Store, master: Store) -> None:
    """Copy the master's log like replication: verified, file by file, byte by byte."""
    offset = slave.log.end
    while offset < master.log.written_end:
        data = master.log.read(offset, 4096)
        walker = Walker(_reader(offset, data), 4096, offset)
        assert all(window == data for _, window, _ in walker.records())
        assert walker.position == offset + len(data)
        slave.append_copy(data)
        slave.commit()
        offset += len(data)


@spec("V13")
def test_file_with_any_remainder_ends_with_a_blank_and_a_slave_has_the_same_queues() -> None:
    for left in range(201):
        disk, slave_disk = new_disk(), new_disk()
        store, slave = start(disk), start(slave_disk)
        for number in range(5):
            put(store, number, size=500)
        room = 4096 - store.log.end - EMPTY_BYTES - left
        put(store, 5, size=room)
        assert store.log.end == (4096 - left if left >= 8 else 4096 + room + EMPTY_BYTES)
        put(store, 6, size=300)
        put(store, 7, size=0)
        store.commit()
        first = disk.read("commitlog/" + "0" * 20)
        assert first is not None
        entries = queue_entries(store)[("T", 0)]
        if left >= 8:
            assert entries[6][0] == 4096, "after the blank"
            assert first[4096 - left : 4104 - left] == left.to_bytes(4) + bytes.fromhex("CBD43194")
        else:
            assert entries[5][0] == 4096, "a record must leave room for the blank"
        assert check(store) == list(range(8))
        copy_to(slave, store)
        assert queue_entries(slave) == queue_entries(store)
        store, _ = reopen(disk)
        slave, _ = reopen(slave_disk)
        assert queue_entries(slave) == queue_entries(store)
        assert check(slave) == list(range(8))


@spec("R14", "V12", "T14", "G15")
def test_copy_has_the_same_files_and_builds_its_own_queues_and_index() -> None:
    disk, slave_disk = new_disk(), new_disk(2)
    store, slave = start(disk), start(slave_disk)
    for round_ in range(6):
        fill(store, 40, first=round_ * 40, per_turn=round_ + 1, size=round_ * 90, topics=2)
        copy_to(slave, store)
    assert check(slave) == list(range(240))
    store.close()
    slave.close()
    logs = [path for path in disk.paths() if path.startswith("commitlog/")]
    assert len(logs) > 5
    for path in logs:
        mine, theirs = disk.read(path), slave_disk.read(path)
        assert mine is not None
        assert theirs is not None
        assert sha256(mine).digest() == sha256(theirs).digest()
    assert derived(disk) == derived(slave_disk)
    slave_disk.remove("consumequeue")
    slave_disk.remove("index")
    slave, _ = reopen(slave_disk)
    assert check(slave) == list(range(240))


def test_record_larger_than_a_file_is_refused_without_side_effects() -> None:
    store = start(new_disk())
    put(store, 0)
    with pytest.raises(RecordTooLarge):
        put(store, 1, size=4096)
    put(store, 1)
    store.commit()
    assert check(store) == [0, 1]


def test_reserved_batch_is_written_to_one_file() -> None:
    store = start(new_disk())
    fill(store, 1, size=2000)
    start_ = store.log.reserve(3000)
    assert start_ == 4096
    for number in (1, 2, 3):
        put(store, number, topic="T0", size=500)
    store.commit()
    assert [offset // 4096 for offset, _, _ in queue_entries(store)[("T0", 0)]] == [0, 1, 1, 1]
    assert flags(store) == [0, 1, 2, 3]


@spec("V16")
def test_each_entry_is_read_with_one_read() -> None:
    disk = new_disk()
    store = start(disk)
    for number in range(400):
        put(store, number)
    store.commit()
    store.flush_queues()
    queue = store.queues[("T", 0)]
    for number in (0, 9, 10, 11, 199, 398, 399):
        before = disk.counts["pread"]
        entry = queue.entry(number)
        assert disk.counts["pread"] == before + 1, "one read, at any number"
        raw = disk.read(f"consumequeue/T/0/{number // 10 * 200:020d}")
        assert raw is not None
        within = number % 10 * 20
        assert raw[within : within + 20] == entry.log_offset.to_bytes(8) + entry.size.to_bytes(4) + (
            entry.tags_code.to_bytes(8, signed=True)
        )
        data = store.record_at(entry.log_offset, entry.size)
        assert data is not None
        assert int.from_bytes(data[16:20]) == number


def test_zero_ahead_does_not_change_the_files() -> None:
    images = []
    for ahead in (False, True):
        disk = SimDisk(new_disk().random)
        store = start(disk)
        store.log.keep_zeroed_ahead(is_wanted=ahead)
        fill(store, 100, size=100)
        store.close()
        images.append({path: disk.read(path) for path in disk.paths() if path.startswith(("commitlog", "consume"))})
    assert images[0] == images[1]
