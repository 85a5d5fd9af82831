"""Records stored again in other queues, which are all left to the caller."""

from collections.abc import Callable
from typing import Any, NamedTuple

from tandemq.engine.python.queue_tail import QueueTail


class MoveRule(NamedTuple):
    """Differences between a moved record and its original, besides topic and queue."""

    drop: bytes = b""
    """Name of a property that it lacks."""
    pair: bytes = b""
    """Encoded property without which a timed message is left to the caller: the time that it is due at."""
    precision_ms: int = 0
    """Of timed messages, which get properties that say when they were taken, rounded down, and delivered, and name the
    record that they are a copy of; 0: none are."""


class MovedRecords(NamedTuple):
    """Records for the log, whose entries are staged in their queues."""

    messages: int
    """Number of moved records; the caller handles the next record."""
    data: bytes
    queues: list[Any]
    """Queues that had no staged entry before."""
    keys: bytes
    """Their keys, packed (`KEY_ROW`)."""


def move_records(
    data: bytes,
    base: int,
    entries: bytes,
    queue_offset: int,
    topic: bytes,
    queue_id: int,
    rule: MoveRule,
    log_offset: int,
    room: int,
    store_ms: int,
    queue_for: Callable[[bytes, int], QueueTail | None],
) -> MovedRecords:
    """Return the records of a queue, verified, for the topics and queues that their properties name.

    REAL_TOPIC and REAL_QID name them. Stops at the first record that is not as a broker writes it, that has no such
    queue, or that `data` or the room does not suffice for.

    Args:
        data: bytes of the log.
        base: log offset of `data[0]`.
        entries: packed, of consecutive messages.
        queue_offset: of the first.
        topic: of the queue that they are in.
        queue_id: of the same.
        rule: how the copies differ.
        log_offset: of the first copy.
        room: bytes for the copies.
        store_ms: calendar time of the copies.
        queue_for: returns the queue of a topic; None if there is no such topic.
    """
    return MovedRecords(0, b"", [], b"")
