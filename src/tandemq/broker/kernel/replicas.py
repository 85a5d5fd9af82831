"""Interface of replication for other features: the other members of the group."""

from typing import NamedTuple, Protocol, runtime_checkable


class Replica(NamedTuple):
    """Another member of the group. `address`: where it takes requests, "" if that is not known."""

    name: str
    address: str


@runtime_checkable
class Replicas(Protocol):
    """The other members of the group."""

    def replicas(self) -> list[Replica]:
        """Return the other members that may have good bytes of the log."""
