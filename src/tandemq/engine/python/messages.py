"""Messages of pull responses, and properties of records."""

from typing import NamedTuple

from tandemq.codec.record.record import parse_record, read_message
from tandemq.errors import ProtocolError
from tandemq.model.message import StoredMessage, SysFlag, decode_properties

_COMPRESSED = int(SysFlag.COMPRESSED)


class StoredMessages(NamedTuple):
    """Messages of records, and the end of the last of them."""

    messages: list[StoredMessage]
    end: int


def stored_messages(data: bytes, start: int) -> StoredMessages:
    """Return the messages of records from `start` on, up to the first that is damaged, incomplete or compressed."""
    messages: list[StoredMessage] = []
    while 0 <= start < len(data):
        try:
            message = read_message(data, start, len(data), inflates=False)
        except ProtocolError:
            break
        if message.sys_flag & _COMPRESSED:
            break
        messages.append(message)
        start += message.size
    return StoredMessages(messages, start)


class RecordProperties(NamedTuple):
    """Properties of a record, and where it ends."""

    queue_offset: int
    log_offset: int
    end: int
    """Position behind the record."""
    size: int
    """Bytes of the properties."""
    properties: dict[str, str]


def record_properties(data: bytes) -> list[RecordProperties]:
    """Return the properties of records that follow each other, up to the first damaged one; CRCs are not verified."""
    found: list[RecordProperties] = []
    start = 0
    while start < len(data):
        record = parse_record(data, start, len(data))
        if isinstance(record, str):
            break
        start += record.size
        found.append(
            RecordProperties(
                record.queue_offset,
                record.log_offset,
                start,
                len(record.properties),
                decode_properties(record.properties.decode("utf-8", "replace")),
            )
        )
    return found
