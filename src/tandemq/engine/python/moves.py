"""Records stored again in other queues."""

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
    """Differences between a moved record and its original, besides topic and queue."""

    drop: bytes = b""
    """Name of a property that it lacks."""
    pair: bytes = b""
    """Encoded property without which a timed message is left to the caller: the time that it is due at."""
    precision_ms: int = 0
    """Of timed messages, which get properties that say when they were taken, rounded down, and delivered, and name the
    record that they are a copy of; 0: none are."""


class MovedRecords(NamedTuple):
    """Records for the log, whose entries are staged in their queues."""

    messages: int
    """Number of moved records; the caller handles the next record."""
    data: bytes
    queues: list[Any]
    """Queues that had no staged entry before."""
    keys: bytes
    """Their keys, packed (`KEY_ROW`)."""


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
    """Return the records of a queue, verified, for the topics and queues that their properties name.

    REAL_TOPIC and REAL_QID name them. Stops at the first record that is not as a broker writes it, that has no such
    queue, or that `data` or the room does not suffice for.

    Args:
        data: bytes of the log.
        base: log offset of `data[0]`.
        entries: packed, of consecutive messages.
        queue_offset: of the first.
        topic: of the queue that they are in.
        queue_id: of the same.
        rule: how the copies differ.
        log_offset: of the first copy.
        room: bytes for the copies.
        store_ms: calendar time of the copies.
        queue_for: returns the queue of a topic; None if there is no such topic.
    """
    return MovedRecords(0, b"", [], b"")


class RecordChanges(NamedTuple):
    """Differences between a record and its copy, besides its place in queue and log, and the store time."""

    sys_flag: int
    """The bits of the hosts' sizes do not count."""
    drop: tuple[bytes, ...] = ()
    """Names of properties that the copy lacks."""
    defaults: tuple[tuple[bytes, bytes], ...] = ()
    """Names and values of properties that the copy gets if the record has none of that name, at most 64."""
    add: bytes = b""
    """Encoded properties behind those; their names must be among the dropped ones if the record may have them."""
    store_host: bytes | None = None
    """In the form of records; None: that of the record."""
    reconsume_times: int | None = None
    """None: those of the record."""
    prepared_offset: int = 0


class CopiedRecord(NamedTuple):
    """A record for the log."""

    data: bytes
    properties: bytes
    """Without that of its CRC."""
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
    """Return a copy of a record, whose checksums are verified; its body is not decompressed.

    Args:
        data: the record.
        changes: how the copy differs.
        topic: of the copy.
        queue_id: of the same.
        queue_offset: of the same.
        store_ms: calendar time of the copy.
        reserve_bytes: takes the size of the copy, and returns its log offset.

    Raises:
        ProtocolError: it is no record, or damaged.
        RecordTooLarge: the copy's properties are too large, or `reserve_bytes` has no room.
    """
    record = parse_record(data, 0, len(data))
    if isinstance(record, str):
        raise ProtocolError(f"unreadable record: {record}")
    damage = record_fault(data, 0, record.size, record.body_start, record.body_end, record.body_crc)
    if damage is not None:
        raise ProtocolError(damage)
    head = unpack_head(data, 0)
    had = decode_properties(record.properties.decode("utf-8", "replace"))
    dropped = {RECORD_CRC, *[name.decode() for name in changes.drop]}
    properties = encode_properties({name: value for name, value in had.items() if name not in dropped}).encode()
    for name, value in changes.defaults:
        if name.decode() not in had:
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
