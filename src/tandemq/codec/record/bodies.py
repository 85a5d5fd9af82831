"""Records without their bodies, for readers that need the other fields only.

    stored    size · magic · CRC of the body · … · length · body · topic · properties, the last one a CRC of the record
    returned  size · magic · 0               · … · 0             · topic · properties, with a new CRC

Source: docs/internals/storage.md, "record".
"""

from struct import Struct

from tandemq.codec.record.record import (
    CRC_NAME,
    CRC_PROPERTY_BYTES,
    RECORD_BYTES_MIN,
    body_offset,
    crc_property,
    record_fault,
)
from tandemq.model.message import SysFlag

_NUMBER, _SET_NUMBER = Struct(">i").unpack_from, Struct(">i").pack_into
_CRC_AT = 8
_COMPRESSED_AT = 39
"""Last byte of the flags."""
_COMPRESSED = int(SysFlag.COMPRESSED)
_NAME_END = len(CRC_NAME) - CRC_PROPERTY_BYTES


def without_bodies(records: bytes) -> bytes:
    """Return records, each with an empty body that is not compressed; one that is corrupt stays as it is."""
    pieces: list[bytes | bytearray] = []
    at = 0
    while at < len(records):
        size = _NUMBER(records, at)[0]
        if not RECORD_BYTES_MIN <= size <= len(records) - at:
            pieces.append(records[at:])
            break
        start, stop = at + body_offset(records, at), at + size
        end = start + _NUMBER(records, start - 4)[0]
        if record_fault(records, at, size, start, end, _NUMBER(records, at + _CRC_AT)[0]) is not None:
            pieces.append(records[at:stop])
            at = stop
            continue
        left = bytearray(records[at:start])
        _SET_NUMBER(left, 0, size - (end - start))
        _SET_NUMBER(left, _CRC_AT, 0)
        left[_COMPRESSED_AT] &= ~_COMPRESSED
        _SET_NUMBER(left, len(left) - 4, 0)
        left += records[end:stop]
        if left[-CRC_PROPERTY_BYTES:_NAME_END] == CRC_NAME:
            del left[-CRC_PROPERTY_BYTES:]
            left += crc_property(left)
        pieces.append(left)
        at = stop
    return b"".join(pieces)
