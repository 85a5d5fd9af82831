"""Removal of messages by key from lakes and from directories of log files, for erasure requests.

    lake   file with such rows ─► a new file, in which they are removed records ─► one commit ─► the old file is deleted
    log    record ─► its removed form (codec.record.removal), in place: a synced note with the new bytes, then the log
           at a URL: file with such records ─► a new one, which takes its place when it is complete
    both   a second read must find none

A removed record keeps its place, so that a log, and the log restored from a lake, stay contiguous and valid. Older
versions of a lake lose the files with such rows, also those that a compaction or a killed task has left, and entries of
Delta's log whose statistics have one of the values. A stopped run is repeated: it finds what is left, and finishes the
writes of a note that it finds.

Source: docs/guides/dataset.md, "Remove messages".
"""

import base64
import json
import os
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tandemq.codec.record.removal import removed_record
from tandemq.errors import ConfigError, LocalError, ProtocolError, StoreDamaged, StoreLocked, TandemError
from tandemq.real.disk import RealDisk
from tandemq.spark.jobs.rewrite import BATCH_ROWS, DAMAGE, rewrite
from tandemq.spark.jobs.selection import COLUMNS, Selection
from tandemq.spark.jobs.tasks import (
    LOST,
    ProgressCallback,
    RangeJob,
    Result,
    gaps_lost,
    merge_losses,
    no_progress,
    read_range,
    run_tasks,
)
from tandemq.spark.lake.delta import DeltaLake
from tandemq.spark.lake.files import LakeFile, lake_files, open_parquet
from tandemq.spark.lake.lease import DirectoryLease
from tandemq.spark.lake.records import encode_row
from tandemq.spark.runtime.location import ICEBERG, FileEntry, Location, Place, locate
from tandemq.spark.sources.log.files import LogFileReader, LogFiles, log_end, open_log
from tandemq.spark.sources.log.gaps import log_bounds
from tandemq.spark.sources.log.ranges import RANGE_BYTES, REMOVED, BatchBuilder, DecodeOptions, LogRange, split

NOTE = ".removing"
"""Suffix of the note beside a log file, which has the removed records that overwrite the selected ones."""
REPLACED_BYTES = 8 << 20
"""Part of a remote file that is in memory while it is replaced."""
_LEFT = re.compile(r"\.\d{20}\.tmp\.\d+")
"""Name of an incomplete log file that a killed run has left on HDFS."""
YOUNG_S = 3600
"""Age below which a file that is not part of the table may belong to a running archive, and is not deleted."""
STATISTIC_BYTES = 32
"""Length from which writers may cut a text in statistics."""
_FIND = pa.schema(
    {
        "topic": pa.string(),
        "commitLogOffset": pa.int64(),
        "size": pa.int32(),
        "properties": pa.string(),
        "body": pa.binary(),
        "verdict": pa.string(),
    }
)
NOT_REACHED = (
    "logs of running brokers and their replicas: retention (fileReservedTime) deletes them",
    "messages that consumers have processed, stored or forwarded, also to other topics under other keys",
    "bodies: a message that only mentions the value in its body is not removed",
    "copies, snapshots and backups of the lakes and logs given, and files that other queries have made of them",
    "in object stores: older versions of objects if the bucket keeps them, and parts of incomplete uploads",
)
"""Places that a removal does not reach."""


@dataclass(slots=True)
class Removal:
    """Result for one lake or log."""

    kind: str
    """lake or log."""
    path: str
    messages: int = 0
    """Messages removed by this run; with `dry_run` found."""
    topics: dict[str, int] = field(default_factory=dict)
    """Of them, by topic."""
    files: int = 0
    """Files rewritten, or overwritten in part."""
    old_files: int = 0
    """Of a lake: files and log entries of older versions that were deleted."""
    version: int | None = None
    """Of a lake: version of the table without the messages."""
    damaged: list[Result] = field(default_factory=list)
    """Damage whose bytes contain a value: file or log offset, and size. It is left as it is."""
    left: list[str] = field(default_factory=list)
    """Files that are not part of the table, contain such messages, and may belong to a running archive."""
    lost: list[Result] = field(default_factory=list)
    """Log offsets that disappeared while they were read."""
    found_after: int | None = None
    """Messages found by the second read; None with `dry_run`."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left."""
        return not (self.damaged or self.left or self.lost or self.found_after)


# Lakes.


@dataclass(frozen=True, slots=True)
class _Erasure:
    """Replaces selected rows by removed ones; serialized to tasks."""

    selection: Selection

    @property
    def columns(self) -> list[str]:
        return COLUMNS

    def matches(self, batch: Any) -> Any:
        return self.selection.matches(batch)

    def replaced(self, batch: Any) -> Any:
        count = batch.num_rows
        times = [pc.divide(batch.column(name).cast(pa.int64()), 1000) for name in ("bornTimestamp", "storeTimestamp")]
        rows = batch.to_pylist()
        for row, born, store in zip(rows, *(column.to_pylist() for column in times), strict=True):
            row |= {"bornTimestamp": born, "storeTimestamp": store}
        texts = pa.nulls(count, pa.string())
        instead = {
            "key": texts,
            "tags": texts,
            "bornHost": texts,
            "properties": texts,
            "body": pa.array([_removed_row(row) for row in rows], pa.binary()),
            "verdict": pa.array([REMOVED] * count),
            "flag": pa.array([0] * count, pa.int32()),
            "bodyCrc": pa.nulls(count, pa.int32()),
        }
        columns = [instead[name] if name in instead else batch.column(name) for name in batch.schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _removed_row(row: Result) -> bytes:
    """Return the removed record of a row; nothing if the row cannot be encoded."""
    try:
        return removed_record(encode_row(row))
    except (StoreDamaged, ProtocolError):
        return b""


def remove_from_lake(
    spark: SparkSession,
    lake: Place,
    selection: Selection,
    *,
    dry_run: bool = False,
    progress: ProgressCallback = no_progress,
) -> Removal:
    """Remove messages from a lake, and its files and versions that still have them.

    Args:
        dry_run: only find them.
    Raises:
        ConfigError: there is no lake. Also as `rewrite`.
    """
    table = _changeable(lake)
    changed = rewrite(spark, table, _Erasure(selection), dry_run=dry_run, progress=progress)
    done = Removal("lake", table.location.url, changed.rows, changed.topics, version=changed.version)
    done.files = changed.files_rewritten + changed.files_removed
    if dry_run:
        return done
    with table.locked():
        old = table.old_files()
        for entry in _holding(spark, selection, table.location, [*old.replaced, *old.unknown]):
            if entry in old.unknown and time.time() - entry.changed_s < YOUNG_S:
                done.left.append(table.location.child(entry.name))
            else:
                table.location.delete(entry.name)
                done.old_files += 1
        done.old_files += table.forget(_Mentions(selection.values))
    found = rewrite(spark, table, _Erasure(selection), dry_run=True)
    done.found_after = found.rows
    done.damaged = _doubtful(spark, selection, table)
    return done


def _changeable(lake: Place) -> DeltaLake:
    """Open a lake whose files can be removed. Raises ConfigError."""
    if locate(lake, "the lake").scheme == ICEBERG:
        raise ConfigError(
            f"{lake} is an Iceberg table; messages are removed from Delta lakes only",
            hint="DELETE FROM it with Spark and Iceberg's library, then let its older snapshots expire there",
        )
    return DeltaLake(lake)


class _Mentions:
    """Matcher of bytes that contain one of some values, plain or in JSON; statistics may have their beginning only."""

    def __init__(self, values: Sequence[str]) -> None:
        forms = {
            form for value in values for form in (value, json.dumps(value)[1:-1], json.dumps(json.dumps(value))[3:-3])
        }
        self._forms = [form.encode()[:STATISTIC_BYTES] for form in forms]

    def __call__(self, data: bytes) -> bool:
        return any(form in data for form in self._forms)


def _holding(spark: SparkSession, selection: Selection, lake: Location, old: list[FileEntry]) -> list[FileEntry]:
    """Return the files that hold selected messages."""
    entries = {lake.child(entry.name): entry for entry in old}
    ranges = lake_files({path: entry.size for path, entry in entries.items()})
    results = run_tasks(spark, ranges, RangeJob("find", partial(_holds, selection, lake)))
    return [entries[file.path] for file, result in zip(ranges, results, strict=True) if result["holds"]]


def _holds(selection: Selection, lake: Location, wanted: LakeFile) -> Result:
    """Return whether a file holds selected messages; one that a killed task left incomplete counts, as it may."""
    name = lake.name_of(wanted.path)
    with lake.errors(name), lake.open_input(name) as data:
        try:
            with pq.ParquetFile(data) as file:
                batches = file.iter_batches(BATCH_ROWS, columns=COLUMNS)
                return {"holds": any(pc.any(selection.matches(batch)).as_py() for batch in batches)}
        except pa.ArrowInvalid:
            return {"holds": True}


def _doubtful(spark: SparkSession, selection: Selection, table: DeltaLake) -> list[Result]:
    ranges = lake_files(table.sizes())
    results = run_tasks(spark, ranges, RangeJob("damage", partial(_doubtful_in, selection, table.location)))
    return [damage for result in results for damage in result["damaged"]]


def _doubtful_in(selection: Selection, lake: Location, wanted: LakeFile) -> Result:
    found: list[Result] = []
    names = ["verdict", "body", "brokerName", "commitLogOffset", "size"]
    with open_parquet(lake, lake.name_of(wanted.path)) as file:
        if not _has_verdicts(file):
            return {"damaged": []}
        for batch in file.iter_batches(BATCH_ROWS, columns=names):
            rows = batch.filter(pa.array(selection.doubtful(batch))).drop_columns(["verdict", "body"])
            found += rows.to_pylist()
    return {"damaged": found}


def _has_verdicts(file: Any) -> bool:
    return any(pc.count(batch.column(0)).as_py() for batch in file.iter_batches(BATCH_ROWS, columns=["verdict"]))


# Logs.


def remove_from_log(
    spark: SparkSession,
    store: Place,
    selection: Selection,
    *,
    dry_run: bool = False,
    range_bytes: int = RANGE_BYTES,
    progress: ProgressCallback = no_progress,
) -> Removal:
    """Remove messages from a directory of log files, also at a URL, or from the store directory of a stopped broker.

    Args:
        dry_run: only find them.
    Raises:
        StoreLocked: a broker runs on the store, or another removal works on the directory. LocalError: a file cannot be
            written. Also as `open_log`, `run_tasks`.
    """
    root = locate(store, "the log")
    files = open_log(root)
    done = Removal("log", files.directory)
    is_local = files.location.is_local
    with _unused(root.path, files) if is_local else _leased(files.location, dry_run=dry_run) as overwrite:
        if is_local and not dry_run:
            for start in files.starts:
                _finish_note(files, start)
        results = _find(spark, files, selection, range_bytes, progress)
        by_file: dict[int, list[Result]] = {}
        topics: Counter[str] = Counter()
        for record in (record for result in results for record in result["found"]):
            by_file.setdefault(record["at"] - record["at"] % files.segment_bytes, []).append(record)
            topics[record["topic"]] += 1
        done.messages, done.topics, done.files = topics.total(), dict(sorted(topics.items())), len(by_file)
        if not dry_run:
            for start, found in by_file.items():
                overwrite(files, start, found)
            results = _find(spark, files, selection, range_bytes)
            done.found_after = sum(len(result["found"]) for result in results)
        done.damaged = [damage for result in results for damage in result["damaged"]]
        done.lost = merge_losses([*results, gaps_lost(log_bounds(files).gaps)])
    return done


_Overwrite = Callable[[LogFiles, int, list[Result]], None]
"""Replaces records of the file that begins at a log offset."""


@contextmanager
def _unused(store: Path, files: LogFiles) -> Iterator[_Overwrite]:
    """Hold the lock of a store directory, if it is one; brokers hold it while they run."""
    if Path(files.directory) == store:
        yield _overwrite
        return
    had_lock = (store / "lock").exists()
    disk = RealDisk(store)
    disk.lock()
    try:
        yield _overwrite
    finally:
        disk.unlock()
        if not had_lock:
            (store / "lock").unlink(missing_ok=True)


def _find(
    spark: SparkSession,
    files: LogFiles,
    selection: Selection,
    range_bytes: int,
    progress: ProgressCallback = no_progress,
) -> list[Result]:
    with LogFileReader(files) as read:
        end = log_end(read)
    job = RangeJob("remove", partial(_find_in, files, selection))
    return run_tasks(spark, split(files, files.start, end, range_bytes), job, progress=progress)


def _find_in(files: LogFiles, selection: Selection, wanted: LogRange) -> Result:
    """Find the selected messages of one range, and damage that contains a value; runs in a worker."""
    maker, lost = BatchBuilder(files, _FIND), list[Result]()
    found: list[Result] = []
    damaged: list[Result] = []
    reading = DecodeOptions(tuple(_FIND.names), inflates=False, keeps_damage=True)
    for rows in read_range(files, reading, wanted, lost):
        batch = maker.batch(rows)
        mask = selection.matches(batch).to_numpy(zero_copy_only=False)
        doubtful = selection.doubtful(batch) & ~mask
        for row in np.flatnonzero(mask | doubtful).tolist():
            offset, size = (batch.column(name)[row].as_py() for name in ("commitLogOffset", "size"))
            if mask[row]:
                found.append({"at": offset, "size": size, "topic": batch.column("topic")[row].as_py() or DAMAGE})
            else:
                damaged.append({"commitLogOffset": offset, "size": size})
    return {"found": found, "damaged": damaged, LOST: lost}


@contextmanager
def _leased(directory: Location, *, dry_run: bool) -> Iterator[_Overwrite]:
    """Hold the lease of a directory at a URL, unless nothing is changed, and delete what killed runs have left."""
    if dry_run:
        yield _overwrite
        return
    lease = DirectoryLease(directory)
    try:
        try:
            for name in directory.abandoned(time.time()):
                if _LEFT.fullmatch(name):
                    directory.delete(name)
            yield partial(_replace, lease)
        finally:
            lease.release()
    except TandemError as error:
        if not (lease.is_released or isinstance(error, StoreLocked)):
            error.hint = f"{error.hint}; {lease.describe_end()}" if error.hint else lease.describe_end()
        raise


def _replace(lease: DirectoryLease, files: LogFiles, start: int, found: list[Result]) -> None:
    """Replace a remote file by one with other records; a kill at any time leaves the old one or the new one.

    Memory: REPLACED_BYTES, and a record.
    """
    name, end = files.name(start), start + files.segment_bytes
    left = deque(sorted(found, key=lambda place: int(place["at"])))
    with LogFileReader(files) as read, files.location.errors(name):
        output = files.location.open_replacement(name)
        for offset in range(start, end, REPLACED_BYTES):
            data = bytearray(min(REPLACED_BYTES, end - offset))
            size = read.read_into(memoryview(data), offset)
            assert size == len(data), "the reader has checked the size of the file"
            while left and left[0]["at"] < offset + size:
                place = left.popleft()
                record = removed_record(read(place["at"], place["size"]))
                low, high = max(offset, place["at"]), min(offset + size, place["at"] + place["size"])
                data[low - offset : high - offset] = record[low - place["at"] : high - place["at"]]
                if high < place["at"] + place["size"]:
                    left.appendleft(place)  # its rest is in the next part
                    break
            output.write(bytes(data))
            lease.keep()
        lease.renew()
        output.close()


def _overwrite(files: LogFiles, start: int, found: list[Result]) -> None:
    """Overwrite the records of one file; a kill at any time leaves a note with which the next run finishes it."""
    with LogFileReader(files) as read:
        writes = [
            {"at": place["at"], "record": base64.b64encode(removed_record(read(place["at"], place["size"]))).decode()}
            for place in found
        ]
    path = Path(files.path(start))
    RealDisk(path.parent).replace(path.name + NOTE, json.dumps(writes).encode())
    _finish_note(files, start)


def _finish_note(files: LogFiles, start: int) -> None:
    """Do the writes of a note, if there is one, and delete it."""
    path = Path(files.path(start))
    note = path.with_name(path.name + NOTE)
    if not note.exists():
        return
    try:
        with path.open("r+b") as file:
            for write in json.loads(note.read_text(encoding="utf-8")):
                file.seek(write["at"] - start)
                file.write(base64.b64decode(write["record"]))
            file.flush()
            os.fsync(file.fileno())
        note.unlink()
    except OSError as error:
        raise LocalError(f"{path} cannot be overwritten: {error.strerror}", hint="repeat the command") from error


# Report.


def report(selection: Selection, results: list[Removal], *, dry_run: bool, made: str) -> Result:
    """Return the report of a removal. It has no key or value, only their SHA-256."""
    return {
        "made": made,
        "dryRun": dry_run,
        "selection": selection.digest(),
        "complete": all(result.is_complete for result in results) and not dry_run,
        "results": [
            {
                "kind": result.kind,
                "path": result.path,
                "messages": result.messages,
                "topics": result.topics,
                "files": result.files,
                "oldFiles": result.old_files,
                "version": result.version,
                "foundAfter": result.found_after,
                "damaged": result.damaged,
                "left": result.left,
                "lost": result.lost,
            }
            for result in results
        ],
        "notReached": list(NOT_REACHED),
    }
