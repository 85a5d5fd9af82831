"""Log offsets that disappear while a job reads: reported in text, in JSON and by exit code, never counted as sound."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tandemq.cli import main
from tandemq.errors import LocalError, OffsetGone
from tandemq.spark.jobs.audit import audit, audit_range
from tandemq.spark.jobs.entries import Scan
from tandemq.spark.jobs.scrub import scrub, scrub_range
from tandemq.spark.jobs.stats import count_range, gather
from tandemq.spark.jobs.tasks import merge_losses
from tandemq.spark.sources.log.files import open_log
from tandemq.spark.sources.log.ranges import split
from tests.spark.logs import SEGMENT_BYTES, LogWriter
from tests.spec import spec

Harm = Callable[[LogWriter], tuple[int, int]]
GONE, SHORTER = "are gone: their file was deleted during the read", "no longer exist: the log is shorter"


def delete(writer: LogWriter) -> tuple[int, int]:
    """Delete the first file, as retention does; returns the lost log offsets."""
    writer.path(0).unlink()
    return 0, SEGMENT_BYTES


def cut(writer: LogWriter) -> tuple[int, int]:
    """Cut the last ten records off the log."""
    start = writer.made[-10].log_offset
    writer.zero(start, writer.end)
    return start, writer.end


@pytest.fixture
def writer(tmp_path: Path) -> LogWriter:
    made = LogWriter(tmp_path / "broker-a")
    made.write_many(900)
    return made


@pytest.fixture
def replica(writer: LogWriter, tmp_path: Path) -> LogWriter:
    shutil.copytree(writer.store, tmp_path / "replica")
    made = LogWriter(tmp_path / "replica")
    made.made, made.end = writer.made, writer.end
    return made


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], Any]], None]:
    """Return a function that makes something happen between the planning of a job and its first task."""

    def planned(module: str, happens: Callable[[], Any]) -> None:
        def plan(*given: Any) -> Any:
            ranges = split(*given)
            happens()
            return ranges

        monkeypatch.setattr(f"tandemq.spark.jobs.{module}.split", plan)

    return planned


@spec("P04")
@pytest.mark.parametrize(("harm", "why"), [(delete, GONE), (cut, SHORTER)])
def test_scrub_and_stats_report_losses_and_count_the_rest(writer: LogWriter, harm: Harm, why: str) -> None:
    files = open_log(writer.store)
    ranges = split(files, 0, writer.end, 1 << 14)
    assert merge_losses([scrub_range(files, one) for one in ranges]) == []
    start, end = harm(writer)
    kept = [made for made in writer.made if not start <= made.log_offset < end]
    scrubbed, counted = [scrub_range(files, one) for one in ranges], [count_range(files, one) for one in ranges]
    for results in (scrubbed, counted):
        assert merge_losses(results) == [{"start": start, "end": end, "why": why}]
    assert sum(one["records"] for one in scrubbed) == len(kept)
    assert sum(cell[3] for one in counted for cell in one["cells"]) == len(kept)


@spec("P04", "P05")
@pytest.mark.parametrize(("harm", "why"), [(delete, GONE), (cut, SHORTER)])
@pytest.mark.parametrize("side", ["first", "second"])
def test_audit_reports_losses_of_either_log(
    spark: SparkSession, writer: LogWriter, replica: LogWriter, planned: Any, harm: Harm, why: str, side: str
) -> None:
    lost: list[tuple[int, int]] = []
    planned("audit", lambda: lost.append(harm(writer if side == "first" else replica)))
    found = audit(spark, writer.store, replica.store, range_bytes=1 << 14)
    assert found.lost == [{"start": lost[0][0], "end": lost[0][1], "why": why, "in": [side]}]
    assert found.bytes_equal <= found.end - (lost[0][1] - lost[0][0])


def test_audit_of_a_shorter_file_is_an_error(writer: LogWriter, replica: LogWriter) -> None:
    files = open_log(writer.store), open_log(replica.store)
    for one in (writer, replica):
        with open(one.path(0), "r+b") as file:
            file.truncate(40_000)
    with pytest.raises(LocalError, match="has a shorter file at log offset 40000"):
        audit_range(*files, split(files[0], 0, writer.end)[0])


def test_rebuild_of_a_log_with_losses_writes_nothing(writer: LogWriter, tmp_path: Path) -> None:
    work = tmp_path / "made" / ".rebuild" / "scan"
    work.mkdir(parents=True)
    files = open_log(writer.store)
    scan, ranges = Scan(files, str(work), (), index=True), split(files, 0, writer.end)
    scan(ranges[0])
    start, end = cut(writer)
    with pytest.raises(OffsetGone, match=rf"log offsets \[{start}, {end}\) no longer exist.*delete .*made, "):
        scan(ranges[-1])
    delete(writer)
    with pytest.raises(OffsetGone, match=r"log offsets \[0, 65536\) are gone"):
        scan(ranges[0])


def test_ranges_with_losses_are_read_again_from_the_same_state_file(
    spark: SparkSession, writer: LogWriter, planned: Any, tmp_path: Path
) -> None:
    state, tail = tmp_path / "state", writer.made[-10].log_offset
    whole = writer.path(tail).read_bytes()
    planned("stats", lambda: cut(writer))
    found = gather(spark, writer.store, state=state)
    assert [(one["start"], one["end"]) for one in found.lost] == [(tail, writer.end)]
    assert sum(row["messages"] for row in found.topics) == 890
    writer.path(tail).write_bytes(whole)
    planned("stats", lambda: None)
    again = gather(spark, writer.store, state=state)
    assert (again.lost, sum(row["messages"] for row in again.topics)) == ([], 900)


@pytest.mark.parametrize("job", ["scrub", "stats", "audit", "report", "rebuild"])
def test_commands_report_losses_in_text_in_json_and_by_exit_code(
    spark: SparkSession, writer: LogWriter, replica: LogWriter, planned: Any, tmp_path: Path, job: str
) -> None:
    assert spark is not None
    whole = {path: path.read_bytes() for path in (writer.store / "commitlog").iterdir()}
    words = {"audit": [replica.store], "report": [tmp_path / "page.html"], "rebuild": [tmp_path / "made"]}.get(job, [])

    def run(*more: str) -> Any:
        for path, data in whole.items():
            path.write_bytes(data)
        return CliRunner().invoke(main, ["spark", job, *map(str, [writer.store, *words]), *more])

    planned("stats" if job == "report" else job, lambda: delete(writer))
    shown = run()
    if job == "rebuild":
        assert (shown.exit_code, "log offsets [0, 65536) are gone: their file" in shown.stderr) == (1, True)
        assert not (tmp_path / "made" / "consumequeue").exists()
        return
    assert shown.exit_code == 3, shown.output
    text = (tmp_path / "page.html").read_text().lower() if job == "report" else shown.stdout
    assert f"lost: log offsets [0, 65536) {GONE}" in text
    result = run("--json")
    assert result.exit_code == 3
    lost = json.loads(result.stdout)["lost"]
    where = {"in": ["first"]} if job == "audit" else {}
    assert lost == (65536 if job == "report" else [{"start": 0, "end": 65536, "why": GONE} | where])


def test_scrub_of_an_unchanged_log_reports_no_loss(spark: SparkSession, writer: LogWriter) -> None:
    assert scrub(spark, writer.store).lost == []
