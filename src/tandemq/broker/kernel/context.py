"""Context shared by the parts of a broker: the settings in force, the current turn.

A part gets these with the `Kernel`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tandemq.boundary import Now, Turn
from tandemq.broker.kernel.role import Holder, Reporter
from tandemq.broker.kernel.serving import NOTHING
from tandemq.config.account_files import AccountFiles
from tandemq.config.settings import BrokerConfig
from tandemq.replication.authentication import Keyring
from tandemq.storage.json_tables import DataVersion


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts about the machine that the broker runs on."""

    boot_id: str
    memory_bytes: int
    utc_offset_s: int = 0


class AccessFiles(NamedTuple):
    """Files outside of the store that say who may do what; None: there are none."""

    keyring: Keyring | None = None
    """The secret of replication."""
    accounts: AccountFiles | None = None


class CurrentConfig:
    """The settings in force; operators change some of them while the broker runs."""

    __slots__ = ("config", "version")

    def __init__(self, config: BrokerConfig) -> None:
        """Begin with the settings of the start."""
        self.config = config
        self.version = DataVersion()
        """Grows with each change since the start."""

    def change(self, config: BrokerConfig, now: Now) -> None:
        """Take changed settings."""
        self.config = config
        self.version.next(now.wall_ms)


class OwnAddress:
    """Where this broker is reached, "ip:port"; "" before its ports are bound. Only the node sets its attributes."""

    __slots__ = ("address", "ha_address")

    def __init__(self) -> None:
        """Begin without."""
        self.address = ""
        """For clients."""
        self.ha_address = ""
        """For replication."""


class CurrentTurn:
    """The turn that is being built. Only the node sets its attributes."""

    __slots__ = ("commit", "holds", "out", "report", "serving")

    def __init__(self) -> None:
        """Nothing is to be done yet."""
        self.out = Turn()
        self.serving = NOTHING
        """What this broker may do."""
        self.commit: Callable[[Now], None] = lambda _: None
        """Writes the messages of the turn so far, before its end."""
        self.report: Reporter = lambda _report, _now: 0
        """Reports events of replication to the role."""
        self.holds: Holder = lambda _link, _request, _answer: False
        """Hands the role a response that has to wait."""
