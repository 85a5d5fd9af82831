"""What decides whether a client may send a request, before any feature handles it."""

from abc import ABC, abstractmethod

from tandemq.boundary import Now
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import Request
from tandemq.engine import SigningUser
from tandemq.model.command import Command


class RequestGuard(ABC):
    """Access control, as the dispatcher sees it."""

    is_on = False
    """Whether requests are checked at all."""

    @abstractmethod
    def checks(self, code: int, request: Request) -> bool:
        """Return whether the requests with a code need a user."""

    @abstractmethod
    def sender(self, link: Link) -> SigningUser | None:
        """Return the user of a connection whose signatures and rights the engine may check; None: there is none."""

    @abstractmethod
    def refusal(self, link: Link, command: Command, now: Now) -> str | None:
        """Return why a request is refused; None if it may be handled. A refusal is counted and logged."""
