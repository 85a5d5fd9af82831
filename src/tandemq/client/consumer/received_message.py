"""Messages as push consumers deliver them."""

from collections.abc import Awaitable
from typing import Protocol
from warnings import warn

import msgspec

from tandemq.client.consumer.delivery import Delivery
from tandemq.model.message import Message, MessageQueue, SendResult, StoredMessage
from tandemq.model.replies import create_reply


class AckHandler(Protocol):
    """The consumer that a message belongs to."""

    def ack(self, delivery: Delivery) -> Awaitable[None] | None:
        """Acknowledge a message; returns what to wait for, None if it is done."""

    async def retry(self, delivery: Delivery, delay_level: int) -> None:
        """Send a message back, or to the dead letter topic."""

    async def send_reply(self, reply: Message) -> SendResult:
        """Send the reply to a request."""


class MessageView:
    """Attributes of a delivered message, the same in the asyncio and the blocking client."""

    __slots__ = ()
    stored: StoredMessage
    """The message as the broker stored it."""
    queue: MessageQueue
    """The queue it was read from."""

    @property
    def topic(self) -> str:
        """The topic it was sent to, also when it is redelivered."""
        return self.stored.topic

    @property
    def body(self) -> bytes:
        """The body, decompressed."""
        return self.stored.body

    @property
    def tags(self) -> str:
        """The tag; "" if there is none."""
        return self.stored.tags

    @property
    def keys(self) -> list[str]:
        """The keys; empty if there are none."""
        return self.stored.keys

    @property
    def properties(self) -> dict[str, str]:
        """All properties, including those set by clients and brokers."""
        return self.stored.properties

    @property
    def unique_key(self) -> str:
        """The id assigned by the producer: the same when the message is sent or delivered more than once."""
        return self.stored.unique_key

    @property
    def offset_message_id(self) -> str:
        """The id of its place at a broker: address and position in the commit log, 32 hexadecimal digits."""
        return self.stored.offset_message_id

    @property
    def message_id(self) -> str:
        """Deprecated name of `offset_message_id`."""
        warn("message_id is called offset_message_id", DeprecationWarning, stacklevel=2)
        return self.stored.offset_message_id

    @property
    def queue_offset(self) -> int:
        """The offset in `queue`."""
        return self.stored.queue_offset

    @property
    def reconsume_times(self) -> int:
        """The number of earlier deliveries that failed."""
        return self.stored.reconsume_times

    @property
    def born_ms(self) -> int:
        """When the producer made it, milliseconds since 1970."""
        return self.stored.born_ms

    @property
    def store_ms(self) -> int:
        """When the broker stored it, milliseconds since 1970."""
        return self.stored.store_ms

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(topic={self.topic!r}, queue={self.queue.broker_name}-{self.queue.queue_id}, "
            f"offset={self.queue_offset}, tags={self.tags!r}, bytes={len(self.body)})"
        )


class ReceivedMessage(MessageView, msgspec.Struct, eq=False):
    """A delivered message. End it by `ack` or `retry`; otherwise it is delivered again, here or at another member."""

    stored: StoredMessage
    queue: MessageQueue
    _delivery: Delivery
    _ender: AckHandler

    async def ack(self) -> None:
        """Acknowledge the message: the next commit may include it. Returns at once, without a store of handled
        messages; with one when the store has the message."""
        pending = self._ender.ack(self._delivery)
        if pending is not None:
            await pending

    async def retry(self, delay_level: int = 0) -> None:
        """Send the message back for a later redelivery; returns when the attempt has succeeded or failed.

        Args:
            delay_level: 1 to 18 for that delay level of the broker; 0 for a delay that increases with each redelivery;
                -1 for the dead letter topic at once.
        """
        await self._ender.retry(self._delivery, delay_level)

    async def reply(self, body: bytes) -> SendResult:
        """Reply to a request; returns when the client that sent the request has the reply. Does not end the message.

        Raises:
            InvalidMessage: the message is not a request.
            RemoteError: the client that sent it is not connected, or did not take the reply.
            OutcomeUnknown, NotConnected, NoRoute: as for a send.
        """
        return await self._ender.send_reply(create_reply(self.stored, body))

    @property
    def is_ended(self) -> bool:
        """Whether `ack` or `retry` was called."""
        return self._delivery.is_ended
