"""Transactions as a feature: their service, the requests about them, and their metrics."""

from tandemq.broker.features.transactions.families import TransactionFamilies
from tandemq.broker.features.transactions.metrics import TransactionMetrics
from tandemq.broker.features.transactions.processor import TransactionProcessor
from tandemq.broker.features.transactions.service import Transactions
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel


def build(kernel: Kernel) -> tuple[Feature, ...]:
    """Build what belongs to transactions."""
    transactions = Transactions(
        kernel.store,
        kernel.topics,
        kernel.offsets,
        kernel.clients,
        kernel.puts,
        TransactionMetrics(kernel.saver, kernel.schedule, kernel.current, kernel.began),
        kernel.outbox,
        kernel.schedule,
        kernel.current,
        kernel.turn,
        kernel.began,
    )
    requests = TransactionProcessor(kernel.store, kernel.puts, transactions, kernel.turn, kernel.current)
    return transactions, requests, TransactionFamilies(transactions)
