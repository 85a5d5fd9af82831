"""Orders and payments with plain structured streaming: one driver, seven queries.

    python streaming.py --namesrv 127.0.0.1:9876              what is there now, then end
    python streaming.py --namesrv 127.0.0.1:9876 --follow     until Ctrl-C or SIGTERM

    topics ─► bronze ─┬─► silver_orders ───┬─► gold_minutes       orders per minute
                      │                    ├─► gold_customers     orders per customer
                      │                    ├─► gold_payments      payments in time, with their orders
                      └─► silver_payments ─┴─► gold_unpaid        orders without payment in time

Bronze and silver are Parquet written by Spark's file sink: read them with Spark only. Gold are Delta tables, for
all programs. Each query has a checkpoint, and may be killed at any time: the tables are the same in the end.
"""

import argparse
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from tandemq.spark.lake.upsert import Upsert
from tandemq.spark.runtime.query_files import with_progress_files
from tandemq.spark.runtime.session import open_session
from tandemq.spark.runtime.stopping import stop_signals, wait_for

TOPICS = {
    "Orders": "order string, customer string, cents bigint, at timestamp",
    "Payments": "payment string, order string, cents bigint, at timestamp",
}
"""Topics, and the fields of their bodies."""
SENT_AGAIN_WITHIN = "7 days"
"""For how long silver recognizes a message that is sent again."""
LATE_BY = "10 minutes"
"""How late an event may be. Gold has no events that are later, except customers; silver has them."""
PAY_WITHIN = 15
"""Minutes from an order to its payment."""
FORGET_CUSTOMER_MS = 30 * 86_400_000

STATE = "org.apache.spark.sql.execution.streaming.state"
SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": f"{STATE}.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
NO_DATA_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
"""Such micro-batches only move the watermark on, which ends windows and fires timers."""


# Bronze and silver.


def bronze(spark: SparkSession, name_servers: str) -> DataFrame:
    """Every record as stored, with the time of its arrival here."""
    source = spark.readStream.format("rocketmq").options(
        nameServer=name_servers,
        subscribe=",".join(TOPICS),
        startingOffsets="earliest",
        details="true",
        maxOffsetsPerTrigger=10_000,
    )
    return source.load().withColumn("arrivedAt", F.current_timestamp())


def silver(records: DataFrame, topic: str) -> DataFrame:
    """Valid messages of a topic, each once.

    A message that is sent or read again has the same unique key; one without key has a position. The watermark is on
    the time of arrival, so that no message is ever late here.
    """
    unique_key = F.regexp_extract("properties", "(?:^|\x02)UNIQ_KEY\x01([^\x02]*)", 1)
    position = F.concat_ws("/", "brokerName", "queueId", "queueOffset", "epoch")
    event = F.from_json(F.col("body").cast("string"), TOPICS[topic])
    return (
        records.where((F.col("topic") == topic) & F.col("verdict").isNull())
        .withColumn("messageId", F.when(unique_key == "", position).otherwise(unique_key))
        .withWatermark("arrivedAt", SENT_AGAIN_WITHIN)
        .dropDuplicatesWithinWatermark(["messageId"])
        .select("messageId", "storeTimestamp", event.alias("event"))
        .select("messageId", "storeTimestamp", "event.*")
        .where("order IS NOT NULL AND at IS NOT NULL AND cents > 0")
    )


# Gold.


def minutes(orders: DataFrame) -> DataFrame:
    """Orders and their sum by minute. A minute is updated until the watermark has passed it."""
    return (
        orders.withWatermark("at", LATE_BY)
        .groupBy(F.window("at", "1 minute"))
        .agg(F.count("*").alias("orders"), F.sum("cents").alias("cents"))
        .select(F.col("window.start").alias("minute"), "orders", "cents")
    )


def payments_in_time(orders: DataFrame, payments: DataFrame) -> DataFrame:
    """Payments with their orders. Orders wait for a payment, and payments for an order, as long as the times allow."""
    order = orders.withWatermark("at", LATE_BY).select("order", "customer", F.col("at").alias("orderedAt"))
    paid = payments.withWatermark("at", LATE_BY).select(
        "payment", F.col("order").alias("paidOrder"), "cents", F.col("at").alias("paidAt")
    )
    in_time = f"paidAt >= orderedAt AND paidAt <= orderedAt + INTERVAL {PAY_WITHIN} MINUTES"
    return order.join(paid, F.expr(f"order = paidOrder AND {in_time}")).drop("paidOrder")


def unpaid(orders: DataFrame, payments: DataFrame) -> DataFrame:
    """Orders without payment in time, once the watermark has passed their deadline."""
    events = (
        orders.withWatermark("at", LATE_BY)
        .select("order", "customer", "cents", "at")
        .unionByName(payments.withWatermark("at", LATE_BY).select("order", "cents", "at"), allowMissingColumns=True)
        .withColumn("atMs", F.unix_millis("at"))
    )
    found = events.groupBy("order").transformWithState(
        Unpaid(), "order string, customer string, cents bigint, deadlineMs bigint", "append", "EventTime"
    )
    return found.select("order", "customer", "cents", F.timestamp_millis("deadlineMs").alias("deadline"))


class Unpaid(StatefulProcessor):
    """State of an order: itself, and the time of its first payment, whichever comes first.

    A timer ends the state: that of the order at the deadline, or that of a payment whose order does not come.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._handle = handle
        self._order = handle.getValueState("order", "customer string, cents bigint, atMs bigint")
        self._paid = handle.getValueState("paid", "atMs bigint")

    def handleInputRows(  # noqa: N802
        self,
        key: Any,  # noqa: ARG002
        rows: Iterator[Row],
        timerValues: TimerValues,  # noqa: N803, ARG002
    ) -> Iterator[Row]:
        """Keep the order and its first payment. An event has a customer if it is an order."""
        wait_ms = PAY_WITHIN * 60_000
        for row in rows:
            if row.customer is not None:
                self._order.update((row.customer, row.cents, row.atMs))
            elif not self._paid.exists() or row.atMs < self._paid.get()[0]:  # type: ignore[index]
                self._paid.update((row.atMs,))
            # Timers of both, because either may have come first; a timer that finds no state does nothing.
            self._handle.registerTimer(row.atMs + wait_ms)
        return iter(())

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803, ARG002
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        """Report the order at its deadline, unless it is paid; end the state with the last timer."""
        order, at_ms = self._order.get(), expiredTimerInfo.getExpiryTimeInMs()
        if order is not None and order[2] + PAY_WITHIN * 60_000 == at_ms:
            paid = self._paid.get()
            if paid is None or paid[0] > at_ms:
                yield Row(order=key[0], customer=order[0], cents=order[1], deadlineMs=at_ms)
            self._order.clear()
        if all(timer <= at_ms for timer in self._handle.listTimers()):
            self._order.clear()
            self._paid.clear()


def customers(orders: DataFrame) -> DataFrame:
    """Orders and their sum by customer, however late; a customer without order for 30 days starts again."""
    return orders.groupBy("customer").transformWithState(
        Customers(), "customer string, orders bigint, cents bigint", "update", "ProcessingTime"
    )


class Customers(StatefulProcessor):
    """Counts of a customer, with a time to live."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state. An update starts its time to live again."""
        self._counts = handle.getValueState("counts", "orders bigint, cents bigint", ttlDurationMs=FORGET_CUSTOMER_MS)

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: TimerValues,  # noqa: N803, ARG002
    ) -> Iterator[Row]:
        """Add orders."""
        orders, cents = self._counts.get() or (0, 0)
        for row in rows:
            orders, cents = orders + 1, cents + row.cents
        self._counts.update((orders, cents))
        yield Row(customer=key[0], orders=orders, cents=cents)


# Queries.


class Shop:
    """The queries of the project, and their files in its directory. The console shows `progress/`."""

    def __init__(self, spark: SparkSession, name_servers: str, home: Path, *, follows: bool) -> None:
        """`follows`: queries run until they are stopped, instead of until they have read the present messages."""
        self._spark = spark
        self._name_servers = name_servers
        self._home = home
        self._trigger: dict[str, Any] = {"processingTime": "2 seconds"} if follows else {"availableNow": True}
        for name, value in SETTINGS.items():
            spark.conf.set(name, value)
        with_progress_files(spark, home / "progress")

    def start(self) -> Iterator[StreamingQuery]:
        """Start the queries; each starts when the caller asks for it."""
        yield self._into_parquet("bronze", bronze(self._spark, self._name_servers))
        for topic in TOPICS:
            yield self._into_parquet(f"silver_{topic.lower()}", silver(self._read("bronze", RECORDS), topic))
        orders, payments = (
            self._read(f"silver_{topic.lower()}", f"messageId string, storeTimestamp timestamp, {fields}")
            for topic, fields in TOPICS.items()
        )
        yield self._into_delta("gold_minutes", minutes(orders), "update", "minute")
        yield self._into_delta("gold_payments", payments_in_time(orders, payments), "append", "payment")
        yield self._into_delta("gold_unpaid", unpaid(orders, payments), "append", "order")
        # State with a time to live asks for micro-batches without data forever: with availableNow it would never end.
        self._spark.conf.set(NO_DATA_BATCHES, "false")
        try:
            query = self._into_delta("gold_customers", customers(orders), "update", "customer")
        finally:
            self._spark.conf.set(NO_DATA_BATCHES, "true")
        yield query

    def _read(self, table: str, schema: str) -> DataFrame:
        path = self._home / "tables" / table
        path.mkdir(parents=True, exist_ok=True)
        return self._spark.readStream.schema(schema).parquet(str(path))

    def _into_parquet(self, name: str, rows: DataFrame) -> StreamingQuery:
        writer = rows.writeStream.format("parquet").option("path", str(self._home / "tables" / name))
        return self._start(writer, name)

    def _into_delta(self, name: str, rows: DataFrame, mode: str, key: str) -> StreamingQuery:
        upsert = Upsert(self._home / "tables" / name, [key])
        return self._start(rows.writeStream.outputMode(mode).foreachBatch(upsert), name)

    def _start(self, writer: Any, name: str) -> StreamingQuery:
        writer = writer.queryName(name).option("checkpointLocation", str(self._home / "checkpoints" / name))
        query: StreamingQuery = writer.trigger(**self._trigger).start()
        return query


RECORDS = """topic string, brokerName string, queueId int, queueOffset bigint, epoch bigint, verdict string,
    body binary, properties string, storeTimestamp timestamp, arrivedAt timestamp"""
"""The columns of bronze that silver reads."""


def run(
    spark: SparkSession, name_servers: str, home: Path, stop: threading.Event | None = None, *, follows: bool = False
) -> None:
    """Run all queries: one after the other, or with `follows` together, until one fails.

    `stop`: ends them between micro-batches when it is set.
    """
    stop = stop or threading.Event()
    running = []
    for query in Shop(spark, name_servers, home, follows=follows).start():
        running.append(query)
        if not follows:
            wait_for([query], stop)
        if stop.is_set():
            break
    wait_for(running, stop)


def main() -> None:
    """Open a session and run the queries."""
    parser = argparse.ArgumentParser(description="Orders and payments with structured streaming.")
    parser.add_argument("--namesrv", default=os.environ.get("TANDEMQ_NAMESRV", "127.0.0.1:9876"))
    parser.add_argument("--home", type=Path, default=Path(__file__).resolve().parent, help="for tables and checkpoints")
    parser.add_argument("--follow", action="store_true", help="continue until Ctrl-C or SIGTERM")
    given = parser.parse_args()
    spark, _ = open_session("orders", settings=SETTINGS)
    try:
        with stop_signals() as stop:
            run(spark, given.namesrv, given.home, stop, follows=given.follow)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
