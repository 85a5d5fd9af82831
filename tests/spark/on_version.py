"""A driver that checks the formats on the PySpark and the Python it runs on.

    python -m tests.spark.on_version NAME-SERVERS STORE DIRECTORY

The topic Orders contains the numbers below 1,000, the store a log. Each line of output is one result, as JSON.
"""

import json
import sys
from pathlib import Path

from pyspark.errors import StreamingQueryException

from tandemq.spark.runtime.session import open_session
from tests.spark.short import SHORT
from tests.spark.streams import LogStream, Stream

WRAPPER = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"


def report(what: str, **facts: object) -> None:
    """Print one line of JSON."""
    print(json.dumps({"what": what} | facts), flush=True)


def stopped_and_died(stream: Stream, count: int, **limit: int) -> dict[str, object]:
    """Run a limited stream that is stopped after three micro-batches, dies within a later one, and continues."""
    stream.run_until(lambda: len(stream.batches) == 3, **limit)

    def die(batch: int) -> None:
        stream.on_batch = lambda _batch: None
        raise RuntimeError(f"died in {batch}")

    stream.on_batch = die
    died = stream.run_until(lambda: False, **limit)
    stream.run_until(lambda: len(stream.rows) >= count, **limit)
    sizes = [len(rows) for _, rows in sorted(stream.batches.items())]
    return {"died": "died in" in died, "exactly": stream.rows == list(range(count)), "sizes": sizes}


def main(name_servers: str, store: str, directory: str) -> None:
    """Run all checks."""
    session, _ = open_session("on a version", master="local[2]", settings=SHORT | {"spark.driver.memory": "512m"})
    report("spark", version=session.version)
    where = {"nameServer": name_servers, "subscribe": "Orders"}
    work = Path(directory)

    rows = session.read.format("rocketmq").options(**where).load()
    condition = "queueId = 1 and queueOffset < 10 and storeTimestamp > '2020-01-01'"
    some = session.read.format("rocketmq").options(**where, pushDown="true", minPartitions=40).load().where(condition)
    report("narrowed", rows=some.count(), tasks=some.rdd.getNumPartitions())
    records = session.read.format("rocketmq-log").load(store)
    log_rows = records.count()
    log_some = records.where("topic = 'T1' and bornTimestamp > '2020-01-01'").count()
    report("batch", rows=rows.count(), log=log_rows, log_some=log_some)

    report("stream", **stopped_and_died(Stream(session, name_servers, work / "stream"), 1_000, maxOffsetsPerTrigger=90))
    report(
        "log", **stopped_and_died(LogStream(session, Path(store), work / "log"), log_rows, maxBytesPerTrigger=20_000)
    )

    now = Stream(session, name_servers, work / "now")
    seen = [len(now.drain(**limit)) for limit in ({"maxOffsetsPerTrigger": 400},) * 2 + ({},) * 2]
    report("now", seen=seen, exactly=now.rows == list(range(1_000)))

    session.conf.set(WRAPPER, "true")
    before = len(now.rows)
    try:
        now.drain()
        refused = ""
    except StreamingQueryException as error:
        refused = str(error)
    session.conf.set(WRAPPER, "false")
    report("wrapper", refused=WRAPPER in refused, more=len(now.rows) - before)

    target = where | {"topic": "Copies"}
    del target["subscribe"]
    rows.select("body", "key").write.format("rocketmq").options(**target).mode("append").save()
    source = session.readStream.format("rocketmq").options(**where, startingOffsets="earliest").load()
    writer = source.select("body", "key").writeStream.format("rocketmq").options(**target)
    writer.option("checkpointLocation", str(work / "sink")).trigger(availableNow=True).start().awaitTermination()
    copies = session.read.format("rocketmq").options(**where | {"subscribe": "Copies"}).load()
    report("sink", rows=copies.count(), numbers=copies.select("body").distinct().count())
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
