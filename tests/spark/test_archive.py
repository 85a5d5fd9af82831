"""Archive and lake: each record exactly once, whatever is repeated."""

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from tandemq.errors import ConfigError, LocalError, StoreDamaged
from tandemq.spark.jobs.archive import Archive, ArchiveOptions, ArchiveResult
from tandemq.spark.lake.delta import DataFile, DeltaLake
from tests.blackbox.programs import wait_until
from tests.samples import slow
from tests.spark.logs import LogWriter
from tests.spec import spec


class Died(Exception):
    """The driver died between the two commits."""


@pytest.fixture
def writer(tmp_path: Path) -> LogWriter:
    return LogWriter(tmp_path / "broker-a")


def archive(spark: SparkSession, writer: LogWriter, lake: Path, **options: Any) -> ArchiveResult:
    return Archive(ArchiveOptions(store=writer.store, lake=lake, **options)).run(spark)


def offsets_in(spark: SparkSession, lake: Path) -> list[int]:
    frame = spark.read.parquet(*DeltaLake(lake).data_files())
    return sorted(row.commitLogOffset for row in frame.select("commitLogOffset").collect())


@spec("P01")
def test_archive_resumes_with_and_without_its_checkpoint(
    spark: SparkSession, writer: LogWriter, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    writer.write_many(500)
    first = archive(spark, writer, lake, bytes_max=50_000)
    assert (first.rows, first.end) == (500, writer.end)
    assert first.commits > 1
    assert archive(spark, writer, lake).commits == 0
    writer.write_many(100)
    assert archive(spark, writer, lake).rows == 100
    shutil.rmtree(lake / "_tandemq")
    writer.write_many(100)
    assert archive(spark, writer, lake).rows == 100
    assert offsets_in(spark, lake) == [made.log_offset for made in writer.made]


def test_driver_death_between_the_two_commits_duplicates_nothing(
    spark: SparkSession, writer: LogWriter, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    writer.write_many(500)
    options = ArchiveOptions(store=writer.store, lake=lake, bytes_max=50_000)

    def die(_batch: int) -> None:
        raise Died

    for _ in range(2):
        with pytest.raises(Exception, match="Died"):  # Spark wraps what foreachBatch raises
            Archive(options, after_commit=die).run(spark)
    assert archive(spark, writer, lake).end == writer.end
    assert offsets_in(spark, lake) == [made.log_offset for made in writer.made]


def test_checkpoint_behind_the_lake_is_refused(spark: SparkSession, writer: LogWriter, tmp_path: Path) -> None:
    lake, own = tmp_path / "lake", tmp_path / "own"
    writer.write_many(100)
    archive(spark, writer, lake, checkpoint=own)
    writer.write_many(100)
    archive(spark, writer, lake)
    writer.write_many(100)
    with pytest.raises(LocalError, match=r"holds the log of broker-a up to \d+.*delete the checkpoint"):
        archive(spark, writer, lake, checkpoint=own)
    assert len(offsets_in(spark, lake)) == 200


@spec("P04")
def test_rewritten_log_is_refused_also_without_its_checkpoint(
    spark: SparkSession, writer: LogWriter, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lake = tmp_path / "lake"
    epochs = writer.store / "epochFileCheckpoint"
    epochs.write_text("1\n0\n1-0\n")
    writer.write_many(100)
    archive(spark, writer, lake)
    known, parting = writer.end, writer.made[50].log_offset
    shutil.rmtree(lake / "_tandemq")
    writer.write_many(1)
    assert archive(spark, writer, lake).rows == 1
    other = LogWriter(tmp_path / "other")
    other.write_many(200)
    shutil.rmtree(writer.store / "commitlog")
    shutil.copytree(other.store / "commitlog", writer.store / "commitlog")
    epochs.write_text(f"2\n0\n1-0\n2-{parting}\n")
    for is_kept in (True, False):
        if not is_kept:
            shutil.rmtree(lake / "_tandemq")
        with pytest.raises(StoreDamaged, match=r"in epoch 1; in.*belong to epoch 2.*rewritten.*allow-loss"):
            archive(spark, writer, lake)
        assert DeltaLake(lake).rows() == 101
    done = archive(spark, writer, lake, fails_on_loss=False)
    assert "rewritten after a failover; continuing after it" in caplog.text
    assert done.start >= known
    assert done.rows == 99
    assert archive(spark, writer, lake).rows == 0


@spec("P04")
@pytest.mark.parametrize("is_kept", [True, slow(False)])
def test_checkpoint_of_a_deleted_lake_is_refused(
    spark: SparkSession, writer: LogWriter, tmp_path: Path, is_kept: bool
) -> None:
    lake, own = tmp_path / "lake", tmp_path / "own"
    writer.write_many(100)
    if is_kept:
        archive(spark, writer, lake, checkpoint=own)
        shutil.copytree(lake, tmp_path / "older")
    writer.write_many(100)
    archive(spark, writer, lake, checkpoint=own)
    shutil.rmtree(lake)
    if is_kept:
        (tmp_path / "older").rename(lake)
    writer.write_many(100)
    holds = f"up to {writer.made[100].log_offset if is_kept else 0}"
    for _ in range(2):
        with pytest.raises(
            LocalError, match=rf"broker-a {holds}, and the checkpoint .*own would add .*ahead of the lake"
        ):
            archive(spark, writer, lake, checkpoint=own)
        assert DeltaLake(lake).rows() == (100 if is_kept else 0)
    shutil.copytree(lake, tmp_path / "copy")
    shutil.copytree(own, tmp_path / "own-copy")
    lost = archive(spark, writer, tmp_path / "copy", checkpoint=tmp_path / "own-copy", fails_on_loss=False)
    assert lost.rows == 100
    shutil.rmtree(own)
    archive(spark, writer, lake, checkpoint=own)
    assert offsets_in(spark, lake) == [made.log_offset for made in writer.made]


@spec("P04")
@pytest.mark.parametrize("is_kept", [slow(True), False])
def test_archive_without_a_committed_batch_detects_deleted_records(
    spark: SparkSession, writer: LogWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    lake = tmp_path / "lake"
    writer.write_many(900)

    def die(*_: object) -> int:
        raise Died

    with monkeypatch.context() as patch, pytest.raises(Exception, match="Died"):
        patch.setattr(Archive, "_commit", die)
        archive(spark, writer, lake)
    assert DeltaLake(lake).rows() == 0
    writer.path(0).unlink()
    if not is_kept:
        shutil.rmtree(lake / "_tandemq")
    for _ in range(2):
        with pytest.raises(Exception, match=r"log offset 0 is gone; the log begins at 65536"):
            archive(spark, writer, lake)
        assert DeltaLake(lake).rows() == 0
    kept = [made.log_offset for made in writer.made if made.log_offset >= 65536]
    assert archive(spark, writer, lake, fails_on_loss=False).rows == len(kept)
    assert offsets_in(spark, lake) == kept
    writer.write_many(10)
    assert archive(spark, writer, lake).rows == 10


@pytest.mark.parametrize("is_kept", [True, slow(False)])
def test_damage_right_after_the_archived_position_is_archived_with_its_verdict(
    spark: SparkSession, writer: LogWriter, tmp_path: Path, is_kept: bool
) -> None:
    lake = tmp_path / "lake"
    writer.write_many(100)
    archive(spark, writer, lake)
    writer.write_many(10)
    writer.flip(writer.made[100].log_offset + 92)
    if not is_kept:
        shutil.rmtree(lake / "_tandemq")
    done = archive(spark, writer, lake)
    assert (done.rows, done.damaged) == (10, 1)
    assert offsets_in(spark, lake) == [made.log_offset for made in writer.made]
    shutil.rmtree(lake / "_tandemq")
    writer.flip(writer.made[-1].log_offset + 92)
    writer.write_many(5)
    with pytest.raises(StoreDamaged, match=r"the last archived record is damaged by now.*spark scrub"):
        archive(spark, writer, lake)
    assert archive(spark, writer, lake, fails_on_loss=False).rows == 5


@spec("P04")
def test_log_of_another_group_with_the_same_name_is_refused(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = LogWriter(tmp_path / "one" / "store"), LogWriter(tmp_path / "two" / "store")
    one.write_many(100)
    for number in range(300):
        other.write(b"of another group %d" % number)
    lake = tmp_path / "lake"
    archive(spark, one, lake)
    for is_kept in (True, False):
        if not is_kept:
            shutil.rmtree(lake / "_tandemq")
        with pytest.raises(StoreDamaged, match=r"has another record before that offset.*--broker-name.*allow-loss"):
            archive(spark, other, lake)
    assert DeltaLake(lake).rows() == 100
    assert archive(spark, other, lake, broker_name="other").rows == 300
    one.write_many(10)
    shutil.copytree(one.store, tmp_path / "slave" / "store")
    slave = LogWriter(tmp_path / "slave" / "store")
    assert archive(spark, slave, lake).rows == 10
    known, one.end = one.end, one.made[-1].log_offset
    one.write(b"written anew, and longer than the one before" * 9)
    with pytest.raises(StoreDamaged, match="it was rewritten, or"):
        archive(spark, one, lake)
    last = one.write()
    assert archive(spark, one, lake, fails_on_loss=False).start == known
    assert last.log_offset in offsets_in(spark, lake)
    assert "continuing after it" in caplog.text


@spec("P04")
def test_log_shorter_than_the_lake_is_refused(spark: SparkSession, writer: LogWriter, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    writer.write_many(100)
    archive(spark, writer, lake)
    writer.zero(writer.made[90].log_offset, writer.end)
    with pytest.raises(StoreDamaged, match=rf"up to {writer.end}.*ends at {writer.made[90].log_offset}"):
        archive(spark, writer, lake)


def test_corrupt_record_is_archived_with_its_verdict(spark: SparkSession, writer: LogWriter, tmp_path: Path) -> None:
    writer.write_many(50)
    writer.flip(writer.made[20].log_offset + 90)
    done = archive(spark, writer, tmp_path / "lake")
    assert (done.rows, done.damaged) == (50, 1)
    rows = spark.read.parquet(*DeltaLake(tmp_path / "lake").data_files()).where("verdict IS NOT NULL").collect()
    assert [row.commitLogOffset for row in rows] == [writer.made[20].log_offset]


def test_compact_and_vacuum_keep_all_rows_and_the_checkpoint_and_delete_orphans(
    spark: SparkSession, writer: LogWriter, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    writer.write_many(500)
    archive(spark, writer, lake, bytes_max=20_000)
    (lake / "part-orphan.parquet").write_bytes(b"of a task that was killed")
    table = DeltaLake(lake)
    before = len(table.data_files())
    assert before > 3
    assert table.compact()["filesRemoved"] == before
    assert len(table.vacuum(0)) == before + 1
    assert not (lake / "part-orphan.parquet").exists()
    assert list((lake / "_tandemq" / "broker-a" / "commits").iterdir())
    assert table.rows() == 500
    assert offsets_in(spark, lake) == [made.log_offset for made in writer.made]
    writer.write_many(10)
    assert archive(spark, writer, lake).rows == 10


def test_following_archive_compacts_and_vacuums(spark: SparkSession, writer: LogWriter, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    DeltaLake(lake, create=True)
    old, new = lake / "part-old.parquet", lake / "part-new.parquet"
    for path in (old, new):
        path.write_bytes(b"of a task that was killed")
    then = time.time() - 2 * 3600
    os.utime(old, (then, then))
    options = ArchiveOptions(
        store=writer.store, lake=lake, follows=True, trigger="0 seconds", compact_every=3, vacuum_hours=1
    )
    writer.write_many(100)
    job = Archive(options)
    query = job.start(spark)
    try:
        while job.done.commits < 7:
            writer.write_many(10)
            known = job.done.commits
            wait_until(lambda: job.done.commits > known or not query.isActive, "they are committed", seconds=300)  # noqa: B023
            assert query.isActive
    finally:
        query.stop()
    assert job.done.commits >= 7
    assert not old.exists()
    assert new.exists()
    assert len(DeltaLake(lake).data_files()) < job.done.commits
    held = offsets_in(spark, lake)
    assert held == [made.log_offset for made in writer.made[: len(held)]]


def test_lake_in_a_directory_of_any_name_is_written_and_read(
    spark: SparkSession, writer: LogWriter, tmp_path: Path
) -> None:
    lake = tmp_path / "my lake #1 50% é"
    for _ in range(2):
        writer.write_many(100)
        assert archive(spark, writer, lake).rows == 100
        assert offsets_in(spark, lake) == [made.log_offset for made in writer.made]
    DeltaLake(lake).compact()
    assert DeltaLake(lake).data_files_within(0, writer.end) == DeltaLake(lake).data_files()
    assert offsets_in(spark, lake) == [made.log_offset for made in writer.made]


def test_two_writers_of_one_mark_do_not_both_commit(tmp_path: Path) -> None:
    one, other = DeltaLake(tmp_path / "lake", create=True), DeltaLake(tmp_path / "lake")
    one.commit([], {"tandemq-log:a": 10})
    with pytest.raises(LocalError, match="another archive"):
        other.commit([DataFile("part-x.parquet", 1, 1, "{}")], {"tandemq-log:a": 10})
    assert one.data_files() == []


@spec("P09")
def test_table_of_another_schema_is_refused_and_unchanged(
    spark: SparkSession, writer: LogWriter, tmp_path: Path
) -> None:
    writer.write_many(10)
    write_deltalake(str(tmp_path / "lake"), pa.table({"key": ["a"], "Topic": ["b"]}))
    with pytest.raises(ConfigError, match=r"without the column 'body'"):
        archive(spark, writer, tmp_path / "lake")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds other files"):
        archive(spark, writer, tmp_path / "files")
    with pytest.raises(ConfigError, match="holds no Delta table"):
        DeltaLake(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="must not contain % and two digits"):
        DeltaLake(tmp_path / "my%20lake", create=True)
