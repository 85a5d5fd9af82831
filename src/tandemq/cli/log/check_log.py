"""Offline check of a store's commit log: read only, no broker needed, several ranges in parallel.

    commitlog/00…0   ├──── range ────┤├──── range ────┤      a worker process per range, at record boundaries
    commitlog/00…N   ├──── range ────┤├ zeroes: the log's end

A worker starts at the first valid record of its range and stops after the record that reaches the range's end. The next
range's first record must follow there; bytes in between are damage. Where no valid record follows at all, the log ends.
Sizes, magic, log offset, and the CRC of the whole record, or of the body if the record has none, are checked. Queue
entries can be compared at the same time (`check_queues`).

Source: docs/internals/storage.md, "recovery". Works on the stores of RocketMQ and TandemQ.
"""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from tandemq.cli.log.check_queues import QueueCheck, QueueComparison, Settings
from tandemq.codec.record.entries import BLANK_BYTES_MIN, BLANK_MAGIC
from tandemq.codec.record.record import peek
from tandemq.errors import StoreDamaged
from tandemq.replication.record_stream import RecordStream
from tandemq.storage.log.scan import find_next_record

RANGE_BYTES_MIN = 64 << 20
WINDOW_BYTES = 4 << 20
TAIL_LOOK_BYTES = 1 << 20
NAME_DIGITS = 20
SIZE_FIELD_BYTES = 4


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment file of the log."""

    path: str
    start: int
    size: int

    @property
    def end(self) -> int:
        """Log offset after its last byte."""
        return self.start + self.size


@dataclass(frozen=True, slots=True)
class LogDamage:
    """Log range `[start, end)` without a valid record. `is_tail`: no valid record follows in the log: a torn tail."""

    start: int
    end: int
    reason: str
    is_tail: bool = False


@dataclass(slots=True)
class CheckedRange:
    """Result of checking one range.

    segment, start: log offsets of the file and of the range
    first: log offset of the first record that begins in the range, -1 if none does
    end: log offset after the last valid record
    fault: why the records end at `end`, before the range's end; None if they do not
    written: log offset after the last byte of the range that is not zero
    """

    segment: int
    start: int
    first: int = -1
    end: int = -1
    fault: str | None = None
    written: int = 0
    records: int = 0
    bytes: int = 0
    damages: list[LogDamage] = field(default_factory=list)
    compared: QueueComparison | None = None
    """Comparison of its records with queue entries, if requested."""


@dataclass(slots=True)
class SegmentReport:
    """Result of checking one segment file."""

    segment: Segment
    records: int = 0
    bytes: int = 0
    damages: list[LogDamage] = field(default_factory=list)


def segments_of(store: Path) -> list[Segment]:
    """Return the segment files of a store's commit log, in order.

    Raises:
        StoreDamaged: there is no file, or one is missing or has another length.
    """
    directory = store / "commitlog"
    found = sorted(
        p for p in directory.glob("*") if p.name.isdigit() and len(p.name) == NAME_DIGITS and p.stat().st_size
    )
    if not found:
        raise StoreDamaged(f"{directory} contains no commit log", hint="give a broker's storePathRootDir")
    size = found[0].stat().st_size
    segments: list[Segment] = []
    for path in found:
        if path.stat().st_size != size:
            raise StoreDamaged(f"{path} has {path.stat().st_size} bytes, {found[0].name} has {size}")
        if segments and int(path.name) != segments[-1].end:
            raise StoreDamaged(f"{path} does not follow {segments[-1].path}", hint="a file in between is missing")
        segments.append(Segment(str(path), int(path.name), size))
    return segments


def verify(
    segments: list[Segment],
    *,
    jobs: int,
    progress: Callable[[int, int], None],
    queues: tuple[Settings, QueueComparison] | None = None,
) -> Iterator[SegmentReport]:
    """Check every segment file, and yield its report as soon as its end is classified as damage or as the log's end.

    Args:
        segments: from `segments_of`.
        jobs: number of worker processes.
        progress: called with the bytes done and the bytes in total.
        queues: compare queue entries too, and add the results to the `QueueComparison`.
    """
    ranges = [
        (segment, start, min(start + RANGE_BYTES_MIN, segment.end))
        for segment in segments
        for start in range(segment.start, segment.end, RANGE_BYTES_MIN)
    ]
    total = sum(segment.size for segment in segments)
    done_bytes = 0
    parts: dict[int, list[CheckedRange]] = {segment.start: [] for segment in segments}
    left = {segment.start: -(-segment.size // RANGE_BYTES_MIN) for segment in segments}
    waiting = list(segments)
    unended: list[_Joined] = []
    for checked, size in _results(ranges, jobs, queues[0] if queues is not None else None):
        if queues is not None and checked.compared is not None:
            queues[1].merge(checked.compared)
        done_bytes += size
        progress(done_bytes, total)
        parts[checked.segment].append(checked)
        left[checked.segment] -= 1
        while waiting and not left[waiting[0].start]:
            segment = waiting.pop(0)
            joined = _joined(segment, sorted(parts.pop(segment.start), key=lambda part: part.start))
            if joined.report.records:
                # Valid records follow, so the log did not end in the earlier files: their ends are damage.
                yield from (file.damaged() for file in unended)
                unended.clear()
            if joined.end < segment.end:
                unended.append(joined)
            else:
                yield joined.report
    yield from _end_of_log(unended)


def _end_of_log(unended: "list[_Joined]") -> Iterator[SegmentReport]:
    """Report the files that no valid record follows: the log ends in the first; its remaining data are a torn tail."""
    written = max((file.written for file in unended), default=0)
    for index, file in enumerate(unended):
        if index == 0 and written > file.end:
            file.report.damages.append(LogDamage(file.end, written, file.reason, is_tail=True))
        yield file.report


def _results(
    ranges: list[tuple[Segment, int, int]], jobs: int, queues: Settings | None
) -> Iterator[tuple[CheckedRange, int]]:
    for empty in (part for part in ranges if not _has_data(*part)):
        yield CheckedRange(empty[0].start, empty[1]), empty[2] - empty[1]
    ranges = [part for part in ranges if _has_data(*part)]
    if jobs == 1 or len(ranges) < 2:
        check = QueueCheck(queues) if queues is not None else None
        for part in ranges:
            yield check_range(*part, check), part[2] - part[1]
        return
    # Workers are spawned, because forking would copy the caller's threads and locks.
    context = get_context("spawn")
    with ProcessPoolExecutor(
        min(jobs, len(ranges)), mp_context=context, initializer=_begin_worker, initargs=(queues,)
    ) as pool:
        futures = {pool.submit(_check_in_worker, *part): part[2] - part[1] for part in ranges}
        for future in as_completed(futures):
            yield future.result(), futures[future]


def _has_data(segment: Segment, start: int, end: int) -> bool:
    """Return whether a range has data, that is, is not a hole of its sparse file."""
    with open(segment.path, "rb") as file:
        try:
            return segment.start + os.lseek(file.fileno(), start - segment.start, os.SEEK_DATA) < end
        except OSError:
            return False


@dataclass(slots=True)
class _Joined:
    """Combined result of the ranges of one file. `end`: log offset after its last valid record; `reason`: why there."""

    report: SegmentReport
    end: int
    reason: str
    written: int

    def damaged(self) -> SegmentReport:
        self.report.damages.append(LogDamage(self.end, self.report.segment.end, self.reason))
        return self.report


def _joined(segment: Segment, parts: list[CheckedRange]) -> _Joined:
    """Combine the ranges of a file; where a range does not start where the previous one ended, there is damage."""
    joined = _Joined(SegmentReport(segment), segment.start, "no record begins here", 0)
    report = joined.report
    for part in parts:
        report.records += part.records
        report.bytes += part.bytes
        joined.written = max(joined.written, part.written)
        if part.first < 0:
            continue
        if part.first > joined.end:
            report.damages.append(LogDamage(joined.end, part.first, joined.reason))
        report.damages += part.damages
        joined.end, joined.reason = part.end, part.fault or "no record begins here"
    if joined.end < segment.end and _is_blank(segment, joined.end):
        # The blank begins in a range without records, so that no worker has seen it.
        report.bytes += segment.end - joined.end
        joined.end = segment.end
    return joined


def _is_blank(segment: Segment, offset: int) -> bool:
    """Return whether the rest of a file is a blank record, which fills a file whose next record did not fit."""
    with open(segment.path, "rb") as file:
        file.seek(offset - segment.start)
        head = file.read(BLANK_BYTES_MIN)
    return len(head) == BLANK_BYTES_MIN and peek(head, 0) == (segment.end - offset, BLANK_MAGIC)


_worker: list[QueueCheck] = []
"""State of a worker process: its queue check, if queue entries are compared."""


def _begin_worker(queues: Settings | None) -> None:
    _worker[:] = [QueueCheck(queues)] if queues is not None else []


def _check_in_worker(segment: Segment, start: int, end: int) -> CheckedRange:
    return check_range(segment, start, end, _worker[0] if _worker else None)


def check_range(segment: Segment, start: int, end: int, queues: QueueCheck | None) -> CheckedRange:
    """Check the records that begin in `[start, end)` of a file."""
    found = _Range(segment, start, end, queues).check()
    found.compared = queues.end() if queues is not None else None
    return found


class _Range:
    def __init__(self, segment: Segment, start: int, end: int, queues: QueueCheck | None) -> None:
        self._queues = queues
        self._segment = segment
        self._start = start
        self._end = end
        self._found = CheckedRange(segment.start, start)
        self._file = open(segment.path, "rb", buffering=0)  # noqa: SIM115  # `check` closes it

    def _read(self, offset: int, size: int) -> bytes:
        size = min(size, self._segment.end - offset)
        if size <= 0:
            return b""
        self._file.seek(offset - self._segment.start)
        return self._file.read(size)

    def _find(self, position: int) -> int | None:
        """Return the log offset of the first valid record in this range at or after `position`; skips file holes."""
        position = max(position, self._next_data(position) - SIZE_FIELD_BYTES)
        if position >= self._end:
            return None
        return find_next_record(self._read, position, self._end, self._segment.size)

    def _next_data(self, position: int) -> int:
        try:
            within = os.lseek(self._file.fileno(), position - self._segment.start, os.SEEK_DATA)
        except OSError:
            return self._segment.end
        return self._segment.start + within

    def check(self) -> CheckedRange:
        found = self._found
        with self._file:
            is_first = self._start == self._segment.start
            position = self._start if is_first else self._find(self._start)
            if position is None:
                found.written = self._last_written(self._start)
                return found
            found.first = position
            while True:
                found.end, found.fault = self._walk(position)
                if found.fault is None:
                    return found
                resumes = self._find(found.end + 1)
                if resumes is None:
                    found.written = self._last_written(found.end)
                    return found
                found.damages.append(LogDamage(found.end, resumes, found.fault))
                position = resumes

    def _walk(self, position: int) -> tuple[int, str | None]:
        """Check records from `position` up to the first that begins at or after the range's end.

        Returns:
            The log offset after the last valid record, and why it is before the range's end, None if it is not.
        """
        found = self._found
        stream = RecordStream(position, self._segment.size)
        read = position
        while stream.position < self._end:
            window = self._read(read, self._wanted(stream.position, read))
            if not window:
                return (
                    stream.position,
                    None if stream.position >= self._segment.end else "the file ends within a record",
                )
            read += len(window)
            pieces, corrupt = stream.feed(window)
            for piece in pieces:
                found.records += piece.records
                found.bytes += len(piece.data)
            if self._queues is not None:
                self._queues.take(pieces)
            if corrupt is not None:
                return corrupt.log_offset, corrupt.reason
        return stream.position, None

    def _wanted(self, position: int, read: int) -> int:
        """Bytes to read next: a window, but behind the range's end only the rest of the record that reaches it."""
        if read < self._end:
            return min(WINDOW_BYTES, self._end - read)
        size = int.from_bytes(self._read(position, SIZE_FIELD_BYTES), "big", signed=True)
        return max(position + size - read, BLANK_BYTES_MIN)

    def _last_written(self, position: int) -> int:
        """Behind the last byte of the range that is not zero, from a place on; 0 if there is none."""
        end = 0
        while (position := max(position, self._next_data(position))) < self._end:
            data = self._read(position, min(TAIL_LOOK_BYTES, self._end - position))
            written = len(data.rstrip(b"\0"))
            if written:
                end = position + written
            position += len(data)
        return end


def seconds_since(began: float) -> float:
    """Seconds since a monotonic time, never 0."""
    return max(time.monotonic() - began, 1e-9)
