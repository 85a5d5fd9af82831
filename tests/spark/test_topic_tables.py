"""Topics as tables of SQL."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tandemq.errors import ConfigError
from tandemq.run.local import LocalCluster
from tandemq.spark.sources.formats import register
from tandemq.spark.sources.topic_tables import table_source
from tests.spark.messages import make_topic, numbered, send
from tests.spec import spec

NAMES = {"nameServer": "127.0.0.1:9876"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (NAMES, "exactly one of"),
        (NAMES | {"subscribe": "A", "subscrib": "B"}, "no option 'subscrib'"),
        ({"subscribe": "A"}, "nameServer is missing"),
        (NAMES | {"subscribe": "A", "queueBy": "hash"}, "queueBy is 'hash'"),
    ],
)
def test_options_of_a_table_are_checked_when_it_is_created(options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        table_source("orders", options)


def test_name_of_a_table_is_checked(spark: SparkSession) -> None:
    for name in ("a b", "a;DROP TABLE b", "a.b.c", ""):
        with pytest.raises(ConfigError, match="is no name of a table"):
            register(spark, tables={name: NAMES | {"subscribe": "A"}})


@spec("P40")
def test_topic_is_a_table_that_is_read_followed_and_written(
    spark: SparkSession, tandemq_broker: LocalCluster, tmp_path: Path
) -> None:
    names = tandemq_broker.name_servers
    make_topic(names, "Sales")
    send(names, numbered("Sales", 0, 30))
    tables = {"sales": {"nameServer": names, "subscribe": "Sales"}}
    register(spark, tables=tables)
    register(spark, tables=tables)  # it exists now
    try:
        assert spark.table("sales").count() == 30
        of_queues = spark.sql("SELECT queueId, count(*) AS n FROM sales GROUP BY queueId").collect()
        assert sum(row.n for row in of_queues) == 30
        some = spark.sql("SELECT queueId FROM sales WITH (subExpression = 'none')").collect()
        assert some == []

        stream = spark.readStream.option("startingOffsets", "earliest").table("sales")
        writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).toTable("saved_sales", path=str(tmp_path / "saved")).awaitTermination()
        assert spark.table("saved_sales").count() == 30

        spark.sql("INSERT INTO sales (body, tags) SELECT CAST(CAST(id AS STRING) AS BINARY), 'new' FROM range(5)")
        new = spark.sql("SELECT CAST(body AS STRING) AS text FROM sales WHERE tags = 'new'").collect()
        assert sorted(row.text for row in new) == [str(number) for number in range(5)]

        with pytest.raises(ConfigError, match="saved_sales exists, with the format parquet"):
            register(spark, tables={"saved_sales": tables["sales"]})
    finally:
        spark.sql("DROP TABLE IF EXISTS sales")
        spark.sql("DROP TABLE IF EXISTS saved_sales")


def test_table_of_several_topics_is_not_written(spark: SparkSession, tandemq_broker: LocalCluster) -> None:
    names = tandemq_broker.name_servers
    for topic in ("One", "Two"):
        make_topic(names, topic)
    register(spark, tables={"both": {"nameServer": names, "subscribe": "One,Two"}})
    try:
        assert spark.table("both").count() == 0
        with pytest.raises(PySparkException, match="has no topic"):
            spark.sql("INSERT INTO both (body) VALUES (CAST('x' AS BINARY))")
    finally:
        spark.sql("DROP TABLE IF EXISTS both")


@spec("P40")
def test_view_of_a_table_with_options_in_its_text(spark: SparkSession, tandemq_broker: LocalCluster) -> None:
    names = tandemq_broker.name_servers
    make_topic(names, "Views")
    send(names, numbered("Views", 0, 3))
    spark.sql(f"CREATE TEMPORARY VIEW views USING rocketmq OPTIONS (nameServer '{names}', subscribe 'Views')")
    try:
        assert spark.table("views").count() == 3
    finally:
        spark.catalog.dropTempView("views")
