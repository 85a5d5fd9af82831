"""Functions of users that fail in every way: handlers, stores, checks, selectors, callbacks, tracing."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial, wraps
from typing import Any, cast

import pytest

from tandemq import (
    ConsumeFrom,
    Deduplication,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    ReceivedMessage,
    StoredMessage,
    TransactionProducer,
    TransactionState,
)
from tandemq.client.aio import checked_deliveries
from tandemq.client.aio.user_code import check_async
from tandemq.client.core.calls import Ticket
from tandemq.errors import ConfigError, LocalError
from tandemq.run.local import LocalCluster

pytestmark = pytest.mark.system
QUICK_RETRIES = pytest.mark.tandemq(messageDelayLevel="1s 1s 1s 1s 1s 1s")
Handler = Callable[[ReceivedMessage], Awaitable[object]]


class OwnError(BaseException):
    """An error of the user's that is no Exception."""


async def await_cancelled() -> None:
    """Wait for something of the user's that was cancelled before."""
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def cancel_own_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


def consuming(cluster: LocalCluster, **options: Any) -> PushConsumer:
    return PushConsumer(
        cluster.name_servers, group="g", topics={"T": "*"}, consume_from=ConsumeFrom.FIRST, commit_ms=100, **options
    )


async def send(cluster: LocalCluster, *bodies: bytes) -> None:
    async with Producer(cluster.name_servers, group="p") as producer:
        for body in bodies:
            await producer.send(Message("T", body))


async def until(probe: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not probe():  # noqa: ASYNC110  # what is waited for happens in other threads
            await asyncio.sleep(0)


# Handlers.


@QUICK_RETRIES
async def test_message_of_a_failed_handler_comes_again_and_the_others_go_on(
    tandemq_broker: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """As many messages fail in each way as there are workers."""

    async def raise_error() -> None:
        raise LookupError("the user's")

    async def return_value() -> bool:
        return False

    ways: dict[bytes, Callable[[], Awaitable[object]]] = {
        b"cancelled": await_cancelled,
        b"own task": cancel_own_task,
        b"error": raise_error,
        b"value": return_value,
    }
    calls: dict[bytes, list[int]] = {}

    async def handle(message: ReceivedMessage) -> object:
        calls.setdefault(message.body, []).append(message.reconsume_times)
        if message.reconsume_times == 0 and message.body[1:] in ways:
            return await ways[message.body[1:]]()
        return None

    first = [b"%d%s" % (number, way) for way in ways for number in range(2)]
    await send(tandemq_broker, *first)
    async with consuming(tandemq_broker) as consumer:
        work = asyncio.create_task(consumer.run(handle, concurrency=2))
        await until(lambda: len(calls) == 8 and sum(map(len, calls.values())) == 14)
        await send(tandemq_broker, b"last")
        await until(lambda: b"last" in calls)
        await consumer.close()
        await work
    assert {body: times for body, times in calls.items() if times != [0, 1]} == {
        b"0value": [0],
        b"1value": [0],
        b"last": [0],
    }
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len([line for line in lines if line.startswith("handler failed group=g")]) == 6
    assert len([line for line in lines if line.startswith("handler returned False, which is ignored group=g")]) == 1


async def test_cancelled_run_ends_even_if_it_was_cancelled_before(tandemq_broker: LocalCluster) -> None:
    entered = asyncio.Event()

    async def handle(_message: ReceivedMessage) -> None:
        entered.set()
        await asyncio.get_running_loop().create_future()

    async def work(consumer: PushConsumer) -> None:
        try:
            await cancel_own_task()
        except asyncio.CancelledError:
            await consumer.run(handle, concurrency=3)

    await send(tandemq_broker, b"x")
    async with consuming(tandemq_broker) as consumer:
        task = asyncio.create_task(work(consumer))
        await until(entered.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@QUICK_RETRIES
@pytest.mark.parametrize("ending", ["cancelled", "a worker fails"])
async def test_run_ends_whatever_handlers_make_of_their_cancellation(ending: str, tandemq_broker: LocalCluster) -> None:
    calls: list[bytes] = []
    fail = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        calls.append(message.body)
        if len(calls) == 3:
            await fail.wait()
            raise OwnError
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            if calls[0] == message.body:
                raise RuntimeError("the user's") from None

    await send(tandemq_broker, *[b"%d" % number for number in range(6)])
    async with consuming(tandemq_broker) as consumer:
        work = asyncio.create_task(consumer.run(handle, concurrency=3))
        await until(lambda: len(calls) == 3)
        if ending == "cancelled":
            work.cancel()
        else:
            fail.set()
        await until(lambda: work.done() or len(calls) > 3)
        assert len(calls) == 3
        with pytest.raises(asyncio.CancelledError if ending == "cancelled" else OwnError):
            await work


async def test_error_that_is_no_exception_ends_run_and_the_message_is_not_acknowledged(
    tandemq_broker: LocalCluster,
) -> None:
    async def fail(_message: ReceivedMessage) -> None:
        raise OwnError

    await send(tandemq_broker, b"x")
    with pytest.raises(OwnError):
        async with consuming(tandemq_broker) as consumer:
            await consumer.run(fail, concurrency=2)
    async with consuming(tandemq_broker) as consumer:
        assert await consumer.receive(30) is not None


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_end_of_the_program_in_a_handler_ends_the_event_loop(
    tandemq_broker: LocalCluster, error: type[BaseException]
) -> None:
    async def fail(_message: ReceivedMessage) -> None:
        raise error

    async def main() -> None:
        await send(tandemq_broker, b"x")
        async with consuming(tandemq_broker) as consumer:
            await consumer.run(fail)

    async def again() -> None:
        async with consuming(tandemq_broker) as consumer:
            assert await consumer.receive(30) is not None

    with pytest.raises(error):
        asyncio.run(main())
    asyncio.run(again())


def plain(_message: ReceivedMessage) -> None:
    raise AssertionError("it is not called")


async def stream(_message: ReceivedMessage) -> Any:
    yield


class Plain:
    async def wait(self, _message: object) -> None:
        return

    def __call__(self, _message: object) -> None:
        return


def test_functions_that_are_not_asynchronous_are_told_from_those_that_are() -> None:
    def declared(message: ReceivedMessage) -> Awaitable[None]:
        return Plain().wait(message)

    @wraps(plain)
    async def in_thread(message: ReceivedMessage) -> None:
        await asyncio.to_thread(plain, message)

    @wraps(in_thread)
    def passing(message: ReceivedMessage) -> object:
        return in_thread(message)

    @wraps(plain)
    def still_plain(message: ReceivedMessage) -> None:
        plain(message)

    waiting = (Plain().wait, partial(Plain.wait, Plain()), lambda message: Plain().wait(message))
    for good in (*waiting, declared, Plain(), in_thread, passing):
        check_async(good, "the handler")
    for bad in (plain, still_plain, stream, partial(plain), Plain().__call__, None, 3):
        with pytest.raises(ConfigError, match="async def"):
            check_async(bad, "the handler")


@QUICK_RETRIES
async def test_handler_that_is_not_asynchronous_is_refused_and_its_message_comes_again_once(
    tandemq_broker: LocalCluster,
) -> None:
    await send(tandemq_broker, b"x")
    async with consuming(tandemq_broker) as consumer:
        with pytest.raises(ConfigError, match=r"the handler .*plain is not asynchronous"):
            await consumer.run(cast(Any, plain))
        with pytest.raises(ConfigError, match="concurrency is 0"):
            await consumer.run(Plain().wait, concurrency=0)
        with pytest.raises(ConfigError, match="is not asynchronous"):
            await consumer.run(cast(Any, Plain()), concurrency=3)
        message = await consumer.receive(30)
        assert message is not None and message.reconsume_times == 1
        await message.ack()


# Stores.


class Store:
    """A store whose calls fail in a way of their own while `way` is set."""

    def __init__(self, way: Callable[[], Awaitable[Any]]) -> None:
        self.way: Callable[[], Awaitable[Any]] | None = way

    async def find(self, _group: str, _identities: Sequence[str]) -> Collection[str]:
        return await self.way() if self.way is not None else ()

    async def add(self, _group: str, _identities: Sequence[str]) -> None:
        return

    async def close(self) -> None:
        if self.way is not None:
            await self.way()


async def _return(value: object) -> object:
    return value


def _has_failed(consumer: PushConsumer) -> bool:
    return consumer.store_failures > 1


async def test_store_that_is_cancelled_or_returns_another_type_fails_and_is_asked_again(
    tandemq_broker: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked_deliveries, "RETRY_PAUSE_S", 0.01)
    wrong: list[object] = [None, 5, "T:1", [[]]]
    ways: list[Callable[[], Awaitable[object]]] = [await_cancelled, cancel_own_task]
    ways += [partial(_return, value) for value in wrong]
    for number, way in enumerate(ways):
        store = Store(way)
        await send(tandemq_broker, b"%d" % number)
        async with consuming(tandemq_broker, deduplicate=Deduplication(store=store)) as consumer:
            await until(partial(_has_failed, consumer))
            store.way = None
            message = await consumer.receive(30)
            assert message is not None and message.body == b"%d" % number, way
            await message.ack()
            store.way = way


# Checks of transactions.


@pytest.mark.tandemq(transactionCheckInterval=200, transactionTimeOut=100)
async def test_check_that_fails_in_any_way_is_unknown_and_asked_again(
    tandemq_broker: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def never(_message: StoredMessage) -> TransactionState:
        raise AssertionError

    ns = tandemq_broker.name_servers
    async with TransactionProducer(ns, group="p", check=never, topics=["T"]) as crashed:
        begun = crashed.transaction(Message("T", b"x"))
        await begun.__aenter__()
    ways: list[Callable[[], Awaitable[Any]]] = [await_cancelled, cancel_own_task, partial(_return, "COMMIT")]
    count = len(ways)

    async def check(_message: StoredMessage) -> Any:
        if ways:
            return await ways.pop(0)()
        return TransactionState.COMMIT

    async with TransactionProducer(ns, group="p", check=check, topics=["T"]), consuming(tandemq_broker) as consumer:
        message = await consumer.receive(60)
        assert message is not None and message.body == b"x"
    assert not ways
    assert sum("check failed group=p" in record.getMessage() for record in caplog.records) == count


def test_check_that_is_not_asynchronous_is_refused() -> None:
    def check(_message):  # type: ignore[no-untyped-def]
        return TransactionState.COMMIT

    with pytest.raises(ConfigError, match=r"check .*is not asynchronous"):
        TransactionProducer("127.0.0.1:1", group="p", check=check)


# Selectors and callbacks of producers.


def _select_nothing(_queues: list[MessageQueue]) -> MessageQueue:
    return None  # type: ignore[return-value]


def _select_badly(queues: list[MessageQueue]) -> MessageQueue:
    return queues[99]


def _cancel_selection(_queues: list[MessageQueue]) -> MessageQueue:
    raise asyncio.CancelledError


async def test_queue_of_another_topic_is_refused(tandemq_broker: LocalCluster) -> None:
    message, other = Message("T", b"x"), MessageQueue("U", "broker-a", 1)
    async with Producer(tandemq_broker.name_servers, group="p") as producer:
        await producer.send(message)
        with pytest.raises(LocalError, match="no queue of the message's topic T"):
            await producer.send(message, queue=other)
        with pytest.raises(LocalError, match="no queue of the message's topic T"):
            await producer.send_batch([message], select=lambda _queues: other)


async def test_selector_that_fails_fails_its_own_send(tandemq_broker: LocalCluster) -> None:
    """It is called at once where the route is known, else within a turn of the client."""
    message, ways = Message("T", b"x"), (_select_nothing, _select_badly, _cancel_selection)
    for select in ways:
        async with Producer(tandemq_broker.name_servers, group="p") as producer:
            for _ in range(2):
                with pytest.raises(LocalError, match="chooses the queue"):
                    await producer.send(message, select=select)
            with pytest.raises(LocalError, match="chooses the queue"):
                await producer.send_batch([message], select=select)
            with pytest.raises(LocalError, match="chooses the queue"):
                await producer.send_oneway(message, select=select)
            with pytest.raises(LocalError, match="chooses the queue"):
                await producer.request(message, select=select)
            await producer.send(message)
            assert producer._core is not None and not producer._core.in_flight


async def test_callback_of_a_ticket_that_fails_is_logged(
    tandemq_broker: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_ticket: Ticket[Any]) -> None:
        raise LookupError("the user's")

    async with Producer(tandemq_broker.name_servers, group="p") as producer:
        tickets: list[Ticket[Any]] = [producer.begin(Message("T", b"x"))]
        tickets += producer.begin_batch([Message("T", b"x")])
        for ticket in tickets:
            ticket.then(fail)
        await until(lambda: all(ticket.done for ticket in tickets))
        await producer.send(Message("T", b"x"))
    assert sum("callback of a ticket failed" in record.getMessage() for record in caplog.records) == 2


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_end_of_the_program_in_other_functions_ends_the_event_loop(
    tandemq_broker: LocalCluster, error: type[BaseException]
) -> None:
    def fail(_argument: object) -> Any:
        raise error

    async def fail_once() -> None:
        store.way = None
        raise error

    async def from_store() -> None:
        async with consuming(tandemq_broker, deduplicate=Deduplication(store=store)) as consumer:
            await consumer.receive()

    async def from_selector() -> None:
        async with Producer(tandemq_broker.name_servers, group="p") as producer:
            await producer.send(Message("T", b"x"), select=fail)

    async def from_callback() -> None:
        async with Producer(tandemq_broker.name_servers, group="p") as producer:
            producer.begin(Message("T", b"x")).then(fail)
            await asyncio.get_running_loop().create_future()

    store = Store(fail_once)
    asyncio.run(send(tandemq_broker, b"x"))
    for use in (from_store, from_selector, from_callback):
        with pytest.raises(error):
            asyncio.run(use())


class BrokenTracing:
    """Tracing that raises after, or in place of, what it should do."""

    def __init__(self, *, starts: bool) -> None:
        self._starts = starts

    def sending(self, messages: Any, _client: Any, start: Callable[[Any], list[Any]]) -> list[Any]:
        if self._starts:
            start(messages)
        raise LookupError("tracing")

    def received(self, *_: object) -> None:
        raise LookupError("tracing")

    def processing(self, *_: object) -> AbstractContextManager[object]:
        return self._process()

    @contextmanager
    def _process(self) -> Iterator[None]:
        yield
        raise LookupError("tracing")


async def test_tracing_that_fails_loses_no_message_and_hides_no_send(tandemq_broker: LocalCluster) -> None:
    ns = tandemq_broker.name_servers
    async with Producer(ns, group="p", tracing=BrokenTracing(starts=False)) as producer:
        with pytest.raises(LookupError):
            await producer.send(Message("T", b"not sent"))
    async with Producer(ns, group="p", tracing=BrokenTracing(starts=True)) as producer:
        await producer.send(Message("T", b"sent"))
    async with consuming(tandemq_broker, tracing=BrokenTracing(starts=True)) as consumer:
        message = await consumer.receive(30)
        assert message is not None and message.body == b"sent"
