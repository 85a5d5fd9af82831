"""Files of the data pipeline, written by its own code."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from tandemq.spark.jobs import tasks
from tandemq.spark.jobs.archive import epoch_mark, position_mark
from tandemq.spark.lake.delta import DataFile, DeltaLake
from tandemq.spark.runtime.query_files import ProgressFiles, add_progress


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


# Streaming queries.

WATERMARK_MS = 1_767_608_000_000


def write_checkpoint(
    directory: Path, identity: str, ends: list[dict[str, Any]], commits: int, watermark_ms: int = 0
) -> Path:
    """Write a checkpoint as Spark does: a planned micro-batch per end, of which some are committed."""
    for name in ("offsets", "commits"):
        (directory / name).mkdir(parents=True)
    (directory / "metadata").write_text(json.dumps({"id": identity}))
    for batch, end in enumerate(ends):
        plan = {"batchWatermarkMs": watermark_ms, "batchTimestampMs": 1, "conf": {}}
        (directory / "offsets" / str(batch)).write_text(f"v1\n{json.dumps(plan)}\n{json.dumps(end)}")
        (directory / "offsets" / f".{batch}.crc").write_text("")
        if batch < commits:
            commit = directory / "commits" / str(batch)
            commit.write_text(f'v1\n{{"nextBatchWatermarkMs":{watermark_ms}}}')
            os.utime(commit, (1_767_608_400, 1_767_608_400))
    return directory


def queue_ends(*numbers: int) -> list[dict[str, Any]]:
    return [{"Orders": {"broker-a": {"epoch": 3, "0": number, "1": 0}}} for number in numbers]


def progress(batch: int, rows: int, **more: Any) -> dict[str, Any]:
    """Return a progress report with the fields that Spark 4.3 gives."""
    return {
        "batchId": batch,
        "timestamp": "2026-01-05T10:20:00.000Z",
        "numInputRows": rows,
        "processedRowsPerSecond": 120.5,
        "durationMs": {"triggerExecution": 250},
        "eventTime": {"watermark": "2026-01-05T10:13:20.000Z"},
        "stateOperators": [{"numRowsTotal": 40, "memoryUsedBytes": 2_048, "numRowsDroppedByWatermark": 2}],
        "sources": [{"endOffset": queue_ends(100)[0], "latestOffset": queue_ends(130)[0]}],
    } | more


def write_progress(project: Path, name: str, identity: str, *reports: dict[str, Any], state: str = "running") -> None:
    """Write a progress file by the code that drivers use."""
    known: dict[str, Any] = {"query": name, "id": identity, "state": state, "history": []}
    for one in reports:
        add_progress(known, one)
    ProgressFiles(project / "progress")._write(known)


def write_project(home: Path) -> Path:
    """Write the files of plain and declarative queries: committed, in progress, refreshed, not begun."""
    write_checkpoint(home / "checkpoints" / "bronze", "b", queue_ends(60, 100), 2)
    write_checkpoint(home / "checkpoints" / "gold_minutes", "g", [{"logOffset": n} for n in range(3)], 2, WATERMARK_MS)
    write_checkpoint(home / "checkpoints" / "gold_unpaid", "u", [], 0)
    flows = home / "storage" / "_checkpoints" / "spark_catalog" / "lake"
    write_checkpoint(flows / "silver" / "silver" / "9", "old", [{}], 1)
    write_checkpoint(flows / "silver" / "silver" / "10", "s", queue_ends(5, 12, 19), 3)
    write_progress(home, "gold_minutes", "g", progress(0, 60), progress(1, 40))
    return home
