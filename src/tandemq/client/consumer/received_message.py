"""A message as a consumer hands it to the user: what it is, and how to end it."""

from typing import Protocol
from warnings import warn

from tandemq.client.consumer.push_machine import Delivery
from tandemq.model.message import MessageQueue, StoredMessage


class AckHandler(Protocol):
    """Who hears that a message is ended."""

    def ack(self, delivery: Delivery) -> None:
        """It is consumed."""

    async def retry(self, delivery: Delivery, delay_level: int) -> None:
        """It shall come again."""


class MessageView:
    """The attributes of a message to consume, the same for asyncio and for threads."""

    __slots__ = ("queue", "stored")

    def __init__(self, stored: StoredMessage, queue: MessageQueue) -> None:
        """Of what a broker stored, read from a queue."""
        self.stored = stored
        """All that the broker stored."""
        self.queue = queue
        """The queue it was read from."""

    @property
    def topic(self) -> str:
        """The topic it was sent to, also when it comes again."""
        return self.stored.topic

    @property
    def body(self) -> bytes:
        """Its bytes, decompressed."""
        return self.stored.body

    @property
    def tags(self) -> str:
        """Its tag, "" if none."""
        return self.stored.tags

    @property
    def keys(self) -> list[str]:
        """Its keys."""
        return self.stored.keys

    @property
    def properties(self) -> dict[str, str]:
        """All its properties, those that the system set included."""
        return self.stored.properties

    @property
    def unique_key(self) -> str:
        """The id its producer gave it: the same if it was sent or delivered more than once."""
        return self.stored.unique_key

    @property
    def offset_message_id(self) -> str:
        """The place where it lies."""
        return self.stored.offset_message_id

    @property
    def message_id(self) -> str:
        """Deprecated name of `offset_message_id`."""
        warn("message_id is called offset_message_id", DeprecationWarning, stacklevel=2)
        return self.stored.offset_message_id

    @property
    def queue_offset(self) -> int:
        """Its offset in that queue."""
        return self.stored.queue_offset

    @property
    def reconsume_times(self) -> int:
        """How often it was tried before."""
        return self.stored.reconsume_times

    @property
    def born_ms(self) -> int:
        """When its producer made it, milliseconds since 1970."""
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


class ReceivedMessage(MessageView):
    """A message to consume. End it by `ack` or `retry`; one that is not ended comes again, here or elsewhere."""

    __slots__ = ("_delivery", "_ender")

    def __init__(self, delivery: Delivery, ender: AckHandler) -> None:
        """Of a delivery."""
        super().__init__(delivery.message, delivery.queue)
        self._delivery = delivery
        self._ender = ender

    async def ack(self) -> None:
        """It is consumed: its offset is committed with the next commit. Does not wait."""
        self._ender.ack(self._delivery)

    async def retry(self, delay_level: int = 0) -> None:
        """It could not be consumed: have it come again later.

        Args:
            delay_level: 1…18 for a delay of the broker's table, 0 for one that grows with each time, -1 for the dead
                letter topic at once.
        """
        await self._ender.retry(self._delivery, delay_level)

    @property
    def is_ended(self) -> bool:
        """Whether `ack` or `retry` was called."""
        return self._delivery.is_ended
