"""Vectorized decoding of batches and encoding of records, for messages with the same layout.

The messages may differ in flags, unique keys and bodies, but all keys and all bodies must have one length.

    batch     size 4 · magic 4 · crc 4 · flag 4 · body length 4 · body · properties length 2 · properties     n times
    records   head 88 · body · topic length 1 · topic · properties length 2 · properties · CRC property 20    n times

Both are treated as tables of bytes with one row per message: constant columns are compared and written with one numpy
call each; only the two checksums are computed message by message. For all other batches `read_parts` returns None, and
`decode_batch` decodes them.

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
"""Messages with longer properties are decoded one by one."""
_PART = Struct(">i8xii")
_POWERS = (10 ** np.arange(10, dtype=np.uint64)).astype(np.uint32)
_CRC_MASK = np.uint32(0x7FFFFFFF)
_TEN = np.uint32(10)
_ZERO = np.uint32(48)


@dataclass(frozen=True, slots=True)
class Parts:
    """Messages of batches, one row of bytes each. Positions are relative to the row."""

    rows: Array
    body_end: int
    key_start: int
    key_end: int
    properties: bytes
    """Properties of the first message."""

    def __len__(self) -> int:
        """Number of messages."""
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
        """Return the messages `[first, stop)`."""
        return Parts(self.rows[first:stop], self.body_end, self.key_start, self.key_end, self.properties)

    def keys(self) -> bytes:
        """Return all unique keys, concatenated."""
        return self.rows[:, self.key_start : self.key_end].tobytes()


def part_bytes(body: bytes) -> int:
    """Return the length of each message in the body of a batch if they may have the same length; else 0."""
    if len(body) < PART_HEAD_BYTES + 2:
        return 0
    size = int.from_bytes(body[:4], "big", signed=True)
    return size if size > PART_HEAD_BYTES + 2 and not len(body) % size else 0


def read_parts(data: bytes) -> Parts | None:
    """Decode concatenated batch bodies; None if their messages differ in layout, or have no body or no unique key.

    Cost: a dozen numpy calls, and one comparison of all constant bytes.
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
    is_uniform = (
        (rows[:, :4] == first[:4]).all()
        and (rows[:, 16:PART_HEAD_BYTES] == first[16:PART_HEAD_BYTES]).all()
        and (rows[:, body_end:key_start] == first[body_end:key_start]).all()
        and (rows[:, key_end:] == first[key_end:]).all()
        and not ((keys == 2) | (keys > 127)).any()
    )
    return Parts(rows, body_end, key_start, key_end, properties) if is_uniform else None


def record_bytes(parts: Parts, middle: bytes, after: bytes) -> int:
    """Return the length of each record that `encode_parts` returns."""
    return HEAD_V4.size + parts.body_bytes + len(middle) + parts.key_bytes + len(after) + CRC_PROPERTY_BYTES


def encode_parts(
    parts: Parts, heads: bytes, counts: list[int], queue_offsets: Array, log_offset: int, middle: bytes, after: bytes
) -> bytes:
    """Encode contiguous records for `log_offset`, each closed by its CRC property.

    Args:
        heads: `record.HEAD_V4` of each batch; body CRC, flag and both offsets are filled in here.
        counts: number of `parts` in each batch.
        middle: bytes between body and unique key: topic with its length, length of the properties, properties.
        after: properties after the unique key.

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
    """Encode contiguous records for separate bodies of the same length.

    Args:
        bodies: one body per message.
        keys: the unique keys, all of one length, concatenated.
        head: `record.HEAD_V4` with the values that all records have in common.
        hosts: born host of each message, 8 bytes each.
        numbers: queue ids, queue offsets and born times (ms) of the messages.
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
    """Return `count` rows of a record whose body, key and checksums are still to be filled in."""
    closing = CRC_NAME + b"0123456789\x02"
    record = b"".join((head, bytes(body_bytes), middle, bytes(key_bytes), after, closing))
    table: Array = np.empty((count, len(record)), dtype=np.uint8)
    table[:] = np.frombuffer(record, dtype=np.uint8)
    return table


def _heads(table: Array) -> Array:
    """Return a writable view of the records' fixed fields."""
    heads: Array = np.ndarray((len(table),), HEAD, table.data, 0, (table.shape[1],))
    return heads


def _closed(table: Array, head: Array, queue_offsets: Sequence[int] | Array, log_offset: int) -> bytes:
    """Fill in the offsets and CRC properties, and return the records."""
    count, size = table.shape
    head["queue_offset"] = queue_offsets
    head["log_offset"] = np.arange(log_offset, log_offset + count * size, size)
    crcs = _checksums(table, 0, size - CRC_PROPERTY_BYTES)
    table[:, -11:-1] = crcs[:, None] // _POWERS % _TEN + _ZERO
    return table.tobytes()


def _checksums(table: Array, start: int, size: int) -> Array:
    """Return the CRC of `size` bytes of every row, as stated in records."""
    pieces = np.ndarray((len(table),), f"V{size}", table.data, start, (table.shape[1],)).tolist()
    return np.fromiter(map(crc32, pieces), np.uint32, len(pieces)) & _CRC_MASK
