"""Checks of lakes at URLs that are the same for each kind of store."""

import filecmp
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tandemq.errors import ConfigError, LocalError
from tandemq.spark.jobs.archive import Archive, ArchiveOptions
from tandemq.spark.jobs.collect import Collect, CollectOptions
from tandemq.spark.jobs.replay import replay_to_store, replay_to_topic
from tandemq.spark.jobs.stats import gather
from tandemq.spark.lake.delta import DataFile, DeltaLake
from tandemq.spark.lake.rows import read_files
from tandemq.spark.runtime.location import Location, Place
from tests.spark.logs import LogWriter
from tests.spark.messages import make_topic, numbered, send

WRITERS = 6


class Died(Exception):
    """The driver died between the two commits."""


def die(_batch: int) -> None:
    """Die after a commit of the table."""
    raise Died


def offsets_in(spark: SparkSession, lake: Location) -> list[int]:
    """Return the log offsets of the rows of a lake, ascending."""
    table = DeltaLake(lake)
    return sorted(row[0] for row in read_files(spark, table, table.data_files(), ["commitLogOffset"]).collect())


def are_same(one: Path, other: Path) -> bool:
    """Whether two stores have the same log."""
    names = sorted(path.name for path in (one / "commitlog").iterdir())
    found = filecmp.cmpfiles(one / "commitlog", other / "commitlog", names, shallow=False)
    return (sorted(found[0]), found[1:]) == (names, ([], []))


def check_archive(
    spark: SparkSession, writer: LogWriter, lake: Location, directory: Path, checkpoint: Place | None = None
) -> None:
    """An archive that is killed and continued, compacted and restored, is the same log."""
    writer.write_many(200)
    options = ArchiveOptions(store=writer.store, lake=lake, checkpoint=checkpoint, bytes_max=30_000)
    with pytest.raises(Exception, match="Died"):  # Spark wraps what foreachBatch raises
        Archive(options, after_commit=die).run(spark)
    assert 0 < DeltaLake(lake).rows() < 200
    assert Archive(options).run(spark).end == writer.end
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
    replay_to_store(spark, lake, "broker-a", directory / "restored", segment_bytes=writer.segment_bytes)
    assert are_same(writer.store, directory / "restored")


def check_concurrent_commits(lake: Location) -> None:
    """Of concurrent commits of one mark one succeeds; those of several marks take a version each."""
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
        assert {name for name, succeeded in zip(names, done, strict=True) if succeeded} == {
            name for name in names if DeltaLake(lake).mark(name) == 1
        }
    commits = lake.within("_delta_log").names()
    assert len([name for name in commits if name[0] != "."]) == 2 + WRITERS


def check_collect_and_replay(spark: SparkSession, name_servers: str, lake: Location, directory: Path) -> None:
    """Messages of a cluster are in the lake once although the driver died, and are replayed to another topic."""
    for topic in ("Orders", "Again"):
        make_topic(name_servers, topic, 2)
    send(name_servers, numbered("Orders", 0, 50))
    source = {"nameServer": name_servers, "subscribe": "Orders", "maxOffsetsPerTrigger": "20"}
    with pytest.raises(ConfigError, match=r"--checkpoint DIRECTORY"):
        Collect(CollectOptions(source=source, lake=lake))
    options = CollectOptions(source=source, lake=lake, checkpoint=directory / "checkpoint")
    with pytest.raises(Exception, match="Died"):
        Collect(options, after_commit=die).run(spark)
    Collect(options).run(spark)
    table = DeltaLake(lake)
    rows = read_files(spark, table, table.data_files()).collect()
    assert sorted(int(row.body) for row in rows) == list(range(50))
    target = {"nameServer": name_servers, "topic": "Again"}
    assert replay_to_topic(spark, lake, target, noted=directory / "note").rows == 50
    again = spark.read.format("rocketmq").option("nameServer", name_servers).option("subscribe", "Again").load()
    assert sorted(int(row.body) for row in again.select("body").collect()) == list(range(50))
