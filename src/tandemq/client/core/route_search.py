"""A repeated search for something that may return soon, late or never: the longer it lasts, the rarer its requests."""

from tandemq.boundary import Now

AGE_SHARE = 30
"""The pause before the next request is at least the age of the search divided by this. A search of an hour makes fewer
than 200 requests."""


class RouteSearch:
    """Time at which a search began, and time of its next request."""

    __slots__ = ("_begun_ms", "due_ms", "requests", "wanted_ms")

    def __init__(self, now: Now) -> None:
        """Due at once."""
        self._begun_ms = now.mono_ms
        self.due_ms = now.mono_ms
        self.wanted_ms = now.mono_ms
        """When the result was wanted last, for searches that others request."""
        self.requests = 0

    def is_due(self, now: Now) -> bool:
        """Return whether the next request is due."""
        return self.due_ms <= now.mono_ms

    def requested(self, now: Now, pause_ms: int) -> None:
        """Record a request. `pause_ms`: shortest pause before the next one."""
        self.requests += 1
        self.due_ms = now.mono_ms + max(pause_ms, (now.mono_ms - self._begun_ms) // AGE_SHARE)
