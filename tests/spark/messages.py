"""Messages for the tests of the source and the sink."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from tandemq import PullConsumer
from tandemq.client.aio.admin import Admin
from tandemq.client.aio.producer import Producer
from tandemq.client.connection import try_request
from tandemq.client.producer.encoder import SendRequest
from tandemq.model.codes import ResponseCode
from tandemq.model.message import UNIQ_KEY, Message, MessageQueue, SendResult, StoredMessage


def send(name_servers: str, messages: Sequence[Message], *, queue: MessageQueue | None = None) -> list[SendResult]:
    """Send messages concurrently; all must be acknowledged."""

    async def operation() -> list[SendResult]:
        async with Producer(name_servers, group="tests") as producer:
            return await asyncio.gather(*(producer.send(message, queue=queue) for message in messages))

    return asyncio.run(operation())


def numbered(topic: str, start: int, end: int, tags: str = "") -> list[Message]:
    """Return messages whose bodies are numbers."""
    return [Message(topic, str(number).encode(), tags, [f"key{number}"]) for number in range(start, end)]


def received(name_servers: str, topic: str, count: int) -> list[StoredMessage]:
    """Return the messages of a topic, which must exist; waits until there are `count`."""
    return _read(name_servers, topic, lambda found: len(found) >= count)


def unique_numbers(name_servers: str, topic: str, count: int) -> list[int]:
    """Return the numbers in a topic's messages, one for each unique key; waits until there are `count` keys."""

    def by_key(found: list[StoredMessage]) -> dict[str, int]:
        numbers: dict[str, int] = {}
        for message in found:
            key, number = message.properties[UNIQ_KEY], int(message.body)
            assert numbers.setdefault(key, number) == number, "two messages have the same unique key"
        return numbers

    return list(by_key(_read(name_servers, topic, lambda found: len(by_key(found)) >= count)).values())


def _read(name_servers: str, topic: str, is_enough: Callable[[list[StoredMessage]], bool]) -> list[StoredMessage]:
    async def operation() -> list[StoredMessage]:
        async with PullConsumer(name_servers, group="readers") as consumer:
            queues = await consumer.queues(topic)
            consumer.assign(queues)
            for queue in queues:
                consumer.seek(queue, 0)
            found: list[StoredMessage] = []
            while not is_enough(found):
                found += await consumer.poll(timeout_s=60)
            return found

    return asyncio.run(operation())


def send_without_key(address: str, queue: MessageQueue) -> None:
    """Send a message without unique key or other properties, as other clients may."""
    bare = SendRequest(queue.topic, b"the same", properties="", sys_flag=0, flag=0, unique_keys=())
    answer = try_request(address, bare.command("tests", queue.broker_name, queue.queue_id, wall_ms=0, queue_nums=4))
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS


def make_topic(name_servers: str, topic: str, queues: int = 4) -> None:
    """Create a topic on all masters."""

    async def operation() -> None:
        async with Admin(name_servers) as admin:
            await admin.create_topic(topic, queues=queues)

    asyncio.run(operation())


def delete_topic(name_servers: str, topic: str) -> None:
    """Delete a topic on all masters and in the name servers."""

    async def operation() -> None:
        async with Admin(name_servers) as admin:
            await admin.delete_topic(topic)

    asyncio.run(operation())


def committed(name_servers: str, group: str, topic: str) -> dict[MessageQueue, int]:
    """Return the committed offsets of a group by queue."""

    async def operation() -> dict[MessageQueue, int]:
        async with Admin(name_servers) as admin:
            queues = (await admin.topic_route(topic)).subscribe_queues()
            return {queue: await admin.offset(group, queue) or 0 for queue in queues}

    return asyncio.run(operation())


def set_offsets(name_servers: str, group: str, offsets: Mapping[MessageQueue, int]) -> None:
    """Create a group and commit its offsets."""

    async def operation() -> None:
        async with Admin(name_servers) as admin:
            await admin.create_group(group)
            for queue, offset in offsets.items():
                await admin.set_offset(group, queue, offset)

    asyncio.run(operation())
