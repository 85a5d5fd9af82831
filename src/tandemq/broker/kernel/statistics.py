"""Interface of the statistics for other features."""

from typing import Protocol, runtime_checkable


@runtime_checkable
class Statistics(Protocol):
    """Counters that operators ask for by name and key."""

    def add(self, name: str, key: str, amount: int, times: int) -> None:
        """Add to a counter."""
