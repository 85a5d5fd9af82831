"""A client of Spark Connect: streams from a topic to topics and to files, by format and by table.

    python on_connect.py REMOTE NAME-SERVERS DIRECTORY

Needs `pyspark` and `tandemq` only. The topic Orders contains numbers; Streamed, Named and Batched are empty. The
directory is one of the server's machines. Each line of output is one result, as JSON.
"""

import json
import sys
import threading
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tandemq.spark import register
from tandemq.spark.sources.cluster.progress import ProgressListener, QueryReport, with_volume

PER_BATCH = 90


def report(what: str, **facts: object) -> None:
    """Print one line of JSON."""
    print(json.dumps({"what": what} | facts), flush=True)


def sizes(query: StreamingQuery) -> list[int]:
    """Return the rows of each micro-batch that had some."""
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def drained(writer: DataStreamWriter, checkpoint: Path) -> DataStreamWriter:
    """Return a writer that reads what is available now."""
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)


def follow(spark: SparkSession, names: str, home: Path) -> None:
    """Copy a topic to another one, with a stop in between."""
    rows = spark.readStream.format("rocketmq").options(nameServer=names, subscribe="Orders")
    rows = rows.options(startingOffsets="earliest", maxOffsetsPerTrigger=PER_BATCH)
    writer = with_volume(rows.load()).writeStream.format("rocketmq").options(nameServer=names, topic="Streamed")
    writer = writer.option("checkpointLocation", str(home / "streamed"))
    query = writer.trigger(processingTime="0 seconds").start()
    while len(sizes(query)) < 3 and not query.awaitTermination(1):
        pass
    query.stop()
    first = sizes(query)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    report("copied", stopped=len(first) >= 3, sizes=first + sizes(query))


def follow_tables(spark: SparkSession, home: Path) -> None:
    """Follow a table to files and to another table, and write to one with SQL."""
    orders = spark.readStream.option("startingOffsets", "earliest").table("orders")
    # `toTable(…, path=…)` of PySpark 4.3 fails in sessions of Connect.
    drained(orders.writeStream.option("path", str(home / "saved")), home / "saving").toTable("saved").awaitTermination()
    drained(orders.writeStream, home / "naming").toTable("named").awaitTermination()
    spark.sql("INSERT INTO named (body, tags) SELECT CAST('more' AS BINARY), 'new' FROM range(5)")
    report("tables", saved=spark.table("saved").count(), named=spark.table("named").count())
    spark.sql("DROP TABLE orders")
    spark.sql("DROP TABLE named")


def write_batches(spark: SparkSession, names: str, home: Path) -> None:
    """Copy a topic to another one by a function that is called with each micro-batch, in a process of the server."""

    def copy(batch: DataFrame, number: int) -> None:
        rows = batch.selectExpr("body", f"'batch-{number}' AS tags")
        rows.write.format("rocketmq").options(nameServer=names, topic="Batched").mode("append").save()

    rows = spark.readStream.format("rocketmq").options(nameServer=names, subscribe="Orders")
    rows = rows.options(startingOffsets="earliest", maxOffsetsPerTrigger=PER_BATCH)
    query = drained(rows.load().writeStream.foreachBatch(copy), home / "batched").start()
    query.awaitTermination()
    report("batches", count=len(sizes(query)))


def fail(spark: SparkSession, names: str, home: Path) -> None:
    """Follow a topic that does not exist."""
    unknown = spark.readStream.format("rocketmq").options(nameServer=names, subscribe="Nowhere").load()
    try:
        drained(unknown.writeStream.format("noop"), home / "unknown").start().awaitTermination()
        text = ""
    except StreamingQueryException as error:
        text = str(error)
    report("error", is_ours="no name server knows the topic 'Nowhere'" in text)


def main(remote: str, names: str, directory: str) -> None:
    """Run all queries."""
    home = Path(directory)
    spark = SparkSession.builder.remote(remote).getOrCreate()
    report("session", is_remote="connect" in type(spark).__module__)
    tables = {name.lower(): {"nameServer": names, "subscribe": name} for name in ("Orders", "Named")}
    register(spark, tables=tables)
    reports: list[QueryReport] = []
    caught_up = threading.Event()

    def heard(one: QueryReport) -> None:
        reports.append(one)
        if one.lag == 0:
            caught_up.set()

    listener = ProgressListener(heard)
    spark.streams.addListener(listener)
    try:
        follow(spark, names, home)
        caught_up.wait(60)
    finally:
        spark.streams.removeListener(listener)  # its thread keeps the program alive otherwise
    # A batch that the stop interrupts may have no report.
    seen = sum(one.volume.get("messages", 0) for one in reports)
    report("progress", some=seen >= 3 * PER_BATCH, lag=reports[-1].lag)
    follow_tables(spark, home)
    write_batches(spark, names, home)
    fail(spark, names, home)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
