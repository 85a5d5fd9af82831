"""Files of the data pipeline, written by its own code."""

import json
from pathlib import Path
from typing import NamedTuple

from tandemq.spark.jobs import tasks
from tandemq.spark.jobs.archive import epoch_mark, position_mark
from tandemq.spark.lake.delta import DataFile, DeltaLake


class Span(NamedTuple):
    """A range of log offsets."""

    start: int
    end: int


def write_lake(path: Path) -> Path:
    """Write a lake with three commits of broker-a, up to log offset 3,096, and one of another group."""
    table = DeltaLake(path, create=True)
    for number in range(3):
        files = [DataFile(f"part-{number}.parquet", number + 1, 500, json.dumps({"numRecords": number + 1}))]
        table.commit(files, {position_mark("broker-a"): 1_096 + number * 1_000, epoch_mark("broker-a"): 2})
    table.commit([], {position_mark("broker-z"): 0})
    return path


def write_state(path: Path, job: str, results: list[tasks.Result], *, is_done: bool) -> Path:
    """Write the state file of a job."""
    state = tasks._State(path, job)
    state.add([Span(n * 1_000, (n + 1) * 1_000) for n in range(len(results))], results)
    if is_done:
        state.end()
    return path


def write_checks(directory: Path) -> tuple[Path, ...]:
    """Write the state files of a scrub that found damage, of one that has not ended, and of an audit."""
    good: tasks.Result = {"records": 10, "damages": [], "lost": []}
    bad: tasks.Result = {"records": 9, "damages": [{"commitLogOffset": 1_500}, {"commitLogOffset": 1_200}], "lost": []}
    audit = {"counts": {"different": 3, "missing": 1}, "differences": [{"commitLogOffset": 40}], "lost": []}
    return (
        write_state(directory / "scrub.json", "scrub /store/broker-a 1000", [good, bad], is_done=True),
        write_state(directory / "running.json", "scrub /a b/c 1000", [good], is_done=False),
        write_state(directory / "audit.json", "audit /first /second 1000", [audit], is_done=True),
    )
