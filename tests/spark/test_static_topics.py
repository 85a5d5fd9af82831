"""Static topics: source and sink of the cluster, and the jobs that send, refuse them with the reason."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tandemq.client.connection import try_request
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import Message
from tandemq.run.local import LocalCluster
from tandemq.spark.jobs.archive import Archive, ArchiveOptions
from tandemq.spark.jobs.replay import replay_to_topic
from tests.spark.logs import LogWriter
from tests.spark.messages import send
from tests.spec import spec
from tests.unit.client.static_topic import HINT, REFUSAL, create_static_topic, end_of

TOPIC = "SparkStatic"
REFUSED = f"topic {TOPIC} {REFUSAL}"


@spec("L08")
def test_source_and_sink_refuse_a_static_topic(spark: SparkSession, tandemq_broker: LocalCluster) -> None:
    create_static_topic(tandemq_broker, TOPIC, "broker-a")
    names = tandemq_broker.name_servers
    for option, value in (("subscribe", TOPIC), ("subscribePattern", "Spark.*")):
        read = spark.read.format("rocketmq").option("nameServer", names).option(option, value)
        with pytest.raises(PySparkException, match=REFUSED):
            read.load().collect()
    rows = spark.range(3).select(F.col("id").cast("string").alias("value"))
    for to, given in ((rows.write.option("topic", TOPIC), rows), (None, rows.withColumn("topic", F.lit(TOPIC)))):
        writer = to if to is not None else given.write
        with pytest.raises(PySparkException, match=REFUSED) as refused:
            writer.format("rocketmq").option("nameServer", names).mode("append").save()
        assert HINT in str(refused.value)
    assert end_of(tandemq_broker, "broker-a", TOPIC) == "0"


@spec("L08")
def test_replay_to_a_static_topic_is_refused(spark: SparkSession, tandemq_broker: LocalCluster, tmp_path: Path) -> None:
    create_static_topic(tandemq_broker, TOPIC, "broker-a")
    writer = LogWriter(tmp_path / "orders")
    writer.write_many(20)
    Archive(ArchiveOptions(store=writer.store, lake=tmp_path / "lake", broker_name="orders")).run(spark)
    with pytest.raises(PySparkException, match=REFUSED):
        replay_to_topic(spark, tmp_path / "lake", {"nameServer": tandemq_broker.name_servers, "topic": TOPIC})
    assert end_of(tandemq_broker, "broker-a", TOPIC) == "0"


@spec("L08")
def test_lag_leaves_a_static_topic_out(spark: SparkSession, tandemq_broker: LocalCluster) -> None:
    """The offsets of its groups are those of segments, not of queues that a client reads."""
    names = tandemq_broker.name_servers
    create_static_topic(tandemq_broker, TOPIC, "broker-a")
    place = {"consumerGroup": "g", "topic": TOPIC, "queueId": "0", "commitOffset": "0"}
    for topic in (TOPIC, "Plain"):
        send(names, [Message("Plain", b"x")])
        answer = try_request(
            tandemq_broker.address, Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields=place | {"topic": topic})
        )
        assert answer is not None
        assert answer.code == ResponseCode.SUCCESS
    rows = spark.read.format("rocketmq-lag").option("nameServer", names).load().collect()
    assert {(row.group, row.topic) for row in rows} == {("g", "Plain")}
