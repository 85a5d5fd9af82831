"""The pop consumers, asyncio and blocking, against brokers in this process, over sockets."""

import asyncio
import threading
from collections import Counter
from pathlib import Path

import pytest

from tandemq import ClientTls, ConsumeFrom, Credentials, Message, PopConsumer, PoppedMessage, Producer, Sql
from tandemq.client.blocking import BlockingPopConsumer, BlockingProducer
from tandemq.errors import ClosedError, ConfigError, LocalError
from tandemq.run.local import LocalCluster

pytestmark = pytest.mark.system

FIRST = ConsumeFrom.FIRST


async def send_some(cluster: LocalCluster, count: int, **options: str) -> list[bytes]:
    bodies = [b"%d" % n for n in range(count)]
    async with Producer(cluster.name_servers, group="p") as producer:
        await asyncio.gather(*[producer.send(Message("T", body, **options)) for body in bodies])  # type: ignore[arg-type]
    return bodies


def popping(cluster: LocalCluster, **options: object) -> PopConsumer:
    settings = {"group": "g", "topics": {"T": "*"}, "consume_from": FIRST, **options}
    return PopConsumer(cluster.name_servers, **settings)  # type: ignore[arg-type]


async def take(consumer: PopConsumer, count: int) -> list[PoppedMessage]:
    found: list[PoppedMessage] = []
    while len(found) < count:
        message = await consumer.receive(60)
        assert message is not None, f"{len(found)} of {count} messages came"
        found.append(message)
    return found


async def test_what_is_sent_is_consumed_once_by_the_members_of_a_group(tandemq_broker: LocalCluster) -> None:
    sent = await send_some(tandemq_broker, 200)
    seen: Counter[bytes] = Counter()
    done = asyncio.Event()

    async def consume(consumer: PopConsumer) -> None:
        async for message in consumer:
            seen[message.body] += 1
            await message.ack()
            if len(seen) == len(sent):
                done.set()

    async with popping(tandemq_broker) as first, popping(tandemq_broker) as second:
        members = [asyncio.create_task(consume(consumer)) for consumer in (first, second)]
        await asyncio.wait_for(done.wait(), 120)
    await asyncio.gather(*members)
    assert seen == Counter(sent)
    async with popping(tandemq_broker) as consumer:
        assert await consumer.receive(0.5) is None


async def test_handler_acknowledges_by_returning_and_has_a_message_come_back_by_raising(
    tandemq_broker: LocalCluster,
) -> None:
    sent = await send_some(tandemq_broker, 50)
    seen: Counter[tuple[bytes, int]] = Counter()
    async with popping(tandemq_broker) as consumer:

        async def handle(message: PoppedMessage) -> None:
            seen[message.body, message.delivery_count] += 1
            if len(seen) == len(sent) + 1:
                asyncio.get_running_loop().call_soon(closing.set)
            if message.body == b"7" and message.delivery_count == 1:
                await message.retry(0.5)
                raise ValueError("the message comes back")

        closing = asyncio.Event()
        running = asyncio.create_task(consumer.run(handle, concurrency=8))
        await asyncio.wait_for(closing.wait(), 120)
        await consumer.close()
        await running
    assert seen == Counter([(body, 1) for body in sent] + [(b"7", 2)])
    async with popping(tandemq_broker) as consumer:
        assert await consumer.receive(0.5) is None


async def test_handler_may_take_longer_than_messages_are_invisible(tandemq_broker: LocalCluster) -> None:
    await send_some(tandemq_broker, 1)
    begun, may_end = asyncio.Event(), asyncio.Event()
    handled: list[int] = []

    async def handle(message: PoppedMessage) -> None:
        begun.set()
        await may_end.wait()
        handled.append(message.delivery_count)

    async with popping(tandemq_broker, invisible_s=1) as consumer, popping(tandemq_broker) as other:
        running = asyncio.create_task(consumer.run(handle))
        await asyncio.wait_for(begun.wait(), 60)
        assert await other.receive(5) is None
        may_end.set()
        await consumer.close()
        await running
        assert handled == [1]
        assert await other.receive(2) is None


async def test_message_that_is_neither_acknowledged_nor_renewed_comes_back(tandemq_broker: LocalCluster) -> None:
    await send_some(tandemq_broker, 1)
    async with popping(tandemq_broker, invisible_s=1) as consumer:
        (first,) = await take(consumer, 1)
        (again,) = await take(consumer, 1)
        assert (first.body, first.delivery_count, again.delivery_count) == (b"0", 1, 2)
        assert again.popped_at >= first.popped_at + 1 > 1e9
        assert again.topic == "T"
        await again.change_invisible(600)
        assert await consumer.receive(3) is None
        await again.ack()
        await again.ack()
        assert again.is_ended
        with pytest.raises(LocalError, match="ended"):
            await again.change_invisible(1)


async def test_messages_that_were_not_ended_come_back_soon_after_close(tandemq_broker: LocalCluster) -> None:
    sent = await send_some(tandemq_broker, 20)
    async with popping(tandemq_broker, invisible_s=600) as consumer:
        (message, *_) = await take(consumer, 3)
        await message.ack()
    with pytest.raises(ClosedError):
        await message.ack()
    async with popping(tandemq_broker) as consumer:
        found = await take(consumer, 19)
        assert sorted(m.body for m in found) == sorted(set(sent) - {message.body})


async def test_close_waits_for_running_handlers(tandemq_broker: LocalCluster) -> None:
    await send_some(tandemq_broker, 2)
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def handle(_message: PoppedMessage) -> None:
        begun.set()
        await may_end.wait()

    async with popping(tandemq_broker) as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=2))
        await asyncio.wait_for(begun.wait(), 60)
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        with pytest.raises(ClosedError):
            await consumer.receive()
        may_end.set()
        await closing
        await running


async def test_close_called_by_a_handler_ends(tandemq_broker: LocalCluster) -> None:
    await send_some(tandemq_broker, 1)
    async with popping(tandemq_broker) as consumer:

        async def handle(message: PoppedMessage) -> None:
            await message.ack()
            await consumer.close()

        async with asyncio.timeout(60):
            await consumer.run(handle)


async def test_tags_and_expressions_select_messages(tandemq_broker: LocalCluster) -> None:
    await send_some(tandemq_broker, 5, tags="a")
    await send_some(tandemq_broker, 5, tags="b")
    async with popping(tandemq_broker, topics={"T": "b || c"}) as consumer:
        assert {message.tags for message in await take(consumer, 5)} == {"b"}
        assert await consumer.receive(0.5) is None
    with pytest.raises(ConfigError):
        await popping(tandemq_broker, group="h", topics={"T": Sql("a >")}).start()


@pytest.mark.tandemq(enablePropertyFilter=True)
async def test_sql_selects_messages(tandemq_broker: LocalCluster) -> None:
    async with Producer(tandemq_broker.name_servers, group="p") as producer:
        for n in range(10):
            await producer.send(Message("T", b"%d" % n, properties={"n": str(n)}))
    async with popping(tandemq_broker, topics={"T": Sql("n >= 7")}) as consumer:
        assert {message.body for message in await take(consumer, 3)} == {b"7", b"8", b"9"}
        assert await consumer.receive(0.5) is None


async def test_ordered_messages_of_a_key_come_in_order_also_after_a_failure(tandemq_broker: LocalCluster) -> None:
    async with Producer(tandemq_broker.name_servers, group="p") as producer:
        for n in range(20):
            await producer.send(Message("T", b"%d" % n, keys=[f"k{n % 3}"]), by_key=f"k{n % 3}")
    seen: dict[str, list[int]] = {}
    failed: set[int] = set()
    async with popping(tandemq_broker, ordered=True, suspend_ms=100) as consumer:
        while sum(map(len, seen.values())) < 20:
            (message,) = await take(consumer, 1)
            number = int(message.body)
            if number in (4, 9) and number not in failed:
                failed.add(number)
                await message.retry()
                continue
            assert message.delivery_count <= 2
            seen.setdefault(message.keys[0], []).append(number)
            await message.ack()
        assert await consumer.receive(1) is None
    assert all(numbers == sorted(numbers) for numbers in seen.values()), seen
    assert failed == {4, 9}


async def test_group_without_an_offset_starts_by_consume_from_and_topics_may_be_added(
    tandemq_broker: LocalCluster,
) -> None:
    sent = await send_some(tandemq_broker, 5)
    async with popping(tandemq_broker, topics={}) as consumer:
        await consumer.subscribe("T")
        assert sorted(m.body for m in await take(consumer, 5)) == sorted(sent)
        assert consumer.popped_from() == [("T", "broker-a")]


@pytest.mark.tandemq(tls=True)
async def test_tls(tandemq_broker: LocalCluster) -> None:
    tls = tandemq_broker.tls
    assert isinstance(tls, ClientTls)
    async with Producer(tandemq_broker.name_servers, group="p", tls=tls) as producer:
        await producer.send(Message("T", b"secret"))
    async with popping(tandemq_broker, tls=tls) as consumer:
        (message,) = await take(consumer, 1)
        await message.ack()


@pytest.mark.tandemq(
    authenticationEnabled=True,
    authorizationEnabled=True,
    initAuthenticationUser='{"username":"admin","password":"12345678"}',
)
async def test_requests_are_signed(tandemq_broker: LocalCluster) -> None:
    user = Credentials("admin", "12345678")
    async with Producer(tandemq_broker.name_servers, group="p", credentials=user) as producer:
        await asyncio.gather(*[producer.send(Message("T", b"%d" % n)) for n in range(5)])
    async with popping(tandemq_broker, credentials=user) as consumer:
        first, *others = await take(consumer, 5)
        await first.change_invisible(30)
        await asyncio.gather(first.ack(), *[message.ack() for message in others])  # in a batch
    async with popping(tandemq_broker) as consumer:
        assert await consumer.receive(0.5) is None


async def test_broker_that_restarts_is_popped_again_and_takes_acknowledgements(
    tandemq_broker: LocalCluster, tmp_path: Path
) -> None:
    await send_some(tandemq_broker, 2)
    async with popping(tandemq_broker) as consumer:
        first, second = await take(consumer, 2)
        await first.ack()
        (broker,) = tandemq_broker.brokers
        await asyncio.to_thread(broker.stop)
        ack = asyncio.create_task(second.ack())
        await asyncio.sleep(0)
        await asyncio.to_thread(broker.start)
        await asyncio.wait_for(ack, 60)
        await send_some(tandemq_broker, 1)
        (third,) = await take(consumer, 1)
        assert third.delivery_count == 1


def test_blocking_consumer_pops_and_acknowledges(tandemq_broker: LocalCluster) -> None:
    with BlockingProducer(tandemq_broker.name_servers, group="p") as producer:
        for n in range(3):
            producer.send(Message("T", b"%d" % n))
    with BlockingPopConsumer(tandemq_broker.name_servers, group="g", topics={"T": "*"}, consume_from=FIRST) as consumer:
        bodies = set()
        for _ in range(3):
            message = consumer.receive(60)
            assert message is not None
            bodies.add(message.body)
            if message.delivery_count == 1 and message.body == b"1":
                message.change_invisible(30)
            message.ack()
            assert message.is_ended
        assert bodies == {b"0", b"1", b"2"}
        assert consumer.receive(0.5) is None
        ended: list[str] = []
        waiter = threading.Thread(target=_iterate, args=(consumer, ended))
        waiter.start()
    waiter.join(60)
    assert ended == ["iteration", "receive"]


def _iterate(consumer: BlockingPopConsumer, ended: list[str]) -> None:
    for _ in consumer:
        pass
    ended.append("iteration")
    try:
        consumer.receive()
    except ClosedError:
        ended.append("receive")
