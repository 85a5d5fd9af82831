"""Key index: Java's hashes and file layout, lookups across files, recovery."""

import struct
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.sim.world.disk import SimDisk
from tandemq.engine import KEY_ROW, key_hash
from tandemq.errors import DiskFailed, DiskFull, StoreError
from tandemq.storage.key_index import KeyIndex
from tests.unit.storage.harness import NOW_MS

SLOTS, ENTRIES = 16, 64
KEYS = st.sampled_from(
    [b"a", b"b", b"order-1", b"order-2", "é".encode(), "\U0001f600".encode(), b"x" * 40, b"Aa", b"BB"]
)
ADDS = st.lists(st.tuples(st.sampled_from(["T", "Topic2"]), KEYS), max_size=150)


def add_key(index: KeyIndex, topic: str, key: bytes, log_offset: int, store_ms: int) -> None:
    index.pending += KEY_ROW.pack(key_hash(topic, key), log_offset, store_ms)


def add(index: KeyIndex, items: list[tuple[str, bytes]]) -> None:
    for number, (topic, key) in enumerate(items):
        add_key(index, topic, key, number * 100, NOW_MS + number * 700)


def expected(items: list[tuple[str, bytes]], topic: str, key: bytes) -> list[int]:
    wanted = key_hash(topic, key)
    return [n * 100 for n, (t, k) in enumerate(items) if key_hash(t, k) == wanted]


@given(ADDS, st.integers(1, 70))
@settings(max_examples=60)
def test_every_key_is_found_in_order_across_files(items: list[tuple[str, bytes]], per_batch: int) -> None:
    index = KeyIndex(SimDisk(Random(1)), SLOTS, ENTRIES)
    for start in range(0, len(items), per_batch):
        for number in range(start, min(start + per_batch, len(items))):
            topic, key = items[number]
            add_key(index, topic, key, number * 100, NOW_MS + number * 700)
        index.absorb()
    for topic, key in set(items):
        assert index.find(topic, key.decode(), 0, 1 << 60, 1000) == expected(items, topic, key)
    assert index.find("T", "never", 0, 1 << 60, 1000) == []
    assert len(index.files) == -(-len(items) // (ENTRIES - 1))


@given(ADDS)
@settings(max_examples=40)
def test_file_has_javas_layout(items: list[tuple[str, bytes]]) -> None:
    """An independent writer, which adds entry by entry like RocketMQ, creates the same bytes."""
    items = items[: ENTRIES - 1]
    disk = SimDisk(Random(1))
    index = KeyIndex(disk, SLOTS, ENTRIES)
    add(index, items)
    index.close()
    if not items:
        assert disk.list("index") == []
        return
    slots, used, body = [0] * SLOTS, 0, b""
    for number, (topic, key) in enumerate(items, start=1):
        hashed = key_hash(topic, key)
        used += slots[hashed % SLOTS] == 0
        time_ms = (number - 1) * 700
        body += struct.pack(">iqii", hashed, (number - 1) * 100, time_ms // 1000, slots[hashed % SLOTS])
        slots[hashed % SLOTS] = number
    last = len(items) - 1
    head = struct.pack(">qqqqii", NOW_MS, NOW_MS + last * 700, 0, last * 100, used, len(items) + 1)
    whole = head + struct.pack(f">{SLOTS}i", *slots) + bytes(20) + body
    raw = disk.read(f"index/{disk.list('index')[0]}")
    assert raw is not None
    assert len(raw) == 40 + 4 * SLOTS + 20 * ENTRIES
    assert raw == whole.ljust(len(raw), b"\0")
    assert len(disk.list("index")[0]) == 17


def test_pending_keys_after_a_truncation_are_discarded() -> None:
    index = KeyIndex(SimDisk(Random(1)), SLOTS, ENTRIES)
    for number, key in enumerate((b"aa", b"bb", b"cc", b"dd")):
        add_key(index, "T", key, number * 100, NOW_MS)
    assert index.waiting == 4
    index.discard_from(200)
    assert index.waiting == 2
    assert index.find("T", "bb", 0, 1 << 60, 9) == [100]
    assert index.find("T", "cc", 0, 1 << 60, 9) == []


def test_query_respects_time_range_and_limit() -> None:
    index = KeyIndex(SimDisk(Random(1)), SLOTS, ENTRIES)
    for number in range(200):
        add_key(index, "T", b"k", number, NOW_MS + number * 1000)
    assert index.find("T", "k", 0, 1 << 60, 5) == [195, 196, 197, 198, 199]
    assert index.find("T", "k", NOW_MS + 50_000, NOW_MS + 60_000, 64) == list(range(50, 61))
    assert index.find("T", "k", NOW_MS + 500_000, 1 << 60, 64) == []


@pytest.mark.parametrize("error", [DiskFull, DiskFailed])
def test_failed_write_adds_no_entry_and_the_next_attempt_adds_each_once(error: type[StoreError]) -> None:
    for nth in range(1, 12):
        disk = SimDisk(Random(nth))
        index = KeyIndex(disk, SLOTS, ENTRIES)
        items = [("T", b"k%d" % (number % 7)) for number in range(150)]
        disk.fail("pwrite", nth, error=error)
        failures = 0
        for start in range(0, 150, 30):
            for number in range(start, start + 30):
                add_key(index, *items[number], number * 100, NOW_MS + number)
            try:
                index.absorb()
            except error:
                failures += 1
        index.absorb()
        for _, key in set(items):
            wanted = key_hash("T", key)
            found = [offset for file in index.files for hashed, offset in file.entries() if hashed == wanted]
            assert found == expected(items, "T", key), f"write {nth}: each is added once"
            assert index.find("T", key.decode(), 0, 1 << 60, 1000) == expected(items, "T", key)


def test_files_of_another_size_are_not_touched() -> None:
    disk = SimDisk(Random(1))
    disk.replace("index/20240101000000000", b"\1" * 5000)
    index = KeyIndex(disk, SLOTS, ENTRIES)
    add(index, [("T", b"k")])
    assert index.find("T", "k", 0, 1 << 60, 64) == [0]
    assert disk.read("index/20240101000000000") == b"\1" * 5000


def test_recovery_removes_entries_after_the_log_end_and_keeps_the_others() -> None:
    for cut in range(0, 16_000, 700):
        disk = SimDisk(Random(cut))
        items = [("T", b"k%d" % (number % 11)) for number in range(150)]
        index = KeyIndex(disk, SLOTS, ENTRIES)
        add(index, items)
        index.absorb()
        disk.kill()
        index = KeyIndex(disk, SLOTS, ENTRIES)
        assert index.recover(cut)
        for _, key in set(items):
            assert index.find("T", key.decode(), 0, 1 << 60, 1000) == [o for o in expected(items, "T", key) if o < cut]


def test_recovery_after_a_power_loss_finds_all_keys_or_reports_damage() -> None:
    items = [("T", b"k%d" % (number % 11)) for number in range(63)]
    dropped = 0
    for seed in range(60):
        disk = SimDisk(Random(seed))
        index = KeyIndex(disk, 2000, ENTRIES)
        for number in range(63):
            add_key(index, *items[number], number * 100, NOW_MS + number)
            if number % 5 == 0:
                index.absorb()
        index.absorb()
        disk.crash()
        index = KeyIndex(disk, 2000, ENTRIES)
        if not index.recover(1 << 40) or not index.files:
            dropped += 1
            continue
        reach = index.end_offset
        for _, key in set(items):
            found = index.find("T", key.decode(), 0, 1 << 60, 1000)
            assert found == [offset for offset in expected(items, "T", key) if offset <= reach]
    assert dropped
