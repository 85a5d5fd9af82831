"""Number of open transactions by topic, in `config/transactionMetrics`, and counters of commits and rollbacks.

Source: docs/reference/transactions.md; RocketMQ TransactionMetrics.
"""

from bisect import bisect_left
from typing import NamedTuple

from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.state.topic_counts import TopicCounts
from tandemq.storage.json_tables import TableFile

FILE = TableFile("transactionMetrics")
AGE_BOUNDS_S = (5, 60, 600, 3_600, 43_200, 86_400)


class _Ended(NamedTuple):
    """A transaction that a producer ended in this turn; `age_s` of a commit, None of a rollback."""

    topic: str
    age_s: int | None


class CommitAges:
    """Counts of ages at commit by AGE_BOUNDS_S, the last for ages above all bounds, and the sum of the ages."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        """Begin with none."""
        self.counts = [0] * (len(AGE_BOUNDS_S) + 1)
        self.sum_s = 0

    def add(self, age_s: int) -> None:
        """Count an age, seconds."""
        self.counts[bisect_left(AGE_BOUNDS_S, age_s)] += 1
        self.sum_s += age_s


class TransactionMetrics(TopicCounts):
    """Counts of transactions, in the form that operators and Java brokers read."""

    def __init__(self, kernel: Kernel) -> None:
        """Begin without transactions; the counts follow from the log."""
        super().__init__(kernel.saver, FILE, "transactionCount", kernel.began)
        self.commits: dict[str, CommitAges] = {}
        """Commits since the start, by topic."""
        self.rollbacks: dict[str, int] = {}
        """Rollbacks since the start, by topic."""
        self._ended: list[_Ended] = []
        kernel.every(lambda: kernel.current.config.transaction_metrics_ms, lambda _: self.save())

    def topic_removed(self, topic: str, wall_ms: int) -> None:
        """Forget a deleted topic."""
        super().topic_removed(topic, wall_ms)
        self.commits.pop(topic, None)
        self.rollbacks.pop(topic, None)

    def note_commit(self, topic: str, born_ms: int, wall_ms: int) -> None:
        """Note a commit of this turn. `born_ms`: when the producer made the half message."""
        self._ended.append(_Ended(topic, max(0, wall_ms - born_ms) // 1_000))

    def note_rollback(self, topic: str) -> None:
        """Note a rollback of this turn."""
        self._ended.append(_Ended(topic, None))

    def count_ended(self) -> None:
        """Count the transactions ended in this turn, which are in the log now."""
        for topic, age_s in self._ended:
            if age_s is None:
                self.rollbacks[topic] = self.rollbacks.get(topic, 0) + 1
                continue
            ages = self.commits.get(topic)
            if ages is None:
                ages = self.commits[topic] = CommitAges()
            ages.add(age_s)
        self._ended.clear()

    def forget_ended(self) -> None:
        """Forget the transactions ended in this turn, which are not in the log."""
        self._ended.clear()
