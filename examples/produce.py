"""Send ten orders.

    python examples/produce.py [NAME_SERVER]          default: 127.0.0.1:9876

Orders of one customer go to the same queue, so that a consumer can read them in order.
"""

import asyncio
import sys

from tandemq import Message, Producer
from tandemq.errors import OutcomeUnknown, TandemError


async def main(name_servers: str) -> None:
    """Send two orders for each of five customers and print where they are stored."""
    async with Producer(name_servers, group="shop") as producer:
        for number in range(10):
            customer = f"customer-{number % 5}"
            body = f"order {number} of {customer}".encode()
            order = Message("Orders", body, tags="paid", keys=[str(number)])
            try:
                result = await producer.send(order, by_key=customer)
            except OutcomeUnknown as error:
                print(f"order {number} may be stored: {error}")
            except TandemError as error:
                print(f"order {number} is not stored: {error}")
            else:
                print(f"order {number}: {result.status.value} {result.queue} offset {result.queue_offset}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
