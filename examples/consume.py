"""Consume orders until Ctrl-C or SIGTERM: handlers that are running end, and what they handled is not delivered again.

    python examples/consume.py [NAME_SERVER]          default: 127.0.0.1:9876

Start it several times: the members of the group share the queues. Kill a master: consuming goes on at its slave.
"""

import asyncio
import sys

from tandemq import ConsumeFrom, PushConsumer, ReceivedMessage


async def bill(message: ReceivedMessage) -> None:
    """Handle one order. Returning acknowledges the message; raising has it delivered again later."""
    print(
        f"{message.body.decode()!r} tags={message.tags} retries={message.reconsume_times} {message.queue}", flush=True
    )


async def main(name_servers: str) -> None:
    """Consume paid and refunded orders, at most eight at a time."""
    async with PushConsumer(
        name_servers, group="billing", topics={"Orders": "paid || refunded"}, consume_from=ConsumeFrom.FIRST
    ) as consumer:
        await consumer.run(bill, concurrency=8)
    print("offsets committed, group left")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
