"""Commit log records in a pull response, walked by their sizes, and their queue offsets.

    size(4) magic(4) … queueOffset(8)@20 …

Source: docs/internals/storage.md 2.
"""

from __future__ import annotations

import struct

from tandemq.load.wire.responses import LoadError

Buffer = bytes | bytearray | memoryview
_size_at = struct.Struct(">I").unpack_from
_long_at = struct.Struct(">q").unpack_from
_RECORD_BYTES_MIN = 91


def count_records(data: Buffer, position: int, end: int) -> int:
    """Return how many records fill `data[position:end]` exactly.

    Raises:
        LoadError: the sizes do not add up.
    """
    count = 0
    while position < end:
        size = _size_at(data, position)[0]
        if size < _RECORD_BYTES_MIN:
            break
        position += size
        count += 1
    if position != end:
        raise LoadError("a pull response whose record sizes do not add up")
    return count


def queue_offset(data: Buffer, position: int) -> int:
    """Return the queue offset of the record at `position`."""
    return int(_long_at(data, position + 20)[0])
