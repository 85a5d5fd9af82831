"""Removed messages in the log of a Java broker: it recovers, checks and serves the log, without any loss."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from tandemq.model.message import Message
from tandemq.spark.jobs.removal import remove_from_log
from tandemq.spark.jobs.selection import Selection
from tandemq.spark.runtime.session import open_session
from tests.interop.java import SERVER_VERSIONS, JavaBroker, JavaNameServer
from tests.interop.wire import wait_registered
from tests.spark.messages import make_topic, numbered, send
from tests.spec import spec


@spec("P22")
def test_java_brokers_accept_a_log_with_removed_messages(tmp_path: Path) -> None:
    session, _ = open_session("interop", master="local[2]", settings={"spark.sql.shuffle.partitions": "2"})
    try:
        for version in SERVER_VERSIONS:
            _check(session, version, tmp_path / version)
    finally:
        session.stop()


def _check(spark: SparkSession, version: str, directory: Path) -> None:
    with JavaNameServer(version, directory / "namesrv") as server:
        server.start()
        names = server.address
        with JavaBroker(version, directory / "broker", namesrv=names, mappedFileSizeCommitLog=1 << 20) as broker:
            broker.start()
            wait_registered(server.port, "broker-a")
            make_topic(names, "Orders", 1)
            secret = Message("Orders", b"secret" * 1000, "t", ["customer-4711", "x"])
            send(names, [*numbered("Orders", 0, 5), secret, *numbered("Orders", 6, 9)])
            broker.stop()
            done = remove_from_log(spark, broker.store, Selection(keys=("customer-4711",)))
            assert (done.messages, done.found_after, done.is_complete) == (1, 0, True)
            # A Java broker that finds no `abort` checks the bodies of the last files; after a crash, too.
            for crashed in (False, True):
                if crashed:
                    broker.kill()
                broker.start()
                wait_registered(server.port, "broker-a")
                source = spark.read.format("rocketmq").options(nameServer=names, subscribe="Orders", propertiesAs="map")
                rows = source.load().orderBy("queueOffset").collect()
                whole = [bytes(row.body) for row in rows if "REMOVED" not in row.properties]
                assert sorted(whole) == [b"%d" % number for number in range(9) if number != 5], (version, crashed)
                (gone,) = [row for row in rows if "REMOVED" in row.properties]
                assert set(bytes(gone.body)) == {0}
                assert (gone.tags, gone.key) == (None, None)
