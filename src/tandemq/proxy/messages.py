"""Messages of gRPC clients as brokers store them, and stored ones as clients receive them.

    tag, keys, id, group, time of delivery … ─► properties of the record ─► the same fields

Source: docs/reference/grpc.md; RocketMQ SendMessageActivity, GrpcConverter, GrpcValidator.
"""

import re
import zlib
from hashlib import md5
from typing import NamedTuple

from google.protobuf.timestamp_pb2 import Timestamp

from tandemq.model import message as names
from tandemq.model.java_types import INT32_MAX
from tandemq.model.message import StoredMessage
from tandemq.model.pop import FIRST_POP_TIME, POP_CK
from tandemq.model.property_rules import MEANINGS, TIMER_PREFIX
from tandemq.proxy.protocol.messaging_pb2 import (
    DELAY,
    FIFO,
    GZIP,
    IDENTITY,
    LITE,
    MD5,
    NORMAL,
    PRIORITY,
    TRANSACTION,
    Code,
    Message,
    MessageType,
    Resource,
    SystemProperties,
)
from tandemq.proxy.status import CallRefused
from tandemq.proxy.times import milliseconds

BODY_BYTES_MAX = 4 << 20
PROPERTIES_MAX = 128
PROPERTY_BYTES_MAX = 16 * 1024
"""Maximum size of a message's tag, keys, and names and values of its own properties."""
ENCODED_BYTES_MAX = 20 * 1024
"""Maximum size of all properties as brokers get them: separators, id, times, trace and others are in it too."""
GROUP_BYTES_MAX = 64
IMMUNITY_S_MAX = 3_600
PRIORITY_MAX = INT32_MAX
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
_CONTROL = re.compile(r"[\x00\x03-\x1f\x7f-\x9f]")
"""Control characters but the two that separate properties."""
YEAR_10000_MS = 253_402_300_800_000
"""End of the range of timestamps. What remoting clients store can be outside, and before 1970."""
NUMBER_DIGITS_MAX = 15
BORN_HOST = "__BORNHOST"
BORN_TIMESTAMP = "BORN_TIMESTAMP"
TRACE_CONTEXT = "TRACE_CONTEXT"
DEAD_LETTER_TOPIC = "DLQ_ORIGIN_TOPIC"
DEAD_LETTER_ID = "DLQ_ORIGIN_MESSAGE_ID"
OPAQUE_BODY = "TANDEM_OPAQUE_BODY"
"""Property of messages whose body is what the client calls gzip, and is not: consumers of this protocol get it so."""
RESERVED = frozenset(
    {
        *MEANINGS,
        names.RETRY_TOPIC,
        names.MIN_OFFSET,
        names.MAX_OFFSET,
        names.ORIGIN_MESSAGE_ID,
        names.RECONSUME_TIME,
        names.MAX_RECONSUME_TIMES,
        names.CONSUME_START_TIME,
        POP_CK,
        FIRST_POP_TIME,
        BORN_HOST,
        BORN_TIMESTAMP,
        TRACE_CONTEXT,
        DEAD_LETTER_TOPIC,
        DEAD_LETTER_ID,
        OPAQUE_BODY,
        "BUYER_ID",
        "TRANSFER_FLAG",
        "CORRECTION_FLAG",
        "MQ2_FLAG",
        "EXTEND_UNIQ_INFO",
        "INNER_BASE",
        "DUP_INFO",
        "CORRELATION_ID",
        "REPLY_TO_CLIENT",
        "MSG_TYPE",
        "TTL",
        "ARRIVE_TIME",
        "PUSH_REPLY_TIME",
        "INSTANCE_ID",
        "POP_CK_OFFSET",
        "__LITE_TOPIC",
    }
)
"""Names that applications cannot give to properties of their own, and that they do not receive as such."""


class Prepared(NamedTuple):
    """A message that brokers accept."""

    topic: str
    kind: MessageType
    unique_key: str
    body: bytes
    properties: str
    """All of them, encoded."""
    message_group: str
    """"" for none; the messages of a group are stored in one queue, in the order in which they are sent."""


def prepare(message: Message, topic: str, peer: str) -> Prepared:
    """Check a message and return what is sent to a broker.

    Args:
        topic: its topic, as brokers know it.
        peer: "ip:port" of the client.

    Raises:
        CallRefused: the message is invalid, or exceeds a limit.
    """
    system = message.system_properties
    if not system.message_id.strip():
        raise CallRefused(Code.ILLEGAL_MESSAGE_ID, "the message has no id")
    kind = kind_of(system)
    own: dict[str, str] = dict(message.user_properties)
    _check_own(own)
    pairs = {names.UNIQ_KEY: system.message_id, names.WAIT: "true", names.RECONSUME_TIME: str(system.delivery_attempt)}
    if system.tag:
        if not system.tag.strip() or "|" in system.tag:
            raise CallRefused(Code.ILLEGAL_MESSAGE_TAG, "the tag is blank, or contains |")
        pairs[names.TAGS] = system.tag
    if system.keys:
        if any(not key.strip() for key in system.keys):
            raise CallRefused(Code.ILLEGAL_MESSAGE_KEY, "a key is blank")
        pairs[names.KEYS] = names.KEY_SEPARATOR.join(system.keys)
    pairs |= _of_kind(kind, system, topic)
    if system.HasField("trace_context"):
        pairs[TRACE_CONTEXT] = system.trace_context
    pairs[BORN_HOST] = system.born_host or peer.rpartition(":")[0]
    if system.HasField("born_timestamp"):
        pairs[BORN_TIMESTAMP] = str(milliseconds(system.born_timestamp))
    body, is_opaque = _body(message)
    if is_opaque:
        pairs[OPAQUE_BODY] = "GZIP"
    text = names.encode_properties(own | pairs)
    _check_text(text, len(own) + len(pairs), own, system)
    return Prepared(topic, kind, system.message_id, body, text, system.message_group if kind == FIFO else "")


def kind_of(system: SystemProperties) -> MessageType:
    """Return the type of a message, by what it asks for.

    Raises:
        CallRefused: it asks for what brokers here do not have.
    """
    if system.HasField("lite_topic") or system.message_type == LITE:
        raise CallRefused(Code.UNSUPPORTED, "lite topics are not supported")
    if system.message_type == TRANSACTION:
        return TRANSACTION
    if system.HasField("delivery_timestamp"):
        return DELAY
    if system.HasField("priority"):
        return PRIORITY
    if system.message_group:
        return FIFO
    return NORMAL


def _of_kind(kind: MessageType, system: SystemProperties, topic: str) -> dict[str, str]:
    """Return the properties that a type of message needs."""
    if kind == DELAY:
        return {names.TIMER_DELIVER_MS: str(milliseconds(system.delivery_timestamp))}
    if kind == PRIORITY:
        if not 0 <= system.priority <= PRIORITY_MAX:
            raise CallRefused(Code.BAD_REQUEST, f"the priority is {system.priority}; it must not be negative")
        return {names.PRIORITY: str(system.priority)}
    if kind == FIFO:
        group = system.message_group
        if not group.strip() or len(group.encode()) >= GROUP_BYTES_MAX:
            text = f"the message group is blank, or has {GROUP_BYTES_MAX} bytes or more"
            raise CallRefused(Code.ILLEGAL_MESSAGE_GROUP, text)
        return {names.SHARDING_KEY: group}
    if kind == TRANSACTION:
        found = {names.TRAN_MSG: "true", names.PRODUCER_GROUP: topic}
        if system.HasField("orphaned_transaction_recovery_duration"):
            seconds = milliseconds(system.orphaned_transaction_recovery_duration) // 1000
            if not 0 < seconds <= IMMUNITY_S_MAX:
                text = f"the first check after {seconds} s; it must be 1 to {IMMUNITY_S_MAX}"
                raise CallRefused(Code.BAD_REQUEST, text)
            found[names.IMMUNITY] = str(seconds)
        return found
    return {}


def _check_own(own: dict[str, str]) -> None:
    if len(own) > PROPERTIES_MAX:
        text = f"the message has {len(own)} properties, the maximum is {PROPERTIES_MAX}"
        raise CallRefused(Code.MESSAGE_PROPERTIES_TOO_LARGE, text)
    for name in own:
        if not name.strip() or name in RESERVED or name.startswith(TIMER_PREFIX):
            raise CallRefused(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"the property name {name[:100]!r} is reserved")


def _check_text(text: str, count: int, own: dict[str, str], system: SystemProperties) -> None:
    """Check the encoded properties: their size, and that they hold no separators but their own."""
    size = len(text) if text.isascii() else len(text.encode())
    if size > PROPERTY_BYTES_MAX:
        size_own = sum(len(part.encode()) for part in (system.tag, *system.keys, *own, *own.values()))
        if size_own > PROPERTY_BYTES_MAX:
            text = f"tag, keys and properties have {size_own} bytes, the maximum is {PROPERTY_BYTES_MAX}"
            raise CallRefused(Code.MESSAGE_PROPERTIES_TOO_LARGE, text)
        if size > ENCODED_BYTES_MAX:
            text = f"all properties, encoded, have {size} bytes, the maximum is {ENCODED_BYTES_MAX}"
            raise CallRefused(Code.MESSAGE_PROPERTIES_TOO_LARGE, text)
    is_separated = text.count(names.NAME_VALUE_SEPARATOR) == count == text.count(names.PROPERTY_SEPARATOR)
    if not is_separated or _CONTROL.search(text):
        text = "a tag, key or property contains a control character"
        raise CallRefused(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, text)


def _body(message: Message) -> tuple[bytes, bool]:
    """Return the body, decompressed: consumers on the remoting protocol do not know gzip.

    Also returned: whether it is stored as it is although the client calls it gzip; RocketMQ's proxies look at no body.
    """
    body, is_opaque = message.body, False
    if message.system_properties.body_encoding == GZIP:
        inflated = _inflated(body)
        is_opaque = inflated is None
        body = body if inflated is None else inflated
    if not body:
        raise CallRefused(Code.MESSAGE_BODY_EMPTY, "the message has no body")
    if len(body) > BODY_BYTES_MAX:
        raise CallRefused(Code.MESSAGE_BODY_TOO_LARGE, f"the body has more than {BODY_BYTES_MAX} bytes")
    return body, is_opaque


def _inflated(data: bytes) -> bytes | None:
    """Return bytes decompressed, at most one more than allowed; None if they are not one stream of gzip or zlib."""
    inflater = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        body = inflater.decompress(data, BODY_BYTES_MAX + 1)
    except zlib.error:
        return None
    is_whole = inflater.eof and not inflater.unused_data
    return body if is_whole or len(body) > BODY_BYTES_MAX else None


def received(stored: StoredMessage, topic: Resource, handle: str, attempt: int) -> Message:
    """Return a stored message as clients receive it.

    Args:
        topic: as the client named it.
        handle: with which the message is acknowledged, "" for none.
        attempt: how often it is delivered with this time.
    """
    properties = stored.properties
    get = properties.get
    # Values are set in place: messages that are passed to a constructor are copied.
    message = Message(body=stored.body)
    message.topic.CopyFrom(topic)
    system = message.system_properties
    system.message_id = stored.unique_key or stored.offset_message_id
    system.keys.extend(stored.keys)
    system.body_digest.type = MD5
    system.body_digest.checksum = md5(stored.body, usedforsecurity=False).hexdigest().upper()
    system.body_encoding = GZIP if OPAQUE_BODY in properties else IDENTITY
    system.message_type = _stored_kind(properties)
    system.born_host = get(BORN_HOST) or stored.born_host.rpartition(":")[0]
    system.store_host = stored.store_host
    system.queue_id = stored.queue_id
    system.queue_offset = stored.queue_offset
    system.delivery_attempt = min(attempt, INT32_MAX)
    _set_ms(system.born_timestamp, get(BORN_TIMESTAMP), stored.born_ms)
    _set_ms(system.store_timestamp, None, stored.store_ms)
    if stored.tags:
        system.tag = stored.tags
    if handle:
        system.receipt_handle = handle
    if (delivery := get(names.TIMER_DELIVER_MS)) is not None:
        _set_ms(system.delivery_timestamp, delivery, 0)
    if (group := get(names.SHARDING_KEY)) is not None:
        system.message_group = group
    if (priority := _number(get(names.PRIORITY))) is not None and priority <= PRIORITY_MAX:
        system.priority = priority
    if (trace := get(TRACE_CONTEXT)) is not None:
        system.trace_context = trace
    if (origin := get(DEAD_LETTER_TOPIC)) is not None:
        system.dead_letter_queue.topic = origin
        system.dead_letter_queue.message_id = get(DEAD_LETTER_ID, "")
    own = message.user_properties
    for name, value in properties.items():
        if name not in RESERVED and not name.startswith(TIMER_PREFIX):
            own[name] = value
    return message


def _set_ms(timestamp: Timestamp, text: str | None, otherwise_ms: int) -> None:
    """Set a timestamp from a property with milliseconds since 1970, if it is one."""
    ms = _number(text)
    ms = max(0, min(otherwise_ms if ms is None else ms, YEAR_10000_MS - 1))
    timestamp.seconds, timestamp.nanos = ms // 1_000, ms % 1_000 * 1_000_000


def _number(text: str | None) -> int | None:
    """Return the number in a property, which may have any text; None if it is none."""
    is_number = text is not None and text.isascii() and text.isdecimal() and len(text) <= NUMBER_DIGITS_MAX
    return int(text) if text is not None and is_number else None


def _stored_kind(properties: dict[str, str]) -> MessageType:
    if names.TRAN_MSG in properties:
        return TRANSACTION
    if names.TIMER_DELIVER_MS in properties or names.DELAY in properties:
        return DELAY
    if names.PRIORITY in properties:
        return PRIORITY
    return FIFO if names.SHARDING_KEY in properties else NORMAL
