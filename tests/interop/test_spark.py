"""The data pipeline's source and sink with unmodified Java brokers of both versions, also without the master."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from tandemq.cli import main
from tandemq.client.blocking import BlockingProducer
from tandemq.client.connection import try_request
from tandemq.client.core.requests import pull_request
from tandemq.codec.record.record import decode_messages
from tandemq.errors import TandemError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import Message, MessageQueue, SendStatus
from tandemq.run.local import LocalCluster
from tandemq.spark.runtime.session import open_session
from tests.interop.java import SERVER_VERSIONS, JavaBroker, JavaNameServer, wait_until
from tests.interop.peers import SERVERS, SMALL_STORE, broker, of_each_change, start_registered
from tests.interop.wire import wait_registered
from tests.samples import slow
from tests.spark.messages import committed, make_topic, numbered, send
from tests.spark.short import SHORT
from tests.spec import spec


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session, _ = open_session("interop", master="local[2]", settings=SHORT)
    yield session
    session.stop()


def wait_in_sync(names: str, slave: str) -> None:
    """Until the slave counts for the master's acknowledgements, and has taken over the topics: each takes its time."""

    def counts() -> bool:
        with BlockingProducer(names, group="probes", retries=0) as producer:
            try:
                return producer.send(Message("Probes", b"are you there?")).status is SendStatus.SEND_OK
            except TandemError:  # no answer in time, as long as the master waits for a slave in vain
                return False

    def knows_topics() -> bool:
        answer = try_request(slave, Command(RequestCode.GET_ALL_TOPIC_CONFIG))
        return answer is not None and b'"Orders"' in answer.body

    wait_until(counts, what="SEND_OK from a synchronous master", within_s=60, every_s=0.5)
    wait_until(knows_topics, what="the topics on the slave", within_s=120, every_s=0.5)


@pytest.mark.parametrize("version", [slow(version) for version in SERVER_VERSIONS])
def test_java_pair_is_written_read_and_streamed_also_without_its_master(
    version: str, spark: SparkSession, tmp_path: Path
) -> None:
    with JavaNameServer(version, tmp_path / "namesrv") as server:
        server.start()
        names = server.address
        with (
            JavaBroker(
                version, tmp_path / "master", namesrv=names, brokerRole="SYNC_MASTER", enablePropertyFilter=True
            ) as master,
            JavaBroker(
                version, tmp_path / "slave", namesrv=names, brokerRole="SLAVE", brokerId=1, slaveReadEnable=True
            ) as slave,
        ):
            for broker in (master, slave):
                broker.start()
            wait_registered(server.port, "broker-a", 0)
            wait_registered(server.port, "broker-a", 1)
            make_topic(names, "Probes", 1)
            make_topic(names, "Orders", 2)
            wait_in_sync(names, slave.address)
            options = {"nameServer": names, "subscribe": "Orders", "timeoutMs": "20000"}

            def read(**more: str) -> list[int]:
                rows = spark.read.format("rocketmq").options(**(options | more)).load().select("body").collect()
                return sorted(int(row.body) for row in rows)

            rows = spark.range(0, 200, numPartitions=2).select(
                F.col("id").cast("string").alias("body"),
                F.when(F.col("id") < 50, "a").otherwise("b").alias("tags"),
                F.create_map(F.lit("number"), F.col("id").cast("string")).alias("properties"),
            )
            rows.write.format("rocketmq").mode("append").options(nameServer=names, topic="Orders").save()
            assert read(readFrom="master") == list(range(200))
            assert read(readFrom="master", subExpression="a") == list(range(50))
            places = spark.read.schema("queueOffset bigint").format("rocketmq").options(**options).load()
            assert places.count() == 200
            sql = {"subExpression": "number between 10 and 12", "expressionType": "SQL92", "readFrom": "master"}
            assert read(**sql) == [10, 11, 12]
            stored = F.col("storeTimestamp")
            all_rows = spark.read.format("rocketmq").options(**options).load().select(stored).collect()
            moments = sorted(row.storeTimestamp for row in all_rows)

            def count(condition: Column) -> int:
                """Loaded anew for each query, as `pushDown` wants it."""
                narrowed = spark.read.format("rocketmq").options(**options, pushDown="true").load()
                return narrowed.where(condition).count()

            for moment in (moments[0], moments[100], moments[-1] + timedelta(hours=1)):
                later = sum(one >= moment for one in moments)
                assert (count(stored >= moment), count(stored < moment)) == (later, 200 - later)
            stream = spark.readStream.format("rocketmq").options(
                **options, startingOffsets="earliest", maxOffsetsPerTrigger="80", commitGroup="pipeline"
            )
            query = (
                stream.load()
                .writeStream.format("memory")
                .queryName(f"seen_{version.replace('.', '_')}")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            assert spark.table(f"seen_{version.replace('.', '_')}").count() == 200
            assert sum(committed(names, "pipeline", "Orders").values()) == 200
            assert read(readFrom="slave") == list(range(200))
            master.kill()
            assert read() == list(range(200))


@spec("P06")
@pytest.mark.parametrize("version", of_each_change(SERVERS))
def test_java_broker_serves_and_continues_a_store_rebuilt_from_a_log_with_gaps(version: str, tmp_path: Path) -> None:
    segment = int(SMALL_STORE["mappedFileSizeCommitLog"])
    with LocalCluster(tmp_path / "lost", settings={"mappedFileSizeCommitLog": segment}) as cluster:
        make_topic(cluster.name_servers, "Orders", 2)
        send(cluster.name_servers, numbered("Orders", 0, 6_000))
        log = Path(shutil.copytree(cluster.broker().store / "commitlog", tmp_path / "archived"))
    files = sorted(log.iterdir())
    assert len(files) > 4
    files[1].unlink()
    os.truncate(files[3], segment // 2)
    store = tmp_path / "store"
    sizes = {"queue-file-bytes": "mappedFileSizeConsumeQueue", "slots": "maxHashSlotNum", "entries": "maxIndexNum"}
    words = [word for option, key in sizes.items() for word in (f"--{option}", str(SMALL_STORE[key]))]
    rebuilt = CliRunner().invoke(main, ["spark", "rebuild", str(log), str(store), "--allow-loss", *words, "--json"])
    assert rebuilt.exit_code == 3, rebuilt.output
    holes = [hole for hole in json.loads(rebuilt.stdout)["holes"] if hole["topic"] == "Orders"]
    lost = sum(hole["end"] - hole["start"] for hole in holes)
    assert lost > 500
    settings = {**SMALL_STORE, "store": str(store)}
    with JavaNameServer(version, tmp_path / "namesrv") as server:
        server.start()
        with broker(version, tmp_path / "java", server, settings=settings) as java:
            start_registered(java, server)
            make_topic(server.address, "Orders", 2)
            (sent,) = send(
                server.address, numbered("Orders", 6_000, 6_001), queue=MessageQueue("Orders", "broker-a", 0)
            )
            assert sent.queue_offset == 3_000
            kept = [number for queue_id in range(2) for number in pulled(java.address, queue_id, 3_001 - queue_id)]
            assert len(kept) == len(set(kept)) == 6_001 - lost
            assert set(kept) < set(range(6_001))


def pulled(address: str, queue_id: int, end: int) -> list[int]:
    """Return the numbers of all messages of a queue, pulled as RocketMQ's clients do."""
    queue, found, offset = MessageQueue("Orders", "broker-a", queue_id), [], 0
    while offset < end:
        answer = try_request(address, pull_request(queue, offset, 32))
        assert answer is not None
        assert answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY), answer.remark
        assert offset < int(answer.fields["nextBeginOffset"]) <= end
        found += [int(message.body) for message in decode_messages(answer.body)]
        offset = int(answer.fields["nextBeginOffset"])
    return found
