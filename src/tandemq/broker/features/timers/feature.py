"""The features of timed messages: their service, the requests about them, and their metrics."""

from tandemq.broker.features.timers.families import TimedMessageMetrics
from tandemq.broker.features.timers.processor import TimerProcessor
from tandemq.broker.features.timers.service import TimedMessages
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel


def build(kernel: Kernel) -> tuple[Feature, ...]:
    """Build the features of timed messages."""
    timers = TimedMessages(kernel)
    return timers, TimerProcessor(kernel, timers), TimedMessageMetrics(timers)
