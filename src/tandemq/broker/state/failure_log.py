"""Log lines for repeated failures, limited in rate: a full disk refuses thousands of writes per second.

    first failure → a line      a minute later → a line with their number      next success → a line

An error of another kind is logged at once.
"""

import logging

from tandemq.boundary import Now
from tandemq.errors import StoreError

log = logging.getLogger(__name__)
QUIET_MS = 60_000


class Failures:
    """Consecutive failures of one operation of the store."""

    def __init__(self, level: int, failure: str, recovery: str) -> None:
        """Begin without failures.

        Args:
            level: logging level of the lines.
            failure: what failed, for the line.
            recovery: what is true after the next success, for the line.
        """
        self._level, self._failure, self._recovery = level, failure, recovery
        self.count = 0
        """Failures since the last success."""
        self._unlogged = 0
        self._began_ms = self._logged_ms = 0
        self._kind: type[StoreError] | None = None

    def note(self, error: StoreError, now: Now) -> None:
        """Record a failure."""
        if not self.count:
            self._began_ms = now.mono_ms
        self.count += 1
        self._unlogged += 1
        if type(error) is self._kind and now.mono_ms - self._logged_ms < QUIET_MS:
            return
        more = f" ({self._unlogged} since the last line)" if self._unlogged < self.count else ""
        log.log(self._level, "store: %s%s: %s", self._failure, more, error)
        self._unlogged, self._logged_ms, self._kind = 0, now.mono_ms, type(error)

    def over(self, now: Now) -> None:
        """Record a success."""
        if self.count:
            seconds = (now.mono_ms - self._began_ms) / 1000
            log.warning("store: %s, after %d failures in %.1f s", self._recovery, self.count, seconds)
            self.count, self._unlogged, self._kind = 0, 0, None
