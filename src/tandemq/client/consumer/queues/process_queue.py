"""Messages of one queue that were pulled and not acknowledged, and the offset that may be committed.

    committable ─► first unacknowledged message … next_offset ─► what is pulled next

Invariant: `committable` never passes an unacknowledged message, and never decreases except by `reset`, which starts a
new generation: acknowledgements of an older generation are void.

Acknowledgements may be noted one by one (`note`) and take effect together, at the latest with the next question about
the queue.

A message is *overtaken* while it is unacknowledged and a later one of the queue is acknowledged: another consumer
that continues at `committable` gets the later one again.

Source: RocketMQ ProcessQueue.
"""

from collections.abc import Iterable

from tandemq.model.message import MessageQueue, StoredMessage

NOTED_MAX = 64
"""Maximum number of acknowledgements that are noted and have no effect yet."""


class ProcessQueue:
    """Unacknowledged messages of one queue."""

    __slots__ = (
        "_acked_end",
        "_bytes",
        "_bytes_max",
        "_count_max",
        "_noted",
        "_unacked",
        "generation",
        "next_offset",
        "queue",
    )

    def __init__(self, queue: MessageQueue, count_max: int, bytes_max: int) -> None:
        """Empty, at offset 0 until `reset`. `count_max`, `bytes_max`: limits of `has_room`."""
        self.queue = queue
        self.next_offset = 0
        self.generation = 0
        self._unacked: dict[int, StoredMessage] = {}
        self._noted: list[int] = []
        self._acked_end = 0
        """The offset after the last acknowledged message."""
        self._bytes = 0
        self._count_max = count_max
        self._bytes_max = bytes_max

    def add(self, messages: Iterable[StoredMessage]) -> None:
        """Add pulled messages. The size of one is the larger of its record and its body, which may be decompressed."""
        if self._noted:
            self._apply()
        unacked, added = self._unacked, 0
        for message in messages:
            size, body_bytes = message.size, len(message.body)
            unacked[message.queue_offset] = message
            added += size if size >= body_bytes else body_bytes
        self._bytes += added

    def ack(self, queue_offset: int) -> None:
        """Remove an acknowledged message; has no effect a second time."""
        if self._noted:
            self._apply()
        self._remove((queue_offset,))

    def note(self, queue_offset: int) -> None:
        """Remove an acknowledged message soon; nothing is called when the queue has room again."""
        noted = self._noted
        noted.append(queue_offset)
        if len(noted) >= NOTED_MAX:
            self._apply()

    def _apply(self) -> None:
        """Remove the messages whose acknowledgements are noted."""
        self._remove(self._noted)
        self._noted.clear()

    def _remove(self, queue_offsets: Iterable[int]) -> None:
        unacked, removed, acked_end = self._unacked, 0, self._acked_end
        for queue_offset in queue_offsets:
            message = unacked.pop(queue_offset, None)
            if message is not None:
                size, body_bytes = message.size, len(message.body)
                removed += size if size >= body_bytes else body_bytes
                if queue_offset >= acked_end:
                    acked_end = queue_offset + 1
        self._bytes -= removed
        self._acked_end = acked_end

    def reset(self, queue_offset: int) -> None:
        """Drop all messages and continue at another offset."""
        self._noted.clear()
        self._unacked.clear()
        self._bytes = 0
        self._acked_end = 0
        self.next_offset = queue_offset
        self.generation += 1

    @property
    def committable(self) -> int:
        """The offset at which another consumer would have to continue."""
        if self._noted:
            self._apply()
        return next(iter(self._unacked), self.next_offset)

    def overtaken(self) -> list[StoredMessage]:
        """Return the unacknowledged messages before the last acknowledged one."""
        self._apply()
        return [message for offset, message in self._unacked.items() if offset < self._acked_end]

    @property
    def has_room(self) -> bool:
        """Whether more messages may be pulled."""
        if self._noted:
            self._apply()
        return len(self._unacked) < self._count_max and self._bytes < self._bytes_max

    @property
    def bytes_left(self) -> int:
        """How many bytes more it may hold."""
        self._apply()
        return max(0, self._bytes_max - self._bytes)

    @property
    def count(self) -> int:
        """Number of unacknowledged messages."""
        self._apply()
        return len(self._unacked)

    @property
    def bytes_held(self) -> int:
        """Size of the unacknowledged messages, bytes."""
        self._apply()
        return self._bytes
