"""Files of deleted queues, which are deleted some at a time: one takes about a third of a millisecond."""

from collections.abc import Callable

from tandemq.boundary import Disk
from tandemq.storage.consume_queue import queue_directory

REMOVED_AT_ONCE = 2
"""Number of queues whose files are deleted with their topic, without waiting for a later turn."""


class DeletedQueues:
    """Queues without entries in memory whose files are still there."""

    def __init__(self, disk: Disk, is_used: Callable[[str], bool]) -> None:
        """Begin without queues. `is_used`: returns whether a topic has queues, again."""
        self._disk = disk
        self._is_used = is_used
        self._left: dict[str, dict[int, None]] = {}
        """Queue ids by topic."""

    def __len__(self) -> int:
        """Return the number of queues."""
        return sum(map(len, self._left.values()))

    def __bool__(self) -> bool:
        """Whether files of any queue are left."""
        return bool(self._left)

    def add(self, topic: str, queue_ids: list[int]) -> None:
        """Add queues of a topic; with few the files are deleted at once.

        Raises:
            DiskFailed: files could not be deleted; `remove_some` tries again.
        """
        self._left.setdefault(topic, {}).update(dict.fromkeys(queue_ids))
        if len(self) <= REMOVED_AT_ONCE:
            self.remove_some(REMOVED_AT_ONCE)

    def remove_some(self, count: int) -> None:
        """Delete the files of up to `count` queues, and the directories of topics without queues. Raises as `add`."""
        while self._left and count > 0:
            topic, queue_ids = next(iter(self._left.items()))
            if queue_ids:
                self.remove(topic, next(iter(queue_ids)))
            else:
                self._end(topic)
            count -= 1

    def remove(self, topic: str, queue_id: int) -> None:
        """Delete the files of a queue, if they are left, before it is created again. Raises as `add`."""
        queue_ids = self._left.get(topic, {})
        if queue_id in queue_ids:
            self._disk.remove(queue_directory(topic, queue_id))
            del queue_ids[queue_id]
            if not queue_ids:
                self._end(topic)

    def _end(self, topic: str) -> None:
        if not self._is_used(topic):
            self._disk.remove(f"consumequeue/{topic}")
        del self._left[topic]
