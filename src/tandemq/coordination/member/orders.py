"""Messages between a member and the broker that drives it: settings in, orders and notes out.

Source: docs/internals/failover.md, "A broker and its member".
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tandemq.coordination.lease import CHECKS, FOREVER, UNCLEAN_HAND_BACK_MS
from tandemq.coordination.registry.interface import RegistryRequest
from tandemq.coordination.registry.records import CopiedOffsets, GroupMode, Mode


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """Identity of this broker, and timeouts of its group; times in milliseconds, sizes in bytes."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str = ""
    """"ip:port" for clients, published through the registry."""
    ha_address: str = ""
    """"ip:port" for slaves, published through the registry."""
    checks: int = CHECKS
    """Consecutive checks in which a failed member must be missing, at least (takeoverChecks)."""
    lag_ms_max: int = 15_000
    """A slave not caught up for longer leaves the in-sync set (haMaxTimeSlaveNotCatchup)."""
    drain_ms: int = 1_000
    """How long consumers may still commit after pulls have stopped, in an offset handover."""
    switch_drain_ms: int = 100
    """The same in a planned switch."""
    hand_over_ms: int = 3_000
    """An offset handover or switch that takes longer is given up."""
    hand_back_wait_ms: int = 5_000
    """Wait between an offset handover that was given up and the next attempt."""
    switch_lag_bytes_max: int = 4 << 20
    """A switch to a target that lags further behind is refused."""
    force_ms: int = 15_000
    """A forced takeover that is not possible within this time is given up; with many checks or a long lease it is
    longer."""
    unclean_hand_back_after_ms: int = UNCLEAN_HAND_BACK_MS
    """A master takes reading back from a reader that was missing for this long, with the offsets that it had copied to
    the registry; 0: only an operator does (F30, F42)."""


class MemberStage(Enum):
    """Stage of a member."""

    UNREAD = "unread"
    """The record was not read since the start, or this broker is not a member: serves no clients."""
    SLAVE = "slave"
    """Another member serves; this one copies."""
    CLAIMING = "claiming"
    """The record names this member, which must write it before it serves."""
    PREPARING = "preparing"
    """Claimed; the broker recovers its log and starts the epoch."""
    SERVING = "serving"
    """May serve while the lease holds."""
    HANDING = "handing over"
    """Hands over to another member."""
    AWAITING = "awaiting hand-back"
    """The master, while the slave serves reads until it has handed its offsets over."""


# Orders.


class BecomeMaster(NamedTuple):
    """Recover the log to its last valid record; if its epoch table ends below `epoch`, append (epoch, log end) and
    flush; then call `on_ready`. Slaves that connect are served from then on."""

    epoch: int


class BecomeSlave(NamedTuple):
    """Copy only from this master, and refuse lower epochs. `ha_address` is "" while unknown; the order is repeated when
    it is known."""

    master: int
    epoch: int
    address: str
    ha_address: str


class PermissionChanged(NamedTuple):
    """Permissions of clients have changed. On a loss, answer held pulls with NO_PERMISSION and drop consumers; on a
    gain, register at the name servers."""

    may_read: bool
    may_write: bool
    why: str
    at_ms: int
    """Since when, monotonic: a lease may have ended before this was noticed."""


class HandOffsets(NamedTuple):
    """Send all consumer offsets to this member, with the token; call `on_handed` with its answer. From now on commits
    are refused."""

    to: int
    token: int


class MergeOffsets(NamedTuple):
    """Merge and save offsets that a reader, which is missing, had copied to the registry; then call `on_merged`."""

    copied: CopiedOffsets


class PermittedUntil(NamedTuple):
    """When each permission for clients ends, unless the lease is renewed; monotonic ms."""

    read: int
    write: int
    commit: int

    def next_end_ms(self, now_ms: int) -> int:
        """Return when the next permission that holds now ends; FOREVER if none does."""
        return min((until for until in self if until > now_ms), default=FOREVER)


class CommandDone(NamedTuple):
    """An accepted switch or forced takeover has ended."""

    is_done: bool
    text: str


class Note(NamedTuple):
    """A line for the timeline and the log."""

    epoch: int
    text: str


Effect = (
    RegistryRequest | BecomeMaster | BecomeSlave | PermissionChanged | HandOffsets | MergeOffsets | CommandDone | Note
)


class CommandResult(NamedTuple):
    """Answer to an operator's command. An accepted command that is not done at once ends with CommandDone."""

    is_accepted: bool
    is_done: bool
    text: str


@dataclass(frozen=True, slots=True)
class Status:
    """Status of one member at one moment, for `ha status`."""

    mode: Mode | None
    stage: MemberStage
    epoch: int
    master: int
    reader: int
    group_mode: GroupMode | None
    in_sync: tuple[int, ...]
    asked_in_sync: tuple[int, ...] | None
    """The requested in-sync set of a change with an unknown outcome."""
    may_read: bool
    may_write: bool
    why: str
    """Reason for the permissions."""
    since_ms: int
    """Monotonic time of the last change of `may_read` or `may_write`."""
    lease_left_ms: int | None
    """None: no other member can take over, so no lease is needed."""
    is_lonely: bool
    registry: str
    """State of the session: "up", "suspended" or "none"."""
    live: tuple[int, ...] | None
    """Brokers with a live node; None while unknown."""
    session_ms: int
    lease_ms: int
    checks: int
    confirm_offset: int
    reason: str
    """Reason given with the last change of the record."""
    took_ms_ago: int | None
    """How long ago this master took over from a failed one; None: it is no master, or for another reason."""
    trouble: str
