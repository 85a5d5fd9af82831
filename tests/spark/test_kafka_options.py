"""Options of Spark's Kafka connector: each row of docs/guides/pipeline-kafka-options.md, and what they promise."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructField, StructType

from tandemq.client.core.requests import TOOLS_GROUP
from tandemq.client.core.routes import Routes
from tandemq.errors import ConfigError, LocalError, NotConnected
from tandemq.model.message import Message, MessageQueue
from tandemq.run.local import LocalCluster
from tandemq.spark.runtime.client_pool import close_clients, cluster_client
from tandemq.spark.sources.cluster.batch_reader import BatchReader
from tandemq.spark.sources.cluster.kafka_options import REFUSED
from tandemq.spark.sources.cluster.limits import find_ends, find_starts
from tandemq.spark.sources.cluster.members import QueueLayout
from tandemq.spark.sources.cluster.options import SINK, SOURCE, ReadFrom, StoreTimes, sink_options, source_options
from tandemq.spark.sources.cluster.row_messages import make_message
from tandemq.spark.sources.cluster.sink import BatchWriter, check_reachable, check_sink_schema
from tandemq.spark.sources.cluster.stream_reader import StreamReader
from tandemq.spark.sources.schema import message_schema
from tests.spark.messages import make_topic, numbered, send
from tests.spec import spec

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "pipeline-kafka-options.md"
REQUIRED = {"nameServer": "127.0.0.1:9876"}
TOPIC = {"subscribe": "Orders"}
OFFSETS, TIMES = '{"Orders": {"a": {"0": 7}}}', '{"Orders": {"a": {"0": 1000}}}'
QUEUE = MessageQueue("Orders", "a", 0)
ROWS = StructType().add("value", BinaryType())
SECONDS_MAX = 15
"""For a refused connection on a busy machine, where even 1.5 s of waiting take longer; the timeout is 30 s."""

SAME: dict[str, tuple[str, dict[str, str], bool, Callable[[Any], object], object]] = {
    "assign": ('{"Orders": {"a": [0, 2]}}', {}, False, lambda o: o.assigned, {"Orders": {"a": (0, 2)}}),
    "subscribe": ("A, B", {}, False, lambda o: o.topics, ("A", "B")),
    "subscribePattern": ("Orders-.*", {}, False, lambda o: o.pattern, "Orders-.*"),
    "startingTimestamp": ("5", TOPIC, True, lambda o: o.starting.wall_ms, 5),
    "startingOffsetsByTimestamp": (TIMES, TOPIC, True, lambda o: o.starting, StoreTimes({QUEUE: 1000})),
    "startingOffsets": (OFFSETS, TOPIC, True, lambda o: o.starting.offsets, {QUEUE: 7}),
    "endingTimestamp": ("5", TOPIC, False, lambda o: o.ending.wall_ms, 5),
    "endingOffsetsByTimestamp": (TIMES, TOPIC, False, lambda o: o.ending, StoreTimes({QUEUE: 1000})),
    "endingOffsets": (OFFSETS, TOPIC, False, lambda o: o.ending.offsets, {QUEUE: 7}),
    "startingOffsetsByTimestampStrategy": (
        "error",
        TOPIC | {"startingTimestamp": "5"},
        True,
        lambda o: o.needs_match,
        True,
    ),
    "failOnDataLoss": ("false", TOPIC, True, lambda o: o.fail_on_data_loss, False),
    "maxOffsetsPerTrigger": ("9", TOPIC, True, lambda o: o.offsets_max, 9),
    "minOffsetsPerTrigger": ("9", TOPIC, True, lambda o: o.offsets_min, 9),
    "maxTriggerDelay": ("2min", TOPIC | {"minOffsetsPerTrigger": "9"}, True, lambda o: o.trigger_delay_ms, 120_000),
    "minPartitions": ("9", TOPIC, True, lambda o: o.partitions_min, 9),
    "maxRecordsPerPartition": ("9", TOPIC, True, lambda o: o.records_max, 9),
    "groupIdPrefix": ("lake", TOPIC, True, lambda o: o.group.rpartition("-")[0], "lake"),
    "includeHeaders": ("true", TOPIC, True, lambda o: o.headers, True),
}
"""By option that means the same: a value, other options that it needs, whether of a stream; its effect."""


def options_in(heading: str) -> list[str]:
    """Return the options that a section names: those without differences, and the first cells of its table."""
    text = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    listed = re.search(r"^The same without differences: (.*)\.$", text, re.MULTILINE)
    return [*re.findall(r"`(\w+)`", listed[1] if listed else ""), *re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)]


INSTEAD = {
    "kafka.bootstrap.servers": {"nameServer"},
    "kafka.group.id": {"groupIdPrefix", "commitGroup"},
    "kafka.auto.offset.reset": {"startingOffsets"},
    "kafka.enable.auto.commit": {"commitGroup"},
    "kafka.security.protocol": {"tls"},
    "kafka.acks": {"requireSendOk"},
    "kafkaConsumer.pollTimeoutMs": {"timeoutMs"},
    "fetchOffset.numRetries": {"timeoutMs"},
    "fetchOffset.retryIntervalMs": {"timeoutMs"},
    "kafka.ssl.truststore.location": {"tls", "tlsCaFile"},
    "kafka.sasl.mechanism": {"secretFile"},
    "kafka.fetch.min.bytes": set(),
}
"""What the error of a refused option names; the last three are refused by their beginning."""


@spec("P30")
@pytest.mark.parametrize("name", options_in("The source"))
def test_option_of_kafkas_source_has_its_effect(name: str) -> None:
    value, others, streaming, effect, expected = SAME[name]
    assert effect(source_options(REQUIRED | others | {name: value}, streaming=streaming)) == expected
    if "Trigger" in name:
        with pytest.raises(ConfigError, match="option of streaming queries"):
            source_options(REQUIRED | others | {name: value}, streaming=False)


@spec("P30")
def test_options_of_kafkas_sink_have_their_effect() -> None:
    found = sink_options(REQUIRED | {"topic": "T", "includeHeaders": "false"})
    assert (found.topic, found.headers) == ("T", False)
    assert options_in("The sink") == ["topic", "includeHeaders"]


@spec("P30")
@pytest.mark.parametrize("name", [*REFUSED, *(name for name in INSTEAD if name not in REFUSED)])
def test_option_without_a_counterpart_is_refused_with_what_to_use(name: str) -> None:
    for parse in (
        lambda given: source_options(REQUIRED | TOPIC | given, streaming=False),
        lambda given: source_options(REQUIRED | TOPIC | given, streaming=True),
        lambda given: sink_options(REQUIRED | given),
    ):
        with pytest.raises(ConfigError) as caught:
            parse({name: "x"})
        assert str(caught.value).startswith(f"{name}: ")
        assert caught.value.hint
        for option in INSTEAD.get(name, set()):
            assert option in caught.value.hint
            assert option in SOURCE | SINK


def test_page_has_every_option_of_kafkas_source_once() -> None:
    names = options_in("The source")
    assert len(names) == len(set(names))
    assert set(names) == set(SAME)


def test_contradicting_times_are_named() -> None:
    for given, says in (
        ({"startingOffsetsByTimestamp": TIMES, "startingOffsets": "earliest"}, "are given together"),
        ({"startingOffsetsByTimestamp": "{"}, "startingOffsetsByTimestamp is not JSON"),
        ({"startingOffsetsByTimestamp": '{"Orders": {"a": {"0": -1}}}'}, "'0' is -1 (milliseconds since 1970)"),
        ({"startingOffsetsByTimestamp": '{"Orders": {"a": {"epoch": 1, "0": 1}}}'}, "names an epoch"),
        ({"startingOffsetsByTimestamp": '{"Orders": {"0": 1}}'}, "Kafka's form names no broker, this one does"),
        (
            {"startingOffsetsByTimestamp": TIMES, "endingOffsetsByTimestamp": TIMES.replace("1000", "999")},
            "startingOffsetsByTimestamp: 'Orders': 'a': '0' is 1000, later than endingOffsetsByTimestamp, 999",
        ),
        ({"startingOffsetsByTimestampStrategy": "error"}, "has no effect without a starting time"),
        ({"groupIdPrefix": "a b"}, "groupIdPrefix: the group name"),
        ({"groupIdPrefix": ""}, "groupIdPrefix: it is empty"),
    ):
        with pytest.raises(ConfigError) as caught:
            source_options(REQUIRED | TOPIC | given, streaming=False)
        assert says in str(caught.value)


@spec("P30")
def test_kafkas_headers_are_read_and_written(spark: SparkSession, tandemq_broker: LocalCluster) -> None:
    names = tandemq_broker.name_servers
    for topic in ("Orders", "Copies"):
        make_topic(names, topic)
    send(names, [Message("Orders", b"1", "paid", ["k"], {"who": "mé", "what": "x"}), Message("Orders", b"2")])
    source = spark.read.format("rocketmq").options(nameServer=names, schema="kafka", includeHeaders="true")
    read = source.option("subscribe", "Orders").load()
    assert read.schema["headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"
    found = {row.value: row.headers and {one.key: one.value for one in row.headers} for row in read.collect()}
    assert found == {b"1": {"who": "mé".encode(), "what": b"x"}, b"2": None}
    read.drop("topic").write.format("rocketmq").options(nameServer=names, topic="Copies").mode("append").save()
    copies = source.option("subscribe", "Copies").load().collect()
    assert {row.value: row.headers and {one.key: one.value for one in row.headers} for row in copies} == found


@spec("P30")
def test_headers_that_cannot_be_properties_are_named() -> None:
    options = sink_options(REQUIRED | {"topic": "T"})
    row = {"body": b"x", "headers": [{"key": "a", "value": b"1"}, {"key": "CLUSTER", "value": b"2"}]}
    assert make_message(row, options, 0).properties == {"a": "1"}
    assert make_message(row, sink_options(REQUIRED | {"topic": "T", "includeHeaders": "false"}), 0).properties == {}
    for headers, says in (
        ([{"key": "a", "value": b"\xff"}], "row 7 of its partition: the value of header 'a' is not UTF-8 text"),
        ([{"key": "a", "value": b"1"}] * 2, "row 7 of its partition has header 'a' twice"),
    ):
        with pytest.raises(LocalError, match=says):
            make_message({"body": b"x", "headers": headers}, options, 7)
    for kind, says in (
        (StringType(), "column headers is string .it must be array"),
        (ArrayType(StringType()), "column headers is array<string>.*includeHeaders=false"),
    ):
        with pytest.raises(ConfigError, match=says):
            check_sink_schema(StructType([*ROWS.fields, StructField("headers", kind)]), options)


@spec("P30")
def test_times_by_queue_and_records_per_task_are_kept(spark: SparkSession, tandemq_broker: LocalCluster) -> None:
    names = tandemq_broker.name_servers
    make_topic(names, "Orders", 2)
    queues = [MessageQueue("Orders", "broker-a", number) for number in range(2)]
    send(names, numbered("Orders", 0, 50), queue=queues[0])
    send(names, numbered("Orders", 50, 100), queue=queues[1])
    source = spark.read.format("rocketmq").options(nameServer=names, subscribe="Orders")
    stored = {int(row.body): row.storeTimestamp for row in source.load().collect()}
    moment = int(stored[50].timestamp() * 1000)
    after = {number for number, at in stored.items() if int(at.timestamp() * 1000) >= moment}
    by_queue = f'{{"Orders": {{"broker-a": {{"%d": {moment}}}}}}}'
    for number, expected in ((0, after | set(range(50, 100))), (1, set(range(50)) | (after & set(range(50, 100))))):
        rows = source.option("startingOffsetsByTimestamp", by_queue % number).load()
        assert {int(row.body) for row in rows.collect()} == expected
    before = spark.read.format("rocketmq").options(nameServer=names, subscribe="Orders")
    rows = before.option("endingOffsetsByTimestamp", by_queue % 0).load()
    assert {int(row.body) for row in rows.collect()} == set(stored) - (after & set(range(50)))
    with pytest.raises(Exception, match="'9' is not a queue of this query"):
        before.option("endingOffsetsByTimestamp", by_queue % 9).load().count()
    few = (
        spark.read.format("rocketmq").options(nameServer=names, subscribe="Orders", maxRecordsPerPartition="30").load()
    )
    sizes = [row["count"] for row in few.groupBy(F.spark_partition_id()).count().collect()]
    assert sum(sizes) == 100
    assert max(sizes) <= 30
    assert len(sizes) == 4


@spec("P30")
def test_time_later_than_all_messages_is_an_error_if_asked(tandemq_broker: LocalCluster) -> None:
    send(tandemq_broker.name_servers, numbered("Orders", 0, 10))
    late = {"startingTimestamp": "99999999999999"}
    given = {"nameServer": tandemq_broker.name_servers, "subscribe": "Orders"} | late
    reader = StreamReader(source_options(given, streaming=True), message_schema())
    strict = StreamReader(
        source_options(given | {"startingOffsetsByTimestampStrategy": "error"}, streaming=True), message_schema()
    )
    try:
        found = reader.initialOffset()["Orders"]["broker-a"]
        assert sum(count for name, count in found.items() if name != "epoch") == 10
        with pytest.raises(
            ConfigError, match=r"queue 0 has no message stored at 99999999999999 or later .*Strategy=latest"
        ):
            strict.initialOffset()
    finally:
        close_clients()


@spec("P30")
def test_pulls_name_the_group_of_the_prefix(tandemq_broker: LocalCluster) -> None:
    names = tandemq_broker.name_servers
    send(names, numbered("Orders", 0, 10))
    groups: list[str] = []
    for extra in ({}, {"groupIdPrefix": "lake"}, {"groupIdPrefix": "lake"}, {"groupIdPrefix": "other"}):
        given = {"nameServer": names, "subscribe": "Orders"} | extra
        reader = BatchReader(source_options(given, streaming=False), message_schema())
        try:
            assert sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)) == 10
        finally:
            close_clients()
        groups.append(reader._reader.how.group)
    assert groups[0] == TOOLS_GROUP
    assert groups[1] == groups[2] != groups[3]
    known = tandemq_broker.broker().node.groups
    assert set(groups[1:]) <= set(known.as_json()["subscriptionGroupTable"])


@spec("P31")
def test_refused_connection_ends_a_query_within_two_seconds() -> None:
    options = {"nameServer": "127.0.0.1:1", "subscribe": "Orders"}
    batch = BatchReader(source_options(options, streaming=False), message_schema())
    stream = StreamReader(source_options(options, streaming=True), message_schema())
    layout = QueueLayout((QUEUE,), {"a": {0: "127.0.0.1:1", 1: "127.0.0.1:2"}})
    nobody = "no connection within 1500 ms: no name server responds: .* cannot be reached: connection refused"
    no_broker = "no connection within 1500 ms: no member of a returned the %s of Orders: .* connection refused"
    try:
        for begin, says in (
            (batch.partitions, nobody),
            (stream.initialOffset, nobody),
            (lambda: stream._reader.run(lambda _: find_ends(layout, ReadFrom.ANY)), no_broker % "end"),
            (lambda: stream._reader.run(lambda _: find_starts(layout, ReadFrom.ANY)), no_broker % "start"),
            (lambda: BatchWriter(sink_options({"nameServer": "127.0.0.1:1", "topic": "T"}), ROWS), nobody),
        ):
            start_s = time.monotonic()
            with pytest.raises(NotConnected, match=says) as caught:
                begin()
            assert time.monotonic() - start_s < SECONDS_MAX
            assert "\n" not in str(caught.value)
    finally:
        close_clients()


@spec("P31")
def test_batch_write_fails_before_its_first_task_if_all_masters_refuse_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def route(_routes: object, _topic: str) -> Any:
        yield from ()
        return SimpleNamespace(subscribe_queues=lambda: [QUEUE])

    monkeypatch.setattr("tandemq.spark.sources.cluster.sink.topic_route", route)
    routes = cast(Routes, SimpleNamespace(members=lambda _name: {0: "127.0.0.1:1", 1: "127.0.0.1:2"}))
    try:
        with pytest.raises(NotConnected, match=r"no master of the topic T can be reached: 127.0.0.1:1 .* refused"):
            cluster_client("127.0.0.1:1").run(lambda _: check_reachable(routes, "T"), 30_000, connect_ms=1)
    finally:
        close_clients()
