"""Clients that live while servers change their version: `python lasting.py NAMESRV TOPIC`, by the last release.

They send, receive and pop until standard input ends, then receive what is left. It uses what both versions have,
imports nothing else, and prints one JSON object.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from tandemq import Admin, ConsumeFrom, Message, PopConsumer, Producer, PushConsumer
from tandemq.errors import TandemError

PACE_S = 0.05
SECONDS = 60.0
INVISIBLE_S = 10.0
"""How long a message stays away whose acknowledgement was lost."""
SHOWN = 5


async def send(at: str, topic: str, is_over: asyncio.Event, sent: set[str], errors: list[str]) -> None:
    """Send one message after the other."""
    number = 0
    async with Producer(at, group=f"{topic}-senders") as producer:
        while not is_over.is_set():
            number += 1
            try:
                result = await producer.send(Message(topic, f"m-{number}".encode()))
            except TandemError as error:
                errors.append(str(error))
            else:
                if result.status.name == "SEND_OK":
                    sent.add(f"m-{number}")
            with suppress(TimeoutError):
                await asyncio.wait_for(is_over.wait(), PACE_S)


async def receive(consumer: AsyncIterator[Any], received: set[str]) -> None:
    """Acknowledge all messages."""
    async for message in consumer:
        received.add(message.body.decode())
        with suppress(TandemError):  # the broker may have taken it
            await message.ack()


async def main(at: str, topic: str) -> dict[str, Any]:
    async with Admin(at) as admin:
        await admin.create_topic(topic, queues=4)
    is_over = asyncio.Event()
    sent: set[str] = set()
    errors: list[str] = []
    pushed: set[str] = set()
    popped: set[str] = set()
    first = ConsumeFrom.FIRST
    async with (
        PushConsumer(at, group=f"{topic}-push", topics={topic: "*"}, consume_from=first) as pushing,
        PopConsumer(
            at, group=f"{topic}-pop", topics={topic: "*"}, consume_from=first, invisible_s=INVISIBLE_S
        ) as popping,
    ):
        receivers = [
            asyncio.create_task(receive(aiter(consumer), received))
            for consumer, received in ((pushing, pushed), (popping, popped))
        ]
        sender = asyncio.create_task(send(at, topic, is_over, sent, errors))
        await asyncio.to_thread(sys.stdin.read)
        is_over.set()
        await sender
        with suppress(TimeoutError):
            async with asyncio.timeout(SECONDS):
                while not (sent <= pushed and sent <= popped):
                    done, _ = await asyncio.wait(receivers, timeout=PACE_S, return_when=asyncio.FIRST_COMPLETED)
                    if done:
                        break
        ended = [str(receiver.exception()) for receiver in receivers if receiver.done()]
        for receiver in receivers:
            receiver.cancel()
    return {
        "sent": len(sent),
        "errors": errors[:SHOWN],
        "ended": ended,
        "missing": {"push": sorted(sent - pushed)[:SHOWN], "pop": sorted(sent - popped)[:SHOWN]},
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
