"""Rates that a user, a topic or a consumer group may use."""

SECOND_MS = 1_000
HOUR_MS = 3_600_000
"""Maximum of the time that is credited at once."""


class Budget:
    """Messages and bytes per second. What is used beyond them is a debt, and nothing may pass until it is paid.

    What one second allows may be used at once.
    """

    __slots__ = ("_at_ms", "_byte_rate", "_bytes", "_message_rate", "_messages", "name", "refused", "slowed", "slows")

    def __init__(self, name: str, message_rate: int, byte_rate: int, *, slows: bool = False) -> None:
        """Begin with what one second allows.

        Args:
            name: for messages to users, like `topic T`.
            message_rate: messages per second, at most `quota.RATE_MAX`; 0: unlimited.
            byte_rate: the same of bytes.
            slows: whether requests beyond it wait for a while instead of being refused.
        """
        self.name = name
        self.slows = slows
        self.refused = self.slowed = 0
        """Requests since the start."""
        self._message_rate = message_rate
        self._byte_rate = byte_rate
        self._messages = SECOND_MS * message_rate
        """Thousandths of messages that may pass now."""
        self._bytes = SECOND_MS * byte_rate
        self._at_ms = 0

    def wait_ms(self, now_ms: int) -> int:
        """Return how long a request has to wait; 0: it may pass."""
        passed, wait = min(max(now_ms - self._at_ms, 0), HOUR_MS), 0
        self._at_ms = now_ms
        if self._message_rate:
            self._messages = min(self._messages + passed * self._message_rate, SECOND_MS * self._message_rate)
            if self._messages <= 0:
                wait = 1 + -self._messages // self._message_rate
        if self._byte_rate:
            self._bytes = min(self._bytes + passed * self._byte_rate, SECOND_MS * self._byte_rate)
            if self._bytes <= 0:
                wait = max(wait, 1 + -self._bytes // self._byte_rate)
        return wait

    def use(self, messages: int, size: int) -> None:
        """Use messages and bytes that have passed."""
        self._messages -= SECOND_MS * messages
        self._bytes -= SECOND_MS * size
