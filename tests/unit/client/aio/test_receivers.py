"""Receivers of a push consumer that wait: how many are woken, and what a cancelled one leaves to the others."""

import asyncio
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tandemq import PushConsumer, ReceivedMessage
from tandemq.client.aio.handlers import run_handlers
from tandemq.client.aio.receiving import WOKEN_AT_ONCE
from tandemq.client.consumer.delivery import Delivery
from tandemq.codec.record.record import decode_message
from tandemq.model.message import MessageQueue
from tests.unit.client.world import World


class Ready:
    """What a consumer needs of its core: messages that are ready."""

    def __init__(self) -> None:
        world = World()
        broker = world.broker("a")
        broker.store("T", 0, b"body")
        record = broker.group.queues["T", 0].records[0][0]
        self._message = decode_message(record, 0, len(record))
        self._deliveries: deque[Delivery] = deque()

    def add(self, count: int) -> None:
        self._deliveries.extend(Delivery(self._message, MessageQueue("T", "a", 0), None, 0) for _ in range(count))

    @property
    def ready_count(self) -> int:
        return len(self._deliveries)

    tracer = None

    def next_delivery(self, _now: None = None) -> Delivery | None:
        return self._deliveries.popleft() if self._deliveries else None


def consumer_of(ready: Ready) -> Any:
    consumer: Any = PushConsumer("127.0.0.1:9876", group="g")
    consumer._shell = SimpleNamespace(is_closed=False, failure=None, is_usable=lambda: True)
    consumer._core = ready
    return consumer


async def started(consumer: Any, count: int) -> list[asyncio.Task[ReceivedMessage | None]]:
    tasks = [asyncio.create_task(consumer.receive()) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_as_many_receivers_are_woken_as_there_are_messages() -> None:
    ready = Ready()
    consumer = consumer_of(ready)
    tasks = await started(consumer, 5)
    ready.add(2)
    consumer._wake_receivers()
    assert len(consumer._receivers) == 3
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert [task.done() for task in tasks] == [True, True, False, False, False]
    ready.add(10)
    consumer._wake_receivers()
    await asyncio.gather(*tasks)
    assert ready.ready_count == 7


async def test_receiver_that_is_cancelled_after_it_was_woken_leaves_the_message_to_another_one() -> None:
    ready = Ready()
    consumer = consumer_of(ready)
    first, second = await started(consumer, 2)
    ready.add(1)
    consumer._wake_receivers()
    first.cancel()
    async with asyncio.timeout(60):
        assert await second is not None
    assert first.cancelled()
    assert ready.ready_count == 0


async def test_cancelled_receiver_is_forgotten() -> None:
    consumer = consumer_of(Ready())
    tasks = await started(consumer, 3)
    tasks[1].cancel()
    await asyncio.wait([tasks[1]])
    assert len(consumer._receivers) == 2
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not consumer._receivers


async def test_handlers_that_wait_run_at_the_same_time() -> None:
    ready = Ready()
    consumer = consumer_of(ready)
    release, handled = asyncio.Event(), list[ReceivedMessage]()
    consumer.acknowledge = lambda _: None

    async def handle(message: ReceivedMessage) -> None:
        handled.append(message)
        await release.wait()

    running = asyncio.create_task(run_handlers(consumer, "g", handle, 9))
    await until(lambda: len(consumer._idle) == 9)
    ready.add(7)
    consumer._wake_receivers()
    await until(lambda: len(handled) == 7)
    assert ready.ready_count == 0
    assert len(consumer.workers) == 9
    ready.add(5)
    consumer._wake_receivers()
    await until(lambda: len(handled) == 9)
    assert ready.ready_count == 3
    release.set()
    await until(lambda: len(handled) == 12 and len(consumer._idle) == 9)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_handlers_that_do_not_wait_are_called_by_the_tasks_that_were_woken_first() -> None:
    ready = Ready()
    consumer = consumer_of(ready)
    callers = list[object]()
    consumer.acknowledge = lambda _: None

    async def handle(_: ReceivedMessage) -> None:
        callers.append(asyncio.current_task())

    running = asyncio.create_task(run_handlers(consumer, "g", handle, 9))
    await until(lambda: len(consumer._idle) == 9)
    ready.add(50)
    consumer._wake_receivers()
    await until(lambda: len(callers) == 50)
    assert len(set(callers)) <= WOKEN_AT_ONCE
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_receivers_are_woken_before_tasks_with_handlers() -> None:
    ready = Ready()
    consumer = consumer_of(ready)
    [receiver] = await started(consumer, 1)

    async def handle(_: ReceivedMessage) -> None:
        raise AssertionError

    running = asyncio.create_task(run_handlers(consumer, "g", handle, 1))
    await until(lambda: len(consumer._idle) == 1)
    ready.add(1)
    consumer._wake_receivers()
    assert len(consumer._idle) == 1
    assert await receiver is not None
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def until(probe: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not probe():  # noqa: ASYNC110  # other tasks of this loop change it
            await asyncio.sleep(0)
