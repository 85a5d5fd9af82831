"""Replica reads: slaves of groups with a registry serve no consumers, but serve pipelines."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

from tandemq.client.connection import try_request
from tandemq.client.core.requests import pull_request
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue
from tandemq.run.local import LocalBroker, LocalCluster
from tests.serving import let
from tests.spark.messages import make_topic, numbered, send
from tests.spark.streams import Stream
from tests.spec import spec

QUEUE = MessageQueue("Orders", "broker-a", 0)


def slave_of(cluster: LocalCluster) -> LocalBroker:
    master = cluster.master()
    return next(broker for broker in cluster.brokers if broker is not master)


def pull(
    broker: LocalBroker, code: RequestCode, offset: int = 0, queue: MessageQueue = QUEUE, **fields: str
) -> Command:
    request = pull_request(queue, offset, 32, code=code)
    answer = try_request(broker.address, Command(code, fields={**request.fields, **fields}))
    assert answer is not None
    return answer


def fill(cluster: LocalCluster, count: int, queues: int) -> None:
    """Create a topic with numbered messages."""
    make_topic(cluster.name_servers, QUEUE.topic, queues)
    send(cluster.name_servers, numbered(QUEUE.topic, 0, count))


def wait_shown(cluster: LocalCluster, slave: LocalBroker, count: int, queues: int) -> None:
    """Wait until a slave returns all messages: it learns of their confirmation shortly after it has stored them."""

    def shown(queue: int) -> int:
        where = MessageQueue(QUEUE.topic, QUEUE.broker_name, queue)
        return int(pull(slave, RequestCode.TANDEM_REPLICA_PULL, queue=where).fields.get("maxOffset", 0))

    cluster.wait_in_sync()
    cluster.wait_until(lambda: sum(map(shown, range(queues))) == count)


def read(spark: SparkSession, cluster: LocalCluster, **options: Any) -> list[int]:
    given: dict[str, Any] = {"nameServer": cluster.name_servers, "subscribe": "Orders", "timeoutMs": 8_000} | options
    rows = spark.read.format("rocketmq").options(**given).load().select("body").collect()
    return sorted(int(row.body) for row in rows)


@spec("P11")
@pytest.mark.tandemq(mode="elect")
def test_slave_returns_confirmed_messages_and_refuses_consumers(tandemq_pair: LocalCluster) -> None:
    fill(tandemq_pair, 10, queues=1)
    slave = slave_of(tandemq_pair)
    wait_shown(tandemq_pair, slave, 10, queues=1)
    given = pull(slave, RequestCode.TANDEM_REPLICA_PULL)
    assert given.code == ResponseCode.SUCCESS
    assert given.fields["nextBeginOffset"] == "10"
    assert pull(slave, RequestCode.PULL_MESSAGE).code == ResponseCode.NO_PERMISSION
    assert pull(slave, RequestCode.TANDEM_REPLICA_PULL, offset=10).code == ResponseCode.PULL_NOT_FOUND
    assert pull(slave, RequestCode.TANDEM_REPLICA_PULL, topic="Other").code == ResponseCode.TOPIC_NOT_EXIST
    wrong = pull(slave, RequestCode.TANDEM_REPLICA_PULL, expressionType="SQL92")
    assert wrong.code == ResponseCode.SYSTEM_ERROR
    # Unconfirmed messages are not returned: here all from the fourth one on.
    at = slave.node.store.queues["Orders", 0].entry(3).log_offset
    let(slave.node, replica_end=at)
    given = pull(slave, RequestCode.TANDEM_REPLICA_PULL)
    assert (given.fields["maxOffset"], given.fields["nextBeginOffset"]) == ("3", "3")
    assert pull(slave, RequestCode.TANDEM_REPLICA_PULL, offset=3).code == ResponseCode.PULL_NOT_FOUND


@pytest.mark.tandemq(mode="elect")
def test_elected_group_is_read_from_slave_and_from_master(spark: SparkSession, tandemq_pair: LocalCluster) -> None:
    fill(tandemq_pair, 300, queues=2)
    master, slave = tandemq_pair.master(), slave_of(tandemq_pair)
    wait_shown(tandemq_pair, slave, 300, queues=2)
    given = slave.node.pull.counters.messages
    assert read(spark, tandemq_pair, readFrom="slave") == list(range(300))
    assert slave.node.pull.counters.messages - given == 300
    assert master.node.pull.counters.messages == 0
    assert read(spark, tandemq_pair) == list(range(300))
    times = {"startingTimestamp": "1000", "endingTimestamp": "9000000000000"}
    assert read(spark, tandemq_pair, readFrom="slave", **times) == list(range(300))
    assert master.node.pull.counters.messages == 0
    assert read(spark, tandemq_pair, readFrom="master") == list(range(300))
    assert master.node.pull.counters.messages == 300


@spec("P11")
@pytest.mark.tandemq(mode="elect")
def test_elected_master_killed_within_a_micro_batch_loses_and_duplicates_nothing(
    tandemq_pair: LocalCluster, stream: Stream
) -> None:
    fill(tandemq_pair, 300, queues=2)
    master = tandemq_pair.master()
    wait_shown(tandemq_pair, slave_of(tandemq_pair), 300, queues=2)

    def kill_in_second(batch: int) -> None:
        if batch == 1 and master.is_running:
            master.kill()

    stream.on_batch = kill_in_second
    assert stream.drain(maxOffsetsPerTrigger=100, timeoutMs=30_000) == list(range(300))
    assert not master.is_running
    assert len(stream.batches) == 3


def test_lagging_slave_skips_nothing(spark: SparkSession, tandemq_pair: LocalCluster) -> None:
    fill(tandemq_pair, 100, queues=1)
    tandemq_pair.wait_in_sync()
    slave = tandemq_pair.broker(broker_id=1)
    # Its queue ends at 40, as if it had not copied the rest yet.
    at = slave.node.store.queues["Orders", 0].entry(40).log_offset
    let(slave.node, visible_end=at)
    given = slave.node.pull.counters.messages
    assert read(spark, tandemq_pair) == list(range(100))
    assert slave.node.pull.counters.messages - given == 40
    with pytest.raises(
        Exception, match=r"no member returned offset 40 of Orders broker-a queue 0 within 1500 ms.*offsets before 40"
    ):
        read(
            spark, tandemq_pair, readFrom="slave", timeoutMs=1_500, endingOffsets='{"Orders": {"broker-a": {"0": 100}}}'
        )
    assert read(spark, tandemq_pair, readFrom="slave") == list(range(40))


def test_start_after_the_end_of_a_lagging_slave_is_no_loss(
    spark: SparkSession, tandemq_pair: LocalCluster, stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tandemq_pair, 100, queues=1)
    tandemq_pair.wait_in_sync()
    slave = tandemq_pair.broker(broker_id=1)
    let(slave.node, visible_end=slave.node.store.queues["Orders", 0].entry(40).log_offset)
    start = {"startingOffsets": '{"Orders": {"broker-a": {"epoch": 1, "0": 80}}}'}
    assert read(spark, tandemq_pair, readFrom="slave", **start) == []
    assert read(spark, tandemq_pair, **start) == list(range(80, 100))
    assert stream.drain(readFrom="slave", **start) == []
    let(slave.node, visible_end=1 << 62)
    tandemq_pair.master().kill()
    assert stream.drain(readFrom="slave", **start) == list(range(80, 100))
    assert stream.offsets()["Orders"] == {"broker-a": {"epoch": 1, "0": 100}}
