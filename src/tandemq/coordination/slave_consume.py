"""Reading from the slave: when it takes over, and how it gives back.

    slave  SERVING ─► pulls stop ─► consumers drained, 1 s at most ─► offsets sent ─► waits ────────────► SLAVE
    master AWAITING ──────────────────────────────────────────────────► offsets stored ─► record: normal ─► SERVING

The offsets carry the record's version they belong to. If the slave gives up waiting it first writes the record anew,
so that the master's own write for the old version can no longer succeed: never two readers.

Source: docs/internals/failover.md, "When another takes over"; requirements F12-F30, M07.
"""

from enum import Enum

from tandemq.coordination.registry.records import BrokerPermission, GroupMode, GroupState


class HandStep(Enum):
    """Where a hand-over is, for the one that gives."""

    DRAIN = "drain"
    """Pulls are refused; commits for what was pulled before are taken."""
    OFFSETS = "offsets"
    """Everything is refused; the offsets are on their way to the other."""
    WAIT = "wait"
    """The other has stored them; the record is about to change."""


def may_take_reading(state: GroupState, broker_id: int, mine: BrokerPermission, masters: BrokerPermission) -> bool:
    """Whether a slave may take over reading from a master that is gone, by configuration and record."""
    return (
        state.mode is GroupMode.NORMAL
        and broker_id != state.master
        and broker_id in state.in_sync
        and mine.may_read
        and masters.may_read
    )
