"""Rows of keys, and entries of the key index."""

from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

from tandemq.codec.record.entries import INDEX_ENTRY
from tandemq.codec.record.record import record_keys
from tandemq.model.java_hash import cached_java_hash, java_hash

if TYPE_CHECKING:
    import numpy as np

KEY_ROW = Struct("<iqq")
"""A key of a message for the index: hash of topic#key, log offset, store time (ms)."""
KEY_ROW_BYTES = KEY_ROW.size
_MASK = 0xFFFFFFFF
_INT32_MAX = 0x7FFFFFFF


def key_hash(topic: str, key: bytes) -> int:
    """Return |hashCode(topic#key)|; 0 for the minimum of an int32, which has no absolute value."""
    if key.isascii():
        value = cached_java_hash(f"{topic}#") & _MASK
        for unit in key:
            value = 31 * value + unit & _MASK
    else:
        value = java_hash(f"{topic}#{key.decode('utf-8', 'replace')}") & _MASK
    value = value - 0x100000000 if value & 0x80000000 else value
    return 0 if value == -(1 << 31) else abs(value)


def key_rows(topic: str, properties: bytes, log_offset: int, store_ms: int) -> bytes:
    """Return the rows (`KEY_ROW`) of a message's keys: its unique key, then each word of KEYS."""
    return b"".join([KEY_ROW.pack(key_hash(topic, key), log_offset, store_ms) for key in record_keys(properties)])


class LinkedKeys(NamedTuple):
    """Packed index entries, and the number of entries that are the first of their slot."""

    entries: bytes
    fresh: int


def link_keys(rows: bytes, table: "np.ndarray[Any, np.dtype[np.int32]]", begin_ms: int, number: int) -> LinkedKeys:
    """Return the index entries of keys, and enter them in the slots.

    Args:
        rows: packed keys (`KEY_ROW`), in log order.
        table: number of the newest entry of each slot, 0 for none.
        begin_ms: begin time of the index file.
        number: number of the first entry.
    """
    entries: list[bytes] = []
    fresh = 0
    for hashed, log_offset, store_ms in KEY_ROW.iter_unpack(rows):
        slot = hashed % len(table)
        previous = int(table[slot])
        fresh += previous == 0
        seconds = min(max((store_ms - begin_ms) // 1000, 0), _INT32_MAX)
        entries.append(INDEX_ENTRY.pack(hashed, log_offset, seconds, previous))
        table[slot] = number
        number += 1
    return LinkedKeys(b"".join(entries), fresh)
