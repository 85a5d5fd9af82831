"""`tandemq spark`: output and exit codes of the commands, on the session that is already open."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from tandemq.cli import main
from tandemq.spark.lake.delta import DeltaLake
from tandemq.spark.runtime.java import find_java
from tests.spark.logs import LogWriter

JAVA = "of a session that was already running"


@pytest.fixture
def writer(tmp_path: Path, spark: SparkSession) -> LogWriter:
    assert spark is not None
    made = LogWriter(tmp_path / "broker-a")
    made.write_many(500)
    return made


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["spark", *map(str, words)])


def run_json(*words: object, code: int = 0) -> Any:
    result = run(*words, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_archive_compact_and_vacuum_print_their_results(writer: LogWriter, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    first = run_json("archive", writer.store, lake, "--batch-bytes", 30_000, "--broker-name", "orders")
    assert (first["rows"], first["end"], first["damaged"]) == (500, writer.end, 0)
    assert run_json("archive", writer.store, lake, "--broker-name", "orders")["commits"] == 0
    to_store = ("--to-store", tmp_path / "again", "--broker-name", "orders", "--segment-bytes", writer.segment_bytes)
    again = run_json("replay", lake, *to_store, "--conf", "spark.sql.shuffle.partitions=2")
    assert (again["rows"], again["logEnd"]) == (500, writer.end)
    assert first["java"] == again["java"] == JAVA
    assert run_json("compact", lake)["rows"] == 500
    listed = run_json("vacuum", lake, "--hours", 0, "--dry-run")
    assert len(listed["files"]) == first["files"]
    assert run_json("vacuum", lake, "--hours", 0)["files"] == listed["files"]
    assert sum(row["messages"] for row in run_json("stats", lake)["topics"]) == 500


@pytest.mark.slow
def test_pipeline_run_prints_its_java(tmp_path: Path) -> None:
    (tmp_path / "spark-pipeline.yml").write_text("nothing: of a pipeline\n")
    done = run("pipeline", tmp_path, "--run", "--json")
    assert done.exit_code != 0
    java = find_java()
    assert json.loads(done.stdout)["java"] == f"{java.version} from {java.origin}"


def test_checks_exit_with_3_if_they_find_faults(writer: LogWriter, tmp_path: Path) -> None:
    replica = tmp_path / "replica"
    shutil.copytree(writer.store, replica)
    assert run_json("scrub", writer.store) | {"damages": [], "java": JAVA} == run_json("scrub", writer.store)
    assert run_json("audit", writer.store, replica)["diverges_at"] is None
    harmed = writer.made[77].log_offset
    LogWriter(replica).flip(harmed + 92)
    assert run_json("audit", writer.store, replica, code=3)["diverges_at"] == harmed
    assert run_json("scrub", replica, code=3)["damages"][0]["commitLogOffset"] == harmed
    shown = run("audit", writer.store, replica)
    assert shown.exit_code == 3
    assert "corrupt" in shown.stdout


def test_rebuild_and_report_write_their_files(writer: LogWriter, tmp_path: Path) -> None:
    made = run_json(
        "rebuild", writer.store, tmp_path / "made", "--queue-file-bytes", 4000, "--slots", 100, "--entries", 2000
    )
    assert (made["queues"], made["entries"], made["keys"]) == (4, 500, 1000)
    page = tmp_path / "page.html"
    state, other = tmp_path / "state", tmp_path / "state.replica-1"
    words = ("report", writer.store, page, "--replica", writer.store, "--state", state, "--range-bytes", 1 << 16)
    once = run_json(*words)
    assert (once["diverging"], once["java"]) == (0, JAVA)
    assert "<svg" in page.read_text()
    kept = state.read_bytes(), other.read_bytes()
    assert all(len(text.splitlines()) > 2 for text in kept)
    assert run_json(*words)["bytes"] == once["bytes"]
    assert (state.read_bytes(), other.read_bytes()) == kept


def test_report_validates_its_arguments_before_it_counts(writer: LogWriter, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    DeltaLake(lake, create=True)
    for words, says, code in (
        ((writer.store, tmp_path / "none" / "page.html"), "there is no directory", 2),
        ((lake, tmp_path / "page.html", "--replica", writer.store), "holds no commit log", 1),
    ):
        result = run("report", *words)
        assert (result.exit_code, says in result.stderr) == (code, True), result.output
        assert "stats:" not in result.stderr


def test_wrong_settings_of_spark_are_refused(writer: LogWriter) -> None:
    result = run("scrub", writer.store, "--conf", "spark.driver.memory")
    assert result.exit_code == 2
    assert "NAME=VALUE" in result.stderr
