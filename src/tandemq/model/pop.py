"""POP consumption: names of topics, receipt handles, and the texts that say which messages a response has.

A pop takes messages of any queue. They are invisible to the group for a time, and come back unless each is acknowledged
by its handle. Source: docs/reference/pop.md; RocketMQ ExtraInfoUtil, KeyBuilder, PopAckConstants.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from tandemq.errors import ProtocolError
from tandemq.model.java_types import INT32_MAX
from tandemq.model.topic import DLQ_PREFIX, RETRY_PREFIX, REVIVE_TOPIC_PREFIX

REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
"""Group whose offsets are the progress in the revive topic."""
ORDERED_QUEUE = 999
"""Instead of a revive queue in handles of ordered pops."""
INVISIBLE_MS_MAX = 12 * 3_600_000
"""Longest invisible time of messages that gRPC clients receive."""
MESSAGES_MAX = 32
"""Maximum number of messages of one pop."""
ANY_QUEUE = -1
POP_CK = "POP_CK"
"""Property of a popped message of a retry topic: its handle, as the broker makes it."""
FIRST_POP_TIME = "1ST_POP_TIME"
"""Property: calendar time of the first pop of a message that came back."""
_NUMBER_DIGITS_MAX = 19


class TopicKind(IntEnum):
    """Kind of the topic that a popped message lies in, as handles and responses have it."""

    NORMAL = 0
    RETRY_V1 = 1
    RETRY_V2 = 2


def revive_topic(cluster: str) -> str:
    """Return the topic of the checkpoints and acknowledgements that are due."""
    return REVIVE_TOPIC_PREFIX + cluster


def pop_retry_topic(group: str, topic: str, kind: TopicKind) -> str:
    """Return the topic that a group's unacknowledged messages of a topic come back to."""
    if kind is TopicKind.NORMAL:
        return topic
    return f"{RETRY_PREFIX}{group}{'_' if kind is TopicKind.RETRY_V1 else '+'}{topic}"


def kind_of(topic: str) -> TopicKind:
    """Return the kind of a topic, by its name."""
    if not topic.startswith(RETRY_PREFIX):
        return TopicKind.NORMAL
    return TopicKind.RETRY_V2 if "+" in topic else TopicKind.RETRY_V1


def popped_topic(stored: str, group: str) -> str:
    """Return the topic that a group pops for messages of a topic or of its retry topic."""
    for kind in (TopicKind.RETRY_V1, TopicKind.RETRY_V2):
        prefix = pop_retry_topic(group, "", kind)
        if stored.startswith(prefix):
            return stored.removeprefix(prefix)
    return stored


def is_poppable(topic: str) -> bool:
    """Whether a name is that of a topic of messages: retry topics are chosen by the broker."""
    return not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


class Handle(NamedTuple):
    """What identifies a popped message to the broker: `extraInfo` in requests, eight numbers and names in a line."""

    start_offset: int
    """Queue offset at which the pop began to read its queue."""
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    """Queue of the revive topic, or ORDERED_QUEUE."""
    kind: TopicKind
    broker: str
    queue_id: int
    offset: int

    @property
    def revive_ms(self) -> int:
        """Calendar time at which the message comes back."""
        return self.pop_ms + self.invisible_ms

    def __str__(self) -> str:
        """Return the text."""
        return " ".join([str(part) for part in self])


def parse_handle(text: str) -> Handle:
    """Return a handle; what follows its eight parts is ignored, since proxies add the log offset.

    Raises:
        ProtocolError: it is none.
    """
    parts = text.split(" ")
    if len(parts) < 8:
        raise ProtocolError(f"{text[:200]!r} is no handle of a popped message: eight parts are expected")
    start, pop, invisible, revive, kind, queue_id, offset = (_number(parts[at], text) for at in (0, 1, 2, 3, 4, 6, 7))
    if kind > TopicKind.RETRY_V2 or max(revive, queue_id) > INT32_MAX or not start <= offset:
        raise ProtocolError(f"{text[:200]!r} is no handle of a popped message: a number is out of range")
    return Handle(start, pop, invisible, revive, TopicKind(kind), parts[5], queue_id, offset)


def _number(part: str, text: str) -> int:
    if not (part.isdecimal() and part.isascii() and len(part) <= _NUMBER_DIGITS_MAX):
        raise ProtocolError(f"{text[:200]!r} is no handle of a popped message: {part[:32]!r} is no number")
    return int(part)


class PoppedQueue(NamedTuple):
    """The messages that a pop took from one queue."""

    kind: TopicKind
    queue_id: int
    start_offset: int
    offsets: Sequence[int]


def start_offset_info(queues: Iterable[PoppedQueue]) -> str:
    """Return the queues and their first offsets, as the response to a pop has them."""
    return ";".join([f"{queue.kind:d} {queue.queue_id} {queue.start_offset}" for queue in queues])


def order_count_info(kind: TopicKind, queue_id: int, offsets: Sequence[int], attempts: Mapping[int, int]) -> str:
    """Return how often the messages of an ordered pop were handed out before, as the response has it.

    The last part is for older clients: the lowest number, of all messages.
    """
    counted = [f"{kind:d} qo{queue_id}%{offset} {attempts[offset]}" for offset in offsets if attempts.get(offset)]
    least = min((attempts.get(offset, 0) for offset in offsets), default=0)
    return ";".join([*counted, f"{kind:d} {queue_id} {least}"])


def message_offset_info(queues: Iterable[PoppedQueue]) -> str:
    """Return the queue offsets of the messages, as the response to a pop has them."""
    return ";".join([f"{queue.kind:d} {queue.queue_id} {','.join(map(str, queue.offsets))}" for queue in queues])
