"""What producers and consumers call to be traced by another system, such as OpenTelemetry; None by default.

RocketMQ's own message trace needs none of this: see `ProducerOptions.trace`.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

from tandemq.client.core.calls import Ticket
from tandemq.client.core.settings import MessageModel
from tandemq.model.message import Message, MessageQueue, StoredMessage

T = TypeVar("T", bound=Ticket[Any])


class TracedClient(NamedTuple):
    """Who sends or receives."""

    client_id: str
    group: str
    """Producer or consumer group."""
    model: MessageModel | None = None
    """None for producers."""


class Tracing(Protocol):
    """Traces one or more clients. Its methods must not raise, apart from what `start` and the body of `processing`
    raise."""

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
