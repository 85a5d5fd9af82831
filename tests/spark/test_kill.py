"""Drivers killed with SIGKILL, JVM and all: nothing of the log is lost, nothing is in the table twice."""

import random
import signal
import subprocess
import sys
from collections import Counter
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
KILLS = 24
MOMENT_S = 10.0
"""A driver's life, from its first query on, lasts about so long."""


def kill(store: Path, lake: Path, when: str, number: float) -> int:
    """Let a driver archive until it dies by its own hand; returns its exit code, 0 if it was done before that."""
    words = [sys.executable, "-m", "tests.spark.archiver", str(store), str(lake), when, str(number)]
    with subprocess.Popen(words, cwd=ROOT, start_new_session=True) as process:
        return process.wait(SECONDS_MAX)


def check(spark: SparkSession, writer: LogWriter, lake: Path) -> None:
    """Archive the rest, then: every record once."""
    Archive(ArchiveOptions(store=writer.store, lake=lake, bytes_max=BATCH_BYTES)).run(spark)
    rows = spark.read.parquet(*DeltaLake(lake).data_files()).select("commitLogOffset").collect()
    assert sorted(row.commitLogOffset for row in rows) == [made.log_offset for made in writer.made]


@spec("P01")
def test_driver_killed_between_the_two_commits_loses_and_doubles_nothing(spark: SparkSession, tmp_path: Path) -> None:
    writer, lake = LogWriter(tmp_path / "broker-a"), tmp_path / "lake"
    writer.write_many(500)
    assert kill(writer.store, lake, "commit", 2) == -signal.SIGKILL
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
    killed: Counter[str] = Counter()
    number = 0
    while killed.total() < KILLS:
        writer.write_many(200)
        when = "commit" if number % 2 else "time"
        moment = dice.randrange(2) if number % 2 else dice.uniform(0.0, MOMENT_S)
        code = kill(writer.store, lake, when, moment)
        assert code in (0, -signal.SIGKILL)
        killed[when] += code != 0
        number += 1
    check(spark, writer, lake)
