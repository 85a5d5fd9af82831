"""Consume queue: maps the messages of one queue of a topic to their records in the commit log.

Entries have 20 bytes: log offset, record size, tags code. New entries are kept in memory and written by `flush()`;
after a crash they are rebuilt from the log. Entry n is stored at byte 20·n of the queue's byte space.

An entry may be damaged on the device. Searches by log offset skip implausible entries (see `plausible_offset`), so that
a damaged entry changes neither end of the queue. The scrubber rebuilds damaged entries from the log.

Source: docs/internals/storage.md, "consume queue"; RocketMQ ConsumeQueue.
"""

from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from struct import Struct
from typing import NamedTuple

from tandemq.boundary import Disk, File
from tandemq.codec.record.entries import HOLE_SIZE_MAX, HOLE_SIZE_MIN, QUEUE_ENTRY, QUEUE_ENTRY_BYTES, is_hole
from tandemq.codec.record.record import RECORD_BYTES_MIN
from tandemq.engine import QueueTail
from tandemq.storage.segmented_file import FileCache, SegmentLog

AHEAD_ENTRIES = 256
"""Entries read ahead at first for a sequential reader of a queue, and always if many queues are read."""
AHEAD_ENTRIES_MAX = 4096
AHEAD_BYTES_MAX = 20 << 20
"""Bytes of entries read ahead, of all queues together."""
GAP_ENTRIES_MAX = 256
"""Entries examined after the first empty one: if any of them is written, the empty ones before it are damage."""
_SEARCH_ENTRIES = 3
"""Entries that a search reads at a time."""
_EMPTY = bytes(QUEUE_ENTRY_BYTES)
_pack = QUEUE_ENTRY.pack
_unpack = QUEUE_ENTRY.unpack_from


class Entry(NamedTuple):
    """One entry: of a record, or of a hole, a queue offset without a message."""

    log_offset: int
    size: int
    tags_code: int

    @property
    def is_hole(self) -> bool:
        """Whether the queue offset has no message."""
        return is_hole(self.size, self.tags_code)

    @property
    def log_end(self) -> int:
        """Log offset of the end of the record."""
        return self.log_offset if self.is_hole else self.log_offset + self.size


class EntriesAhead(NamedTuple):
    """Packed entries of a queue that were read before they were requested."""

    start: int
    """Queue offset of the first one."""
    packed: bytes

    @property
    def end(self) -> int:
        """Queue offset behind the last one."""
        return self.start + len(self.packed) // QUEUE_ENTRY_BYTES


_NOTHING_AHEAD = EntriesAhead(0, b"")


class QueueFiles(FileCache):
    """Open files and entries read ahead of all queues. With many queues their files cannot all be open."""

    def __init__(self, disk: Disk, files_max: int | None = None) -> None:
        """Begin with no file open; `files_max`: `Disk.open_files_max` by default."""
        super().__init__(disk, disk.open_files_max if files_max is None else files_max)
        self.ahead: dict[ConsumeQueue, EntriesAhead] = {}
        """Cached entries, those read longest ago first; the engine reads them."""
        self._ahead_bytes = 0

    def ahead_of(self, queue: "ConsumeQueue") -> "EntriesAhead":
        """Return the cached entries of a queue."""
        return self.ahead.get(queue, _NOTHING_AHEAD)

    def keep_ahead(self, queue: "ConsumeQueue", queue_offset: int, entries: bytes) -> None:
        """Cache entries of a queue for its next reader, in place of the entries of the queues read longest ago."""
        self.forget_ahead(queue)
        self.ahead[queue] = EntriesAhead(queue_offset, entries)
        self._ahead_bytes += len(entries)
        while self._ahead_bytes > AHEAD_BYTES_MAX:
            self.forget_ahead(next(iter(self.ahead)))

    def forget_ahead(self, queue: "ConsumeQueue") -> None:
        """Drop the cached entries of a queue: its files change, or are gone."""
        self._ahead_bytes -= len(self.ahead.pop(queue, _NOTHING_AHEAD).packed)

    def ahead_entries(self, previous: int) -> int:
        """Return how many entries to read ahead, if the `previous` entries read ahead were all used."""
        grown = min(max(AHEAD_ENTRIES, 4 * previous), AHEAD_ENTRIES_MAX)
        has_room = self._ahead_bytes + (grown - previous) * QUEUE_ENTRY_BYTES <= AHEAD_BYTES_MAX
        return grown if has_room else AHEAD_ENTRIES


class ConsumeQueue(QueueTail):
    """One consume queue. `[min_offset, max_offset)` are the queue offsets whose records may still be in the log."""

    __slots__ = ("_file_bytes", "_files", "_log_file_bytes", "_plausible_end", "_segments", "queue_id", "topic")

    def __init__(
        self, disk: Disk, files: QueueFiles, topic: str, queue_id: int, file_bytes: int, log_file_bytes: int
    ) -> None:
        """Load the files and find `max_offset` by binary search in the last one.

        Args:
            file_bytes, log_file_bytes: sizes of the queue's files, and of the log's.
        Raises:
            StoreDamaged: a file has the wrong length.
        """
        super().__init__()
        self.topic = topic
        self.queue_id = queue_id
        self._file_bytes = file_bytes
        self._log_file_bytes = log_file_bytes
        self._files = files
        self._segments = SegmentLog(disk, files, queue_directory(topic, queue_id), file_bytes, is_derived=True)
        self.start_tail(self._find_written_end())
        self.min_offset = self._segments.start // QUEUE_ENTRY_BYTES
        self._plausible_end = -1
        """Max offset at which the last entry was found plausible, so that a start with many queues reads it once."""
        self.last_log_end = self.log_end_before(self.max_offset)

    def log_end_before(self, queue_offset: int) -> int:
        """Return the record end of the last plausible entry before a queue offset, 0 if there is none."""
        step = 1
        while (candidate := queue_offset - step) >= self._held_from:
            if self.plausible_offset(candidate) is not None:
                self._plausible_end = max(self._plausible_end, candidate + 1)
                return self.entry(candidate).log_end
            step *= 2
        return 0

    @property
    def ends_plausibly(self) -> bool:
        """Whether the last entry is plausible, or there is none."""
        end = self.max_offset
        return end in (self._plausible_end, self.min_offset) or self.plausible_offset(end - 1) is not None

    def _find_written_end(self) -> int:
        """Find the end of the written entries by binary search; entries zeroed by damage do not end them."""
        per_file = self._file_bytes // QUEUE_ENTRY_BYTES
        for start in reversed(self._segments.starts):
            low = 0
            while (low := self._first_empty(start, low, per_file)) < per_file:
                behind = self._segments.read(start + low * QUEUE_ENTRY_BYTES, GAP_ENTRIES_MAX * QUEUE_ENTRY_BYTES)
                if not (written := len(behind.rstrip(b"\0"))):
                    break
                low += -(-written // QUEUE_ENTRY_BYTES)
            if low:
                return start // QUEUE_ENTRY_BYTES + low
        return self._segments.start // QUEUE_ENTRY_BYTES

    def _first_empty(self, start: int, low: int, high: int) -> int:
        """Return the first empty entry of a file at or after `low`, `high` if none is. Cost: one read if it is near."""
        chunk = self._segments.read(start + low * QUEUE_ENTRY_BYTES, GAP_ENTRIES_MAX * QUEUE_ENTRY_BYTES)
        if chunk.endswith(_EMPTY):
            size = QUEUE_ENTRY_BYTES
            numbers = range(len(chunk) // size)
            return low + bisect_left(
                numbers, True, key=lambda number: chunk[number * size : (number + 1) * size] == _EMPTY
            )
        low += len(chunk) // QUEUE_ENTRY_BYTES
        while low < high:
            middle = (low + high) // 2
            found = self._segments.read(start + middle * QUEUE_ENTRY_BYTES, QUEUE_ENTRY_BYTES)
            low, high = (middle + 1, high) if found != _EMPTY else (low, middle)
        return low

    def stage(self, queue_offset: int, log_offset: int, size: int, tags_code: int) -> bool:
        """Stage the entry of a record at the queue offset that the record states; False if that entry exists already.

        Skipped queue offsets become holes: their messages were lost to damage. A hole has the log offset at which the
        preceding record ends, so that entries stay in log order (`_hole`). A queue's first message may have any
        offset.
        """
        self._restart_if_recreated(queue_offset, log_offset)
        missing = queue_offset - self.next_offset
        if missing < 0 or self._exceeds_log(missing, log_offset):
            return False
        if missing:
            if self.next_offset == 0:
                self.min_offset = queue_offset
                self._start_at(queue_offset)
                missing = queue_offset - self.next_offset
            self.stage_entry(*_hole(self.staged_log_end(), log_offset, self._log_file_bytes), missing)
        self.stage_entry(log_offset, size, tags_code)
        return True

    def enter(self, queue_offset: int, log_offset: int, size: int, tags_code: int) -> bool:
        """Like `stage`, for a record that is in the log."""
        is_new = self.stage(queue_offset, log_offset, size, tags_code)
        self.commit_staged()
        return is_new

    def reserve_offset(self, queue_offset: int) -> bool:
        """Add a hole for a damaged message, so that no new message gets its offset; False if it is not the next one."""
        if queue_offset != self.max_offset or not queue_offset:
            return False
        end = self.last_log_end
        self.stage_entry(end, HOLE_SIZE_MAX, 0)
        self.commit_staged()
        self.last_log_end = end  # the size of a hole is none: the log has room for more missing messages behind it
        return True

    def correct(self, queue_offset: int, log_offset: int, size: int, tags_code: int) -> None:
        """Replace one entry and sync it; blocking. Raises as `rewrite`."""
        for file in self.rewrite(queue_offset, _pack(log_offset, size, tags_code)):
            file.datasync()

    def rewrite(self, queue_offset: int, packed: bytes) -> list[File]:
        """Replace entries between `min_offset` and `max_offset` that contradict the log.

        Returns the files, for the caller to sync before the repair counts as done.

        Raises:
            DiskFailed, DiskFull: they could not be written.
        """
        end = queue_offset + len(packed) // QUEUE_ENTRY_BYTES
        assert self.min_offset <= queue_offset and end <= self.max_offset, "only existing entries are rewritten"
        start, stop = queue_offset * QUEUE_ENTRY_BYTES, min(end, self.tail_start) * QUEUE_ENTRY_BYTES
        position = start
        self._files.forget_ahead(self)
        while position < stop:
            size = min(stop - position, self._file_bytes - position % self._file_bytes)
            self._segments.write(packed[position - start : position - start + size], position)
            position += size
        if end > self.tail_start:
            self.rewrite_tail(position // QUEUE_ENTRY_BYTES, packed[position - start :])
        if end == self.max_offset:
            log_offset, size, _ = _unpack(packed, len(packed) - QUEUE_ENTRY_BYTES)
            self.last_log_end = log_offset + size
        return self._segments.files_between(start, stop)

    def _restart_if_recreated(self, queue_offset: int, log_offset: int) -> None:
        """Restart the queue at 0 if its first message comes again: the master deleted and recreated the topic."""
        if queue_offset or not self.next_offset or log_offset < self.staged_log_end():
            return
        self.destroy()
        self.start_tail(0)
        self.min_offset = self.last_log_end = 0

    def _exceeds_log(self, missing: int, log_offset: int) -> bool:
        """Whether the log has no room for so many missing messages: a damaged queue offset must not fill the memory."""
        return missing > 0 and missing * RECORD_BYTES_MIN > log_offset - self.staged_log_end()

    def _start_at(self, queue_offset: int) -> None:
        if self._segments.starts:
            self._files.forget_ahead(self)
            self._segments.destroy()
        per_file = self._file_bytes // QUEUE_ENTRY_BYTES
        self.start_tail(queue_offset - queue_offset % per_file)

    def entry(self, queue_offset: int, *, may_wait: bool = True) -> Entry:
        """Return one entry between `min_offset` and `max_offset`; `may_wait` and errors: see `read`."""
        return Entry(*_unpack(self.read(queue_offset, 1, may_wait=may_wait), 0))

    def read(self, queue_offset: int, count: int, *, may_wait: bool = True) -> bytes:
        """Return up to `count` packed entries from `queue_offset` on, from files and memory.

        Raises:
            NotCached: the device would have to be waited for, and that may not be.
        """
        end = min(queue_offset + count, self.max_offset)
        written_end = min(end, self.tail_start)
        data = self._written(queue_offset, written_end, may_wait=may_wait) if queue_offset < written_end else b""
        queue_offset += len(data) // QUEUE_ENTRY_BYTES
        if not written_end <= queue_offset < end:
            return data
        return data + self.tail(queue_offset, end)

    def _written(self, start: int, end: int, *, may_wait: bool) -> bytes:
        """Return packed entries from the files, with read-ahead for sequential readers."""
        ahead = self._files.ahead_of(self)
        if not (ahead.start <= start and end <= ahead.end):
            if end - start <= _SEARCH_ENTRIES:
                return self._from_files(start, end, may_wait=may_wait)
            stop = end
            if ahead.start <= start <= ahead.end:
                stop = min(max(end, start + self._files.ahead_entries(ahead.end - ahead.start)), self.tail_start)
            ahead = EntriesAhead(start, self._from_files(start, stop, may_wait=may_wait))
            if stop - start <= AHEAD_ENTRIES_MAX:
                self._files.keep_ahead(self, start, ahead.packed)
        return ahead.packed[(start - ahead.start) * QUEUE_ENTRY_BYTES : (end - ahead.start) * QUEUE_ENTRY_BYTES]

    def _from_files(self, start: int, end: int, *, may_wait: bool) -> bytes:
        position, stop = start * QUEUE_ENTRY_BYTES, end * QUEUE_ENTRY_BYTES
        read = self._segments.read if may_wait else self._segments.read_cached
        data = b""
        while position < stop and (piece := read(position, stop - position)):
            data += piece
            position += len(piece)
        return data

    @property
    def _held_from(self) -> int:
        """Queue offset of the first entry in the files, or in memory if there are no files."""
        return self._segments.start // QUEUE_ENTRY_BYTES if self._segments.starts else self.tail_start

    def plausible_offset(self, queue_offset: int) -> int | None:
        """Return the log offset of an entry; None if the entry is implausible: no size, or overlap with a neighbour.

        -1 for an entry before the queue's first message. A plausible entry may still be wrong: `Store.record_of`
        verifies it against the log.
        """
        first = max(queue_offset - 1, self._held_from)
        entries = [Entry(*fields) for fields in QUEUE_ENTRY.iter_unpack(self.read(first, queue_offset + 2 - first))]
        found = entries[queue_offset - first]
        possible = [entry for entry in entries if entry.size > 0 and entry.log_offset >= 0]
        if found not in possible or any(
            entry.log_end > following.log_offset for entry, following in pairwise(possible)
        ):
            return None
        return -1 if found.is_hole and not found.log_offset else found.log_offset

    def first_at_or_after(self, log_offset: int, low: int, high: int) -> int:
        """Return the first of the entries `[low, high)` whose record is at or after a log offset; `high` if none is.

        Implausible entries are skipped. If only implausible entries are left, the first of them is returned.
        """
        while low < high:
            for number in around(low, high):
                if (place := self.plausible_offset(number)) is not None:
                    low, high = (number + 1, high) if place < log_offset else (low, number)
                    break
            else:
                return low
        return low

    @property
    def dirty(self) -> bool:
        """Whether entries in memory are not written yet."""
        return self.max_offset > self.tail_start

    def flush(self, end: int | None = None) -> None:
        """Write the entries in memory that are before a queue offset; None: all.

        Raises:
            DiskFull, DiskFailed: the entries stay in memory; the next call writes them.
        """
        per_file = self._file_bytes // QUEUE_ENTRY_BYTES
        end = self.max_offset if end is None else min(end, self.max_offset)
        while (first := self.tail_start) < end:
            stop = min(end, first - first % per_file + per_file)
            self._segments.write(self.tail(first, stop), first * QUEUE_ENTRY_BYTES)
            self.advance_tail(stop - first)

    def paths_from(self, log_offset: int) -> list[str]:
        """Return the paths of all files that may hold entries of records at or after a log offset; at least the last.

        Cost: reads one place of each file but the first.
        """
        paths = []
        for start in reversed(self._segments.starts):
            paths.append(self._segments.path(start))
            before = start // QUEUE_ENTRY_BYTES - 1
            if before < self._held_from:
                break
            place = self.plausible_offset(before) if before < self.tail_start else None
            if place is not None and place < log_offset:
                break
        return paths

    def truncate_from(self, log_end: int, *, wipes: bool = False) -> None:
        """Remove entries whose record begins at or after `log_end`.

        After a power loss, entries that were not synced may be written, missing or torn. `wipes` zeroes everything
        after the remaining entries, and syncs that. Otherwise removed entries might come back with the next power
        loss, and be taken for entries of the messages written in their place.
        """
        first = self._segments.start // QUEUE_ENTRY_BYTES
        high = self.max_offset
        if not wipes and first < high and self.last_log_end <= log_end and self.ends_plausibly:
            return
        low = self.first_at_or_after(log_end, self._before(log_end, first, high), high)
        while low < high and self._is_before(low, log_end) and self._continues(low, first):
            low += 1  # a neighbour of an implausible entry
        while low > first and not (self._is_before(low - 1, log_end) and self._continues(low - 1, first)):
            low -= 1
        self._files.forget_ahead(self)
        if wipes:
            self._segments.wipe(min(low, self.tail_start) * QUEUE_ENTRY_BYTES)
        if low >= self.tail_start:
            self.cut_tail(low)
        else:
            self.start_tail(low)
            self._segments.truncate(low * QUEUE_ENTRY_BYTES)
        self.min_offset = min(self.min_offset, low)
        self.last_log_end = self.log_end_before(low)

    def _before(self, log_offset: int, low: int, high: int) -> int:
        """Return one of the entries `[low, high)`, near `high`, whose record is before a log offset; else `low`."""
        step = 1
        while step < high - low:
            place = self.plausible_offset(high - step)
            if place is not None and place < log_offset:
                return high - step
            step *= 2
        return low

    def _is_before(self, queue_offset: int, log_end: int) -> bool:
        found = self.entry(queue_offset)
        return found.size > 0 and 0 <= found.log_offset < log_end

    def _continues(self, queue_offset: int, first: int) -> bool:
        """Whether an entry continues the entry before it: a torn entry, and one after a gap, does not."""
        found = self.entry(queue_offset)
        if found.size <= 0 or queue_offset == first or found.is_hole:
            return found.size > 0
        before = self.entry(queue_offset - 1)
        return before.size > 0 and (before.is_hole or found.log_offset >= before.log_offset + before.size)

    def correct_min(self, log_start: int) -> None:
        """Move `min_offset` to the first entry at or after `log_start`; delete files that end before it."""
        self.raise_min(log_start)
        while len(self._segments.starts) > 1 and self._segments.starts[1] <= self.min_offset * QUEUE_ENTRY_BYTES:
            self._segments.drop_first()

    def raise_min(self, log_start: int) -> None:
        """Move `min_offset` to the first entry at or after a log offset up to which the log will be deleted."""
        low, high = self.min_offset, self.max_offset
        if low < high and ((place := self.plausible_offset(low)) is None or place < log_start):
            self.min_offset = self.first_at_or_after(log_start, low, high)

    def destroy(self) -> None:
        """Delete the files."""
        self.close()
        self._segments.destroy()

    def close(self) -> None:
        """Drop all entries in memory, and close the files, for the caller to delete."""
        self._files.forget_ahead(self)
        self.start_tail(self.max_offset)
        self._segments.close()


def queue_directory(topic: str, queue_id: int) -> str:
    """Return the directory of a queue's files."""
    return f"consumequeue/{topic}/{queue_id}"


def unpack_entries(entries: bytes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the log offsets and the sizes of packed entries; plain tuples, which cost two integers per entry."""
    numbers = _packer(len(entries) // QUEUE_ENTRY_BYTES).unpack_from(entries)
    return numbers[0::3], numbers[1::3]


def around(low: int, high: int) -> Iterator[int]:
    """Yield numbers of `[low, high)` from the middle outwards, at growing distances, then both ends; some repeat.

    Yields about 2·log2(high - low) numbers.
    """
    middle, step = (low + high) // 2, 1
    yield middle
    while step < high - low:
        yield from (number for number in (middle + step, middle - step) if low <= number < high)
        step *= 2
    yield from (low, high - 1)


@lru_cache(maxsize=1024)
def _packer(count: int) -> Struct:
    """Return a Struct for `count` entries."""
    return Struct(">" + "qiq" * count)


def _hole(end: int, log_offset: int, log_file_bytes: int) -> Entry:
    """Return the entry for holes between a record that ends at `end` and the next one, at `log_offset`.

    RocketMQ finds no message where a size reaches beyond the file of the log, and goes on with the next file; so it
    passes a hole if the next record is in a later file. If that is in the same file, it must not: an integer overflow
    in its check of HOLE_SIZE_MAX makes it fail instead.
    """
    is_first = 0 < end == log_offset - log_offset % log_file_bytes
    place = end - 1 if is_first else end  # at the beginning of a file nothing overflows
    is_passed = place // log_file_bytes < log_offset // log_file_bytes and log_file_bytes <= HOLE_SIZE_MIN
    size = HOLE_SIZE_MAX - place % log_file_bytes if is_passed else HOLE_SIZE_MAX
    return Entry(place, size, 0 if size == HOLE_SIZE_MAX else size)
