"""What producers and consumers call to be traced by another system, such as OpenTelemetry; None by default.

RocketMQ's own message trace needs none of this: see `ProducerOptions.trace`.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

from tandemq.client.core.calls import Ticket
from tandemq.client.core.settings import MessageModel
from tandemq.errors import LocalError
from tandemq.model.message import Message, MessageQueue, StoredMessage

log = logging.getLogger(__name__)
T = TypeVar("T", bound=Ticket[Any])


class TracedClient(NamedTuple):
    """Who sends or receives."""

    client_id: str
    group: str
    """Producer or consumer group."""
    model: MessageModel | None = None
    """None for producers."""


class Tracing(Protocol):
    """Traces one or more clients. Its methods should not raise, apart from what `start` and the body of `processing`
    raise: an error before `start` fails the send, one of `processing` is that of the handler, others are logged."""

    def sending(
        self,
        messages: Sequence[Message],
        client: TracedClient,
        start: Callable[[Sequence[Message]], list[T]],
    ) -> list[T]:
        """Start to send messages of one topic by `start`, which takes them with the properties added here; returns its
        tickets, which are settled when the messages are stored or have failed."""
        ...

    def received(self, message: StoredMessage, queue: MessageQueue, client: TracedClient) -> None:
        """Record a message that the application has received and processes by itself."""

    def processing(
        self, message: StoredMessage, queue: MessageQueue, client: TracedClient
    ) -> AbstractContextManager[object]:
        """Return a context around the call of a handler."""
        ...


def start_traced(
    tracing: Tracing, messages: Sequence[Message], client: TracedClient, start: Callable[[Sequence[Message]], list[T]]
) -> list[T]:
    """Start to send messages by `start` within the spans of `tracing`, and return the tickets of `start`.

    Raises:
        LocalError: `tracing` has not called `start`; nothing was sent. As well what it, or `start`, raised before.
    """
    started: list[list[T]] = []

    def start_once(some: Sequence[Message]) -> list[T]:
        if not started:
            started.append(start(some))
        return started[0]

    try:
        tracing.sending(messages, client, start_once)
    except (Exception, asyncio.CancelledError):
        if not started:
            raise
        log.exception("tracing of a send failed: %s", type(tracing).__name__)
    if not started:
        raise LocalError(f"nothing was sent: {type(tracing).__name__}.sending has not called start")
    return started[0]
