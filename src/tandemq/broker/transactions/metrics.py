"""Number of open transactions by topic, in `config/transactionMetrics`.

Source: docs/reference/transactions.md; RocketMQ TransactionMetrics.
"""

from collections.abc import Mapping
from typing import Any

from tandemq.boundary import Now
from tandemq.broker.context import CurrentConfig
from tandemq.broker.state.persistence import Saver
from tandemq.broker.state.schedule import Schedule
from tandemq.storage.json_tables import DataVersion

FILE = "transactionMetrics"


class TransactionMetrics:
    """The counts, as operators and Java brokers read them."""

    def __init__(self, saver: Saver, schedule: Schedule, current: CurrentConfig, now: Now) -> None:
        """Begin without transactions; the counts follow from the log."""
        self._saver = saver
        self.version = DataVersion(now.wall_ms)
        self._counts: Mapping[str, int] = {}
        self._changed_ms = now.wall_ms
        self._is_dirty = False
        schedule.every(
            lambda: current.config.transaction_metrics_ms,
            lambda _: self.save(),
            first_ms=now.mono_ms + current.config.transaction_metrics_ms,
        )

    def adopt(self, counts: Mapping[str, int]) -> None:
        """Take the counts by topic, which the owner goes on changing."""
        self._counts = counts
        self._is_dirty = bool(counts) or self._saver.disk.exists(f"config/{FILE}")

    def changed(self, wall_ms: int) -> None:
        """Note that the counts changed."""
        self._changed_ms = wall_ms
        self._is_dirty = True

    def open_by_topic(self) -> dict[str, int]:
        """Return the number of open transactions by topic."""
        return {topic: count for topic, count in self._counts.items() if count}

    def as_json(self) -> dict[str, Any]:
        """Return the table in the form of the file."""
        counts = {topic: {"count": count, "timeStamp": self._changed_ms} for topic, count in self._counts.items()}
        return {"dataVersion": self.version.as_json(), "transactionCount": counts}

    def save(self) -> None:
        """Write the file if something changed."""
        if self._is_dirty:
            self.version.next(self._changed_ms)
            self._saver.later(FILE, self.as_json, is_awaited=False)
            self._is_dirty = False
