"""Removal, retention, time travel and upserts of tables on a real S3 server."""

import io
import json
import re
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tandemq.cli import main
from tandemq.errors import ConfigError, LocalError, StoreLocked
from tandemq.spark.jobs import rewrite
from tandemq.spark.jobs.archive import Archive, ArchiveOptions
from tandemq.spark.jobs.moments import TimeSpan
from tandemq.spark.jobs.removal import remove_from_lake
from tandemq.spark.jobs.retention import expire
from tandemq.spark.jobs.state import topic_state
from tandemq.spark.jobs.tasks import run_tasks
from tandemq.spark.lake.delta import DeltaLake
from tandemq.spark.lake.upsert import Upsert
from tandemq.spark.runtime.location import Location, locate
from tests.spark.lakes import offsets_in
from tests.spark.logs import BORN_MS, LogWriter
from tests.spark.s3 import S3
from tests.spark.s3 import SECRET as PASSWORD
from tests.spark.test_removal import BY_KEY, SECRET, made_log
from tests.spark.test_upsert import Frame
from tests.spec import spec

pytestmark = pytest.mark.slow
"""Of jobs on S3 `test_lake_s3` has those of each change."""


def archive(spark: SparkSession, store: Path, lake: Location) -> None:
    Archive(ArchiveOptions(store=store, lake=lake, broker_name="broker-a", bytes_max=20_000)).run(spark)


def holding(s3: S3, lake: Location) -> list[str]:
    """Objects of a lake that contain the value, also in compressed columns."""
    found = []
    for name in s3.names(lake):
        data = s3.get(lake, name)
        if data.endswith(b"PAR1") and len(data) > 4:
            data = str(pq.read_table(io.BytesIO(data)).to_pylist()).encode()
        if f"{SECRET} ".encode() in data:
            found.append(name)
    return found


def run_json(s3: S3, *words: object) -> Any:
    options = [word for name, value in s3.options.items() for word in ("--storage-option", f"{name}={value}")]
    result = CliRunner().invoke(main, ["spark", *map(str, words), *options, "--json"])
    assert result.exit_code == 0, f"{result.output} {result.exception}"
    assert PASSWORD not in result.output
    return json.loads(result.stdout)


@spec("P22", "P37")
def test_messages_are_removed_from_a_lake_on_s3_with_its_older_versions(
    spark: SparkSession, s3: S3, tmp_path: Path
) -> None:
    lake = s3.new_lake()
    writer, secret = made_log(tmp_path / "broker-a", 200)
    archive(spark, writer.store, lake)
    assert DeltaLake(lake).compact()["filesAdded"] == 1
    # What a killed task has left, and bytes of an incomplete file: they may belong to a running archive.
    for name, body in (("part-left.parquet", s3.get(lake, holding(s3, lake)[0])), ("part-torn.parquet", b"PAR1")):
        s3.put(lake, name, body)
    found = run_json(s3, "remove", "--lake", lake.url, "--key", SECRET, "--dry-run")["results"][0]
    before = holding(s3, lake)
    assert (found["messages"], found["version"], len(before) > 2) == (len(secret), None, True)
    done = remove_from_lake(spark, lake, BY_KEY)
    assert (done.messages, done.found_after, done.files, done.old_files) == (len(secret), 0, 1, len(before) - 1)
    assert done.left == [lake.child("part-left.parquet"), lake.child("part-torn.parquet")]
    assert not done.is_complete
    lake.delete("part-left.parquet")
    assert remove_from_lake(spark, lake, BY_KEY).left == [lake.child("part-torn.parquet")]
    assert holding(s3, lake) == []
    writer.write_many(10)
    archive(spark, writer.store, lake)
    assert offsets_in(spark, lake) == [one.log_offset for one in writer.made]


@spec("P23", "P24", "P37")
def test_retention_and_time_travel_of_a_lake_on_s3(spark: SparkSession, s3: S3, tmp_path: Path) -> None:
    writer, lake = LogWriter(tmp_path / "broker-a"), s3.new_lake()
    writer.write_many(200)
    archive(spark, writer.store, lake)
    version = DeltaLake(lake)._table.version()
    rows = topic_state(spark, lake, ["T0"], span=TimeSpan(BORN_MS + 500, BORN_MS + 1_500))
    within = [one for one in writer.made if one.topic == "T0" and 50 <= one.number < 150]
    assert sorted(row.commitLogOffset for row in rows.collect()) == [one.log_offset for one in within]
    latest = topic_state(spark, lake, ["T0"], latest_by_key=True)
    assert latest.count() == 100, "each message has a key of its own"
    shown = run_json(s3, "state", lake.url, "T1", "--output", tmp_path / "out")
    assert shown["messages"] == spark.read.parquet(str(tmp_path / "out")).count() == 100
    done = expire(spark, lake, BORN_MS + 1_200)
    assert (done.rows, done.files_removed > 0, done.files_rewritten) == (120, True, 1)
    assert offsets_in(spark, lake) == [one.log_offset for one in writer.made[120:]]
    assert topic_state(spark, lake, ["T0"], version=version).count() == 100
    writer.write_many(10)
    archive(spark, writer.store, lake)
    dry = run_json(s3, "expire", lake.url, "--topic", "T0", "--older-than", "1d", "--dry-run")
    assert (dry["rows"], dry["topics"]) == (45, {"T0": 45})
    assert len(offsets_in(spark, lake)) == 90
    DeltaLake(lake).vacuum(0)
    with pytest.raises(LocalError, match=f"version {version} of {lake} cannot be read: .* was deleted"):
        topic_state(spark, lake, ["T0"], version=version)
    with pytest.raises(ConfigError, match="has no version 99 that can be read") as caught:
        topic_state(spark, lake, ["T0"], version=99)
    assert "\n" not in str(caught.value)


@spec("P37")
@pytest.mark.parametrize("is_first", [True, False])
def test_of_a_rewriting_and_a_compaction_at_once_one_is_refused_and_nothing_is_lost(
    spark: SparkSession, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    writer, lake = LogWriter(tmp_path / "broker-a"), s3.new_lake()
    writer.write_many(150)
    archive(spark, writer.store, lake)
    table, other = DeltaLake(lake), DeltaLake(lake)

    def expired() -> None:
        assert expire(spark, lake, BORN_MS + 300).rows == 30

    if is_first:  # the compaction commits while the rewriting runs

        def slow(*arguments: Any, **options: Any) -> Any:
            results = run_tasks(*arguments, **options)
            assert table.compact()["filesAdded"] == 1
            return results

        monkeypatch.setattr(rewrite, "run_tasks", slow)
        with pytest.raises(StoreLocked, match=r"is not part of the table any more.*repeat the command"):
            expired()
        assert offsets_in(spark, lake) == [one.log_offset for one in writer.made]
        monkeypatch.setattr(rewrite, "run_tasks", run_tasks)
        expired()
    else:
        merge = other._merged

        def merged_later(*arguments: Any) -> Any:
            row = merge(*arguments)
            expired()
            return row

        monkeypatch.setattr(other, "_merged", merged_later)
        with pytest.raises(StoreLocked, match="by another process"):
            other.compact()
    assert offsets_in(spark, lake) == [one.log_offset for one in writer.made[30:]]
    table.vacuum(0)
    known = [name for name in s3.names(lake) if "/" not in name]
    assert sorted(known) == sorted(table.name_of(path) for path in table.data_files())


@spec("P18", "P37")
def test_rows_are_upserted_into_a_table_on_s3_once(s3: S3) -> None:
    place = s3.new_lake()

    def upsert(rows: list[tuple[Any, ...]], batch: int) -> None:
        call: Any = Upsert(place.url, ["order"], options=s3.options)
        call(Frame(rows), batch)

    upsert([("a", 1, 1), ("b", 2, 1)], 0)
    upsert([("b", 3, 1), ("c", 4, 1)], 1)
    upsert([("a", 99, 1)], 1)
    table = DeltaTable(place.url, storage_options=place.storage_options())
    rows = sorted(tuple(row.values()) for row in table.to_pyarrow_table().to_pylist())
    assert rows == [("a", 1, 1), ("b", 3, 1), ("c", 4, 1)]
    s3.put(place, f"_delta_log/{table.version() + 1:020}.json", b'{"add": {"path": "part-')
    with pytest.raises(LocalError, match="another tool has written half of it") as caught:
        upsert([("d", 1, 1)], 2)
    assert "\n" not in str(caught.value)


@spec("P15", "P37")
@pytest.mark.parametrize(
    ("url", "options", "what"),
    [
        ("s3://nothing/lake", {}, "there is no such bucket"),
        ("s3://lakes/mistyped", {}, "holds no Delta table"),
        (
            "s3://lakes/lake",
            {"aws_endpoint_url": "http://127.0.0.1:1", "max_retries": "0"},
            "the store does not respond",
        ),
        ("s3://lakes/lake", {"aws_allow_http": "false"}, "has no TLS"),
    ],
)
def test_wrong_location_is_an_error_of_one_line(
    spark: SparkSession, s3: S3, url: str, options: dict[str, str], what: str
) -> None:
    place = locate(url, "the lake", s3.options | options)
    jobs = (
        lambda: remove_from_lake(spark, place, BY_KEY),
        lambda: expire(spark, place, int(time.time() * 1000)),
        lambda: topic_state(spark, place, ["T"]),
    )
    for job in jobs:
        with pytest.raises((ConfigError, LocalError), match=re.escape(what)) as caught:
            job()
        assert str(caught.value).startswith(url)
        assert "\n" not in str(caught.value)
