"""Messages as users and brokers see them, and the property keys and system flags RocketMQ gives them.

Source: docs/internals/storage.md, "record"; RocketMQ MessageConst, MessageSysFlag.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, IntFlag
from warnings import warn

from tandemq.errors import InvalidMessage
from tandemq.model.topic import topic_name_error

KEYS = "KEYS"
TAGS = "TAGS"
WAIT = "WAIT"
DELAY = "DELAY"
RETRY_TOPIC = "RETRY_TOPIC"
REAL_TOPIC = "REAL_TOPIC"
REAL_QID = "REAL_QID"
TRAN_MSG = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
CONSUME_START_TIME = "CONSUME_START_TIME"
UNIQ_KEY = "UNIQ_KEY"
CLUSTER = "CLUSTER"
RECORD_CRC = "__CRC32#"
TIMER_NAMES = frozenset({"TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"})
"""By each of these a 5.x client asks for delivery at a time of its own."""
TIMER_OUT = "TIMER_OUT_MS"
"""The time at which a broker has delivered such a message."""

KEY_SEPARATOR = " "
NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
SET_BY_CLIENT = frozenset({KEYS, TAGS, DELAY, WAIT, UNIQ_KEY})
"""Properties that a message has fields for."""


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


TRANSACTION_MASK = 0xC


class SendStatus(Enum):
    """What held when the broker answered a send; every one of them means the message is stored."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


@dataclass(slots=True)
class Message:
    """A message to send.

    Args:
        topic: where it goes, 1 to 127 characters of `[%|a-zA-Z0-9_-]`.
        body: any bytes, at most the broker's `maxMessageSize` (4 MiB by default); also a bytearray or a memoryview.
        tags: one tag by which consumers may filter, "" for none.
        keys: words under which `queryMsgByKey` finds it; no spaces inside one.
        properties: further name/value pairs, stored with it.
        delay_level: 0 for none, 1…18 for the broker's `messageDelayLevel` table.
        flag: an int the broker stores and does not look at.
        wait_store_ok: False asks the broker not to wait for flush or replica.
    """

    topic: str
    body: bytes
    tags: str = ""
    keys: Iterable[str] = ()
    properties: dict[str, str] = field(default_factory=dict)
    delay_level: int = 0
    flag: int = 0
    wait_store_ok: bool = True

    def __post_init__(self) -> None:
        """Validate the message where it is made; see `validate`."""
        self.validate()

    def validate(self) -> None:
        """Check what no broker accepts. The producer calls it again: fields may have changed since.

        Raises:
            TypeError: a field has another type, for instance a body that is text.
            InvalidMessage: a value cannot be; a ValueError.
        """
        if type(self.body) is not bytes:
            self.body = _bytes_of(self.body)
        fault = topic_name_error(_text("topic", self.topic))
        if fault is not None:
            raise InvalidMessage(fault)
        if self.tags:
            _check_tag(_text("tags", self.tags))
        if self.keys:
            self.keys = _keys_of(self.keys)
        if self.properties:
            _check_properties(self.properties)
        if type(self.delay_level) is not int or type(self.flag) is not int:
            raise TypeError("delay_level and flag must be int")
        if self.delay_level < 0:
            raise InvalidMessage(f"the delay level is {self.delay_level}; 0 is none, 1 the first")
        if not -(1 << 31) <= self.flag < 1 << 31:
            raise InvalidMessage(f"the flag {self.flag} does not fit into 32 bits")


def _bytes_of(body: object) -> bytes:
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    hint = "; encode it: text.encode()" if isinstance(body, str) else ""
    raise TypeError(f"body must be bytes, not {type(body).__name__}{hint}")


def _text(name: str, value: object) -> str:
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


def _check_separators(what: str, text: str) -> None:
    if NAME_VALUE_SEPARATOR in text or PROPERTY_SEPARATOR in text:
        raise InvalidMessage(f"{what} has a byte 0x01 or 0x02 in it, which separate properties")


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as a broker stored it and a consumer receives it.

    `body` is decompressed when the record said so. `properties` are those of the record. Hosts are "ip:port".
    `offset_message_id` names the place where it lies; `unique_key` is the producer's id, "" if it set none.
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
    """Why `body` is as it was stored although the record says that it is compressed; "" if nothing is wrong."""

    @property
    def tags(self) -> str:
        """The tag, "" if none."""
        return self.properties.get(TAGS, "")

    @property
    def keys(self) -> list[str]:
        """The keys, in the order they were given."""
        return [key for key in self.properties.get(KEYS, "").split(KEY_SEPARATOR) if key]

    @property
    def unique_key(self) -> str:
        """The id the producer gave it, "" if none."""
        return self.properties.get(UNIQ_KEY, "")

    @property
    def message_id(self) -> str:
        """Deprecated name of `offset_message_id`."""
        warn("message_id is called offset_message_id", DeprecationWarning, stacklevel=2)
        return self.offset_message_id


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of a topic in one broker group."""

    topic: str
    broker_name: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class SendResult:
    """The broker's answer to a send. `unique_key` is the id that the producer gave the message, `offset_message_id` the
    place where it lies."""

    status: SendStatus
    unique_key: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int

    @property
    def message_id(self) -> str:
        """Deprecated name of `unique_key`."""
        warn("message_id is called unique_key", DeprecationWarning, stacklevel=2)
        return self.unique_key


def encode_properties(properties: dict[str, str]) -> str:
    """Join name/value pairs the way the record stores them; every pair is closed by 0x02."""
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])


def decode_properties(text: str) -> dict[str, str]:
    """Split stored properties; pieces without a name or a value are dropped, as RocketMQ's readers do."""
    pairs = [piece.split(NAME_VALUE_SEPARATOR, 1) for piece in text.split(PROPERTY_SEPARATOR) if len(piece) > 2]
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2 and pair[0] and pair[1]}
