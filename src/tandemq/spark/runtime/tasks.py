"""Ranges of a log, or files of a lake, through one function, spread over Spark's workers in waves, so that a long job
tells how far it is and goes on after an interruption.

    state file   {"job": …}
                 {"range": [0, 67108864], "result": {…}}      one line per range done, on the device after each wave
                                                              (not those of which something was lost)
                 {"ended": true}                              the last line of a check that ended

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
from tandemq.spark.runtime.worker import keep_modules
from tandemq.spark.sources.log.files import LogFiles
from tandemq.spark.sources.log.ranges import LogRange, Reading, Rows, planned_rows

WAVE_S = 1.0
"""How long a wave should take: what is lost by an interruption, and how often progress is told."""
WAVE_TASKS_MAX = 256
ENDED = {"ended": True}
LOST = "lost"
"""In a result: what vanished while the range was read."""
Result = dict[str, Any]
ProgressCallback = Callable[[int, int], None]
"""Told the bytes done and the bytes to do."""


class ByteRange(Protocol):
    """A part of what a job is about, told from the others by where it begins and ends."""

    @property
    def start(self) -> int:
        """Bytes before it."""

    @property
    def end(self) -> int:
        """Bytes up to its end."""


P = TypeVar("P", bound=ByteRange)


def read_range(files: LogFiles, reading: Reading, wanted: LogRange, lost: list[Result]) -> Iterator[Rows]:
    """The rows of a range, as a job reads it. What was there when the job was planned and is no more is added to
    `lost`: start, end, why.

    Raises:
        StoreDamaged: there is damage, and the reading fails on it.
    """
    return planned_rows(
        files, reading, [wanted], lambda start, end, why: lost.append({"start": start, "end": end, "why": why})
    )


def lost_of(results: Iterable[Result]) -> list[Result]:
    """What ranges lost, those joined that follow each other."""
    joined: list[Result] = []
    for one in sorted((one for result in results for one in result.get(LOST, ())), key=lambda one: int(one["start"])):
        last = joined[-1] if joined else {"end": -1}
        if one["start"] <= last["end"] and (one["why"], one.get("in")) == (last["why"], last.get("in")):
            last["end"] = max(last["end"], one["end"])
        else:
            joined.append(dict(one))
    return joined


def no_progress(_done: int, _total: int) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class RangeJob(Generic[P]):
    """What is done to each piece. `name` tells it from others, with all that its results depend on."""

    name: str
    function: Callable[[P], Result]
    is_check: bool = False
    """Whether it is done anew once it has ended: what was sound then may not be now. Other jobs count what is new."""


def run_tasks(
    spark: SparkSession,
    ranges: Sequence[P],
    job: RangeJob[P],
    *,
    state: Path | None = None,
    progress: ProgressCallback = no_progress,
) -> list[Result]:
    """The results of all ranges, in their order.

    Args:
        state: a file that keeps results; what it holds already is not done again, but for a check that ended. Results
            that tell of a loss are not kept.
    Raises:
        ConfigError: the state file is of another job.
    """
    known = _State(state, job.name)
    todo = [one for one in ranges if (one.start, one.end) not in known.results]
    total = sum(one.end - one.start for one in ranges)
    done = total - sum(one.end - one.start for one in todo)
    progress(done, total)
    context = spark.sparkContext
    wave = least = context.defaultParallelism
    at = 0
    while at < len(todo):
        part = todo[at : at + wave]
        at += wave
        began = time.monotonic()
        results = context.parallelize(part, len(part)).map(partial(_work, job.function)).collect()
        known.add(part, results)
        done += sum(one.end - one.start for one in part)
        progress(done, total)
        # Each wave costs a job of Spark's, some tens of milliseconds, and waits for its slowest task.
        longer = WAVE_S / max(time.monotonic() - began, 1e-3)
        wave = max(least, min(WAVE_TASKS_MAX, int(wave * min(longer, 8))))
    if job.is_check:
        known.end()
    return [known.results[one.start, one.end] for one in ranges]


def _work(function: Callable[[P], Result], piece: P) -> Result:
    result = function(piece)
    keep_modules()
    return result


class _State:
    """Results by range, in memory and, if asked, in a file."""

    def __init__(self, path: Path | None, job: str) -> None:
        self.results: dict[tuple[int, int], Result] = {}
        self._path = path
        if path is None:
            return
        local_path(path, "the state file")
        if not path.exists() or self._has_ended(path, job):
            path.write_text(json.dumps({"job": job}) + "\n", encoding="utf-8")

    def _has_ended(self, path: Path, job: str) -> bool:
        """Load what is kept, unless it is of a check that ended; returns whether it is."""
        lines = path.read_text(encoding="utf-8").split("\n")
        try:
            head = json.loads(lines[0])
        except ValueError:
            head = None
        if not isinstance(head, dict) or head.get("job") != job:
            raise ConfigError(
                f"{path} is not the state of this job", hint="give another file, or delete it to begin anew"
            )
        kept = [json.loads(line) for line in lines[1:-1]]  # what follows the last line's end was cut off
        if ENDED in kept:
            return True
        self.results = {tuple(one["range"]): one["result"] for one in kept}
        path.write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")
        return False

    def add(self, ranges: Sequence[ByteRange], results: Sequence[Result]) -> None:
        for one, result in zip(ranges, results, strict=True):
            self.results[one.start, one.end] = result
        self._append(
            {"range": [one.start, one.end], "result": it}
            for one, it in zip(ranges, results, strict=True)
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
