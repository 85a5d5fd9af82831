"""Recovery of a store: no synced message is lost, no refused message comes back."""

import errno
import os
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random

import pytest

from lab.sim.world.disk import PowerLoss, SimDisk
from tandemq.codec.record.entries import HOLE_SIZE_MIN
from tandemq.errors import DiskFailed, DiskFull, StoreDamaged, StoreError
from tandemq.real.disk import RealDisk
from tandemq.storage.checkpoint import read_marks, write_checkpoint
from tandemq.storage.quarantine import quarantine_tail
from tests.samples import every
from tests.spec import spec
from tests.unit.storage.harness import (
    CONFIG,
    NOW_MS,
    OTHER_BOOT,
    check,
    derived,
    expected_entries,
    fill,
    flags,
    new_disk,
    put,
    queue_entries,
    records,
    reopen,
    start,
)


def flush(store: object) -> None:
    """Sync the log with a flush job, as the broker does."""
    from tandemq.storage.store import Store

    assert isinstance(store, Store)
    job = store.begin_flush()
    if job is not None:
        job.run()
        store.end_flush(job)


def sync_all(store: object) -> None:
    """Sync log, queues, index and marks, as a broker does every ten seconds."""
    from tandemq.storage.store import Store

    assert isinstance(store, Store)
    flush(store)
    store.flush_queues()
    for path in store.take_unsynced(store.marks.synced):
        store.disk.open(path).datasync()
    store.synced_up_to(min(store.marks.written, store.log.flushed_offset))
    write_checkpoint(store.disk, store.checkpoint(store.queued_ms))


def test_start_after_a_clean_stop_reads_no_records() -> None:
    disk = new_disk()
    store = start(disk)
    fill(store, 100, topics=2)
    store.close()
    store, recovered = reopen(disk)
    assert check(store) == list(range(100))
    assert recovered.clean
    assert recovered.records == 0
    assert not recovered.may_have_lost
    assert not store.damaged


def test_killed_process_loses_no_written_message() -> None:
    disk = new_disk()
    store = start(disk)
    fill(store, 60, topics=2)
    store.flush_queues()
    fill(store, 40, first=60, topics=2)
    store, recovered = reopen(disk)
    assert check(store) == list(range(100))
    assert not recovered.clean
    assert not recovered.may_have_lost
    fill(store, 10, first=100, topics=2)
    store, _ = reopen(disk)
    assert check(store) == list(range(110))


@spec("V14")
def test_queues_and_index_are_rebuilt_from_the_log_alone() -> None:
    disk = new_disk()
    store = start(disk)
    fill(store, 150, topics=3)
    store.close()
    before = derived(disk)
    assert len(before) > 6
    disk.remove("consumequeue")
    disk.remove("index")
    store, _ = reopen(disk)
    assert check(store) == list(range(150))
    store.close()
    assert derived(disk) == before


@pytest.mark.parametrize("seed", every(3, range(40)))
def test_power_loss_leaves_a_prefix_with_all_synced_messages(seed: int) -> None:
    dice = Random(seed)
    disk = SimDisk(Random(seed))
    store = start(disk)
    sent, safe, boots = 0, 0, ["boot-1", "boot-2"]
    for boot in range(3):
        for _ in range(dice.randrange(1, 25)):
            count = dice.randrange(1, 12)
            fill(store, count, first=sent, per_turn=dice.randrange(1, 5), size=dice.randrange(1, 400), topics=2)
            sent += count
            what = dice.randrange(5)
            if what == 0:
                flush(store)
                safe = sent
            elif what == 1:
                store.flush_queues()
            elif what == 2:
                sync_all(store)
                safe = sent
        disk.crash()
        store, recovered = reopen(disk, OTHER_BOOT if boots[boot % 2] == "boot-1" else CONFIG)
        held = check(store)
        assert held == list(range(len(held))), "the log is a prefix of the sent messages"
        assert len(held) >= safe, "synced messages are not lost"
        assert recovered.may_have_lost
        assert not store.damaged
        sent = safe = len(held)


def scenario(disk: SimDisk, done: list[int]) -> None:
    """Write, begin new files, flush, stop and start; `done` gets the number of synced messages after each step."""
    store = start(disk)
    fill(store, 12, size=300, per_turn=3)
    sync_all(store)
    done.append(12)
    fill(store, 30, first=12, size=100, per_turn=4)
    store.flush_queues()
    flush(store)
    done.append(42)
    fill(store, 10, first=42)
    store.close()
    done.append(52)
    store = start(disk)
    fill(store, 20, first=52, size=200, per_turn=2)
    sync_all(store)
    done.append(72)
    store.close()


def count_calls() -> int:
    disk = new_disk()
    scenario(disk, [])
    return sum(disk.counts[name] for name in ("create", "pwrite", "datasync", "truncate", "replace", "remove"))


CHANGES = ("create", "pwrite", "datasync", "truncate", "replace", "remove")


@pytest.mark.parametrize(("power", "first"), every(3, product([False, True], [1, 2, 3])))
def test_stop_at_every_call_loses_no_synced_message(power: bool, first: int) -> None:
    total = count_calls()
    assert total > 80
    for nth in range(first, total + 1, 3):
        disk = SimDisk(Random(nth))
        done: list[int] = [0]
        disk.stop_at(nth, CHANGES)
        with pytest.raises(PowerLoss):
            scenario(disk, done)
        if power:
            disk.crash()
        store, _ = reopen(disk, OTHER_BOOT if power else CONFIG)
        held = check(store)
        assert held == list(range(len(held))), f"call {nth}"
        assert len(held) >= done[-1], f"call {nth}: {len(held)} of {done[-1]}"
        assert not store.damaged, f"call {nth}"
        fill(store, 3, first=len(held))
        store, _ = reopen(disk, OTHER_BOOT if power else CONFIG)
        assert check(store) == list(range(len(held) + 3)), f"call {nth}"


@pytest.mark.parametrize("error", [DiskFull, DiskFailed])
def test_failed_write_is_stored_nowhere_and_all_others_completely(error: type[StoreError]) -> None:
    for nth in range(1, 42, 3 if error is DiskFull else 7):
        disk = SimDisk(Random(nth))
        store = start(disk)
        fault = disk.fail("pwrite", nth, error=error, prefix="commitlog/")
        held: list[int] = []
        for number in range(40):
            turn = [number * 3 + n for n in range(3)]
            try:
                for one in turn:
                    put(store, one, size=30 + one * 37 % 900)
                store.commit()
                held += turn
            except error:
                assert store.log.end == store.log.written_end
        assert fault.seen >= min(nth, 1)
        assert check(store) == held
        if error is DiskFull:
            assert len(held) >= 117
        store, _ = reopen(disk)
        assert check(store) == held, f"write {nth}"
        assert not store.damaged


def test_writes_continue_without_a_hole_once_there_is_space() -> None:
    for pages in range(6, 20):
        disk = new_disk()
        store = start(disk)
        disk.total_bytes = pages * 4096
        held, failed = [], 0
        for number in range(120):
            if number == 80:
                disk.total_bytes = 1 << 30
            try:
                put(store, number, size=100 + number % 7 * 150)
                store.commit()
                held.append(number)
                store.flush_queues()
            except DiskFull:
                failed += 1
        store.flush_queues()
        assert failed
        assert held[-40:] == list(range(80, 120))
        assert check(store) == sorted(set(held))
        store, _ = reopen(disk)
        assert check(store) == sorted(set(held))


def test_writes_after_a_device_error_are_refused_until_a_restart() -> None:
    disk = new_disk()
    store = start(disk)
    fill(store, 5)
    disk.fail("pwrite", prefix="commitlog/")
    for _ in range(3):
        put(store, 99)
        with pytest.raises(DiskFailed):
            store.commit()
    assert flags(store) == list(range(5))
    store, _ = reopen(disk)
    fill(store, 5, first=5)
    assert check(store) == list(range(10))


@pytest.mark.parametrize("lack", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_lack_of_descriptors_fails_the_writes_of_that_time_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lack: int
) -> None:
    def fail(path: str, *_: object) -> int:
        raise OSError(lack, os.strerror(lack), path)

    disk = RealDisk(tmp_path)
    store = start(disk)
    fill(store, 3)
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", fail)
        fill(store, 2, first=3)
        for _ in range(3):
            put(store, 99, size=3_500)  # needs another file
            with pytest.raises(DiskFull, match=os.strerror(lack)):
                store.commit()
    assert flags(store) == list(range(5))
    fill(store, 5, first=5, size=700)
    assert check(store) == list(range(10))


def test_writes_after_a_failed_sync_are_refused_until_a_restart() -> None:
    disk = new_disk()
    store = start(disk)
    fill(store, 5)
    job = store.begin_flush()
    assert job is not None
    disk.fail("datasync", prefix="commitlog/")
    with pytest.raises(DiskFailed) as failure:
        job.run()
    store.flush_failed(failure.value)
    assert store.log.flushed_offset == 0
    put(store, 6)
    with pytest.raises(DiskFailed):
        store.commit()
    assert store.begin_flush() is None


def test_torn_tail_at_any_byte_of_the_last_three_records_is_truncated() -> None:
    disk = new_disk()
    store = start(disk)
    fill(store, 20)
    ends = [found[0] + found[1] for found in queue_entries(store)[("T0", 1)] + queue_entries(store)[("T0", 0)]]
    ends = sorted(ends)
    image = disk.read("commitlog/" + "0" * 20)
    assert image is not None
    for cut in range(ends[-4], ends[-1], 2):
        torn = SimDisk(Random(cut))
        torn.replace("commitlog/" + "0" * 20, image[:cut] + bytes(4096 - cut))
        torn.replace("abort", b"")
        store = start(torn)
        held = check(store)
        assert len(held) == sum(1 for end in ends if end <= cut)
        assert not store.damaged
        fill(store, 2, first=len(held))
        store, _ = reopen(torn)
        assert check(store) == list(range(len(held) + 2))


@pytest.mark.parametrize("field", ["size", "magic", "offset", "body", "properties", "crc"])
@pytest.mark.parametrize("which", ["first", "middle", "last"])
def test_flipped_bit_before_valid_records_is_reported_and_left_in_place(field: str, which: str) -> None:
    disk = new_disk()
    store = start(disk)
    fill(store, 100)
    store.flush_queues()
    segment = {"first": 0, "middle": 1, "last": 3}[which] * 4096
    all_records = [entry for queue in queue_entries(store).values() for entry in queue]
    place, size, _ = sorted(entry for entry in all_records if segment <= entry[0] < segment + 4096)[3]
    at = {"size": 3, "magic": 5, "offset": 35, "body": 90, "properties": size - 60, "crc": size - 5}[field]
    disk.flip(f"commitlog/{segment:020d}", place - segment + at, 2)
    before = disk.read(f"commitlog/{segment:020d}")
    disk.remove("tandemq.marks")
    disk.remove("checkpoint")
    store, _ = reopen(disk)
    assert [(start_, end) for start_, end, _ in store.damaged] == [(place, place + size)]
    assert disk.read(f"commitlog/{segment:020d}") == before
    held = [entry for queue in queue_entries(store).values() for entry in queue]
    assert sorted(e for e in held if e[0] != place and e[1] < HOLE_SIZE_MIN) == sorted(
        e for e in all_records if e[0] != place
    )
    fill(store, 5, first=100)
    for queue in store.queues.values():
        assert queue.min_offset == 0
    store, _ = reopen(disk)
    assert sum(len(queue) for queue in queue_entries(store).values()) == 105


def test_offset_of_a_damaged_last_message_is_not_reused() -> None:
    """Found by simulation seed 21166: the queue was rebuilt from the log, and ended before the damaged message."""
    disk = new_disk()
    store = start(disk)
    fill(store, 3)
    put(store, 3, topic="T0", queue_id=1)
    queue_offset, place, _ = put(store, 10, topic="T0", queue_id=1)
    assert queue_offset > 0
    put(store, 12, topic="T0", queue_id=0)
    store.commit()
    disk.flip("commitlog/00000000000000000000", place + 92, 2)
    store, _ = reopen(disk)
    assert [damage[0] for damage in store.damaged] == [place]
    assert store.queues["T0", 1].next_offset == queue_offset + 1
    assert put(store, 20, topic="T0", queue_id=1)[0] == queue_offset + 1
    store.commit()
    store, _ = reopen(disk)
    assert put(store, 21, topic="T0", queue_id=1)[0] == queue_offset + 2


def test_messages_behind_a_damaged_range_are_entered_and_their_offsets_not_reused() -> None:
    """Found by chaos seed 9117 (damage-log): only the first message of the range could still be read in part."""
    disk = new_disk()
    store = start(disk)
    fill(store, 3)
    first, place, _ = put(store, 10, topic="T0", queue_id=1)
    _, lost, _ = put(store, 11, topic="T0", queue_id=1)
    _, behind, _ = put(store, 12, topic="T0", queue_id=1)
    last, end, _ = put(store, 13, topic="T0", queue_id=1)
    store.commit()
    disk.flip("commitlog/00000000000000000000", place + 92, 2)
    disk.flip("commitlog/00000000000000000000", lost + 5, 2)
    store, _ = reopen(disk)
    assert [damage[:2] for damage in store.damaged] == [(place, behind)]
    assert not store.suspect_entries
    queue = store.queues["T0", 1]
    assert [queue.entry(offset).is_hole for offset in (first, first + 1)] == [True, True]
    assert [queue.entry(offset).log_offset for offset in (first + 2, last)] == [behind, end]
    assert put(store, 20, topic="T0", queue_id=1)[0] == last + 1


def test_truncated_log_file_is_refused_with_its_name() -> None:
    disk = new_disk()
    store = start(disk)
    fill(store, 100)
    store.close()
    disk.open("commitlog/00000000000000004096").truncate(4000)
    with pytest.raises(StoreDamaged, match="00000000000000004096 is 4000 bytes long, 4096 are expected"):
        reopen(disk)


def test_missing_log_file_in_the_middle_is_refused_with_its_neighbour() -> None:
    disk = new_disk()
    store = start(disk)
    fill(store, 100)
    store.close()
    disk.remove("commitlog/00000000000000004096")
    with pytest.raises(StoreDamaged, match="00000000000000008192 does not follow"):
        reopen(disk)


@pytest.mark.parametrize("how", ["removed", "zeroed"])
def test_missing_last_log_file_is_refused(how: str) -> None:
    disk = new_disk()
    store = start(disk)
    fill(store, 100)
    store.close()
    last = [path for path in disk.paths() if path.startswith("commitlog/")][-1]
    if how == "removed":
        disk.remove(last)
    else:
        disk.replace(last, bytes(4096))
    with pytest.raises(StoreDamaged, match="had reached"):
        reopen(disk)


def test_misnamed_log_file_is_refused() -> None:
    disk = new_disk()
    disk.open("commitlog/00000000000000000100", create=True).truncate(4096)
    with pytest.raises(StoreDamaged):
        start(disk)


def test_zeroed_log_file_in_the_middle_is_reported_and_the_rest_kept() -> None:
    disk = new_disk()
    store = start(disk)
    fill(store, 100)
    total = len(expected_entries(store)[("T0", 0)]) + len(expected_entries(store)[("T0", 1)])
    lost = sum(1 for queue in queue_entries(store).values() for entry in queue if 4096 <= entry[0] < 8192)
    disk.replace("commitlog/00000000000000004096", bytes(4096))
    for name in ("tandemq.marks", "checkpoint", "consumequeue", "index"):
        disk.remove(name)
    store, _ = reopen(disk)
    assert [(a, b) for a, b, _ in store.damaged] == [(4096, 8192)]
    entries = [entry for queue in queue_entries(store).values() for entry in queue if entry[1] < HOLE_SIZE_MIN]
    assert len(entries) == total - lost


def test_swapped_log_files_are_reported_and_not_served() -> None:
    disk = new_disk()
    store = start(disk)
    fill(store, 100)
    paths = [f"commitlog/{n * 4096:020d}" for n in (1, 2)]
    one, two = disk.read(paths[0]), disk.read(paths[1])
    assert one
    assert two
    disk.replace(paths[0], two)
    disk.replace(paths[1], one)
    for name in ("tandemq.marks", "checkpoint", "consumequeue", "index"):
        disk.remove(name)
    store, _ = reopen(disk)
    assert [(a, b) for a, b, _ in store.damaged] == [(4096, 12288)]
    for queue in store.queues.values():
        for number in range(queue.min_offset, queue.max_offset):
            offset, size, _ = queue.entry(number)
            assert size >= HOLE_SIZE_MIN or not 4096 <= offset < 12288


def test_truncated_records_do_not_come_back() -> None:
    disk = new_disk()
    store = start(disk)
    fill(store, 30)
    middle = sorted(entry for queue in queue_entries(store).values() for entry in queue)[10]
    quarantine_tail(store, middle[0])
    assert flags(store) == list(range(10))
    aside = disk.read(f"set-aside/{middle[0]:020d}")
    assert aside
    fill(store, 1, first=100)
    store, _ = reopen(disk)
    assert check(store) == [*range(10), 100]
    assert not store.damaged


def test_quarantine_interrupted_at_any_call_keeps_or_truncates_the_whole_tail() -> None:
    probe = new_disk()
    store = start(probe)
    fill(store, 60)
    sync_all(store)
    middle = sorted(entry for queue in queue_entries(store).values() for entry in queue)[10][0]
    before = sum(probe.counts[name] for name in CHANGES)
    quarantine_tail(store, middle)
    total = sum(probe.counts[name] for name in CHANGES) - before
    for power in (False, True):
        for nth in range(1, total + 1):
            disk = SimDisk(Random(nth))
            store = start(disk)
            fill(store, 60)
            sync_all(store)
            disk.stop_at(nth, CHANGES)
            with pytest.raises(PowerLoss):
                quarantine_tail(store, middle)
            if power:
                disk.crash()
            store, _ = reopen(disk, OTHER_BOOT if power else CONFIG)
            held = check(store)
            assert held == list(range(len(held)))
            assert len(held) >= 10
            if len(held) < 60:
                assert disk.read(f"set-aside/{middle:020d}"), "the truncated bytes are quarantined"


def test_queue_entries_written_by_a_killed_process_are_synced_by_recovery() -> None:
    """Found by simulation seed 82: the next process did not write to those files, so it did not sync them."""
    for seed in range(20):
        disk = new_disk(seed)
        store = start(disk)
        fill(store, 60, topics=2)
        store.flush_queues()
        store, _ = reopen(disk)
        fill(store, 5, first=60)
        sync_all(store)
        disk.crash()
        store, _ = reopen(disk, OTHER_BOOT)
        assert check(store) == list(range(65))


def test_undoing_a_failed_write_needs_no_space() -> None:
    """Found by simulation seed 220: zeroing unallocated ranges needed space, and the log refused all writes."""
    disk = new_disk()
    config = replace(CONFIG, segment_bytes=8 * 4096)
    store = start(disk, config)
    fill(store, 10, size=300)
    usage = disk.usage()
    disk.total_bytes = usage.total_bytes - usage.free_bytes
    for number in range(10, 30):
        put(store, number, size=300)
    with pytest.raises(DiskFull):
        store.commit()
    assert store.log.refused is None
    disk.total_bytes = 1 << 40
    fill(store, 20, first=10, size=300)
    store, _ = reopen(disk, config)
    assert check(store) == list(range(30))


@pytest.mark.parametrize("pattern", ["queue-dir", "queue-first-file", "queue-last-file", "index", "topic"])
@pytest.mark.parametrize("end", ["clean", "killed"])
def test_deleted_derived_files_are_rebuilt_to_the_same_bytes(pattern: str, end: str) -> None:
    disk = new_disk()
    store = start(disk)
    fill(store, 150, topics=2)
    if end == "clean":
        store.close()
    else:
        store.flush_queues()
        fill(store, 7, first=150, topics=2)
    before = derived(disk)
    files = sorted(path for path in disk.paths() if path.startswith("consumequeue/T0/0/"))
    disk.remove(
        {
            "queue-dir": "consumequeue",
            "queue-first-file": files[0],
            "queue-last-file": files[-1],
            "index": "index",
            "topic": "consumequeue/T1",
        }[pattern]
    )
    store, _ = reopen(disk)
    assert check(store) == list(range(150 if end == "clean" else 157))
    store.close()
    after = derived(disk)
    assert set(after) >= set(before)
    if end == "clean":
        assert after == before


@pytest.mark.parametrize("name", ["tandemq.marks", "checkpoint", "both"])
@pytest.mark.parametrize("how", ["removed", "garbage", "empty"])
def test_lost_marks_only_make_the_check_longer(name: str, how: str) -> None:
    for end in ("clean", "killed"):
        disk = new_disk()
        store = start(disk)
        fill(store, 100, topics=2)
        if end == "clean":
            store.close()
        for path in ("tandemq.marks", "checkpoint") if name == "both" else (name,):
            if how == "removed":
                disk.remove(path)
            else:
                disk.replace(path, b"\xff" * 4096 if how == "garbage" else b"")
        store, _ = reopen(disk)
        assert check(store) == list(range(100))


def test_power_loss_with_marks_older_than_the_log_checks_the_whole_log() -> None:
    """Found by simulation seed 2000: the checkpoint was used then, and it covered more than was synced."""
    stale = 0
    for seed in range(20):
        disk = new_disk(seed)
        store = start(disk)
        fill(store, 60, topics=2)
        sync_all(store)
        fill(store, 60, first=60, topics=2)
        store.flush_queues()
        flush(store)
        write_checkpoint(disk, store.checkpoint(NOW_MS + 1_000_000))
        store.drop_first_segment()
        disk.crash()
        marks = read_marks(disk)
        assert marks is not None
        store, recovered = reopen(disk, OTHER_BOOT)
        if marks.synced < store.log.start:
            stale += 1
            assert recovered.checked_from == store.log.start
        for record in records(store):
            entry = store.queues[record.topic.decode(), record.queue_id].entry(record.queue_offset)
            assert (entry.log_offset, entry.size) == (record.log_offset, record.size)
    assert stale


def test_damage_in_old_files_is_no_torn_tail_with_marks_older_than_the_log() -> None:
    disk = new_disk()
    store = start(disk)
    marks = disk.read("tandemq.marks")
    assert marks is not None
    for first in (0, 1000, 2000):  # ten seconds apart
        fill(store, 60, first=first, topics=2)
        sync_all(store)
    store.drop_first_segment()
    begin, end = store.log.start, store.log.written_end
    disk.kill()
    disk.replace("tandemq.marks", marks)
    disk.flip(f"commitlog/{begin:020d}", 300)
    store, _ = reopen(disk, OTHER_BOOT)
    ((damaged, resumes, _),) = store.damaged
    assert damaged <= begin + 300 < resumes
    assert store.log.end == end
    assert not [path for path in disk.paths() if path.startswith("set-aside")]


def test_record_larger_than_a_read_window_is_found() -> None:
    from dataclasses import replace

    config = replace(CONFIG, segment_bytes=32 << 20)
    disk = new_disk()
    store = start(disk, config)
    fill(store, 3)
    put(store, 3, topic="T0", size=9 << 20)
    fill(store, 3, first=4)
    store.commit()
    disk.remove("tandemq.marks")
    store, _ = reopen(disk, config)
    assert flags(store) == list(range(7))
    assert not store.damaged
