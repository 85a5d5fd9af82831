"""Messages as pop consumers deliver them."""

from collections.abc import Awaitable
from typing import Protocol

from tandemq.client.consumer.pop.pop_delivery import PopDelivery
from tandemq.client.consumer.received_message import MessageView
from tandemq.model.message import Message, SendResult
from tandemq.model.replies import create_reply


class PopHandler(Protocol):
    """The consumer that a message belongs to."""

    def ack(self, delivery: PopDelivery) -> Awaitable[None]:
        """Acknowledge a message; returns what to wait for."""

    async def retry(self, delivery: PopDelivery, delay_s: float | None) -> None:
        """Have a message come back after a delay."""

    async def change_invisible(self, delivery: PopDelivery, invisible_s: float) -> None:
        """Change when a message comes back."""

    async def send_reply(self, reply: Message) -> SendResult:
        """Send the reply to a request."""


class PoppedMessage(MessageView):
    """A popped message. End it by `ack` or `retry`; otherwise it comes back when its time is over, here or at another
    member."""

    __slots__ = ("_consumer", "_delivery", "queue", "stored")

    def __init__(self, delivery: PopDelivery, consumer: PopHandler) -> None:
        """Made by the consumer."""
        self.stored, self.queue = delivery.message, delivery.queue
        self._delivery = delivery
        self._consumer = consumer

    async def ack(self) -> None:
        """Acknowledge the message; returns when the broker has confirmed it. Messages that are acknowledged at the same
        time share requests. Has no effect a second time.

        Raises:
            NetworkError: the broker has not confirmed it before the message's time was over: it may come back.
            RemoteError: the broker refuses it: the message comes back.
            ClosedError: the consumer was closed.
        """
        await self._consumer.ack(self._delivery)

    async def retry(self, delay_s: float | None = None) -> None:
        """End the message, and have it come back later; returns when the broker has confirmed it, or could not.

        Args:
            delay_s: after this time; None: 10 s, and more with each redelivery; from an ordered consumer after
                `suspend_ms`.
        """
        await self._consumer.retry(self._delivery, delay_s)

    async def change_invisible(self, invisible_s: float) -> None:
        """Have the message come back so long after now, unless it is ended before. It is not renewed from then on.

        Raises:
            LocalError: the message is ended, or the time is negative.
            NetworkError, RemoteError: the broker has not confirmed it.
        """
        await self._consumer.change_invisible(self._delivery, invisible_s)

    async def reply(self, body: bytes) -> SendResult:
        """Reply to a request; see `ReceivedMessage.reply`."""
        return await self._consumer.send_reply(create_reply(self.stored, body))

    @property
    def is_ended(self) -> bool:
        """Whether `ack` or `retry` was called."""
        return self._delivery.is_ended

    @property
    def popped_at(self) -> float:
        """When the broker popped it, by the broker's clock, in seconds since 1970: its invisible time began then."""
        return self._delivery.handle.pop_ms / 1_000

    @property
    def delivery_count(self) -> int:
        """Number of deliveries of the message, this one included."""
        return self.stored.reconsume_times + 1
