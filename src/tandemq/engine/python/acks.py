"""Acknowledgements of popped messages, which are all left to their handler: it specifies what the engine does."""

from collections.abc import Callable
from typing import Protocol

from tandemq.engine.python.signatures import SigningUser


class AckedPop(Protocol):
    """What a pop took from one queue, as its handles name it."""

    @property
    def low(self) -> int:
        """First queue offset that may be acknowledged."""

    @property
    def high(self) -> int:
        """Last one."""

    @property
    def offsets(self) -> dict[int, None]:
        """Those acknowledged, to which the engine adds."""


Admit = Callable[[str, str, int, str], AckedPop | None]
"""Returns what (topic, group, queue id, first seven parts of a handle) stand for; None: the handler has to look at
them."""


class AckEngine:
    """Acknowledgements of one turn: from frames to acknowledged offsets and responses."""

    def __init__(self, admit: Admit) -> None:
        """Begin. `admit`: asked once for each pop."""

    def take(self, data: bytes, position: int, sender: SigningUser | None = None) -> tuple[int, bytes]:
        """Take the ordinary acknowledgements from a position on.

        Returns the position of the first other or incomplete frame, and the responses, all SUCCESS. `sender`: the user
        that has to have signed them, and may acknowledge them; None: no user is needed.
        """
        return position, b""

    def forget(self) -> None:
        """End the turn: pops are admitted again in the next one."""
