"""Audit: two logs that should be twins, compared block by block, then record by record where they differ.

    block of 1 MiB     equal? ─► next
                       not    ─► the records of the range on both sides, by log offset:
                                 different   both are sound and not the same: two histories
                                 corrupt     one is not sound, the other tells what was there
                                 missing     the second log has no record there; extra: the first has none

Bytes that differ without any record differing (what fills the end of a file) are counted and harm nobody. What one log
has behind the other's end is lag, not divergence. What vanishes while it is compared is told as lost.

Source: docs/guides/pipeline.md, "Audit".
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from tandemq.errors import LocalError, OffsetGone
from tandemq.spark.runtime.tasks import LOST, ProgressCallback, RangeJob, Result, lost_of, no_progress, run_tasks
from tandemq.spark.sources.log.files import LogFileReader, LogFiles, log_end, open_log
from tandemq.spark.sources.log.ranges import DELETED, RANGE_BYTES, SHORTER, LogRange, RangeReader, Reading, split

BLOCK_BYTES = 1 << 20
REACH_BYTES = 8 << 20
"""Records are shorter: brokers take at most some MiB."""
TOLD_MAX = 1000
"""Differences that one range tells in full; all are counted."""
KINDS = ("different", "corrupt", "missing", "extra")
COLUMNS = ("commitLogOffset", "size", "topic", "queueId", "queueOffset", "verdict")


@dataclass(slots=True)
class Audited:
    """How two logs compare over `[start, end)`, what both hold. Offsets are log offsets."""

    first: str
    second: str
    start: int
    end: int
    first_end: int
    second_end: int
    bytes_equal: int = 0
    filler: int = 0
    """Bytes that differ and belong to no record that does."""
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    differences: list[Result] = field(default_factory=list)
    """kind, commitLogOffset, and what the sound side says; at most TOLD_MAX of each range."""
    lost: list[Result] = field(default_factory=list)
    """start, end, why, in (first, second): what was there when the audit began, and was not when it was compared."""

    @property
    def diverges_at(self) -> int | None:
        """The first record that differs, None if none does."""
        return min((one["commitLogOffset"] for one in self.differences), default=None)


def audit(
    spark: SparkSession,
    first: Path,
    second: Path,
    *,
    range_bytes: int = RANGE_BYTES,
    state: Path | None = None,
    progress: ProgressCallback = no_progress,
) -> Audited:
    """Compare two store directories. Raises as `overlap`, `run_tasks` and reading do."""
    one, other, found = overlap(first, second)
    job = RangeJob(f"audit {found.first} {found.second} {range_bytes}", partial(audit_range, one, other), is_check=True)
    results = run_tasks(spark, split(one, found.start, found.end, range_bytes), job, state=state, progress=progress)
    found.lost = lost_of([*results, *_shorter(first, second, found.end)])
    for result in results:
        found.bytes_equal += result["equal"]
        found.filler += result["filler"]
        found.differences += result["differences"]
        for kind in KINDS:
            found.counts[kind] += result["counts"][kind]
    return found


def overlap(first: Path, second: Path) -> tuple[LogFiles, LogFiles, Audited]:
    """Two logs and what both hold, not compared yet.

    Raises:
        LocalError: they hold nothing in common. What `open_log` raises.
    """
    pair = open_log(first), open_log(second)
    with LogFileReader(pair[0]) as one, LogFileReader(pair[1]) as other:
        ends = log_end(one), log_end(other)
    start, end = max(pair[0].start, pair[1].start), min(ends)
    if start >= end and (pair[0].start, ends[0]) != (pair[1].start, ends[1]):
        held = [f"{log.directory} holds log offsets [{log.start}, {at})" for log, at in zip(pair, ends, strict=True)]
        raise LocalError(f"nothing in common to compare: {', '.join(held)}", hint="are they of one broker group?")
    return *pair, Audited(pair[0].directory, pair[1].directory, start, end, *ends)


def _shorter(first: Path, second: Path, end: int) -> Iterator[Result]:
    """What two logs have lost of their ends by now, which was to be compared up to a log offset."""
    for side, path in (("first", first), ("second", second)):
        with LogFileReader(open_log(path)) as read:
            now = log_end(read)
        if now < end:
            yield {LOST: [{"start": now, "end": end, "why": SHORTER, "in": [side]}]}


def audit_range(first: LogFiles, second: LogFiles, wanted: LogRange) -> Result:
    """Compare one range; runs in a worker."""
    counts = dict.fromkeys(KINDS, 0)
    differences: list[Result] = []
    try:
        with LogFileReader(first) as one, LogFileReader(second) as other:
            unequal = list(_unequal_blocks(one, other, wanted))
            differing = sum(stop - start for start, stop in unequal)
            if unequal:
                for difference in _differing_records(one, other, wanted, unequal):
                    counts[difference["kind"]] += 1
                    if len(differences) < TOLD_MAX:
                        differences.append(difference)
    except OffsetGone:
        lost = {"start": wanted.start, "end": wanted.end, "why": DELETED, "in": _gone_in(first, second, wanted)}
        return {"equal": 0, "filler": 0, "counts": dict.fromkeys(KINDS, 0), "differences": [], LOST: [lost]}
    filler = 0 if differences else differing
    equal = wanted.end - wanted.start - differing
    return {"equal": equal, "filler": filler, "counts": counts, "differences": differences, LOST: []}


def _gone_in(first: LogFiles, second: LogFiles, wanted: LogRange) -> list[str]:
    """Which logs no longer have the file that a range lies in."""
    sides = (("first", first), ("second", second))
    return [side for side, log in sides if not Path(log.path(wanted.start - wanted.start % log.segment_bytes)).exists()]


def _unequal_blocks(one: LogFileReader, other: LogFileReader, wanted: LogRange) -> Iterator[tuple[int, int]]:
    a, b = bytearray(BLOCK_BYTES), bytearray(BLOCK_BYTES)
    at = wanted.start
    while at < wanted.end:
        wished = min(BLOCK_BYTES, wanted.end - at)
        size = min(one.read_into(memoryview(a)[:wished], at), other.read_into(memoryview(b)[:wished], at))
        if not size:
            raise LocalError(f"{one.files.directory} or {other.files.directory} has a shorter file at log offset {at}")
        same = a == b if size == BLOCK_BYTES else memoryview(a)[:size] == memoryview(b)[:size]
        if not same:
            yield at, at + size
        at += size


def _differing_records(
    one: LogFileReader, other: LogFileReader, wanted: LogRange, unequal: list[tuple[int, int]]
) -> Iterator[Result]:
    """The records in unequal blocks of a range that are not the same on both sides, in order.

    A record that reaches into the range is told here if it begins to differ here, else by the range before.
    """
    wider = _reaching_back(one.files, wanted) if unequal[0][0] == wanted.start else wanted
    ours, theirs = _records(one, wider, unequal), _records(other, wider, unequal)
    for offset in sorted(ours.keys() | theirs.keys()):
        before = wanted.start - offset
        if before > 0 and one(offset, before) != other(offset, before):
            continue
        a, b = ours.get(offset), theirs.get(offset)
        if a is None or b is None:
            sound = a or b
            assert sound is not None, "one side has it"
            if sound["verdict"] is None:
                yield _told("extra" if a is None else "missing", sound)
        elif a["verdict"] is None and b["verdict"] is None:
            if a["size"] != b["size"] or one(offset, a["size"]) != other(offset, b["size"]):
                yield _told("different", a)
        else:
            sound, bad = (b, a) if a["verdict"] is not None else (a, b)
            sides = [side for side, row in (("first", a), ("second", b)) if row["verdict"] is not None]
            yield _told("corrupt", sound) | {"in": sides, "verdict": bad["verdict"]}


def _reaching_back(files: LogFiles, wanted: LogRange) -> LogRange:
    """The range with what may hold the beginning of the record that reaches into it."""
    segment = wanted.start - wanted.start % files.segment_bytes
    start = max(segment, wanted.start - REACH_BYTES)
    return replace(wanted, start=start, is_exact=wanted.is_exact if start == wanted.start else start == segment)


def _told(kind: str, row: Result) -> Result:
    return {"kind": kind} | {name: value for name, value in row.items() if value is not None}


def _records(read: LogFileReader, wanted: LogRange, unequal: list[tuple[int, int]]) -> dict[int, Result]:
    """Sound and damaged records of a range that overlap unequal blocks, by log offset."""
    found: dict[int, Result] = {}
    for rows in RangeReader(read, Reading(COLUMNS, inflates=False, keeps_damage=True)).rows(wanted):
        sizes = rows.columns["size"]
        sizes = sizes if isinstance(sizes, list) else sizes.to_pylist()
        for at, (offset, size) in enumerate(zip(rows.offsets.tolist(), sizes, strict=True)):
            if any(start < offset + size and offset < stop for start, stop in unequal):
                row = {name: _at(rows.columns[name], at) for name in COLUMNS if name in rows.columns}
                found[offset] = row | {"verdict": rows.verdicts[at] if rows.verdicts else None}
    return found


def _at(column: object, at: int) -> object:
    value = column[at]  # type: ignore[index]  # a list, or an Arrow array
    return value.as_py() if hasattr(value, "as_py") else value
