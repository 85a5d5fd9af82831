"""Send ten orders: python examples/produce.py [NAME_SERVER]."""

import asyncio
import sys

from tandemq import Message, Producer


async def main(name_servers: str) -> None:
    """Send orders of five customers; those of one customer keep their order."""
    async with Producer(name_servers, group="shop") as producer:
        for number in range(10):
            customer = f"customer-{number % 5}"
            order = Message("Orders", b"order %d of %s" % (number, customer.encode()), tags="paid", keys=[f"{number}"])
            result = await producer.send(order, by_key=customer)
            print(number, result.status.value, result.queue.queue_id, result.queue_offset, result.unique_key)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
