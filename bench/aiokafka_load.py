"""aiokafka under load: `aiokafka_load.py KIND SERVER TOPIC COUNT`, run by the environment that has it, without ours.

It prints the line of JSON that `bench.client_load` prints. Sends wait for the leader's acknowledgement, as ours do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from random import Random
from typing import Any

import aiokafka

BEGUN = 1_000
"""Messages that are begun before one waits for them."""
LINGER_MS = 5
WARM_SHARE = 10
"""One in so many messages is sent before the measured ones."""


class _Clock:
    def __init__(self) -> None:
        self._began, self._cpu = time.perf_counter(), time.process_time()

    def stop(self, count: int) -> None:
        """Print the result."""
        seconds, cpu = time.perf_counter() - self._began, time.process_time() - self._cpu
        result = {
            "messages_per_s": round(count / seconds, 1),
            "cpu_share": round(cpu / seconds, 3),
            "cpu_us": round(cpu / count * 1e6, 2),
        }
        print(json.dumps(result), flush=True)


async def _send(args: argparse.Namespace, body: bytes) -> None:
    """Wait for each message, `in_flight` at a time."""

    async def many(producer: Any, count: int) -> None:
        left = iter(range(count))

        async def one_of_many() -> None:
            for _ in left:
                await producer.send_and_wait(args.topic, body)

        await asyncio.gather(*(one_of_many() for _ in range(args.in_flight)))

    async with aiokafka.AIOKafkaProducer(bootstrap_servers=args.server) as producer:
        await many(producer, args.count // WARM_SHARE)
        clock = _Clock()
        await many(producer, args.count)
        clock.stop(args.count)


async def _linger(args: argparse.Namespace, body: bytes) -> None:
    """Begin messages that gather by themselves, and look at each result."""

    async def many(producer: Any, count: int) -> None:
        left = iter(range(-(-count // BEGUN)))

        async def one_of_many() -> None:
            for _ in left:
                futures = [await producer.send(args.topic, body) for _ in range(BEGUN)]
                for future in futures:
                    assert (await future).offset >= 0

        await asyncio.gather(*(one_of_many() for _ in range(args.in_flight)))

    async with aiokafka.AIOKafkaProducer(bootstrap_servers=args.server, linger_ms=LINGER_MS) as producer:
        await many(producer, args.count // WARM_SHARE)
        clock = _Clock()
        await many(producer, args.count)
        clock.stop(args.count)


async def _iterate(args: argparse.Namespace, _body: bytes) -> None:
    """Take one message after the other; offsets are committed every five seconds, as ours are."""
    consumer = aiokafka.AIOKafkaConsumer(
        args.topic, bootstrap_servers=args.server, group_id=args.group, auto_offset_reset="earliest"
    )
    async with consumer:
        await consumer.getone()
        clock, left = _Clock(), args.count - 1
        async for _message in consumer:
            left -= 1
            if not left:
                break
        clock.stop(args.count)


def main() -> None:
    """Run one load."""
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = {"send": _send, "linger": _linger, "iterate": _iterate}
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("server")
    parser.add_argument("topic")
    parser.add_argument("count", type=int)
    parser.add_argument("--body", type=int, required=True)
    parser.add_argument("--in-flight", type=int, default=1)
    parser.add_argument("--group", default="bench")
    args = parser.parse_args()
    asyncio.run(kinds[args.kind](args, Random(7).randbytes(args.body)))


if __name__ == "__main__":
    main()
