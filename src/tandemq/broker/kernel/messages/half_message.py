"""Half messages: how a transactional send is stored, and what is read back from its record.

A half message is an ordinary record of `RMQ_SYS_TRANS_HALF_TOPIC`, queue 0, whose properties name the topic and queue
that the message is delivered to after the commit.

Source: docs/reference/transactions.md; RocketMQ TransactionalMessageBridge, EndTransactionProcessor.
"""

from typing import NamedTuple

from tandemq.broker.kernel.connection import pack_host
from tandemq.codec.record.record import decode_message
from tandemq.errors import ProtocolError
from tandemq.model.java_types import INT32_MAX
from tandemq.model.message import (
    CHECK_TIMES,
    DELAY,
    FIRST_OFFSET,
    IMMUNITY,
    PRODUCER_GROUP,
    REAL_QID,
    REAL_TOPIC,
    RECORD_CRC,
    TRAN_MSG,
    TRANSACTION_ID,
    TRANSACTION_MASK,
    UNIQ_KEY,
    StoredMessage,
)
from tandemq.model.topic import topic_name_error
from tandemq.storage.consume_queue import ConsumeQueue
from tandemq.storage.store import Store


class HalfMessage(NamedTuple):
    """A half message as stored."""

    message: StoredMessage
    """Its body is not decompressed."""
    topic: str
    """Topic of the message after the commit."""
    queue_id: int
    data: bytes
    """Its record."""

    @property
    def properties(self) -> dict[str, str]:
        """The properties, without that of the record's CRC."""
        return {name: value for name, value in self.message.properties.items() if name != RECORD_CRC}

    @property
    def group(self) -> str:
        """The producer group, "" if there is none."""
        return self.message.properties.get(PRODUCER_GROUP, "")

    @property
    def unique_key(self) -> str:
        """The id assigned by the producer, "" if there is none."""
        return self.message.properties.get(UNIQ_KEY, "")

    @property
    def check_times(self) -> int:
        """Number of checks so far."""
        return _number(self.message.properties.get(CHECK_TIMES, "")) or 0

    @property
    def first_offset(self) -> int | None:
        """Queue offset of the half message of which this one is a copy; None if it is none."""
        return _number(self.message.properties.get(FIRST_OFFSET, ""))

    @property
    def immunity_ms(self) -> int | None:
        """Age at which the first check is due, as the producer asks for; None if it does not."""
        seconds = _number(self.message.properties.get(IMMUNITY, "").removeprefix("+"))
        return None if seconds is None else seconds * 1000

    @property
    def born_host(self) -> bytes:
        """The producer's address in the form of records."""
        return pack_host(self.message.born_host)

    @property
    def store_host(self) -> bytes:
        """The address of the broker that stored it, in the form of records."""
        return pack_host(self.message.store_host)


def is_half(properties: dict[str, str], reconsume_times: int) -> bool:
    """Whether a send asks for a transaction.

    Clients before 4.6.1 send messages back with the property of a transaction that is over.
    """
    is_sent_back = reconsume_times > 0 and (_number(properties.get(DELAY, "")) or 0) > 0
    return properties.get(TRAN_MSG, "").lower() == "true" and not is_sent_back


def as_half(properties: dict[str, str], topic: str, queue_id: int) -> None:
    """Add the properties of a half message, for a message to a topic and queue.

    Those that count checks are dropped: a message that is passed on may have them of an earlier transaction.
    """
    for name in (CHECK_TIMES, FIRST_OFFSET):
        properties.pop(name, None)
    properties[REAL_TOPIC] = topic
    properties[REAL_QID] = str(queue_id)
    if UNIQ_KEY in properties:
        properties[TRANSACTION_ID] = properties[UNIQ_KEY]


def read_half(store: Store, queue: ConsumeQueue, queue_offset: int) -> HalfMessage | None:
    """Return the half message of a queue entry; None if entry or record are damaged.

    Raises:
        ProtocolError: the record does not verify, or is no half message.
        StoreError: it cannot be read.
    """
    found = store.record_of(queue, queue_offset)
    return None if found is None else decode_half(found[1])


def decode_half(data: bytes) -> HalfMessage:
    """Decode the record of a half message, or of one that was given up.

    Raises:
        ProtocolError: the record does not verify, or is no half message.
    """
    message = decode_message(data, 0, len(data), inflates=False)
    name = message.properties.get(REAL_TOPIC, "")
    queue_id = _number(message.properties.get(REAL_QID, ""))
    if (
        topic_name_error(name) is not None
        or queue_id is None
        or queue_id > INT32_MAX
        or message.sys_flag & TRANSACTION_MASK
    ):
        raise ProtocolError(f"the record at log offset {message.log_offset} is no half message")
    return HalfMessage(message, name, queue_id, data)


def _number(text: str) -> int | None:
    """Return a number of at most 12 digits, None for anything else."""
    return int(text) if text.isdecimal() and text.isascii() and len(text) <= 12 else None
