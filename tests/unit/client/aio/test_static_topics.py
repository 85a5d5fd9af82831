"""Static topics: every entry of the client refuses them with the reason, and goes on with other topics."""

import asyncio
import logging
from collections.abc import Iterator
from secrets import token_hex

import pytest

from tandemq.client.aio.admin import Admin
from tandemq.client.aio.pop_consumer import PopConsumer
from tandemq.client.aio.producer import Producer
from tandemq.client.aio.pull_consumer import PullConsumer
from tandemq.client.aio.push_consumer import PushConsumer
from tandemq.client.aio.transaction_producer import TransactionProducer
from tandemq.client.blocking import BlockingConsumer, BlockingProducer
from tandemq.client.connection import try_request
from tandemq.client.core.settings import ConsumeFrom
from tandemq.errors import RemoteError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import Message, MessageQueue, StoredMessage
from tandemq.model.transactions import TransactionState
from tandemq.run.local import LocalCluster
from tests.spec import spec
from tests.unit.broker.harness import send_fields
from tests.unit.client.static_topic import HINT, REFUSAL, create_static_topic, end_of

TOPIC = "Static"
REFUSED = f"topic {TOPIC} {REFUSAL}"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two brokers; the static topic is on the second one only."""
    with LocalCluster(tmp_path_factory.mktemp("static"), groups=2, slaves=0) as running:
        create_static_topic(running, TOPIC, "broker-b")
        yield running


@spec("L08")
async def test_producers_refuse_a_static_topic_and_store_nothing(cluster: LocalCluster) -> None:
    async with Producer(cluster.name_servers, group="p") as producer:
        with pytest.raises(RemoteError, match=REFUSED) as refused:
            await producer.send(Message(TOPIC, b"x"))
        assert refused.value.hint == HINT
        with pytest.raises(RemoteError, match=REFUSED):
            await producer.send(Message(TOPIC, b"x"), queue=MessageQueue(TOPIC, "broker-b", 0))
        with pytest.raises(RemoteError, match=REFUSED):
            await producer.send_batch([Message(TOPIC, b"x"), Message(TOPIC, b"y")])
    async with TransactionProducer(cluster.name_servers, group="t", check=_commit, topics=[TOPIC]) as transacting:
        with pytest.raises(RemoteError, match=REFUSED):
            async with transacting.transaction(Message(TOPIC, b"x")):
                pass
    assert end_of(cluster, "broker-b", TOPIC) == "0"


@spec("L08")
def test_blocking_clients_refuse_a_static_topic(cluster: LocalCluster) -> None:
    with (
        BlockingProducer(cluster.name_servers, group="p") as producer,
        pytest.raises(RemoteError, match=REFUSED),
    ):
        producer.send(Message(TOPIC, b"x"))
    with (
        pytest.raises(RemoteError, match=REFUSED),
        BlockingConsumer(cluster.name_servers, group="b", topics={TOPIC: "*"}),
    ):
        pass


@spec("L08")
@pytest.mark.parametrize("topics", [{TOPIC: "*"}, {"Plain": "*", TOPIC: "*"}], ids=["alone", "second"])
async def test_push_consumer_of_a_static_topic_does_not_start(cluster: LocalCluster, topics: dict[str, str]) -> None:
    await asyncio.to_thread(_send, cluster, "Plain", b"first")
    consumer = PushConsumer(cluster.name_servers, group="starts", topics=topics)
    with pytest.raises(RemoteError, match=REFUSED):
        await consumer.start()


@spec("L08")
async def test_push_consumer_refuses_to_subscribe_to_a_static_topic_and_keeps_its_others(cluster: LocalCluster) -> None:
    await asyncio.to_thread(_send, cluster, "Kept", b"one")
    async with PushConsumer(
        cluster.name_servers, group="keeps", topics={"Kept": "*"}, consume_from=ConsumeFrom.FIRST
    ) as consumer:
        with pytest.raises(RemoteError, match=REFUSED):
            await consumer.subscribe(TOPIC)
        message = await asyncio.wait_for(anext(aiter(consumer)), 20)
        assert message.body == b"one"
        await message.ack()


@spec("L08")
async def test_topic_that_becomes_static_does_not_stop_the_others(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not exist when the consumer starts; it is static when another member's queues are allocated."""
    becomes, stays, added = (f"{name}-{token_hex(4)}" for name in ("Becomes", "Stays", "Added"))
    await asyncio.to_thread(_send, cluster, stays, b"one")
    with caplog.at_level(logging.WARNING):
        async with PushConsumer(
            cluster.name_servers, group="later", topics={becomes: "*", stays: "*"}, consume_from=ConsumeFrom.FIRST
        ) as consumer:
            await asyncio.to_thread(create_static_topic, cluster, becomes, "broker-b")
            messages = aiter(consumer)
            assert (await asyncio.wait_for(anext(messages), 20)).body == b"one"
            await asyncio.to_thread(_send, cluster, added, b"two")
            await consumer.subscribe(added)
            assert (await asyncio.wait_for(anext(messages), 20)).body == b"two"
    assert f"nothing is consumed group=later topic={becomes}" in caplog.text


@spec("L08", "L09")
async def test_pop_consumer_takes_a_static_topic(cluster: LocalCluster) -> None:
    topic = f"Popped-{token_hex(4)}"
    await asyncio.to_thread(create_static_topic, cluster, topic, "broker-a", "broker-b")
    for number, name in enumerate(("broker-a", "broker-b")):
        fields = {key: str(value) for key, value in send_fields(topic, number).items()}
        request = Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=name.encode())
        answer = await asyncio.to_thread(try_request, cluster.broker(name).address, request)
        assert answer is not None
        assert answer.code == ResponseCode.SUCCESS, answer.remark
    async with PopConsumer(
        cluster.name_servers, group="pops", topics={topic: "*"}, consume_from=ConsumeFrom.FIRST
    ) as consumer:
        found = [await consumer.receive(20) for _ in range(2)]
        assert {message.body for message in found if message is not None} == {b"broker-a", b"broker-b"}


@spec("L08")
async def test_pull_consumer_refuses_a_static_topic(cluster: LocalCluster) -> None:
    async with PullConsumer(cluster.name_servers, group="pulls") as consumer:
        with pytest.raises(RemoteError, match=REFUSED):
            await consumer.queues(TOPIC)


@spec("L08")
async def test_administration_refuses_a_static_topic_and_changes_nothing(cluster: LocalCluster) -> None:
    """A new ordinary topic on the other broker would make two topics of one name."""
    async with Admin(cluster.name_servers) as admin:
        for refused in (
            admin.create_topic(TOPIC, queues=4),
            admin.topic_route(TOPIC),
            admin.topic_stats(TOPIC),
            admin.topic_groups(TOPIC),
            admin.progress("g", TOPIC),
            admin.message_at(MessageQueue(TOPIC, "broker-b", 0), 0),
            admin.messages_by_key(TOPIC, "k"),
        ):
            with pytest.raises(RemoteError, match=REFUSED):
                await refused
    assert TOPIC not in cluster.broker("broker-a").node.topics.table
    assert cluster.broker("broker-b").node.topics.table[TOPIC].config.write_queue_nums == 2


async def _commit(_message: StoredMessage) -> TransactionState:
    return TransactionState.COMMIT


def _send(cluster: LocalCluster, topic: str, body: bytes) -> None:
    with BlockingProducer(cluster.name_servers, group="p") as producer:
        producer.send(Message(topic, body))
