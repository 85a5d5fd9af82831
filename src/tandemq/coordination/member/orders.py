"""The words between a member and the broker that drives it: settings in, orders and notes out.

Source: docs/internals/failover.md, "A broker and its member".
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tandemq.coordination.lease import CHECK_MS, CHECKS, FOREVER, LEASE_MS
from tandemq.coordination.registry.interface import RegistryRequest
from tandemq.coordination.registry.records import GroupMode, Mode


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """Who this broker is and how patient its group is; times in milliseconds, sizes in bytes."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str = ""
    """"ip:port" for clients, told to the others through the registry."""
    ha_address: str = ""
    """"ip:port" for slaves, likewise."""
    lease_ms: int = LEASE_MS
    checks: int = CHECKS
    check_ms: int = CHECK_MS
    lag_ms_max: int = 15_000
    """A slave not caught up for longer leaves the in-sync set (haMaxTimeSlaveNotCatchup)."""
    drain_ms: int = 1_000
    """How long consumers may still commit after pulls have stopped, in a hand-back."""
    switch_drain_ms: int = 100
    """The same in a planned switch."""
    hand_over_ms: int = 3_000
    """A hand-back or switch that takes longer is given up."""
    hand_back_wait_ms: int = 5_000
    """After a hand-back that was given up, the next one is tried."""
    switch_lag_bytes_max: int = 4 << 20
    """A switch to a target that lags more is refused."""
    force_ms: int = 15_000
    """A forced take-over that is not possible within this time is given up."""
    unclean_hand_back_after_ms: int = 0
    """A master takes reading back from a reader gone for this long; 0: never, an operator does (F30)."""


class MemberStage(Enum):
    """Where a member stands."""

    UNREAD = "unread"
    """Nothing is known of the group since the start, or we are no member: serves nothing."""
    SLAVE = "slave"
    """Somebody else serves; we copy."""
    CLAIMING = "claiming"
    """The record names us; we must write it ourselves before we serve."""
    PREPARING = "preparing"
    """Claimed; the broker recovers its log and begins the epoch."""
    SERVING = "serving"
    """May serve while the lease holds."""
    HANDING = "handing over"
    """Giving up what we serve, in order."""
    AWAITING = "awaiting hand-back"
    """We are the master, the slave has READ until it has handed the offsets back."""


# Orders.


class BecomeMaster(NamedTuple):
    """Recover the log to its last valid record; if its epoch table ends below `epoch`, append (epoch, log end) and
    flush; then call `on_ready`. Slaves that connect are served from then on."""

    epoch: int


class BecomeSlave(NamedTuple):
    """Copy from this master and no other, refusing what is of a lower epoch. `ha_address` "": not known yet; the order
    comes again when it is."""

    master: int
    epoch: int
    address: str
    ha_address: str


class PermissionChanged(NamedTuple):
    """What clients may do from now on. On a loss: answer held pulls with NO_PERMISSION, drop consumers; on a gain:
    register at the name servers."""

    may_read: bool
    may_write: bool
    why: str
    at_ms: int
    """Since when, by the monotonic clock: a lease may have been over before anybody looked."""


class HandOffsets(NamedTuple):
    """Send all consumer offsets to this member, with the token; call `on_handed` with its answer. Commits are refused
    from now on."""

    to: int
    token: int


class PermittedUntil(NamedTuple):
    """When each permission for clients ends, unless the lease is renewed; monotonic ms."""

    read: int
    write: int
    commit: int

    def next_end_ms(self, now_ms: int) -> int:
        """Return when the next permission that holds now ends; FOREVER if none does."""
        return min((until for until in self if until > now_ms), default=FOREVER)


class CommandDone(NamedTuple):
    """A switch or a forced take-over that was accepted came to its end."""

    is_done: bool
    text: str


class Note(NamedTuple):
    """A line for the timeline and the log."""

    epoch: int
    text: str


Effect = RegistryRequest | BecomeMaster | BecomeSlave | PermissionChanged | HandOffsets | CommandDone | Note


class CommandResult(NamedTuple):
    """Answer to an operator's command. Accepted ones that are not done at once end with CommandDone."""

    is_accepted: bool
    is_done: bool
    text: str


@dataclass(frozen=True, slots=True)
class Status:
    """What `ha status` shows of one member, at one moment."""

    mode: Mode | None
    stage: MemberStage
    epoch: int
    master: int
    reader: int
    group_mode: GroupMode | None
    in_sync: tuple[int, ...]
    asked_in_sync: tuple[int, ...] | None
    """The set of a change that is not decided."""
    may_read: bool
    may_write: bool
    why: str
    """Why it may or may not."""
    since_ms: int
    """Monotonic time of the last change of `may_read` or `may_write`."""
    lease_left_ms: int | None
    """None: nobody can take over, so no lease is needed."""
    is_lonely: bool
    registry: str
    """"up", "suspended" or "none", and what is wrong with what is in it."""
    live: tuple[int, ...] | None
    """Brokers with a live node; None while not known."""
    session_ms: int
    lease_ms: int
    checks: int
    confirm_offset: int
    reason: str
    """Why the record is as it is, by whoever changed it last."""
    trouble: str
