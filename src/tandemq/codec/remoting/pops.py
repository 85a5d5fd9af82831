"""Requests that end popped messages, and what makes a handle of each message in the response to a pop.

Used by the client and the proxy, which send them, and by the broker, which reads batches of acknowledgements.
Source: docs/reference/pop.md; RocketMQ ExtraInfoUtil, BatchAck, AckMessageRequestHeader, PopMessageRequestHeader.
"""

import base64
import binascii
import re
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from tandemq.errors import ProtocolError
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.model.java_types import Int32, Int64
from tandemq.model.message import StoredMessage
from tandemq.model.pop import (
    ANY_QUEUE,
    MESSAGES_MAX,
    ORDERED_QUEUE,
    POP_CK,
    Handle,
    TopicKind,
    kind_of,
    parse_handle,
    pop_retry_topic,
)

BITS_BYTES_MAX = 8_192
"""Maximum size of the bits of an entry in a batch of acknowledgements."""
_NOT_ZERO = re.compile(rb"[^\0]")


_NUMBER_MAX = (1 << 63) - 1


class PopQuery(NamedTuple):
    """What a pop asks for."""

    group: str
    topic: str
    batch: int
    """Maximum number of messages."""
    invisible_ms: int
    expression: str
    expression_type: str
    starts_at_end: bool
    """Where a group without an offset begins: at the last message, unless the queue is young; else at the first one."""
    is_ordered: bool = False
    attempt_id: str | None = None
    """Ordered pops: the same one gets the same messages again."""


def pop_request(query: PopQuery, poll_ms: int) -> Command:
    """Return the request for messages of any queue. `poll_ms`: for how long the broker holds it if there are none."""
    fields = {
        "consumerGroup": query.group,
        "topic": query.topic,
        "queueId": str(ANY_QUEUE),
        "maxMsgNums": str(query.batch),
        "invisibleTime": str(query.invisible_ms),
        "pollTime": str(poll_ms),
        "bornTime": "0",  # the broker's clock, whatever ours shows
        "initMode": str(int(query.starts_at_end)),
        "expType": query.expression_type,
        "exp": query.expression,
        "order": "true" if query.is_ordered else "false",
    }
    if query.is_ordered and query.attempt_id is not None:
        fields["attemptId"] = query.attempt_id
    return Command(RequestCode.POP_MESSAGE, fields=fields)


class PopAnswer:
    """The response to a pop: what makes a handle of each of its messages."""

    def __init__(self, broker: str, answer: Command) -> None:
        """Read the header.

        Raises:
            ProtocolError: it is invalid.
        """
        fields = answer.fields
        self._broker = broker
        try:
            self._pop_ms, self._invisible_ms, self._revive_queue = _times_and_queue(answer)
            self._starts = {
                (int(kind), int(queue_id)): _number(start)
                for kind, queue_id, start in (part.split(" ") for part in _parts(fields.get("startOffsetInfo", "")))
            }
            self._counts = {
                (int(kind), queue): int(count)
                for kind, queue, count in (part.split(" ") for part in _parts(fields.get("orderCountInfo", "")))
            }
        except (KeyError, ValueError) as error:
            raise ProtocolError(f"the response to a pop is invalid: {error!r}") from error

    def handle(self, stored: StoredMessage) -> Handle:
        """Return the handle of a message."""
        text = stored.properties.get(POP_CK)
        if text is not None and (made := self._made(text)) is not None:
            return made
        kind, queue_id, offset = kind_of(stored.topic), stored.queue_id, stored.queue_offset
        start = min(offset, self._starts.get((kind, queue_id), offset))
        return Handle(start, self._pop_ms, self._invisible_ms, self._revive_queue, kind, self._broker, queue_id, offset)

    def _made(self, text: str) -> Handle | None:
        """Return a handle that the broker has made for this pop; None if a producer has invented the property."""
        try:
            handle = parse_handle(text)
        except ProtocolError:
            return None
        is_own = (handle.broker, handle.pop_ms) == (self._broker, self._pop_ms)
        return handle if is_own and handle.kind is not TopicKind.NORMAL else None

    def attempts(self, stored: StoredMessage) -> int:
        """Return how often a message was delivered before."""
        if self._revive_queue != ORDERED_QUEUE:
            return stored.reconsume_times
        counted = self._counts.get((0, f"qo{stored.queue_id}%{stored.queue_offset}"))
        if counted is None:
            counted = self._counts.get((0, str(stored.queue_id)), 0)
        return max(stored.reconsume_times, counted)


def _times_and_queue(answer: Command) -> tuple[int, int, int]:
    """Return pop time, invisible time and revive queue.

    Raises:
        KeyError, ValueError: one is missing, or is no such number.
    """
    fields = answer.fields
    return _number(fields["popTime"]), _number(fields["invisibleTime"]), _number(fields["reviveQid"])


def _number(text: str) -> int:
    number = int(text)
    if not 0 <= number <= _NUMBER_MAX:
        raise ValueError(f"{text} is out of range")
    return number


def _parts(text: str) -> list[str]:
    return [part for part in text.split(";") if part]


# The end of a popped message.


def ack_request(handle: Handle, group: str, topic: str) -> Command:
    """Return the request that acknowledges a message. `topic`: that which was popped."""
    return Command(RequestCode.ACK_MESSAGE, fields=_named(handle, group, topic))


def change_request(handle: Handle, group: str, topic: str, invisible_ms: int, *, is_suspended: bool = False) -> Command:
    """Return the request that makes a message visible so long after now.

    Args:
        handle: of the message.
        group: that has popped it.
        topic: that which was popped.
        invisible_ms: after which it comes back.
        is_suspended: whether it is put off, so that its coming back counts as no attempt.
    """
    fields = _named(handle, group, topic) | {"invisibleTime": str(invisible_ms)}
    if is_suspended:
        fields["suspend"] = "true"
    return Command(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields=fields)


def changed_handle(old: Handle, answer: Command) -> Handle:
    """Return the handle of a message whose time was changed.

    Raises:
        ProtocolError: the response has no valid fields.
    """
    try:
        pop_ms, invisible_ms, revive_queue = _times_and_queue(answer)
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"the response to a changed invisible time is invalid: {error!r}") from error
    if not pop_ms:
        return old  # of an ordered pop whose message was acknowledged meanwhile
    return Handle(old.offset, pop_ms, invisible_ms, revive_queue, old.kind, old.broker, old.queue_id, old.offset)


def dead_letter_request(handle: Handle, log_offset: int, group: str, topic: str, message_id: str) -> Command:
    """Return the request that stores a message in the group's topic of dead letters.

    Args:
        handle: of the message.
        log_offset: of its record.
        group: that has popped it.
        topic: that which was popped.
        message_id: that the dead letter keeps as its origin.
    """
    fields = {
        "offset": str(log_offset),
        "group": group,
        "delayLevel": "-1",
        "originMsgId": message_id,
        "originTopic": pop_retry_topic(group, topic, handle.kind),
        "maxReconsumeTimes": "0",
        "unitMode": "false",
    }
    return Command(RequestCode.CONSUMER_SEND_MSG_BACK, fields=fields)


def _named(handle: Handle, group: str, topic: str) -> dict[str, str]:
    return {
        "consumerGroup": group,
        "topic": pop_retry_topic(group, topic, handle.kind),
        "queueId": str(handle.queue_id),
        "offset": str(handle.offset),
        "extraInfo": str(handle),
    }


# Acknowledgements of several messages.


class AckEntry(msgspec.Struct):
    """Acknowledged messages of one pop from one queue."""

    t: str
    c: str
    q: Int32
    rq: Int32
    so: Int64
    pt: Int64
    it: Int64
    b: str
    """The messages: standard Base64 of the bits, bit n of byte n // 8 is the one at offset `so` + n."""
    r: str = "0"


class BatchAckBody(msgspec.Struct, rename="camel"):
    """Body of BATCH_ACK_MESSAGE."""

    acks: list[AckEntry] = []
    broker_name: str = ""


class AckedMessage(NamedTuple):
    """A message to acknowledge: its handle, and the topic that was popped."""

    handle: Handle
    topic: str

    @property
    def fits_batch(self) -> bool:
        """Whether an entry of a batch reaches from the start of the pop to this message."""
        return self.handle.offset - self.handle.start_offset < 8 * BITS_BYTES_MAX


def batch_ack_request(acked: Iterable[AckedMessage], group: str, broker: str) -> Command:
    """Return the request that acknowledges messages of one broker, each of which fits a batch."""
    bits: dict[AckedMessage, int] = {}
    for handle, topic in acked:
        of_pop = AckedMessage(handle._replace(offset=0), topic)
        bits[of_pop] = bits.get(of_pop, 0) | 1 << handle.offset - handle.start_offset
    entries = [
        AckEntry(
            topic,
            group,
            handle.queue_id,
            handle.revive_queue,
            handle.start_offset,
            handle.pop_ms,
            handle.invisible_ms,
            base64.b64encode(number.to_bytes(-(-number.bit_length() // 8), "little")).decode(),
            str(int(handle.kind)),
        )
        for (handle, topic), number in bits.items()
    ]
    return Command(RequestCode.BATCH_ACK_MESSAGE, body=msgspec.json.encode(BatchAckBody(entries, broker)))


def acked_offsets(entry: AckEntry) -> list[int]:
    """Return the queue offsets that an entry acknowledges.

    Raises:
        ProtocolError: its bits are malformed, or more than a pop has messages.
    """
    try:
        bits = base64.b64decode(entry.b, validate=True) if len(entry.b) <= 2 * BITS_BYTES_MAX else b""
    except (binascii.Error, ValueError) as error:
        raise ProtocolError(f"b={entry.b[:32]!r}: Base64 is expected") from error
    if not bits or len(bits) > BITS_BYTES_MAX or int.from_bytes(bits).bit_count() > MESSAGES_MAX:
        raise ProtocolError(f"b={entry.b[:32]!r}: the bits of 1 to {MESSAGES_MAX} messages are expected")
    filled = ((found.start(), found[0][0]) for found in _NOT_ZERO.finditer(bits))
    return [entry.so + 8 * at + bit for at, byte in filled for bit in range(8) if byte >> bit & 1]
