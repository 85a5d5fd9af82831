"""Drivers killed with SIGKILL, including the JVM: no record is lost or duplicated."""

import signal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tandemq.spark.lake.delta import DeltaLake
from tests.spark.kills import KILLS, count, kill, kill_many
from tests.spark.logs import LogWriter
from tests.spec import spec


@spec("P01")
def test_driver_killed_between_the_two_commits_loses_and_duplicates_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    writer, lake = LogWriter(tmp_path / "broker-a"), tmp_path / "lake"
    writer.write_many(500)
    assert kill(writer.store, lake, "commit", 2) == -signal.SIGKILL
    before = DeltaLake(lake).rows()
    assert 0 < before < 500
    checkpoint = lake / "_tandemq" / "broker-a"
    assert (checkpoint / "offsets" / "2").exists()
    assert not (checkpoint / "commits" / "2").exists()
    found = count(spark, writer, lake)
    assert (found.records, found.lost, found.duplicated) == (500, 0, 0)


@spec("P01")
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_kills_between_the_commits_and_at_random_lose_and_duplicate_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    found = kill_many(spark, tmp_path)
    assert found.kinds.total() == KILLS
    assert min(found.kinds["commit"], found.kinds["time"]) > 0
    assert (found.lost, found.duplicated) == (0, 0)
