"""All that the queues of a topic hold, when nothing is sent any more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from tandemq import PullConsumer


class Held(NamedTuple):
    """What a queue holds: each message is an offset and a body; `end` is the offset behind the last one."""

    topic: str
    queue_id: int
    messages: list[tuple[int, str]]
    end: int


async def read_to_end(address: str, topics: Sequence[str], *, group: str, within_s: float) -> list[Held]:
    """Return what every queue of some topics holds.

    Args:
        address: of the name server.
        topics: topics to read.
        group: consumer group to read as; it commits nothing.
        within_s: time limit for each topic.

    Raises:
        TimeoutError: a queue cannot be read to its end in time.
    """
    found = []
    for topic in topics:
        async with PullConsumer(address, group=group) as consumer, asyncio.timeout(within_s):
            queues = await consumer.queues(topic)
            consumer.assign(queues)
            ends = {queue: (await consumer.bounds(queue)).end for queue in queues}
            for queue in queues:
                consumer.seek(queue, 0)
            messages: dict[int, list[tuple[int, str]]] = {queue.queue_id: [] for queue in queues}
            while any((consumer.position(queue) or 0) < end for queue, end in ends.items()):
                for queue, message in await consumer.poll_queues(timeout_s=0.5):
                    body = message.body.decode(errors="replace")
                    messages[queue.queue_id].append((message.queue_offset, body))
        found += [Held(topic, queue.queue_id, messages[queue.queue_id], end) for queue, end in ends.items()]
    return found
