"""Message records: the same bytes in the commit log, in pull responses and in the replication stream.

    size 4 · magic 4 · body CRC 4 · queue id 4 · flag 4 · queue offset 8 · log offset 8 · sys flag 4
    born time 8 · born host 8 or 20 · store time 8 · store host 8 or 20 · reconsume times 4 · prepared offset 8
    body length 4 · body · topic length 1 (magic V2: 2) · topic · properties length 2 · properties

A host is an address of 4 (or 16) bytes and a port of 4 bytes. Records encoded here end with the property `__CRC32#`,
20 bytes, whose value is the CRC of the preceding bytes of the record: ten digits, least significant first.

Source: docs/internals/storage.md, "record"; RocketMQ MessageExtEncoder, MessageDecoder.
"""

import zlib
from operator import eq
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from isal import isal_zlib
from isal.isal_zlib import crc32

from tandemq.errors import ProtocolError, RecordTooLarge
from tandemq.model.java_hash import cached_java_hash
from tandemq.model.message import StoredMessage, SysFlag, decode_properties

Buffer = bytes | bytearray | memoryview

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
RECORD_BYTES_MIN = 91
CRC_PROPERTY_BYTES = 20
PROPERTIES_BYTES_MAX = 32767
TOPIC_V1_BYTES_MAX = 127
INFLATED_BYTES_MAX = 64 << 20
CRC_NAME = b"__CRC32#\x01"
_ISAL_LEVELS = 6
"""Highest level of `deflate` with ISA-L."""
_CRC_MASK = 0x7FFFFFFF
_COMPRESSED = int(SysFlag.COMPRESSED)
_V6_MASK = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6

HEAD_V4 = Struct(">iIIiiqqiq8sq8siqi")
"""Fixed fields of a record with IPv4 hosts: 88 bytes, up to and including the body length."""


_HEADS = {
    0: HEAD_V4,
    int(SysFlag.BORN_HOST_V6): Struct(">iIIiiqqiq20sq8siqi"),
    int(SysFlag.STORE_HOST_V6): Struct(">iIIiiqqiq8sq20siqi"),
    int(_V6_MASK): Struct(">iIIiiqqiq20sq20siqi"),
}
_FIXED_BYTES = HEAD_V4.size - 16 + 1 + 2 + CRC_PROPERTY_BYTES
"""Of a record with magic V1, without hosts, body, topic and properties."""
HEAD_BYTES_MAX = max(head.size for head in _HEADS.values())
_BEHIND_BODY_MAX = 2 + 0xFFFF + 2 + PROPERTIES_BYTES_MAX
"""Maximum size of topic and properties of a record, with their lengths."""
_SIZE_MAGIC = Struct(">iI")
_SYS_FLAG = Struct(">i")
_SHORT = Struct(">H")
_PORT = Struct(">i")


class Record(NamedTuple):
    """Fields of a record that storage and dispatch need. `properties` are the raw bytes."""

    size: int
    queue_id: int
    queue_offset: int
    log_offset: int
    sys_flag: int
    born_ms: int
    store_ms: int
    topic: bytes
    properties: bytes
    body_start: int
    body_end: int
    body_crc: int


class RecordHead(NamedTuple):
    """Fixed fields of a record, in their order; hosts as 8 or 20 bytes."""

    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    log_offset: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    store_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    body_length: int


class StatedLengths(NamedTuple):
    """Number of bytes of a record up to its body's end, and of the whole record."""

    body_end: int
    size: int


_new_record = tuple.__new__
"""Creates a NamedTuple without the Python-level constructor, at a third of the cost."""


def encoded_bytes(topic: bytes, body: bytes, properties: bytes, born_host: bytes, store_host: bytes) -> int:
    """Return the size of the record that `encode_record` makes of the same values."""
    fixed = _FIXED_BYTES + (len(topic) > TOPIC_V1_BYTES_MAX)
    return fixed + len(born_host) + len(store_host) + len(body) + len(topic) + len(properties)


def encode_record(
    *,
    topic: bytes,
    queue_id: int,
    queue_offset: int,
    log_offset: int,
    body: bytes,
    properties: bytes,
    flag: int,
    sys_flag: int,
    born_ms: int,
    born_host: bytes,
    store_ms: int,
    store_host: bytes,
    reconsume_times: int = 0,
    prepared_offset: int = 0,
) -> bytes:
    """Encode one record, closed by its CRC property.

    Args:
        properties: encoded pairs that each end with 0x02, without a CRC property.
        born_host, store_host: 8 or 20 bytes, from `encode_host`; the matching bits of `sys_flag` are set here.

    Raises:
        RecordTooLarge: topic or properties exceed the limits of the format.
    """
    properties_length = len(properties) + CRC_PROPERTY_BYTES
    if properties_length > PROPERTIES_BYTES_MAX:
        raise RecordTooLarge(f"the properties take {properties_length} bytes, at most {PROPERTIES_BYTES_MAX} fit")
    if len(born_host) != 8 or len(store_host) != 8:
        sys_flag |= _host_flags(born_host, store_host)
    if len(topic) <= TOPIC_V1_BYTES_MAX:
        magic, topic_length = MAGIC_V1, len(topic).to_bytes(1)
    else:
        magic, topic_length = MAGIC_V2, _SHORT.pack(len(topic))
    head = _HEADS[sys_flag & 0x30]
    size = head.size + len(body) + len(topic_length) + len(topic) + 2 + properties_length
    raw = b"".join(
        (
            head.pack(
                size,
                magic,
                crc32(body) & _CRC_MASK,
                queue_id,
                flag,
                queue_offset,
                log_offset,
                sys_flag,
                born_ms,
                born_host,
                store_ms,
                store_host,
                reconsume_times,
                prepared_offset,
                len(body),
            ),
            body,
            topic_length,
            topic,
            _SHORT.pack(properties_length),
            properties,
        )
    )
    return raw + crc_property(raw)


def _host_flags(born_host: bytes, store_host: bytes) -> int:
    return (SysFlag.BORN_HOST_V6 if len(born_host) == 20 else 0) | (
        SysFlag.STORE_HOST_V6 if len(store_host) == 20 else 0
    )


def encode_host(address: bytes, port: int) -> bytes:
    """Encode a packed IP address (4 or 16 bytes) and a port as a record's host."""
    return address + _PORT.pack(port)


def decode_host(host: bytes) -> str:
    """Return a record's host, 8 or 20 bytes, as "ip:port"."""
    port = _PORT.unpack(host[-4:])[0]
    if len(host) == 8:
        return f"{host[0]}.{host[1]}.{host[2]}.{host[3]}:{port}"
    words = [f"{host[i] << 8 | host[i + 1]:x}" for i in range(0, 16, 2)]
    return f"[{':'.join(words)}]:{port}"


def message_id(store_host: bytes, log_offset: int) -> str:
    """Return the offset message id: store host and log offset in upper-case hex, 32 or 56 characters."""
    return (store_host + log_offset.to_bytes(8, signed=True)).hex().upper()


def parse_message_id(text: str) -> tuple[str, int]:
    """Return ("ip:port", log offset) of an offset message id.

    Raises:
        ProtocolError: malformed.
    """
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) not in (16, 28):
        raise ProtocolError(f"{text[:64]!r} is not an offset message id: 32 or 56 hexadecimal digits are expected")
    return decode_host(raw[:-8]), int.from_bytes(raw[-8:], signed=True)


def record_fault(data: Buffer, start: int, size: int, body_start: int, body_end: int, body_crc: int) -> str | None:
    """Return what is wrong with the checksum of a parsed record, None if it is right.

    Checks the CRC of the record if it has one, else the CRC of the body.
    Cost: one CRC over the record or the body.
    """
    view = memoryview(data)
    stop = start + size
    if data[stop - CRC_PROPERTY_BYTES : stop - 11] == CRC_NAME:
        digits = bytes(data[stop - 11 : stop - 1])
        if digits != (b"%010d" % (crc32(view[start : stop - CRC_PROPERTY_BYTES]) & _CRC_MASK))[::-1]:
            return "the record's CRC does not match its bytes"
        return None if data[stop - 1] == 2 else "the record's last byte is not the end of a property"
    if body_end > body_start and crc32(view[body_start:body_end]) & _CRC_MASK != body_crc:
        return "the body's CRC does not match its bytes"
    if _resembles_crc_name(bytes(data[stop - CRC_PROPERTY_BYTES : stop - 11])):
        return "the name of the record's CRC property is damaged"
    if data[stop - 1] == 0 and _has_properties(data, start, stop, body_end):
        return "the record's properties end in a zero byte: its end was never written"
    return None


def _has_properties(data: Buffer, start: int, stop: int, body_end: int) -> bool:
    """Whether the parsed record `[start, stop)` has properties; else it ends with their length, two zero bytes."""
    _, magic = peek(data, start)
    if magic == MAGIC_V1:
        return stop > body_end + 1 + data[body_end] + 2
    return stop > body_end + 2 + (data[body_end] << 8 | data[body_end + 1]) + 2


def _resembles_crc_name(name: bytes) -> bool:
    """Whether the bytes differ from the CRC property's name in at most two places; no other name comes that close."""
    return len(name) == len(CRC_NAME) and sum(map(eq, name, CRC_NAME)) >= len(CRC_NAME) - 2


def parse_record(data: Buffer, start: int, end: int) -> Record | str:
    """Parse the record at `start`, which must end at or before `end`.

    Returns the record, or a text that says why the bytes are not a record. Checks the structure, not the checksums.
    """
    if end - start < RECORD_BYTES_MIN:
        return "fewer bytes than a record has"
    (sys_flag,) = _SYS_FLAG.unpack_from(data, start + 36)
    head = _HEADS[sys_flag & 0x30]
    if end - start < head.size + 3:
        return "fewer bytes than a record has"
    (
        size,
        magic,
        body_crc,
        queue_id,
        _flag,
        queue_offset,
        log_offset,
        _sys,
        born_ms,
        _born,
        store_ms,
        _host,
        _reconsume,
        _prepared,
        body_length,
    ) = head.unpack_from(data, start)
    body_start = start + head.size
    body_end = body_start + body_length
    if magic not in (MAGIC_V1, MAGIC_V2):
        return f"magic {magic:#x} is not a record's"
    if size > end - start or body_length < 0 or body_end + 3 > start + size:
        return f"size {size} or body length {body_length} does not fit"
    if magic == MAGIC_V1:
        topic_start = body_end + 1
        topic_end = topic_start + data[body_end]
        if data[body_end] > TOPIC_V1_BYTES_MAX:
            return "the topic's length is negative"
    else:
        topic_start = body_end + 2
        topic_end = topic_start + (data[body_end] << 8 | data[body_end + 1])
    if topic_end + 2 > start + size:
        return "the topic does not fit"
    properties_end = topic_end + 2 + (data[topic_end] << 8 | data[topic_end + 1])
    if properties_end - topic_end - 2 > PROPERTIES_BYTES_MAX:
        return "the length of the properties is negative"
    if properties_end != start + size:
        return f"size {size} differs from the sum of the parts, {properties_end - start}"
    return _new_record(
        Record,
        (
            size,
            queue_id,
            queue_offset,
            log_offset,
            sys_flag,
            born_ms,
            store_ms,
            bytes(data[topic_start:topic_end]),
            bytes(data[topic_end + 2 : properties_end]),
            body_start,
            body_end,
            body_crc,
        ),
    )


def stated_lengths(data: Buffer, log_offset: int) -> StatedLengths | None:
    """Return the lengths that the header of a possibly damaged record states; None if it cannot be relied on.

    It must state the log offset, and a size that fits the body's length: with a single damaged field the result is
    None, or its `body_end` is within the record. `data`: the first bytes, `HEAD_BYTES_MAX` if there are so many.
    """
    if len(data) < RECORD_BYTES_MIN:
        return None
    head = _HEADS[_SYS_FLAG.unpack_from(data, 36)[0] & 0x30]
    if len(data) < head.size:
        return None
    fields = RecordHead._make(head.unpack_from(data))
    body_end = head.size + fields.body_length
    fits = fields.body_length >= 0 and 0 < fields.size - body_end <= _BEHIND_BODY_MAX
    return StatedLengths(body_end, fields.size) if fits and fields.log_offset == log_offset else None


def unfinished_record(data: Buffer, start: int, end: int) -> int | str:
    """Check the beginning of a record of which not all bytes have arrived; its size and magic are plausible.

    Returns the number of bytes needed for the next check, at most the record's size; or, if its parts cannot add up to
    that size, a text that says so, since waiting for the rest would not end.
    """
    size, magic = peek(data, start)
    have = end - start
    if have < RECORD_BYTES_MIN:
        return RECORD_BYTES_MIN
    head_bytes = _HEADS[_SYS_FLAG.unpack_from(data, start + 36)[0] & 0x30].size
    if have < head_bytes:
        return head_bytes
    length_bytes = 1 if magic == MAGIC_V1 else 2
    body_bytes = int.from_bytes(data[start + head_bytes - 4 : start + head_bytes], "big")
    needed = head_bytes + body_bytes + length_bytes
    if needed + 2 > size:
        return f"size {size} does not fit a body of {body_bytes} bytes"
    if have < needed:
        return needed
    needed += int.from_bytes(data[start + needed - length_bytes : start + needed], "big") + 2
    if needed > size:
        return f"size {size} does not fit the topic"
    if have < needed:
        return needed
    needed += int.from_bytes(data[start + needed - 2 : start + needed], "big")
    return size if needed == size else f"size {size} differs from the sum of the parts, {needed}"


def crc_property(raw: Buffer) -> bytes:
    """Return the last property of a record, the CRC of all bytes before it."""
    return CRC_NAME + (b"%010d" % (crc32(raw) & _CRC_MASK))[::-1] + b"\x02"


def body_offset(data: Buffer, start: int) -> int:
    """Return where the body of the record at `start` begins, behind `start`."""
    return _HEADS[_SYS_FLAG.unpack_from(data, start + 36)[0] & 0x30].size


def unpack_head(data: Buffer, start: int) -> RecordHead:
    """Return the fixed fields of the record at `start`."""
    head = _HEADS[_SYS_FLAG.unpack_from(data, start + 36)[0] & 0x30].unpack_from(data, start)
    return _new_record(RecordHead, head)


def peek(data: Buffer, start: int) -> tuple[int, int]:
    """Return the size and magic of a possible record at `start`; at least 8 bytes must follow. Plain tuple: hot."""
    return _SIZE_MAGIC.unpack_from(data, start)


def property_value(properties: bytes, name: bytes) -> bytes | None:
    """Return a property's value from raw properties, None if absent. The last one counts, as in Java.

    `name` is given without separators.
    """
    start = properties.rfind(name + b"\x01")
    while start > 0 and properties[start - 1] != 2:
        start = properties.rfind(name + b"\x01", 0, start + len(name))
    if start < 0:
        return None
    start += len(name) + 1
    stop = properties.find(b"\x02", start)
    return properties[start:] if stop < 0 else properties[start:stop]


def record_keys(properties: bytes) -> list[bytes]:
    """Return the keys by which a record is indexed: its unique key, and each word of KEYS."""
    unique = property_value(properties, b"UNIQ_KEY")
    words = property_value(properties, b"KEYS") or b""
    return [key for key in (unique, *words.split(b" ")) if key]


def tags_code(properties: bytes) -> int:
    """Return the hash of the TAGS property, 0 without one."""
    tags = property_value(properties, b"TAGS")
    return cached_java_hash(tags.decode("utf-8", "replace")) if tags else 0


def decode_message(data: Buffer, start: int, end: int, *, inflates: bool = True) -> StoredMessage:
    """Decode the record at `start` as a message; its body is decompressed unless `inflates` is False.

    Raises:
        ProtocolError: incomplete record, wrong checksum, or a body that cannot be decompressed.
    """
    message = read_message(data, start, end, inflates=inflates)
    if message.fault:
        raise ProtocolError(message.fault)
    return message


def read_message(data: Buffer, start: int, end: int, *, inflates: bool = True) -> StoredMessage:
    """Like `decode_message`, but a body that cannot be decompressed is returned as stored, and `fault` says why.

    Raises:
        ProtocolError: incomplete record, or wrong checksum.
    """
    record = parse_record(data, start, end)
    if isinstance(record, str):
        raise ProtocolError(f"unreadable record: {record}")
    head = _HEADS[record.sys_flag & 0x30].unpack_from(data, start)
    flag, born_host, store_host, reconsume_times, prepared_offset = head[4], head[9], head[11], head[12], head[13]
    damage = record_fault(data, start, record.size, record.body_start, record.body_end, record.body_crc)
    if damage is not None:
        raise ProtocolError(damage)
    body, fault = bytes(data[record.body_start : record.body_end]), ""
    if inflates and record.sys_flag & _COMPRESSED:
        try:
            body = inflate(body, record.sys_flag)
        except ProtocolError as error:
            fault = str(error)
    return StoredMessage(
        topic=record.topic.decode("utf-8", "replace"),
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        log_offset=record.log_offset,
        body=body,
        properties=decode_properties(record.properties.decode("utf-8", "replace")),
        flag=flag,
        sys_flag=record.sys_flag,
        born_ms=record.born_ms,
        born_host=decode_host(born_host),
        store_ms=record.store_ms,
        store_host=decode_host(store_host),
        reconsume_times=reconsume_times,
        prepared_offset=prepared_offset,
        size=record.size,
        offset_message_id=message_id(store_host, record.log_offset),
        fault=fault,
    )


def decode_messages(data: Buffer, *, inflates: bool = True) -> list[StoredMessage]:
    """Decode all messages in the body of a pull response.

    Raises:
        ProtocolError: as `decode_message`.
    """
    messages: list[StoredMessage] = []
    position, end = 0, len(data)
    while position < end:
        messages.append(decode_message(data, position, end, inflates=inflates))
        position += messages[-1].size
    return messages


def deflate(body: bytes, level: int) -> bytes:
    """Compress a body into a zlib stream. `level`: 0 to 9; up to 6 ISA-L does it, in a fifth of zlib's time."""
    return isal_zlib.compress(body, (level + 2) // 3) if 1 <= level <= _ISAL_LEVELS else zlib.compress(body, level)


def inflate(body: bytes, sys_flag: int) -> bytes:
    """Decompress a body with zlib, up to 64 MiB. Other compressions are not supported: they need further libraries.

    Raises:
        ProtocolError: another compression, damaged data, or a body larger than the limit.
    """
    kind = sys_flag & SysFlag.COMPRESSION_MASK
    if kind not in (0, SysFlag.COMPRESSION_ZLIB):
        raise ProtocolError(f"the body is compressed by kind {kind >> 8}; only zlib (0 or 3) can be read")
    decompressor = zlib.decompressobj()
    try:
        plain = decompressor.decompress(body, INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise ProtocolError(f"the body cannot be decompressed: {error}") from error
    if decompressor.unconsumed_tail:
        raise ProtocolError(f"the body inflates to more than {INFLATED_BYTES_MAX} bytes")
    if not decompressor.eof:
        raise ProtocolError("the body cannot be decompressed: its end is missing")
    return plain


class BatchPart(NamedTuple):
    """Message within a batch: `size 4 · magic 4 · crc 4 · flag 4 · body length 4 · body · properties 2 + n`."""

    flag: int
    body: bytes
    properties: bytes


_PART = Struct(">iiiii")
BATCH_PARTS_MAX = 65_536
"""Maximum number of messages in a batch."""


def decode_batch(body: bytes) -> list[BatchPart]:
    """Split the body of a batch into its messages.

    Raises:
        ProtocolError: lengths contradict each other, or there are no or too many messages.
    """
    parts: list[BatchPart] = []
    position, end = 0, len(body)
    unpack, unpack_short = _PART.unpack_from, _SHORT.unpack_from
    try:
        while position < end:
            size, _, _, flag, body_length = unpack(body, position)
            start = position + 20
            (properties_length,) = unpack_short(body, start + body_length)
            body_end = start + body_length
            stop = body_end + 2 + properties_length
            if body_length < 0 or stop != position + size or stop > end:
                raise ProtocolError(f"batch: message {len(parts)} at byte {position} has contradicting lengths")
            parts.append(_new_record(BatchPart, (flag, body[start:body_end], body[body_end + 2 : stop])))
            position = stop
            if len(parts) > BATCH_PARTS_MAX:
                raise ProtocolError(f"batch: more than {BATCH_PARTS_MAX} messages")
    except StructError as error:
        raise ProtocolError(f"batch: message {len(parts)} at byte {position} is cut off") from error
    if not parts:
        raise ProtocolError("batch: it holds no message")
    return parts


def encode_batch(parts: list[BatchPart]) -> bytes:
    """Encode messages as the body of a batch."""
    pieces: list[bytes] = []
    for flag, body, properties in parts:
        size = _PART.size + len(body) + 2 + len(properties)
        pieces += (_PART.pack(size, 0, 0, flag, len(body)), body, _SHORT.pack(len(properties)), properties)
    return b"".join(pieces)
