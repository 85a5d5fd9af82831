"""Queues of the sink's messages: by key, by the column `partition`, and in order through retries."""

import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from tandemq.client.core.calls import Ticket
from tandemq.client.producer.encoder import SendRequest
from tandemq.client.producer.machine import by_hash
from tandemq.codec.record.record import decode_batch
from tandemq.errors import ConfigError, LocalError, OutcomeUnknown
from tandemq.model.message import TIMER_DELIVER_MS, MessageQueue
from tandemq.run.local import LocalCluster
from tandemq.spark.sources.cluster.options import SinkOptions, sink_options
from tandemq.spark.sources.cluster.outgoing import COMPRESS_ABOVE_BYTES, unique_keys
from tandemq.spark.sources.cluster.parcels import EncodedParcel, MessageParcel, Parcel, make_parcels
from tandemq.spark.sources.cluster.row_sender import RowSender
from tandemq.spark.sources.cluster.sink import check_sink_schema
from tests.spark.messages import make_topic
from tests.spec import spec

NAMES = {"nameServer": "127.0.0.1:9876"}
BY_KEY = sink_options(NAMES | {"queueBy": "key"})
BY_PARTITION = sink_options(NAMES | {"queueBy": "partition"})
KEYS = [None, "", "k", "order-7", "ключ", "a b", "polygenelubricants", *(f"k{number}" for number in range(40))]


def queues_of(topic: str) -> list[MessageQueue]:
    return [
        MessageQueue(topic, broker, queue_id) for broker in ("a", "b") for queue_id in range(4 if topic == "A" else 3)
    ]


def rows_of_parcels(parcels: list[Parcel]) -> dict[MessageQueue | None, list[tuple[str, str]]]:
    """Body and unique key of the messages of each queue, in the order in which they are sent."""
    found: dict[MessageQueue | None, list[tuple[str, str]]] = defaultdict(list)
    for parcel in parcels:
        if isinstance(parcel, MessageParcel):
            found[parcel.lane.queue] += [(message.body.hex()[:40], key) for message, key in parcel.messages]
            continue
        assert isinstance(parcel, EncodedParcel)
        request = parcel.encoded.request
        bodies = [one.body for one in decode_batch(request.body)] if request.is_batch else [request.body]
        if request.sys_flag:
            bodies = [parcel.encoded.rows.bodies[number].as_py() for number in parcel.encoded.numbers]
        found[parcel.lane.queue] += zip((body.hex()[:40] for body in bodies), request.unique_keys, strict=True)
    return found


def table(rng: random.Random, count: int) -> pa.RecordBatch:
    large = rng.random() < 0.3
    bodies = [b"%d " % row * (COMPRESS_ABOVE_BYTES if large and rng.random() < 0.1 else 3) for row in range(count)]
    columns: dict[str, Any] = {
        "body": pa.array(bodies, pa.binary()),
        "topic": pa.array([rng.choice("AB") for _ in range(count)]),
        "key": pa.array([rng.choice(KEYS) for _ in range(count)], pa.string()),
        "partition": pa.array(
            [rng.choice((None, 0, 1, 5)) for _ in range(count)], rng.choice((pa.int32(), pa.int64()))
        ),
    }
    return pa.RecordBatch.from_pydict(columns)


@spec("P39")
@pytest.mark.parametrize("options", [BY_KEY, BY_PARTITION], ids=["key", "partition"])
def test_rows_by_columns_go_to_the_same_queues_in_the_same_order_as_row_by_row(
    options: SinkOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(60):
        batch = table(random.Random(seed), 1 + seed * 7)
        keys = unique_keys("q", "1", 0, 0, batch.num_rows)
        by_columns = make_parcels(batch, options, keys, 0, queues_of)
        assert all(isinstance(one, EncodedParcel) for one in by_columns)
        with monkeypatch.context() as patch:
            patch.setattr("tandemq.spark.sources.cluster.parcels.encode", lambda *_: None)
            by_rows = make_parcels(batch, options, keys, 0, queues_of)
        one, other = rows_of_parcels(by_columns), rows_of_parcels(by_rows)
        assert sorted(one.pop(None, [])) == sorted(other.pop(None, []))
        assert one == other, seed


@spec("P39")
def test_queue_of_a_key_is_that_of_javas_and_our_producers() -> None:
    batch = pa.RecordBatch.from_pydict({"body": KEYS, "topic": ["A"] * len(KEYS), "key": KEYS}).slice(2)
    found = rows_of_parcels(make_parcels(batch, BY_KEY, unique_keys("q", "", 0, 0, batch.num_rows), 0, queues_of))
    for key in batch.column("key").to_pylist():
        queue = by_hash(key)(queues_of("A"))
        assert key.encode().hex()[:40] in [body for body, _ in found[queue]]


@pytest.mark.parametrize("number", [8, -1])
def test_partition_that_a_topic_lacks_is_an_error_that_names_the_row(number: int) -> None:
    batch = pa.RecordBatch.from_pydict({"body": [b"x", b"y"], "topic": ["A", "A"], "partition": [7, number]})
    with pytest.raises(LocalError, match=f"row 6 of its partition: partition is {number}, A has 8 queues .*0 to 7"):
        make_parcels(batch, BY_PARTITION, unique_keys("q", "", 0, 5, 2), 5, queues_of)


def test_column_partition_is_needed_and_a_number_if_it_chooses_the_queue() -> None:
    body, topic = StructField("body", StringType()), StructField("topic", StringType())
    with pytest.raises(ConfigError, match="queueBy=partition needs a column partition"):
        check_sink_schema(StructType([body, topic]), BY_PARTITION)
    text = StructType([body, topic, StructField("partition", StringType())])
    with pytest.raises(ConfigError, match="column partition is string"):
        check_sink_schema(text, BY_PARTITION)
    check_sink_schema(text, BY_KEY)
    with pytest.raises(ConfigError, match="queueBy"):
        sink_options(NAMES | {"queueBy": "hash"})


def bodies_by_queue(cluster: LocalCluster, spark: SparkSession, topic: str) -> dict[int, list[str]]:
    rows = spark.read.format("rocketmq").options(nameServer=cluster.name_servers, subscribe=topic).load()
    found: dict[int, list[str]] = defaultdict(list)
    for row in rows.orderBy("queueId", "queueOffset").collect():
        found[row.queueId].append(bytes(row.body).decode().split(".")[0])
    return found


@spec("P39")
def test_messages_of_a_key_keep_their_order_through_retries(
    spark: SparkSession, tandemq_broker: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some requests fail before they are sent, some after they were stored."""
    make_topic(tandemq_broker.name_servers, "Ordered")
    options = sink_options({"nameServer": tandemq_broker.name_servers, "topic": "Ordered", "queueBy": "key"})
    rng, count = random.Random(5), 3_000
    bodies = [b"%d" % row + b"." * (COMPRESS_ABOVE_BYTES if row % 100 == 0 else 20) for row in range(count)]
    of_key = [f"k{rng.randrange(20)}" for _ in range(count)]
    batch = pa.RecordBatch.from_pydict({"body": bodies, "key": of_key})
    sender = RowSender(options)
    begin = sender._producer.begin_encoded
    failures = 0

    def begin_and_fail(request: SendRequest, **choice: Any) -> Ticket[Any]:
        nonlocal failures
        how = rng.random()
        ticket: Ticket[Any] = Ticket()
        if how < 0.3:
            failures += 1
            stored = begin(request, **choice) if how < 0.15 else None
            error = OutcomeUnknown("no response")
            if stored is None:
                ticket.fail(error)
            else:
                stored.then(lambda _: ticket.fail(error))
            return ticket
        return begin(request, **choice)

    monkeypatch.setattr(sender._producer, "begin_encoded", begin_and_fail)
    monkeypatch.setattr("tandemq.spark.sources.cluster.row_sender.RETRY_PAUSE_S", 0.001)
    try:
        sender.send(make_parcels(batch, options, unique_keys("q", "", 0, 0, count), 0, sender.queues))
        sender.flush()
    finally:
        sender.close()
    assert failures
    by_queue = bodies_by_queue(tandemq_broker, spark, "Ordered")
    places = {row: queue for queue, rows in by_queue.items() for row in rows}
    assert len(places) == count
    assert {len({places[str(row)] for row in range(count) if of_key[row] == key}) for key in set(of_key)} == {1}
    for rows in by_queue.values():
        first = list(dict.fromkeys(int(row) for row in rows))
        assert first == sorted(first)
    assert sum(map(len, by_queue.values())) > count, "some were stored twice"


@spec("P39")
def test_rows_choose_queues_and_times_by_columns(spark: SparkSession, tandemq_broker: LocalCluster) -> None:
    names = tandemq_broker.name_servers
    make_topic(names, "Places")
    rows = spark.range(40).select(
        F.col("id").cast("string").alias("value"), (F.col("id") % 4).cast("int").alias("partition")
    )
    rows.write.format("rocketmq").options(nameServer=names, topic="Places", queueBy="partition").mode("append").save()
    found = bodies_by_queue(tandemq_broker, spark, "Places")
    assert {queue: sorted(map(int, bodies)) for queue, bodies in found.items()} == {
        queue: list(range(queue, 40, 4)) for queue in range(4)
    }
    make_topic(names, "Timed")
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    timed = spark.createDataFrame(
        [("now", None, 0), ("later", at, None), ("level", None, 18)],
        "value string, deliverAt timestamp, delayLevel int",
    )
    timed.write.format("rocketmq").options(nameServer=names, topic="Timed").mode("append").save()
    assert [body for bodies in bodies_by_queue(tandemq_broker, spark, "Timed").values() for body in bodies] == ["now"]
    waiting = spark.read.format("rocketmq").options(
        nameServer=names, subscribe="rmq_sys_wheel_timer,SCHEDULE_TOPIC_XXXX", propertiesAs="map"
    )
    properties = {bytes(row.body).decode(): row.properties for row in waiting.load().collect()}
    assert properties["later"][TIMER_DELIVER_MS] == str(int(at.timestamp() * 1_000))
    assert properties["level"]["DELAY"] == "18"
