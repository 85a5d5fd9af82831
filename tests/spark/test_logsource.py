"""`format("rocketmq-log")` in a real session: batch and streaming."""

import gc
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tandemq.errors import ConfigError
from tandemq.spark.runtime.worker import freeze_modules
from tandemq.spark.sources.log.options import read_options
from tandemq.spark.sources.log.source import RocketMQLogDataSource
from tandemq.spark.sources.schema import KAFKA, MESSAGE
from tests.spark.logs import LogWriter
from tests.spec import spec


@pytest.fixture
def writer(tmp_path: Path, spark: SparkSession) -> LogWriter:
    spark.dataSource.register(RocketMQLogDataSource)
    return LogWriter(tmp_path / "broker-a")


def log_frame(spark: SparkSession, store: Path, **options: Any) -> DataFrame:
    return spark.read.format("rocketmq-log").options(**options).load(str(store))


def test_batch_query_reads_all_and_columns_can_be_fewer(spark: SparkSession, writer: LogWriter) -> None:
    writer.write_many(3000)
    frame = log_frame(spark, writer.store, rangeBytes=1 << 16)
    assert frame.columns == list(MESSAGE)
    rows = frame.where("topic = 'T1'").orderBy("commitLogOffset").collect()
    assert [bytes(row.body) for row in rows] == [made.body for made in writer.made if made.topic == "T1"]
    few = spark.read.format("rocketmq-log").schema("queueOffset long, verdict string").load(str(writer.store))
    assert few.columns == ["queueOffset", "verdict"]
    assert few.where("verdict IS NULL").count() == 3000


def test_batch_query_with_kafka_columns_and_with_properties_as_map(spark: SparkSession, writer: LogWriter) -> None:
    writer.write_many(10)
    row = log_frame(spark, writer.store, schema="kafka").orderBy("offset", "partition").first()
    assert row is not None
    assert list(row.asDict()) == list(KAFKA)
    assert (bytes(row.key), bytes(row.value), row.timestampType) == (b"k0", writer.made[0].body, 0)
    named = log_frame(spark, writer.store, propertiesAs="map").orderBy("commitLogOffset").first()
    assert named is not None
    assert named.properties["TAGS"] == "t0"


def test_worker_freezes_modules_after_reading_a_range(writer: LogWriter) -> None:
    writer.write_many(10)
    source = RocketMQLogDataSource({"path": str(writer.store)})
    reader = source.reader(source.schema())
    freeze_modules.cache_clear()
    gc.unfreeze()
    try:
        assert [batch.num_rows for batch in reader.read(reader.partitions()[0])] == [10]
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()


def run_once(spark: SparkSession, store: Path, checkpoint: Path, table: str, **options: Any) -> StreamingQuery:
    """Read new rows into a Parquet directory with one file per batch."""
    stream = spark.readStream.format("rocketmq-log").options(**options).load(str(store))

    def keep(frame: DataFrame, batch: int) -> None:
        frame.write.mode("overwrite").parquet(f"{table}/batch={batch}")

    query = (
        stream.writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def test_stream_continues_from_its_checkpoint_as_the_log_grows(
    spark: SparkSession, writer: LogWriter, tmp_path: Path
) -> None:
    table = str(tmp_path / "table")
    writer.write_many(700)
    first = run_once(spark, writer.store, tmp_path / "checkpoint", table, maxBytesPerTrigger=60_000)
    assert len(first.recentProgress) > 1
    writer.write_many(300)
    run_once(spark, writer.store, tmp_path / "checkpoint", table)
    found = sorted(row.commitLogOffset for row in spark.read.parquet(table).select("commitLogOffset").collect())
    assert found == [made.log_offset for made in writer.made]


@spec("P04")
def test_stream_fails_or_continues_as_configured_if_retention_deleted_its_next_bytes(
    spark: SparkSession, writer: LogWriter, tmp_path: Path
) -> None:
    table, checkpoint = str(tmp_path / "table"), tmp_path / "checkpoint"
    writer.write_many(100)
    run_once(spark, writer.store, checkpoint, table)
    writer.write_many(2000)
    writer.path(0).unlink()
    with pytest.raises(StreamingQueryException, match=r"log offsets \[\d+, 65536\) are gone.*failOnDataLoss"):
        run_once(spark, writer.store, checkpoint, table)
    run_once(spark, writer.store, checkpoint, table, failOnDataLoss="false")
    found = {row.commitLogOffset for row in spark.read.parquet(table).select("commitLogOffset").collect()}
    expected = {made.log_offset for made in writer.made if made.number < 100 or made.log_offset >= 65536}
    assert found == expected


@spec("P04")
def test_stream_detects_a_log_rewritten_after_a_failover(
    spark: SparkSession, writer: LogWriter, tmp_path: Path
) -> None:
    table, checkpoint = str(tmp_path / "table"), tmp_path / "checkpoint"
    writer.write_many(100)
    run_once(spark, writer.store, checkpoint, table)
    other = LogWriter(tmp_path / "other")
    other.write_many(200)
    shutil.copytree(other.store, writer.store, dirs_exist_ok=True)
    (writer.store / "epochFileCheckpoint").write_text(f"2\n0\n1-0\n2-{other.made[50].log_offset}\n")
    with pytest.raises(StreamingQueryException, match="rewritten after a failover"):
        run_once(spark, writer.store, checkpoint, table)


@spec("P03")
def test_damage_fails_a_query_without_the_column_verdict(spark: SparkSession, writer: LogWriter) -> None:
    writer.write_many(50)
    writer.flip(writer.made[20].log_offset + 90)
    with pytest.raises(Exception, match="select the column verdict"):  # Spark wraps errors of tasks
        log_frame(spark, writer.store).collect()
    assert log_frame(spark, writer.store, failOnDataLoss="false").count() == 49
    kept = log_frame(spark, writer.store, details="true").where("verdict IS NOT NULL").collect()
    assert [row.commitLogOffset for row in kept] == [writer.made[20].log_offset]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs a path"),
        ({"path": "x", "startingOffset": "earliest"}, r"no option 'startingOffset'.*'startingOffsets'"),
        ({"path": "x", "startingOffsets": "first"}, "neither earliest nor latest"),
        ({"path": "x", "maxBytesPerTrigger": "0"}, "no whole number of at least 1"),
        ({"path": "x", "failOnDataLoss": "maybe"}, "failOnDataLoss='maybe'"),
        ({"path": "x", "schema": "kafka", "details": "true"}, "Kafka's columns only"),
        ({"path": "x", "writeTo": "y", "schema": "kafka"}, "writeTo has no use for schema"),
        ({"path": "x", "writeTo": "y", "details": "false"}, "writeTo has no use for details"),
        ({"path": "x", "writeTo": "y", "propertiesAs": "map", "inflate": "true"}, "for propertiesAs and inflate"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_options(options)
