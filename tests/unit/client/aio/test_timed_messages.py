"""Timed messages and their recall with the asyncio and the blocking client, over sockets."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tandemq import ConsumeFrom, Message, Producer, PushConsumer
from tandemq.client.blocking import BlockingProducer
from tandemq.errors import LocalError, RemoteError
from tandemq.run.local import LocalCluster

pytestmark = [
    pytest.mark.system,
    pytest.mark.tandemq(timerPrecisionMs=100, recallMessageEnable=True, messageDelayLevel="1s 1s"),
]


async def deliveries(cluster: LocalCluster) -> list[tuple[bytes, float]]:
    """Return the bodies up to `last`, and the times at which they came."""
    found: list[tuple[bytes, float]] = []
    async with (
        PushConsumer(cluster.name_servers, group="g", topics={"T": "*"}, consume_from=ConsumeFrom.FIRST) as consumer,
        asyncio.timeout(120),
    ):
        while not found or found[-1][0] != b"last":
            message = await consumer.receive(120)
            assert message is not None
            await message.ack()
            found.append((message.body, time.time()))
    return found


async def test_messages_come_at_their_times_and_recalled_ones_not_at_all(tandemq_broker: LocalCluster) -> None:
    due: dict[bytes, float] = {}
    async with Producer(tandemq_broker.name_servers, group="p") as producer:
        now = time.time()
        for message, after_s in (
            (Message("T", b"seconds", delay=0.5), 0.5),
            (Message("T", b"timedelta", delay=timedelta(milliseconds=900)), 0.9),
            (Message("T", b"datetime", deliver_at=datetime.now(UTC) + timedelta(seconds=1.2)), 1.2),
            (Message("T", b"past", deliver_at=now - 60), 0.0),
        ):
            result = await producer.send(message)
            due[message.body] = now + after_s
            assert bool(result.recall_handle) == (after_s > 0), message
        # So late that it is recalled before its time on a busy machine too.
        recalled = await producer.send(Message("T", b"recalled", delay=5))
        assert await producer.recall(recalled) == recalled.unique_key
        with pytest.raises(LocalError, match="no recall handle"):
            await producer.recall(await producer.send(Message("T", b"now")))
        last = await producer.send(Message("T", b"last", delay=6))
        found = await deliveries(tandemq_broker)
        assert sorted(body for body, _ in found) == sorted([*due, b"now", b"last"])
        assert [body for body, came in found if came < due.get(body, 0) - 0.001] == [], "messages came early"
        with pytest.raises(RemoteError, match="timestamp invalid"):
            await producer.recall(last.recall_handle)


def test_blocking_producer_recalls_by_the_handle_of_another_producer(tandemq_broker: LocalCluster) -> None:
    with BlockingProducer(tandemq_broker.name_servers, group="p") as producer:
        result = producer.send(Message("T", b"x", delay=3600))
    with BlockingProducer(tandemq_broker.name_servers, group="p") as producer:
        assert producer.recall(result.recall_handle) == result.unique_key
        assert producer.recall(result) == result.unique_key


async def test_recall_at_the_next_master_counts(tmp_path: Path) -> None:
    settings = {"timerPrecisionMs": 100, "recallMessageEnable": True}
    with LocalCluster(tmp_path, slaves=1, mode="elect", settings=settings) as cluster:
        master = cluster.master()
        async with Producer(cluster.name_servers, group="p") as producer:
            sent = [await producer.send(Message("T", b"%d" % n, delay=8)) for n in range(4)]
            await asyncio.to_thread(master.kill)
            assert [await producer.recall(one) for one in sent[:2]] == [one.unique_key for one in sent[:2]]
            await producer.send(Message("T", b"last", delay=9))
        assert sorted(body for body, _ in await deliveries(cluster)) == [b"2", b"3", b"last"]
        assert cluster.master() is not master
