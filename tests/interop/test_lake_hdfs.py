"""Lakes on a real HDFS: each message once with concurrent writers, and no leftovers of killed tasks."""

import filecmp
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tandemq.errors import LocalError
from tandemq.spark.jobs.archive import Archive, ArchiveOptions
from tandemq.spark.jobs.replay import replay_to_store
from tandemq.spark.jobs.stats import gather
from tandemq.spark.lake.delta import DataFile, DeltaLake
from tandemq.spark.lake.rows import read_files
from tandemq.spark.runtime.location import Location, locate
from tandemq.spark.runtime.session import open_session
from tests.interop.hdfs import hdfs
from tests.spark.logs import LogWriter

WRITERS = 6


class Died(Exception):
    """The driver died between the two commits."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with hdfs(tmp_path_factory.mktemp("hdfs")) as url:
        yield url


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session, _ = open_session("interop", master="local[2]", settings={"spark.sql.shuffle.partitions": "2"})
    yield session
    session.stop()


@pytest.mark.timeout(400)
def test_lakes_on_hdfs(spark: SparkSession, url: str, tmp_path: Path) -> None:
    """One test, so that HDFS starts once whatever the number of workers."""
    vacuum_deletes_what_killed_tasks_and_refused_commits_have_left(url)
    concurrent_commits_take_a_version_each_and_of_one_mark_one_succeeds(url)
    archive_continues_compacts_and_restores_the_same_log(spark, url, tmp_path)


def archive_continues_compacts_and_restores_the_same_log(spark: SparkSession, url: str, tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "broker-a")
    writer.write_many(100)
    lake = locate(f"{url}/lakes/orders", "the lake")
    options: dict[str, Any] = {"store": writer.store, "lake": lake, "checkpoint": f"{url}/checkpoints/orders"}

    def die(_batch: int) -> None:
        raise Died

    with pytest.raises(Exception, match="Died"):  # Spark wraps what foreachBatch raises
        Archive(ArchiveOptions(**options, bytes_max=20_000), after_commit=die).run(spark)
    assert 0 < DeltaLake(lake).rows() < 100
    assert Archive(ArchiveOptions(**options)).run(spark).end == writer.end
    writer.write_many(50)
    assert Archive(ArchiveOptions(store=writer.store, lake=lake)).run(spark).rows == 50
    made = [one.log_offset for one in writer.made]
    assert offsets_in(spark, lake) == made
    table = DeltaLake(lake)
    files = len(table.data_files())
    assert table.compact() == {"filesAdded": 1, "filesRemoved": files}
    assert len(table.vacuum(0)) == files
    assert len(lake.names()) == 2, lake.names()
    assert offsets_in(spark, lake) == made
    assert sum(row["messages"] for row in gather(spark, lake).topics) == len(made)
    store = tmp_path / "restored"
    replay_to_store(spark, lake, "broker-a", store, segment_bytes=writer.segment_bytes)
    names = [one.name for one in (writer.store / "commitlog").iterdir()]
    found = filecmp.cmpfiles(writer.store / "commitlog", store / "commitlog", names, shallow=False)
    assert (sorted(found[0]), found[1:]) == (sorted(names), ([], []))


def offsets_in(spark: SparkSession, lake: Location) -> list[int]:
    table = DeltaLake(lake)
    return sorted(row[0] for row in read_files(spark, table, table.data_files(), ["commitLogOffset"]).collect())


def concurrent_commits_take_a_version_each_and_of_one_mark_one_succeeds(url: str) -> None:
    lake = locate(f"{url}/lakes/raced", "the lake")
    DeltaLake(lake, create=True)
    file = DataFile("part-x.parquet", 1, 1, '{"numRecords": 1}')

    def commit(table: DeltaLake, name: str) -> bool:
        try:
            table.commit([file], {name: 1})
        except LocalError:
            return False
        return True

    for same in (True, False):
        tables = [DeltaLake(lake) for _ in range(WRITERS)]
        names = ["mark" if same else f"mark-{number}" for number in range(WRITERS)]
        with ThreadPoolExecutor(WRITERS) as pool:
            done = list(pool.map(commit, tables, names))
        assert sum(done) == (1 if same else WRITERS)
    commits = Location(lake.child("_delta_log")).names()
    assert len([name for name in commits if name[0] != "."]) == 2 + WRITERS


def vacuum_deletes_what_killed_tasks_and_refused_commits_have_left(url: str) -> None:
    lake = locate(f"{url}/lakes/left", "the lake")
    table = DeltaLake(lake, create=True)
    left = [".part-1.parquet.tmp.1", f"_delta_log/.{1:020}.json.tmp.2"]
    kept = [".part-1.parquet", f"_delta_log/{0:020}.json"]
    for name in (*left, kept[0]):
        lake.open_output(name).close()
    assert table.vacuum(1) == []
    assert sorted(table.vacuum(0, dry_run=True)) == left
    assert all(lake.size(name) == 0 for name in left)
    assert sorted(table.vacuum(0)) == left
    assert lake.names() == [kept[0], "_delta_log"]
    assert lake.size(kept[1]) > 0
