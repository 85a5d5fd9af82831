"""How far one queue is consumed: what was pulled, what is not acknowledged yet, what may be committed.

    committable ─► first message not acknowledged … next_offset ─► what is pulled next

What always holds: `committable` never passes a message that was not acknowledged, and never goes back except by
`reset`, which starts a new generation: acknowledgements of an older one mean nothing.
"""

from tandemq.model.message import MessageQueue, StoredMessage


class ProcessQueue:
    """The messages of one queue between pulled and acknowledged."""

    __slots__ = ("_bytes", "_bytes_max", "_count_max", "_unacked", "generation", "next_offset", "queue")

    def __init__(self, queue: MessageQueue, count_max: int, bytes_max: int) -> None:
        """Empty, at offset 0; `reset` gives the real one."""
        self.queue = queue
        self.next_offset = 0
        self.generation = 0
        self._unacked: dict[int, int] = {}
        self._bytes = 0
        self._count_max = count_max
        self._bytes_max = bytes_max

    def add(self, message: StoredMessage) -> None:
        """A pulled message that somebody will acknowledge; it counts with the larger of its record and its body, which
        may have been compressed."""
        size = max(message.size, len(message.body))
        self._unacked[message.queue_offset] = size
        self._bytes += size

    def ack(self, queue_offset: int) -> None:
        """It is done with; a second time is harmless."""
        self._bytes -= self._unacked.pop(queue_offset, 0)

    def is_unacked(self, queue_offset: int) -> bool:
        """Whether a message was pulled and not acknowledged."""
        return queue_offset in self._unacked

    def reset(self, queue_offset: int) -> None:
        """Forget what was pulled and go on from another offset."""
        self._unacked.clear()
        self._bytes = 0
        self.next_offset = queue_offset
        self.generation += 1

    @property
    def committable(self) -> int:
        """The offset from which another consumer would have to go on."""
        return next(iter(self._unacked), self.next_offset)

    @property
    def has_room(self) -> bool:
        """Whether more may be pulled."""
        return len(self._unacked) < self._count_max and self._bytes < self._bytes_max

    @property
    def count(self) -> int:
        """Messages not acknowledged."""
        return len(self._unacked)

    @property
    def bytes_held(self) -> int:
        """Their bytes."""
        return self._bytes
