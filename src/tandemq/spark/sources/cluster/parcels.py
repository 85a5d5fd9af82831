"""Messages of the sink that are sent, acknowledged and retried together.

Source: docs/guides/pipeline.md, "The cluster as a sink".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tandemq.client.aio.producer import Producer
from tandemq.client.core.calls import Ticket
from tandemq.model.message import KEY_SEPARATOR, Message
from tandemq.model.replies import MSG_TYPE
from tandemq.model.topic import RETRY_PREFIX
from tandemq.spark.sources.cluster.options import SinkOptions
from tandemq.spark.sources.cluster.outgoing import (
    BATCH_BYTES,
    COMPRESS_ABOVE_BYTES,
    KEY_CHARACTERS,
    EncodedRequest,
    encode,
    messages_per_request,
)
from tandemq.spark.sources.cluster.queue_choice import Lane, QueuesOf, lane_of
from tandemq.spark.sources.cluster.row_messages import make_message, rows_of

Keyed = tuple[Message, str]
"""A message and its unique key."""


def make_batches(messages: Iterable[tuple[Lane, Keyed]], messages_max: int) -> Iterator[MessageParcel]:
    """Divide messages into those that one request sends: of one lane, in their order, within `messages_max` and
    `BATCH_BYTES`. Messages that a batch cannot hold, or that are compressed, have their own request."""
    held: dict[Lane, list[Keyed]] = {}
    sizes: dict[Lane, int] = {}
    for lane, keyed in messages:
        message, _ = keyed
        size = len(message.body) + sum(len(name) + len(value) for name, value in message.properties.items())
        is_alone = (
            not message.is_batchable
            or len(message.body) >= COMPRESS_ABOVE_BYTES
            or MSG_TYPE in message.properties
            or message.topic.startswith(RETRY_PREFIX)
        )
        batch = held.setdefault(lane, [])
        is_last = is_alone and lane.queue is not None  # of those before it
        if batch and (is_last or len(batch) >= messages_max or sizes[lane] + size > BATCH_BYTES):
            yield MessageParcel(lane, batch)
            batch = held[lane] = []
        if is_alone:
            yield MessageParcel(lane, [keyed])
            continue
        sizes[lane] = size + (sizes[lane] if batch else 0)
        batch.append(keyed)
    yield from (MessageParcel(lane, batch) for lane, batch in held.items() if batch)


class Parcel(Protocol):
    """Messages that are sent, acknowledged and retried together."""

    @property
    def lane(self) -> Lane:
        """Where they go."""

    @property
    def count(self) -> int:
        """Number of messages."""

    @property
    def first(self) -> tuple[str, str]:
        """Topic and unique key of the first one."""

    def begin(self, producer: Producer) -> list[Ticket[Any]]:
        """Start to send them."""

    def singles(self) -> list[Parcel]:
        """Return a parcel for each message."""


@dataclass(frozen=True, slots=True)
class MessageParcel:
    """Messages of one lane that the producer has yet to validate."""

    lane: Lane
    messages: Sequence[Keyed]

    @property
    def count(self) -> int:
        """Number of messages."""
        return len(self.messages)

    @property
    def first(self) -> tuple[str, str]:
        """Topic and unique key of the first one."""
        message, key = self.messages[0]
        return message.topic, key

    def begin(self, producer: Producer) -> list[Ticket[Any]]:
        """Start to send them.

        Raises:
            LocalError, RecordTooLarge: one of them is invalid; none is sent.
        """
        if len(self.messages) == 1:
            [(message, key)] = self.messages
            return [producer.begin(message, unique_key=key, queue=self.lane.queue)]
        messages, keys = [message for message, _ in self.messages], [key for _, key in self.messages]
        return list(producer.begin_batch(messages, unique_keys=keys, queue=self.lane.queue))

    def singles(self) -> list[Parcel]:
        """Return a parcel for each message."""
        return [MessageParcel(self.lane, [message]) for message in self.messages]


@dataclass(frozen=True, slots=True)
class EncodedParcel:
    """Messages that are encoded."""

    encoded: EncodedRequest

    @property
    def lane(self) -> Lane:
        """Where they go."""
        return self.encoded.lane

    @property
    def count(self) -> int:
        """Number of messages."""
        return len(self.encoded.numbers)

    @property
    def first(self) -> tuple[str, str]:
        """Topic and unique key of the first one."""
        request = self.encoded.request
        return request.topic, request.unique_keys[0]

    def begin(self, producer: Producer) -> list[Ticket[Any]]:
        """Start to send them."""
        return [producer.begin_encoded(self.encoded.request, queue=self.lane.queue)]

    def singles(self) -> list[Parcel]:
        """Return a parcel for each message."""
        rows = self.encoded.rows
        return [EncodedParcel(EncodedRequest(rows.single(row), rows, (row,))) for row in self.encoded.numbers]


def make_parcels(some: Any, options: SinkOptions, keys: str, row: int, queues_of: QueuesOf) -> list[Parcel]:
    """Return the parcels that send the rows of a slice of an Arrow batch.

    Args:
        keys: unique keys of the rows, see `unique_keys`.
        row: number of the first row in its partition.
        queues_of: called for each topic if rows choose queues.
    Raises:
        LocalError, TypeError: a row cannot be sent; names the row.
        NetworkError, NoRoute: the queues of a topic are unknown.
    """
    encoded = encode(some, options, keys, queues_of)
    if encoded is not None:
        return [EncodedParcel(encoded_request) for encoded_request in encoded]
    messages: list[tuple[Lane, Keyed]] = []
    for number, values in enumerate(rows_of(some)):
        key = values.get("uniqueKey") or keys[number * KEY_CHARACTERS : (number + 1) * KEY_CHARACTERS]
        message = make_message(values, options, row + number)
        partition, by = values.get("partition"), options.queue_by
        words = KEY_SEPARATOR.join(message.keys)
        lane = lane_of(message.topic, by, queues_of, keys=words, partition=partition, row=row + number)
        messages.append((lane, (message, key)))
    return list(make_batches(messages, messages_per_request(len(messages), options)))
