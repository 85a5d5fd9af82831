"""A stream of one topic into another, as Faust has it: the running total of each customer, in the order of the orders.

    python examples/stream.py [NAME_SERVER]          default: 127.0.0.1:9876, until Ctrl-C or SIGTERM

The orders of a customer are in one queue (`by_key`), whose messages an orderly consumer gets one after the other. An
order is acknowledged when its total is stored, so that a failure repeats a total rather than losing one. The totals are
in memory; an application that must keep them reads them back from its topic, or has a database.
"""

import asyncio
import sys
from collections import Counter

from tandemq import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage


async def main(name_servers: str) -> None:
    """Add orders up until a signal comes."""
    totals: Counter[str] = Counter()
    async with (
        Producer(name_servers, group="totals", linger_ms=5) as producer,  # totals that come together share a request
        PushConsumer(
            name_servers, group="totals", topics={"Amounts": "*"}, consume_from=ConsumeFrom.FIRST, orderly=True
        ) as consumer,
    ):

        async def add(order: ReceivedMessage) -> None:
            (customer,) = order.keys
            total = totals[customer] + int(order.body)
            await producer.send(Message("Totals", b"%d" % total, keys=[customer]), by_key=customer)
            totals[customer] = total
            print(f"{customer}: {total}", flush=True)

        await consumer.run(add, concurrency=16)
    print("closed", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
