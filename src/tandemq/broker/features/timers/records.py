"""Records of the wheel topic as they are read back.

A copy of a timed message, delivered or stored again, has the log offset of the record that it was made from, plus 1, as
its prepared offset, which clients cannot set. So the log alone says which messages are over.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from tandemq.codec.record.entries import HOLE_SIZE_MIN, QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from tandemq.codec.record.record import Record, decode_message, unpack_head
from tandemq.engine import timer_heads
from tandemq.engine.python import TimerRow
from tandemq.errors import OffsetGone, ProtocolError
from tandemq.model.java_types import INT32_MAX
from tandemq.model.message import (
    REAL_QID,
    REAL_TOPIC,
    TIMER_DELETE,
    TIMER_OUT,
    TIMER_ROLLS,
    TRANSACTION_MASK,
    UNIQ_KEY,
    StoredMessage,
    decode_properties,
)
from tandemq.model.topic import TIMER_TOPIC, topic_name_error
from tandemq.storage.consume_queue import ConsumeQueue
from tandemq.storage.store import Store

GAP_BYTES_MAX = 32 << 10
"""Longest distance between two records that are read together."""
READ_BYTES_MAX = 1 << 20
_TOPIC = TIMER_TOPIC.encode()


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
    data: bytes
    """Its record."""
    queue_id: int
    """Queue that it is delivered to."""


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


class _Window(NamedTuple):
    """Consecutive messages whose records are read together."""

    queue_offset: int
    entries: bytes
    start: int
    end: int
    """Log offsets."""


def _windows(queue_offset: int, entries: bytes) -> Iterator[_Window]:
    index, count = 0, len(entries) // QUEUE_ENTRY_BYTES
    while index < count:
        stop, start, end = index, 0, 0
        for log_offset, size, _ in QUEUE_ENTRY.iter_unpack(entries[index * QUEUE_ENTRY_BYTES :]):
            is_next = 0 < size < HOLE_SIZE_MIN and 0 <= log_offset - end <= GAP_BYTES_MAX
            if stop > index and not (is_next and log_offset + size - start <= READ_BYTES_MAX):
                break
            start = start if stop > index else log_offset
            end = log_offset + size
            stop += 1
        yield _Window(queue_offset + index, entries[index * QUEUE_ENTRY_BYTES : stop * QUEUE_ENTRY_BYTES], start, end)
        index = stop


def _read(store: Store, window: _Window) -> bytes:
    if not store.log.start <= window.start < window.end <= window.start + store.config.segment_bytes:
        return b""
    with suppress(OffsetGone):
        return store.log.read(window.start, window.end - window.start)
    return b""


def read_rows(store: Store, queue_offset: int, entries: bytes) -> Iterator[TimerRow | None]:
    """Yield the fields for the index of consecutive messages; None for each that only `read_head` can read.

    Raises:
        StoreError: they cannot be read.
    """
    for window in _windows(queue_offset, entries):
        yield from timer_heads(_read(store, window), window.start, window.entries, window.queue_offset, _TOPIC)


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
    if not _is_number(queue_id) or int(queue_id) > INT32_MAX:
        raise NoTimedMessage(f"{REAL_QID}={queue_id:.32} is no number of a queue")
    return TimedMessage(head, message, data, int(queue_id))


def _is_number(text: str) -> bool:
    return text.isdecimal() and text.isascii() and len(text) <= 18
