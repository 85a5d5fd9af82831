"""Messages of our client's producers: their properties, their parts of batches, and the frames that send them.

An ordinary message has fields of their usual types, and values that are valid: no delay, time or priority, and no
property of `UNUSUAL_PROPERTIES`. Of another one the functions return None; it is validated, encoded or refused by
`client.producer.encoder`.
"""

from functools import lru_cache
from struct import Struct

import msgspec

from tandemq.codec.remoting.frame import JsonRequest, encode_request
from tandemq.model.java_types import INT32_MAX
from tandemq.model.message import (
    KEY_SEPARATOR,
    KEYS,
    NAME_VALUE_SEPARATOR,
    PRIORITY,
    PROPERTY_SEPARATOR,
    SET_BY_CLIENT,
    TAGS,
    TIMER_NAMES,
    UNIQ_KEY,
    WAIT,
    Message,
)
from tandemq.model.replies import MSG_TYPE
from tandemq.model.topic import RETRY_PREFIX, takes_no_sends, topic_name_error

UNUSUAL_PROPERTIES = SET_BY_CLIENT | TIMER_NAMES | {PRIORITY, MSG_TYPE}
"""Properties of messages that are not ordinary: invalid ones, and those that are not gathered in batches."""
SENT_PROPERTIES_MAX = 32_000
"""Maximum size of a message's encoded properties; leaves room for those the broker adds."""
_PART = Struct(">IIIiI")
_SHORT = Struct(">H")
_encode_json = msgspec.json.Encoder().encode
_SEPARATORS = (NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR)


@lru_cache(maxsize=1024)
def is_sent_topic(topic: str) -> bool:
    """Whether a topic has a valid name, takes sends, and takes them in batches."""
    return topic_name_error(topic) is None and not takes_no_sends(topic) and not topic.startswith(RETRY_PREFIX)


def plain_properties(message: Message, unique_key: str, body_bytes_max: int) -> str | None:
    """Return the encoded properties of an ordinary message whose body has `body_bytes_max` at most; None of another."""
    encoded = _encoded(message, unique_key, body_bytes_max)
    return None if encoded is None else encoded.decode()


def batch_part(message: Message, unique_key: str, body_bytes_max: int) -> bytes | None:
    """Return an ordinary message, whose body has `body_bytes_max` at most, as part of a batch; None for another one."""
    encoded = _encoded(message, unique_key, body_bytes_max)
    if encoded is None:
        return None
    size = _PART.size + len(message.body) + _SHORT.size + len(encoded)
    head = _PART.pack(size, 0, 0, message.flag, len(message.body))
    return b"".join((head, message.body, _SHORT.pack(len(encoded)), encoded))


def unique_key(head: str, ms: int, count: int) -> str:
    """Return a unique key: its beginning, 32 bits of the time, and 16 of a counter."""
    return f"{head}{ms & 0xFFFFFFFF:08X}{count & 0xFFFF:04X}"


def send_fields(head: bytes, sys_flag: int, wall_ms: int, flag: int, properties: str, reconsume_times: int) -> bytes:
    """Return `JsonRequest.fields` of a send. `head`: its beginning, with the fields that sends to a queue share."""
    return b'%b,"f":"%d","g":"%d","h":"%d","i":%b,"j":"%d"' % (
        head,
        sys_flag,
        wall_ms,
        flag,
        _encode_json(properties),
        reconsume_times,
    )


def json_frame(fields: bytes, opaque: int, body: bytes, *, oneway: bool = False) -> bytes:
    """Return the frame of a request; see `JsonRequest`."""
    return encode_request(JsonRequest(fields, body), opaque, oneway=oneway)


def plain_frame(
    message: Message, unique_key: str, body_bytes_max: int, head: bytes, wall_ms: int, opaque: int
) -> bytes | None:
    """Return the frame that sends an ordinary message; None for another one. Arguments as of the functions above."""
    properties = plain_properties(message, unique_key, body_bytes_max)
    if properties is None:
        return None
    return json_frame(send_fields(head, 0, wall_ms, message.flag, properties, 0), opaque, message.body)


def _encoded(message: Message, key: str, body_bytes_max: int) -> bytes | None:
    if type(message) is not Message or not _has_usual_fields(message, body_bytes_max):
        return None
    tags, keys, properties = message.tags, message.keys, message.properties
    if type(tags) is not str or type(keys) is not tuple or type(properties) is not dict:
        return None
    if "" in properties or not UNUSUAL_PROPERTIES.isdisjoint(properties) or "|" in tags or tags != tags.strip():
        return None
    try:
        joined_keys = "".join(keys)
        text = "".join((key, tags, joined_keys, *properties, *properties.values()))
    except TypeError:
        return None
    if KEY_SEPARATOR in joined_keys or any(separator in text for separator in _SEPARATORS):
        return None
    pairs = {**properties, UNIQ_KEY: key, WAIT: "true" if message.wait_store_ok else "false"}
    pairs |= {TAGS: tags} if tags else {}
    pairs |= {KEYS: KEY_SEPARATOR.join(keys)} if keys else {}
    try:
        encoded = "".join([f"{name}\x01{value}\x02" for name, value in pairs.items()]).encode()
    except UnicodeEncodeError:
        return None
    return encoded if len(encoded) <= SENT_PROPERTIES_MAX else None


def _has_usual_fields(message: Message, body_bytes_max: int) -> bool:
    return (
        message.delay is None
        and message.deliver_at is None
        and message.priority is None
        and type(message.delay_level) is int
        and message.delay_level == 0
        and type(message.body) is bytes
        and len(message.body) <= body_bytes_max
        and type(message.flag) is int
        and -INT32_MAX - 1 <= message.flag <= INT32_MAX
        and type(message.topic) is str
        and is_sent_topic(message.topic)
    )
