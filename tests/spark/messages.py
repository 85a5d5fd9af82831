"""Messages for the tests of the source and the sink."""

import asyncio
from collections.abc import Mapping, Sequence

from tandemq.client.aio.admin import Admin
from tandemq.client.aio.producer import Producer
from tandemq.client.producer.encoder import SendRequest
from tandemq.model.codes import ResponseCode
from tandemq.model.message import Message, MessageQueue, SendResult
from tandemq.run.request import try_ask


def send(name_servers: str, messages: Sequence[Message], *, queue: MessageQueue | None = None) -> list[SendResult]:
    """Send all at once; every one must be acknowledged."""

    async def story() -> list[SendResult]:
        async with Producer(name_servers, group="tests") as producer:
            return await asyncio.gather(*(producer.send(message, queue=queue) for message in messages))

    return asyncio.run(story())


def numbered(topic: str, start: int, end: int, tags: str = "") -> list[Message]:
    """Messages whose bodies are numbers."""
    return [Message(topic, str(number).encode(), tags, [f"key{number}"]) for number in range(start, end)]


def send_without_key(address: str, queue: MessageQueue) -> None:
    """A message as other clients may send it: without a unique key, or any other property."""
    bare = SendRequest(queue.topic, b"the same", properties="", sys_flag=0, flag=0, unique_keys=())
    answer = try_ask(address, bare.command("tests", queue.broker_name, queue.queue_id, wall_ms=0, queue_nums=4))
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS


def make_topic(name_servers: str, topic: str, queues: int = 4) -> None:
    """Create a topic on all masters."""

    async def story() -> None:
        async with Admin(name_servers) as admin:
            await admin.create_topic(topic, queues=queues)

    asyncio.run(story())


def committed(name_servers: str, group: str, topic: str) -> dict[MessageQueue, int]:
    """How far a group is, by queue."""

    async def story() -> dict[MessageQueue, int]:
        async with Admin(name_servers) as admin:
            queues = (await admin.topic_route(topic)).subscribe_queues()
            return {queue: await admin.offset(group, queue) or 0 for queue in queues}

    return asyncio.run(story())


def set_offsets(name_servers: str, group: str, offsets: Mapping[MessageQueue, int]) -> None:
    """Create a group and say how far it is."""

    async def story() -> None:
        async with Admin(name_servers) as admin:
            await admin.create_group(group)
            for queue, offset in offsets.items():
                await admin.set_offset(group, queue, offset)

    asyncio.run(story())
