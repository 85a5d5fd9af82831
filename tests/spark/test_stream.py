"""`format("rocketmq")` in streaming queries: checkpoints, limits, and changes of the cluster."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tandemq.client.admin.queries import message_at
from tandemq.config.samples import ON_ANY_DISK
from tandemq.model.message import MessageQueue
from tandemq.run.children import ChildCluster
from tandemq.run.local import LocalBroker, LocalCluster
from tandemq.spark.runtime.client_pool import close_clients, cluster_client
from tandemq.spark.sources.cluster.options import source_options
from tandemq.spark.sources.cluster.stream_reader import StreamReader
from tandemq.spark.sources.schema import message_schema
from tests.samples import slow
from tests.spark.messages import committed, make_topic, numbered, send
from tests.spark.streams import Stream
from tests.spark.test_source import SMALL_FILES, delete_old_files
from tests.spec import spec


def test_checkpoint_is_continued_and_batches_are_no_larger_than_allowed(
    tandemq_broker: LocalCluster, stream: Stream
) -> None:
    names = tandemq_broker.name_servers
    make_topic(names, "Orders")
    send(names, numbered("Orders", 0, 100))
    assert stream.drain(maxOffsetsPerTrigger=40, commitGroup="pipeline") == list(range(100))
    assert [len(rows) for rows in stream.batches.values()] == [40, 40, 20]
    assert sum(committed(names, "pipeline", "Orders").values()) == 100
    send(names, numbered("Orders", 100, 130))
    make_topic(names, "Orders", 6)
    send(names, numbered("Orders", 130, 140), queue=MessageQueue("Orders", "broker-a", 5))
    assert stream.drain(commitGroup="pipeline") == list(range(140))
    assert stream.offsets()["Orders"]["broker-a"]["5"] == 10
    assert sum(committed(names, "pipeline", "Orders").values()) == 140
    assert stream.drain() == list(range(140))


def test_topics_created_while_a_query_runs_are_read_from_their_start(
    tandemq_broker: LocalCluster, stream: Stream
) -> None:
    names = tandemq_broker.name_servers
    send(names, numbered("Orders-one", 0, 10))
    query = stream.start(once=False, subscribePattern="Orders-.*", minOffsetsPerTrigger=1, maxTriggerDelay="0s")
    try:
        tandemq_broker.wait_until(lambda: stream.rows == list(range(10)) or query.exception() is not None, 40)
        send(names, numbered("Orders-two", 10, 20))
        send(names, numbered("Other", 90, 99))
        tandemq_broker.wait_until(lambda: stream.rows == list(range(20)) or query.exception() is not None, 40)
        assert query.exception() is None
    finally:
        query.stop()


@spec("P12")
def test_new_queues_topics_and_broker_groups_lose_and_duplicate_nothing(
    tandemq_broker: LocalCluster, stream: Stream
) -> None:
    names = tandemq_broker.name_servers
    options = {"subscribePattern": "Orders-.*", "commitGroup": "pipeline"}

    def wait_for(count: int) -> None:
        tandemq_broker.wait_until(lambda: len(stream.rows) >= count or query.exception() is not None, 60)
        assert query.exception() is None
        assert stream.rows == list(range(count))

    make_topic(names, "Orders-one", 1)
    send(names, numbered("Orders-one", 0, 10))
    query = stream.start(once=False, **options)
    try:
        wait_for(10)
        make_topic(names, "Orders-one", 3)
        send(names, numbered("Orders-one", 10, 20), queue=MessageQueue("Orders-one", "broker-a", 2))
        wait_for(20)
        send(names, numbered("Orders-two", 20, 30))
        wait_for(30)
        with added_group(tandemq_broker):
            make_topic(names, "Orders-one", 3)
            send(names, numbered("Orders-one", 30, 40), queue=MessageQueue("Orders-one", "broker-b", 1))
            send(names, numbered("Orders-one", 40, 50), queue=MessageQueue("Orders-one", "broker-a", 1))
            wait_for(50)
            query.stop()
            send(names, numbered("Orders-one", 50, 60), queue=MessageQueue("Orders-one", "broker-b", 0))
            assert stream.drain(**options) == list(range(60))
            assert sorted(stream.offsets()["Orders-one"]) == ["broker-a", "broker-b"]
            done = [committed(names, "pipeline", topic) for topic in ("Orders-one", "Orders-two")]
            assert sum(sum(offsets.values()) for offsets in done) == 60
    finally:
        query.stop()


@contextmanager
def added_group(cluster: LocalCluster) -> Iterator[None]:
    """A second broker group with one master, which joins a running cluster."""
    broker = LocalBroker(
        replace(
            cluster.broker().node.config,
            broker_name="broker-b",
            listen_port=0,
            ha_port=0,
            store_path=str(cluster.directory / "broker-b-0"),
        )
    )
    broker.start()
    try:
        cluster.wait_until(broker.is_registered)
        yield
    finally:
        broker.close()


def test_master_killed_within_a_micro_batch_loses_nothing_if_the_slave_has_the_messages(
    tandemq_pair: LocalCluster, stream: Stream
) -> None:
    send(tandemq_pair.name_servers, numbered("Orders", 0, 300))
    tandemq_pair.wait_in_sync()

    def kill_in_second(batch: int) -> None:
        if batch == 1:
            tandemq_pair.broker().kill()

    stream.on_batch = kill_in_second
    assert stream.drain(maxOffsetsPerTrigger=100, readFrom="master") == list(range(300))
    assert len(stream.batches) == 3
    tandemq_pair.broker().start()
    tandemq_pair.wait_until(tandemq_pair.broker().is_registered)
    tandemq_pair.wait_in_sync()
    send(tandemq_pair.name_servers, numbered("Orders", 300, 320))
    assert stream.drain() == list(range(320))


def test_master_process_killed_within_a_micro_batch_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    with ChildCluster(tmp_path / "cluster", groups=1, settings=ON_ANY_DISK) as cluster:
        send(cluster.name_servers, numbered("Orders", 0, 300))
        cluster.wait_until(cluster.in_sync)
        stream = Stream(spark, cluster, tmp_path / "query")
        killed: list[int] = []

        def kill_in_second(batch: int) -> None:
            if batch == 1:
                killed.append(cluster.broker("broker-a").pid)
                cluster.broker("broker-a").kill()

        stream.on_batch = kill_in_second
        assert stream.drain(maxOffsetsPerTrigger=100, readFrom="master") == list(range(300))
        assert [len(rows) for rows in stream.batches.values()] == [100, 100, 100]
        assert [bool(pid) for pid in killed] == [True]
        assert [child.name for child in cluster.dead()] == ["broker-a-0"]


@spec("P04")
@pytest.mark.parametrize("options", [{}, slow({"subExpression": "a"})])
@pytest.mark.tandemq(**SMALL_FILES)
def test_messages_deleted_before_reading_fail_the_query_or_are_skipped(
    tandemq_broker: LocalCluster, stream: Stream, options: dict[str, str]
) -> None:
    names = tandemq_broker.name_servers
    make_topic(names, "Orders", 1)
    send(names, numbered("Orders", 0, 10, "a"))
    assert stream.drain(**options) == list(range(10))
    send(names, numbered("Orders", 10, 1_000, "a"))
    delete_old_files(tandemq_broker)
    with pytest.raises(Exception, match=r"Orders broker-a queue 0, offsets 10 to .* are no longer there"):
        stream.drain(**options)
    assert stream.rows == list(range(10))
    rows = stream.drain(failOnDataLoss="false", **options)
    first = tandemq_broker.broker().node.store.queues["Orders", 0].min_offset
    assert first > 10
    assert rows == [*range(10), *range(first, 1_000)]


def test_messages_of_a_new_queue_count_for_the_minimum_size_of_a_batch(tandemq_broker: LocalCluster) -> None:
    names = tandemq_broker.name_servers
    make_topic(names, "Orders", 1)
    send(names, numbered("Orders", 0, 5))
    given = {"nameServer": names, "subscribe": "Orders", "startingOffsets": "earliest", "minOffsetsPerTrigger": "50"}
    reader = StreamReader(source_options(given, streaming=True), message_schema())
    every = reader.getDefaultReadLimit()
    try:
        start = reader.initialOffset()
        assert start == {"Orders": {"broker-a": {"epoch": 1, "0": 0}}}
        for _ in range(2):
            assert reader.latestOffset(start, every) == start
        make_topic(names, "Orders", 2)
        send(names, numbered("Orders", 5, 50), queue=MessageQueue("Orders", "broker-a", 1))
        entered = reader.latestOffset(start, every)
        assert entered["Orders"] == {"broker-a": {"epoch": 1, "0": 0, "1": 0}}
        assert reader.partitions(start, entered) == []
        assert reader.latestOffset(entered, every)["Orders"] == {"broker-a": {"epoch": 1, "0": 5, "1": 45}}
    finally:
        close_clients()


@spec("P04")
@pytest.mark.tandemq(**SMALL_FILES)
def test_query_without_a_completed_batch_detects_deleted_messages(tandemq_broker: LocalCluster, stream: Stream) -> None:
    names = tandemq_broker.name_servers
    make_topic(names, "Orders", 1)
    send(names, numbered("Orders", 0, 1_000))

    def die(_batch: int) -> None:
        raise RuntimeError("died")

    stream.on_batch = die
    with pytest.raises(Exception, match="died"):
        stream.drain()
    assert stream.offsets() == {"Orders": {"broker-a": {"epoch": 1, "0": 0}}}
    stream.on_batch = lambda _batch: None
    delete_old_files(tandemq_broker)
    with pytest.raises(Exception, match=r"Orders broker-a queue 0, offsets 0 to .* are no longer there"):
        stream.drain()
    first = tandemq_broker.broker().node.store.queues["Orders", 0].min_offset
    assert first > 0
    assert stream.drain(failOnDataLoss="false") == list(range(first, 1_000))


def test_rewritten_history_is_detected(tandemq_broker: LocalCluster, stream: Stream) -> None:
    names = tandemq_broker.name_servers
    make_topic(names, "Orders", 1)
    send(names, numbered("Orders", 0, 20))
    assert stream.drain() == list(range(20))
    client, queue = cluster_client(names), MessageQueue("Orders", "broker-a", 0)
    tenth = client.run(lambda routes: message_at(routes, queue, 10), 5_000)
    close_clients()
    assert tenth is not None
    assert stream.offsets()["Orders"]["broker-a"] == {"epoch": 1, "0": 20}
    # As after a failover to a broker whose log diverged at the tenth message.
    tandemq_broker.broker().node.kernel.generations.set([(1, 0), (2, tenth.log_offset)])
    send(names, numbered("Orders", 20, 25))
    with pytest.raises(Exception, match="before offset 20 were read in epoch 1 and have been rewritten since"):
        stream.drain()
    assert stream.drain(failOnDataLoss="false") == list(range(25))
    assert stream.offsets()["Orders"]["broker-a"] == {"epoch": 2, "0": 25}
    assert stream.drain() == list(range(25))


def test_unreachable_name_server_ends_a_query_within_the_timeout(tandemq_broker: LocalCluster, stream: Stream) -> None:
    send(tandemq_broker.name_servers, numbered("Orders", 0, 5))
    assert stream.drain() == list(range(5))
    with pytest.raises(Exception, match="no answer within 900 ms"):
        stream.drain(nameServer="127.0.0.1:1", timeoutMs=900)
    assert stream.drain() == list(range(5))
