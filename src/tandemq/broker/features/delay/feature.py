"""Delayed messages as a feature."""

from tandemq.broker.features.delay.service import DelayedMessages
from tandemq.broker.features.delay.table import DelayTables
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel


def build(kernel: Kernel) -> tuple[Feature, ...]:
    """Build the delivery of delayed messages. It loads its progress."""
    delay = DelayedMessages(kernel)
    return delay, DelayTables(delay)
