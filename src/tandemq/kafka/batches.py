"""Record batches of Kafka (version 2), made of messages.

The key is the message's keys, separated by spaces; headers are the properties of applications, and `TAGS`. Batches are
not compressed. They cover the offsets up to the one that follows, so that a consumer passes those without a message.

Source: Kafka's documentation, "Record Batch"; docs/decisions/0024-kafka-read-front.md.
"""

import struct
from collections.abc import Sequence

import google_crc32c

from tandemq.kafka.wire import zigzag
from tandemq.model.message import KEYS, SYSTEM_PROPERTIES, TAGS, StoredMessage

_PREFIX = struct.Struct(">qiibI")
"""Base offset, length behind it, leader epoch, version, CRC-32C of what follows."""
_HEADER = struct.Struct(">hiqqqhii")
"""Attributes, last offset delta, base and maximum timestamp, producer id and epoch, sequence, number of records."""
_LENGTH_AFTER = _PREFIX.size - 12
_VERSION = 2
_NULL = zigzag(-1)
OVERHEAD_BYTES = _PREFIX.size + _HEADER.size
"""Size of a batch without records."""


def encode_batch(messages: Sequence[StoredMessage], start: int, following: int) -> bytes:
    """Return a batch with the messages of one queue.

    Args:
        messages: in ascending order of their offsets, all in [start, following); may be empty.
        start: offset that the consumer asked for.
        following: offset at which it continues.
    """
    base = messages[0].queue_offset if messages else start
    base_ms = messages[0].born_ms if messages else -1
    records = bytearray()
    for message in messages:
        record = _record(message, base, base_ms)
        records += zigzag(len(record)) + record
    last_ms = max((message.born_ms for message in messages), default=-1)
    header = _HEADER.pack(0, following - 1 - base, base_ms, last_ms, -1, -1, -1, len(messages))
    rest = header + records
    return _PREFIX.pack(base, _LENGTH_AFTER + len(rest), -1, _VERSION, google_crc32c.value(rest)) + rest


def _record(message: StoredMessage, base: int, base_ms: int) -> bytes:
    keys = message.properties.get(KEYS)
    headers = [(name, value) for name, value in message.properties.items() if _is_header(name)]
    parts = [
        b"\0",  # attributes
        zigzag(_wrapped(message.born_ms - base_ms)),
        zigzag(message.queue_offset - base),
        _NULL if keys is None else _sized(keys.encode()),
        _sized(message.body),
        zigzag(len(headers)),
    ]
    for name, value in headers:
        parts += (_sized(name.encode()), _sized(value.encode()))
    return b"".join(parts)


def _wrapped(value: int) -> int:
    """Return a difference as 64 bits: consumers add it so, and a producer may have set any time."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _is_header(name: str) -> bool:
    return name == TAGS or name not in SYSTEM_PROPERTIES


def _sized(value: bytes) -> bytes:
    return zigzag(len(value)) + value


def record_bytes(message: StoredMessage) -> int:
    """Return about how many bytes a message takes in a batch: never less than it does."""
    return len(message.body) + sum(3 * (len(name) + len(value)) + 10 for name, value in message.properties.items()) + 60
