"""Opening a store after a clean stop or a crash: what is trusted, what is checked, what is cut.

    1  where to begin: behind what is known to be complete (marks), else by RocketMQ's checkpoint, else at the start
    2  queues and index drop what lies behind that point
    3  the log is walked from there; every valid record is dispatched
    4  at a fault: valid records behind it mean damage (reported, left in place, walked around); none mean a torn tail,
       which is cut and zeroed

Source: docs/internals/storage.md, "recovery".
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tandemq.boundary import Disk, File
from tandemq.codec.record.record import parse_record
from tandemq.errors import OffsetGone, StoreDamaged, StoreError
from tandemq.storage.checkpoint import REBUILDING, Checkpoint, Marks, read_checkpoint, read_marks, write_checkpoint
from tandemq.storage.consume_queue import PREFILL_SIZE, ConsumeQueue
from tandemq.storage.log.scan import Walker, find_next_record
from tandemq.storage.store import Store, StoreConfig

log = logging.getLogger(__name__)
ABORT = "abort"
LOST = b"may have lost\n"
"""Content of `abort` from such a start until `loss_noted`."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What opening found. `may_have_lost`: the machine went down, so unsynced bytes may be gone."""

    clean: bool
    may_have_lost: bool
    checked_from: int
    log_end: int
    cut_bytes: int
    records: int


def open_store(disk: Disk, config: StoreConfig) -> tuple[Store, Recovered]:
    """Open a store directory.

    Raises:
        StoreDamaged: files are missing or have the wrong length.
        DiskFailed: they cannot be read or written.
    """
    unclean = disk.exists(ABORT)
    marks = read_marks(disk)
    store = Store(disk, config)
    is_new = not store.log.segment_starts and marks is None
    machine_stayed_up = marks is not None and marks.boot_id == config.boot_id and config.boot_id != ""
    may_have_lost = disk.read(ABORT) == LOST or (unclean and not machine_stayed_up and not is_new)
    disk.replace(ABORT, LOST if may_have_lost else b"")
    begin = _begin(store, marks, unclean=unclean, machine_stayed_up=machine_stayed_up)
    machine_went_down = unclean and marks is not None and not machine_stayed_up
    tail_from = _tail_from(store, marks, begin) if machine_went_down else None
    is_exact = not machine_went_down and _has_entries_of(store, marks, begin)
    if not is_exact:
        ends = {queue: queue.max_offset for queue in store.queues.values()}
        _forget_behind(store, begin, unclean=unclean)
        if marks is None and not unclean:
            begin = _begin_of_cut(store, ends, begin)
    if unclean and store.index is not None and not store.index.recover(begin):
        _note_rebuild(store, marks)
        store.index.drop_all()
    if _must_rebuild(store, marks, begin):
        log.warning("store: queues have not the entries they had at %d; rebuilding them from the log", begin)
        _empty_queues(store, marks, begin)
        begin = store.log.start
    if any(_lacks_beginning(store, queue) for queue in store.queues.values()):
        log.warning("store: the first entries of some queues are missing; rebuilding all queues from the log")
        _empty_queues(store, marks, begin)
        begin = store.log.start
    if _index_missing(store, begin):
        _note_rebuild(store, marks)
        begin = store.log.start
    records = _walk(store, begin, tail_from=tail_from)
    if any(_begins_late(store, queue, begin) for queue in store.queues.values()) or (
        marks is not None and store.log.end >= marks.written and store.entries_total() < marks.entries
    ):
        records += _rebuild_queues(store, marks, begin, tail_from=tail_from)
        begin = store.log.start
    if marks is not None and store.log.end < marks.synced:
        raise StoreDamaged(
            f"the log ends at {store.log.end}, but was on the device up to {marks.synced}: a file is gone or damaged",
            hint="put the file back, or take a copy of its twin's store, or delete tandemq.marks to begin without the "
            "messages that are gone",
        )
    held = store.log.segment_starts
    end = store.log.end
    cut = 0
    if held:
        cut = _stale_bytes(store, end)
    synced = min(marks.synced if marks else 0, end)
    if unclean:
        store.log.wipe(end)
    store.log.open_at(end, flushed=synced if unclean else end)
    if not is_exact:
        _forget_behind(store, end, unclean=False)
    store.write_queues()
    for queue in store.queues.values():
        queue.next_offset = queue.max_offset
        queue.correct_min(store.log.start)
        _check_last(store, queue)
    _sync_from(store, min(synced, begin))
    store.marks = Marks(end, end, store.entries_total(), boot_id=config.boot_id)
    store.sync_marks()
    recovered = Recovered(not unclean, may_have_lost, begin, end, cut, records)
    log.info("store: opened log=[%d,%d) checked_from=%d records=%d cut=%d clean=%s may_have_lost=%s",
             store.log.start, end, begin, records, cut, not unclean, may_have_lost)  # fmt: skip
    return store, recovered


def loss_noted(disk: Disk) -> None:
    """What follows from `Recovered.may_have_lost` is saved; until then every start finds it anew.

    Raises:
        DiskFull, DiskFailed: that could not be written.
    """
    if disk.read(ABORT) == LOST:
        disk.replace(ABORT, b"")


def _sync_from(store: Store, log_offset: int) -> None:
    """Sync what a killed process had written and not synced, and what was made anew: from here on it counts as flushed.

    Queues and index too, of records from `log_offset` on: nobody else remembers that their files were written to.
    """
    store.flush()
    paths = [path for queue in store.queues.values() for path in queue.paths_behind(log_offset)]
    if store.index is not None:
        paths += [file.path for file in store.index.files if file.end_offset >= log_offset]
    for path in paths:
        store.disk.open(path).datasync()


def _begin(store: Store, marks: Marks | None, *, unclean: bool, machine_stayed_up: bool) -> int:
    """Offset from which the log must be walked; a record boundary."""
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
    """Offset from which on nothing was known to be on the device: a fault before it is damage, and no torn tail."""
    if marks is not None and marks.synced >= store.log.start:
        return max(begin, marks.synced)
    starts = store.log.segment_starts
    return max(begin, _begin_by_checkpoint(store, starts, unclean=True)) if starts else begin


def _begin_by_checkpoint(store: Store, starts: list[int], *, unclean: bool) -> int:
    capacity_end = starts[-1] + store.config.segment_bytes
    ends = [queue.last_log_end for queue in store.queues.values()]
    entered = max((end for end in ends if end <= capacity_end), default=0)  # a damaged last entry may name any place
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
    """Whether a record ends at `offset`, judged by what begins there or by the last entry of some queue."""
    if offset == store.log.start or offset % store.config.segment_bytes == 0:
        return True
    data = store.record_at_raw(offset)
    if data and not isinstance(parse_record(data, 0, len(data)), str):
        return True
    return any(queue.last_log_end == offset and _has_last_record(store, queue) for queue in store.queues.values())


def _has_last_record(store: Store, queue: ConsumeQueue) -> bool:
    """Whether the record of a queue's last entry is in the log."""
    last = queue.entry(queue.max_offset - 1)
    data = store.record_at_raw(last.log_offset)
    record = parse_record(data, 0, len(data))
    return not isinstance(record, str) and (record.log_offset, record.size) == (last.log_offset, last.size)


def _forget_behind(store: Store, offset: int, *, unclean: bool) -> None:
    for queue in store.queues.values():
        queue.truncate_behind(offset, wipes=unclean)


def _index_missing(store: Store, begin: int) -> bool:
    """Whether the index lacks records before `begin` that queues know: its files were deleted."""
    if store.index is None or begin <= store.log.start or store.index.files:
        return False
    return any(queue.max_offset > queue.min_offset for queue in store.queues.values())


def _has_entries_of(store: Store, marks: Marks | None, begin: int) -> bool:
    """Whether queues have exactly the entries that were noted when the log ended at `begin`.

    Nothing is to be cut then, and damaged entries stay in place for the scrubber.
    """
    return marks is not None and begin == marks.written and store.entries_total() == marks.entries


def _begin_of_cut(store: Store, ends: dict[ConsumeQueue, int], begin: int) -> int:
    """Offset from which the log must be walked, since queues lost entries of records before `begin`: damaged ones."""
    cut = [queue.last_log_end for queue, end in ends.items() if queue.max_offset < end]
    return max(store.log.start, min([begin, *cut]))


def _check_last(store: Store, queue: ConsumeQueue) -> None:
    """Note a damaged last entry; its log offset must not be taken for the end of the queue's records."""
    last = queue.max_offset - 1
    if last < queue.min_offset:
        return
    if queue.last_log_end > store.log.end or queue.place(last) is None:
        store.suspect_entries.append((queue, last))
        log.error("store: the last entry of topic=%s queue=%d, %d, is damaged; it stays for the scrubber",
                  queue.topic, queue.queue_id, last)  # fmt: skip
    queue.last_log_end = min(queue.last_log_end, store.log.end)


def _must_rebuild(store: Store, marks: Marks | None, begin: int) -> bool:
    """Whether queues have other entries than at `begin`, or were about to be rebuilt when that was interrupted."""
    if marks is None:
        return False
    return marks.entries == REBUILDING or (begin == marks.written and store.entries_total() != marks.entries)


def _lacks_beginning(store: Store, queue: ConsumeQueue) -> bool:
    """Whether a queue lacks a beginning that the log still has: its first file was deleted."""
    if not queue.min_offset or queue.max_offset <= queue.min_offset:
        return False
    first, place = queue.entry(queue.min_offset), queue.place(queue.min_offset)
    if place is None or first.size == PREFILL_SIZE:  # damaged, or a hole
        return False
    starts, segment = store.log.segment_starts, store.config.segment_bytes
    return store.log.start + segment <= place < (starts[-1] + segment if starts else 0)


def _begins_late(store: Store, queue: ConsumeQueue, begin: int) -> bool:
    """Whether the walk from `begin` met a queue for the first time in its middle: its files were deleted."""
    if begin <= store.log.start or not queue.min_offset or queue.max_offset <= queue.min_offset:
        return False
    return begin <= (queue.place(queue.min_offset) or 0) < store.log.end


def _note_rebuild(store: Store, marks: Marks | None) -> None:
    """Queues or index are about to be made anew: if that is interrupted the next start does it, whatever it finds."""
    write_checkpoint(store.disk, Checkpoint())
    if marks is not None:
        store.marks = replace(marks, entries=REBUILDING)
        store.sync_marks()


def _empty_queues(store: Store, marks: Marks | None, begin: int) -> None:
    """Prepare all queues for a walk through the whole log.

    Entries of records that the log has no more stay: they tell which queue offsets were given out.
    """
    _note_rebuild(store, marks)
    for key, queue in list(store.queues.items()):
        if _lacks_beginning(store, queue) or _begins_late(store, queue, begin):
            queue.destroy()
            del store.queues[key]
        else:
            queue.truncate_behind(store.log.start, wipes=True)
    store.dirty_queues.clear()


def _rebuild_queues(store: Store, marks: Marks | None, begin: int, *, tail_from: int | None) -> int:
    """Make all queues anew from the whole log, and the index if it begins at `begin`; returns how many records."""
    log.warning("store: queues are missing entries; rebuilding them from the log")
    _empty_queues(store, marks, begin)
    store.damaged.clear()
    if store.index is not None:
        store.index.absorb()
        if store.index.files and store.index.files[0].begin_offset >= begin:
            store.index.recover(store.log.start)
    return _walk(store, store.log.start, tail_from=tail_from)


def _walk(store: Store, begin: int, *, tail_from: int | None) -> int:
    """Dispatch every valid record from `begin`; leaves the log's end where the valid bytes end.

    From `tail_from` on nothing was known to be on the device when the machine went down: there, valid records may
    stand behind missing ones, and all of that is torn tail. It is set aside, so that nothing is destroyed.
    """
    if not store.log.segment_starts:
        return 0
    capacity_end = store.log.segment_starts[-1] + store.config.segment_bytes

    def read(offset: int, size: int) -> bytes:
        try:
            return store.log.read_raw(offset, size)
        except OffsetGone:
            return b""

    walker = Walker(read, store.config.segment_bytes, begin)
    count = 0
    while True:
        for record, _, _ in walker.records():
            store.dispatch_found(record)
            count += 1
        resumes = None
        if walker.position < capacity_end and not store.log.is_blank_from(walker.position):
            resumes = find_next_record(read, walker.position, capacity_end, store.config.segment_bytes)
        if resumes is None:
            break
        if tail_from is not None and walker.position >= tail_from:
            path = _set_aside(store, walker.position, capacity_end)
            log.warning("store: torn tail log=[%d,…) set aside in %s; valid records stood behind bytes that were not "
                        "synced", walker.position, path)  # fmt: skip
            break
        store.damaged.append((walker.position, resumes, walker.fault or ""))
        log.error("store: damage log=[%d,%d) reason=%s; the bytes are left in place", walker.position, resumes,
                  walker.fault)  # fmt: skip
        _keep_place(store, read(walker.position, resumes - walker.position), walker.position)
        walker.position = resumes
    store.log.end = walker.position
    return count


def _keep_place(store: Store, data: bytes, log_offset: int) -> None:
    """A damaged record whose head can still be read keeps its place in its queue; its offset is not given out again."""
    record = parse_record(data, 0, len(data))
    if isinstance(record, str) or record.log_offset != log_offset:
        return
    queue = store.queues.get((record.topic.decode("utf-8", "replace"), record.queue_id))
    if queue is not None and queue.keep_place(record.queue_offset):
        store.dirty_queues[queue] = None


def _stale_bytes(store: Store, end: int) -> int:
    """Bytes that are not zero behind the end, in its file: a torn tail."""
    if end >= store.log.segment_starts[-1] + store.config.segment_bytes:
        return 0
    tail = store.log.read_raw(end, 1 << 20)
    return len(tail.rstrip(b"\0"))


def _set_aside(store: Store, start: int, end: int) -> str:
    """Copy `[start, end)` of the log files into `set-aside/<start>` and sync it; zeroes are left out.

    A log may be cut at the same place again, with other bytes behind it: later copies are `<start>.1`, `<start>.2` ….
    What is there already is not copied again. Returns the copy's path.
    """
    first = path = f"set-aside/{start:020d}"
    number = 0
    while store.disk.exists(path):
        held = store.disk.open(path)
        if all(_padded(held, at - start, len(data)) == data for at, data in _bytes_of(store, start, end)):
            return path
        number += 1
        path = f"{first}.{number}"
    copy = store.disk.open(path, create=True)
    try:
        for at, data in _bytes_of(store, start, end):
            if data.strip(b"\0"):
                copy.pwrite(data, at - start)
        copy.datasync()
    except StoreError:
        store.disk.remove(path)
        raise
    return path


def _bytes_of(store: Store, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Log offsets and bytes of `[start, end)`, 1 MiB at a time or to the end of a file."""
    while start < end:
        data = store.log.read_raw(start, min(1 << 20, end - start))
        yield start, data
        start += len(data)


def _padded(file: File, position: int, size: int) -> bytes:
    return file.pread(size, position).ljust(size, b"\0")


def set_aside_tail(store: Store, log_end: int) -> None:
    """Copy the log from `log_end` on into `set-aside/<offset>`, then cut log, queues and index there.

    A crash in between leaves the log whole: the copy is made and synced first, and both are repeated.
    """
    end = store.log.written_end
    path = _set_aside(store, log_end, end)
    store.marks.written = min(store.marks.written, log_end)
    store.marks.synced = min(store.marks.synced, log_end)
    store.sync_marks()
    log.warning("store: log=[%d,%d) set aside in %s and cut", log_end, end, path)
    for queue in store.queues.values():
        queue.truncate_behind(log_end, wipes=True)
    if store.index is not None:
        store.index.forget_behind(log_end)
        if not store.index.recover(log_end):
            store.index.drop_all()
    store.log.wipe(log_end)
    store.log.open_at(log_end, flushed=store.log.flushed_offset)
    store.write_queues()
    store.marks.written = log_end
    store.marks.entries = store.entries_total()
    store.note_marks()
