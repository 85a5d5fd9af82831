"""Reads of many small ranges of the commit log, for pulls.

The more queues there are, the farther apart the records of one queue are. Ranges close to each other are read together;
otherwise a range is read exactly. A whole block of the log is read and cached only after several small reads of it. So
a consumer of one topic among many reads little more than it returns, and many consumers that catch up at the same time
read the log once.

Unless a read may wait for the device, it returns only what memory and the page cache have, and otherwise raises
`NotCached` with the ranges that a worker thread should read.

    bytes read  <=  2 * bytes returned + CREDIT_MAX        for any number of queues, topics and readers

Source: docs/internals/storage.md, "read rules".
"""

from collections.abc import Collection, Sequence
from typing import Protocol

from tandemq.boundary import File
from tandemq.codec.record.entries import QUEUE_ENTRY, QUEUE_ENTRY_BYTES, is_hole
from tandemq.engine import (
    FilterProgram,
    Gathered,
    LogSources,
    PullEngine,
    Selected,
    gather_messages,
    select_messages,
)
from tandemq.errors import OffsetGone
from tandemq.not_cached import FileRange, NotCached
from tandemq.storage.cached_reads import read_cached
from tandemq.storage.log.recent_writes import RecentWrites

BLOCK_BYTES = 1 << 18
KEPT_BYTES_MAX = 128 << 20
MAPPED_SHARE = 8
"""Limit of mapped files counted as memory of the process, in sizes of the cache; the page cache holds them anyway."""
SMALL_BYTES_MAX = BLOCK_BYTES // 32
"""Above this size the cost of a read is mostly the copy, which caching a block does not save."""
SMALL_READS_MIN = 8
"""Number of small reads of one block from which on reading the whole block is cheaper, in Python. The engine reads a
record in far less time, and so many more before it wants a block."""
COUNTED_BLOCKS_MAX = 8192
OFFERED_FILES_MAX = 64
CREDIT_MAX = 16 << 20
MERGED_BYTES_MAX = 1 << 20
AHEAD_RECORDS_MAX = 64
AHEAD_BYTES_MAX = 1 << 20
"""Limits of what a worker reads ahead behind the first record that the page cache lacks."""


class _Log(Protocol):
    """The part of the commit log that the reader uses."""

    segment_bytes: int
    written_end: int
    recent: RecentWrites

    @property
    def start(self) -> int:
        """Offset of the first byte held."""

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` written bytes."""

    def file_at(self, offset: int) -> tuple[int, File]:
        """Return start and file of the segment that holds an offset."""


class RangeReader:
    """Reader of ranges below the log's `written_end`."""

    def __init__(self, log: _Log) -> None:
        """Begin with an empty cache."""
        self._log = log
        self._blocks_max = KEPT_BYTES_MAX // BLOCK_BYTES
        self._blocks: dict[int, bytes] = {}
        """Cached blocks by number, oldest first."""
        self._small_reads: dict[int, int] = {}
        """Number of small reads by block, for blocks that are not cached."""
        self._credit = CREDIT_MAX
        """Bytes that may still be read beyond those requested."""
        self._file_start = self._file_end = 0
        self._file: File | None = None
        self._may_wait = True
        """Whether the read in progress may wait for the device."""
        self._files: dict[int, File] = {}
        """Files that `_sources` has, so that they stay open, by start."""
        self._sources = LogSources(self._blocks, BLOCK_BYTES, log.segment_bytes, self._load)
        self.bytes_read = 0
        self.bytes_answered = 0
        self._answered_before = 0
        self._read_before = 0
        """Bytes that the engine had read at the last `begin_pulls`."""

    def limit_memory(self, bytes_max: int) -> None:
        """Set the cache size in bytes, at most KEPT_BYTES_MAX, and in proportion what mapped files may count."""
        self._blocks_max = max(1, min(bytes_max, KEPT_BYTES_MAX) // BLOCK_BYTES)
        self._sources.limit_memory(MAPPED_SHARE * bytes_max)

    def forget(self) -> None:
        """Empty the cache: the log was truncated or repaired, or its oldest file was deleted."""
        self._blocks.clear()
        self._small_reads.clear()
        self._forget_files()
        self._file, self._file_end = None, 0

    def age(self) -> None:
        """Have the engine query the page cache again; to be called every second."""
        self._sources.age()

    def forget_if_idle(self) -> None:
        """Empty the cache if nothing was read since the last call."""
        if self.bytes_answered == self._answered_before:
            self.forget()
        self._answered_before = self.bytes_answered

    def gather(
        self,
        entries: bytes,
        queue_offset: int,
        queue_id: int,
        topic: bytes,
        codes: Collection[int] | None,
        *,
        most: int,
        bytes_max: int,
        limit: int,
        may_wait: bool = True,
    ) -> Gathered | None:
        """Return the records of queue entries; see `engine.gather_messages`.

        Raises:
            OffsetGone: a record is not held.
            NotCached: the device would have to be waited for, and that may not be.
            DiskFailed: the device failed.
        """
        log, before = self._log, self._sources.bytes_read
        self._may_wait = may_wait
        try:
            found = gather_messages(
                entries, queue_offset, queue_id, topic, codes, most, bytes_max, limit, log.written_end,
                log.recent.start, log.recent.data, self._sources,
            )  # fmt: skip
        except NotCached as missing:
            raise self.with_next(missing, entries, codes) from None
        if found is not None:
            self._account(len(found.data), self._sources.bytes_read - before)
        return found

    def select(
        self,
        entries: bytes,
        queue_offset: int,
        queue_id: int,
        topic: bytes,
        program: FilterProgram,
        *,
        most: int,
        bytes_max: int,
        examined_max: int,
        cost_max: int,
        limit: int,
        may_wait: bool = True,
    ) -> Selected | None:
        """Return the records of queue entries that match; see `engine.select_messages`.

        Those before the first one that is not cached are returned without the others. Raises as `gather`.
        """
        log, before = self._log, self._sources.bytes_read
        self._may_wait = may_wait

        def select(entries: bytes) -> Selected | None:
            return select_messages(
                entries,
                queue_offset,
                queue_id,
                topic,
                program,
                most,
                bytes_max,
                examined_max,
                cost_max,
                limit,
                log.written_end,
                log.recent.start,
                log.recent.data,
                self._sources,
            )

        try:
            found = select(entries)
        except NotCached as missing:
            cached = self.entries_before(missing, entries)
            if not cached:
                raise self.with_next(missing, entries, None) from None
            found = select(cached)
        if found is not None:
            self._account(found.examined, self._sources.bytes_read - before)
        return found

    def begin_pulls(self, engine: PullEngine, limit: int, *, commits_pulled: bool) -> None:
        """Prepare the engine for pulls in this turn, from what is cached; see `engine.PullEngine.begin`."""
        log = self._log
        self._may_wait = False
        self._read_before = self._sources.bytes_read
        engine.begin(
            limit,
            log.written_end,
            log.recent.start,
            log.recent.data,
            self._sources,
            commits_pulled=commits_pulled,
        )

    def end_pulls(self, engine: PullEngine) -> None:
        """Count what the engine has read since `begin_pulls`; nothing else was read meanwhile."""
        self._account(engine.bytes, self._sources.bytes_read - self._read_before)

    def _offset_of(self, missing: NotCached) -> int:
        """Return the log offset of the first range that is missing."""
        first = missing.ranges[0]
        return self._file_start + first.position

    def entries_before(self, missing: NotCached, entries: bytes) -> bytes:
        """Return the packed entries before the first record that reaches into a missing range."""
        start = self._offset_of(missing)
        for number, (log_offset, size, code) in enumerate(QUEUE_ENTRY.iter_unpack(entries)):
            if not is_hole(size, code) and log_offset + size > start:
                return entries[: number * QUEUE_ENTRY_BYTES]
        return entries

    def with_next(self, missing: NotCached, entries: bytes, codes: Collection[int] | None) -> NotCached:
        """Add the records of entries behind a missing range to it."""
        ranges = [
            (log_offset, log_offset + size)
            for log_offset, size, code in QUEUE_ENTRY.iter_unpack(entries)
            if not is_hole(size, code) and (codes is None or code in codes)
        ]
        return self._with_ranges(missing, ranges)

    def _with_ranges(self, missing: NotCached, ranges: Sequence[tuple[int, int]]) -> NotCached:
        """Add ranges of log offsets behind a missing range to it, near ones as one, up to the limits.

        Ranges in the missing one count too: how many it has depends on how they are read.
        """
        (file, position, size), log = missing.ranges[0], self._log
        found = [FileRange(file, position, size)]
        count = total = 0
        first = self._offset_of(missing)
        end = first + size
        for start, stop in ranges:
            if stop <= max(start, first) or stop - start > AHEAD_BYTES_MAX:  # before it, wrong or large
                continue
            if not log.start <= start < log.recent.start or count >= AHEAD_RECORDS_MAX or total >= AHEAD_BYTES_MAX:
                break
            count, total = count + 1, total + stop - start
            if stop <= end:
                continue
            file_start, file = log.file_at(start)
            before = found[-1]
            gap = start - file_start - before.position - before.size
            if file is before.file and gap <= BLOCK_BYTES // 8:
                found[-1] = before._replace(size=before.size + gap + stop - start)
            else:
                found.append(FileRange(file, start - file_start, stop - start))
            end = stop
        return NotCached(found)

    def _load(self, start: int, end: int, run_end: int, wants_block: bool) -> bytes | None:
        """Read a record, with near ones up to `run_end`; None if its block is cached now."""
        number = start // BLOCK_BYTES
        if (
            wants_block
            and end <= (number + 1) * BLOCK_BYTES
            and number not in self._blocks
            and self._read_block(number) is not None
        ):
            return None
        segment = self._log.segment_bytes
        stop = run_end if run_end <= start - start % segment + segment else end
        return self._read_exactly(start, stop - start)

    def _block_for(self, number: int, size: int, *, is_joined: bool) -> bytes | None:
        """Cache the block in which a read of some size begins, if that is cheaper than such reads; else None.

        `is_joined`: the read has bytes between the wanted ones, which are probably wanted by readers of other queues.
        """
        if size <= SMALL_BYTES_MAX:
            self._small_reads[number] = reads = self._small_reads.get(number, 0) + 1
            while len(self._small_reads) > COUNTED_BLOCKS_MAX:
                del self._small_reads[next(iter(self._small_reads))]
            return self._read_block(number) if reads >= SMALL_READS_MIN else None
        return self._read_block(number) if is_joined else None

    def _account(self, size: int, read: int = 0) -> None:
        """Count the requested bytes, and the bytes that the engine read to return them."""
        self.bytes_answered += size
        self.bytes_read += read
        self._credit = min(CREDIT_MAX, self._credit + 2 * size - read)

    def read(self, ranges: Sequence[tuple[int, int]], *, may_wait: bool = True) -> list[bytes]:
        """Read ranges of log offsets (start, end), none empty, none across files.

        Raises:
            OffsetGone: a range is not held.
            NotCached: the device would have to be waited for, and that may not be.
            DiskFailed: the device failed.
        """
        self._may_wait = may_wait
        try:
            return self._read(ranges)
        except NotCached as missing:
            raise self._with_ranges(missing, ranges) from None

    def _read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        found = self._from_one_block(ranges)
        blocks = self._blocks
        index, count = len(found), len(ranges)
        while index < count:
            start, end = ranges[index]
            number = start // BLOCK_BYTES
            block, stop = blocks.get(number), index + 1
            if block is None:
                if stop < count and ranges[stop][1] - start <= 2 * (end - start + ranges[stop][1] - ranges[stop][0]):
                    stop = self._merge(ranges, index)
                block = self._block_for(number, ranges[stop - 1][1] - start, is_joined=stop > index + 1)
                if block is not None:
                    stop = index + 1
            position = start - number * BLOCK_BYTES
            if block is not None and position + end - start <= BLOCK_BYTES:
                found.append(block[position : position + end - start])
            elif stop == index + 1:
                found.append(self._read_exactly(start, end - start))
            else:
                data = self._read_exactly(start, ranges[stop - 1][1] - start)
                found += [
                    data[range_start - start : range_end - start] for range_start, range_end in ranges[index:stop]
                ]
            index = stop
        self._account(sum(map(len, found)))
        return found

    def _from_one_block(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return all ranges if a single cached block holds them, the common case with few queues; else []."""
        if not ranges:
            return []
        number = ranges[0][0] // BLOCK_BYTES
        block, base = self._blocks.get(number), number * BLOCK_BYTES
        if block is None or not base < ranges[-1][1] <= base + BLOCK_BYTES:
            return []
        found = [block[start - base : end - base] for start, end in ranges if base <= start < end <= base + BLOCK_BYTES]
        return found if len(found) == len(ranges) else []

    def _merge(self, ranges: Sequence[tuple[int, int]], index: int) -> int:
        """Return the index after the last range to read together with the range at `index`.

        At least half of the bytes of such a read are requested ones.
        """
        start, end = ranges[index]
        needed = end - start
        file_end = start - start % self._log.segment_bytes + self._log.segment_bytes
        for following in range(index + 1, len(ranges)):
            next_start, next_end = ranges[following]
            needed += next_end - next_start
            is_near = end <= next_start and next_end - start <= min(2 * needed, MERGED_BYTES_MAX)
            if not is_near or next_end > file_end:
                return following
            end = next_end
        return len(ranges)

    def _read_exactly(self, start: int, size: int) -> bytes:
        log = self._log
        if start >= log.recent.start:
            data = log.read(start, size)
        else:
            if self._file is None or not self._file_start <= start < self._file_end:
                self._file_start, self._file = log.file_at(start)
                self._file_end = self._file_start + log.segment_bytes
                self._offer(self._file)
            position = start - self._file_start
            file = self._file
            data = file.pread(size, position) if self._may_wait else read_cached(file, size, position)
            self.bytes_read += size
            self._credit -= size
        if len(data) < size:
            raise OffsetGone(f"commit log: bytes [{start}, {start + size}) are not held")
        return data

    def _offer(self, file: File) -> None:
        """Let the engine read a file itself."""
        descriptor = file.fileno()
        if descriptor < 0 or self._file_start in self._files:
            return
        if len(self._files) >= OFFERED_FILES_MAX:
            self._forget_files()
        self._files[self._file_start] = file
        self._sources.add_file(self._file_start, descriptor)

    def _forget_files(self) -> None:
        self._sources.forget(self._log.start)
        self._files.clear()

    def _read_block(self, number: int) -> bytes | None:
        """Read and cache a block; None if it is incomplete, or if the credit for reading ahead is used up."""
        log, start = self._log, number * BLOCK_BYTES
        if self._credit < BLOCK_BYTES or start < log.start or start + BLOCK_BYTES > log.written_end:
            return None
        if start % log.segment_bytes + BLOCK_BYTES > log.segment_bytes:
            return None
        block = self._read_exactly(start, BLOCK_BYTES)
        self._small_reads.pop(number, None)
        if len(self._blocks) >= self._blocks_max:
            del self._blocks[next(iter(self._blocks))]
        self._blocks[number] = block
        return block
