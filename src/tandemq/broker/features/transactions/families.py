"""Transactions: how many are open, and their commits and rollbacks by topic; under RocketMQ's names.

The sum and bounds of the latency of commits are seconds although its name ends in milliseconds, as in RocketMQ, whose
dashboards expect it so.
Source: docs/reference/transactions.md; RocketMQ BrokerMetricsManager, EndTransactionProcessor.
"""

from collections.abc import Iterator, Sequence

from tandemq.boundary import Now
from tandemq.broker.features.transactions.metrics import AGE_BOUNDS_S
from tandemq.broker.features.transactions.service import Transactions
from tandemq.broker.kernel.feature import Feature
from tandemq.telemetry.families import Batch, Distribution, Source, counter, gauge, histogram, single

HALF = gauge("rocketmq_half_messages", "Open transactions.", "topic")
COMMITS = counter("rocketmq_commit_messages_total", "Transactions that a producer committed.", "topic")
ROLLBACKS = counter("rocketmq_rollback_messages_total", "Transactions that a producer rolled back.", "topic")
FINISH_LATENCY = histogram(
    "rocketmq_finish_message_latency_milliseconds",
    "Ages of transactions at their commit; in seconds, as in RocketMQ.",
    "topic",
    bounds=AGE_BOUNDS_S,
)
CHECKS = counter("tandemq_transaction_checks_total", "Checks of open transactions that were sent to producers.")
GIVEN_UP = counter("tandemq_transactions_given_up_total", "Transactions given up after too many checks.")


class TransactionFamilies(Feature):
    """The source of the families above."""

    def __init__(self, transactions: Transactions) -> None:
        """Take the transactions."""
        self._transactions = transactions

    def sources(self) -> Sequence[Source]:
        """See `Feature`."""
        return (self.collect,)

    def collect(self, _now: Now) -> Iterator[Batch | None]:
        """Yield the batches; none of the open transactions on a slave, which does not read them."""
        transactions, metrics = self._transactions, self._transactions.metrics
        if transactions.table is not None:
            yield Batch(HALF, {(topic,): count for topic, count in metrics.by_topic().items()})
        yield Batch(COMMITS, {(topic,): sum(ages.counts) for topic, ages in metrics.commits.items()})
        yield Batch(ROLLBACKS, {(topic,): count for topic, count in metrics.rollbacks.items()})
        yield Batch(
            FINISH_LATENCY,
            distributions={
                (topic,): Distribution(tuple(ages.counts), ages.sum_s) for topic, ages in metrics.commits.items()
            },
        )
        yield single(CHECKS, transactions.checks)
        yield single(GIVEN_UP, transactions.given_up)
