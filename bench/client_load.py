"""Our asyncio client under load: `python -m bench.client_load send|consume NAMESRV TOPIC COUNT`.

It prints a line of JSON: messages per second, and the share of a core that it used.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from tandemq import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage

_OPEN = 64
_BODY = b"x" * 1024


async def _send(namesrv: str, topic: str, count: int) -> None:
    left = iter(range(count))

    async def one_of_many(producer: Producer) -> None:
        for _ in left:
            await producer.send(Message(topic, _BODY))

    async with Producer(namesrv, group="bench_client") as producer:
        await producer.send(Message(topic, _BODY))
        started, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(one_of_many(producer) for _ in range(_OPEN)))
        _report(count, time.perf_counter() - started, time.process_time() - cpu)


async def _consume(namesrv: str, topic: str, count: int) -> None:
    done = asyncio.Event()
    received = 0
    started = cpu = 0.0

    async def take(_: ReceivedMessage) -> None:
        nonlocal received, started, cpu
        if not received:
            started, cpu = time.perf_counter(), time.process_time()
        received += 1
        if received >= count:
            done.set()

    topics = {topic: "*"}
    async with PushConsumer(namesrv, group="bench_client", topics=topics, consume_from=ConsumeFrom.FIRST) as consumer:
        running = asyncio.ensure_future(consumer.run(take, concurrency=_OPEN))
        await done.wait()
        _report(received, time.perf_counter() - started, time.process_time() - cpu)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def _report(count: int, seconds: float, cpu_seconds: float) -> None:
    result = {"messages_per_s": round(count / seconds, 1), "cpu_share": round(cpu_seconds / seconds, 3)}
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    load = {"send": _send, "consume": _consume}[sys.argv[1]]
    asyncio.run(load(sys.argv[2], sys.argv[3], int(sys.argv[4])))
