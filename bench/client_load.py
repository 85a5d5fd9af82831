"""Our client under load: `python -m bench.client_load KIND NAMESRV TOPIC COUNT`, a process of its own.

It prints a line of JSON: messages per second, the share of a core that it used, and microseconds of CPU time per
message.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import pstats
import sys
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random
from typing import Any

from tandemq import ConsumeFrom, Message, Producer, PullConsumer, PushConsumer, ReceivedMessage
from tandemq.client.blocking import BlockingConsumer, BlockingProducer

FORMS = ("plain", "varied")
"""Messages without tags, keys and properties; with a tag, a key of its own and a property."""
_GROUP = "bench_client"
_TAGS = ("paid", "created", "shipped to customer", "audit", "refunded")
_BATCH = 32
_LINGER_MS = 5
_BEGUN = 1_000
"""Messages that are begun before one waits for them."""
_WARM_SHARE = 10
"""One in so many messages is sent before the measured ones: connections, routes, the interpreter's caches."""


class _Clock:
    """Wall and CPU time from `start` to `stop`, with a profile in between if one is wanted."""

    def __init__(self, profile: cProfile.Profile | None) -> None:
        self._profile = profile
        self._began = self._cpu = 0.0

    def start(self) -> None:
        self._began, self._cpu = time.perf_counter(), time.process_time()
        if self._profile is not None:
            self._profile.enable()

    def stop(self, count: int) -> None:
        """Print the result."""
        if self._profile is not None:
            self._profile.disable()
            pstats.Stats(self._profile, stream=sys.stderr).sort_stats("tottime").print_stats(45)
        seconds, cpu = time.perf_counter() - self._began, time.process_time() - self._cpu
        result = {
            "messages_per_s": round(count / seconds, 1),
            "cpu_share": round(cpu / seconds, 3),
            "cpu_us": round(cpu / count * 1e6, 2),
        }
        print(json.dumps(result), flush=True)


class _Messages:
    """Messages of one form and size; each is a new object, as in an application."""

    def __init__(self, topic: str, args: argparse.Namespace) -> None:
        self._topic = topic
        self._body = Random(7).randbytes(args.body)
        self._is_varied = args.form == "varied"
        self._count = 0

    def next(self) -> Message:
        if not self._is_varied:
            return Message(self._topic, self._body)
        self._count += 1
        number = self._count
        tag, key = _TAGS[number % len(_TAGS)], f"order-{number}"
        return Message(self._topic, self._body, tags=tag, keys=[key], properties={"customer": str(number % 1000)})


async def _send(args: argparse.Namespace, clock: _Clock) -> None:
    messages = _Messages(args.topic, args)

    async def many(producer: Producer, count: int) -> None:
        left = iter(range(count))

        async def one_of_many() -> None:
            for _ in left:
                await producer.send(messages.next())

        await asyncio.gather(*(one_of_many() for _ in range(args.in_flight)))

    linger_ms = _LINGER_MS if args.kind == "linger-send" else 0
    async with Producer(args.namesrv, group=_GROUP, linger_ms=linger_ms) as producer:
        await many(producer, args.count // _WARM_SHARE)
        clock.start()
        await many(producer, args.count)
        clock.stop(args.count)


async def _linger(args: argparse.Namespace, clock: _Clock) -> None:
    """Begin messages that gather by themselves, and look at each result."""
    messages = _Messages(args.topic, args)

    async def many(producer: Producer, count: int) -> None:
        left = iter(range(-(-count // _BEGUN)))

        async def one_of_many() -> None:
            for _ in left:
                tickets = [producer.begin(messages.next()) for _ in range(_BEGUN)]
                for ticket in reversed(tickets):
                    if not ticket.done:
                        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                        ticket.then(partial(_set, settled))
                        await settled
                    assert ticket.result().queue_offset >= 0

        await asyncio.gather(*(one_of_many() for _ in range(args.in_flight)))

    async with Producer(args.namesrv, group=_GROUP, linger_ms=_LINGER_MS) as producer:
        await many(producer, args.count // _WARM_SHARE)
        clock.start()
        await many(producer, args.count)
        clock.stop(args.count)


def _set(future: asyncio.Future[None], _: object) -> None:
    future.set_result(None)


async def _oneway(args: argparse.Namespace, clock: _Clock) -> None:
    messages = _Messages(args.topic, args)
    async with Producer(args.namesrv, group=_GROUP) as producer:
        await producer.send(messages.next())
        clock.start()
        for _ in range(args.count):
            await producer.send_oneway(messages.next())
        clock.stop(args.count)


async def _batch(args: argparse.Namespace, clock: _Clock) -> None:
    messages = _Messages(args.topic, args)
    left = iter(range(-(-args.count // _BATCH)))

    async def one_of_many(producer: Producer) -> None:
        for _ in left:
            await producer.send_batch([messages.next() for _ in range(_BATCH)])

    async with Producer(args.namesrv, group=_GROUP) as producer:
        await producer.send(messages.next())
        clock.start()
        await asyncio.gather(*(one_of_many(producer) for _ in range(args.in_flight)))
        clock.stop(args.count)


def _send_blocking(args: argparse.Namespace, clock: _Clock) -> None:
    messages = _Messages(args.topic, args)
    with BlockingProducer(args.namesrv, group=_GROUP) as producer, ThreadPoolExecutor(args.in_flight) as threads:

        def many(count: int) -> None:
            for _ in range(count):
                producer.send(messages.next())

        many(args.count // _WARM_SHARE)
        clock.start()
        list(threads.map(many, [args.count // args.in_flight] * args.in_flight))
        clock.stop(args.count)


class _Counter:
    """Starts the clock with the first of the messages to be measured, and stops it with the last."""

    def __init__(self, count: int, clock: _Clock) -> None:
        self._clock = clock
        self._skipped = count // _WARM_SHARE
        self._measured = count - self._skipped
        self._seen = 0

    def add(self, count: int = 1) -> bool:
        """Return whether these were the last messages."""
        before = self._seen
        self._seen += count
        if before < self._skipped <= self._seen:
            self._clock.start()
        elif before < self._skipped + self._measured <= self._seen:
            self._clock.stop(self._measured)
            return True
        return False


async def _consume(args: argparse.Namespace, clock: _Clock) -> None:
    counter, done = _Counter(args.count, clock), asyncio.Event()

    async def take(_: ReceivedMessage) -> None:
        if counter.add():
            done.set()

    async with _push_consumer(args) as consumer:
        running = asyncio.ensure_future(consumer.run(take, concurrency=args.in_flight))
        await done.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _iterate(args: argparse.Namespace, clock: _Clock) -> None:
    counter = _Counter(args.count, clock)
    async with _push_consumer(args) as consumer:
        async for message in consumer:
            await message.ack()
            if counter.add():
                return


def _push_consumer(args: argparse.Namespace) -> PushConsumer:
    return PushConsumer(args.namesrv, group=args.group, topics={args.topic: "*"}, consume_from=ConsumeFrom.FIRST)


async def _poll(args: argparse.Namespace, clock: _Clock) -> None:
    counter = _Counter(args.count, clock)
    async with PullConsumer(args.namesrv, group=args.group, consume_from=ConsumeFrom.FIRST) as consumer:
        consumer.assign(await consumer.queues(args.topic))
        while not counter.add(len(await consumer.poll(timeout_s=1))):
            pass


def _consume_blocking(args: argparse.Namespace, clock: _Clock) -> None:
    counter = _Counter(args.count, clock)
    topics = {args.topic: "*"}
    with BlockingConsumer(args.namesrv, group=args.group, topics=topics, consume_from=ConsumeFrom.FIRST) as consumer:
        for message in consumer:
            message.ack()
            if counter.add():
                return


_Load = Callable[[argparse.Namespace, _Clock], Coroutine[Any, Any, None]]
_ASYNC: dict[str, _Load] = {
    "send": _send,
    "linger": _linger,
    "linger-send": _send,
    "oneway": _oneway,
    "batch": _batch,
    "consume": _consume,
    "iterate": _iterate,
    "poll": _poll,
}
_BLOCKING = {"send-blocking": _send_blocking, "consume-blocking": _consume_blocking}
KINDS = (*_ASYNC, *_BLOCKING)


def main() -> None:
    """Run one load."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("namesrv")
    parser.add_argument("topic")
    parser.add_argument("count", type=int, help="messages")
    parser.add_argument("--body", type=int, default=1024, help="bytes of a body that cannot be compressed")
    parser.add_argument("--form", choices=FORMS, default="plain")
    parser.add_argument("--in-flight", type=int, default=64, help="sends in flight, or handlers at a time")
    parser.add_argument("--group", default=_GROUP, help="consumer group")
    parser.add_argument("--profile", action="store_true", help="print a profile to stderr")
    args = parser.parse_args()
    clock = _Clock(cProfile.Profile() if args.profile else None)
    if args.kind in _ASYNC:
        asyncio.run(_ASYNC[args.kind](args, clock))
    else:
        _BLOCKING[args.kind](args, clock)


if __name__ == "__main__":
    main()
