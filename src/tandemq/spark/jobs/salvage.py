"""Salvage: a copy of an incomplete log in which blanks stand for missing bytes, so that brokers open it.

    whole file                       copied
    file that is cut off             records up to the cut, then a blank up to the file's end
    file that is missing             a blank as large as a file
    last file                        records up to the log's end, then zeros

A blank is what ends every file of a log (docs/internals/storage.md, "commit log"): brokers and slaves continue behind
it, and nothing is taken for damage that a replica could repair. Queue offsets of the missing messages become holes of
their queues, which consumers skip. Damage is copied: brokers deal with it.

An interrupted copy resumes: OUTPUT/.rebuild has its parameters and the files that are done.
Source: docs/guides/pipeline.md, "Rebuild".
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from pyspark.sql import SparkSession

from tandemq.errors import ConfigError, OffsetGone, StoreDamaged
from tandemq.real.disk import RealDisk, sync_names
from tandemq.spark.jobs.tasks import ProgressCallback, RangeJob, Result, run_tasks
from tandemq.spark.lake.records import blank_bytes
from tandemq.spark.sources.log.files import LogFileReader, LogFiles
from tandemq.spark.sources.log.files import log_end as find_log_end
from tandemq.spark.sources.log.gaps import Gap, gaps_before, gaps_behind, gaps_between, stored_end
from tandemq.storage.log.epochs import COPIES, save_epochs
from tandemq.storage.log.scan import Walker, find_next_record

LOG = "commitlog"
MADE = (LOG, *COPIES)
"""Entries of the output that the copy makes."""
NOTE = "salvage"
FILES_DONE = "files"
CHUNK_BYTES = 8 << 20
_ZEROS = bytes(CHUNK_BYTES)


class _Plan(NamedTuple):
    """End of the log, the bytes that get a blank, and all that is missing, when the copy began."""

    end: int
    blanks: list[Gap]
    lost: list[Gap]


class _File(NamedTuple):
    """A file of the copy: log offsets `[start, end)` of its place, of which records are copied up to `stop`."""

    start: int
    end: int
    stop: int
    has_blank: bool
    """Whether a blank follows them."""


def salvage(spark: SparkSession, files: LogFiles, output: Path, work: Path, progress: ProgressCallback) -> list[Gap]:
    """Copy a log into `output`, or resume an interrupted copy; returns all that is missing of it.

    Args:
        work: directory in the output for the job's own files.
    Raises:
        ConfigError: the output contains other files, or the copy of another log.
        StoreDamaged: the log has no sound record.
        OffsetGone: files disappeared since the copy began.
    """
    plan = _start_or_resume(files, output, work)
    directory = output / LOG
    directory.mkdir(exist_ok=True)
    job = RangeJob(f"salvage {files.directory} {plan.end}", CopyFile(files, str(directory)))
    run_tasks(spark, list(_files(files, plan)), job, state=work / FILES_DONE, progress=progress)
    sync_names(directory)
    epochs = _epochs(files.epochs, plan)
    if epochs:
        save_epochs(RealDisk(output), epochs)
    return plan.lost


def _start_or_resume(files: LogFiles, output: Path, work: Path) -> _Plan:
    note = work / NOTE
    if note.exists():
        known = json.loads(note.read_text(encoding="utf-8"))
        if known["directory"] != files.directory:
            raise ConfigError(
                f"{output} contains an unfinished copy of {known['directory']}, not of {files.directory}",
                hint="give another directory, or delete this one",
            )
        return _Plan(known["end"], *([Gap(*gap) for gap in known[name]] for name in ("blanks", "lost")))
    if output.exists() and any(output.iterdir()):
        raise ConfigError(f"{output} is not empty", hint="give a new directory, which becomes the store")
    plan = _plan(files)
    work.mkdir(parents=True, exist_ok=True)
    part = note.with_name(f"{NOTE}.part")
    part.write_text(json.dumps({"directory": files.directory} | plan._asdict()), encoding="utf-8")
    part.replace(note)
    return plan


def _plan(files: LogFiles) -> _Plan:
    """Find the end of the log, and what is missing. Cost: as `log_end`, and a walk through each file that was cut
    off."""
    stored = stored_end(files)
    with LogFileReader(files) as read:
        end = find_log_end(read)
        if end == files.start:
            raise StoreDamaged(f"{files.directory} has no sound record", hint="there is nothing to rebuild")
        blanks = list(_blanks(read, end))
        behind = list(gaps_behind(read, end, stored))
    return _Plan(end, blanks, [*gaps_before(files), *blanks, *behind])


def _blanks(read: LogFileReader, end: int) -> Iterator[Gap]:
    """Yield the gaps before the end of a log, each from the end of the last record before it."""
    files = read.files
    for gap in gaps_between(files, files.start, end):
        first = gap.start - gap.start % files.segment_bytes
        start = gap.start if gap.start == first else records_end(read, first)
        if start < gap.end:
            yield gap._replace(start=start)


def records_end(read: LogFileReader, start: int) -> int:
    """Return the end of the last sound record in the file that begins at `start`; the file's own end by its size, if it
    has the blank that ends it."""
    size, present = read.files.segment_bytes, read.files.file_end(start)

    def within(offset: int, wanted: int) -> bytes:
        return read(offset, wanted) if offset < present else b""

    walker = Walker(within, size, start)
    while True:
        for _ in walker.records():
            pass
        end = walker.position
        found = find_next_record(within, end + 1, present, size)
        if end >= present or found is None:
            return end
        walker.position = found


def _files(files: LogFiles, plan: _Plan) -> Iterator[_File]:
    """Yield the files of the copy, also those that are missing."""
    size = files.segment_bytes
    for start in range(files.start, plan.end, size):
        end = start + size
        blank = next((gap for gap in plan.blanks if gap.start < end and gap.end > start), None)
        stop = min(end, plan.end) if blank is None else max(start, blank.start)
        yield _File(start, end, stop, blank is not None)


@dataclass(frozen=True, slots=True)
class CopyFile:
    """Function that copies one file into a directory; runs in a worker."""

    files: LogFiles
    directory: str

    def __call__(self, wanted: _File) -> Result:
        """Write the file under its name when it is complete.

        Raises:
            OffsetGone: bytes that existed when the copy began are gone.
        """
        place = Path(self.directory) / self.files.name(wanted.start)
        part = place.parent.parent / f".{place.name}.{uuid4().hex}"
        try:
            with part.open("wb") as file, LogFileReader(self.files) as read:
                file.truncate(wanted.end - wanted.start)
                # The zeros behind a blank that ends the file may have been cut off.
                stop = min(wanted.stop, max(wanted.start, self.files.file_end(wanted.start)))
                position = wanted.start
                while position < stop:
                    data = read(position, min(CHUNK_BYTES, stop - position))
                    if not data:
                        raise OffsetGone(f"{self.files.path(wanted.start)} became shorter", hint="repeat the command")
                    if data != _ZEROS[: len(data)]:
                        file.seek(position - wanted.start)
                        file.write(data)
                    position += len(data)
                if wanted.has_blank:
                    file.seek(wanted.stop - wanted.start)
                    file.write(blank_bytes(wanted.end - wanted.stop))
                file.flush()
                os.fsync(file.fileno())
            part.replace(place)
        finally:
            part.unlink(missing_ok=True)
        return {}


def _epochs(epochs: Sequence[tuple[int, int]], plan: _Plan) -> list[tuple[int, int]]:
    """Return the epochs of the copy: one that began in missing bytes begins behind them."""
    by_start: dict[int, int] = {}
    for epoch, start in epochs:
        behind = next((gap.end for gap in plan.blanks if gap.start < start < gap.end), start)
        by_start[behind] = epoch  # of several that begin there, the last one has records
    return [(epoch, start) for start, epoch in by_start.items()]
