"""Receivers of a push consumer that wait: how many are woken, and what a cancelled one leaves to the others."""

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any

from tandemq import PushConsumer, ReceivedMessage
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

    def next_delivery(self, _now: None) -> Delivery | None:
        return self._deliveries.popleft() if self._deliveries else None


def consumer_of(ready: Ready) -> Any:
    consumer: Any = PushConsumer("127.0.0.1:9876", group="g")
    consumer._shell = SimpleNamespace(check_open=lambda: None)
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
