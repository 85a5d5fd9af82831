"""Removed messages in the log of a Java broker: it recovers, checks and serves the log, without any loss."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tandemq.client.aio.pull_consumer import PullConsumer
from tandemq.model.message import Message, MessageQueue, StoredMessage
from tandemq.spark.jobs import removal
from tandemq.spark.jobs.selection import Selection
from tandemq.spark.sources.log.files import LogFileReader, log_end, open_log
from tandemq.spark.sources.log.ranges import split
from tests.interop.java import SERVER_VERSIONS, JavaBroker, JavaNameServer
from tests.interop.wire import wait_registered
from tests.spark.messages import make_topic, numbered, send
from tests.spec import spec


@pytest.mark.parametrize("version", SERVER_VERSIONS)
@spec("P22")
def test_java_broker_accepts_a_log_with_a_removed_message(version: str, tmp_path: Path) -> None:
    with JavaNameServer(version, tmp_path / "namesrv") as server:
        server.start()
        names = server.address
        with JavaBroker(version, tmp_path / "broker", namesrv=names, mappedFileSizeCommitLog=1 << 20) as broker:
            broker.start()
            wait_registered(server.port, "broker-a")
            make_topic(names, "Orders", 1)
            secret = Message("Orders", b"secret" * 1000, "t", ["customer-4711", "x"])
            send(names, [*numbered("Orders", 0, 5), secret, *numbered("Orders", 6, 9)])
            broker.stop()
            assert remove(broker.store) == 1
            assert remove(broker.store) == 0
            broker.start()  # after a clean stop it checks the bodies of the last files
            wait_registered(server.port, "broker-a")
            messages = asyncio.run(pulled(names))
            whole = [message.body for message in messages if "REMOVED" not in message.properties]
            assert sorted(whole) == [b"%d" % number for number in range(9) if number != 5]
            (gone,) = [message for message in messages if "REMOVED" in message.properties]
            assert (set(gone.body), gone.tags, gone.keys) == ({0}, "", [])


def remove(store: Path) -> int:
    """Remove the message as `remove_from_log` does, in this process; returns the number of messages found."""
    files = open_log(store)
    with LogFileReader(files) as read:
        end = log_end(read)
    selection, found = Selection(keys=("customer-4711",)), []
    for wanted in split(files, files.start, end):
        found += removal._find_in(files, selection, wanted)["found"]
    if found:
        removal._overwrite(files, files.start, found)
    return len(found)


async def pulled(names: str) -> list[StoredMessage]:
    """Pull all messages of the queue."""
    queue, messages = MessageQueue("Orders", "broker-a", 0), list[StoredMessage]()
    async with PullConsumer(names, group="readers") as consumer:
        consumer.assign([queue])
        consumer.seek(queue, 0)
        while consumer.position(queue) != 9:
            messages += await consumer.poll(timeout_s=5)
    return messages
