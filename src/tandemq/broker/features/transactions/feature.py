"""Transactions as a feature: their service, the requests about them, and their metrics."""

from tandemq.broker.features.transactions.families import TransactionFamilies
from tandemq.broker.features.transactions.processor import TransactionProcessor
from tandemq.broker.features.transactions.service import Transactions
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel


def build(kernel: Kernel) -> tuple[Feature, ...]:
    """Build the service of transactions, its requests and its metrics."""
    transactions = Transactions(kernel)
    return transactions, TransactionProcessor(kernel, transactions), TransactionFamilies(transactions)
