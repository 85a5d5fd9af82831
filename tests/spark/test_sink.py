"""`format("rocketmq")` as a sink: rows become messages, each at least once, with unique keys for duplicates."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tandemq.config.samples import ON_ANY_DISK
from tandemq.model.message import UNIQ_KEY
from tandemq.run.children import ChildCluster
from tandemq.run.local import LocalCluster
from tandemq.run.local_tls import ClusterCertificates, make_certificates
from tandemq.spark.sources.cluster.outgoing import unique_keys
from tests.spark.messages import make_topic, numbered, send

DRIVER = """
import sys
from tandemq.spark.runtime.session import open_session
from tests.spark.short import SHORT
from tests.spark.test_sink import copy
spark, _ = open_session("driver", master="local[2]", settings=SHORT | {"spark.driver.memory": "512m"})
copy(spark, *sys.argv[1:])
"""
ROOT = Path(__file__).resolve().parents[2]


def copy(spark: SparkSession, names: str, checkpoint: str) -> None:
    """Copy the present messages of a topic in micro-batches."""
    rows = spark.readStream.format("rocketmq").option("nameServer", names).option("subscribe", "Orders")
    rows = rows.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 100)
    writer = rows.load().writeStream.format("rocketmq").option("nameServer", names).option("topic", "Copies")
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    writer.start().awaitTermination()


def read(spark: SparkSession, cluster: LocalCluster, topic: str) -> DataFrame:
    options = {"nameServer": cluster.name_servers, "subscribe": topic, "propertiesAs": "map"}
    return spark.read.format("rocketmq").options(**options).load()


def test_repeated_write_gives_messages_with_the_same_keys(spark: SparkSession, tandemq_broker: LocalCluster) -> None:
    names = tandemq_broker.name_servers
    for topic in ("Copies", "Others"):
        make_topic(names, topic)
    rows = spark.range(0, 300, numPartitions=3).select(
        F.col("id").cast("string").alias("value"),
        F.when(F.col("id") < 200, "Copies").otherwise("Others").alias("topic"),
        F.concat(F.lit("k"), "id").alias("key"),
        F.lit("t").alias("tags"),
        F.create_map(F.lit("who"), F.lit("me"), F.lit("CLUSTER"), F.lit("elsewhere")).alias("properties"),
        F.lit(1).alias("ignored"),
    )
    writer = rows.write.format("rocketmq").option("nameServer", names).option("writeId", "one").mode("append")
    writer.save()
    copies = read(spark, tandemq_broker, "Copies").collect()
    assert sorted(int(row.body) for row in copies) == list(range(200))
    assert {(row.tags, row.properties["who"], row.properties["CLUSTER"]) for row in copies} == {
        ("t", "me", "DefaultCluster")
    }
    assert all(row.key == f"k{int(row.body)}" for row in copies)
    writer.save()
    keys = Counter(row.properties[UNIQ_KEY] for row in read(spark, tandemq_broker, "Copies").collect())
    assert set(keys.values()) == {2}
    assert set(keys) == {unique_keys("one", "", part, row, 1) for part in (0, 1) for row in range(100)}
    assert read(spark, tandemq_broker, "Others").count() == 200


def test_wrong_rows_and_options_are_named(spark: SparkSession, tandemq_broker: LocalCluster) -> None:
    names = tandemq_broker.name_servers
    for rows, options, says in (
        ("1 as bodi", {"topic": "T"}, "no column body .or value. to send .did you mean 'body'"),
        ("'x' as body", {}, "neither option nor column gives a topic .give the option topic, or a column topic"),
        ("1 as body", {"topic": "T"}, "column body is int .it must be binary or string"),
        ("'x' as body", {"topc": "T"}, "the sink has no option 'topc' .did you mean 'topic'"),
        ("cast(null as string) as body", {"topic": "T"}, "row 0 of its partition has no body"),
        ("'x' as body, 'a\x01b' as tags", {"topic": "T"}, "row 0 of its partition: .*0x01 or 0x02"),
    ):
        frame = spark.range(1).selectExpr(*rows.split(", "))
        with pytest.raises(Exception, match=says):
            frame.write.format("rocketmq").options(nameServer=names, **options).mode("append").save()
    frame = spark.range(1).selectExpr("'x' as body")
    with pytest.raises(Exception, match="no answer within 800 ms"):
        frame.write.format("rocketmq").options(nameServer="127.0.0.1:1", topic="T", timeoutMs=800).mode("append").save()
    with pytest.raises(Exception, match="cannot be overwritten"):
        frame.write.format("rocketmq").options(nameServer=names, topic="T").mode("overwrite").save()


def test_status_other_than_send_ok_fails_a_write_that_requires_it(
    spark: SparkSession, tandemq_pair: LocalCluster
) -> None:
    make_topic(tandemq_pair.name_servers, "T")
    tandemq_pair.broker(broker_id=1).kill()
    frame = spark.range(3).selectExpr("cast(id as string) as body")
    writer = frame.coalesce(1).write.format("rocketmq").mode("append")
    writer = writer.options(nameServer=tandemq_pair.name_servers, topic="T", timeoutMs=500)
    writer.save()
    assert read(spark, tandemq_pair, "T").count() == 3
    with pytest.raises(Exception, match=r"3 messages are not acknowledged.*SLAVE_NOT_AVAILABLE.*requireSendOk"):
        writer.option("requireSendOk", "true").save()


@pytest.mark.timeout(1_200)
@pytest.mark.slow
def test_driver_killed_within_a_query_loses_nothing_and_duplicates_have_equal_keys(
    spark: SparkSession, tandemq_broker: LocalCluster, tmp_path: Path
) -> None:
    names = tandemq_broker.name_servers
    make_topic(names, "Orders")
    make_topic(names, "Copies")
    send(names, numbered("Orders", 0, 600))
    checkpoint = str(tmp_path / "checkpoint")
    command = [sys.executable, "-c", DRIVER, names, checkpoint]
    queues = tandemq_broker.broker().node.store.queues

    def copied() -> int:
        return sum(queue.max_offset for (topic, _), queue in list(queues.items()) if topic == "Copies")

    with (tmp_path / "driver.log").open("wb") as log:
        driver = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
        try:
            tandemq_broker.wait_until(lambda: copied() >= 150 or driver.poll() is not None, 150)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    assert copied() < 600, (tmp_path / "driver.log").read_text()[-2_000:]
    copy(spark, names, checkpoint)  # another driver continues from the checkpoint of the first one
    by_key = {row.properties[UNIQ_KEY]: int(row.body) for row in read(spark, tandemq_broker, "Copies").collect()}
    assert sorted(by_key.values()) == list(range(600))


def test_rows_are_written_and_read_over_tls(spark: SparkSession, tmp_path: Path) -> None:
    certificates = ClusterCertificates.kept_in(tmp_path / "tls")
    make_certificates(tmp_path / "tls")
    settings = {**ON_ANY_DISK, "autoCreateTopicEnable": "true"}
    with ChildCluster(tmp_path / "secure", groups=1, slaves=0, settings=settings, tls=certificates) as cluster:
        names = {"nameServer": cluster.name_servers, "timeoutMs": "20000"}
        trusting = names | {"tls": "true", "tlsCaFile": str(certificates.ca)}
        rows = spark.range(0, 3_000, numPartitions=2).select(F.col("id").cast("string").alias("body"))
        rows.write.format("rocketmq").options(**trusting, topic="Secure").mode("append").save()
        stored = spark.read.format("rocketmq").options(**trusting, subscribe="Secure").load()
        assert sorted(int(row.body) for row in stored.collect()) == list(range(3_000))
        for options, reason in ((names, "TLS"), (names | {"tls": "true"}, "certificate")):
            with pytest.raises(PySparkException, match=reason):
                rows.write.format("rocketmq").options(**options | {"timeoutMs": "3000"}, topic="Secure").mode(
                    "append"
                ).save()
        assert stored.count() == 3_000
