"""Counters of pulls since the start, in total and by topic and group."""

from tandemq.engine import PullCounts

COUNTED_QUEUES_MAX = 200_000
"""Maximum number of next offsets kept, over all pairs of topic and group."""
COUNTS_MAX = 100_000
"""Maximum number of pairs of topic and group that are counted; beyond it the oldest is dropped."""


class PullCounters:
    """Counters of all pulls of one broker."""

    def __init__(self) -> None:
        """Begin at zero."""
        self.messages = 0
        """Messages sent to consumers."""
        self.helped = 0
        """Those of them that this broker, a slave, read for the member that serves reads."""
        self.bytes = 0
        """Bytes of their records."""
        self.finds = 0
        """Answers with messages."""
        self.misses = 0
        """Answers without messages."""
        self.by_group: dict[tuple[str, str], PullCounts] = {}
        """By topic and group, oldest pair first."""
        self._counted_queues = 0

    def note(self, topic: str, group: str, queue_id: int, messages: int, size: int, next_offset: int) -> None:
        """Count an answer with messages.

        Args:
            topic: topic of the messages.
            group: consumer group that gets them.
            queue_id: queue they were read from.
            messages: number of messages.
            size: bytes of their records.
            next_offset: queue offset behind the last of them.
        """
        self.messages += messages
        self.bytes += size
        self.finds += 1
        key = topic, group
        counts = self.by_group.get(key)
        if counts is None:
            counts = self.by_group[key] = PullCounts()
        counts.messages += messages
        counts.bytes += size
        counts.answers += 1
        self._counted_queues += queue_id not in counts.next_offsets
        counts.next_offsets[queue_id] = next_offset
        while len(self.by_group) > COUNTS_MAX or self._counted_queues > COUNTED_QUEUES_MAX:
            oldest = self.by_group.pop(next(iter(self.by_group)))
            self._counted_queues -= len(oldest.next_offsets)

    def add(self, messages: int, size: int, finds: int, misses: int) -> None:
        """Add what the engine has answered; it counts by topic and group itself."""
        self.messages += messages
        self.bytes += size
        self.finds += finds
        self.misses += misses

    def next_offset(self, topic: str, group: str, queue_id: int) -> int:
        """Return the queue offset behind the last message sent to a group since the start; 0 if none was sent."""
        counts = self.by_group.get((topic, group))
        return counts.next_offsets.get(queue_id, 0) if counts is not None else 0
