"""Lakes and archived log files on a real HDFS: each message once, and no leftovers of killed tasks."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tandemq.run.local import LocalCluster
from tandemq.spark.jobs.audit import audit
from tandemq.spark.jobs.removal import remove_from_lake, remove_from_log
from tandemq.spark.jobs.retention import expire
from tandemq.spark.jobs.scrub import scrub
from tandemq.spark.jobs.selection import Selection
from tandemq.spark.jobs.state import topic_state
from tandemq.spark.lake.delta import DeltaLake
from tandemq.spark.lake.lease import NAME as LEASE
from tandemq.spark.runtime.location import Location, locate
from tandemq.spark.runtime.session import open_session
from tests.interop.hdfs import hdfs
from tests.spark.lakes import check_archive, check_collect_and_replay, check_concurrent_commits, offsets_in
from tests.spark.logs import BORN_MS, LogWriter
from tests.spark.short import SHORT
from tests.spark.test_removal import BY_KEY, made_log
from tests.spec import spec


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with hdfs(tmp_path_factory.mktemp("hdfs")) as url:
        yield url


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session, _ = open_session("interop", master="local[2]", settings=SHORT)
    yield session
    session.stop()


@pytest.mark.slow
@spec("P17", "P22", "P23", "P24", "P37")
def test_lakes_and_logs_on_hdfs(spark: SparkSession, url: str, tandemq_broker: LocalCluster, tmp_path: Path) -> None:
    """One test, so that HDFS starts once whatever the number of workers."""
    vacuum_deletes_what_killed_tasks_and_refused_commits_have_left(url)
    check_concurrent_commits(locate(f"{url}/lakes/raced", "the lake"))
    writer, lake = LogWriter(tmp_path / "broker-a"), locate(f"{url}/lakes/orders", "the lake")
    check_archive(spark, writer, lake, tmp_path, checkpoint=f"{url}/checkpoints/orders")
    state_retention_and_removal_find_the_messages_of_the_log(spark, writer, lake)
    names, collected = tandemq_broker.name_servers, locate(f"{url}/lakes/collected", "the lake")
    check_collect_and_replay(spark, names, collected, tmp_path)
    log_files_are_checked_and_cleaned_as_on_a_disk(spark, url, tmp_path)


def state_retention_and_removal_find_the_messages_of_the_log(
    spark: SparkSession, writer: LogWriter, lake: Location
) -> None:
    version = DeltaLake(lake)._table.version()
    assert topic_state(spark, lake, ["T0"], latest_by_key=True).count() == 125
    assert expire(spark, lake, BORN_MS + 1_000).rows == 100
    kept = [one.log_offset for one in writer.made[100:]]
    assert offsets_in(spark, lake) == kept
    assert topic_state(spark, lake, ["T0"], version=version).count() == 125
    left = lake.child(".part-1.parquet.tmp.1")  # of a killed task: its bytes may be those of the message
    lake.open_output(lake.name_of(left)).close()
    done = remove_from_lake(spark, lake, Selection(keys=("k150",)))
    assert (done.messages, done.found_after, done.old_files, done.left) == (1, 0, 2, [left])
    assert offsets_in(spark, lake) == kept


def log_files_are_checked_and_cleaned_as_on_a_disk(spark: SparkSession, url: str, directory: Path) -> None:
    store, place = directory / "logs/broker-b", locate(f"{url}/logs/broker-b", "the log")
    writer, secret = made_log(store)
    harmed = next(one for one in writer.made[100:] if one.number not in secret)
    writer.flip(harmed.log_offset + 100)
    log = place.within("commitlog")
    for path in (store / "commitlog").iterdir():
        file = log.open_replacement(path.name)
        file.write(path.read_bytes())
        file.close()
    assert asdict(scrub(spark, place)) == asdict(scrub(spark, store))
    assert not audit(spark, store, place).differences
    log.open_output(f".{0:020}.tmp.1").close()  # a killed removal has left it
    done, expected = (remove_from_log(spark, one, BY_KEY) for one in (place, store))
    assert (done.messages, done.files, done.found_after) == (len(secret), expected.files, 0)
    for path in (store / "commitlog").iterdir():
        assert log.read(path.name) == path.read_bytes()
    assert sorted(log.names()) == sorted([LEASE, *(path.name for path in (store / "commitlog").iterdir())])


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
