"""Messages: how they are found, shown and sent again.

The console connects to no address that a user enters: a message id contains one, which must be that of a known broker.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from tandemq.client.admin.queries import FAR_FUTURE_MS
from tandemq.client.aio.admin import Admin
from tandemq.codec.record.record import parse_message_id
from tandemq.errors import ConfigError, LocalError, ProtocolError
from tandemq.model.message import (
    CLUSTER,
    CONSUME_START_TIME,
    DELAY,
    KEYS,
    MAX_OFFSET,
    MAX_RECONSUME_TIMES,
    MIN_OFFSET,
    REAL_QID,
    REAL_TOPIC,
    RECONSUME_TIME,
    RECORD_CRC,
    TAGS,
    UNIQ_KEY,
    WAIT,
    Message,
    MessageQueue,
    StoredMessage,
)

FOUND_MAX = 64
QUEUES_MAX = 64
"""Maximum number of queues that are searched by time."""
BODY_SHOWN_MAX = 64 << 10
_NOT_COPIED = frozenset(
    {
        *(KEYS, TAGS, DELAY, WAIT, UNIQ_KEY, CLUSTER, MIN_OFFSET, MAX_OFFSET, RECORD_CRC),
        *(RECONSUME_TIME, MAX_RECONSUME_TIMES, CONSUME_START_TIME, REAL_TOPIC, REAL_QID),
    }
)
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
"""Tokens of valid JSON."""
RESENT_FROM = "TANDEM_RESENT_FROM"
"""Property of a message that the console has sent again: id of the original."""


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message and the broker group that has it."""

    broker: str
    message: StoredMessage

    @property
    def queue(self) -> MessageQueue:
        """Its queue."""
        return MessageQueue(self.message.topic, self.broker, self.message.queue_id)


@dataclass(frozen=True, slots=True)
class ShownBody:
    """A body as text: JSON (indented), text, or hexadecimal digits."""

    kind: str
    text: str
    is_cut: bool = False


class MessageFinder:
    """Searches messages."""

    def __init__(self, admin: Admin) -> None:
        """Take an admin client that is started."""
        self._admin = admin

    async def by_key(
        self, topic: str, key: str, *, unique: bool, begin_ms: int = 0, end_ms: int = FAR_FUTURE_MS
    ) -> list[FoundMessage]:
        """Return the messages with a key, or with a unique key, oldest first."""
        found = await self._admin.located_messages(
            topic, key, unique=unique, count_max=FOUND_MAX, begin_ms=begin_ms, end_ms=end_ms
        )
        return [FoundMessage(located.queue.broker_name, located.message) for located in found]

    async def by_id(self, message_id: str, known: Mapping[str, str]) -> list[FoundMessage]:
        """Return the message with an offset message id, from a broker of this cluster.

        Args:
            known: names of broker groups by the addresses of their members.

        Raises:
            ConfigError: the text is not an id.
            LocalError: the address in the id is not that of a broker of this cluster.
        """
        try:
            address, _ = parse_message_id(message_id)
        except ProtocolError as error:
            raise ConfigError(str(error)) from error
        if address not in known:
            raise LocalError(f"{address}, the address in this id, is not that of a broker of this cluster")
        message = await self._admin.message_by_id(message_id)
        return [FoundMessage(known[address], message)]

    async def by_offset(self, queue: MessageQueue, offset: int) -> list[FoundMessage]:
        """Return messages of a queue from an offset on."""
        await self._admin.topic_route(queue.topic)
        bounds = await self._admin.bounds(queue)
        start = min(max(offset, bounds.first), bounds.end)
        if start == bounds.end:
            return []
        return [FoundMessage(queue.broker_name, message) for message in await self._admin.messages_from(queue, start)]

    async def at(self, queue: MessageQueue, offset: int) -> FoundMessage | None:
        """Return the message at an offset, None if there is none."""
        message = await self._admin.message_at(queue, offset)
        return None if message is None else FoundMessage(queue.broker_name, message)

    async def by_time(self, topic: str, wall_ms: int, end_ms: int = FAR_FUTURE_MS) -> list[FoundMessage]:
        """Return the first messages of a topic stored from a time on, oldest first; `listed`."""
        route = await self._admin.topic_route(topic)
        found: list[FoundMessage] = []
        for queue in sorted(route.subscribe_queues())[:QUEUES_MAX]:
            offset = await self._admin.offset_by_time(queue, wall_ms)
            if offset < (await self._admin.bounds(queue)).end:
                some = await self._admin.messages_from(queue, offset)
                wanted = [message for message in some if wall_ms <= message.store_ms <= end_ms]
                found += [FoundMessage(queue.broker_name, listed(message)) for message in wanted]
        found.sort(key=lambda hit: (hit.message.store_ms, hit.message.log_offset))
        return found[:FOUND_MAX]

    async def newest(self, topic: str, count: int) -> list[FoundMessage]:
        """Return the newest messages of a topic, newest first: at most `count`; `listed`."""
        return list(reversed((await self.range_of(topic, -count, count))[-count:]))

    async def range_of(self, topic: str, start: int, count: int) -> list[FoundMessage]:
        """Return messages of each queue of a topic, by store time; `listed`.

        Args:
            start: offset of the first one in each queue; negative: from the end of the queue.
            count: maximum number per queue.
        """
        route = await self._admin.topic_route(topic)
        found: list[FoundMessage] = []
        for queue in sorted(route.subscribe_queues())[:QUEUES_MAX]:
            bounds = await self._admin.bounds(queue)
            position = max(bounds.first, bounds.end + start if start < 0 else start)
            end = min(bounds.end, position + count)
            while position < end:
                some = await self._admin.messages_from(queue, position, end - position)
                if not some:
                    break
                found += [
                    FoundMessage(queue.broker_name, listed(message)) for message in some if message.queue_offset < end
                ]
                position = some[-1].queue_offset + 1
        found.sort(key=lambda hit: (hit.message.store_ms, hit.message.log_offset))
        return found


def listed(message: StoredMessage) -> StoredMessage:
    """Return a message for a list, with at most `BODY_SHOWN_MAX` bytes of its body: those of all queues together may be
    of gigabytes, if they are stored compressed."""
    if len(message.body) <= BODY_SHOWN_MAX:
        return message
    end = BODY_SHOWN_MAX
    while end > BODY_SHOWN_MAX - 4 and message.body[end] & 0xC0 == 0x80:  # within a character
        end -= 1
    return replace(message, body=message.body[:end])


def copy_of(message: StoredMessage, topic: str = "") -> Message:
    """Return a message like a stored one, to send it again; it gets a unique key of its own.

    Args:
        topic: destination; "": that of the original.

    Raises:
        LocalError: the body could not be decompressed.
    """
    if message.fault:
        raise LocalError(f"this message cannot be sent again: {message.fault}")
    properties = {name: value for name, value in message.properties.items() if name not in _NOT_COPIED}
    properties[RESENT_FROM] = message.unique_key or message.offset_message_id
    return Message(
        topic or message.topic,
        message.body,
        tags=message.tags,
        keys=message.keys,
        properties=properties,
        flag=message.flag,
    )


def shown_body(message: StoredMessage) -> ShownBody:
    """Return a body as text, at most `BODY_SHOWN_MAX` characters of it."""
    try:
        text = message.body.decode()
    except UnicodeDecodeError:
        part = message.body[: BODY_SHOWN_MAX // 4]
        lines = [_hex_line(position, part[position : position + 16]) for position in range(0, len(part), 16)]
        return ShownBody("hex", "\n".join(lines), len(part) < len(message.body))
    kind = "text"
    if text[:1] in ("{", "[") and len(text) <= BODY_SHOWN_MAX:
        try:  # the numbers stay texts: a valid one may have more digits than a float, or than int() takes
            json.loads(text, parse_float=str, parse_int=str, parse_constant=_no_json)
            kind, text = "JSON", indented(text)
        except (ValueError, RecursionError):
            kind = "text"
    shown = "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text[:BODY_SHOWN_MAX])
    return ShownBody(kind, shown, len(text) > BODY_SHOWN_MAX)


def _no_json(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def indented(text: str) -> str:
    """Return valid JSON with line breaks and indentation, every token as it is; a little more than `BODY_SHOWN_MAX`
    characters at most, as indentation can be much longer than the text."""
    parts: list[str] = []
    depth = length = 0
    before = ""
    for word in _TOKENS.findall(text):
        is_end = word in ("}", "]")
        depth -= is_end
        is_empty = is_end and before in ("{", "[")
        is_new_line = before in ("{", "[", ",") or is_end
        part = "\n" + "  " * depth if is_new_line and not is_empty else ""
        part += ": " if word == ":" else word
        parts.append(part)
        length += len(part)
        if length > BODY_SHOWN_MAX:
            break
        depth += word in ("{", "[")
        before = word
    return "".join(parts)


def _hex_line(position: int, data: bytes) -> str:
    text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in data)
    return f"{position:08x}  {data.hex(' '):<47}  {text}"
