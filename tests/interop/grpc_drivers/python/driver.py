"""Driver of RocketMQ's Python gRPC client, unmodified, for the interop tests.

It runs in an environment of its own, whose packages are those of requirements-grpc-client.lock: the client's generated
classes and others of the same protocol cannot be in one process. Orders and events are described in
tests/interop/grpc_clients.py.
"""

# mypy: disable-error-code="import-not-found, misc, no-any-return"
# The client is not installed where types are checked.

from __future__ import annotations

import hashlib
import os
import threading
import traceback
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType

from tests.interop import orders

BODY_MAX = 2_000
STARTS_MAX = 5


class Order(orders.Order):
    """One order to the gRPC client."""

    def configuration(self) -> ClientConfiguration:
        """Return where the proxy is, and who asks."""
        credentials = Credentials(self.text("access_key"), self.text("secret_key"))
        return ClientConfiguration(self.text("endpoints"), credentials)

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.text("tls") == "true"

    def subscription(self) -> dict[str, FilterExpression]:
        """Return what a consumer subscribes to."""
        kind = FilterType.SQL if self.text("sql") == "true" else FilterType.TAG
        return {self.text("topic"): FilterExpression(self.text("expression", "*"), kind)}


class Client:
    """A producer or consumer, and the messages that it received."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.received: dict[str, Any] = {}
        self._lock = threading.Lock()

    def keep(self, message: Any) -> str:
        """Keep a message for orders that name it."""
        with self._lock:
            key = f"m{len(self.received)}"
            self.received[key] = message
        return key


clients: dict[str, Client] = {}


def described(message: Any) -> dict[str, object]:
    """Return what a message has."""
    body = bytes(message.body)
    return {
        "messageId": message.message_id,
        "topic": message.topic,
        "tag": message.tag,
        "keys": sorted(message.keys or ()),
        "properties": dict(message.properties),
        "messageGroup": message.message_group,
        "attempt": message.delivery_attempt,
        "bornHost": message.born_host,
        "size": len(body),
        "digest": hashlib.sha256(body).hexdigest(),
        "body": body.decode() if len(body) <= BODY_MAX else None,
    }


class Listener(MessageListener):
    """Reports each message, and fails as ordered."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._attempts: dict[str, int] = defaultdict(int)

    def consume(self, message: Any) -> ConsumeResult:
        """Report a message."""
        self._attempts[message.message_id] += 1
        fails = self._attempts[message.message_id] <= self._order.number("fail_first")
        self._order.emit("message", failed=fails, **described(message))
        return ConsumeResult.FAILURE if fails else ConsumeResult.SUCCESS


class Checker(TransactionChecker):
    """Answers checks of transactions as ordered."""

    def __init__(self, order: Order) -> None:
        self._order = order

    def check(self, message: Any) -> TransactionResolution:
        """Report a check."""
        resolution = self._order.text("check")
        self._order.emit("check", resolution=resolution, **described(message))
        return {
            "commit": TransactionResolution.COMMIT,
            "rollback": TransactionResolution.ROLLBACK,
        }.get(resolution, TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED)


def started(make: Callable[[], Any]) -> Any:
    """Return a running client.

    The first stream of a client that starts beside others may lack an event loop. A push consumer then waits 10 s for
    its settings, and fails with an AttributeError; a new one starts.
    """
    for _ in range(STARTS_MAX - 1):
        client = make()
        try:
            client.startup()
        except AttributeError:
            continue
        return client
    client = make()
    client.startup()
    return client


def stay(order: Order, make: Callable[[], Any]) -> None:
    """Start a client, and shut it down when the order is stopped."""
    client = started(make)
    clients[order.text("client")] = Client(client)
    order.emit("open", clientId=str(client.client_id))
    order.stopped.wait()
    del clients[order.text("client")]
    client.shutdown()


def producer(order: Order) -> None:
    """Open a producer."""
    checker = Checker(order) if order.text("check") else None
    topics = [topic for topic in order.text("topics").split(",") if topic]
    stay(order, lambda: Producer(order.configuration(), topics, checker, order.tls))


def simple(order: Order) -> None:
    """Open a simple consumer."""
    await_s = order.number("await_ms", 10_000) // 1000
    configuration, subscription = order.configuration(), order.subscription()
    group = order.text("group")
    stay(order, lambda: SimpleConsumer(configuration, group, subscription, await_s, tls_enable=order.tls))


def push(order: Order) -> None:
    """Open a push consumer."""
    configuration, subscription = order.configuration(), order.subscription()
    listener, threads = Listener(order), order.number("threads", 4)
    group = order.text("group")
    stay(
        order,
        lambda: PushConsumer(
            configuration, group, listener, subscription, consumption_thread_count=threads, tls_enable=order.tls
        ),
    )


def prepared(order: Order, body: bytes) -> Message:
    """Return a message to send."""
    message = Message()
    message.topic = order.text("topic")
    message.body = body
    if tag := order.text("tag"):
        message.tag = tag
    for key in filter(None, order.text("keys").split(",")):
        message.keys = key
    if group := order.text("message_group"):
        message.message_group = group
    if deliver_ms := order.number("deliver_ms"):
        message.delivery_timestamp = deliver_ms // 1000
    for key, value in order.values.items():
        if key.startswith("property."):
            message.add_property(key.removeprefix("property."), value)
    return message


def body_of(order: Order) -> bytes:
    """Return the body: as given, or letters of that size."""
    size = order.number("size")
    return b"abcdefghijklmnopqrstuvwxyz"[: min(size, 26)] * (size // 26 + 1) if size else order.text("body").encode()


def problem(error: BaseException) -> dict[str, object]:
    """Return what an exception of the client says."""
    code = getattr(error, "code", None)
    number = code if isinstance(code, int) else None
    return {"class": type(error).__name__, "code": number, "text": str(error)[:1000]}


def outcome(action: Callable[[], Any]) -> Future[Any]:
    """Run an action, which may raise any exception, to its end."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(action)


def attempted(order: Order, what: Callable[[], dict[str, object]], event: str, **values: object) -> None:
    """Do what can be refused, and report the result."""
    done = outcome(what)
    if error := done.exception():
        order.emit("refused", **values, **problem(error))
    else:
        order.emit(event, **values, **done.result())


def nothing(_: object) -> dict[str, object]:
    """Return that an operation has no result."""
    return {}


def send(order: Order) -> None:
    """Send one message."""
    body = body_of(order)
    size = order.number("size")
    message = prepared(order, body[:size] if size else body)
    attempted(order, lambda: receipt(clients[order.text("client")].client.send(message)), "sent")


def receipt(found: Any) -> dict[str, object]:
    """Return what a receipt has."""
    return {
        "messageId": found.message_id,
        "transactionId": found.transaction_id,
        "recallHandle": found.recall_handle,
        "offset": found.offset,
    }


def burst(order: Order) -> None:
    """Send messages one after the other, with a number in each, until stopped."""
    client = clients[order.text("client")].client
    count = order.number("count", 1 << 30)
    groups = order.number("groups")
    for number in range(count):
        body = f"{order.text('prefix')}-{number}"
        message = prepared(order, body.encode())
        if groups:
            message.message_group = f"g{number % groups}"
        attempted(order, lambda message=message: receipt(client.send(message)), "sent", body=body)
        if order.stopped.wait(order.number("every_ms") / 1000):
            break


def transact(order: Order) -> None:
    """Send a half message, and end the transaction as ordered."""
    client = clients[order.text("client")].client
    transaction = client.begin_transaction()
    message = prepared(order, body_of(order))

    def half() -> dict[str, object]:
        return receipt(client.send(message, transaction))

    attempted(order, half, "sent")
    end = order.text("end")
    if end:
        attempted(order, lambda: nothing(transaction.commit() if end == "commit" else transaction.rollback()), "ended")


def recall(order: Order) -> None:
    """Recall a timed message."""
    client = clients[order.text("client")].client
    attempted(
        order, lambda: {"messageId": client.recall_message(order.text("topic"), order.text("handle"))}, "recalled"
    )


def receive(order: Order) -> None:
    """Receive once."""
    client = clients[order.text("client")]

    def messages() -> dict[str, object]:
        found = client.client.receive(order.number("max", 16), order.number("invisible_ms", 15_000) // 1000)
        for message in found or []:
            order.emit("message", key=client.keep(message), **described(message))
        return {}

    attempted(order, messages, "received")


def ack(order: Order) -> None:
    """Acknowledge a received message."""
    client = clients[order.text("client")]
    attempted(order, lambda: nothing(client.client.ack(client.received[order.text("message")])), "acked")


def change(order: Order) -> None:
    """Change the invisible duration of a received message."""
    client = clients[order.text("client")]
    message = client.received[order.text("message")]
    seconds = order.number("invisible_ms") // 1000
    attempted(order, lambda: nothing(client.client.change_invisible_duration(message, seconds)), "changed")


VERBS: dict[str, Callable[[Order], None]] = {
    each.__name__: each for each in (producer, simple, push, send, burst, transact, recall, receive, ack, change)
}


def run(order: Order) -> None:
    """Carry out an order."""
    if error := outcome(lambda: VERBS[order.verb](order)).exception():
        order.emit("error", **{**problem(error), "text": "".join(traceback.format_exception(error))})
    else:
        order.emit("done")


if __name__ == "__main__":
    orders.take_orders(Order, run)
    # The client has threads that would go on.
    os._exit(0)
