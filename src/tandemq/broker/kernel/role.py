"""Who decides what a broker may do: its settings (`roles.static_role`), or the registry of its group
(`roles.registry_role`).

    events of the registry, reports of replication ──► BrokerRole ──► Serving
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from tandemq.boundary import Event, Now, Turn
from tandemq.broker.kernel.serving import Serving
from tandemq.codec.ha import Heartbeat
from tandemq.model.command import Command

# What replication reports about other members and about the log.


class MemberLinked(NamedTuple):
    """A replication connection with a member is ready, or lost."""

    peer: int
    """Broker id of the member."""
    is_up: bool


class MemberHeard(NamedTuple):
    """Bytes arrived from a member."""

    peer: int


class LogEndReported(NamedTuple):
    """A member reported its log end."""

    peer: int
    log_end: int
    number: int
    """Of the heartbeat by which it promises; 0: of none."""


class HeartbeatReceived(NamedTuple):
    """A member that serves sent a heartbeat."""

    peer: int
    heartbeat: Heartbeat


class TablesSaved(NamedTuple):
    """A slave has saved the tables that were sent on its connection before a heartbeat."""

    link: int
    number: int
    """Of the heartbeat."""


class LogChanged(NamedTuple):
    """The log was truncated."""


class LogDoubted(NamedTuple):
    """The log may lack acknowledged messages."""

    why: str
    is_final: bool = False
    """Whether that holds until the next start."""


Report = MemberLinked | MemberHeard | LogEndReported | HeartbeatReceived | TablesSaved | LogChanged | LogDoubted
Reporter = Callable[[Report, Now], int]
"""Takes a report. Returns the number of the heartbeat that is to be echoed as a promise; 0: none."""
Holder = Callable[[int, Command, Command], bool]
"""Takes over a response that has to wait: connection, request, response; see `BrokerRole.holds`."""


class BrokerRole(Protocol):
    """The part of a broker that decides what the broker may do."""

    def serving(self, now: Now) -> Serving:
        """Return what this broker may do now."""

    def report(self, report: Report, now: Now) -> int:
        """Take a report of replication; see `Reporter`."""

    # A turn.

    def listening(self, address: str, ha_address: str, now: Now) -> None:
        """Record the advertised addresses, "ip:port", once the ports are bound."""

    def on_event(self, event: Event, turn: Turn, now: Now) -> bool:
        """Handle an event of the registry; False if it is not one."""

    def owns(self, link: int) -> bool:
        """Whether a connection belongs to the registry's session."""

    def received(self, link: int, data: bytes, turn: Turn, now: Now) -> None:
        """Take bytes of a connection it owns."""

    def tick(self, turn: Turn, now: Now) -> "BrokerRole":
        """Do what the registry's events and the time ask for; return the role that goes on."""

    def before_copy(self, now: Now) -> None:
        """Send slaves the tables that they need before the log bytes of this turn."""

    def after_commit(self, turn: Turn, now: Now) -> None:
        """Send slaves the tables that follow the log bytes of this turn."""

    def tables_saved(self, settled: int, error: Exception | None, now: Now) -> None:
        """Take note that changes of tables up to number `settled` are on the device, or failed."""

    def deadline_ms(self) -> int | None:
        """Return when the next turn is needed, monotonic ms; None: not for the role's sake."""

    def close(self, turn: Turn, now: Now) -> None:
        """End the session at the registry."""

    # Responses.

    def holds(self, link: int, request: Command, answer: Command) -> bool:
        """Take over a response that has to wait; False if it may be sent now."""

    def drop_link(self, link: int) -> None:
        """Forget responses that wait for a closed connection."""
