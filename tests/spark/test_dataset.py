"""The lake as a data set: retention, and the state of topics at a moment."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tandemq.cli import main
from tandemq.errors import ConfigError, LocalError
from tandemq.spark.jobs.archive import Archive, ArchiveOptions
from tandemq.spark.jobs.moments import TimeSpan
from tandemq.spark.jobs.replay import replay_to_store
from tandemq.spark.jobs.retention import expire
from tandemq.spark.jobs.state import topic_state
from tandemq.spark.lake.delta import DeltaLake
from tests.spark.logs import BORN_MS, LogWriter
from tests.spec import spec


def archive(spark: SparkSession, store: Path, lake: Path) -> int:
    return Archive(ArchiveOptions(store=store, lake=lake, broker_name="broker-a")).run(spark).rows


def stored_ms(number: int) -> int:
    """Return the time at which `LogWriter` stores a message."""
    return BORN_MS + 10 * number + number % 5


def held(lake: Path) -> list[int]:
    """Return the log offsets of all rows."""
    tables = [pq.read_table(path, columns=["commitLogOffset"]) for path in DeltaLake(lake).data_files()]
    return sorted(offset for table in tables for offset in table.column(0).to_pylist())


def run_json(*words: object) -> Any:
    result = CliRunner().invoke(main, ["spark", *map(str, words), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.slow
@spec("P23")
def test_old_rows_leave_the_lake_and_the_archive_continues(spark: SparkSession, tmp_path: Path) -> None:
    writer, lake = LogWriter(tmp_path / "broker-a"), tmp_path / "lake"
    for count in (400, 300, 300):
        writer.write_many(count)
        archive(spark, writer.store, lake)
    files = DeltaLake(lake).data_files()
    assert len(files) == 3
    files.sort(key=lambda path: int(pq.read_table(path).column("commitLogOffset")[0].as_py()))
    before = datetime.fromtimestamp(stored_ms(500) / 1000, UTC).isoformat()
    dry = run_json("expire", lake, "--before", before, "--dry-run")
    assert (dry["rows"], dry["files_removed"], dry["files_rewritten"], dry["version"]) == (500, 1, 1, None)
    assert len(held(lake)) == 1000
    done = run_json("expire", lake, "--before", before)
    assert (done["rows"], done["files_removed"], done["files_rewritten"]) == (500, 1, 1)
    assert done["topics"] == {"T0": 250, "T1": 250}
    assert held(lake) == [one.log_offset for one in writer.made[500:]]
    assert files[2] in DeltaLake(lake).data_files()
    # By topic, while the archive goes on: its marks are untouched, and what was deleted does not return.
    assert expire(spark, lake, stored_ms(700), topics=["T0"]).topics == {"T0": 100}
    writer.write_many(50)
    assert archive(spark, writer.store, lake) == 50
    kept = [one.log_offset for one in writer.made[500:] if one.number >= 700 or one.topic != "T0"]
    assert held(lake) == kept
    DeltaLake(lake).compact()
    DeltaLake(lake).vacuum(0)
    assert held(lake) == kept
    assert expire(spark, lake, stored_ms(700)).rows == 100
    assert expire(spark, lake, stored_ms(700)).version is None
    # The log is restored from the first whole file that is left.
    restored = replay_to_store(spark, lake, "broker-a", tmp_path / "again", segment_bytes=writer.segment_bytes)
    start = (writer.made[700].log_offset // writer.segment_bytes + 1) * writer.segment_bytes
    assert restored.log_start == start
    name = f"{start:020d}"
    assert (tmp_path / "again/commitlog" / name).read_bytes() == (writer.store / "commitlog" / name).read_bytes()
    assert run_json("expire", lake, "--older-than", "1d")["rows"] > 0
    assert held(lake) == []
    writer.write_many(1)
    assert archive(spark, writer.store, lake) == 1


@spec("P24")
def test_state_of_a_topic_at_a_moment(spark: SparkSession, tmp_path: Path) -> None:
    writer, lake = LogWriter(tmp_path / "broker-a"), tmp_path / "lake"
    for number in range(300):
        keys = b"KEYS\x01k%d\x02" % (number % 7) if number % 11 else b""
        body = b"" if number in (150, 290) else b"%d" % number
        writer.write(body, topic="Orders" if number % 3 else "Other", properties=keys)
    archive(spark, writer.store, lake)
    version = DeltaLake(lake)._table.version()
    orders = [number for number in range(300) if number % 3]

    def numbers(**given: Any) -> list[int]:
        return sorted(int(row.commitLogOffset) for row in topic_state(spark, lake, ["Orders"], **given).collect())

    def offsets(wanted: list[int]) -> list[int]:
        return [writer.made[number].log_offset for number in wanted]

    assert numbers() == offsets(orders)
    span = TimeSpan(stored_ms(50), stored_ms(200))
    assert numbers(span=span) == offsets([number for number in orders if 50 <= number < 200])
    for end in (300, 200, 120):
        latest = {number % 7: number for number in orders if number < end and number % 11}
        expected = sorted(number for number in latest.values() if number not in (150, 290))
        assert numbers(span=TimeSpan(None, stored_ms(end)), latest_by_key=True) == offsets(expected)
    writer.write_many(20)
    archive(spark, writer.store, lake)
    assert topic_state(spark, lake, ["T0", "T1"]).count() == 20
    assert topic_state(spark, lake, ["T0", "T1"], version=version).count() == 0
    at = datetime.fromtimestamp(stored_ms(200) / 1000, UTC).isoformat()
    shown = run_json("state", lake, "Orders", "--at", at, "--latest-by-key", "--output", tmp_path / "out")
    assert shown["messages"] == spark.read.parquet(str(tmp_path / "out")).count() == 7
    with pytest.raises(ConfigError, match="has no version 99"):
        topic_state(spark, lake, ["Orders"], version=99)
    DeltaLake(lake).compact()
    DeltaLake(lake).vacuum(0)
    with pytest.raises(LocalError, match=f"version {version} of .* cannot be read: .* was deleted"):
        topic_state(spark, lake, ["Orders"], version=version)
