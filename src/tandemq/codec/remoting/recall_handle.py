"""The handle with which a timed message can be recalled.

URL-safe Base64 of `v1 <topic> <broker name> <TIMER_OUT_MS + 1> <unique key>`.

Source: docs/reference/timers.md; RocketMQ RecallMessageHandle.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from typing import NamedTuple

from tandemq.errors import ProtocolError
from tandemq.model.message import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR

HANDLE_BYTES_MAX = 4096
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}\Z")


class RecallHandle(NamedTuple):
    """Content of a recall handle."""

    topic: str
    broker_name: str
    time_ms: int
    unique_key: str


def encode_handle(topic: str, broker_name: str, out_ms: int, unique_key: str) -> str:
    """Return the handle with which a timed message can be recalled."""
    return urlsafe_b64encode(f"v1 {topic} {broker_name} {out_ms + 1} {unique_key}".encode()).decode()


def decode_handle(text: str) -> RecallHandle:
    """Decode a handle.

    Raises:
        ProtocolError: it is malformed.
    """
    try:
        if len(text) > HANDLE_BYTES_MAX:
            raise ValueError(f"it has {len(text)} characters")
        version, topic, broker_name, time_ms, unique_key = urlsafe_b64decode(text.encode()).decode().split(" ")
        if version != "v1" or not _NUMBER.match(time_ms) or not unique_key:
            raise ValueError("a version, topic, broker, time and key are expected")
        if NAME_VALUE_SEPARATOR in unique_key or PROPERTY_SEPARATOR in unique_key:
            raise ValueError("its key has a character that separates properties")
    except (Base64Error, ValueError) as error:
        raise ProtocolError(f"recall handle is invalid: {error}") from error
    return RecallHandle(topic, broker_name, int(time_ms), unique_key)
