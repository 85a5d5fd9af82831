"""The role of a broker in its group: permissions, replication of messages, reports to other members.

    settings (brokerRole)        `ha.static_role.StaticRole`
    group with a registry        `failover.registry_role.RegistryRole`; after mode `static` was read: `StaticRole`

Parts of the broker hold `CurrentRole`, because the role object may be replaced once.
"""

# ruff: noqa: B027  # empty methods are hooks that a role may leave out
from abc import ABC, abstractmethod

from tandemq.boundary import Event, Now, Turn
from tandemq.codec.ha import Heartbeat
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.storage.consume_queue import ConsumeQueue
from tandemq.storage.store import Store


class BrokerRole(ABC):
    """Interface of a role. The defaults are those of a broker in a group without a registry."""

    uses_registry = False
    """Whether the group's registry decides roles; the master's tables then follow its log to the slaves."""
    epoch = 0
    """Epoch of the mastership in effect; 0: none."""

    @property
    @abstractmethod
    def is_master(self) -> bool:
        """Whether this broker's log is the one that is replicated."""

    @property
    def is_elect(self) -> bool:
        """Whether masters are elected, so that messages wait for every member in sync."""
        return False

    def keeps_offsets(self, _now: Now) -> bool:
        """Whether the group's consumers commit their offsets here, so that this member knows their lag."""
        return self.is_master

    @property
    @abstractmethod
    def waits_for_replicas(self) -> bool:
        """Whether a message is acknowledged only when enough replicas have it."""

    @property
    def has_tables(self) -> bool:
        """Whether every table of the master was received, in a group with a registry."""
        return True

    # Messages.

    @abstractmethod
    def replica_verdict(self) -> ResponseCode | None:
        """Return the outcome of replicating a message stored now; None if that has to be waited for."""

    @abstractmethod
    def copied_offset(self) -> int:
        """Return the log offset up to which enough replicas hold the log."""

    @abstractmethod
    def wake(self, woken: list[ConsumeQueue]) -> None:
        """Answer held pulls of queues that got messages."""

    # Requests.

    def refusal(self, _code: int) -> str | None:
        """Return why requests with this code may not be answered now; None if they may."""
        return None

    def consumer_refusal(self) -> str | None:
        """Return why consumers may not connect now; None if they may."""
        return None

    def holds(self, _link: int, _request: Command, _answer: Command) -> bool:
        """Take over a response that has to wait; False if it may be sent now."""
        return False

    def drop_link(self, link: int) -> None:
        """Forget responses that wait for a closed connection."""

    # A turn.

    def listening(self, address: str, ha_address: str, now: Now) -> None:
        """Record the advertised addresses, "ip:port", once the ports are bound."""

    def begin_turn(self, turn: Turn, now: Now) -> None:
        """Check permissions at the start of a turn."""

    def on_event(self, _event: Event, _turn: Turn, _now: Now) -> bool:
        """Handle an event of the registry; False if it is not one."""
        return False

    def owns(self, _link: int) -> bool:
        """Whether a connection belongs to the registry's session."""
        return False

    def received(self, link: int, data: bytes, turn: Turn, now: Now) -> None:
        """Take bytes of a connection it owns."""

    def tick(self, turn: Turn, now: Now) -> None:
        """Do what the registry's events and the time ask for."""

    def before_copy(self, now: Now) -> None:
        """Send slaves what they need before the log bytes of this turn."""

    def after_commit(self, turn: Turn, now: Now) -> None:
        """Send slaves what follows the log bytes of this turn."""

    def saved(self, settled: int, error: Exception | None, now: Now) -> None:
        """Take note that changes of tables up to number `settled` are on the device, or failed."""

    def deadline_ms(self) -> int | None:
        """Return when the next turn is needed, monotonic ms; None: not for the role's sake."""
        return None

    def close(self, turn: Turn, now: Now) -> None:
        """End the session at the registry."""

    # Members of the group.

    def is_member(self, _broker_id: int) -> bool:
        """Whether the group's configuration names a broker, so that its acknowledgements count."""
        return True

    def other_members(self) -> set[int] | None:
        """Return the ids of the other configured members; None if there is no configuration."""
        return None

    # What replication reports.

    def linked(self, peer: int, now: Now, *, is_up: bool) -> None:
        """A replication connection with a member is ready, or lost."""

    def peer_seen(self, peer: int, now: Now) -> None:
        """Bytes arrived from a member."""

    def report_received(self, peer: int, acked: int, number: int, now: Now) -> None:
        """A member reported its log end. `number`: of the heartbeat it promises by; 0: of none."""

    def heartbeat_received(self, _peer: int, _heartbeat: Heartbeat, _now: Now) -> int:
        """Take a heartbeat of the serving member. Returns the number to echo; 0: no promise."""
        return 0

    def metadata_received(self, kind: int, payload: bytes) -> None:
        """Apply metadata that the master published."""

    @property
    def has_followed(self) -> bool:
        """Whether all metadata that the master published is applied."""
        return True

    def metadata_saved(self, link: int, number: int) -> None:
        """A slave has saved the metadata that was sent on its connection before the heartbeat with this number."""

    def log_changed(self) -> None:
        """The log has grown, was truncated, or belongs to another epoch."""

    def doubt_log(self, why: str, now: Now, *, is_final: bool = False) -> None:
        """Report that the log may lack acknowledged messages. `is_final`: until the next start."""


class CurrentRole:
    """The role in effect."""

    __slots__ = ("role",)
    role: BrokerRole

    @property
    def is_master(self) -> bool:
        """See `BrokerRole.is_master`."""
        return self.role.is_master

    @property
    def is_elect(self) -> bool:
        """See `BrokerRole.is_elect`."""
        return self.role.is_elect

    @property
    def waits_for_replicas(self) -> bool:
        """See `BrokerRole.waits_for_replicas`."""
        return self.role.waits_for_replicas

    def copies_tables(self) -> bool:
        """Whether this broker asks a master for its tables from time to time: a slave without a registry."""
        return not self.role.uses_registry and not self.role.is_master


class Mastership:
    """The mastership for which a part has read its state from the log: an epoch, in which the log was not truncated."""

    def __init__(self, role: CurrentRole, store: Store) -> None:
        """Begin with none."""
        self._role = role
        self._log = store.log
        self._read_in = (-1, -1)

    def is_current(self) -> bool:
        """Whether it is the present one, so that what was read holds."""
        return self._read_in == (self._role.role.epoch, self._log.truncations)

    def is_renewed(self) -> bool:
        """Take the present one; return whether it is another than before, so that everything has to be read again."""
        if self.is_current():
            return False
        self._read_in = (self._role.role.epoch, self._log.truncations)
        return True
