"""Fields of a commit log record in a pull response.

    size(4) magic(4) … physicalOffset(8)@28 sysFlag(4)@36 … bodyLen(4) body …

The body of a record with IPv4 hosts starts at 88; each IPv6 host adds 12. Source: docs/internals/storage.md 2.
"""

from __future__ import annotations

import struct

from tandemq.load.wire.records import Buffer

_size_at = struct.Struct(">I").unpack_from
_long_at = struct.Struct(">q").unpack_from
_BODY_AT = 88


def log_offset(data: Buffer, position: int) -> int:
    """Return the commit log offset of the record at `position`."""
    return int(_long_at(data, position + 28)[0])


def record_size(data: Buffer, position: int) -> int:
    """Return the size of the record at `position`."""
    return int(_size_at(data, position)[0])


def body_position(data: Buffer, position: int) -> int:
    """Return the position of the body of the record at `position`."""
    sys_flag = _size_at(data, position + 36)[0]
    return position + _BODY_AT + (12 if sys_flag & 0x10 else 0) + (12 if sys_flag & 0x20 else 0)
