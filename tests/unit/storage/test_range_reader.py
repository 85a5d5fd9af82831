"""Reads of log ranges: correct bytes, and few bytes read beyond the requested ones."""

from itertools import product
from random import Random

import pytest

from lab.sim.world.disk import SimDisk
from tandemq.boundary import Disk
from tandemq.codec.record.entries import QUEUE_ENTRY
from tandemq.errors import OffsetGone
from tandemq.not_cached import NotCached
from tandemq.storage.log.commit_log import CommitLog
from tandemq.storage.log.range_reader import BLOCK_BYTES, CREDIT_MAX, KEPT_BYTES_MAX
from tests.samples import every
from tests.unit.storage.harness import new_disk

SEGMENT_BYTES = 16 << 20


def filled(disk: Disk, size: int, segment_bytes: int = SEGMENT_BYTES) -> tuple[CommitLog, bytes]:
    """Return a log of `size` random bytes, and these bytes."""
    log = CommitLog(disk, segment_bytes)
    log.open_at(0, flushed=0)
    data = Random(1).randbytes(size)
    for at in range(0, size, segment_bytes):
        log.append(data[at : at + segment_bytes])
        log.write()
    log.recent.restart(size)  # so that reads go to the disk
    return log, data


def bytes_from_disk(disk: SimDisk, log: CommitLog) -> list[int]:
    """Return a list to which the sizes of all further reads are added."""
    sizes: list[int] = []
    whole = log.file_at(0)[1].__class__.pread

    class Counting:
        def __init__(self, offset: int) -> None:
            self.start, self.file = log._segments.file_at(offset)

        def pread(self, size: int, position: int) -> bytes:
            sizes.append(size)
            return whole(self.file, size, position)

        def fileno(self) -> int:
            return -1

    log.file_at = lambda offset: (Counting(offset).start, Counting(offset))  # type: ignore[method-assign,assignment,return-value]
    return sizes


def test_wrong_entries_are_not_read_ahead() -> None:
    disk = SimDisk(Random(1))
    log, _ = filled(disk, 5 << 20)
    disk.uncached = 1.0
    places = (0, 200), (200, 200), (2 << 20, -5), (3 << 20, 200), (1 << 40, 200)
    entries = b"".join(QUEUE_ENTRY.pack(log_offset, size, 0) for log_offset, size in places)
    with pytest.raises(NotCached) as missing:
        log.reader.read([(0, 200)], may_wait=False)
    ahead = log.reader.with_next(missing.value, entries, None)
    assert [(found.position, found.size) for found in ahead.ranges] == [(0, 400), (3 << 20, 200)]


def test_ranges_are_read_correctly() -> None:
    """Near and far, small and large, repeated, across blocks, up to the ends of files."""
    log, data = filled(new_disk(), 5 << 20, 1 << 20)
    random = Random(2)
    for _ in range(400):
        ranges = []
        at = random.randrange(len(data))
        for _ in range(random.randrange(1, 40)):
            size = random.choice((91, 300, 5_000, 70_000))
            at += random.choice((0, 10, 3_000, 100_000))
            if at // (1 << 20) == (at + size - 1) // (1 << 20) and at + size <= len(data):
                ranges.append((at, at + size))
            at += size
        assert log.reader.read(ranges) == [data[start:end] for start, end in ranges]


@pytest.mark.parametrize(
    ("queues", "at_once"),
    every(3, product([1024, 256, 64, 16, 4, 1], ["one queue after the other", "all queues together"])),
)
def test_at_most_twice_the_returned_bytes_are_read_for_any_number_of_queues(queues: int, at_once: str) -> None:
    disk = new_disk()
    size, pulled = 1_000, 32
    log, data = filled(disk, 48 << 20)
    sizes = bytes_from_disk(disk, log)
    random = Random(queues)
    records: list[list[tuple[int, int]]] = [[] for _ in range(queues)]
    for start in range(0, len(data) - size, size):
        if start // SEGMENT_BYTES == (start + size - 1) // SEGMENT_BYTES:
            records[random.randrange(queues)].append((start, start + size))
    pulls = [queue[at : at + pulled] for queue in records for at in range(0, len(queue), pulled)]
    if at_once == "all queues together":
        pulls.sort(key=lambda pull: pull[0])
    for pull in pulls:
        assert b"".join(log.reader.read(pull)) == b"".join([data[start:end] for start, end in pull])
    answered = sum(map(len, records)) * size
    assert sum(sizes) == log.reader.bytes_read <= 2 * answered + CREDIT_MAX
    if at_once == "all queues together":
        assert log.reader.bytes_read <= 1.3 * answered, "readers share the blocks"
        assert len(sizes) <= answered // size // 4, "most records need no read of their own"


def test_cached_blocks_respect_the_memory_limit() -> None:
    log, data = filled(new_disk(), 24 << 20)
    log.reader.limit_memory(1 << 20)
    for number in range(len(data) // BLOCK_BYTES):
        for at in range(number * BLOCK_BYTES, (number + 1) * BLOCK_BYTES, 10_000):
            log.reader.read([(at, at + 100)])
    kept = sum(map(len, log.reader._blocks.values()))
    assert 0 < kept <= 1 << 20
    log.reader.forget_if_idle()
    assert log.reader._blocks, "there was a read since the last call"
    log.reader.forget_if_idle()
    assert not log.reader._blocks
    log.reader.limit_memory(1 << 40)
    assert log.reader._blocks_max * BLOCK_BYTES == KEPT_BYTES_MAX


def test_truncated_or_deleted_bytes_are_not_read_from_the_cache() -> None:
    log, _ = filled(new_disk(), 4 << 20, 1 << 20)
    for _ in range(20):
        log.reader.read([(1_000, 1_100), (500_000, 500_100)])
    log.drop_first_segment()
    with pytest.raises(OffsetGone):
        log.reader.read([(1_000, 1_100)])
    for _ in range(20):
        log.reader.read([(1_500_000, 1_500_100)])
    good = log.reader.read([(1_500_000, 1_500_100)])
    log.overwrite(bytes(100), 1_500_000)
    assert log.reader.read([(1_500_000, 1_500_100)]) == [bytes(100)] != good
    log.open_at(1_400_000, flushed=0)
    assert log.reader._blocks == {}
