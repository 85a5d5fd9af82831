"""Consume orders by POP until Ctrl-C or SIGTERM: no queue belongs to a member.

    python examples/pop.py [NAME_SERVER]          default: 127.0.0.1:9876

Start it more often than the topic has queues: all members get messages. Kill one: what it had comes
back after a minute.
"""

import asyncio
import sys

from tandemq import ConsumeFrom, PopConsumer, PoppedMessage


async def bill(message: PoppedMessage) -> None:
    """Handle one order, however long it takes. Returning acknowledges the message; raising has it come back later."""
    print(
        f"{message.body.decode()!r} tags={message.tags} deliveries={message.delivery_count} {message.queue}", flush=True
    )


async def main(name_servers: str) -> None:
    """Consume paid and refunded orders, at most eight at a time."""
    async with PopConsumer(
        name_servers, group="billing", topics={"Orders": "paid || refunded"}, consume_from=ConsumeFrom.FIRST
    ) as consumer:
        await consumer.run(bill, concurrency=8)
    print("acknowledged, group left")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
