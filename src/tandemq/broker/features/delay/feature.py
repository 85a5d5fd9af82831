"""Delayed messages as a feature."""

from tandemq.broker.features.delay.service import DelayedMessages
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel


def build(kernel: Kernel) -> tuple[Feature, ...]:
    """Build the delivery of delayed messages. It loads its progress."""
    delay = DelayedMessages(
        kernel.store,
        kernel.topics,
        kernel.saver,
        kernel.puts,
        kernel.damages,
        kernel.verification,
        kernel.schedule,
        kernel.turn,
        kernel.current,
        kernel.began,
    )
    return (delay,)
