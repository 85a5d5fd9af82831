"""What waits in a broker: open transactions and timed messages."""

from tandemq.broker.features.timers.pending import PendingTimers
from tandemq.broker.features.timers.service import TimedMessages
from tandemq.broker.features.transactions.open_transactions import OpenTransactions
from tandemq.broker.features.transactions.service import Transactions
from tests.unit.broker.harness import Harness


def open_transactions(broker: Harness) -> OpenTransactions:
    """Return the open transactions, which a master has read."""
    table = broker.node.features.find(Transactions).table
    assert table is not None, "not a master, or not read yet"
    return table


def pending_timers(broker: Harness) -> PendingTimers:
    """Return the timed messages that wait, which a master has read."""
    table = broker.node.features.find(TimedMessages).table
    assert table is not None, "not a master, or not read yet"
    return table
