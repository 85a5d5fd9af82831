"""`make console`: a cluster with traffic, and the console beside it, until Ctrl-C.

Two groups elect their masters. A shop sends orders; one consumer group keeps up, one lags, one sends every tenth
message to its dead letters. Data are in build/console and kept.
"""

import asyncio
import contextlib
import json
import signal
import sys
import threading
from pathlib import Path

from tandemq.client.aio.admin import Admin
from tandemq.client.blocking import BlockingConsumer, BlockingProducer
from tandemq.coordination.registry.records import Mode
from tandemq.errors import TandemError
from tandemq.model.message import Message
from tandemq.run.children import ChildCluster, console_child

DIRECTORY = Path("build/console")
TOPIC = "Orders"
QUEUES = 4
PAUSE_S = 0.05
"""Between two orders."""


async def create_topic(name_servers: str) -> None:
    """Create the topic on both groups: the first send would create it on one of them only."""
    async with Admin(name_servers) as admin:
        await admin.create_topic(TOPIC, queues=QUEUES)


def produce(name_servers: str, ended: threading.Event) -> None:
    """Send orders; while a master is replaced, sends fail and the next one is tried."""
    with BlockingProducer(name_servers, group="shop") as producer:
        number = 0
        while not ended.wait(PAUSE_S):
            number += 1
            body = json.dumps({"order": number, "amount": number % 97, "paid": number % 10 != 0}).encode()
            with contextlib.suppress(TandemError):
                producer.send(Message(TOPIC, body, tags="paid" if number % 10 else "open", keys=[f"order-{number}"]))


def consume(name_servers: str, group: str, pause_s: float, ended: threading.Event) -> None:
    """Consume orders; "audit" does not accept those that are not paid."""
    with BlockingConsumer(name_servers, group=group, topics={TOPIC: "*"}, max_reconsume_times=0) as consumer:
        while not ended.wait(pause_s):
            with contextlib.suppress(TandemError):
                message = consumer.receive(timeout_s=0.5)
                if message is None:
                    continue
                if group == "audit" and message.tags == "open":
                    message.retry()
                else:
                    message.ack()


def main() -> int:
    """Run until SIGINT or SIGTERM."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with ChildCluster(DIRECTORY, groups=2, slaves=1, mode=Mode.ELECT) as cluster:
        console = console_child(cluster, 0)
        console.start()
        servers = cluster.name_servers
        asyncio.run(create_topic(servers))
        threads = [
            threading.Thread(target=produce, args=(servers, ended)),
            *(
                threading.Thread(target=consume, args=(servers, group, pause_s, ended))
                for group, pause_s in (("billing", 0), ("audit", 0), ("reports", 3 * PAUSE_S))
            ),
        ]
        for thread in threads:
            thread.start()
        link = console.startup["link"]
        once = "; it works once and creates the first user" if "/setup/" in link else ""
        sys.stdout.write(f"open this link{once}:\n{link}\nCtrl-C stops the cluster; its data are in {DIRECTORY}\n")
        sys.stdout.flush()
        ended.wait()
        for thread in threads:
            thread.join()
        is_clean = console.stop()
    return 0 if is_clean and not cluster.unclean else 1


if __name__ == "__main__":
    sys.exit(main())
