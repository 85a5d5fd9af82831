"""Number of open transactions by topic, in `config/transactionMetrics`.

Source: docs/reference/transactions.md; RocketMQ TransactionMetrics.
"""

from tandemq.boundary import Now
from tandemq.broker.context import CurrentConfig
from tandemq.broker.state.persistence import Saver
from tandemq.broker.state.schedule import Schedule
from tandemq.broker.state.topic_counts import TopicCounts

FILE = "transactionMetrics"


class TransactionMetrics(TopicCounts):
    """The counts, as operators and Java brokers read them."""

    def __init__(self, saver: Saver, schedule: Schedule, current: CurrentConfig, now: Now) -> None:
        """Begin without transactions; the counts follow from the log."""
        super().__init__(saver, FILE, "transactionCount", now)
        schedule.every(
            lambda: current.config.transaction_metrics_ms,
            lambda _: self.save(),
            first_ms=now.mono_ms + current.config.transaction_metrics_ms,
        )
