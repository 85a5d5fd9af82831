"""Consume queues that do not begin at 0, have holes, lose their beginning, or get invalid entries."""

from itertools import product
from random import Random

import pytest

from lab.sim.world.disk import SimDisk
from tandemq.codec.record.entries import HOLE_SIZE_MAX, QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from tandemq.codec.record.record import RECORD_BYTES_MIN, Record
from tandemq.storage import consume_queue
from tandemq.storage.consume_queue import AHEAD_ENTRIES, AHEAD_ENTRIES_MAX, ConsumeQueue, Entry, QueueFiles
from tests.unit.storage.harness import new_disk, put, start

FILE_BYTES = 200
SIZE = 200
LOG_FILE_BYTES = 10_000


def make(disk: SimDisk) -> ConsumeQueue:
    return ConsumeQueue(disk, QueueFiles(disk, 2), "T", 0, FILE_BYTES, LOG_FILE_BYTES)


def enter(queue: ConsumeQueue, number: int) -> bool:
    return queue.enter(number, number * 1000, SIZE, number)


def test_queue_that_does_not_begin_at_0_is_prefilled_as_in_java() -> None:
    disk = new_disk()
    queue = make(disk)
    assert enter(queue, 34)
    assert enter(queue, 35)
    queue.flush()
    raw = disk.read("consumequeue/T/0/00000000000000000600")
    assert raw is not None
    assert raw[:80] == (bytes(8) + bytes.fromhex("7FFFFFFF") + bytes(8)) * 4
    assert (queue.min_offset, queue.max_offset) == (34, 36)
    again = make(disk)
    again.correct_min(0)
    assert (again.min_offset, again.max_offset, again.entry(34).log_offset) == (34, 36, 34_000)


@pytest.mark.parametrize("hole", range(1, 24))
def test_holes_do_not_hide_entries_on_either_side(hole: int) -> None:
    disk = new_disk()
    queue = make(disk)
    for number in [*range(hole), *range(hole + 3, 30)]:
        assert enter(queue, number)
    queue.flush()
    queue = make(disk)
    queue.correct_min(0)
    assert (queue.min_offset, queue.max_offset) == (0, 30)
    assert [queue.entry(n).is_hole for n in range(30)] == [hole <= n < hole + 3 for n in range(30)]
    for log_end in range(30_000, 0, -1000):
        queue.truncate_from(log_end)
        held = [queue.entry(n) for n in range(queue.max_offset)]
        assert all(entry.log_offset < log_end for entry in held)
        numbers = [n for n in range(log_end // 1000) if not hole <= n < hole + 3]
        assert [entry.log_offset for entry in held if entry.size == SIZE] == [n * 1000 for n in numbers]
    for log_start in range(0, 30_000, 1500):
        copy = new_disk()
        rest = make(copy)
        for number in [*range(hole), *range(hole + 3, 30)]:
            enter(rest, number)
        rest.flush()
        rest.correct_min(log_start)
        assert all(rest.entry(n).log_offset >= log_start for n in range(rest.min_offset, 30))


def seen_by_rocketmq(entry: Entry, following: Entry) -> str:
    """What RocketMQ does with an entry, and then with the one after it: see CommitLog.getMessage, rollNextFile."""
    end = (entry.log_offset % LOG_FILE_BYTES + entry.size + (1 << 31)) % (1 << 32) - (1 << 31)  # Java's int
    if end < 0:
        return "fails"
    if end <= LOG_FILE_BYTES:
        return "delivers"
    next_file = entry.log_offset - entry.log_offset % LOG_FILE_BYTES + LOG_FILE_BYTES
    return "goes on" if following.log_offset >= next_file else "skips"


@pytest.mark.parametrize("end", [1_300, 9_999, 10_000, 10_300, 20_000])
@pytest.mark.parametrize("following", [15_000, 20_000, 30_000, 100_300])
def test_rocketmq_passes_holes_up_to_another_file_of_the_log(end: int, following: int) -> None:
    queue = make(new_disk())
    if following - end < 2 * RECORD_BYTES_MIN:
        return
    queue.enter(0, end - SIZE, SIZE, 0)
    assert queue.enter(3, following, SIZE, 3)
    entries = [queue.entry(number) for number in range(4)]
    assert [entry.is_hole for entry in entries] == [False, True, True, False]
    assert entries == sorted(entries, key=lambda entry: entry.log_offset)
    is_passed = (end - 1) // LOG_FILE_BYTES < following // LOG_FILE_BYTES
    assert {seen_by_rocketmq(entry, entries[3]) for entry in entries[1:3]} == {"goes on" if is_passed else "fails"}


def test_holes_in_logs_of_huge_files_have_the_largest_size() -> None:
    queue = ConsumeQueue(new_disk(), QueueFiles(new_disk(), 2), "T", 0, FILE_BYTES, 1 << 31)
    queue.enter(0, 0, SIZE, 0)
    queue.enter(2, 5 << 31, SIZE, 0)
    assert queue.entry(1) == (SIZE, HOLE_SIZE_MAX, 0)


@pytest.mark.parametrize("bit", range(32))
def test_flipped_bit_in_a_size_makes_no_hole_of_a_message(bit: int) -> None:
    for tags_code in (0, SIZE, -(1 << 31)):
        assert not Entry(1_000, SIZE ^ (1 << bit), tags_code).is_hole


def test_entries_in_memory_and_in_files_are_read_in_the_same_way() -> None:
    disk = new_disk()
    queue = make(disk)
    for number in range(37):
        enter(queue, number)
        if number == 20:
            queue.flush()
    for number in range(37):
        assert queue.entry(number) == (number * 1000, SIZE, number)
        expected = [(at * 1000, SIZE, at) for at in range(number, 37)]
        assert list(QUEUE_ENTRY.iter_unpack(queue.read(number, 100))) == expected
    assert queue.read(37, 5) == b""


@pytest.mark.parametrize("synced", range(1, 25))
def test_queue_ends_with_its_synced_entries_after_a_power_loss(synced: int) -> None:
    """Found by simulation seed 6: a missing or torn entry had a log offset before the truncation offset.

    Valid entries after a torn one must go too: the torn one would stay between them.
    """
    dice = Random(synced)
    disk = new_disk()
    queue = make(disk)
    for number in range(25):
        enter(queue, number)
    queue.flush()
    for number in range(synced, 25):
        position = number * QUEUE_ENTRY_BYTES
        file = disk.open(f"consumequeue/T/0/{position - position % FILE_BYTES:020d}")
        file.pwrite(bytes(dice.choice((0, 4, 8, 12, 20))), position % FILE_BYTES)
    again = make(disk)
    again.truncate_from(synced * 1000, wipes=True)
    assert (again.max_offset, again.last_log_end) == (synced, (synced - 1) * 1000 + SIZE)
    assert enter(again, synced)
    assert [again.entry(number).log_offset for number in range(synced + 1)] == [n * 1000 for n in range(synced + 1)]


def test_existing_entry_is_not_added_again() -> None:
    queue = make(new_disk())
    assert enter(queue, 0)
    assert enter(queue, 1)
    assert not enter(queue, 0)
    assert not enter(queue, 1)
    assert not enter(queue, -5)
    assert queue.max_offset == 2


@pytest.mark.parametrize("queue_offset", [1 << 40, (1 << 63) - 1, 100])
def test_implausible_queue_offset_is_not_added(queue_offset: int) -> None:
    queue = make(new_disk())
    assert not queue.enter(queue_offset, 5000, SIZE, 0)
    assert enter(queue, 0)
    assert not queue.enter(queue_offset, 5000, SIZE, 0)
    assert not queue.stage(queue_offset, 5000, SIZE, 0)
    assert queue.max_offset == 1


def test_files_before_the_log_start_are_deleted_except_the_last() -> None:
    disk = new_disk()
    queue = make(disk)
    for number in range(30):
        enter(queue, number)
    queue.flush()
    queue.correct_min(15_000)
    assert queue.min_offset == 15
    assert disk.list("consumequeue/T/0") == ["00000000000000000200", "00000000000000000400"]
    queue.correct_min(1 << 40)
    assert (queue.min_offset, queue.max_offset) == (30, 30)
    assert disk.list("consumequeue/T/0") == ["00000000000000000400"]
    assert make(disk).max_offset == 30


@pytest.mark.parametrize("topic", [b"../../escape", b"a/b", b"a\0b", b"", b"\xff", b"t" * 300])
def test_record_with_an_invalid_topic_name_creates_no_file(topic: bytes) -> None:
    disk = new_disk()
    store = start(disk)
    before = disk.paths()
    store.dispatch_found(Record(200, 0, 0, 0, 0, 0, 0, topic, b"", 0, 0, 0))
    store.dispatch_found(Record(200, -1, 0, 0, 0, 0, 0, b"fine", b"", 0, 0, 0))
    store.flush_queues()
    assert not store.queues
    assert disk.paths() == before


def test_queue_restarts_at_0_when_its_topic_was_recreated() -> None:
    queue = make(new_disk())
    for number in range(250):
        assert enter(queue, number)
    queue.flush()
    behind = queue.last_log_end
    assert not queue.enter(0, behind - 1, 100, 7), "an old record"
    assert queue.enter(0, behind, 100, 7)
    assert (queue.min_offset, queue.max_offset, queue.entry(0)) == (0, 1, (behind, 100, 7))
    assert queue.stage(0, behind + 100, 100, 8)
    queue.commit_staged()
    assert (queue.max_offset, queue.entry(0)) == (1, (behind + 100, 100, 8))


def test_queues_are_written_in_the_order_of_their_first_new_entries() -> None:
    disk = new_disk()
    store = start(disk)
    order = [7, 2, 11, 0, 5, 9, 1, 10, 3, 8, 6, 4]
    for number, queue_id in enumerate(order * 2):
        put(store, number, queue_id=queue_id)
    store.commit()
    written: list[str] = []
    disk.on_call = lambda operation, path: written.append(path) if operation == "pwrite" else None
    store.flush_queues()
    assert [path.split("/")[2] for path in written if path.startswith("consumequeue/")] == [
        str(queue_id) for queue_id in order
    ]


def read_in_order(queues: list[ConsumeQueue], count: int) -> None:
    for first, queue in product(range(0, count, 10), queues):
        entries = QUEUE_ENTRY.iter_unpack(queue.read(first, 10))
        assert [log_offset for log_offset, _, _ in entries] == [n * 1000 for n in range(first, first + 10)]


def test_entries_read_ahead_are_more_and_more_for_few_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = new_disk()
    files = QueueFiles(disk, 64)
    queues = [ConsumeQueue(disk, files, "T", number, 1 << 20, LOG_FILE_BYTES) for number in range(8)]
    for queue in queues:
        for number in range(6000):
            enter(queue, number)
        queue.flush()
    read_in_order(queues, 2000)
    assert {len(files.ahead_of(queue).packed) for queue in queues} == {AHEAD_ENTRIES_MAX * QUEUE_ENTRY_BYTES}
    room = 3 * AHEAD_ENTRIES * QUEUE_ENTRY_BYTES
    monkeypatch.setattr(consume_queue, "AHEAD_BYTES_MAX", room)
    for queue in queues:
        files.forget_ahead(queue)
    read_in_order(queues, 3000)
    kept = [len(files.ahead_of(queue).packed) for queue in queues]
    assert 0 < sum(kept) <= room
    queues[0].destroy()
    for queue in queues:
        files.forget_ahead(queue)
    assert files._ahead_bytes == 0
