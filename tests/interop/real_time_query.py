"""Spark's real-time mode from `tandemq kafka` to a Kafka broker, in a process whose JVM has Spark's Kafka connector.

    python -m tests.interop.real_time_query BOOTSTRAP TOPIC SINK DIRECTORY

The query's one micro-batch lasts far longer than the test. At the end of standard input the number of its micro-batches
that have ended is printed.
"""

import sys
from pathlib import Path

from bench.spark.kafka import connector_class_path
from tandemq.spark import open_session

BATCH = "30 minutes"


def main(bootstrap: str, topic: str, sink: str, directory: str) -> None:
    """Run the query until standard input ends."""
    spark, _ = open_session(master="local[6]", settings={"spark.driver.extraClassPath": connector_class_path()})
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    frame = source.option("subscribe", topic).option("startingOffsets", "earliest").option("includeHeaders", "true")
    rows = frame.load().where("string(value) not like '%7'").selectExpr("key", "value", "headers")
    writer = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", sink).option("topic", topic)
    writer = writer.option("checkpointLocation", str(Path(directory) / "checkpoint")).outputMode("update")
    query = writer.trigger(realTime=BATCH).start()  # type: ignore[call-overload]  # PySpark's stubs lack it
    sys.stdin.read()
    print(len(query.recentProgress), query.isActive, query.exception(), flush=True)
    query.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
