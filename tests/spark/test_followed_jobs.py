"""`--follow` in a process of its own that gets a signal, alone or together with its JVM and Spark's Python workers."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tandemq.errors import TandemError
from tandemq.spark.jobs.archive import Archive, ArchiveOptions
from tandemq.spark.lake.delta import DeltaLake
from tandemq.spark.runtime.location import locate
from tests.blackbox.programs import wait_until
from tests.spark.lakes import offsets_in
from tests.spark.logs import LogWriter
from tests.spark.short import SHORT
from tests.spec import spec

SECONDS_MAX = 600
ROOT = Path(__file__).resolve().parents[2]
"""Where the settings of short sessions find their module."""
PROGRAM = Path(sys.executable).with_name("tandemq")


@spec("P01")
@pytest.mark.parametrize(
    ("number", "send"),
    [
        pytest.param(signal.SIGINT, os.killpg, id="Ctrl-C", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, os.killpg, id="stop of a service"),
    ],
)
def test_followed_archive_ends_with_its_result_when_a_signal_comes(
    spark: SparkSession, tmp_path: Path, number: signal.Signals, send: Callable[[int, int], None]
) -> None:
    writer, lake = LogWriter(tmp_path / "broker-a"), tmp_path / "lake"
    writer.write_many(100)
    settings = (SHORT | {"spark.driver.memory": "512m"}).items()
    words: list[str | Path] = [
        PROGRAM,
        "spark",
        "archive",
        writer.store,
        lake,
        "--follow",
        "--json",
        "--master",
        "local[1]",
    ]
    words += [word for name, value in settings for word in ("--conf", f"{name}={value}")]
    with subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            wait_until(
                lambda: process.poll() is not None or rows_in(lake) == 100, "the first commit", seconds=SECONDS_MAX
            )
            writer.write_many(50)
            wait_until(
                lambda: process.poll() is not None or rows_in(lake) == 150, "the next commit", seconds=SECONDS_MAX
            )
            writer.write_many(50)
            send(process.pid, number)
            out, errors = process.communicate(timeout=SECONDS_MAX)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, errors
    assert 150 <= json.loads(out)["rows"] <= 200, out
    assert "py4j" not in errors
    assert "stacktrace" not in errors.lower()
    Archive(ArchiveOptions(store=writer.store, lake=lake)).run(spark)
    assert offsets_in(spark, locate(lake, "the lake")) == [one.log_offset for one in writer.made]


def wait_for_rows(process: "subprocess.Popen[str]", lake: Path, rows: int) -> None:
    """Wait until a table has some number of rows, or the process has ended."""
    wait_until(lambda: process.poll() is not None or rows_in(lake) == rows, f"{rows} rows", seconds=SECONDS_MAX)


def rows_in(lake: Path) -> int:
    """Number of rows; 0 while there is no table."""
    try:
        return DeltaLake(lake).rows()
    except TandemError:
        return 0
