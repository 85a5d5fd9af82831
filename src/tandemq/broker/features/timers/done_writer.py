"""Done records of a master: when one is needed, and what is over according to it.

messages of a turn ─► their done record behind them, in the same write ─► committed: that is the progress
"""

from tandemq.boundary import Now
from tandemq.broker.features.timers.done_records import NOTHING, OFFSETS_MAX, TimerProgress, done_body, done_properties
from tandemq.broker.features.timers.loading import TimerLoader
from tandemq.broker.features.timers.pending import PendingTimers
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.state.topics import Topic, internal_topic
from tandemq.model.topic import TIMER_DONE_TOPIC

PROGRESS_BYTES = 64 << 20
"""Growth of the log after which a done record is written although nothing was delivered: a new master reads the log
behind the last one."""


class DoneWriter:
    """Writes the done records of one broker."""

    def __init__(self, kernel: Kernel) -> None:
        """Begin without a done record."""
        self._store = kernel.store
        self._topics = kernel.topics
        self._puts = kernel.puts
        self.progress = NOTHING
        """Of the last done record."""
        self._log_end = 0
        """Log offset at which it was written."""
        self._unnamed: list[int] = []
        """Messages that were over when the others were read, though no done record says so."""
        self._must_write = False
        """Whether a done record is needed, whatever a turn does."""
        self._written: TimerProgress | None = None
        """Of the done record of this turn; it counts from the commit on."""

    def adopt(self, loader: TimerLoader) -> None:
        """Begin with what was read from the log."""
        self.progress = loader.progress._replace(until_ms=max(loader.progress.until_ms, loader.over_until_ms))
        self._log_end = self._store.log.end
        self._unnamed = loader.over
        self._must_write = loader.is_of_java or bool(loader.over)

    def forget(self) -> None:
        """Forget the records to be written: the broker has stopped being the master, or becomes it again."""
        self._unnamed, self._must_write, self._written = [], False, None

    @property
    def is_flushed(self) -> bool:
        """Whether the last done record says all that is over, and is on the disk."""
        return not self._must_write and self._store.log.flushed_offset >= self._log_end

    def is_due(self, table: PendingTimers, over: list[int]) -> bool:
        """Return whether a turn has to write a done record. `over`: queue offsets of messages that are over with it."""
        has_grown = len(table) > 0 and self._store.log.end - self._log_end >= PROGRESS_BYTES
        return bool(over or self._unnamed) or has_grown or self._must_write

    def append(self, table: PendingTimers, over: list[int], before_ms: int, until_ms: int, now: Now) -> None:
        """Append the done record of a turn, behind its messages.

        Args:
            table: the messages that wait.
            over: queue offsets of those that are over with this turn.
            before_ms: all of an earlier time are over.
            until_ms: latest time of those in `over`.
        """
        topic = self._topics.create_internal(TIMER_DONE_TOPIC, 1, now.wall_ms)
        queue = self._topics.queue(topic or Topic(internal_topic(TIMER_DONE_TOPIC, 1)), 0)
        self._written = self._next_progress(table, queue.next_offset, before_ms, until_ms)
        properties, named = done_properties(self._written), over + self._unnamed
        for start in range(0, max(1, len(named)), OFFSETS_MAX):
            self._puts.put_internal(queue, done_body(named[start : start + OFFSETS_MAX]), properties, now)

    def _next_progress(self, table: PendingTimers, next_done: int, before_ms: int, until_ms: int) -> TimerProgress:
        before, lowest = self.progress, table.none_below()
        until_all_ms = max(before.until_ms, until_ms)
        if before_ms < before.before_ms or table.seen < before.below:  # the clock went back
            return TimerProgress(before.before_ms, before.below, lowest, before.since, until_all_ms)
        if before_ms > before.until_ms:
            return TimerProgress(before_ms, table.seen, lowest, next_done, until_ms)
        return TimerProgress(before_ms, table.seen, lowest, before.since, until_all_ms)

    def committed(self) -> None:
        """Note that what this turn appended is in the log."""
        if self._written is not None:
            self.progress, self._log_end = self._written, self._store.log.end
            self.forget()

    def failed(self) -> None:
        """Note that what this turn appended is not in the log."""
        self._written = None
