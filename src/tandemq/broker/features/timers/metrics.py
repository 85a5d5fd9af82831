"""Number of waiting timed messages by topic, in `config/timermetrics`, and counters of what was taken and delivered.

Source: docs/reference/timers.md; RocketMQ TimerMetrics.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable

from tandemq.boundary import Now
from tandemq.broker.features.timers.records import TimerHead
from tandemq.broker.state.persistence import Saver
from tandemq.broker.state.topic_counts import TopicCounts
from tandemq.codec.remoting.fastjson import loads
from tandemq.engine import TimedSend
from tandemq.storage.json_tables import TableFile

FILE = TableFile("timermetrics")
DELAY_BOUNDS_S = (60, 600, 3_600, 43_200, 86_400, 259_200)
_SECOND_MS = 1_000


class Delays:
    """Counts of delays by DELAY_BOUNDS_S, the last for delays above all bounds, and the sum of the delays."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        """Begin with none."""
        self.counts = [0] * (len(DELAY_BOUNDS_S) + 1)
        self.sum_s = 0

    def add(self, delay_s: int, count: int = 1) -> None:
        """Count delays of a number of seconds."""
        self.counts[bisect_left(DELAY_BOUNDS_S, delay_s)] += count
        self.sum_s += delay_s * count


class TimerMetrics(TopicCounts):
    """Counts of timed messages, in the form that operators and Java brokers read."""

    def __init__(self, saver: Saver, now: Now) -> None:
        """Begin without messages; the counts follow from the log."""
        super().__init__(saver, FILE, "timingCount", now)
        self.enqueued_total: dict[str, int] = {}
        """Messages taken since the start, by topic; with those that were stored again."""
        self.dequeued_total: dict[str, int] = {}
        """Messages delivered since the start, by topic."""
        self.delays: dict[str, Delays] = {}
        """Delays that messages taken since the start had left, by topic."""
        self.deleted_total = 0
        """Messages not delivered since the start, because a delete request named them."""

    def note_deleted(self) -> None:
        """Count a timed message that was recalled or deleted before its time."""
        self.deleted_total += 1

    def adopt_body(self, body: bytes, now: Now) -> None:
        """Take the counts of the master (the response to GET_TIMER_METRICS), as long as this broker is a slave.

        Raises:
            ProtocolError, AttributeError, KeyError, TypeError, ValueError: it is malformed.
        """
        table = loads(body)["timingCount"]
        counts = {str(topic): int(counted["count"]) for topic, counted in table.items()}
        if counts != self.by_topic():
            self.adopt(counts)
            self.changed(now.wall_ms)
            self.save()

    def topic_removed(self, topic: str, wall_ms: int) -> None:
        """Forget a deleted topic."""
        super().topic_removed(topic, wall_ms)
        for table in (self.enqueued_total, self.dequeued_total, self.delays):
            table.pop(topic, None)

    def enqueued(self, timed: Iterable[TimedSend], now: Now) -> None:
        """Count messages that were taken."""
        for (topic, out_ms), count in Counter([(topic, out_ms) for _, out_ms, topic, _ in timed]).items():
            self.enqueued_total[topic] = self.enqueued_total.get(topic, 0) + count
            delays = self.delays.get(topic)
            if delays is None:
                delays = self.delays[topic] = Delays()
            delays.add(max(0, out_ms - now.wall_ms) // _SECOND_MS, count)

    def dequeued_all(self, topics: list[str]) -> None:
        """Count messages that were delivered."""
        for topic, count in Counter(topics).items():
            self.dequeued_total[topic] = self.dequeued_total.get(topic, 0) + count

    def dequeued(self, head: TimerHead) -> None:
        """Count a message that was delivered."""
        self.dequeued_total[head.topic] = self.dequeued_total.get(head.topic, 0) + 1
