"""Messages of a cluster in a lake: each exactly once, whatever is repeated, and never through two checkpoints."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tandemq.cli import main
from tandemq.errors import ConfigError, LocalError
from tandemq.model.message import Message, MessageQueue
from tandemq.run.local import LocalCluster
from tandemq.spark.jobs.archive import Archive, ArchiveOptions
from tandemq.spark.jobs.collect import Collect, CollectOptions, CollectResult
from tandemq.spark.jobs.replay import replay_to_topic
from tandemq.spark.lake.delta import DeltaLake
from tests.spark.logs import LogWriter
from tests.spark.messages import make_topic, numbered, send
from tests.spec import spec


class Died(Exception):
    """The driver died between the two commits."""


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def options(cluster: LocalCluster, lake: Path, **more: Any) -> CollectOptions:
    source = {"nameServer": cluster.name_servers, "subscribe": "Orders", "maxOffsetsPerTrigger": "40"}
    return CollectOptions(source=source, lake=lake, **more)


def collect(spark: SparkSession, cluster: LocalCluster, lake: Path, **more: Any) -> CollectResult:
    return Collect(options(cluster, lake, **more)).run(spark)


def bodies(spark: SparkSession, lake: Path) -> list[int]:
    rows = spark.read.parquet(*DeltaLake(lake).data_files()).select("body").collect()
    return sorted(int(row.body) for row in rows)


@spec("P17")
@pytest.mark.slow
def test_driver_death_between_the_two_commits_duplicates_no_message(
    spark: SparkSession, tandemq_broker: LocalCluster, lake: Path
) -> None:
    names = tandemq_broker.name_servers
    make_topic(names, "Orders", 3)
    send(names, numbered("Orders", 0, 100))

    def die(batch: int) -> None:
        if batch in (0, 2):
            raise Died

    for held in (0, 80):
        with pytest.raises(Exception, match="Died"):  # Spark wraps what foreachBatch raises
            Collect(options(tandemq_broker, lake), after_commit=die).run(spark)
        assert DeltaLake(lake).rows() == held
    assert collect(spark, tandemq_broker, lake).rows == 20
    assert bodies(spark, lake) == list(range(100))
    assert collect(spark, tandemq_broker, lake).rows == 0
    make_topic(names, "Orders", 4)
    send(names, numbered("Orders", 100, 110), queue=MessageQueue("Orders", "broker-a", 3))
    assert collect(spark, tandemq_broker, lake).rows == 10
    assert bodies(spark, lake) == list(range(110))
    assert DeltaLake(lake).compact()["filesRemoved"] > 3
    send(names, numbered("Orders", 110, 120))
    assert collect(spark, tandemq_broker, lake).rows == 10


@pytest.mark.slow
@spec("P17")
def test_foreign_older_or_newer_checkpoint_is_refused(
    spark: SparkSession, tandemq_broker: LocalCluster, lake: Path, tmp_path: Path
) -> None:
    names, own, older = tandemq_broker.name_servers, tmp_path / "own", tmp_path / "older"
    send(names, numbered("Orders", 0, 10))
    collect(spark, tandemq_broker, lake, checkpoint=own)
    shutil.copytree(own, older)
    shutil.copytree(lake, tmp_path / "older-lake")
    send(names, numbered("Orders", 10, 20))
    assert collect(spark, tandemq_broker, lake, checkpoint=own).rows == 10
    send(names, numbered("Orders", 20, 30))
    for checkpoint, into, why in (
        (tmp_path / "other", lake, "another checkpoint fills the lake"),
        (older, lake, r"the lake holds batches up to 2 of this checkpoint.* add batch 2"),
        (own, tmp_path / "older-lake", r"the lake holds batches up to 1 of this checkpoint.* add batch 3"),
        (own, tmp_path / "new-lake", r"the lake holds no batch of this checkpoint.* add batch"),
    ):
        copy = tmp_path / f"copy-{into.name}-{checkpoint.name}"
        if checkpoint.exists():
            shutil.copytree(checkpoint, copy)
        rows = DeltaLake(into, create=True).rows()
        with pytest.raises(LocalError, match=why):
            collect(spark, tandemq_broker, into, checkpoint=copy)
        assert DeltaLake(into).rows() == rows
    assert collect(spark, tandemq_broker, lake, checkpoint=own).rows == 10
    assert bodies(spark, lake) == list(range(30))


def test_lake_is_filled_by_archive_or_by_collect_but_not_both(
    spark: SparkSession, tandemq_broker: LocalCluster, lake: Path, tmp_path: Path
) -> None:
    writer = LogWriter(tmp_path / "broker-a")
    writer.write_many(10)
    send(tandemq_broker.name_servers, numbered("Orders", 0, 3))
    collect(spark, tandemq_broker, lake)
    with pytest.raises(ConfigError, match="holds messages collected from a cluster"):
        Archive(ArchiveOptions(store=writer.store, lake=lake))
    Archive(ArchiveOptions(store=writer.store, lake=tmp_path / "logs")).run(spark)
    with pytest.raises(LocalError, match="the lake holds messages that were not collected"):
        collect(spark, tandemq_broker, tmp_path / "logs")
    assert DeltaLake(tmp_path / "logs").rows() == 10


def test_collected_rows_equal_the_log_and_can_be_replayed(
    spark: SparkSession, tandemq_broker: LocalCluster, lake: Path, tmp_path: Path
) -> None:
    names = tandemq_broker.name_servers
    send(names, [Message("Orders", bytes(range(200)) * 100, "paid", ["a", "b"], {"who": "me"})])
    send(names, numbered("Orders", 0, 20, "sent"))
    collect(spark, tandemq_broker, lake)
    Archive(ArchiveOptions(store=tandemq_broker.broker().store, lake=tmp_path / "logs", broker_name="broker-a")).run(
        spark
    )
    collected, archived = (
        spark.read.parquet(*DeltaLake(path).data_files()).where("topic = 'Orders'").orderBy("commitLogOffset").collect()
        for path in (lake, tmp_path / "logs")
    )
    assert collected == archived
    assert len(collected) == 21
    make_topic(names, "Copies")
    assert replay_to_topic(spark, lake, {"nameServer": names, "topic": "Copies"}).rows == 21
    copies = spark.read.format("rocketmq").options(nameServer=names, subscribe="Copies").load()
    assert copies.where(F.length("body") == 20_000).count() == 1


def test_command_collects_all_topics_and_prints_its_result(
    spark: SparkSession, tandemq_broker: LocalCluster, lake: Path
) -> None:
    assert spark is not None
    names = tandemq_broker.name_servers
    send(names, numbered("Orders", 0, 30))
    send(names, numbered("Other", 30, 50))
    words = ["spark", "collect", str(lake), "--namesrv", names, "--batch-messages", "30", "--json"]
    results = [json.loads(CliRunner().invoke(main, words).stdout) for _ in range(2)]
    assert [one["rows"] for one in results] == [50, 0]
    assert results[0]["commits"] == 3
    assert bodies(spark, lake) == list(range(50))
    wrong = CliRunner().invoke(main, [*words, "--subscribe", "Order"])
    assert wrong.exit_code == 1
    assert "no queue of the checkpoint exists" in wrong.stderr
    assert "the query selects other topics; no name server knows the topic 'Order'" in wrong.stderr
