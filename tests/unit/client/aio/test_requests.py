"""Requests and replies of the asyncio and blocking clients, over sockets."""

import asyncio
from math import inf, nan
from pathlib import Path
from threading import Thread

import pytest

from tandemq import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage, create_reply
from tandemq.client.blocking import BlockingConsumer, BlockingProducer
from tandemq.errors import InvalidMessage, LocalError, NoReply
from tandemq.run.local import LocalCluster

pytestmark = pytest.mark.system


@pytest.fixture(autouse=True)
def _offsets_in_a_directory_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEMQ_OFFSETS", str(tmp_path / "offsets"))


async def echo(message: ReceivedMessage) -> None:
    await message.reply(b"echo " + message.body)


async def test_every_request_gets_its_own_reply(tandemq_broker: LocalCluster) -> None:
    servers = tandemq_broker.name_servers
    async with (
        PushConsumer(servers, group="g", topics={"T": "*"}, consume_from=ConsumeFrom.FIRST) as consumer,
        Producer(servers, group="p") as producer,
    ):
        task = asyncio.create_task(consumer.run(echo, concurrency=8))
        await producer.request(Message("T", b"first"), timeout_s=60)  # until the consumer has its queues
        bodies = [b"%d" % n * (1 if n % 2 else 3_000) for n in range(40)]
        replies = await asyncio.gather(*[producer.request(Message("T", body), timeout_s=60) for body in bodies])
        assert [reply.body for reply in replies] == [b"echo " + body for body in bodies]
        task.cancel()


async def test_request_that_nobody_answers_times_out(tandemq_broker: LocalCluster) -> None:
    async with Producer(tandemq_broker.name_servers, group="p") as producer:
        with pytest.raises(NoReply):
            await producer.request(Message("T", b"x"), timeout_s=0.3)


@pytest.mark.parametrize("timeout_s", [0, -1, inf, nan, 86_401])
async def test_request_with_an_invalid_time_is_not_sent(tandemq_broker: LocalCluster, timeout_s: float) -> None:
    async with Producer(tandemq_broker.name_servers, group="p") as producer:
        with pytest.raises(LocalError, match="timeout_s is"):
            await producer.request(Message("T", b"x"), timeout_s=timeout_s)


async def test_cancelled_request_is_forgotten_and_its_reply_dropped(tandemq_broker: LocalCluster) -> None:
    servers = tandemq_broker.name_servers
    async with (
        Producer(servers, group="p") as producer,
        PushConsumer(servers, group="g", topics={"T": "*"}, consume_from=ConsumeFrom.FIRST) as consumer,
    ):
        task = asyncio.create_task(producer.request(Message("T", b"x"), timeout_s=60))
        message = await consumer.receive(120)
        assert message is not None
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert producer._shell is not None
        requester = producer._shell.node.requester
        assert len(requester) == 0
        await message.reply(b"too late")  # the client took it, and dropped it
        assert requester.unclaimed == 1


async def test_reply_to_a_message_that_is_no_request_is_refused(tandemq_broker: LocalCluster) -> None:
    servers = tandemq_broker.name_servers
    async with (
        Producer(servers, group="p") as producer,
        PushConsumer(servers, group="g", topics={"T": "*"}, consume_from=ConsumeFrom.FIRST) as consumer,
    ):
        await producer.send(Message("T", b"x"))
        message = await consumer.receive(120)
        assert message is not None
        with pytest.raises(InvalidMessage, match="not a request"):
            await message.reply(b"y")


def test_blocking_clients_ask_and_reply(tandemq_broker: LocalCluster) -> None:
    servers = tandemq_broker.name_servers

    def serve(consumer: BlockingConsumer) -> None:
        message = consumer.receive(120)
        assert message is not None
        message.reply(b"one")
        message.ack()

    first = ConsumeFrom.FIRST
    with (
        BlockingConsumer(servers, group="g", topics={"T": "*"}, consume_from=first) as consumer,
        BlockingProducer(servers, group="p") as producer,
    ):
        server = Thread(target=serve, args=(consumer,))
        server.start()
        assert producer.request(Message("T", b"x"), timeout_s=60).body == b"one"
        server.join()


async def test_reply_that_was_made_by_hand_carries_tags_and_properties(tandemq_broker: LocalCluster) -> None:
    servers = tandemq_broker.name_servers
    async with (
        Producer(servers, group="p") as producer,
        PushConsumer(servers, group="g", topics={"T": "*"}, consume_from=ConsumeFrom.FIRST) as consumer,
    ):
        task = asyncio.create_task(producer.request(Message("T", b"x"), timeout_s=60))
        message = await consumer.receive(120)
        assert message is not None
        answer = create_reply(message, b"made")
        answer.tags, answer.keys = "done", ["k"]
        answer.properties["colour"] = "red"
        await producer.send(answer)
        reply = await task
        assert (reply.body, reply.tags, reply.keys, reply.properties["colour"]) == (b"made", "done", ["k"], "red")
