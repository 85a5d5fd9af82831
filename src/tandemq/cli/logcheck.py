"""Verifying the commit log of a store directory that nobody need have open: read only, several ranges at a time.

    commitlog/00…0   ├──── range ────┤├──── range ────┤      a worker process per range, at record boundaries
    commitlog/00…N   ├──── range ────┤├ zeroes: the log's end

A worker begins at the first valid record of its range and ends with the record that reaches the range's end; neighbours
must meet there, what lies between them is damage. Records are checked many at a time where they are regular
(`codec.run`), else one by one: sizes, magic, own offset, CRC of the body, CRC of the whole record where there is one.

Source: docs/storage.md, "recovery"; works on RocketMQ's stores as on ours.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from tandemq.errors import StoreDamaged
from tandemq.replication.records import RecordStream
from tandemq.storage.scan import find_next_record

RANGE_BYTES_MIN = 64 << 20
WINDOW_BYTES = 4 << 20
TAIL_LOOK_BYTES = 1 << 20
NAME_DIGITS = 20


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of the log."""

    path: str
    start: int
    size: int
    is_last: bool

    @property
    def end(self) -> int:
        """Log offset behind it."""
        return self.start + self.size


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that are no valid record, `[start, end)`. `is_tail`: nothing valid follows in the log: a torn tail."""

    start: int
    end: int
    reason: str
    is_tail: bool = False


@dataclass(slots=True)
class Checked:
    """What was found in a range: where its records begin and end."""

    segment: int
    first: int
    end: int
    records: int = 0
    bytes: int = 0
    damages: list[Damage] = field(default_factory=list)


@dataclass(slots=True)
class SegmentReport:
    """One file."""

    segment: Segment
    records: int = 0
    bytes: int = 0
    damages: list[Damage] = field(default_factory=list)


def segments_of(store: Path) -> list[Segment]:
    """The files of a store's commit log.

    Raises:
        StoreDamaged: there is none, or one is missing or of another length.
    """
    directory = store / "commitlog"
    found = sorted(
        p for p in directory.glob("*") if p.name.isdigit() and len(p.name) == NAME_DIGITS and p.stat().st_size
    )
    if not found:
        raise StoreDamaged(f"{directory} holds no commit log", hint="give a broker's storePathRootDir")
    size = found[0].stat().st_size
    segments: list[Segment] = []
    for path in found:
        if path.stat().st_size != size:
            raise StoreDamaged(f"{path} has {path.stat().st_size} bytes, {found[0].name} has {size}")
        if segments and int(path.name) != segments[-1].end:
            raise StoreDamaged(f"{path} does not follow {segments[-1].path}", hint="a file in between is missing")
        segments.append(Segment(str(path), int(path.name), size, is_last=path is found[-1]))
    return segments


def verify(segments: list[Segment], *, jobs: int, progress: Callable[[int, int], None]) -> Iterator[SegmentReport]:
    """Check every file; yields each as soon as it and those before it are done. `progress`: bytes done, bytes to do."""
    ranges = [
        (segment, at, min(at + RANGE_BYTES_MIN, segment.end))
        for segment in segments
        for at in range(segment.start, segment.end, RANGE_BYTES_MIN)
    ]
    total = sum(segment.size for segment in segments)
    done_bytes = 0
    parts: dict[int, list[Checked]] = {segment.start: [] for segment in segments}
    left = {segment.start: -(-segment.size // RANGE_BYTES_MIN) for segment in segments}
    waiting = list(segments)
    for checked, size in _results(ranges, jobs):
        done_bytes += size
        progress(done_bytes, total)
        parts[checked.segment].append(checked)
        left[checked.segment] -= 1
        while waiting and not left[waiting[0].start]:
            segment = waiting.pop(0)
            yield _joined(segment, sorted(parts.pop(segment.start), key=lambda part: part.first))


def _results(ranges: list[tuple[Segment, int, int]], jobs: int) -> Iterator[tuple[Checked, int]]:
    if jobs == 1 or len(ranges) == 1:
        for one in ranges:
            yield check_range(*one), one[2] - one[1]
        return
    # A fresh interpreter per worker: forking would copy whatever threads and locks the caller has.
    with ProcessPoolExecutor(min(jobs, len(ranges)), mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(check_range, *one): one[2] - one[1] for one in ranges}
        for future in as_completed(futures):
            yield future.result(), futures[future]


def _joined(segment: Segment, parts: list[Checked]) -> SegmentReport:
    report = SegmentReport(segment)
    at = segment.start
    for part in parts:
        if part.first > at and not part.damages and part.records:
            report.damages.append(Damage(at, part.first, "two neighbouring ranges do not meet"))
        report.records += part.records
        report.bytes += part.bytes
        report.damages += part.damages
        at = max(at, part.end)
    report.damages = _merged(report.damages, segment)
    return report


def _merged(damages: list[Damage], segment: Segment) -> list[Damage]:
    """Damage that goes on from one range into the next is one; what reaches the log's end is its tail."""
    merged: list[Damage] = []
    for damage in sorted(damages, key=lambda one: one.start):
        if merged and damage.start <= merged[-1].end:
            last = merged[-1]
            merged[-1] = Damage(last.start, max(last.end, damage.end), last.reason, damage.is_tail)
        else:
            merged.append(damage)
    return [one if one.is_tail and segment.is_last else Damage(one.start, one.end, one.reason) for one in merged]


def check_range(segment: Segment, start: int, end: int) -> Checked:
    """Check the records that begin in `[start, end)` of a file; runs in a worker process."""
    return _Range(segment, start, end).check()


class _Range:
    def __init__(self, segment: Segment, start: int, end: int) -> None:
        self._segment = segment
        self._start = start
        self._end = end
        self._found = Checked(segment.start, start, start)
        self._file = open(segment.path, "rb", buffering=0)  # noqa: SIM115  # `check` closes it

    def _read(self, offset: int, size: int) -> bytes:
        size = min(size, self._segment.end - offset)
        if size <= 0:
            return b""
        self._file.seek(offset - self._segment.start)
        return self._file.read(size)

    def check(self) -> Checked:
        found = self._found
        with self._file:
            position = self._first_record()
            if position is None:
                return found
            found.first = found.end = position
            while position < self._end:
                stopped, reason = self._walk(position)
                found.end = stopped
                if reason is None or stopped >= self._end:
                    return found
                resumes = find_next_record(self._read, stopped + 1, self._segment.end, self._segment.size)
                if resumes is None:
                    self._end_of_log(stopped, reason)
                    return found
                found.damages.append(Damage(stopped, resumes, reason))
                position = found.end = resumes
        return found

    def _first_record(self) -> int | None:
        """Where this range's records begin: a file's own start, or the first valid record behind an arbitrary place."""
        if self._start == self._segment.start:
            return self._start
        position = find_next_record(self._read, self._start, self._segment.end, self._segment.size)
        # If it begins behind this range, a record (or a blank, or zeroes) covers all of it: its neighbour has seen it.
        return position if position is not None and position < self._end else None

    def _walk(self, position: int) -> tuple[int, str | None]:
        """Valid records from `position` on, up to the first that begins at or behind the end; why it stopped earlier."""
        found = self._found
        stream = RecordStream(position, self._segment.size)
        read = position
        while stream.position < self._end:
            window = self._read(read, WINDOW_BYTES)
            if not window:
                return (
                    stream.position,
                    None if stream.position >= self._segment.end else "the file ends within a record",
                )
            read += len(window)
            pieces, corrupt = stream.feed(window)
            for piece in pieces:
                found.records += len(piece.run)
                found.bytes += len(piece.data)
            if corrupt is not None:
                return corrupt.log_offset, corrupt.reason
        return stream.position, None

    def _end_of_log(self, position: int, reason: str) -> None:
        """Nothing valid follows in this file: the log's end, a torn tail, or damage up to the file's end."""
        last = self._last_written(position)
        if last > position or not self._segment.is_last:
            end = last if self._segment.is_last else self._segment.end
            self._found.damages.append(Damage(position, end, reason, is_tail=self._segment.is_last))
        self._found.end = self._segment.end

    def _last_written(self, position: int) -> int:
        """Behind the last byte that is not zero."""
        last = position
        for at in range(position, self._segment.end, TAIL_LOOK_BYTES):
            data = self._read(at, TAIL_LOOK_BYTES).rstrip(b"\0")
            if data:
                last = at + len(data)
        return last


def seconds_since(began: float) -> float:
    """Seconds since a monotonic time, never 0."""
    return max(time.monotonic() - began, 1e-9)
