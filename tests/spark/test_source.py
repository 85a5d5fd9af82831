"""`format("rocketmq")` in batch queries, on a real session and running brokers."""

import json
import os
import random
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tandemq.client.blocking import BlockingProducer
from tandemq.client.connection import try_request
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.model.message import Message, MessageQueue
from tandemq.run.local import LocalCluster
from tandemq.spark.sources.cluster.lookups import WALK_MESSAGES
from tandemq.spark.sources.cluster.options import TIMEOUT_MS
from tests.blackbox.programs import wait_until
from tests.spark.messages import make_topic, numbered, send
from tests.spec import spec

Read = Callable[..., DataFrame]


@pytest.fixture
def read(spark: SparkSession) -> Read:
    def read(cluster: LocalCluster | str, topic: str = "Orders", **options: Any) -> DataFrame:
        name_servers = cluster if isinstance(cluster, str) else cluster.name_servers
        given: dict[str, Any] = {"nameServer": name_servers, "timeoutMs": 30_000} | options
        if not {"subscribe", "assign", "subscribePattern"} & set(given):
            given["subscribe"] = topic
        return spark.read.format("rocketmq").options(**given).load()

    return read


def bodies(rows: DataFrame) -> list[int]:
    return sorted(int(row.body) for row in rows.select("body").collect())


def test_every_message_is_a_row_with_its_stored_fields(tandemq_broker: LocalCluster, read: Read) -> None:
    make_topic(tandemq_broker.name_servers, "Orders", 2)
    sent = send(
        tandemq_broker.name_servers, [Message("Orders", bytes(range(200)) * 100, "paid", ["a", "b"], {"who": "me"})]
    )
    send(tandemq_broker.name_servers, numbered("Other", 0, 5))
    (row,) = read(tandemq_broker).collect()
    assert row.body == bytes(range(200)) * 100  # sent and stored compressed
    assert (row.key, row.tags, row.topic, row.brokerName) == ("a b", "paid", "Orders", "broker-a")
    assert (row.queueId, row.queueOffset, row.reconsumeTimes) == (sent[0].queue.queue_id, sent[0].queue_offset, 0)
    assert "who\x01me\x02" in row.properties
    assert abs((row.storeTimestamp.astimezone(UTC) - datetime.now(UTC)).total_seconds()) < 60
    assert row.bornHost.startswith("127.0.0.1:")
    (row,) = read(tandemq_broker, propertiesAs="map", details="true").collect()
    assert row.properties["who"] == "me"
    assert (row.epoch, row.verdict, row.storeHost) == (1, None, tandemq_broker.address)
    (row,) = read(tandemq_broker, schema="kafka").collect()
    assert (row.key, row.topic, row.partition, row.offset) == (b"a b", "Orders", sent[0].queue.queue_id, 0)


def test_filters_offsets_and_times_narrow_what_is_read(
    tandemq_broker: LocalCluster, read: Read, spark: SparkSession
) -> None:
    names = tandemq_broker.name_servers
    make_topic(names, "Orders", 2)
    for tag, start in (("a", 0), ("b", 100), ("c", 200)):
        for queue in range(2):
            at = start + 50 * queue
            send(names, numbered("Orders", at, at + 50, tag), queue=MessageQueue("Orders", "broker-a", queue))
    assert bodies(read(tandemq_broker)) == list(range(300))
    rows = read(tandemq_broker, pushDown="true")
    assert bodies(rows.where("tags = 'b'")) == list(range(100, 200))
    assert bodies(rows.where("tags in ('a', 'c') and queueId = 1")) == [*range(50, 100), *range(250, 300)]
    assert bodies(rows.where("queueOffset >= 10 and queueOffset < 12")) == [10, 11, 60, 61]
    assert bodies(rows.where("topic = 'Nothing'")) == []
    kafka = read(tandemq_broker, schema="kafka", minPartitions=4, pushDown="true").where(
        "topic = 'Orders' and partition = 1"
    )
    one = kafka.where("offset = 60")
    assert [row.value for row in one.collect()] == [b"160"]
    assert one.rdd.getNumPartitions() == 1
    assert kafka.where("offset >= 10 and offset < 12 and timestamp > '2020-01-01'").count() == 2
    half = read(tandemq_broker, subExpression="a || c", pushDown="true").where("queueId = 0")
    assert bodies(half) == [*range(50), *range(200, 250)]
    first_b = rows.where("tags = 'b'").agg(F.min("storeTimestamp")).first()
    assert first_b is not None
    moment = int(first_b[0].astimezone(UTC).timestamp() * 1000)
    late = read(tandemq_broker, startingTimestamp=moment).select("body", "storeTimestamp").collect()
    early = read(tandemq_broker, endingTimestamp=moment).select("body").collect()
    assert sorted(int(row.body) for row in [*late, *early]) == list(range(300))
    assert all(row.storeTimestamp.astimezone(UTC).timestamp() * 1000 >= moment - 1 for row in late)
    assert bodies(rows.where(F.col("storeTimestamp") >= first_b[0])) == sorted(int(row.body) for row in late)
    offsets = '{"Orders": {"broker-a": {"0": 140, "1": -1}}}'
    to_read = {"startingOffsets": offsets.replace("-1", "-2"), "endingOffsets": offsets.replace("140", "-1")}
    assert bodies(read(tandemq_broker, pushDown="true", **to_read).where("queueId = 0")) == list(range(240, 250))
    only = read(tandemq_broker, assign='{"Orders": {"broker-a": [1]}}')
    assert {row.queueId for row in only.select("queueId").distinct().collect()} == {1}
    assert read(tandemq_broker, minPartitions=7).rdd.getNumPartitions() >= 7


def test_messages_of_other_tags_are_filtered_by_the_broker(tandemq_broker: LocalCluster, read: Read) -> None:
    names = tandemq_broker.name_servers
    make_topic(names, "Orders", 1)
    send(names, numbered("Orders", 0, 100, "a"))
    send(names, numbered("Orders", 100, 103, "b"))
    path = tandemq_broker.broker().node.pull
    filtered: list[tuple[dict[str, str], str, int]] = [
        ({}, "true", 103),
        ({}, "tags = 'b'", 3),
        ({"subExpression": "b"}, "true", 3),
        ({"subExpression": "a || b"}, "tags in ('b', 'c')", 3),
    ]
    for options, condition, count in filtered:
        before = path.counters.messages
        rows = read(tandemq_broker, pushDown="true", **options).where(condition)
        assert bodies(rows) == list(range(103 - count, 103))
        assert path.counters.messages - before == count


def test_filtered_queues_and_times_are_not_read(tandemq_broker: LocalCluster, read: Read) -> None:
    names, pulls = tandemq_broker.name_servers, tandemq_broker.broker().node.pull
    for topic, queue, start, end in (("Orders", 0, 0, 100), ("Orders", 1, 100, 103), ("Other", 0, 103, 108)):
        make_topic(names, topic, 2)
        send(names, numbered(topic, start, end), queue=MessageQueue(topic, "broker-a", queue))

    def given(condition: str) -> tuple[list[int], int]:
        before = pulls.counters.messages
        rows = bodies(read(tandemq_broker, "Orders,Other", pushDown="true").where(condition))
        return rows, pulls.counters.messages - before

    for condition, rows in (
        ("true", range(108)),
        ("topic = 'Orders'", range(103)),
        ("topic = 'Other'", range(103, 108)),
        ("brokerName = 'broker-z'", range(0)),
        ("queueId = 1", range(100, 103)),
        ("queueOffset >= 98", range(98, 100)),
    ):
        assert given(condition) == (list(rows), len(rows)), condition
    # The search by time reads some messages.
    assert given("storeTimestamp > '2999-01-01'") == ([], 0)
    assert given("storeTimestamp < '2020-01-01'") == ([], WALK_MESSAGES + 3 + 5)


def test_filters_of_one_query_do_not_affect_another_on_the_same_dataframe(
    tandemq_broker: LocalCluster, read: Read
) -> None:
    """Spark reuses a reader with pushed filters for the next query, so pushdown is off by default."""
    make_topic(tandemq_broker.name_servers, "Orders", 4)
    send(tandemq_broker.name_servers, numbered("Orders", 0, 100))
    rows = read(tandemq_broker)
    second = rows.where("queueId = 1")
    count = second.count()
    assert 0 < count < 100
    assert rows.count() == 100
    assert second.union(rows).count() == count + 100
    assert second.union(rows.where("queueId = 2")).count() == count + rows.where("queueId = 2").count()


def test_subset_of_columns_can_be_read_and_wrong_ones_are_named(
    tandemq_broker: LocalCluster, spark: SparkSession
) -> None:
    names = tandemq_broker.name_servers
    send(names, numbered("Orders", 0, 20))
    source = spark.read.format("rocketmq").options(nameServer=names, subscribe="Orders")
    few = source.schema("queueId int, queueOffset bigint").load()
    assert few.count() == 20
    with pytest.raises(Exception, match=r"has no column 'queueIdd'.*did you mean 'queueId'"):
        source.schema("queueIdd int").load().count()


WRONG: list[tuple[dict[str, str], str]] = [
    (
        {"subscribe": "Order"},
        r"no name server knows the topic 'Order' \(there are Orders.* on broker-a; if a broker that is down",
    ),
    ({"subscrbe": "x"}, "has no option 'subscrbe'.*did you mean 'subscribe'"),
    ({"assign": '{"Orders": {"broker-z": [0]}}'}, "names broker-z for the topic 'Orders', and no member of broker-z"),
    ({"assign": '{"Orders": {"broker-a": [99]}}'}, "'Orders' has no queue 99 on 'broker-a'"),
    (
        {"startingOffsets": '{"Orders": {"broker-a": {"99": 0}}}'},
        "startingOffsets: 'Orders': 'broker-a': '99' is not a queue of this query",
    ),
    ({"readFrom": "slave"}, "no slave is registered.*readFrom=any"),
    (
        {"subExpression": "a > 1", "expressionType": "SQL92"},
        "does not support consumer to filter message by SQL92",
    ),
    (
        {"endingOffsets": '{"Orders": {"broker-a": {"0": 999}}}'},
        "endingOffsets says 999 of Orders broker-a queue 0, which ends at",
    ),
    (
        {"startingOffsets": '{"Orders": {"broker-a": {"0": 999}}}'},
        "startingOffsets says 999 of Orders broker-a queue 0, which ends at",
    ),
]


def test_impossible_options_are_refused_before_anything_is_read(tandemq_broker: LocalCluster, read: Read) -> None:
    send(tandemq_broker.name_servers, numbered("Orders", 0, 3))
    for options, says in WRONG:
        with pytest.raises(Exception, match=says):
            read(tandemq_broker, **({"timeoutMs": "1000"} | options)).count()


def test_unreachable_or_silent_name_server_is_an_error_within_the_timeout(read: Read) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for address in ("127.0.0.1:1", f"127.0.0.1:{silent.getsockname()[1]}"):
            start_s = time.monotonic()
            with pytest.raises(Exception, match=rf"no answer within 1000 ms.*name server {address} up and reachable"):
                read(address, timeoutMs=1_000).count()
            # Starting Python takes some seconds; the default timeout would take longer still.
            assert time.monotonic() - start_s < TIMEOUT_MS / 1_000


def test_topic_without_messages_gives_no_rows(tandemq_broker: LocalCluster, read: Read) -> None:
    make_topic(tandemq_broker.name_servers, "Orders")
    assert read(tandemq_broker).count() == 0
    send(tandemq_broker.name_servers, numbered("Orders", 0, 3), queue=MessageQueue("Orders", "broker-a", 2))
    assert bodies(read(tandemq_broker)) == [0, 1, 2]


def test_dead_master_is_no_error_while_a_slave_has_the_bytes(tandemq_pair: LocalCluster, read: Read) -> None:
    send(tandemq_pair.name_servers, numbered("Orders", 0, 500))
    tandemq_pair.wait_in_sync()
    slave = tandemq_pair.broker(broker_id=1)
    given = slave.node.pull.counters.messages
    assert bodies(read(tandemq_pair, readFrom="slave")) == list(range(500))
    assert slave.node.pull.counters.messages - given == 500
    assert bodies(read(tandemq_pair, readFrom="master")) == list(range(500))
    assert slave.node.pull.counters.messages - given == 500
    tandemq_pair.broker().kill()
    for choice in ("any", "slave", "master"):
        assert bodies(read(tandemq_pair, readFrom=choice)) == list(range(500))


def test_lagging_slave_leaves_the_rest_to_the_master(tandemq_pair: LocalCluster, read: Read) -> None:
    send(tandemq_pair.name_servers, numbered("Orders", 0, 50))
    tandemq_pair.wait_in_sync()
    tandemq_pair.broker(broker_id=1).kill()
    send(tandemq_pair.name_servers, numbered("Orders", 50, 100))
    assert bodies(read(tandemq_pair)) == list(range(100))
    with pytest.raises(Exception, match=r"no member of broker-a returned the start of Orders|no slave is registered"):
        read(tandemq_pair, readFrom="slave", timeoutMs=1_000).count()


SMALL_FILES = {"mappedFileSizeCommitLog": 65_536, "fileReservedTime": 1, "cleanResourceInterval": 100}


def delete_old_files(cluster: LocalCluster) -> None:
    """Run retention two hours later, which deletes all files but the last; returns when they are deleted."""
    *old, last = sorted((cluster.broker().store / "commitlog").iterdir())
    for path in old:
        then = path.stat().st_mtime - 7_200
        os.utime(path, (then, then))
    answer = try_request(cluster.address, Command(RequestCode.DELETE_EXPIRED_COMMITLOG))
    assert answer is not None and answer.code == 0
    cluster.wait_until(lambda: cluster.broker().node.store.log.start >= int(last.name))


@spec("P04")
@pytest.mark.tandemq(**SMALL_FILES)
def test_deleted_messages_fail_a_query_that_names_them_unless_loss_is_accepted(
    tandemq_broker: LocalCluster, read: Read
) -> None:
    make_topic(tandemq_broker.name_servers, "Orders", 1)
    send(tandemq_broker.name_servers, numbered("Orders", 0, 1_000, "a"))
    delete_old_files(tandemq_broker)
    there = bodies(read(tandemq_broker))
    assert there
    assert there == list(range(there[0], 1_000))
    start = '{"Orders": {"broker-a": {"0": 0}}}'
    filtered: list[tuple[dict[str, str], str]] = [({}, "true"), ({"subExpression": "a"}, "true"), ({}, "tags = 'a'")]
    for options, condition in filtered:
        strict, lax = (
            read(tandemq_broker, startingOffsets=start, failOnDataLoss=fails, pushDown="true", **options).where(
                condition
            )
            for fails in ("true", "false")
        )
        with pytest.raises(
            Exception, match=rf"offsets 0 to {there[0] - 1}, are no longer there .*failOnDataLoss=false"
        ):
            strict.count()
        assert bodies(lax) == there
    with pytest.raises(Exception, match=f"endingOffsets says 1 of .*, which begins at {there[0]}"):
        read(tandemq_broker, endingOffsets=start.replace("0}", "1}")).count()


@spec("P04")
def test_rows_have_their_epoch_and_an_offset_of_a_rewritten_log_is_detected(
    tandemq_broker: LocalCluster, read: Read
) -> None:
    names = tandemq_broker.name_servers
    make_topic(names, "Orders", 1)
    send(names, numbered("Orders", 0, 20))
    node = tandemq_broker.broker().node
    tenth = node.store.queues["Orders", 0].entry(10).log_offset
    # As after a failover to a broker whose log diverged at the tenth message.
    node.kernel.generations.set([(1, 0), (2, tenth)])
    rows = read(tandemq_broker, details="true").orderBy("queueOffset").collect()
    assert [row.epoch for row in rows] == [1] * 10 + [2] * 10

    def between(option: str, offset: int, epoch: int, **options: str) -> DataFrame:
        place = f'{{"Orders": {{"broker-a": {{"epoch": {epoch}, "0": {offset}}}}}}}'
        return read(tandemq_broker, **{option: place}, **options)

    assert between("startingOffsets", 10, 1).count() == between("endingOffsets", 10, 1).count() == 10
    assert between("startingOffsets", 15, 2).count() == 5
    for option, count in (("startingOffsets", 5), ("endingOffsets", 15)):
        for epoch, says in (
            (1, "messages before offset 15 were read in epoch 1 and have been rewritten since"),
            (7, f"{option} names epoch 7 of broker-a, whose last epoch is 2"),
        ):
            with pytest.raises(Exception, match=says):
                between(option, 15, epoch).count()
            assert between(option, 15, epoch, failOnDataLoss="false").count() == count


def test_damaged_record_is_an_error_or_a_row_with_its_verdict(tandemq_broker: LocalCluster, read: Read) -> None:
    names = tandemq_broker.name_servers
    with BlockingProducer(names, group="tests") as producer:
        for text in (b"good one", b"BADBADBAD", b"good two"):
            producer.send(Message("Orders", text), queue=MessageQueue("Orders", "broker-a", 0))
    path = next((tandemq_broker.broker().store / "commitlog").iterdir())
    at = path.read_bytes().index(b"BADBADBAD")
    with path.open("r+b") as file:
        file.seek(at + 3)
        file.write(b"x")
    log = tandemq_broker.broker().node.store.log
    wait_until(lambda: log.recent.start == log.written_end, "the broker reads the file, not its memory")
    with pytest.raises(Exception, match=r"offset 1: the record's CRC does not match .*details=true"):
        read(tandemq_broker).count()
    rows = read(tandemq_broker, details="true").orderBy("queueOffset").collect()
    assert [row.verdict for row in rows] == [None, "the record's CRC does not match its bytes", None]
    assert b"BADxADBAD" in rows[1].body
    assert [rows[0].body, rows[2].body] == [b"good one", b"good two"]


# Entries instead of messages.


def given_by(cluster: LocalCluster) -> int:
    """Return the number of messages that the broker gave to consumers since its start."""
    answer = try_request(cluster.address, Command(RequestCode.GET_BROKER_RUNTIME_INFO))
    assert answer is not None
    return int(json.loads(answer.body)["table"]["msgGetTotalTodayNow"])


@spec("P48")
def test_query_without_bodies_transfers_none_of_large_messages(
    tandemq_broker: LocalCluster, spark: SparkSession, read: Read
) -> None:
    make_topic(tandemq_broker.name_servers, "Orders", 1)
    names = ["key", "tags", "queueOffset", "bornTimestamp", "storeTimestamp", "bornHost", "reconsumeTimes", "epoch"]
    bodies = [random.Random(number).randbytes(20_000) for number in range(200)]
    send(tandemq_broker.name_servers, [Message("Orders", body, "t", [f"k{at}"]) for at, body in enumerate(bodies)])
    pulled = sorted(read(tandemq_broker, details="true").select(*names).collect())
    before = given_by(tandemq_broker)
    source = spark.read.format("rocketmq").options(nameServer=tandemq_broker.name_servers, subscribe="Orders")
    columns = read(tandemq_broker, details="true").select(*names).schema
    assert sorted(source.schema(columns).load().collect()) == pulled
    assert len(pulled) == 200
    assert given_by(tandemq_broker) < before + 100, "only the first pull gives whole messages"


@spec("P48")
@pytest.mark.parametrize(
    "columns",
    [
        "queueOffset bigint",
        "topic string, brokerName string, queueId int, queueOffset bigint",
        "commitLogOffset bigint, epoch bigint, size int",
    ],
)
def test_query_without_columns_of_messages_transfers_none(
    tandemq_broker: LocalCluster, spark: SparkSession, read: Read, columns: str
) -> None:
    make_topic(tandemq_broker.name_servers, "Orders", 2)
    send(tandemq_broker.name_servers, numbered("Orders", 0, 500))
    names = [column.split()[0] for column in columns.split(", ")]
    pulled = sorted(read(tandemq_broker, details="true").select(*names).collect())
    before = given_by(tandemq_broker)
    assert before >= 500
    options = {"nameServer": tandemq_broker.name_servers, "subscribe": "Orders"}
    rows = spark.read.schema(columns).format("rocketmq").options(**options).load()
    assert rows.count() == 500
    assert sorted(rows.collect()) == pulled
    kafka = spark.read.schema("topic string, partition int, offset bigint").format("rocketmq")
    assert kafka.options(**options, schema="kafka").load().distinct().count() == 500
    assert given_by(tandemq_broker) == before
    with_tags = spark.read.schema("tags string").format("rocketmq").options(**options)
    assert with_tags.load().count() == 500
    assert given_by(tandemq_broker) == before + 500
