"""What fails over and over, told of without a flood: a full disk refuses thousands of writes a second.

    first one → a line      a minute later → a line with how many since      the next success → a line: it is over

Another kind of error is told of at once.
"""

import logging

from tandemq.boundary import Now
from tandemq.errors import StoreError

log = logging.getLogger(__name__)
QUIET_MS = 60_000


class Failures:
    """Failures of one thing the store does."""

    def __init__(self, level: int, what: str, afterwards: str) -> None:
        """None yet. `what` failed, and what holds `afterwards`, in words."""
        self._level, self._what, self._afterwards = level, what, afterwards
        self.count = 0
        """Since the last success."""
        self._untold = 0
        self._began_ms = self._told_ms = 0
        self._kind: type[StoreError] | None = None

    def note(self, error: StoreError, now: Now) -> None:
        """It failed."""
        if not self.count:
            self._began_ms = now.mono_ms
        self.count += 1
        self._untold += 1
        if type(error) is self._kind and now.mono_ms - self._told_ms < QUIET_MS:
            return
        more = f" ({self._untold} since the last line)" if self._untold < self.count else ""
        log.log(self._level, "store: %s%s: %s", self._what, more, error)
        self._untold, self._told_ms, self._kind = 0, now.mono_ms, type(error)

    def over(self, now: Now) -> None:
        """It succeeded."""
        if self.count:
            seconds = (now.mono_ms - self._began_ms) / 1000
            log.warning("store: %s, after %d failures in %.1f s", self._afterwards, self.count, seconds)
            self.count, self._untold, self._kind = 0, 0, None
