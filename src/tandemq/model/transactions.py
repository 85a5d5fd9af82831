"""Outcome of a transaction, as brokers and producers name it."""

from enum import IntEnum

CHECK_IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
"""Property of a half message: age in seconds at which the broker asks for its outcome first."""
FIRST_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
"""Property of a copy of a half message: queue offset of the half message."""


class TransactionState(IntEnum):
    """Outcome of a transaction; the values are those of `commitOrRollback` on the wire."""

    UNKNOWN = 0
    """Not known yet: the broker asks again later."""
    COMMIT = 8
    """The message is delivered."""
    ROLLBACK = 12
    """The message is dropped."""
