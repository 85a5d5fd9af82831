"""Records of the wheel topic as they are read back.

A copy of a timed message, delivered or stored again, has the log offset of the record that it was made from, plus 1, as
its prepared offset, which clients cannot set. So the log alone says which messages are over.
"""

from typing import NamedTuple

from tandemq.broker.connections.connection import pack_host
from tandemq.codec.record.record import Record, decode_message, unpack_head
from tandemq.errors import ProtocolError
from tandemq.model.message import (
    REAL_QID,
    REAL_TOPIC,
    RECORD_CRC,
    TIMER_DELETE,
    TIMER_OUT,
    TIMER_ROLLS,
    TRANSACTION_MASK,
    UNIQ_KEY,
    StoredMessage,
    decode_properties,
)
from tandemq.model.topic import topic_name_error
from tandemq.storage.consume_queue import ConsumeQueue
from tandemq.storage.store import Store


class NoTimedMessage(ProtocolError):
    """A whole record of the wheel topic that is no timed message."""


class TimerHead(NamedTuple):
    """What the index needs of a timed message."""

    out_ms: int
    topic: str
    """Topic that it is delivered to."""
    key: str
    """Its unique key, "" if it has none."""
    is_delete: bool
    is_rolled: bool
    """Whether it was stored again since it was sent."""
    origin: int
    """Log offset of the record that it is a copy of, -1 if it is none, or a Java broker made it."""
    store_ms: int


class TimedMessage(NamedTuple):
    """A timed message as stored, verified."""

    head: TimerHead
    message: StoredMessage
    body: bytes
    """As stored, perhaps compressed."""
    queue_id: int
    log_offset: int
    size: int

    @property
    def properties(self) -> dict[str, str]:
        """The properties, without that of the record's CRC."""
        return {name: value for name, value in self.message.properties.items() if name != RECORD_CRC}

    @property
    def born_host(self) -> bytes:
        """The producer's address in the form of records."""
        return pack_host(self.message.born_host)

    @property
    def store_host(self) -> bytes:
        """The address of the broker that stored it, in the form of records."""
        return pack_host(self.message.store_host)


def read_head(store: Store, queue: ConsumeQueue, queue_offset: int) -> TimerHead | None:
    """Return what the index needs of a message, without checksums; None if entry or record are damaged.

    Raises:
        NoTimedMessage: the record is none.
        StoreError: it cannot be read.
    """
    found = store.record_of(queue, queue_offset)
    if found is None:
        return None
    record, data = found
    properties = decode_properties(record.properties.decode("utf-8", "replace"))
    return head_of(record, properties, unpack_head(data, 0).prepared_offset - 1)


def head_of(record: Record, properties: dict[str, str], origin: int) -> TimerHead:
    """Return what the index needs of a record.

    Raises:
        NoTimedMessage: it is no timed message.
    """
    out, topic = properties.get(TIMER_OUT, ""), properties.get(REAL_TOPIC, "")
    if not _is_number(out) or topic_name_error(topic) is not None or record.sys_flag & TRANSACTION_MASK:
        raise NoTimedMessage(f"the record at log offset {record.log_offset} is no timed message")
    return TimerHead(
        int(out),
        topic,
        properties.get(UNIQ_KEY, ""),
        TIMER_DELETE in properties,
        properties.get(TIMER_ROLLS, "0") != "0",
        origin,
        record.store_ms,
    )


def read_timed(store: Store, queue: ConsumeQueue, queue_offset: int) -> TimedMessage:
    """Return a message, verified.

    Raises:
        NoTimedMessage: the record is none.
        ProtocolError: entry or record are damaged.
        StoreError: it cannot be read.
    """
    found = store.record_of(queue, queue_offset)
    if found is None:
        raise ProtocolError(f"no record of queue offset {queue_offset} where its entry says")
    record, data = found
    message = decode_message(data, 0, len(data), inflates=False)
    head = head_of(record, message.properties, message.prepared_offset - 1)
    queue_id = message.properties.get(REAL_QID, "0")
    if not _is_number(queue_id) or int(queue_id) > 0x7FFFFFFF:
        raise NoTimedMessage(f"{REAL_QID}={queue_id:.32} is no number of a queue")
    body = data[record.body_start : record.body_end]
    return TimedMessage(head, message, body, int(queue_id), record.log_offset, record.size)


def _is_number(text: str) -> bool:
    return text.isdecimal() and text.isascii() and len(text) <= 18
