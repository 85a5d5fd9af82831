"""Recovery: opening a store after a clean stop or a crash.

    1  choose the offset to begin at: the marks' offset, else one by RocketMQ's checkpoint, else the log's start
    2  remove queue and index entries of records after that offset
    3  walk the log from there and dispatch every valid record
    4  at a fault: if valid records follow, it is damage, which is reported, left in place and skipped; otherwise it is
       a torn tail, which is truncated and zeroed

Source: docs/internals/storage.md, "recovery".
"""

import logging
from dataclasses import dataclass, replace

from tandemq.boundary import Disk
from tandemq.codec.record.entries import BLANK_BYTES_MIN, BLANK_MAGIC
from tandemq.codec.record.record import parse_record, peek
from tandemq.errors import OffsetGone, StoreDamaged
from tandemq.storage.checkpoint import REBUILDING, Checkpoint, Marks, read_checkpoint, read_marks, write_checkpoint
from tandemq.storage.consume_queue import ConsumeQueue
from tandemq.storage.key_index import IndexGap
from tandemq.storage.log.scan import DamagedRange, Walker, damaged_record, find_next_record
from tandemq.storage.quarantine import quarantine
from tandemq.storage.store import Store, StoreConfig

log = logging.getLogger(__name__)
ABORT = "abort"
GAP_RECORDS_MAX = 1_000
"""Number of records read to find out whether the index lacks one: most have keys."""
LOST = b"may have lost\n"
"""Content of `abort` after a start with `may_have_lost`, until `clear_loss_flag` is called."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """Result of recovery."""

    clean: bool
    """The store had been closed cleanly."""
    may_have_lost: bool
    """The machine went down, so bytes that were not synced may be lost."""
    checked_from: int
    """Log offset from which on records were verified."""
    log_end: int
    truncated_bytes: int
    """Size of the torn tail."""
    records: int
    """Number of verified records."""


def open_store(disk: Disk, config: StoreConfig) -> tuple[Store, Recovered]:
    """Open a store directory.

    Raises:
        StoreDamaged: files are missing or have the wrong length.
        DiskFailed: files cannot be read or written.
    """
    opening = _Opening(disk, config)
    opening.note_start()
    opening.choose_begin()
    opening.drop_entries_from_begin()
    opening.prepare_rebuilds()
    opening.walk_log()
    opening.check_end()
    opening.open_log()
    opening.settle_queues()
    opening.sync()
    return opening.store, opening.report()


class _Opening:
    """One run of recovery: its steps, in the order in which `open_store` calls them, and their shared state."""

    def __init__(self, disk: Disk, config: StoreConfig) -> None:
        """Read the marks and load the files."""
        self._disk = disk
        self._unclean = disk.exists(ABORT)
        self._marks = read_marks(disk)
        self.store = Store(disk, config)
        self._machine_stayed_up = (
            self._marks is not None and self._marks.boot_id == config.boot_id and config.boot_id != ""
        )
        is_new = not self.store.log.segment_starts and self._marks is None
        self._may_have_lost = disk.read(ABORT) == LOST or (self._unclean and not self._machine_stayed_up and not is_new)
        self._begin = 0
        """Log offset at which the walk begins; the log's start if queues or index are rebuilt."""
        self._tail_from: int | None = None
        """Log offset at which a torn tail may begin; None if the machine did not go down."""
        self._is_exact = False
        """Whether the queues have exactly the number of entries stated by the marks: then none is removed."""
        self._records = 0
        self._truncated_bytes = 0
        self._synced = 0

    def note_start(self) -> None:
        """Create `abort`, which a clean stop deletes."""
        self._disk.replace(ABORT, LOST if self._may_have_lost else b"")

    def choose_begin(self) -> None:
        """Find the log offset below which the store is known to be complete."""
        store, marks = self.store, self._marks
        self._begin = _begin(store, marks, unclean=self._unclean, machine_stayed_up=self._machine_stayed_up)
        machine_went_down = self._unclean and marks is not None and not self._machine_stayed_up
        if machine_went_down:
            self._tail_from = _tail_from(store, marks, self._begin)
        else:
            self._is_exact = _has_entries_of(store, marks, self._begin)

    def drop_entries_from_begin(self) -> None:
        """Remove queue and index entries of records that the walk will dispatch again."""
        store = self.store
        if self._marks is not None and self._begin < self._marks.synced:
            _note_rebuild(store, self._marks)  # if this start is interrupted, the next may begin at the synced mark
        if not self._is_exact:
            ends = {queue: queue.max_offset for queue in store.queues.values()}
            _truncate_queues(store, self._begin, wipes=self._unclean and not self._machine_stayed_up)
            if self._marks is None and not self._unclean:
                self._begin = _begin_of_dropped(store, ends, self._begin)
        if self._unclean and store.index is not None and not store.index.recover(self._begin):
            _note_rebuild(store, self._marks)
            store.index.drop_all()

    def prepare_rebuilds(self) -> None:
        """Empty the queues if their entries differ from the marks; rebuilding them or the index needs the whole log."""
        store = self.store
        is_index_incomplete = _lacks_keys(store, self._begin)
        if _must_rebuild(store, self._marks, self._begin):
            log.warning(
                "store: the queues' entries differ from the marks at %d; rebuilding the queues from the log",
                self._begin,
            )
            self._empty_queues()
        if any(_lacks_beginning(store, queue) for queue in store.queues.values()):
            log.warning("store: the first entries of some queues are missing; rebuilding all queues from the log")
            self._empty_queues()
        if is_index_incomplete:
            log.warning("store: the index lacks keys of records; rebuilding it from the log")
            _note_rebuild(store, self._marks)
            assert store.index is not None, "it lacks keys"
            store.index.drop_all()
            self._begin = store.log.start
        elif _index_missing(store, self._marks, self._begin):
            _note_rebuild(store, self._marks)
            self._begin = store.log.start

    def _empty_queues(self) -> None:
        _empty_queues(self.store, self._marks, self._begin)
        self._begin = self.store.log.start

    def walk_log(self) -> None:
        """Dispatch the records from `_begin` on; if queues turn out incomplete, again from the log's start."""
        store, marks = self.store, self._marks
        self._records = _walk(store, self._begin, tail_from=self._tail_from)
        begins_late = any(_begins_late(store, queue, self._begin) for queue in store.queues.values())
        if begins_late or (
            marks is not None and store.log.end >= marks.written and store.entries_total() < marks.entries
        ):
            self._records += _rebuild_queues(store, marks, self._begin, tail_from=self._tail_from)
            self._begin = store.log.start

    def check_end(self) -> None:
        """Raise StoreDamaged if the log ends before the offset that it had reached by the marks."""
        store, marks = self.store, self._marks
        if marks is None:
            return
        kernel_has_all = self._machine_stayed_up or not self._unclean
        known_end = marks.written if kernel_has_all else marks.synced
        if store.log.end < known_end:
            raise StoreDamaged(
                f"the log ends at {store.log.end}, but had reached {known_end}: a file is missing or damaged",
                hint="restore the file, or copy the store of a replica, or delete tandemq.marks to start without the "
                "missing messages",
            )

    def open_log(self) -> None:
        """Truncate the torn tail, and set the log's end to the end of the last valid record."""
        store, end = self.store, self.store.log.end
        if store.log.segment_starts:
            self._truncated_bytes = _stale_bytes(store, end)
        self._synced = min(self._marks.synced if self._marks else 0, end)
        if self._unclean:
            store.log.wipe(end)
        store.log.open_at(end, flushed=self._synced if self._unclean else end)
        if not self._is_exact:
            _truncate_queues(store, end, wipes=False)

    def settle_queues(self) -> None:
        """Set the queues' offsets, and write their entries unless they are left to the first flush."""
        store = self.store
        if self._records == 0:
            store.take_last_time()
        if not self._is_left_to_upkeep:
            store.write_queues()
        elif not store.dirty_queues:
            store.queued_ms = store.last_store_ms
        for queue in store.queues.values():
            queue.next_offset = queue.max_offset
            queue.correct_min(store.log.start)
            _check_last(store, queue)

    @property
    def _is_left_to_upkeep(self) -> bool:
        """Whether writing and syncing of queues and index is left to the periodic flush and sync."""
        return self._unclean and self._machine_stayed_up and self._begin >= self._synced

    def sync(self) -> None:
        """Sync the log, then queue and index files, then the marks.

        If the machine stayed up, queue and index files are left to the periodic sync: the kernel has their bytes, as it
        would if the process had not been killed. The entries of the walk stay in memory until the first flush: with
        many queues writing them would delay the start. The synced mark stays before the first of their entries until
        then, so a power loss meanwhile has them rebuilt from the log. Otherwise all of them are synced here: after a
        crash of the machine nothing else tracks what it lost, and after a rebuild that began below the synced mark that
        mark would have to move down, and damage behind it would be taken for a torn tail.
        """
        store, end = self.store, self.store.log.end
        synced = self._synced
        store.flush()
        store.note_unsynced(min(synced, self._begin))
        if self._is_left_to_upkeep:
            written, entries = self._begin, store.entries_in_files()
        else:
            for path in store.take_unsynced(min(synced, self._begin)):
                store.disk.open(path).datasync()
            synced = written = end
            entries = store.entries_total()
        store.marks = Marks(synced, written, entries, boot_id=store.config.boot_id)
        store.sync_marks()
        if store.index is not None and store.index.files:  # complete, or rebuilt
            store.index.drop_unused()

    def report(self) -> Recovered:
        """Log and return the result."""
        store, end = self.store, self.store.log.end
        recovered = Recovered(
            not self._unclean, self._may_have_lost, self._begin, end, self._truncated_bytes, self._records
        )
        log.info(
            "store: opened log=[%d,%d) checked_from=%d records=%d cut=%d clean=%s may_have_lost=%s",
            store.log.start,
            end,
            self._begin,
            self._records,
            self._truncated_bytes,
            not self._unclean,
            self._may_have_lost,
        )
        return recovered


def clear_loss_flag(disk: Disk) -> None:
    """Record that the consequences of `Recovered.may_have_lost` are saved; until then every start reports it again.

    Raises:
        DiskFull, DiskFailed: `abort` could not be written.
    """
    if disk.read(ABORT) == LOST:
        disk.replace(ABORT, b"")


def _begin(store: Store, marks: Marks | None, *, unclean: bool, machine_stayed_up: bool) -> int:
    """Return the log offset from which on the log must be walked; a record boundary."""
    starts = store.log.segment_starts
    if not starts:
        return 0
    if marks is not None and marks.entries == REBUILDING:
        return store.log.start
    if marks is not None:
        trusted = marks.written if machine_stayed_up or not unclean or marks.clean else marks.synced
        if store.log.start <= trusted <= starts[-1] + store.config.segment_bytes and _is_boundary(store, trusted):
            return trusted
        if trusted < store.log.start:
            return store.log.start
        if trusted < starts[-1] + store.config.segment_bytes:
            return trusted - trusted % store.config.segment_bytes
    return _begin_by_checkpoint(store, starts, unclean=unclean)


def _tail_from(store: Store, marks: Marks | None, begin: int) -> int:
    """Return the log offset up to which the log was synced: a fault below it is damage, not a torn tail."""
    if marks is not None and marks.synced >= store.log.start:
        return max(begin, marks.synced)
    starts = store.log.segment_starts
    return max(begin, _begin_by_checkpoint(store, starts, unclean=True)) if starts else begin


def _begin_by_checkpoint(store: Store, starts: list[int], *, unclean: bool) -> int:
    capacity_end = starts[-1] + store.config.segment_bytes
    ends = [queue.last_log_end for queue in store.queues.values()]
    entered = max((end for end in ends if end <= capacity_end), default=0)  # a damaged last entry may name any offset
    if not unclean and store.queues and entered >= store.log.start and _is_boundary(store, entered):
        return entered
    checkpoint = read_checkpoint(store.disk)
    trusted_ms = min(checkpoint.log_ms, checkpoint.queue_ms) - 3000
    for start in reversed(starts):
        head = _first_store_time(store, start)
        if 0 < head <= trusted_ms and start <= entered:
            return start
    return starts[0]


def _first_store_time(store: Store, start: int) -> int:
    data = store.record_at_raw(start)
    record = parse_record(data, 0, len(data)) if data else "nothing there"
    return 0 if isinstance(record, str) or record.log_offset != start else record.store_ms


def _is_boundary(store: Store, offset: int) -> bool:
    """Whether a record ends at `offset`.

    Another one or the rest of a file begins there, or the record of a queue's last entry ends there.
    """
    segment_bytes = store.config.segment_bytes
    if offset == store.log.start or offset % segment_bytes == 0:
        return True
    blank = (segment_bytes - offset % segment_bytes).to_bytes(4) + BLANK_MAGIC.to_bytes(4)
    if store.log.read_raw(offset, len(blank)) == blank:
        return True
    data = store.record_at_raw(offset)
    if data and not isinstance(parse_record(data, 0, len(data)), str):
        return True
    return any(queue.last_log_end == offset and _has_last_record(store, queue) for queue in store.queues.values())


def _has_last_record(store: Store, queue: ConsumeQueue) -> bool:
    """Whether the record of a queue's last entry is in the log."""
    entry = queue.entry(queue.max_offset - 1)
    data = store.record_at_raw(entry.log_offset)
    record = parse_record(data, 0, len(data))
    return not isinstance(record, str) and (record.log_offset, record.size) == (entry.log_offset, entry.size)


def _truncate_queues(store: Store, offset: int, *, wipes: bool) -> None:
    for queue in store.queues.values():
        queue.truncate_from(offset, wipes=wipes)


def _index_missing(store: Store, marks: Marks | None, begin: int) -> bool:
    """Whether the index files were deleted although the queues have entries, and records may have keys."""
    if store.index is None or begin <= store.log.start or store.index.files:
        return False
    if marks is not None and marks.without_keys and begin == marks.written:
        return False
    return any(queue.max_offset > queue.min_offset for queue in store.queues.values())


def _lacks_keys(store: Store, begin: int) -> bool:
    """Whether the index lacks keys of records before `begin`, since one of its files is missing, empty or older.

    Only records next to those that begin and end its files are read, `GAP_RECORDS_MAX` in each place.
    """
    if store.index is None or not store.index.files:
        return False
    return any(_has_keys(store, gap) for gap in store.index.gaps(store.log.start, begin))


def _has_keys(store: Store, gap: IndexGap) -> bool:
    offset = gap.start
    for _ in range(GAP_RECORDS_MAX):
        if offset >= gap.end:
            return False
        data = store.record_at_raw(offset)
        if len(data) >= BLANK_BYTES_MIN and peek(data, 0)[1] == BLANK_MAGIC:
            offset += len(data)
            continue
        record = parse_record(data, 0, len(data))
        if isinstance(record, str) or record.log_offset != offset:
            return False
        if offset > gap.indexed and store.keys_of(record):
            return True
        offset += record.size
    return False


def _has_entries_of(store: Store, marks: Marks | None, begin: int) -> bool:
    """Whether the queues have as many entries as the marks state for a log that ends at `begin`.

    If so, no entry is removed, and damaged entries are left to the scrubber.
    """
    return marks is not None and begin == marks.written and store.entries_total() == marks.entries


def _begin_of_dropped(store: Store, ends: dict[ConsumeQueue, int], begin: int) -> int:
    """Return the log offset from which a walk restores the damaged entries that were removed before `begin`."""
    dropped = [queue.last_log_end for queue, end in ends.items() if queue.max_offset < end]
    return max(store.log.start, min([begin, *dropped]))


def _check_last(store: Store, queue: ConsumeQueue) -> None:
    """Report a damaged last entry to the scrubber, and limit the queue's last record end to the log's end."""
    queue_offset = queue.max_offset - 1
    if queue_offset < queue.min_offset:
        return
    if queue.last_log_end > store.log.end or not queue.ends_plausibly:
        store.suspect_entries.append((queue, queue_offset))
        log.error(
            "store: the last entry of topic=%s queue=%d, %d, is damaged; it stays for the scrubber",
            queue.topic,
            queue.queue_id,
            queue_offset,
        )
    queue.last_log_end = min(queue.last_log_end, store.log.end)


def _must_rebuild(store: Store, marks: Marks | None, begin: int) -> bool:
    """Whether the number of queue entries differs from the marks, or a rebuild was interrupted."""
    if marks is None:
        return False
    return marks.entries == REBUILDING or (begin == marks.written and store.entries_total() != marks.entries)


def _lacks_beginning(store: Store, queue: ConsumeQueue) -> bool:
    """Whether the queue's first file was deleted: the log still has records from before the queue's first entry."""
    if not queue.min_offset or queue.max_offset <= queue.min_offset:
        return False
    first, place = queue.entry(queue.min_offset), queue.plausible_offset(queue.min_offset)
    if place is None or first.is_hole:  # damaged, or a hole
        return False
    starts, segment = store.log.segment_starts, store.config.segment_bytes
    return store.log.start + segment <= place < (starts[-1] + segment if starts else 0)


def _begins_late(store: Store, queue: ConsumeQueue, begin: int) -> bool:
    """Whether all of a queue's files were deleted: its first entry comes from the walk, with an offset above 0."""
    if begin <= store.log.start or not queue.min_offset or queue.max_offset <= queue.min_offset:
        return False
    return begin <= (queue.plausible_offset(queue.min_offset) or 0) < store.log.end


def _note_rebuild(store: Store, marks: Marks | None) -> None:
    """Record that queues or index are being rebuilt, so that the next start completes an interrupted rebuild."""
    write_checkpoint(store.disk, Checkpoint())
    if marks is not None:
        store.marks = replace(marks, entries=REBUILDING)
        store.sync_marks()


def _empty_queues(store: Store, marks: Marks | None, begin: int) -> None:
    """Prepare all queues for a walk through the whole log.

    Entries of records deleted from the log are kept: they show which queue offsets are in use.
    """
    _note_rebuild(store, marks)
    for queue in list(store.queues.values()):
        if _lacks_beginning(store, queue) or _begins_late(store, queue, begin):
            queue.destroy()
            store.forget_queue(queue)
        else:
            queue.truncate_from(store.log.start, wipes=True)
    store.dirty_queues.clear()


def _rebuild_queues(store: Store, marks: Marks | None, begin: int, *, tail_from: int | None) -> int:
    """Rebuild all queues from the whole log, and the index if it begins at `begin`. Return the number of records."""
    log.warning("store: queues are missing entries; rebuilding them from the log")
    _empty_queues(store, marks, begin)
    store.damaged.clear()
    if store.index is not None:
        store.index.absorb()
        if store.index.files and store.index.files[0].begin_offset >= begin:
            store.index.recover(store.log.start)
    return _walk(store, store.log.start, tail_from=tail_from)


def _walk(store: Store, begin: int, *, tail_from: int | None) -> int:
    """Dispatch every valid record from `begin` on, set the log's end, and return the number of records.

    Bytes from `tail_from` on were not synced when the machine went down. There, valid records may follow missing ones;
    all of them belong to the torn tail, which is quarantined so that no record is destroyed.
    """
    if not store.log.segment_starts:
        return 0
    capacity_end = store.log.segment_starts[-1] + store.config.segment_bytes

    def read(offset: int, size: int) -> bytes:
        try:
            return store.log.read_raw(offset, size)
        except OffsetGone:
            return b""

    count, segment_bytes = 0, store.config.segment_bytes
    is_boundary = True
    """Whether a record is known to begin where the walk stops; not behind a record that may be of a damaged body."""

    def take_run(data: memoryview, records: int) -> None:
        nonlocal count
        store.dispatch_run(data)
        count += records

    walker = Walker(read, segment_bytes, begin, take_run=take_run)
    while True:
        for record, _, _ in walker.records():  # those that the engine leaves
            store.dispatch_found(record)
            count += 1
        resumes = None
        if walker.position < capacity_end and not store.log.is_blank_from(walker.position):
            damaged = damaged_record(read, walker.position, segment_bytes) if is_boundary else None
            start = walker.position + (damaged.body_end if damaged is not None else 0)
            resumes = find_next_record(read, start, capacity_end, segment_bytes, store.log.next_data)
            is_boundary = damaged is not None and resumes == walker.position + damaged.size
        if resumes is None:
            break
        if tail_from is not None and walker.position >= tail_from:
            path = quarantine(store, walker.position, capacity_end)
            log.warning(
                "store: torn tail log=[%d,…) quarantined in %s; valid records follow bytes that were not synced",
                walker.position,
                path,
            )
            break
        store.damaged.append(DamagedRange(walker.position, resumes, walker.fault or ""))
        log.error(
            "store: damage log=[%d,%d) reason=%s; the bytes are left in place", walker.position, resumes, walker.fault
        )
        _reserve_offset(store, read(walker.position, resumes - walker.position), walker.position)
        walker.position = resumes
    store.log.end = walker.position
    return count


def _reserve_offset(store: Store, data: bytes, log_offset: int) -> None:
    """Reserve the queue offset of a damaged record whose header is readable, so that no new message gets it."""
    record = parse_record(data, 0, len(data))
    if isinstance(record, str) or record.log_offset != log_offset:
        return
    queue = store.queues.get((record.topic.decode("utf-8", "replace"), record.queue_id))
    if queue is not None and queue.reserve_offset(record.queue_offset):
        store.dirty_queues[queue] = None


def _stale_bytes(store: Store, end: int) -> int:
    """Return the size of the torn tail: bytes up to the last nonzero one after `end`, at most 1 MiB."""
    if end >= store.log.segment_starts[-1] + store.config.segment_bytes:
        return 0
    tail = store.log.read_raw(end, 1 << 20)
    return len(tail.rstrip(b"\0"))
