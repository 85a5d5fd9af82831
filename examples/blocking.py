"""Send and consume without asyncio, for scripts.

python examples/blocking.py [NAME_SERVER]          default: 127.0.0.1:9876
"""

import sys

from tandemq import ConsumeFrom, Message
from tandemq.client.blocking import BlockingConsumer, BlockingProducer


def main(name_servers: str) -> None:
    """Send one order, then print all orders until none has come for two seconds."""
    with BlockingProducer(name_servers, group="shop") as producer:
        result = producer.send(Message("Orders", b"42 paid", tags="paid", keys=["42"]))
        print(f"sent: {result.status.value} {result.queue} offset {result.queue_offset}")
    with BlockingConsumer(
        name_servers, group="script", topics={"Orders": "*"}, consume_from=ConsumeFrom.FIRST
    ) as consumer:
        while (message := consumer.receive(timeout_s=2)) is not None:
            print(f"received: {message.body.decode()!r} {message.queue}")
            message.ack()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876")
