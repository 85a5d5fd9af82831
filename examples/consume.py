"""Consume orders until Ctrl-C: python examples/consume.py [NAME_SERVER].

Start it several times: the members of the group share the queues. Kill a master: reading goes on from its slave.
"""

import asyncio
import sys

from tandemq import ConsumeFrom, PushConsumer, ReceivedMessage


async def bill(message: ReceivedMessage) -> None:
    """Returning acknowledges the message, raising has it come again later."""
    print(f"{message.body.decode()!r} tags={message.tags} tried={message.reconsume_times} {message.queue}")


async def main(name_servers: str) -> None:
    """Read the paid and the refunded ones, eight at a time."""
    async with PushConsumer(
        name_servers, group="billing", topics={"Orders": "paid || refunded"}, consume_from=ConsumeFrom.FIRST
    ) as consumer:
        await consumer.run(bill, concurrency=8)


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
    except KeyboardInterrupt:
        print("committed and left")
