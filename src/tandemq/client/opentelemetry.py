"""OpenTelemetry traces of producers and consumers; needs the extra `opentelemetry`, and an SDK of the application's.

    tracing = OpenTelemetry()
    async with Producer("127.0.0.1:9876", group="orders", tracing=tracing) as producer: …
    async with PushConsumer(…, tracing=tracing) as consumer:
        await consumer.run(handle)

    send T        PRODUCER   its context goes into the message's properties: traceparent, tracestate, baggage
    process T     CONSUMER   around a handler; child of the send
    receive T     CLIENT     a message taken by `receive` or `async for`; linked to the send

The properties are those that OpenTelemetry's agents for Java clients write and read. Without a sampled span nothing but
the properties is added; without an SDK nothing at all.

Source: OpenTelemetry semantic conventions, "messaging spans" and "RocketMQ"; W3C Trace Context.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from opentelemetry import context, propagate, trace
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider

from tandemq.client.aio.tracing import TracedClient
from tandemq.client.core.calls import Ticket
from tandemq.errors import TandemError
from tandemq.model.codes import ResponseCode
from tandemq.model.message import (
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    TRAN_MSG,
    Message,
    MessageQueue,
    SendResult,
    SendStatus,
    StoredMessage,
)

TRACE_CONTEXT = "TRACE_CONTEXT"
"""Property in which RocketMQ's proxy stores the `traceparent` of gRPC clients."""
VALUE_CHARACTERS_MAX = 4_096
"""A longer value, such as a large baggage, is not added to a message, so that it cannot become too large to send."""
T = TypeVar("T", bound=Ticket[Any])
_Attributes = dict[str, str | int | Sequence[str]]


class _Properties(Getter[Mapping[str, str]]):
    """Reads the context from a message's properties."""

    def get(self, carrier: Mapping[str, str], key: str) -> list[str] | None:
        value = carrier.get(key) or (carrier.get(TRACE_CONTEXT) if key == "traceparent" else None)
        return None if value is None else [value]

    def keys(self, carrier: Mapping[str, str]) -> list[str]:
        return list(carrier)


_GETTER = _Properties()


class OpenTelemetry:
    """Makes spans of sends and deliveries: `tracing=` of producers and push consumers. One serves several clients."""

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        """`tracer_provider`: by default the global one."""
        self._tracer = trace.get_tracer("tandemq", tracer_provider=tracer_provider)

    # Producers.

    def sending(
        self,
        messages: Sequence[Message],
        client: TracedClient,
        start: Callable[[Sequence[Message]], list[T]],
    ) -> list[T]:
        """See `Tracing.sending`."""
        if not messages or not all(isinstance(message, Message) for message in messages):
            return start(messages)  # which says what is wrong
        topic = messages[0].topic
        attributes = _common("send", "send", topic, client)
        if len(messages) > 1:
            attributes["messaging.batch.message_count"] = len(messages)
        else:
            attributes |= _of_message(messages[0])
        span = self._tracer.start_span(f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes)
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(span))
        added = {name: value for name, value in carrier.items() if _is_sendable(value)}
        if added:
            messages = [replace(message, properties=message.properties | added) for message in messages]
        try:
            tickets = start(messages)
        except BaseException as error:
            _fail(span, error)
            span.end()
            raise
        pending = [len(tickets)]
        for ticket in tickets:
            ticket.then(partial(_on_settled, span, pending))
        return tickets

    # Consumers.

    def received(self, message: StoredMessage, queue: MessageQueue, client: TracedClient) -> None:
        """See `Tracing.received`."""
        creation = trace.get_current_span(self.context_of(message)).get_span_context()
        links = [Link(creation)] if creation.is_valid else None
        attributes = _common("receive", "receive", message.topic, client) | _of_delivery(message, queue)
        name = f"receive {message.topic}"
        self._tracer.start_span(name, kind=SpanKind.CLIENT, attributes=attributes, links=links).end()

    @contextmanager
    def processing(self, message: StoredMessage, queue: MessageQueue, client: TracedClient) -> Iterator[Span]:
        """See `Tracing.processing`; the span is the current one in the body."""
        attributes = _common("process", "process", message.topic, client) | _of_delivery(message, queue)
        with self._tracer.start_as_current_span(
            f"process {message.topic}",
            context=self.context_of(message),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                _fail(span, error)
                raise

    @staticmethod
    def context_of(message: StoredMessage) -> context.Context:
        """Return the context in which a message was sent, as parent or link of spans of the application."""
        return propagate.extract(message.properties, getter=_GETTER)


def _is_sendable(value: str) -> bool:
    return (
        0 < len(value) <= VALUE_CHARACTERS_MAX and NAME_VALUE_SEPARATOR not in value and PROPERTY_SEPARATOR not in value
    )


def _common(name: str, kind: str, topic: str, client: TracedClient) -> _Attributes:
    found: _Attributes = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
        "messaging.client.id": client.client_id,
        "messaging.rocketmq.namespace": "",
    }
    if client.model is not None:
        found["messaging.consumer.group.name"] = client.group
        found["messaging.rocketmq.consumption_model"] = client.model.value.lower()
    return found


def _of_message(message: Message) -> _Attributes:
    found: _Attributes = {"messaging.rocketmq.message.type": _type(message)}
    if message.tags:
        found["messaging.rocketmq.message.tag"] = message.tags
    if message.keys:
        found["messaging.rocketmq.message.keys"] = list(message.keys)
    if message.delay_level:
        found["messaging.rocketmq.message.delay_time_level"] = message.delay_level
    if message.deliver_at is not None and (timer := message.timer_property()) is not None:
        found["messaging.rocketmq.message.delivery_timestamp"] = int(timer[1])
    return found


def _type(message: Message) -> str:
    if message.properties.get(TRAN_MSG) == "true":
        return "transaction"
    if message.is_delayed:
        return "delay"
    return "normal" if message.priority is None else "priority"


def _of_delivery(message: StoredMessage, queue: MessageQueue) -> _Attributes:
    found: _Attributes = {
        "messaging.message.id": message.unique_key or message.offset_message_id,
        "messaging.destination.partition.id": f"{queue.broker_name}-{queue.queue_id}",
    }
    if message.tags:
        found["messaging.rocketmq.message.tag"] = message.tags
    if message.keys:
        found["messaging.rocketmq.message.keys"] = message.keys
    return found


def _on_settled(span: Span, pending: list[int], ticket: Ticket[Any]) -> None:
    """End the span of a send with its last request."""
    pending[0] -= 1
    if ticket.error is not None:
        _fail(span, ticket.error)
    elif isinstance(result := ticket.result(), SendResult):
        span.set_attribute("messaging.message.id", result.unique_key)
        span.set_attribute("messaging.destination.partition.id", f"{result.queue.broker_name}-{result.queue.queue_id}")
        if result.status is not SendStatus.SEND_OK:
            span.set_attribute("messaging.rocketmq.send_status", result.status.value)
    if not pending[0]:
        span.end()


def _fail(span: Span, error: BaseException) -> None:
    name = type(error).__name__
    if isinstance(error, TandemError) and error.code is not None:
        try:
            name = ResponseCode(error.code).name
        except ValueError:
            name = str(error.code)
    span.set_attribute("error.type", name)
    span.set_status(Status(StatusCode.ERROR, str(error)))
