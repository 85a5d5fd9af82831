"""Interface of the acknowledgements of popped messages for the dispatcher."""

from abc import ABC, abstractmethod

from tandemq.boundary import Now
from tandemq.broker.kernel.connection import Link
from tandemq.engine import SigningUser


class PopAcks(ABC):
    """Acknowledgements that are taken without decoding their headers in Python."""

    @abstractmethod
    def take_ordinary(self, link: Link, data: bytes, position: int, now: Now, sender: SigningUser | None = None) -> int:
        """Accept the ordinary acknowledgements from a position on; return that of the first other frame.

        `sender`: the user that has to have signed them; None: no user is needed.
        """
