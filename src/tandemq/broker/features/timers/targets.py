"""Messages that the delete requests of one time name, by topic and unique key."""

from tandemq.broker.features.timers.records import TimerHead


class RecallTargets:
    """The delete requests of one time that were read so far."""

    def __init__(self, out_ms: int) -> None:
        """Begin with none."""
        self.out_ms = out_ms
        self.read = 0
        """Number of requests read."""
        self._named: set[tuple[str, str]] = set()
        """Topics and names, "topic+key"."""

    def add(self, topic: str, name: str) -> None:
        """Add a request for messages of a topic."""
        self._named.add((topic, name))

    @property
    def names_any(self) -> bool:
        """Whether there are any."""
        return bool(self._named)

    def has(self, head: TimerHead) -> bool:
        """Return whether a delete request names a message."""
        if not self._named or not head.key:
            return False
        # Before 5.3.2 a request had the key alone.
        return (head.topic, f"{head.topic}+{head.key}") in self._named or (head.topic, head.key) in self._named
