"""Interface of replication for other features: the other members of the group."""

from abc import ABC, abstractmethod
from typing import NamedTuple


class Replica(NamedTuple):
    """Another member of the group. `address`: where it takes requests, "" if that is not known."""

    name: str
    address: str


class Replicas(ABC):
    """The other members of the group."""

    @abstractmethod
    def replicas(self) -> list[Replica]:
        """Return the other members that may have good bytes of the log."""
