"""Driver of RocketMQ's C++ remoting client, unmodified, by its Python binding, for the interop tests and chaos.

It runs in an environment of its own, see tests/interop/cpp_client.py. Orders and events, as in tests/interop/orders.py:

    produce   namesrv group topic prefix interval_ms [queues]: PREFIX-0, PREFIX-1, … until `id stop`; `sent`, `failed`.
              queues=N: message i goes to queue i modulo N
    push      namesrv group topic [orderly]: `message` for each delivery, until `id stop`

The last event of an order is `done`, or `error`.
"""

# mypy: disable-error-code="import-not-found, misc, no-any-return"
# The client is not installed where types are checked.

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Any

from rocketmq.client import Message, Producer, PushConsumer
from rocketmq.exceptions import RocketMQException

from tests.interop.orders import Order, take_orders

_STATUSES = {
    "OK": "SEND_OK",
    "FLUSH_DISK_TIMEOUT": "FLUSH_DISK_TIMEOUT",
    "FLUSH_SLAVE_TIMEOUT": "FLUSH_SLAVE_TIMEOUT",
    "SLAVE_NOT_AVAILABLE": "SLAVE_NOT_AVAILABLE",
}


def produce(order: Order) -> None:
    """Send one message after another until the order is stopped."""
    queues = order.number("queues")
    producer = Producer(order.text("group"), timeout=3_000)
    producer.set_namesrv_addr(order.text("namesrv"))
    producer.start()
    number = 0
    while not order.stopped.wait(order.number("interval_ms") / 1_000):
        body = f"{order.text('prefix')}-{number}"
        message = Message(order.text("topic"))
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
    consumer = PushConsumer(order.text("group"), orderly=order.text("orderly") == "true")
    consumer.set_namesrv_addr(order.text("namesrv"))
    consumer.set_instance_name(f"{order.text('group')}-{os.getpid()}")

    def take(message: Any) -> None:
        order.emit(
            "message",
            topic=message.topic,
            body=message.body.decode(),
            queueId=message.queue_id,
            queueOffset=message.queue_offset,
            reconsumeTimes=message.reconsume_times,
        )

    consumer.subscribe(order.text("topic"), take)
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


if __name__ == "__main__":
    take_orders(Order, run)
    # The client has threads that would go on.
    os._exit(0)
