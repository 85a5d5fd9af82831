"""A driver that puts the formats through what they promise on PySpark 4.0 and 4.1, whichever it runs on.

    python -m tests.spark.on_version NAME-SERVERS STORE DIRECTORY

The topic Orders holds the numbers below 1,000, the store a log. Each line it writes is one promise, as JSON.
"""

import json
import sys
from pathlib import Path

from pyspark.errors import StreamingQueryException

from tandemq.spark.runtime.session import open_session
from tests.spark.short import SHORT
from tests.spark.streams import LogStream, Stream

WRAPPER = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"


def tell(what: str, **facts: object) -> None:
    """One line of JSON."""
    print(json.dumps({"what": what} | facts), flush=True)


def stopped_and_died(stream: Stream, count: int, **limit: int) -> dict[str, object]:
    """A limited stream that is stopped after three micro-batches, dies within a later one, and goes on."""
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
    """One promise after the other."""
    session, _ = open_session("on a version", master="local[2]", settings=SHORT | {"spark.driver.memory": "512m"})
    tell("spark", version=session.version)
    where = {"nameServer": name_servers, "subscribe": "Orders"}
    work = Path(directory)

    rows = session.read.format("rocketmq").options(**where).load()
    condition = "queueId = 1 and queueOffset < 10 and storeTimestamp > '2020-01-01'"
    some = session.read.format("rocketmq").options(**where, pushDown="true", minPartitions=40).load().where(condition)
    tell("narrowed", rows=some.count(), tasks=some.rdd.getNumPartitions())
    records = session.read.format("rocketmq-log").load(store)
    log_rows = records.count()
    log_some = records.where("topic = 'T1' and bornTimestamp > '2020-01-01'").count()
    tell("batch", rows=rows.count(), log=log_rows, log_some=log_some)

    tell("stream", **stopped_and_died(Stream(session, name_servers, work / "stream"), 1_000, maxOffsetsPerTrigger=90))
    tell("log", **stopped_and_died(LogStream(session, Path(store), work / "log"), log_rows, maxBytesPerTrigger=20_000))

    now = Stream(session, name_servers, work / "now")
    seen = [len(now.drain(**limit)) for limit in ({"maxOffsetsPerTrigger": 400},) * 2 + ({},) * 2]
    tell("now", seen=seen, exactly=now.rows == list(range(1_000)))

    session.conf.set(WRAPPER, "true")
    before = len(now.rows)
    try:
        now.drain()
        refused = ""
    except StreamingQueryException as error:
        refused = str(error)
    session.conf.set(WRAPPER, "false")
    tell("wrapper", refused=WRAPPER in refused, more=len(now.rows) - before)

    target = where | {"topic": "Copies"}
    del target["subscribe"]
    rows.select("body", "key").write.format("rocketmq").options(**target).mode("append").save()
    source = session.readStream.format("rocketmq").options(**where, startingOffsets="earliest").load()
    writer = source.select("body", "key").writeStream.format("rocketmq").options(**target)
    writer.option("checkpointLocation", str(work / "sink")).trigger(availableNow=True).start().awaitTermination()
    copies = session.read.format("rocketmq").options(**where | {"subscribe": "Copies"}).load()
    tell("sink", rows=copies.count(), numbers=copies.select("body").distinct().count())
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
