"""Timed messages as a feature: their service, the requests about them, and their metrics."""

from tandemq.broker.features.timers.damaged import DamagedTimers
from tandemq.broker.features.timers.families import TimedMessageMetrics
from tandemq.broker.features.timers.metrics import TimerMetrics
from tandemq.broker.features.timers.processor import TimerProcessor
from tandemq.broker.features.timers.service import TimedMessages
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel


def build(kernel: Kernel) -> tuple[Feature, ...]:
    """Build what belongs to timed messages."""
    timers = TimedMessages(
        kernel.store,
        kernel.topics,
        kernel.puts,
        DamagedTimers(kernel.store, kernel.damages, kernel.verification),
        TimerMetrics(kernel.saver, kernel.began),
        kernel.schedule,
        kernel.current,
        kernel.turn,
        kernel.began,
    )
    requests = TimerProcessor(kernel.store, kernel.topics, kernel.puts, timers, kernel.turn, kernel.current)
    return timers, requests, TimedMessageMetrics(timers)
