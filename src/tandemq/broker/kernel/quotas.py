"""Interface of the limits of users, topics and consumer groups for other features."""

from abc import ABC, abstractmethod

from tandemq.engine import Budget


class Quotas(ABC):
    """The limits of one broker. The limit of a topic's sends is at the topic itself (`TopicTarget.budget`)."""

    limits_users = False
    """Whether any user may have a limit."""
    limits_groups = False
    """Whether any group may have a limit."""
    version = 0
    """Increased when limits change."""

    @abstractmethod
    def user(self, name: str) -> Budget | None:
        """Return the rate of a user's sends; None: unlimited."""

    @abstractmethod
    def group(self, name: str) -> Budget | None:
        """Return the rate of a group's deliveries; None: unlimited."""

    @abstractmethod
    def connections_of(self, user: str) -> int:
        """Return how many connections a user may have; 0: unlimited."""

    @abstractmethod
    def in_flight_of(self, group: str) -> int:
        """Return how many popped messages a group may have that it has not acknowledged; 0: unlimited."""

    @abstractmethod
    def refused(self, budget: Budget) -> None:
        """Count a request that was refused because a rate was used up."""

    @abstractmethod
    def slowed(self, budget: Budget) -> None:
        """Count a request that waits because a rate is used up."""
