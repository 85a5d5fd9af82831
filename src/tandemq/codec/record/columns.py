"""Messages of batches that differ in nothing but flags, bodies of one length and unique keys: read and laid out as
columns, a thousand at a time.

    batch     size 4 · magic 4 · crc 4 · flag 4 · body length 4 · body · properties length 2 · properties     n times
    records   head 88 · body · topic length 1 · topic · properties length 2 · properties · CRC property 20    n times

Both are tables of bytes with one row per message, so that what all rows share is compared and written with one call
each; only the two checksums are computed message by message. Whatever is not like that takes the way of
`decode_batch`: `read_parts` gives None.

Source: docs/internals/storage.md, "record"; docs/reference/requests.md, "sending".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

import numpy as np
from isal.isal_zlib import crc32

from tandemq.codec.record.layout import UNIQUE_NAME, unique_start
from tandemq.codec.record.record import CRC_NAME, CRC_PROPERTY_BYTES, HEAD_V4
from tandemq.codec.record.record_run import HEAD

Array = np.ndarray[Any, np.dtype[Any]]
PART_HEAD_BYTES = 20
PROPERTIES_BYTES_MAX = 2048
"""Longer properties are read message by message."""
_PART = Struct(">i8xii")
_POWERS = (10 ** np.arange(10, dtype=np.uint64)).astype(np.uint32)
_CRC_MASK = np.uint32(0x7FFFFFFF)
_TEN = np.uint32(10)
_ZERO = np.uint32(48)


@dataclass(frozen=True, slots=True)
class Parts:
    """Messages of batches, a row of bytes each. Positions are those within a row."""

    rows: Array
    body_end: int
    key_start: int
    key_end: int
    properties: bytes
    """Those of the first message."""

    def __len__(self) -> int:
        """How many messages."""
        return len(self.rows)

    @property
    def body_bytes(self) -> int:
        """Length of each body."""
        return self.body_end - PART_HEAD_BYTES

    @property
    def key_bytes(self) -> int:
        """Length of each unique key."""
        return self.key_end - self.key_start

    def part(self, first: int, stop: int) -> "Parts":
        """Some of the messages, in a row."""
        return Parts(self.rows[first:stop], self.body_end, self.key_start, self.key_end, self.properties)

    def keys(self) -> bytes:
        """All unique keys, end to end."""
        return self.rows[:, self.key_start : self.key_end].tobytes()


def part_bytes(body: bytes) -> int:
    """Length of each message of a batch body if all have the same; 0 if they cannot have."""
    if len(body) < PART_HEAD_BYTES + 2:
        return 0
    size = int.from_bytes(body[:4], "big", signed=True)
    return size if size > PART_HEAD_BYTES + 2 and not len(body) % size else 0


def read_parts(data: bytes) -> Parts | None:
    """Batch bodies laid end to end as columns; None if their messages are not alike, or have no body or unique key.

    Cost: a dozen numpy calls, and one comparison of all bytes that are to be the same.
    """
    size = part_bytes(data)
    if not size:
        return None
    _, _, body_bytes = _PART.unpack_from(data, 0)
    body_end = PART_HEAD_BYTES + body_bytes
    if not 0 < body_bytes <= size - PART_HEAD_BYTES - 2 or size - body_end - 2 > PROPERTIES_BYTES_MAX:
        return None
    properties = data[body_end + 2 : size]
    found = unique_start(properties)
    if found < 0 or int.from_bytes(data[body_end : body_end + 2]) != len(properties):
        return None
    key_start = body_end + 2 + found + len(UNIQUE_NAME)
    key_end = data.find(b"\x02", key_start, size)
    if key_end <= key_start:
        return None
    rows: Array = np.frombuffer(data, dtype=np.uint8).reshape(-1, size)
    first = rows[0]
    keys = rows[:, key_start:key_end]
    is_alike = (
        (rows[:, :4] == first[:4]).all()
        and (rows[:, 16:PART_HEAD_BYTES] == first[16:PART_HEAD_BYTES]).all()
        and (rows[:, body_end:key_start] == first[body_end:key_start]).all()
        and (rows[:, key_end:] == first[key_end:]).all()
        and not ((keys == 2) | (keys > 127)).any()
    )
    return Parts(rows, body_end, key_start, key_end, properties) if is_alike else None


def record_bytes(parts: Parts, middle: bytes, after: bytes) -> int:
    """Length of each record `encode_parts` makes."""
    return HEAD_V4.size + parts.body_bytes + len(middle) + parts.key_bytes + len(after) + CRC_PROPERTY_BYTES


def encode_parts(
    parts: Parts, heads: bytes, counts: list[int], queue_offsets: Array, log_offset: int, middle: bytes, after: bytes
) -> bytes:
    """Records that lie one behind the other from `log_offset` on, each closed by its CRC property.

    Args:
        heads: `record.HEAD_V4` of each batch; body CRC, flag and both offsets are filled in here.
        counts: how many of `parts` belong to each batch.
        middle: what lies between body and unique key: topic with its length, length of properties, properties.
        after: the properties behind the unique key.
    Cost: some thirty numpy calls; two checksums and two small objects per message.
    """
    rows, body_end, count = parts.rows, HEAD_V4.size + parts.body_bytes, len(parts)
    table = _table(heads[: HEAD_V4.size], parts.body_bytes, middle, parts.key_bytes, after, count)
    table[:, : HEAD_V4.size] = np.repeat(_byte_rows(heads, len(counts)), counts, axis=0)
    table[:, 16:20] = rows[:, 12:16]  # the flag
    table[:, HEAD_V4.size : body_end] = rows[:, PART_HEAD_BYTES : parts.body_end]
    start = body_end + len(middle)
    table[:, start : start + parts.key_bytes] = rows[:, parts.key_start : parts.key_end]
    head = _heads(table)
    head["crc"] = _checksums(rows, PART_HEAD_BYTES, parts.body_bytes)
    return _closed(table, head, queue_offsets, log_offset)


def encode_bodies(
    bodies: Sequence[bytes],
    keys: bytes,
    head: bytes,
    hosts: bytes,
    numbers: tuple[Sequence[int], ...],
    log_offset: int,
    middle: bytes,
    after: bytes,
) -> bytes:
    """The same for bodies of one length that lie in memory one by one.

    Args:
        bodies: of one message each.
        keys: their unique keys, all of one length, end to end.
        head: `record.HEAD_V4` with what all have in common.
        hosts: where each was born, 8 bytes each.
        numbers: queue id, queue offset and born time (ms) of each.
        log_offset, middle, after: see `encode_parts`.
    Cost: some twenty numpy calls; two checksums and one small object per message.
    """
    queue_ids, queue_offsets, born_ms = numbers
    count, body_bytes, key_bytes = len(bodies), len(bodies[0]), len(keys) // len(bodies)
    table = _table(head, body_bytes, middle, key_bytes, after, count)
    body_end = HEAD_V4.size + body_bytes
    table[:, HEAD_V4.size : body_end] = _byte_rows(b"".join(bodies), count)
    start = body_end + len(middle)
    table[:, start : start + key_bytes] = _byte_rows(keys, count)
    found = _heads(table)
    found["queue_id"] = queue_ids
    found["born_ms"] = born_ms
    found["born_host"] = np.frombuffer(hosts, "V8")
    found["crc"] = np.fromiter(map(crc32, bodies), np.uint32, count) & _CRC_MASK
    return _closed(table, found, queue_offsets, log_offset)


def _byte_rows(data: bytes, count: int) -> Array:
    return np.frombuffer(data, dtype=np.uint8).reshape(count, -1)


def _table(head: bytes, body_bytes: int, middle: bytes, key_bytes: int, after: bytes, count: int) -> Array:
    """`count` times a record in which body, key and checksums are left out."""
    closing = CRC_NAME + b"0123456789\x02"
    record = b"".join((head, bytes(body_bytes), middle, bytes(key_bytes), after, closing))
    table: Array = np.empty((count, len(record)), dtype=np.uint8)
    table[:] = np.frombuffer(record, dtype=np.uint8)
    return table


def _heads(table: Array) -> Array:
    """The records' heads, to be read and written by name."""
    heads: Array = np.ndarray((len(table),), HEAD, table.data, 0, (table.shape[1],))
    return heads


def _closed(table: Array, head: Array, queue_offsets: Sequence[int] | Array, log_offset: int) -> bytes:
    """The records, with offsets in their heads, and their CRC properties."""
    count, size = table.shape
    head["queue_offset"] = queue_offsets
    head["log_offset"] = np.arange(log_offset, log_offset + count * size, size)
    crcs = _checksums(table, 0, size - CRC_PROPERTY_BYTES)
    table[:, -11:-1] = crcs[:, None] // _POWERS % _TEN + _ZERO
    return table.tobytes()


def _checksums(table: Array, start: int, size: int) -> Array:
    """The CRC, as records state it, of the same `size` bytes of every row."""
    pieces = np.ndarray((len(table),), f"V{size}", table.data, start, (table.shape[1],)).tolist()
    return np.fromiter(map(crc32, pieces), np.uint32, len(pieces)) & _CRC_MASK
