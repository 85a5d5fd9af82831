"""The consumer of bench.failover: `python -m bench.failover_consumer NAMESRV TOPIC COUNT`.

It prints "reading" after the first messages, and a line of JSON at the end: number of distinct messages, and times of
deliveries.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from tandemq import ConsumeFrom, PushConsumer

_GROUP = "bench_failover"
_FIRST = 2_000
_SILENCE_S = 60.0
_MARK_EVERY_S = 0.005


async def consume(namesrv: str, topic: str, count: int) -> None:
    """Read until `count` distinct messages have arrived, or none for a minute; print the observations."""
    keys: set[str] = set()
    marks: list[float] = []  # Times of deliveries, at least a few milliseconds apart.
    async with PushConsumer(namesrv, group=_GROUP, topics={topic: "*"}, consume_from=ConsumeFrom.FIRST) as consumer:
        messages = aiter(consumer)
        while len(keys) < count:
            try:
                message = await asyncio.wait_for(anext(messages), _SILENCE_S)
            except TimeoutError:
                break
            await message.ack()
            keys.add(message.unique_key)
            now = time.monotonic()
            if not marks or now - marks[-1] > _MARK_EVERY_S or len(keys) == count:
                marks.append(now)
            if len(keys) == _FIRST:
                print("reading", flush=True)
        print(json.dumps({"delivered": len(keys), "marks": marks}), flush=True)


if __name__ == "__main__":
    asyncio.run(consume(sys.argv[1], sys.argv[2], int(sys.argv[3])))
