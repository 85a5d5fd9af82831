"""Removed records: records whose content was deleted in place, so that the log around them stays valid.

    before   head · body        · topic · properties                     CRC32 property, if the record has one
    after    head · zero bytes  · topic · REMOVED=1                      a new CRC32 property

Size, position, queue, times and the address of the broker stay. Body, properties (keys, tags, unique key), the
producer's flag and its address are gone. Bit REMOVED of sysFlag tells such a record from others; the property says it
to people and is left out where it does not fit. Checksums are right, so that every reader of the format accepts the
record; RocketMQ ignores the bit.

Source: docs/guides/dataset.md, "Remove messages".
"""

from struct import Struct
from zlib import crc32

from tandemq.codec.record.record import CRC_NAME, CRC_PROPERTY_BYTES, crc_property, parse_record
from tandemq.errors import ProtocolError
from tandemq.model.message import SysFlag

REMOVED_PROPERTY = b"REMOVED\x011\x02"
_CRC_MASK = 0x7FFFFFFF
_KEPT_FLAGS = 0x3FFFFFFF & ~int(SysFlag.COMPRESSED | SysFlag.MULTI_TAGS | SysFlag.COMPRESSION_MASK)
_WORD = Struct(">I")
_SHORT = Struct(">H")
_CRC_AT, _FLAG_AT, _SYS_FLAG_AT, _BORN_HOST_AT = 8, 16, 36, 48


def removed_record(data: bytes) -> bytes:
    """Return the removed form of a record, of the same size; a removed record stays as it is.

    Raises:
        ProtocolError: the bytes are not a record.
    """
    record = parse_record(data, 0, len(data))
    if isinstance(record, str) or record.size != len(data):
        raise ProtocolError(f"these bytes are not one record: {record if isinstance(record, str) else record.size}")
    has_crc = data[-CRC_PROPERTY_BYTES : -CRC_PROPERTY_BYTES + len(CRC_NAME)] == CRC_NAME
    has_crc = has_crc and len(record.properties) >= CRC_PROPERTY_BYTES
    room = record.body_end - record.body_start + len(record.properties) - CRC_PROPERTY_BYTES * has_crc
    mark = REMOVED_PROPERTY if room >= len(REMOVED_PROPERTY) else b""
    body = bytes(room - len(mark))
    head = bytearray(data[: record.body_start])
    _WORD.pack_into(head, _CRC_AT, crc32(body) & _CRC_MASK if body else 0)
    _WORD.pack_into(head, _FLAG_AT, 0)
    _WORD.pack_into(head, _SYS_FLAG_AT, record.sys_flag & _KEPT_FLAGS | SysFlag.REMOVED)
    host_bytes = 20 if record.sys_flag & SysFlag.BORN_HOST_V6 else 8
    head[_BORN_HOST_AT : _BORN_HOST_AT + host_bytes] = bytes(host_bytes)
    _WORD.pack_into(head, record.body_start - 4, len(body))
    topic_end = len(data) - len(record.properties) - 2
    topic = data[record.body_end : topic_end]
    length = _SHORT.pack(len(mark) + CRC_PROPERTY_BYTES * has_crc)
    done = b"".join((head, body, topic, length, mark))
    if not has_crc:
        return done
    return done + crc_property(done)
