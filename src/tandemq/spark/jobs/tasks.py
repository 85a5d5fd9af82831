"""Jobs over ranges of a log, or files of a lake: one function per range, run by Spark's workers in waves, so that a
long job reports its progress and resumes after an interruption.

    state file   {"job": …}
                 {"range": [0, 67108864], "result": {…}}      one line per finished range, synced after each wave
                                                              (ranges with losses are not kept)
                 {"ended": true}                              the last line of a finished check

Source: docs/guides/pipeline.md, "Jobs".
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from pyspark.sql import SparkSession

from tandemq.errors import ConfigError
from tandemq.spark.runtime.local_paths import local_path
from tandemq.spark.runtime.worker import freeze_modules
from tandemq.spark.sources.log.files import LogFiles
from tandemq.spark.sources.log.gaps import Gap
from tandemq.spark.sources.log.ranges import DecodeOptions, LogRange, Rows, read_planned

WAVE_S = 1.0
"""Target duration of a wave: the work that an interruption loses, and the interval of progress reports."""
WAVE_TASKS_MAX = 256
ENDED = {"ended": True}
LOST = "lost"
"""Key in a result: the log offsets that disappeared while the range was read."""
Result = dict[str, Any]
ProgressCallback = Callable[[int, int], None]
"""Called with the bytes done and the bytes in total."""


class ByteRange(Protocol):
    """A part of a job's input, identified by its start and end in bytes."""

    @property
    def start(self) -> int:
        """First byte."""

    @property
    def end(self) -> int:
        """End, exclusive."""


P = TypeVar("P", bound=ByteRange)


def read_range(files: LogFiles, reading: DecodeOptions, wanted: LogRange, lost: list[Result]) -> Iterator[Rows]:
    """Yield the rows of a range. Log offsets that existed when the job was planned and are gone now are appended to
    `lost`, with keys start, end, why.

    Raises:
        StoreDamaged: the range is damaged, and `reading.fails_on_damage` is set.
    """
    return read_planned(
        files, reading, [wanted], lambda start, end, why: lost.append({"start": start, "end": end, "why": why})
    )


def merge_losses(results: Iterable[Result]) -> list[Result]:
    """Return the losses of all results by log offset, adjacent ones merged."""
    joined: list[Result] = []
    for loss in sorted(
        (loss for result in results for loss in result.get(LOST, ())), key=lambda loss: int(loss["start"])
    ):
        latest = joined[-1] if joined else {"end": -1}
        if loss["start"] <= latest["end"] and (loss["why"], loss.get("in")) == (latest["why"], latest.get("in")):
            latest["end"] = max(latest["end"], loss["end"])
        else:
            joined.append(dict(loss))
    return joined


def gaps_lost(gaps: Iterable[Gap]) -> Result:
    """Return a result with the gaps of a log as its losses."""
    return {LOST: [gap._asdict() for gap in gaps]}


def no_progress(_done: int, _total: int) -> None:
    """Report no progress."""


@dataclass(frozen=True, slots=True)
class RangeJob(Generic[P]):
    """A function to run on each range. `name` identifies the job and holds every parameter that its results depend
    on."""

    name: str
    function: Callable[[P], Result]
    is_check: bool = False
    """Whether a finished run is repeated from the start, because data that was sound then may be damaged now. Jobs that
    are no checks only process ranges that are new."""


def run_tasks(
    spark: SparkSession,
    ranges: Sequence[P],
    job: RangeJob[P],
    *,
    state: Path | None = None,
    progress: ProgressCallback = no_progress,
) -> list[Result]:
    """Run a job and return the results of all ranges, in the order of the ranges.

    Args:
        state: file that keeps results; ranges found in it are not run again, unless it belongs to a finished check.
            Results with losses are not kept.
    Raises:
        ConfigError: the state file belongs to another job.
    """
    known = _State(state, job.name)
    todo = [piece for piece in ranges if (piece.start, piece.end) not in known.results]
    total = sum(piece.end - piece.start for piece in ranges)
    done = total - sum(piece.end - piece.start for piece in todo)
    progress(done, total)
    context = spark.sparkContext
    wave = wave_min = context.defaultParallelism
    position = 0
    while position < len(todo):
        part = todo[position : position + wave]
        position += wave
        began = time.monotonic()
        results = context.parallelize(part, len(part)).map(partial(_work, job.function)).collect()
        known.add(part, results)
        done += sum(piece.end - piece.start for piece in part)
        progress(done, total)
        # Each wave costs one Spark job, some tens of milliseconds, and waits for its slowest task.
        growth = WAVE_S / max(time.monotonic() - began, 1e-3)
        wave = max(wave_min, min(WAVE_TASKS_MAX, int(wave * min(growth, 8))))
    if job.is_check:
        known.end()
    return [known.results[piece.start, piece.end] for piece in ranges]


def _work(function: Callable[[P], Result], piece: P) -> Result:
    result = function(piece)
    freeze_modules()
    return result


class _State:
    """Results by range, in memory and optionally in a file."""

    def __init__(self, path: Path | None, job: str) -> None:
        self.results: dict[tuple[int, int], Result] = {}
        self._path = path
        if path is None:
            return
        local_path(path, "the state file")
        if not path.exists() or self._has_ended(path, job):
            path.write_text(json.dumps({"job": job}) + "\n", encoding="utf-8")

    def _has_ended(self, path: Path, job: str) -> bool:
        """Load the results, unless the file belongs to a finished check; returns whether it does."""
        lines = path.read_text(encoding="utf-8").split("\n")
        try:
            head = json.loads(lines[0])
        except ValueError:
            head = None
        if not isinstance(head, dict) or head.get("job") != job:
            raise ConfigError(
                f"{path} is not the state of this job", hint="give another file, or delete it to start over"
            )
        kept = [json.loads(line) for line in lines[1:-1]]  # an incomplete last line is dropped
        if ENDED in kept:
            return True
        self.results = {tuple(entry["range"]): entry["result"] for entry in kept}
        path.write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")
        return False

    def add(self, ranges: Sequence[ByteRange], results: Sequence[Result]) -> None:
        for piece, result in zip(ranges, results, strict=True):
            self.results[piece.start, piece.end] = result
        self._append(
            {"range": [piece.start, piece.end], "result": it}
            for piece, it in zip(ranges, results, strict=True)
            if not it.get(LOST)
        )

    def end(self) -> None:
        self._append([ENDED])

    def _append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        if self._path is None:
            return
        with open(self._path, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
