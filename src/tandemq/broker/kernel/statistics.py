"""Interface of the statistics for other features."""

from abc import ABC, abstractmethod


class Statistics(ABC):
    """Counters that operators ask for by name and key."""

    @abstractmethod
    def add(self, name: str, key: str, amount: int, times: int) -> None:
        """Add to a counter."""
