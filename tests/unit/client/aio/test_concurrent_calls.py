"""Calls of one client by several tasks at once, before it is started, and on another event loop."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest

from tandemq import (
    Admin,
    ConsumeFrom,
    Deduplication,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
)
from tandemq.client.aio.checked_deliveries import CheckedDeliveries
from tandemq.client.node import ClientNode
from tandemq.errors import ClosedError, LocalError
from tandemq.run.local import LocalCluster

pytestmark = pytest.mark.system
FIRST = ConsumeFrom.FIRST


@pytest.fixture
def silent() -> Iterator[str]:
    """Return an address that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


async def handle(_message: ReceivedMessage) -> None:
    return


async def commit(_message: object) -> TransactionState:
    return TransactionState.COMMIT


async def until(probe: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not probe():  # noqa: ASYNC110  # what is waited for happens in other threads
            await asyncio.sleep(0)


async def test_consumer_that_was_not_started_is_no_end_of_messages() -> None:
    consumer = PushConsumer("127.0.0.1:1", group="g", topics={"T": "*"})
    with pytest.raises(ClosedError, match="not started"):
        await consumer.run(handle)
    with pytest.raises(ClosedError, match="not started"):
        await anext(aiter(consumer))
    with pytest.raises(ClosedError, match="not started"):
        await consumer.receive()


async def test_second_start_is_refused_and_the_first_one_goes_on(tandemq_broker: LocalCluster) -> None:
    ns = tandemq_broker.name_servers
    clients: list[Any] = [
        Producer(ns, group="p"),
        TransactionProducer(ns, group="t", check=commit),
        PushConsumer(ns, group="g", topics={"T": "*"}),
        PullConsumer(ns, group="g"),
        Admin(ns),
    ]
    for client in clients:
        starts = await asyncio.gather(client.start(), client.start(), return_exceptions=True)
        assert [str(one) for one in starts if one] == ["it is started already (call `start` once, or use `async with`)"]
        with pytest.raises(LocalError, match="started already"):
            await client.start()
        await asyncio.gather(*[client.close() for _ in range(3)])
        await client.start()
        await client.close()


async def test_close_during_start_ends_the_start(silent: str) -> None:
    for consumer in (
        PushConsumer(silent, group="g", topics={"T": "*"}, start_timeout_ms=200_000),
        PullConsumer(silent, group="g", start_timeout_ms=200_000),
    ):
        starting = asyncio.create_task(consumer.start())
        await asyncio.sleep(0)
        await consumer.close()
        with pytest.raises(ClosedError):
            await starting


async def test_calls_in_flight_end_when_the_client_is_closed(silent: str) -> None:
    async with Admin(silent) as admin, Producer(silent, group="p") as producer:
        calls = [asyncio.create_task(call) for call in _calls(admin, producer)]
        await asyncio.sleep(0)
        producer_shell = producer._shell
        assert producer_shell is not None
        await producer_shell.close(after_error=True)
        await admin.close()
        async with asyncio.timeout(60):
            await asyncio.wait(calls)


def _calls(admin: Admin, producer: Producer) -> list[Any]:
    return [
        admin.topic_route("T"),
        producer.send(Message("T", b"x")),
        producer.queues("T"),
        producer.request(Message("T", b"x"), timeout_s=1_000),
    ]


async def test_messages_are_divided_among_polls_and_closing_ends_them(tandemq_broker: LocalCluster) -> None:
    ns = tandemq_broker.name_servers
    async with Producer(ns, group="p") as producer:
        await producer.send(Message("T", b"0"))
        async with PullConsumer(ns, group="g", consume_from=FIRST) as consumer:
            consumer.assign(await consumer.queues("T"))
            assert len(await consumer.poll(timeout_s=60)) == 1
            waiting = [asyncio.create_task(consumer.poll(1)) for _ in range(3)]
            hasty = [asyncio.create_task(consumer.poll(1, timeout_s=0)) for _ in range(2)]
            assert await asyncio.gather(*hasty) == [[], []]
            for body in (b"1", b"2"):
                await producer.send(Message("T", body))
            await until(lambda: sum(task.done() for task in waiting) == 2)
            await consumer.close()
            results = await asyncio.gather(*waiting, return_exceptions=True)
            assert sum(isinstance(result, ClosedError) for result in results) == 1


async def cancelled_close(consumer: PushConsumer | PullConsumer) -> None:
    closing = asyncio.create_task(consumer.close())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing


async def test_cancelled_close_ends_calls_that_wait(tandemq_broker: LocalCluster) -> None:
    ns = tandemq_broker.name_servers
    async with PushConsumer(ns, group="g", topics={"T": "*"}) as consumer, PullConsumer(ns, group="h") as pulls:
        calls = [consumer.receive(), anext(aiter(consumer)), pulls.poll(), consumer.run(handle)]
        tasks = [asyncio.ensure_future(call) for call in calls]
        await until(lambda: len(consumer._receivers) == 2 and consumer._idle and pulls._waiting)
        await cancelled_close(consumer)
        await cancelled_close(pulls)
        async with asyncio.timeout(60):
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(end) for end in ends] == [ClosedError, StopAsyncIteration, ClosedError, type(None)]


class StuckStore:
    """A store that never remembers a message."""

    def __init__(self) -> None:
        self.is_closed = False

    async def find(self, _group: str, _ids: Sequence[str]) -> list[str]:
        return []

    async def add(self, _group: str, _ids: Sequence[str]) -> None:
        await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        self.is_closed = True


async def test_cancelled_close_ends_acknowledgements_that_wait_for_the_store(tandemq_broker: LocalCluster) -> None:
    store = StuckStore()
    async with Producer(tandemq_broker.name_servers, group="p") as producer:
        for body in (b"0", b"1"):
            await producer.send(Message("T", body))
    consumer = PushConsumer(
        tandemq_broker.name_servers,
        group="g",
        topics={"T": "*"},
        consume_from=FIRST,
        deduplicate=Deduplication(store=store),
    )
    await consumer.start()
    first, second = await consumer.receive(60), await consumer.receive(60)
    assert first is not None and second is not None
    calls = [asyncio.ensure_future(first.ack()), asyncio.ensure_future(consumer.receive())]
    await until(lambda: consumer._checked and consumer._checked._notes and consumer._receivers)
    await cancelled_close(consumer)
    async with asyncio.timeout(60):
        for end in await asyncio.gather(*calls, second.ack(), return_exceptions=True):
            assert isinstance(end, ClosedError)
    await consumer.close()
    assert store.is_closed


async def test_closing_at_once_closes_the_store_once(
    tandemq_broker: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[object] = []

    async def close_store(self: CheckedDeliveries) -> None:
        closed.append(self)
        await asyncio.sleep(0)

    monkeypatch.setattr(CheckedDeliveries, "_close_store", close_store)
    store: Any = object()
    consumer = PushConsumer(
        tandemq_broker.name_servers, group="g", topics={"T": "*"}, deduplicate=Deduplication(store=store)
    )
    async with consumer:
        await asyncio.gather(*[consumer.close() for _ in range(3)])
    assert len(closed) == 1


async def test_transaction_begins_once(tandemq_broker: LocalCluster) -> None:
    async with TransactionProducer(tandemq_broker.name_servers, group="p", check=commit) as producer:
        transaction = producer.transaction(Message("T", b"x"))
        begun = await asyncio.gather(transaction.__aenter__(), transaction.__aenter__(), return_exceptions=True)
        assert sum(isinstance(one, LocalError) for one in begun) == 1
        ended = await asyncio.gather(transaction.commit(), transaction.rollback(), return_exceptions=True)
        assert sum(isinstance(one, LocalError) for one in ended) == 1


async def test_call_on_another_event_loop_is_refused_before_anything_is_sent(tandemq_broker: LocalCluster) -> None:
    ns = tandemq_broker.name_servers
    async with (
        Producer(ns, group="p") as producer,
        PushConsumer(ns, group="g", topics={"T": "*"}, consume_from=FIRST) as consumer,
        PullConsumer(ns, group="pulls") as pulls,
        Admin(ns) as admin,
    ):
        await producer.send(Message("T", b"0"))
        uses: list[Callable[[], Awaitable[object]]] = [
            lambda: producer.send(Message("T", b"x")),
            lambda: producer.send_batch([Message("T", b"x")]),
            lambda: producer.send_oneway(Message("T", b"x")),
            lambda: producer.request(Message("T", b"x")),
            lambda: _begin(producer),
            producer.close,
            consumer.receive,
            consumer.close,
            lambda: consumer.run(handle),
            pulls.poll,
            pulls.close,
            lambda: admin.topic_route("T"),
            admin.close,
        ]
        for use in uses:
            with pytest.raises(LocalError, match="started on another event loop"):
                await asyncio.to_thread(asyncio.run, _awaited(use))
        with pytest.raises(LocalError, match="started on another event loop"):
            await asyncio.to_thread(producer.begin, Message("T", b"x"))
        await producer.send(Message("T", b"1"))
        bodies = set[bytes]()
        while bodies != {b"0", b"1"}:
            message = await consumer.receive(60)
            assert message is not None
            bodies.add(message.body)
            await message.ack()
        assert b"x" not in bodies


async def _awaited(use: Callable[[], Awaitable[object]]) -> None:
    await use()


async def _begin(producer: Producer) -> None:
    producer.begin(Message("T", b"x"))


async def test_failure_of_the_client_ends_receivers_and_run_with_an_error(
    tandemq_broker: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a mistake")

    async with (
        PushConsumer(tandemq_broker.name_servers, group="g", topics={"T": "*"}) as consumer,
        PullConsumer(tandemq_broker.name_servers, group="h") as pulls,
    ):
        calls = [consumer.receive(), consumer.run(handle, concurrency=2), anext(aiter(consumer)), pulls.poll()]
        tasks = [asyncio.ensure_future(call) for call in calls]
        await until(lambda: len(consumer._receivers) == len(consumer._idle) == 2 and pulls._waiting)
        monkeypatch.setattr(ClientNode, "turn", broken)
        for client in (consumer, pulls):
            assert client._shell is not None
            client._shell.wake()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, ClosedError) and "the client failed: RuntimeError" in str(result)
