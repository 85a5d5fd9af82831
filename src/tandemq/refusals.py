"""Count of refused peers, with at most one log line per address and minute.

Memory is bounded: beyond `ADDRESSES_MAX` addresses within one minute, further addresses are counted but not logged.
Source: requirement H24.
"""

ADDRESSES_MAX = 1_000
QUIET_MS = 60_000


class Refusals:
    """Refusals of one kind: their count, and a rate limit for the log."""

    def __init__(self) -> None:
        """Begin with a count of 0."""
        self.count = 0
        """Refusals since the start."""
        self._logged: dict[str, tuple[int, int]] = {}
        """By address: monotonic time of the last log line (ms), refusals since then. Oldest line first."""

    def note(self, address: str, now_ms: int) -> int:
        """Count a refusal. Return the number of refusals that a log line written now shall report, 0 if none is due."""
        self.count += 1
        logged_ms, since = self._logged.get(address, (now_ms - QUIET_MS, 0))
        if now_ms - logged_ms < QUIET_MS:
            self._logged[address] = (logged_ms, since + 1)
            return 0
        if address not in self._logged and not self._makes_room(now_ms):
            return 0
        self._logged.pop(address, None)
        self._logged[address] = (now_ms, 0)
        return since + 1

    def _makes_room(self, now_ms: int) -> bool:
        if len(self._logged) < ADDRESSES_MAX:
            return True
        oldest = next(iter(self._logged))
        if now_ms - self._logged[oldest][0] < QUIET_MS:
            return False
        del self._logged[oldest]
        return True
