"""Streaming queries of pipeline projects: what the console reads of checkpoints and progress files."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandemq.console import query_files
from tandemq.console.pipeline_files import PipelinePaths
from tandemq.console.query_files import read_project
from tandemq.console.services import ConsoleSettings
from tandemq.spark.runtime.query_files import ProgressFiles, add_progress, messages_behind
from tests.spec import spec
from tests.unit.console.conftest import Browser

BrowserOf = Callable[[str], Browser]
WATERMARK_MS = 1_767_608_000_000
SECOND_MS = 1_000


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


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Plain and declarative queries: committed, in progress, refreshed, not begun."""
    home = tmp_path / "shop"
    write_checkpoint(home / "checkpoints" / "bronze", "b", queue_ends(60, 100), 2)
    write_checkpoint(home / "checkpoints" / "gold_minutes", "g", [{"logOffset": n} for n in range(3)], 2, WATERMARK_MS)
    write_checkpoint(home / "checkpoints" / "gold_unpaid", "u", [], 0)
    flows = home / "storage" / "_checkpoints" / "spark_catalog" / "lake"
    write_checkpoint(flows / "silver" / "silver" / "9", "old", [{}], 1)
    write_checkpoint(flows / "silver" / "silver" / "10", "s", queue_ends(5, 12, 19), 3)
    write_progress(home, "gold_minutes", "g", progress(0, 60), progress(1, 40))
    return home


@spec("C11")
def test_queries_have_their_last_committed_batch_watermark_and_rows(project: Path) -> None:
    bronze, minutes, unpaid, silver = read_project(project).queries
    assert (bronze.name, bronze.batch, bronze.is_pending, bronze.rows, bronze.history) == ("bronze", 1, False, 40, [40])
    assert (bronze.at_ms, bronze.watermark_ms, bronze.state) == (1_767_608_400_000, None, "unknown")
    assert (minutes.batch, minutes.is_pending, minutes.watermark_ms) == (1, True, WATERMARK_MS)
    assert (unpaid.name, unpaid.batch, unpaid.is_pending, unpaid.error) == ("gold_unpaid", None, False, "")
    assert (silver.name, silver.id, silver.batch, silver.history) == ("silver", "s", 2, [7, 7])


@spec("C11")
def test_progress_file_adds_speed_state_late_rows_and_lag(project: Path) -> None:
    minutes = next(one for one in read_project(project).queries if one.name == "gold_minutes")
    assert (minutes.state, minutes.rows, minutes.rows_per_s, minutes.history) == ("running", 40, 120.5, [60, 40])
    assert (minutes.state_rows, minutes.state_bytes, minutes.late_rows, minutes.behind) == (40, 2_048, 4, 30)


def test_lag_counts_queues_of_clusters_only() -> None:
    assert messages_behind([{"endOffset": {"logOffset": 3}, "latestOffset": {"logOffset": 4}}]) is None
    assert messages_behind([{"endOffset": "null", "latestOffset": json.dumps(queue_ends(9)[0])}]) == 9
    lagged = queue_ends(9)[0] | {"/lag": {"Orders": 3}}
    assert messages_behind([{"endOffset": queue_ends(4)[0], "latestOffset": lagged}, {}]) == 5


def test_name_of_a_query_cannot_leave_the_directory(tmp_path: Path) -> None:
    write_progress(tmp_path, "../../etc/x", "1", progress(0, 1))
    assert [path.name for path in (tmp_path / "progress").iterdir()] == [".._.._etc_x.json"]


@spec("C11")
@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("metadata", "{}", "malformed"),
        ("metadata", "x", "malformed"),
        ("commits/1", "v1\n[]", "malformed"),
        ("commits/1", "", "malformed"),
        ("offsets/1", 'v1\n{}\n{"Orders": {"broker-a": {"0": "x"}}}', "malformed"),
        ("offsets/1", f"v1\n{'x' * 2_000}", "more than 1000 bytes"),
    ],
)
def test_malformed_checkpoint_has_an_error_and_others_none(
    project: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str, why: str
) -> None:
    monkeypatch.setattr(query_files, "FILE_BYTES_MAX", 1_000)
    (project / "checkpoints" / "bronze" / name).write_text(content)
    bronze, *others = read_project(project).queries
    assert why in bronze.error
    assert [one.error for one in others] == ["", "", ""]


@spec("C11")
def test_malformed_progress_file_is_named_and_harms_no_other(project: Path) -> None:
    (project / "progress" / "other.json").write_text('{"id": 7}')
    found = {one.name: one.error for one in read_project(project).queries}
    assert found.pop("other") == "its progress file is malformed"
    assert set(found.values()) == {""}


def test_directories_without_queries_say_so(tmp_path: Path) -> None:
    assert read_project(tmp_path / "none").error == "there is no such directory"
    assert read_project(tmp_path).error == "it has no streaming queries yet"


class TestPages:
    @pytest.fixture
    def settings(self, project: Path, tmp_path: Path) -> ConsoleSettings:
        return ConsoleSettings(pipeline=PipelinePaths(projects=(project, tmp_path / "none")))

    @spec("C11")
    def test_page_shows_queries(self, browser_of: BrowserOf) -> None:
        page = browser_of("viewer").get("/pipeline").text
        assert "Project shop" in page
        assert "there is no such directory" in page
        assert "micro-batch in progress" in page
        for text in ("bronze", "gold_minutes", "gold_unpaid", "silver", "120.5", "40, 2.0 KiB", "2026-01-05"):
            assert text in page
