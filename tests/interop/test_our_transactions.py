"""Transactions of our client with unmodified Java brokers of both versions."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import TypeVar

import pytest

from tandemq import ConsumeFrom, Message, PushConsumer, StoredMessage, TransactionProducer, TransactionState
from tests.interop.java import SERVER_VERSIONS, JavaBroker, JavaNameServer, Value
from tests.interop.wire import wait_registered

T = TypeVar("T")
COMMIT, ROLLBACK = TransactionState.COMMIT, TransactionState.ROLLBACK
COUNT = 20


def run(work: Coroutine[object, object, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 150))


@pytest.fixture(scope="module", params=SERVER_VERSIONS)
def namesrv(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Java name server with one Java broker, which checks transactions every 3 s."""
    directory = tmp_path_factory.mktemp("java")
    version = request.param
    settings: dict[str, Value] = {
        "transactionCheckInterval": 3_000,
        "transactionTimeOut": 1_000,
        "transactionOpBatchInterval": 100,
    }
    with JavaNameServer(version, directory / "namesrv") as server:
        server.start()
        with JavaBroker(version, directory / "broker", namesrv=server.address, settings=settings) as broker:
            broker.start()
            wait_registered(server.port, "broker-a")
            yield server.address


def producing(namesrv: str, check: Callable[[StoredMessage], Awaitable[TransactionState]]) -> TransactionProducer:
    return TransactionProducer(namesrv, group="our-transactions", check=check)


async def never(message: StoredMessage) -> TransactionState:
    raise AssertionError(f"a check of {message.body!r}")


async def receive(namesrv: str, topic: str, count: int) -> Counter[bytes]:
    """Return the first messages of a topic, and those of the following second."""
    bodies: Counter[bytes] = Counter()
    async with PushConsumer(
        namesrv, group=f"{topic}-g", topics={topic: "*"}, consume_from=ConsumeFrom.FIRST
    ) as consumer:
        for _ in range(count):
            message = await consumer.receive(60)
            assert message is not None, f"{sum(bodies.values())} of {count} messages came: {bodies}"
            bodies[message.body] += 1
            await message.ack()
        while (message := await consumer.receive(1)) is not None:
            bodies[message.body] += 1
            await message.ack()
    return bodies


def test_java_broker_delivers_what_is_committed_once_and_nothing_else(namesrv: str) -> None:
    async def one(producer: TransactionProducer, number: int) -> None:
        transaction = producer.transaction(Message("Committed", b"%d" % number, keys=[str(number)]))
        try:
            async with transaction:
                if number % 3 == 0:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            assert transaction.state is ROLLBACK
        assert transaction.is_confirmed

    async def story() -> None:
        async with producing(namesrv, never) as producer:
            await one(producer, 1)  # creates the topic
            await asyncio.gather(*[one(producer, number) for number in range(2, COUNT)])
            expected = Counter(b"%d" % number for number in range(1, COUNT) if number % 3)
            assert await receive(namesrv, "Committed", len(expected)) == expected

    run(story())


def test_java_broker_asks_a_later_process_for_what_the_first_left_open(namesrv: str) -> None:
    asked: Counter[bytes] = Counter()

    async def check(message: StoredMessage) -> TransactionState:
        assert (message.topic, message.tags) == ("Checked", "t")
        asked[message.body] += 1
        return COMMIT if message.body.startswith(b"paid") else ROLLBACK

    async def story() -> None:
        bodies = [b"%b %d" % (kind, number) for kind in (b"paid", b"not paid") for number in range(5)]
        async with producing(namesrv, never) as producer:
            async with producer.transaction(Message("Checked", b"paid first", tags="t")):
                pass
            for body in bodies:
                await producer.transaction(Message("Checked", body, tags="t")).__aenter__()
        async with producing(namesrv, check):
            expected = Counter([b"paid first", *[body for body in bodies if body.startswith(b"paid")]])
            assert await receive(namesrv, "Checked", len(expected)) == expected
            async with asyncio.timeout(120):
                while len(asked) < len(bodies):  # noqa: ASYNC110  # what is waited for happens in another process
                    await asyncio.sleep(0)
        assert asked.keys() == set(bodies)

    run(story())


def test_running_transaction_outlives_the_checks_of_a_java_broker(namesrv: str) -> None:
    async def story() -> None:
        async with producing(namesrv, never) as producer:
            async with producer.transaction(Message("Slow", b"first")):
                pass
            async with producer.transaction(Message("Slow", b"slow")) as transaction:
                await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=9)
            assert transaction.is_confirmed
            assert await receive(namesrv, "Slow", 2) == Counter([b"first", b"slow"])

    run(story())
