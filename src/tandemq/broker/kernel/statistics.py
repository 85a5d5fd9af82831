"""Interface of the statistics that other features add to."""

from abc import ABC, abstractmethod


class Statistics(ABC):
    """Counters by name and key, which operators query."""

    @abstractmethod
    def add(self, name: str, key: str, amount: int, times: int) -> None:
        """Add an amount to a counter. `times`: number of events that it is the sum of, for the average."""
