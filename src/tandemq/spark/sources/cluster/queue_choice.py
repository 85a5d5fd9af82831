"""The queue of each row of the sink, by the option `queueBy`.

    any         none: the client chooses, and another one for a retry
    key         by the hash of the message's keys, as Java's SelectMessageQueueByHash; without keys as `any`
    partition   by the column `partition`, a number among the topic's queues, sorted by broker group and queue id;
                NULL as `any`

A task asks for the queues of a topic once, so that all attempts for a row go to the same queue.

Source: docs/guides/pipeline.md, "The cluster as a sink".
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from tandemq.errors import LocalError
from tandemq.model.java_hash import java_hashes
from tandemq.model.message import MessageQueue


class QueueBy(Enum):
    """What chooses the queue of a message."""

    ANY = "any"
    KEY = "key"
    PARTITION = "partition"


class Lane(NamedTuple):
    """Where messages go, in their order; `queue` None: to any queue of the topic, in any order."""

    topic: str
    queue: MessageQueue | None = None


QueuesOf = Callable[[str], Sequence[MessageQueue]]
"""Returns the queues of a topic that accept messages."""


def lane_of(topic: str, by: QueueBy, queues_of: QueuesOf, *, keys: str, partition: int | None, row: int) -> Lane:
    """Return the lane of a row.

    Args:
        row: its number in its partition, for messages.
    Raises:
        LocalError: the topic has no such queue; names the row.
    """
    if by is QueueBy.KEY and keys:
        queues = queues_of(topic)
        return Lane(topic, queues[places_of([keys], len(queues))[0]])
    if by is QueueBy.PARTITION and partition is not None:
        queues = queues_of(topic)
        if not 0 <= partition < len(queues):
            raise LocalError(
                f"row {row} of its partition: partition is {partition}, {topic} has {len(queues)} queues",
                hint=f"give a number from 0 to {len(queues) - 1}, or NULL for any queue",
            )
        return Lane(topic, queues[partition])
    return Lane(topic)


def places_of(keys: Sequence[str], count: int) -> list[int]:
    """Return the number of the queue of each of these keys among `count`; -1 for an empty one: any."""
    hashes = iter(java_hashes([key for key in keys if key]))
    return [abs(next(hashes)) % count if key else -1 for key in keys]
