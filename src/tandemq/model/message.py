"""Messages, send results, and RocketMQ's property names and system flags.

Source: docs/internals/storage.md, "record"; RocketMQ MessageConst, MessageSysFlag.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum, IntFlag
from functools import lru_cache
from math import ceil
from warnings import warn

import msgspec

from tandemq.errors import InvalidMessage
from tandemq.model.java_types import INT32_MAX
from tandemq.model.topic import topic_name_error

KEYS = "KEYS"
TAGS = "TAGS"
WAIT = "WAIT"
DELAY = "DELAY"
RETRY_TOPIC = "RETRY_TOPIC"
REAL_TOPIC = "REAL_TOPIC"
REAL_QID = "REAL_QID"
TRAN_MSG = "TRAN_MSG"
TRANSACTION_ID = "__transactionId__"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
"""Number of checks so far; each copy of a half message has one more."""
IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
FIRST_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
"""Queue offset of the half message of which this one is a copy."""
INNER_NUM = "INNER_NUM"
PRODUCER_GROUP = "PGROUP"
MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
CONSUME_START_TIME = "CONSUME_START_TIME"
UNIQ_KEY = "UNIQ_KEY"
CLUSTER = "CLUSTER"
MSG_REGION = "MSG_REGION"
"""Region of the broker that stored the message, for its trace."""
TRACE_ON = "TRACE_ON"
"""`false`: clients make no trace of the message."""
RECORD_CRC = "__CRC32#"
SHARDING_KEY = "__SHARDINGKEY"
PRIORITY = "_SYS_MSG_PRIORITY_"
"""Priority of a message, from 0 on; it chooses the queue."""
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_NAMES = frozenset({TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS})
"""Properties by which a 5.x client requests delivery after a delay or at a time."""
TIMER_OUT = "TIMER_OUT_MS"
"""Time of delivery, rounded down by the broker; a message that has it was timed already."""
TIMER_DELETE = "TIMER_DEL_UNIQKEY"
"""Topic and unique key, joined by "+", of a timed message of the same time that is not to be delivered."""
TIMER_ENQUEUED = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUED = "TIMER_DEQUEUE_MS"
TIMER_ROLLS = "TIMER_ROLL_TIMES"
"""How often a timed message was stored again because its time is far away."""

KEY_SEPARATOR = " "
NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
SET_BY_CLIENT = frozenset({KEYS, TAGS, DELAY, WAIT, UNIQ_KEY})
"""Properties for which `Message` has fields."""


class SysFlag(IntFlag):
    """Bits of a record's sysFlag."""

    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    TRANSACTION_PREPARED = 0x4
    TRANSACTION_COMMIT = 0x8
    TRANSACTION_ROLLBACK = 0xC
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    NEED_UNWRAP = 0x40
    INNER_BATCH = 0x80
    COMPRESSION_LZ4 = 0x100
    COMPRESSION_ZSTD = 0x200
    COMPRESSION_ZLIB = 0x300
    COMPRESSION_MASK = 0x700
    REMOVED = 0x40000000
    """Ours: the content was deleted in place (codec.record.removal)."""


TRANSACTION_MASK = 0xC
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_SECONDS_END = 1_000_000_000_000
_topic_fault = lru_cache(maxsize=1024)(topic_name_error)


class SendStatus(Enum):
    """Status in the response to a send. With each of them the message is stored."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


@dataclass(slots=True)
class Message:
    """A message to send.

    Args:
        topic: destination, 1 to 127 characters of `[%|a-zA-Z0-9_-]`.
        body: bytes, bytearray or memoryview of at most the broker's `maxMessageSize` (4 MiB by default).
        tags: one tag by which consumers may filter, "" for none.
        keys: keys by which `queryMsgByKey` finds the message; a key contains no space.
        properties: further name/value pairs, stored with the message.
        delay_level: 0 for no delay, 1…18 for a level of the broker's `messageDelayLevel` table.
        delay: deliver it after this time, a timedelta or seconds, counted by the broker that stores it; brokers of 5.x.
        deliver_at: deliver it at this time, a datetime with a time zone or seconds since 1970; brokers of 5.x.
        priority: 0 or more, higher values first, for POP consumers of topics of type PRIORITY; brokers of 5.4 or newer.
        flag: a 32-bit int for the application, stored with the message.
        wait_store_ok: False tells the broker to respond without waiting for flush and replicas.
    """

    topic: str
    body: bytes
    tags: str = ""
    keys: Iterable[str] = ()
    properties: dict[str, str] = field(default_factory=dict)
    delay_level: int = 0
    flag: int = 0
    wait_store_ok: bool = True
    delay: timedelta | float | None = None
    deliver_at: datetime | float | None = None
    priority: int | None = None

    def __post_init__(self) -> None:
        """Validate the message on creation; see `validate`."""
        self.validate()

    def validate(self) -> None:
        """Check that brokers accept the message. The producer checks again, since fields may have changed.

        Raises:
            TypeError: a field has a wrong type, for instance a body that is a str.
            InvalidMessage: a field has an invalid value (a ValueError).
        """
        if type(self.body) is not bytes:
            self.body = _bytes_of(self.body)
        fault = _topic_fault(self.topic if type(self.topic) is str else _text("topic", self.topic))
        if fault is not None:
            _text("topic", self.topic)
            raise InvalidMessage(fault)
        if type(self.keys) is list:
            self.keys = tuple(self.keys)
        if (self.tags or self.keys or self.properties) and not _is_plain(self.tags, self.keys, self.properties):
            self._validate_texts()
        if type(self.delay_level) is not int or type(self.flag) is not int:
            raise TypeError("delay_level and flag must be int")
        if self.delay_level < 0:
            raise InvalidMessage(f"the delay level is {self.delay_level}; 0 is none, 1 the first")
        if self.flag and not -(1 << 31) <= self.flag < 1 << 31:
            raise InvalidMessage(f"the flag {self.flag} does not fit into 32 bits")
        if self.delay is not None or self.deliver_at is not None:
            self.timer_property()
        if self.priority is not None:
            self._validate_priority()

    def _validate_priority(self) -> None:
        if type(self.priority) is not int:
            raise TypeError("priority must be an int or None")
        if not 0 <= self.priority <= INT32_MAX:
            raise InvalidMessage(f"the priority is {self.priority}; it must be 0 to {INT32_MAX}")
        if self.is_delayed:
            raise InvalidMessage("a message with a delay cannot have a priority")

    @property
    def is_batchable(self) -> bool:
        """Whether a batch can hold it: it asks neither for a delay nor for a priority."""
        return not self.is_delayed and self.priority is None and PRIORITY not in self.properties

    @property
    def is_delayed(self) -> bool:
        """Whether it asks for a delivery after a delay or at a time."""
        return bool(self.delay_level) or self.is_timed

    @property
    def is_timed(self) -> bool:
        """Whether it asks for a delivery at a time, other than by a delay level."""
        return self.delay is not None or self.deliver_at is not None or not TIMER_NAMES.isdisjoint(self.properties)

    def timer_property(self) -> tuple[str, str] | None:
        """Return the name and value of the property that tells brokers `delay` or `deliver_at`; None without either.

        Raises:
            TypeError: the value has a wrong type, for instance a datetime without a time zone.
            InvalidMessage: the value is out of range, or there is another delay.
        """
        if self.delay is None and self.deliver_at is None:
            return None
        if self.delay_level or (self.delay is not None and self.deliver_at is not None):
            raise InvalidMessage("give only one of delay_level, delay and deliver_at")
        if not TIMER_NAMES.isdisjoint(self.properties):
            raise InvalidMessage("delay or deliver_at, and a property for the time of delivery: give only one of them")
        if self.delay is not None:
            ms = _milliseconds("delay", self.delay / _SECOND if isinstance(self.delay, timedelta) else self.delay)
            if ms < 0:
                raise InvalidMessage(f"the delay is {self.delay}; it must not be negative")
            return TIMER_DELAY_MS, str(ms)
        deliver_at = self.deliver_at
        if isinstance(deliver_at, datetime):
            if deliver_at.tzinfo is None:
                raise TypeError("deliver_at has no time zone; use for instance datetime.now(UTC) + timedelta(hours=1)")
            deliver_at = (deliver_at - _EPOCH) / _SECOND
        return TIMER_DELIVER_MS, str(_milliseconds("deliver_at", deliver_at))

    def _validate_texts(self) -> None:
        if self.tags:
            _check_tag(_text("tags", self.tags))
        if self.keys:
            self.keys = _keys_of(self.keys)
        if self.properties:
            _check_properties(self.properties)


def _milliseconds(name: str, seconds: object) -> int:
    """Return seconds in milliseconds, rounded up."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        kind = "a timedelta" if name == "delay" else "a datetime"
        raise TypeError(f"{name} must be {kind} or a number of seconds, not {type(seconds).__name__}")
    if not abs(seconds) < _SECONDS_END:
        raise InvalidMessage(f"{name} is {seconds} s; it must be below {_SECONDS_END}, and a number")
    return ceil(round(seconds * 1000, 3))


def _bytes_of(body: object) -> bytes:
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    hint = "; encode it: text.encode()" if isinstance(body, str) else ""
    raise TypeError(f"body must be bytes, not {type(body).__name__}{hint}")


def _text(name: str, value: object) -> str:
    if type(value) is str and value.isascii():
        return value
    if not isinstance(value, str):
        hint = "; a message has one tag" if name == "tags" else ""
        raise TypeError(f"{name} must be a str, not {type(value).__name__}{hint}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(
            f"{name} cannot be encoded as UTF-8: character {error.start} is a lone surrogate"
        ) from None
    return value


def _check_tag(tag: str) -> None:
    if "|" in tag or tag != tag.strip():
        raise InvalidMessage(f"the tag {tag[:64]!r}: a message has one tag, without | and spaces around it")
    _check_separators("the tag", tag)


def _keys_of(keys: object) -> tuple[str, ...]:
    if not isinstance(keys, Iterable):
        raise TypeError(f"keys must be a str or several, not {type(keys).__name__}")
    found = (keys,) if isinstance(keys, str) else tuple(keys)
    for key in found:
        if KEY_SEPARATOR in _text("a key", key):
            raise InvalidMessage(f"the key {key[:64]!r} has a space in it, which separates keys")
        _check_separators("a key", key)
    return found


def _check_properties(properties: object) -> None:
    if not isinstance(properties, dict):
        raise TypeError(f"properties must be a dict, not {type(properties).__name__}")
    for name, value in properties.items():
        if not _text("the name of a property", name):
            raise InvalidMessage("a property has no name")
        if name in SET_BY_CLIENT:
            raise InvalidMessage(f"the property {name} is set by the client", hint="use the message's own field")
        _check_separators("a property's name", name)
        _check_separators(f"the property {name[:64]}", _text(f"the property {name[:64]}", value))


def _is_plain(tags: object, keys: object, properties: object) -> bool:
    """Return whether tags, keys and properties are valid at first sight: ASCII texts in a tuple and a dict, without a
    character that may need a closer look."""
    if type(tags) is not str or type(keys) is not tuple or type(properties) is not dict:
        return False
    try:
        joined_keys = "".join(keys)
        text = "".join((tags, joined_keys, *properties, *properties.values()))
    except TypeError:
        return False
    return (
        text.isascii()
        and NAME_VALUE_SEPARATOR not in text
        and PROPERTY_SEPARATOR not in text
        and KEY_SEPARATOR not in joined_keys
        and "|" not in tags
        and tags == tags.strip()
        and "" not in properties
        and SET_BY_CLIENT.isdisjoint(properties)
    )


def _check_separators(what: str, text: str) -> None:
    if NAME_VALUE_SEPARATOR in text or PROPERTY_SEPARATOR in text:
        raise InvalidMessage(f"{what} has a byte 0x01 or 0x02 in it, which separate properties")


_SYSTEM_PROPERTIES = """
KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET BUYER_ID ORIGIN_MESSAGE_ID
TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME MSG_REGION TRACE_ON UNIQ_KEY MAX_RECONSUME_TIMES
CONSUME_START_TIME CLUSTER __CRC32# TRAN_PREPARED_QUEUE_OFFSET TRANSACTION_CHECK_TIMES CHECK_IMMUNITY_TIME_IN_SECONDS
INSTANCE_ID TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_ENQUEUE_MS
TIMER_DEQUEUE_MS TIMER_ROLL_TIMES
"""
SYSTEM_PROPERTIES = frozenset(_SYSTEM_PROPERTIES.split())
"""Properties with a meaning for RocketMQ's clients or brokers; all others are those of applications."""


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """A message as stored by a broker and received by a consumer.

    `body` is decompressed if it was stored compressed. Hosts are "ip:port". `offset_message_id` contains store host and
    log offset; `unique_key` is the id assigned by the producer, "" if there is none.
    """

    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    body: bytes
    properties: dict[str, str]
    flag: int
    sys_flag: int
    born_ms: int
    born_host: str
    store_ms: int
    store_host: str
    reconsume_times: int
    prepared_offset: int
    size: int
    offset_message_id: str
    fault: str = ""
    """Why a compressed `body` could not be decompressed, "" if it was; with a fault `body` has the stored bytes."""

    @property
    def tags(self) -> str:
        """The tag, "" if there is none."""
        return self.properties.get(TAGS, "")

    @property
    def keys(self) -> list[str]:
        """The keys, in the order in which the producer gave them."""
        return [key for key in self.properties.get(KEYS, "").split(KEY_SEPARATOR) if key]

    @property
    def unique_key(self) -> str:
        """The id assigned by the producer, "" if there is none."""
        return self.properties.get(UNIQ_KEY, "")

    @property
    def message_id(self) -> str:
        """Deprecated name of `offset_message_id`."""
        warn("message_id is called offset_message_id", DeprecationWarning, stacklevel=2)
        return self.offset_message_id


class MessageQueue(msgspec.Struct, frozen=True, order=True, gc=False):
    """One queue of a topic in one broker group."""

    topic: str
    broker_name: str
    queue_id: int


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """The broker's response to a send.

    `unique_key` is the id assigned by the producer; `offset_message_id` contains store host and log offset.
    """

    status: SendStatus
    unique_key: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    recall_handle: str = ""
    """With which a timed message can be recalled, "" if the broker gave none."""

    @property
    def message_id(self) -> str:
        """Deprecated name of `unique_key`."""
        warn("message_id is called unique_key", DeprecationWarning, stacklevel=2)
        return self.unique_key


def encode_properties(properties: Mapping[str, str]) -> str:
    """Encode name/value pairs as stored in records; every pair ends with 0x02."""
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])


def decode_properties(text: str) -> dict[str, str]:
    """Decode stored properties; pairs without a name or a value are dropped, as in RocketMQ."""
    pairs = [piece.split(NAME_VALUE_SEPARATOR, 1) for piece in text.split(PROPERTY_SEPARATOR) if len(piece) > 2]
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2 and pair[0] and pair[1]}
