"""Records that are stored again in other queues: delivered delayed and timed messages, and changed copies."""

from collections.abc import Callable
from typing import Any, NamedTuple

from tandemq.codec.record.record import (
    CRC_PROPERTY_BYTES,
    PROPERTIES_BYTES_MAX,
    encode_record,
    encoded_bytes,
    parse_record,
    record_fault,
    unpack_head,
)
from tandemq.engine.python.queue_tail import QueueTail
from tandemq.errors import ProtocolError, RecordTooLarge
from tandemq.model.message import RECORD_CRC, SysFlag, decode_properties, encode_properties

_V6_MASK = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)


class MoveRule(NamedTuple):
    """Differences between a moved record and its original, besides topic, queue and store time."""

    pair: bytes = b""
    """Encoded property with the delivery time of timed messages; a timed message without it is not moved."""
    precision_ms: int = 0
    """Precision of timed messages; 0: the messages are not timed. Timed messages get properties with the time of
    storing, rounded down to it, and the time of delivery; `prepared_offset` states the original record."""


class MovedRecords(NamedTuple):
    """Encoded records for the log, whose entries are staged in their queues."""

    messages: int
    """Number of moved records; the caller handles the record after them."""
    data: bytes
    queues: list[Any]
    """Queues that had no staged entry before."""
    keys: bytes
    """Keys of the records, packed (`KEY_ROW`)."""


def move_records(
    data: bytes,
    base: int,
    entries: bytes,
    queue_offset: int,
    topic: bytes,
    queue_id: int,
    rule: MoveRule,
    log_offset: int,
    room: int,
    store_ms: int,
    queue_for: Callable[[bytes, int], QueueTail | None],
) -> MovedRecords:
    """Verify records of a queue, and return copies of them for the queues that REAL_TOPIC and REAL_QID name.

    Stops at the first record that a broker would not have written so, that names no existing queue, that is not within
    `data`, or whose copy does not fit into `room`. This engine moves none: the caller handles all records.

    Args:
        data: bytes of the log with the records.
        base: log offset of `data[0]`.
        entries: packed queue entries of consecutive messages.
        queue_offset: queue offset of the first message.
        topic: topic of the messages' queue.
        queue_id: id of the messages' queue.
        rule: differences between originals and copies.
        log_offset: log offset of the first copy.
        room: maximum number of bytes of the copies.
        store_ms: store time of the copies.
        queue_for: returns the queue of a topic; None if there is no such topic.
    """
    return MovedRecords(0, b"", [], b"")


class RecordChanges(NamedTuple):
    """Differences between a record and its copy, besides queue, offsets and store time."""

    sys_flag: int
    """Flags of the copy; the IPv6 bits are taken from its hosts."""
    drop: tuple[bytes, ...] = ()
    """Names of properties that are removed."""
    defaults: tuple[tuple[bytes, bytes], ...] = ()
    """Names and values of properties that are added if the record has none of that name, at most 64."""
    add: bytes = b""
    """Encoded properties that are added at the end; `drop` must have each of their names that the record may have."""
    store_host: bytes | None = None
    """As records contain it, 8 or 20 bytes; None: the record's."""
    reconsume_times: int | None = None
    """None: the record's."""
    prepared_offset: int = 0


class CopiedRecord(NamedTuple):
    """An encoded record for the log."""

    data: bytes
    properties: bytes
    """Encoded properties, without that of the CRC."""
    log_offset: int


def copy_record(
    data: bytes,
    changes: RecordChanges,
    topic: bytes,
    queue_id: int,
    queue_offset: int,
    store_ms: int,
    reserve_bytes: Callable[[int], int],
) -> CopiedRecord:
    """Verify the checksums of a record, and return a changed copy; its body is not decompressed.

    Args:
        data: bytes of the record.
        changes: differences between the record and its copy.
        topic: topic of the copy.
        queue_id: queue id of the copy.
        queue_offset: queue offset of the copy.
        store_ms: store time of the copy.
        reserve_bytes: called with the size of the copy, returns its log offset.

    Raises:
        ProtocolError: the bytes are not a record, or it is damaged.
        RecordTooLarge: the copy's properties are too large, or `reserve_bytes` has no room.
    """
    record = parse_record(data, 0, len(data))
    if isinstance(record, str):
        raise ProtocolError(f"unreadable record: {record}")
    damage = record_fault(data, 0, record.size, record.body_start, record.body_end, record.body_crc)
    if damage is not None:
        raise ProtocolError(damage)
    head = unpack_head(data, 0)
    original = decode_properties(record.properties.decode("utf-8", "replace"))
    removed = {RECORD_CRC, *[name.decode() for name in changes.drop]}
    properties = encode_properties({name: value for name, value in original.items() if name not in removed}).encode()
    for name, value in changes.defaults:
        if name.decode() not in original:
            properties += b"%b\x01%b\x02" % (name, value)
    properties += changes.add
    if len(properties) + CRC_PROPERTY_BYTES > PROPERTIES_BYTES_MAX:
        raise RecordTooLarge(
            f"the properties take {len(properties) + CRC_PROPERTY_BYTES} bytes, at most {PROPERTIES_BYTES_MAX} fit"
        )
    body, store_host = data[record.body_start : record.body_end], changes.store_host or head.store_host
    log_offset = reserve_bytes(encoded_bytes(topic, body, properties, head.born_host, store_host))
    copied = encode_record(
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        log_offset=log_offset,
        body=body,
        properties=properties,
        flag=head.flag,
        sys_flag=changes.sys_flag & ~_V6_MASK,
        born_ms=head.born_ms,
        born_host=head.born_host,
        store_ms=store_ms,
        store_host=store_host,
        reconsume_times=head.reconsume_times if changes.reconsume_times is None else changes.reconsume_times,
        prepared_offset=changes.prepared_offset,
    )
    return CopiedRecord(copied, properties, log_offset)
