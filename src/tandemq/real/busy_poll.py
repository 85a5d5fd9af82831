"""Decision of the event loop whether to poll for the next event, or to sleep until it comes.

    waited(ns) after each wait ──► mean of the recent waits ──► is_worth: the next event probably comes while polling

Polling saves the time to wake up, and keeps a core busy. It is worth that only if waits are shorter than the polling
time, as with few requests in flight, or while a slave's report is due. At a steady rate of some thousand messages per
second waits are longer, and the loop sleeps.

Waking up makes waits longer, its own and those of a peer that waits for this loop. So if waits are only somewhat too
long, the loop tries from time to time how long they are while it polls.
"""

WEIGHT = 1 / 8
"""Share of the last wait in the mean."""
LONGEST = 2
"""A wait counts as at most this many polling times, so that a pause among short waits does not end polling."""
TRIAL_EVERY = 64
TRIAL_WAITS = 32
"""Number of consecutive waits of a trial, one per `TRIAL_EVERY` waits: it polls although the mean is too long. Half of
the waits, so that two brokers that wait for each other try at the same time."""
TRIAL_MAX = 1.5
"""A trial is made if the mean is below this many polling times."""


class BusyPoll:
    """Exponentially weighted mean of the waits, compared with the polling time."""

    __slots__ = ("_longest_ns", "_mean_ns", "_waits", "is_worth", "poll_ns", "total_ns")

    def __init__(self, poll_us: int) -> None:
        """Start without polling; `poll_us`: polling time, 0: never."""
        self.poll_ns = poll_us * 1000
        """How long to poll before the loop sleeps."""
        self._longest_ns = LONGEST * self.poll_ns
        self._mean_ns: float = self._longest_ns
        self._waits = 0
        self.total_ns = 0
        """Sum of all waits."""
        self.is_worth = False
        """Whether to poll: the next event probably comes within the polling time, or this is a trial."""

    def waited(self, wait_ns: int) -> None:
        """Take the length of a wait into account. Events that were there at once are no wait."""
        self.total_ns += wait_ns
        self._mean_ns += (min(wait_ns, self._longest_ns) - self._mean_ns) * WEIGHT
        self._waits = (self._waits + 1) % TRIAL_EVERY
        limit = TRIAL_MAX if self._waits < TRIAL_WAITS else 1.0
        self.is_worth = self._mean_ns < limit * self.poll_ns
