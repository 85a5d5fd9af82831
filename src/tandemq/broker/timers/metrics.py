"""Number of waiting timed messages by topic, in `config/timermetrics`, and counters of what was taken and delivered.

Source: docs/reference/timers.md; RocketMQ TimerMetrics.
"""

from collections.abc import Iterable

from tandemq.boundary import Now
from tandemq.broker.send.send_state import StoredTimed
from tandemq.broker.state.persistence import Saver
from tandemq.broker.state.topic_counts import TopicCounts
from tandemq.broker.timers.records import TimerHead

FILE = "timermetrics"


class TimerMetrics(TopicCounts):
    """The counts, as operators and Java brokers read them."""

    def __init__(self, saver: Saver, now: Now) -> None:
        """Begin without messages; the counts follow from the log."""
        super().__init__(saver, FILE, "timingCount", now)
        self.enqueued_total: dict[str, int] = {}
        """Messages taken since the start, by topic; with those that were stored again."""
        self.dequeued_total: dict[str, int] = {}
        """Messages delivered since the start, by topic."""
        self.deleted_total = 0
        """Messages not delivered since the start, because a delete request named them."""

    def enqueued(self, timed: Iterable[StoredTimed]) -> None:
        """Count messages that were taken."""
        for one in timed:
            self.enqueued_total[one.topic] = self.enqueued_total.get(one.topic, 0) + 1

    def dequeued(self, head: TimerHead) -> None:
        """Count a message that was delivered."""
        self.dequeued_total[head.topic] = self.dequeued_total.get(head.topic, 0) + 1
