"""Streaming queries of pipeline projects: what the console reads of checkpoints and progress files."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tandemq.console import query_files
from tandemq.console.pipeline_files import PipelinePaths
from tandemq.console.query_files import read_project
from tandemq.console.services import ConsoleSettings
from tandemq.spark.runtime.query_files import messages_behind
from tests.spec import spec
from tests.unit.console.conftest import Browser
from tests.unit.console.lakes import WATERMARK_MS, progress, queue_ends, write_progress, write_project

BrowserOf = Callable[[str], Browser]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Plain and declarative queries: committed, in progress, refreshed, not begun."""
    return write_project(tmp_path / "shop")


@spec("C11")
def test_queries_have_their_last_committed_batch_watermark_and_rows(project: Path) -> None:
    bronze, minutes, unpaid, silver = read_project(project).queries
    assert (bronze.name, bronze.batch, bronze.is_pending, bronze.rows, bronze.history) == ("bronze", 1, False, 40, [40])
    assert (bronze.at_ms, bronze.watermark_ms, bronze.state) == (1_767_608_400_000, None, "unknown")
    assert (minutes.batch, minutes.is_pending, minutes.watermark_ms) == (1, True, WATERMARK_MS)
    assert (unpaid.name, unpaid.batch, unpaid.is_pending, unpaid.error) == ("gold_unpaid", None, False, "")
    assert (silver.name, silver.id, silver.batch, silver.history) == ("silver", "s", 2, [7, 7])
    assert [one.is_declarative for one in (bronze, minutes, unpaid, silver)] == [False, False, False, True]


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
        assert "in progress" in page
        for text in (
            "bronze",
            "gold_minutes",
            "gold_unpaid",
            "silver (declarative)",
            "120.5",
            "40, 2.0 KiB",
            "2026-01-05",
        ):
            assert text in page
