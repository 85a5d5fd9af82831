"""Numbers of waiting messages by topic, in a file of `config/` that operators and Java brokers read.

Source: RocketMQ TransactionMetrics, TimerMetrics.
"""

from collections.abc import MutableMapping
from typing import Any

from tandemq.boundary import Now
from tandemq.broker.state.persistence import Saver
from tandemq.storage.json_tables import DataVersion, TableFile


class TopicCounts:
    """Counts that follow from the log; the owner goes on changing them."""

    def __init__(self, saver: Saver, file: TableFile, key: str, now: Now) -> None:
        """Begin without messages. `key`: name of the counts in the file."""
        self._saver = saver
        self._file = file
        self._key = key
        self.version = DataVersion(now.wall_ms)
        self._counts: MutableMapping[str, int] = {}
        self._changed_ms = now.wall_ms
        self._is_dirty = False

    def adopt(self, counts: MutableMapping[str, int]) -> None:
        """Take the counts by topic."""
        self._counts = counts
        self._is_dirty = bool(counts) or self._saver.disk.exists(self._file.path)

    def changed(self, wall_ms: int) -> None:
        """Note that the counts changed."""
        self._changed_ms = wall_ms
        self._is_dirty = True

    def topic_removed(self, topic: str, wall_ms: int) -> None:
        """Forget a deleted topic; its messages that still wait stay counted until they are due."""
        if self._counts.get(topic) == 0:
            del self._counts[topic]
            self.changed(wall_ms)

    def by_topic(self) -> dict[str, int]:
        """Return the number of waiting messages of each topic that has any."""
        return {topic: count for topic, count in self._counts.items() if count > 0}

    def as_json(self) -> dict[str, Any]:
        """Return the table in the form of the file."""
        counts = {
            topic: {"count": max(0, count), "timeStamp": self._changed_ms} for topic, count in self._counts.items()
        }
        return {"dataVersion": self.version.as_json(), self._key: counts}

    def save(self) -> None:
        """Write the file if something changed."""
        if self._is_dirty:
            self.version.next(self._changed_ms)
            self._saver.later(self._file, self.as_json, is_awaited=False)
            self._is_dirty = False
