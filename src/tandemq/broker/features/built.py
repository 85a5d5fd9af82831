"""The features of a broker that are built from its kernel alone."""

from collections.abc import Callable, Sequence

from tandemq.broker.features.delay import feature as delay
from tandemq.broker.features.timers import feature as timers
from tandemq.broker.features.transactions import feature as transactions
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel

FEATURES: tuple[Callable[[Kernel], Sequence[Feature]], ...] = (
    delay.build,
    transactions.build,
    timers.build,
)
"""In the order in which they see a turn."""
