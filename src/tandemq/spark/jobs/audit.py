"""Audit: compares the logs of two replicas block by block, then record by record where they differ.

    block of 1 MiB     equal   ─► next
                       unequal ─► the records of the range on both sides, by log offset:
                                  different   both are sound and not equal: the logs have diverged
                                  corrupt     one is corrupt, the other is sound
                                  removed     the content was removed on one side, the other still has it
                                  missing     the second log has no record there; extra: the first has none

Bytes that differ outside of records (filler at the end of a file) are counted and harmless. Records of one log after
the end of the other are lag, not divergence. Log offsets that only one log has, because the other begins later or has
a gap, and those that disappear during the comparison, are reported as lost.

Source: docs/guides/pipeline.md, "Audit".
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

from tandemq.errors import LocalError, OffsetGone
from tandemq.spark.jobs.tasks import LOST, ProgressCallback, RangeJob, Result, merge_losses, no_progress, run_tasks
from tandemq.spark.runtime.location import Place, locate
from tandemq.spark.sources.log.files import LogFileReader, LogFiles, log_end, open_log
from tandemq.spark.sources.log.gaps import Gap, log_bounds
from tandemq.spark.sources.log.ranges import (
    DELETED,
    RANGE_BYTES,
    REMOVED,
    SHORTER,
    DecodeOptions,
    LogRange,
    LogRangeReader,
    split,
)

BLOCK_BYTES = 1 << 20
REACH_BYTES = 8 << 20
"""Maximum size of a record: brokers accept at most some MiB."""
PIECE_BYTES = REACH_BYTES
"""Part of a range of which the records of both sides are in memory at a time, if it differs."""
DIFFERENCES_MAX = 1000
"""Maximum number of differences that one range lists; all are counted."""
LISTED_MAX = 20_000
"""Maximum number of differences that all ranges list, unless there are more ranges than a tenth of it."""
SIDES = ("first", "second")
KINDS = ("different", "corrupt", "missing", "extra", REMOVED)
COLUMNS = ("commitLogOffset", "size", "topic", "queueId", "queueOffset", "verdict")


@dataclass(slots=True)
class AuditResult:
    """Result of an audit over `[start, end)`, the part that both logs contain. Offsets are log offsets."""

    first: str
    second: str
    start: int
    end: int
    first_end: int
    second_end: int
    bytes_equal: int = 0
    filler: int = 0
    """Bytes of unequal blocks in which no record differs."""
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    differences: list[Result] = field(default_factory=list)
    """kind, commitLogOffset, and the fields of the sound record; at most DIFFERENCES_MAX per range."""
    lost: list[Result] = field(default_factory=list)
    """start, end, why, in (first, second): log offsets that are missing in a log, or were gone when compared."""

    @property
    def diverges_at(self) -> int | None:
        """Log offset of the first record that differs otherwise than by removal; None if none does."""
        return min(
            (difference["commitLogOffset"] for difference in self.differences if difference["kind"] != REMOVED),
            default=None,
        )


def audit(
    spark: SparkSession,
    first: Place,
    second: Place,
    *,
    range_bytes: int = RANGE_BYTES,
    allow_retention: bool = False,
    state: Path | None = None,
    progress: ProgressCallback = no_progress,
) -> AuditResult:
    """Compare two logs: store directories, or directories of log files, also at URLs.

    Args:
        allow_retention: a log that begins later than the other has lost nothing.
    Raises:
        ConfigError: a URL is not supported. Also as `overlap`, `run_tasks` and `LogRangeReader.rows`.
    """
    first, second = (locate(place, "the log") for place in (first, second))
    first_files, second_files, found = overlap(first, second, allow_retention=allow_retention)
    ranges = _present(split(first_files, found.start, found.end, range_bytes), second_files)
    listed_max = min(DIFFERENCES_MAX, max(10, LISTED_MAX // max(len(ranges), 1)))
    compare = partial(audit_range, first_files, second_files, listed_max=listed_max)
    job = RangeJob(f"audit {found.first} {found.second} {range_bytes}", compare, is_check=True)
    results = run_tasks(spark, ranges, job, state=state, progress=progress)
    found.lost = merge_losses([*results, {LOST: found.lost}, *_shorter(first, second, found.end)])
    for result in results:
        found.bytes_equal += result["equal"]
        found.filler += result["filler"]
        found.differences += result["differences"]
        for kind in KINDS:
            found.counts[kind] += result["counts"][kind]
    return found


class Overlap(NamedTuple):
    """Two logs, and the result of their audit before any comparison."""

    first: LogFiles
    second: LogFiles
    result: AuditResult


def overlap(first: Place, second: Place, *, allow_retention: bool = False) -> Overlap:
    """Find the log offsets that two logs have in common, and those that one of them lacks.

    Raises:
        LocalError: there are none. Also as `open_log`.
    """
    pair = open_log(first), open_log(second)
    bounds = log_bounds(pair[0]), log_bounds(pair[1])
    ends = bounds[0].end, bounds[1].end
    start, end = max(pair[0].start, pair[1].start), min(ends)
    if start >= end and (pair[0].start, ends[0]) != (pair[1].start, ends[1]):
        spans = [
            f"{log.directory} holds log offsets [{log.start}, {stop})" for log, stop in zip(pair, ends, strict=True)
        ]
        raise LocalError(
            f"no log offsets in common to compare: {', '.join(spans)}", hint="do they belong to one broker group?"
        )
    result = AuditResult(pair[0].directory, pair[1].directory, start, end, *ends)
    for side, log, found in zip(SIDES, pair, bounds, strict=True):
        gaps = list(found.gaps)
        begins = min(files.start for files in pair)
        if log.start > begins and not allow_retention and not any(gap.start < log.start for gap in gaps):
            why = f"are not compared: the log begins at {log.start}, by retention or because files are missing"
            gaps.insert(0, Gap(begins, log.start, why))
        result.lost += [gap._asdict() | {"in": [side]} for gap in gaps]
    return Overlap(*pair, result)


def _present(ranges: Sequence[LogRange], other: LogFiles) -> list[LogRange]:
    """Return the parts of ranges that another log has too."""
    ends = ((piece, other.file_end(piece.start)) for piece in ranges)
    return [
        piece if piece.end <= end else replace(piece, end=end, checks_end=False)
        for piece, end in ends
        if end > piece.start
    ]


def _shorter(first: Place, second: Place, end: int) -> Iterator[Result]:
    """Yield the losses at the ends of two logs that should reach up to a log offset."""
    for side, path in zip(SIDES, (first, second), strict=True):
        with LogFileReader(open_log(path)) as read:
            now = log_end(read)
        if now < end:
            yield {LOST: [{"start": now, "end": end, "why": SHORTER, "in": [side]}]}


def audit_range(first: LogFiles, second: LogFiles, wanted: LogRange, *, listed_max: int = DIFFERENCES_MAX) -> Result:
    """Compare one range; runs in a worker. Memory does not depend on the size of the range."""
    counts = dict.fromkeys(KINDS, 0)
    differences: list[Result] = []
    differing = filler = 0
    try:
        with LogFileReader(first) as first_log, LogFileReader(second) as second_log:
            for piece in _pieces(wanted):
                unequal = list(_unequal_blocks(first_log, second_log, piece))
                size = sum(stop - start for start, stop in unequal)
                differing += size
                before = sum(counts.values())
                for difference in _differing_records(first_log, second_log, piece, unequal) if unequal else ():
                    counts[difference["kind"]] += 1
                    if len(differences) < listed_max:
                        differences.append(difference)
                if sum(counts.values()) == before:
                    filler += size
    except OffsetGone:
        lost = {"start": wanted.start, "end": wanted.end, "why": DELETED, "in": _gone_in(first, second, wanted)}
        return {"equal": 0, "filler": 0, "counts": dict.fromkeys(KINDS, 0), "differences": [], LOST: [lost]}
    equal = wanted.end - wanted.start - differing
    return {"equal": equal, "filler": filler, "counts": counts, "differences": differences, LOST: []}


def _pieces(wanted: LogRange) -> Iterator[LogRange]:
    """Cut a range as `split` does."""
    for start in range(wanted.start, wanted.end, PIECE_BYTES):
        end = min(start + PIECE_BYTES, wanted.end)
        is_first, is_last = start == wanted.start, end == wanted.end
        yield replace(
            wanted,
            start=start,
            end=end,
            starts_at_record=wanted.starts_at_record and is_first,
            checks_end=wanted.checks_end or not is_last,
        )


def _gone_in(first: LogFiles, second: LogFiles, wanted: LogRange) -> list[str]:
    """Return the logs that no longer have the file of a range."""
    sides = zip(SIDES, (first, second), strict=True)
    return [side for side, log in sides if not log.exists(wanted.start - wanted.start % log.segment_bytes)]


def _unequal_blocks(first: LogFileReader, second: LogFileReader, wanted: LogRange) -> Iterator[tuple[int, int]]:
    a, b = bytearray(BLOCK_BYTES), bytearray(BLOCK_BYTES)
    at = wanted.start
    while at < wanted.end:
        wished = min(BLOCK_BYTES, wanted.end - at)
        size = min(first.read_into(memoryview(a)[:wished], at), second.read_into(memoryview(b)[:wished], at))
        if not size:
            raise LocalError(
                f"{first.files.directory} or {second.files.directory} has a shorter file at log offset {at}"
            )
        same = a == b if size == BLOCK_BYTES else memoryview(a)[:size] == memoryview(b)[:size]
        if not same:
            yield at, at + size
        at += size


def _differing_records(
    first: LogFileReader, second: LogFileReader, wanted: LogRange, unequal: list[tuple[int, int]]
) -> Iterator[Result]:
    """Yield the records in unequal blocks of a range that differ between both sides, by log offset.

    A record that extends into the range is reported here if its first differing byte lies here, else by the range
    before.
    """
    wider = _extended_back(first.files, wanted) if unequal[0][0] == wanted.start else wanted
    ours, theirs = _records(first, wider, unequal), _records(second, wider, unequal)
    for offset in sorted(ours.keys() | theirs.keys()):
        before = wanted.start - offset
        if before > 0 and first(offset, before) != second(offset, before):
            continue
        a, b = ours.get(offset), theirs.get(offset)
        if a is None or b is None:
            sound = a or b
            assert sound is not None, "one side has the record"
            if sound["verdict"] in (None, REMOVED):
                yield _difference("extra" if a is None else "missing", sound)
        elif a["verdict"] is None and b["verdict"] is None:
            if a["size"] != b["size"] or first(offset, a["size"]) != second(offset, b["size"]):
                yield _difference("different", a)
        elif {a["verdict"], b["verdict"]} == {None, REMOVED}:
            sides = [side for side, row in (("first", a), ("second", b)) if row["verdict"] == REMOVED]
            yield _difference(REMOVED, a if b["verdict"] == REMOVED else b) | {"in": sides}
        else:
            sound, corrupt = (b, a) if a["verdict"] not in (None, REMOVED) else (a, b)
            sides = [side for side, row in (("first", a), ("second", b)) if row["verdict"] not in (None, REMOVED)]
            yield _difference("corrupt", sound) | {"in": sides, "verdict": corrupt["verdict"]}


def _extended_back(files: LogFiles, wanted: LogRange) -> LogRange:
    """Extend a range backwards to the start of the record that extends into it."""
    segment = wanted.start - wanted.start % files.segment_bytes
    start = max(segment, wanted.start - REACH_BYTES)
    return replace(
        wanted, start=start, starts_at_record=wanted.starts_at_record if start == wanted.start else start == segment
    )


def _difference(kind: str, row: Result) -> Result:
    return {"kind": kind} | {name: value for name, value in row.items() if value is not None}


def _records(read: LogFileReader, wanted: LogRange, unequal: list[tuple[int, int]]) -> dict[int, Result]:
    """Return sound and damaged records of a range that overlap unequal blocks, by log offset."""
    found: dict[int, Result] = {}
    for rows in LogRangeReader(read, DecodeOptions(COLUMNS, inflates=False, keeps_damage=True)).rows(wanted):
        sizes = rows.columns["size"]
        sizes = sizes if isinstance(sizes, list) else sizes.to_pylist()
        for index, (offset, size) in enumerate(zip(rows.offsets.tolist(), sizes, strict=True)):
            if any(start < offset + size and offset < stop for start, stop in unequal):
                row = {name: _at(rows.columns[name], index) for name in COLUMNS if name in rows.columns}
                found[offset] = row | {"verdict": rows.verdicts[index] if rows.verdicts else None}
    return found


def _at(column: object, index: int) -> object:
    value = column[index]  # type: ignore[index]  # a list, or an Arrow array
    return value.as_py() if hasattr(value, "as_py") else value
