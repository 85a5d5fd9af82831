"""A queue that is assigned to a consumer, from its assignment until it is dropped.

OPENING ─► ACTIVE ─► DROPPED        a queue that is assigned again is a new object
"""

from enum import Enum
from typing import NamedTuple

from tandemq.client.consumer.queues.process_queue import ProcessQueue
from tandemq.client.consumer.queues.queue_puller import QueuePuller
from tandemq.model.message import MessageQueue


class AssignmentState(Enum):
    """State of an assigned queue."""

    OPENING = "opening"
    """Its lock and its offset are requested."""
    ACTIVE = "active"
    """It is pulled."""
    DROPPED = "dropped"
    """It is assigned to another member, or to none."""


class CommittedOffset(NamedTuple):
    """An offset, and the address of the broker that stores it."""

    offset: int
    address: str


class AssignedQueue:
    """One queue that a consumer reads."""

    __slots__ = ("committed", "is_locking", "process_queue", "puller", "queue", "state")

    def __init__(self, queue: MessageQueue, process_queue: ProcessQueue, puller: QueuePuller) -> None:
        """Not pulled yet."""
        self.queue = queue
        self.process_queue = process_queue
        self.puller = puller
        self.state = AssignmentState.OPENING
        self.is_locking = False
        """Whether its lock is being acquired at another broker."""
        self.committed: CommittedOffset | None = None
        """The last commit that a broker confirmed."""
