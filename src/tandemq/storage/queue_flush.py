"""Flush of all queues in parts: with many queues one turn cannot write the entries of all of them.

It writes the entries of the records that the log had at its beginning, and no later ones: then the queues' files have
exactly as many entries as the marks will state, and a start after a crash of the process removes none of them.
"""

from itertools import islice

from tandemq.storage.consume_queue import ConsumeQueue


class QueueFlush:
    """A flush in progress."""

    def __init__(self, end: int, entries: int, store_ms: int, left: dict[ConsumeQueue, int]) -> None:
        """Begin.

        Args:
            end: end of the log.
            entries: sum of all queues' max offsets.
            store_ms: store time of the last record.
            left: max offset of each queue with entries in memory.
        """
        self.end = end
        self.entries = entries
        self.store_ms = store_ms
        self.left = left
        self._written: dict[ConsumeQueue, tuple[int, int]] = {}
        """Queues whose entries are written: how many entries the files had before, and have now."""

    def write_some(self, count: int) -> list[ConsumeQueue]:
        """Write the entries of up to `count` queues, and return those that have none in memory now.

        Raises:
            DiskFull, DiskFailed: entries that were not written stay in memory, and are left.
        """
        clean = []
        for queue, end in list(islice(self.left.items(), count)):
            self._written.setdefault(queue, (queue.tail_start, end))
            queue.flush(end)
            del self.left[queue]
            if not queue.dirty:
                clean.append(queue)
        return clean

    def drop(self, queue: ConsumeQueue) -> int:
        """Leave out a queue that is deleted; return how many entries its files had before this flush."""
        before, end = self._written.pop(queue, (queue.tail_start, queue.tail_start))
        self.entries -= self.left.pop(queue, end)
        return before
