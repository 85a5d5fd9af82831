"""What the parts of a broker share: the settings in force, the output of the current turn, and the broker's role.

A part gets these and its own collaborators in its constructor. The parts that still take the whole broker are listed in
`tests/test_tidy.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tandemq.boundary import Now, Turn
from tandemq.broker.connections.connection import Link
from tandemq.config.settings import BrokerConfig
from tandemq.model.command import Command
from tandemq.storage.json_tables import DataVersion

Handler = Callable[[Link, Command, Now], Command | None]
"""Handles a request. Returns the response, or None if it comes later, or never."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts about the machine that the broker runs on."""

    boot_id: str
    memory_bytes: int
    utc_offset_s: int = 0


class CurrentConfig:
    """The settings in force; operators change some of them while the broker runs."""

    __slots__ = ("config", "version")

    def __init__(self, config: BrokerConfig) -> None:
        """Begin with the settings of the start."""
        self.config = config
        self.version = DataVersion()
        """Grows with each change since the start."""


class CurrentTurn:
    """The output of the turn that is being built."""

    __slots__ = ("out",)

    def __init__(self) -> None:
        """Nothing is to be done yet."""
        self.out = Turn()


class BrokerRole(Protocol):
    """The broker's role in its group at this moment."""

    @property
    def is_master(self) -> bool:
        """Whether this broker's log is the one that is replicated."""

    @property
    def is_elect(self) -> bool:
        """Whether masters of the group are elected, so that messages wait for every member in sync."""
