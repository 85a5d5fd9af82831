"""Driver of RocketMQ's C++ remoting client, unmodified, by its Python binding, for the interop tests and chaos.

It runs in an environment of its own, see tests/interop/cpp_client.py. An order is a line `id verb key=value …` with
percent-encoded values, an event is a line of JSON with the id of its order:

    produce   namesrv group topic prefix interval_ms [queues]: PREFIX-0, PREFIX-1, … until `id stop`; `sent`, `failed`.
              queues=N: message i goes to queue i modulo N
    push      namesrv group topic [orderly]: `message` for each delivery, until `id stop`

The last event of an order is `done`, or `error`.
"""

# mypy: disable-error-code="import-not-found, misc, no-any-return"
# The client is not installed where types are checked.

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
import urllib.parse
from collections.abc import Callable
from typing import Any

from rocketmq.client import Message, Producer, PushConsumer
from rocketmq.exceptions import RocketMQException

_out = threading.Lock()
_STATUSES = {
    "OK": "SEND_OK",
    "FLUSH_DISK_TIMEOUT": "FLUSH_DISK_TIMEOUT",
    "FLUSH_SLAVE_TIMEOUT": "FLUSH_SLAVE_TIMEOUT",
    "SLAVE_NOT_AVAILABLE": "SLAVE_NOT_AVAILABLE",
}


class Order:
    """One order: its parameters and its end."""

    def __init__(self, line: str) -> None:
        self.id, self.verb, *words = line.rstrip("\n").split(" ")
        pairs = (word.partition("=") for word in words if word)
        self.values = {key: urllib.parse.unquote(value) for key, _, value in pairs}
        self.stopped = threading.Event()

    def emit(self, event: str, **values: object) -> None:
        """Print an event of this order."""
        line = json.dumps({"id": self.id, "event": event, "at_ms": int(time.time() * 1_000), **values})
        with _out:
            print(line, flush=True)


def produce(order: Order) -> None:
    """Send one message after another until the order is stopped."""
    queues = int(order.values.get("queues", "0"))
    producer = Producer(order.values["group"], timeout=3_000)
    producer.set_namesrv_addr(order.values["namesrv"])
    producer.start()
    number = 0
    while not order.stopped.wait(int(order.values["interval_ms"]) / 1_000):
        body = f"{order.values['prefix']}-{number}"
        message = Message(order.values["topic"])
        message.set_body(body)
        try:
            result = producer.send_orderly(message, number % queues) if queues else producer.send_sync(message)
        except RocketMQException as error:
            order.emit("failed", body=body, text=str(error))
        else:
            order.emit("sent", body=body, status=_STATUSES[result.status.name], queueOffset=result.offset)
        number += 1
    producer.shutdown()


def push(order: Order) -> None:
    """Report each delivery until the order is stopped."""
    consumer = PushConsumer(order.values["group"], orderly=order.values.get("orderly") == "true")
    consumer.set_namesrv_addr(order.values["namesrv"])
    consumer.set_instance_name(f"{order.values['group']}-{os.getpid()}")

    def take(message: Any) -> None:
        order.emit(
            "message",
            topic=message.topic,
            body=message.body.decode(),
            queueId=message.queue_id,
            queueOffset=message.queue_offset,
            reconsumeTimes=message.reconsume_times,
        )

    consumer.subscribe(order.values["topic"], take)
    consumer.start()
    order.emit("started")
    order.stopped.wait()
    consumer.shutdown()


VERBS: dict[str, Callable[[Order], None]] = {"produce": produce, "push": push}


def run(order: Order) -> None:
    """Carry out an order."""
    try:
        VERBS[order.verb](order)
    except RocketMQException as error:
        order.emit("error", text="".join(traceback.format_exception(error)))
    else:
        order.emit("done")


def main() -> None:
    """Take orders until standard input ends."""
    orders: dict[str, Order] = {}
    print(json.dumps({"event": "ready"}), flush=True)
    for line in sys.stdin:
        order = Order(line)
        if order.verb == "stop":
            if order.id in orders:
                orders[order.id].stopped.set()
            continue
        orders[order.id] = order
        threading.Thread(target=run, args=(order,), daemon=True).start()


if __name__ == "__main__":
    main()
    # The client has threads that would go on.
    os._exit(0)
