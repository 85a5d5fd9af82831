"""Bytes that a log should have and its files lack: gaps between files, and losses at both ends by the store's notes.

    between   a file is missing, or shorter than the others
    end       the last file was cut off, or the log ends before the offset up to which its broker had stored it
              (`tandemq.marks`): a broker refuses to start on such a log
    start     queue files that have entries of missing bytes only, which retention would have deleted

A log that begins later than at 0 is otherwise no fault: retention deletes the first files, and records nothing about
it. Source: docs/guides/pipeline.md, "Incomplete logs".
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, cast

from tandemq.boundary import Disk
from tandemq.codec.record.entries import BLANK_BYTES_MIN, QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from tandemq.spark.sources.log.files import LogFileReader, LogFiles, StoreFiles, log_end, open_log
from tandemq.storage.checkpoint import read_marks


class Gap(NamedTuple):
    """Log offsets `[start, end)` whose bytes are missing; `why` completes "log offsets [0, 10) …"."""

    start: int
    end: int
    why: str


class LogBounds(NamedTuple):
    """End of the records of a log, and all that is missing of it."""

    end: int
    gaps: list[Gap]


def log_bounds(files: LogFiles) -> LogBounds:
    """Find the end of a log, and its gaps. Cost: as `log_end`; of a local store a listing per consume queue too, unless
    the log begins at 0."""
    stored = stored_end(files)
    with LogFileReader(files) as read:
        end = log_end(read)
        behind = list(gaps_behind(read, end, stored))
    return LogBounds(end, [*gaps_before(files), *gaps_between(files, files.start, end), *behind])


def gaps_between(files: LogFiles, start: int, end: int) -> Iterator[Gap]:
    """Yield the gaps in `[start, end)`, one per file, or per series of missing ones; `end` may be behind the files."""
    gap_start = start
    while (gap_start := files.gap_after(gap_start)) < end:
        first = gap_start - gap_start % files.segment_bytes
        if files.file_end(gap_start) > first:
            following = first + files.segment_bytes
        else:
            following = next((file_start for file_start in files.starts if file_start > gap_start), end)
        stop = min(following, end)
        yield Gap(gap_start, stop, describe_gap(files, gap_start, stop))
        gap_start = stop


def describe_gap(files: LogFiles, start: int, end: int) -> str:
    """Return why a gap is one: the reason of `Gap`."""
    size = files.segment_bytes
    first = start - start % size
    if (present := files.file_end(start) - first) > 0:
        return f"are missing: {files.name(first)} has {present} of {size} bytes"
    last = (end - 1) - (end - 1) % size
    names = files.name(first) if last == first else f"{files.name(first)} to {files.name(last)}"
    return f"are missing: there is no file {names}"


def stored_end(files: LogFiles) -> int:
    """Return the offset up to which a broker has stored its log, 0 if it is unknown. Call it before `log_end`."""
    marks = read_marks(cast(Disk, StoreFiles(files.store)))
    return 0 if marks is None else max(marks.synced, marks.written if marks.clean else 0)


def gaps_behind(read: LogFileReader, end: int, stored: int) -> Iterator[Gap]:
    """Yield the gaps at the end of a log: the rest of a last file that was truncated, and the bytes between the last
    record and the end according to the marks. Both may name the same bytes.

    Args:
        end: as `log_end`.
        stored: as `stored_end`.
    """
    files = read.files
    file_end = files.file_end(files.starts[-1])
    if file_end < files.capacity_end and read(end, BLANK_BYTES_MIN) != bytes(BLANK_BYTES_MIN):
        yield Gap(file_end, files.capacity_end, describe_gap(files, file_end, files.capacity_end))
    if end < stored:
        # The broker may have begun another file between the listing of the files and the marks.
        with LogFileReader(open_log(files.store)) as again:
            end = max(end, log_end(again))
    if end < stored:
        yield Gap(end, stored, f"are missing: tandemq.marks has the log up to {stored}")


def gaps_before(files: LogFiles) -> Iterator[Gap]:
    """Yield the gap before the start of a log, if consume queues of a local store show it."""
    if files.start == 0 or not files.store.is_local:
        return
    queues = files.store.path.glob("consumequeue/*/*")
    known = [found for queue in queues if (found := _outdated_file(queue, files.start)) is not None]
    if known:
        start, name = min(known)
        yield Gap(start, files.start, f"are missing: retention would have deleted {name} together with their files")


def _outdated_file(queue: Path, log_start: int) -> tuple[int, str] | None:
    """Return the first log offset in the first file of a queue, and the file's path, if all of its records are before
    the start of the log and other files follow: brokers delete such files together with the log's."""
    files = sorted(file for file in queue.glob("*") if file.name.isdigit())
    if len(files) < 2:
        return None
    try:
        data = files[0].read_bytes()
    except FileNotFoundError:
        return None  # retention is at work
    if len(data) < QUEUE_ENTRY_BYTES:
        return None
    (first, first_size, _), (last, last_size, _) = (
        QUEUE_ENTRY.unpack_from(data, position) for position in (0, len(data) - QUEUE_ENTRY_BYTES)
    )
    is_outdated = first_size > 0 and last_size > 0 and first <= last < log_start
    return (first, str(files[0])) if is_outdated else None
