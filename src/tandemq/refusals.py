"""Peers that were refused: how many, and one line in the log per address and minute.

Bounded: of more than `ADDRESSES_MAX` addresses within a minute the later ones are counted only.
Source: requirement H24.
"""

ADDRESSES_MAX = 1_000
QUIET_MS = 60_000


class Refusals:
    """Counts, and tells when to log."""

    def __init__(self) -> None:
        """Nobody was refused yet."""
        self.count = 0
        """Since the start."""
        self._logged: dict[str, tuple[int, int]] = {}
        """By address: when it was last logged, and how often it was refused since then. Oldest line first."""

    def note(self, address: str, now_ms: int) -> int:
        """Count a refusal; how many are to be told of in a line to be logged now, 0 if none is due."""
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
