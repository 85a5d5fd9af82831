"""The same without asyncio, for scripts: python examples/blocking.py [NAME_SERVER]."""

import sys

from tandemq import ConsumeFrom, Message
from tandemq.client.blocking import BlockingConsumer, BlockingProducer


def main(name_servers: str) -> None:
    """Send a message and read what is there."""
    with BlockingProducer(name_servers, group="shop") as producer:
        print(producer.send(Message("Orders", b"42 paid", tags="paid", keys=["42"])).unique_key)
    with BlockingConsumer(
        name_servers, group="script", topics={"Orders": "*"}, consume_from=ConsumeFrom.FIRST
    ) as consumer:
        while (message := consumer.receive(timeout_s=2)) is not None:
            print(message.body.decode(), message.queue)
            message.ack()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876")
