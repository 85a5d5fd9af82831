"""Our pop consumer with unmodified Java brokers of 5.x."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterator
from typing import TypeVar

import pytest

from tandemq import ConsumeFrom, Message, PopConsumer, PoppedMessage, Producer, PushConsumer, Sql
from tests.interop.java import PATIENCE, JavaBroker, JavaNameServer
from tests.interop.peers import NEWEST_VERSION
from tests.interop.wire import wait_registered
from tests.spec import spec

T = TypeVar("T")
FIRST = ConsumeFrom.FIRST


class Cluster:
    """A Java name server with one Java broker."""

    def __init__(self, namesrv: JavaNameServer, broker: JavaBroker) -> None:
        self.name_server = namesrv
        self.names = namesrv.address
        self.broker = broker


@pytest.fixture(scope="module", params=["5.3.3", NEWEST_VERSION])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("java")
    with JavaNameServer(request.param, directory / "namesrv") as server:
        server.start()
        settings = {"enablePropertyFilter": True, "reviveQueueNum": 2}
        with JavaBroker(request.param, directory / "broker", namesrv=server.address, settings=settings) as broker:
            broker.start()
            wait_registered(server.port, "broker-a")
            yield Cluster(server, broker)


def run(work: Coroutine[object, object, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 120 * PATIENCE))


def popping(cluster: Cluster, topic: str, **options: object) -> PopConsumer:
    settings = {"group": f"{topic}G", "topics": {topic: "*"}, "consume_from": FIRST, "long_poll_ms": 5_000, **options}
    return PopConsumer(cluster.names, **settings)  # type: ignore[arg-type]


async def send_some(cluster: Cluster, topic: str, count: int) -> list[bytes]:
    bodies = [b"%d" % n for n in range(count)]
    async with Producer(cluster.names, group="p") as producer:
        for n, body in enumerate(bodies):
            await producer.send(Message(topic, body, tags="odd" if n % 2 else "even", properties={"n": str(n)}))
    return bodies


async def take(consumer: PopConsumer, count: int) -> list[PoppedMessage]:
    found: list[PoppedMessage] = []
    while len(found) < count:
        message = await consumer.receive(60)
        assert message is not None, f"{len(found)} of {count} messages came"
        found.append(message)
    return found


@spec("K01")
def test_members_share_the_messages_and_each_comes_once(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "tandemq.client")

    async def story() -> None:
        sent = await send_some(cluster, "Shared", 200)
        seen: Counter[bytes] = Counter()

        async def handle(message: PoppedMessage) -> None:
            seen[message.body] += 1
            assert (message.topic, message.delivery_count) == ("Shared", 1)
            if len(seen) == len(sent):
                done.set()

        done = asyncio.Event()
        async with popping(cluster, "Shared") as first, popping(cluster, "Shared") as second:
            runs = [asyncio.create_task(consumer.run(handle, concurrency=8)) for consumer in (first, second)]
            await done.wait()
        await asyncio.gather(*runs)
        assert seen == Counter(sent)
        async with popping(cluster, "Shared", invisible_s=1) as consumer:
            assert await consumer.receive(8) is None, "all acknowledgements have counted"

    run(story())
    assert "batch of acknowledgements refused" not in caplog.text


def test_failed_message_comes_back_and_is_a_dead_letter_in_the_end(cluster: Cluster) -> None:
    async def story() -> None:
        await send_some(cluster, "Failing", 1)
        async with popping(cluster, "Failing", max_reconsume_times=1) as consumer:
            for count in (1, 2):
                (message,) = await take(consumer, 1)
                assert (message.topic, message.delivery_count) == ("Failing", count)
                await message.retry(1)
            topics = {"%DLQ%FailingG": "*"}
            async with PushConsumer(cluster.names, group="Undertaker", topics=topics, consume_from=FIRST) as dead:
                letter = await dead.receive(60)
                assert letter is not None
                assert letter.body == b"0"
            assert await consumer.receive(8) is None

    run(story())


def test_time_is_renewed_for_a_handler_and_changed_on_demand(cluster: Cluster) -> None:
    async def story() -> None:
        await send_some(cluster, "Slow", 1)
        is_handled, may_end = asyncio.Event(), asyncio.Event()
        counts: list[int] = []

        async def handle(message: PoppedMessage) -> None:
            is_handled.set()
            await may_end.wait()
            counts.append(message.delivery_count)

        async with popping(cluster, "Slow", invisible_s=8) as consumer:
            running = asyncio.create_task(consumer.run(handle))
            await is_handled.wait()
            async with popping(cluster, "Slow") as other:
                assert await other.receive(20) is None
            may_end.set()
            await consumer.close()
            await running
        assert counts == [1]
        await send_some(cluster, "Slow", 1)
        async with popping(cluster, "Slow") as other:
            (message,) = await take(other, 1)
            await message.change_invisible(1)
            (again,) = await take(other, 1)
            assert again.delivery_count == 2
            await again.ack()

    run(story())


@spec("K03")
def test_ordered_messages_come_in_order_also_after_a_failure(cluster: Cluster) -> None:
    async def story() -> None:
        async with Producer(cluster.names, group="p") as producer:
            for n in range(24):
                await producer.send(Message("Ordered", b"%d" % n), by_key=f"k{n % 3}")
        seen: dict[int, list[int]] = {}
        failed: set[int] = set()
        async with popping(cluster, "Ordered", ordered=True) as consumer:
            while sum(map(len, seen.values())) < 24:
                (message,) = await take(consumer, 1)
                number = int(message.body)
                if number in (4, 9) and number not in failed:
                    failed.add(number)
                    await message.retry()
                    continue
                seen.setdefault(number % 3, []).append(number)
                await message.ack()
            assert await consumer.receive(3) is None
        assert seen == {key: list(range(key, 24, 3)) for key in range(3)}
        assert failed == {4, 9}

    run(story())


def test_tags_and_expressions_select_messages(cluster: Cluster) -> None:
    async def story() -> None:
        await send_some(cluster, "Chosen", 20)
        async with popping(cluster, "Chosen", topics={"Chosen": "odd || other"}) as consumer:
            assert {int(m.body) % 2 for m in await take(consumer, 10)} == {1}
        topics = {"Chosen": Sql("n >= 15")}
        async with popping(cluster, "Chosen", group="SqlG", topics=topics) as consumer:
            assert sorted(int(m.body) for m in await take(consumer, 5)) == list(range(15, 20))

    run(story())


def test_messages_come_back_after_close_and_the_broker_may_restart(cluster: Cluster) -> None:
    async def story() -> None:
        sent = await send_some(cluster, "Left", 20)
        async with popping(cluster, "Left", invisible_s=600) as consumer:
            (message, *_) = await take(consumer, 5)
            await message.ack()
        async with popping(cluster, "Left", invisible_s=120) as consumer:
            (first, *rest) = await take(consumer, 19)
            await first.ack()
            await asyncio.to_thread(cluster.broker.stop)
            acks = [asyncio.create_task(other.ack()) for other in rest]
            await asyncio.to_thread(cluster.broker.start)
            await asyncio.to_thread(wait_registered, cluster.name_server.port, "broker-a")
            await asyncio.gather(*acks)
            assert {first.body, *(other.body for other in rest)} == set(sent) - {message.body}
            await send_some(cluster, "Left", 1)
            (later,) = await take(consumer, 1)
            assert later.delivery_count == 1

    run(story())
