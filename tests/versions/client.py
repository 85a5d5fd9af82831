"""What a program does with the Python client: `python client.py NAMESRV TOPIC`, by either version, against either.

It uses what both versions have, imports nothing else, and prints one JSON object.
"""

import asyncio
import json
import sys
import time
from typing import Any

from tandemq import (
    Admin,
    ConsumeFrom,
    Message,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    StoredMessage,
    TransactionProducer,
    TransactionState,
)

PLAIN, BATCH = 40, 12
SECONDS = 60.0


class _RolledBack(Exception):
    pass


async def unknown(_: StoredMessage) -> TransactionState:
    return TransactionState.UNKNOWN


async def send(at: str, topic: str) -> dict[str, Any]:
    async with Producer(at, group=f"{topic}-senders") as producer:
        plain = [Message(topic, f"plain-{number}".encode(), keys=[f"{topic}{number}"]) for number in range(PLAIN)]
        results = await asyncio.gather(*map(producer.send, plain))
        batch = await producer.send_batch([Message(topic, f"batch-{number}".encode()) for number in range(BATCH)])
        await producer.send(Message(topic, b"delayed", delay_level=1))
        await producer.send(Message(topic, b"timed", deliver_at=time.time() + 1))
        recalled = await producer.send(Message(topic, b"recalled", deliver_at=time.time() + 3600))
        await producer.recall(recalled)
    async with TransactionProducer(at, group=f"{topic}-transactions", check=unknown) as transacting:
        async with transacting.transaction(Message(topic, b"committed")):
            pass
        try:
            async with transacting.transaction(Message(topic, b"rolled back")):
                raise _RolledBack
        except _RolledBack:
            pass
    return {"statuses": sorted({result.status.name for result in [*results, *batch]})}


async def push(at: str, topic: str, count: int) -> list[str]:
    """Return the bodies that a group gets; one of them is sent back first."""
    found: list[str] = []
    async with (
        PushConsumer(at, group=f"{topic}-push", topics={topic: "*"}, consume_from=ConsumeFrom.FIRST) as consumer,
        asyncio.timeout(SECONDS),
    ):
        is_first = True
        async for message in consumer:
            if is_first:
                is_first = False
                await message.retry(1)
                continue
            found.append(message.body.decode())
            await message.ack()
            if len(found) == count:
                return sorted(found)
    return sorted(found)


async def pop(at: str, topic: str, count: int) -> list[str]:
    found: list[str] = []
    async with (
        PopConsumer(at, group=f"{topic}-pop", topics={topic: "*"}, consume_from=ConsumeFrom.FIRST) as consumer,
        asyncio.timeout(SECONDS),
    ):
        async for message in consumer:
            found.append(message.body.decode())
            await message.ack()
            if len(found) == count:
                return sorted(found)
    return sorted(found)


async def pull(at: str, topic: str) -> dict[str, Any]:
    found: list[str] = []
    async with PullConsumer(at, group=f"{topic}-pull") as consumer, asyncio.timeout(SECONDS):
        queues = await consumer.queues(topic)
        consumer.assign(queues)
        ends = {queue: (await consumer.bounds(queue)).end for queue in queues}
        for queue in queues:
            consumer.seek(queue, 0)
        while any((consumer.position(queue) or 0) < end for queue, end in ends.items()):
            found += [message.body.decode() for _, message in await consumer.poll_queues(timeout_s=0.5)]
        await consumer.commit()
    async with PullConsumer(at, group=f"{topic}-pull") as consumer, Admin(at) as admin:
        offsets = {queue: await admin.offset(f"{topic}-pull", queue) for queue in queues}
    return {"bodies": sorted(found), "committed": offsets == ends}


async def administer(at: str, topic: str) -> dict[str, Any]:
    async with Admin(at) as admin:
        stored = await admin.messages_by_key(topic, f"{topic}7")
        by_id = await admin.message_by_id(stored[0].offset_message_id)
        stats = await admin.topic_stats(topic)
        await admin.create_group(f"{topic}-made")
        progress = await admin.progress(f"{topic}-push", topic)
        return {
            "by_key": [message.body.decode() for message in stored],
            "by_id": by_id.body.decode(),
            "stored": sum(queue.max_offset - queue.min_offset for queue in stats.values()),
            "is_made": f"{topic}-made" in await admin.groups(),
            "lag": sum(queue.lag for queue in progress.values()),
            "brokers": sorted((await admin.cluster_info()).brokers),
        }


async def main(at: str, topic: str) -> dict[str, Any]:
    async with Admin(at) as admin:
        await admin.create_topic(topic, queues=4)
    plain, batch = [f"plain-{number}" for number in range(PLAIN)], [f"batch-{number}" for number in range(BATCH)]
    expected = sorted([*plain, *batch, "committed", "delayed", "timed"])
    sent = await send(at, topic)
    pushed = await push(at, topic, len(expected))
    popped = await pop(at, topic, len(expected))
    pulled = await pull(at, topic)
    return {
        "sent": sent["statuses"],
        "pushed": pushed == expected,
        "popped": popped == expected,
        "pulled": pulled["bodies"] == expected,
        "committed": pulled["committed"],
        **await administer(at, topic),
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
