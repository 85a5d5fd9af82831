"""Queue tails: the entries of consume queues that are not in files yet."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from tandemq.codec.record.entries import QUEUE_ENTRY, QUEUE_ENTRY_BYTES

_pack = QUEUE_ENTRY.pack
_unpack = QUEUE_ENTRY.unpack_from


class QueueTail:
    """The entries of a consume queue that are not in its files yet.

    [tail_start, max_offset)     entries of messages in the log
    [max_offset, next_offset)    staged entries: their messages are not written to the log yet
    """

    __slots__ = ("_entries", "held", "last_log_end", "max_offset", "min_offset", "next_offset", "tail_start")

    def __init__(self) -> None:
        """Begin without entries."""
        self._entries = bytearray()
        self.tail_start = 0
        self.max_offset = 0
        self.next_offset = 0
        """Queue offset of the next message; larger than `max_offset` only within a turn."""
        self.last_log_end = 0
        """Log offset of the end of the newest record in this queue."""
        self.min_offset = 0
        """Queue offset of the first message that may still be in the log."""
        self.held: object | None = None
        """Pulls waiting for this queue; owned by the broker's long polling service."""

    def start_tail(self, queue_offset: int) -> None:
        """Drop all entries; the next one has this queue offset."""
        self._entries.clear()
        self.tail_start = self.max_offset = self.next_offset = queue_offset

    def stage_entry(self, log_offset: int, size: int, tags_code: int, times: int = 1) -> bool:
        """Stage the entry of the next queue offset, or of several; return whether it is the first staged one."""
        is_first = self.next_offset == self.max_offset
        self._entries += _pack(log_offset, size, tags_code) * times
        self.next_offset += times
        return is_first

    def stage_packed(self, entries: bytes) -> None:
        """Stage packed entries of the next queue offsets."""
        self._entries += entries
        self.next_offset += len(entries) // QUEUE_ENTRY_BYTES

    def staged_log_end(self) -> int:
        """Return the end of the record of the newest entry, staged or not."""
        if self.next_offset == self.max_offset:
            return self.last_log_end
        log_offset, size, _ = _unpack(self._entries, len(self._entries) - QUEUE_ENTRY_BYTES)
        return int(log_offset + size)

    def commit_staged(self) -> None:
        """Take the staged entries as those of messages in the log."""
        self.last_log_end = self.staged_log_end()
        self.max_offset = self.next_offset

    def drop_staged(self) -> None:
        """Drop the staged entries: their messages could not be written to the log."""
        self.unstage(self.max_offset)

    def unstage(self, queue_offset: int) -> None:
        """Drop the staged entries from a queue offset on."""
        self.next_offset = max(queue_offset, self.max_offset)
        del self._entries[(self.next_offset - self.tail_start) * QUEUE_ENTRY_BYTES :]

    def tail(self, queue_offset: int, stop: int) -> bytes:
        """Return the packed entries `[queue_offset, stop)`, all of them at or after `tail_start`."""
        start = self.tail_start
        return bytes(self._entries[(queue_offset - start) * QUEUE_ENTRY_BYTES : (stop - start) * QUEUE_ENTRY_BYTES])

    def rewrite_tail(self, queue_offset: int, packed: bytes) -> None:
        """Replace entries at or after `tail_start`."""
        start = (queue_offset - self.tail_start) * QUEUE_ENTRY_BYTES
        self._entries[start : start + len(packed)] = packed

    def advance_tail(self, count: int) -> None:
        """Drop the first `count` entries, which are in the files now."""
        del self._entries[: count * QUEUE_ENTRY_BYTES]
        self.tail_start += count

    def cut_tail(self, queue_offset: int) -> None:
        """Drop the entries from a queue offset on, which is at or after `tail_start`; none is staged."""
        del self._entries[(queue_offset - self.tail_start) * QUEUE_ENTRY_BYTES :]
        self.max_offset = self.next_offset = queue_offset


_Tail = TypeVar("_Tail", bound=QueueTail)


def commit_staged(queues: Sequence[_Tail], woken: list[_Tail]) -> None:
    """Commit the staged entries of queues; add those with held pulls to `woken`."""
    for queue in queues:
        queue.commit_staged()
        if queue.held is not None:
            woken.append(queue)


def waiting_messages(queues: Mapping[int, QueueTail], offsets: Mapping[int, int], number: int) -> dict[int, int]:
    """Return how many messages lie behind offsets, for each queue with any.

    Args:
        queues: of a topic, by queue id; a dict.
        offsets: of a consumer group, by queue id; a dict. Without one all messages of a queue count.
        number: of queues: higher queue ids are left out.
    """
    return {
        queue_id: waiting
        for queue_id, queue in queues.items()
        if (waiting := queue.max_offset - offsets.get(queue_id, 0)) > 0 and queue_id < number
    }
