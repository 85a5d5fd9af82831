"""Drivers killed with SIGKILL, JVM and all: nothing of the log is lost, nothing is in the table twice."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tandemq.spark.archive import Archive, ArchiveOptions
from tandemq.spark.lake import DeltaLake
from tests.spark.archiver import BATCH_BYTES
from tests.spark.logs import LogWriter
from tests.spec import spec

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 200


def driver(store: Path, lake: Path, *fatal: object) -> "subprocess.Popen[str]":
    words = [sys.executable, "-m", "tests.spark.archiver", str(store), str(lake), *map(str, fatal)]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)


def kill_between(store: Path, lake: Path, commit: int) -> None:
    """Let a driver die after so many commits (from 0) to the table, before it tells Spark of the last."""
    with driver(store, lake, commit) as process:
        assert process.wait(SECONDS_MAX) == -signal.SIGKILL


def kill_at(store: Path, lake: Path, version: int) -> None:
    """Let a driver work until the table has a version (or all is done), and kill it with its JVM."""
    with driver(store, lake) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        while process.poll() is None and committed(lake) < version:
            os.sched_yield()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(SECONDS_MAX)


def committed(lake: Path) -> int:
    """The newest version of the table, by its log."""
    return max((int(path.stem) for path in (lake / "_delta_log").glob("*.json")), default=-1)


def check(spark: SparkSession, writer: LogWriter, lake: Path) -> None:
    """Archive the rest, then: every record once."""
    Archive(ArchiveOptions(store=writer.store, lake=lake, bytes_max=BATCH_BYTES)).run(spark)
    rows = spark.read.parquet(*DeltaLake(lake).data_files()).select("commitLogOffset").collect()
    assert sorted(row.commitLogOffset for row in rows) == [made.log_offset for made in writer.made]


@spec("P01")
def test_driver_killed_between_the_two_commits_loses_and_doubles_nothing(spark: SparkSession, tmp_path: Path) -> None:
    writer, lake = LogWriter(tmp_path / "broker-a"), tmp_path / "lake"
    writer.write_many(500)
    kill_between(writer.store, lake, 2)
    before = DeltaLake(lake).rows()
    assert 0 < before < 500
    checkpoint = lake / "_tandemq" / "broker-a"
    assert (checkpoint / "offsets" / "2").exists()
    assert not (checkpoint / "commits" / "2").exists()
    check(spark, writer, lake)


@spec("P01")
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_kills_between_the_commits_and_at_random_lose_and_double_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    dice = random.Random(7)
    writer, lake = LogWriter(tmp_path / "broker-a"), tmp_path / "lake"
    for number in range(24):
        writer.write_many(200)
        if number % 2:
            kill_between(writer.store, lake, dice.randrange(2))
        else:
            kill_at(writer.store, lake, committed(lake) + dice.randrange(4))
    check(spark, writer, lake)
