"""The data pipeline: its files as its own code writes them, shown without its packages; broken files harm nothing."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tandemq.console import pipeline_files
from tandemq.console.pipeline_files import PipelinePaths, read_pipeline
from tandemq.console.services import ConsoleSettings
from tandemq.spark.jobs.archive import epoch_mark, position_mark
from tandemq.spark.lake.delta import COLLECTED, DeltaLake
from tests.spec import spec
from tests.unit.console.conftest import Browser
from tests.unit.console.fakes import MASTER, FakeAdmin
from tests.unit.console.lakes import write_checks, write_lake

BrowserOf = Callable[[str], Browser]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return write_lake(tmp_path / "lake")


@pytest.fixture
def checks(tmp_path: Path) -> tuple[Path, ...]:
    return write_checks(tmp_path)


def test_marks_have_the_names_that_the_pipeline_writes() -> None:
    assert position_mark("b") == f"{pipeline_files.POSITION}b"
    assert epoch_mark("b") == f"{pipeline_files.EPOCH}b"
    assert COLLECTED == pipeline_files.COLLECTED


@spec("C09")
def test_lake_shows_positions_rows_and_times_of_its_commits(lake: Path) -> None:
    (found,) = read_pipeline(PipelinePaths((lake,))).lakes
    assert (found.error, found.version, found.commits, found.rows, found.bytes) == ("", 4, 5, [1, 2, 3], 1_500)
    assert (found.logs["broker-a"].position, found.logs["broker-a"].epoch) == (3_096, 2)
    assert 0 < found.committed_ms <= found.logs["broker-z"].at_ms
    assert not found.is_collected and found.compacted_ms == 0


@spec("C09")
def test_only_the_newest_commits_are_read(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_files, "COMMITS_MAX", 2)
    (found,) = read_pipeline(PipelinePaths((lake,))).lakes
    assert (found.commits, found.rows, set(found.logs)) == (2, [3], {"broker-a", "broker-z"})


def test_collected_lake_is_recognized(tmp_path: Path) -> None:
    DeltaLake(tmp_path / "lake", create=True).commit([], {COLLECTED: 7})
    (found,) = read_pipeline(PipelinePaths((tmp_path / "lake",))).lakes
    assert found.is_collected and found.logs == {}


@spec("C09")
def test_checks_show_their_progress_and_faults(checks: tuple[Path, ...]) -> None:
    scrub, running, audit = read_pipeline(PipelinePaths(states=checks)).checks
    assert (scrub.kind, scrub.subject, scrub.is_done, scrub.bytes, scrub.records, scrub.faults, scrub.first_fault) == (
        *("scrub", "/store/broker-a", True),
        *(2_000, 19, 2, 1_200),
    )
    assert (running.subject, running.is_done, running.faults) == ("/a b/c", False, 0)
    assert (audit.kind, audit.subject, audit.faults, audit.first_fault) == ("audit", "/first /second", 4, 40)


@spec("C09")
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "malformed"),
        (b"{}\n", "malformed"),
        (b"[1]\n", "malformed"),
        (b"\xff\xfe\n", "line 1"),
        (b'{"job": "rebuild /x 1"}\n', "not the state of a scrub"),
        (b'{"job": "scrub /x 1"}\n{"range": [0]}\n', ""),
        (b'{"job": "scrub /x 1"}\n{"range": [0, "x"], "result": {}}\n', ""),
        (b'{"job": "scrub /x 1"}\n{"range": [0, 5], "result": {"records": 1}}\n', "malformed"),
        (b'{"job": "scrub /x 1"}\nnonsense\n{"ended": true}\n', "line 2"),
    ],
)
def test_malformed_state_files_have_an_error(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(content)
    (found,) = read_pipeline(PipelinePaths(states=(path,))).checks
    assert found.error and why in found.error


def test_line_that_is_being_written_is_left_out(checks: tuple[Path, ...]) -> None:
    with open(checks[1], "ab") as file:
        file.write(b'{"range": [1000, 20')
    found = read_pipeline(PipelinePaths(states=checks)).checks[1]
    assert (found.error, found.bytes) == ("", 1_000)


@spec("C09")
def test_malformed_missing_and_large_lakes_have_an_error(
    lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty" / "_delta_log").mkdir(parents=True)
    (tmp_path / "bad" / "_delta_log").mkdir(parents=True)
    for number, text in enumerate(('{"txn": {}}', '{"add": {"size": 1, "stats": "{"}}', "[]", "7")):
        (tmp_path / "bad" / "_delta_log" / f"{number:020}.json").write_text(text + "\n")
        (found,) = read_pipeline(PipelinePaths((tmp_path / "bad",))).lakes
        assert found.error, text
        (tmp_path / "bad" / "_delta_log" / f"{number:020}.json").unlink()
    monkeypatch.setattr(pipeline_files, "COMMIT_BYTES_MAX", 100)
    paths = (lake, tmp_path / "none", tmp_path / "empty", tmp_path / "scrub")
    large, *others = (one.error for one in read_pipeline(PipelinePaths(paths)).lakes)
    assert others == ["there is no lake yet", "it has no commits", "there is no lake yet"]
    assert "more than 100 bytes" in large


# Pages.


class TestPages:
    @pytest.fixture
    def settings(self, lake: Path, checks: tuple[Path, ...], tmp_path: Path) -> ConsoleSettings:
        report = tmp_path / "report.html"
        report.write_text("<script>alert(1)</script>")
        os.utime(report, (1_700_000_000, 1_700_000_000))
        paths = PipelinePaths((lake, tmp_path / "none"), (*checks, tmp_path / "gone"), (report, tmp_path / "gone"))
        return ConsoleSettings(pipeline=paths)

    @spec("C09")
    def test_page_shows_how_far_a_lake_is_behind_the_master(self, browser_of: BrowserOf) -> None:
        page = browser_of("viewer").get("/pipeline").text
        assert "Lake lake" in page and "6 messages" in page
        assert '3,096</td><td class="number">4,096</td><td class="number">1000 B</td>' in page
        assert "broker-z" in page and "there is no lake yet" in page
        assert "2 faults, the first at log offset 1200" in page and "no faults so far" in page
        assert "2023-11-14" in page and "No such file" in page

    @spec("C09")
    def test_position_is_shown_without_an_end_if_no_master_answers(
        self, browser_of: BrowserOf, cluster: FakeAdmin
    ) -> None:
        del cluster.answers[MASTER]
        page = browser_of("viewer").get("/pipeline").text
        assert "3,096" in page and "4,096" not in page

    def test_report_is_a_file_that_no_browser_shows(self, browser_of: BrowserOf) -> None:
        browser = browser_of("viewer")
        response = browser.get("/pipeline/reports/0")
        assert response.text == "<script>alert(1)</script>"
        assert response.headers["content-disposition"].startswith("attachment")
        for path in ("/pipeline/reports/1", "/pipeline/reports/2", "/pipeline/reports/-1", "/pipeline/reports/..%2fx"):
            assert browser.get(path).status_code == 404, path


def test_page_says_how_to_show_something(browser_of: BrowserOf) -> None:
    assert "--lake, --project, --job-state and --report" in browser_of("viewer").get("/pipeline").text
