"""Reads from the slave in mode slave-consume: when the slave takes over, and the offset handover to the master.

    slave  SERVING ─► pulls stop ─► consumers drained, at most 1 s ─► offsets sent ─► waits ────────────► SLAVE
    master AWAITING ──────────────────────────────────────────────────► offsets stored ─► record: normal ─► SERVING

The offsets carry the version of the record that they belong to. If the slave gives up waiting, it first writes the
record again, so that the master's write for the old version fails: there are never two readers.

Source: docs/internals/failover.md, "When another takes over"; requirements F12-F30, M07.
"""

from enum import Enum

from tandemq.coordination.registry.records import BrokerPermission, GroupMode, GroupState


class HandoverStep(Enum):
    """Step of a handover, for the member that hands over."""

    DRAIN = "drain"
    """Pulls are refused; commits for messages pulled before are accepted."""
    OFFSETS = "offsets"
    """All requests are refused; the offsets are being sent to the other member."""
    WAIT = "wait"
    """The other member has stored the offsets; the change of the record is pending."""


def may_take_reading(state: GroupState, broker_id: int, mine: BrokerPermission, masters: BrokerPermission) -> bool:
    """Return whether configuration and record allow a slave to serve reads in place of a failed master."""
    return (
        state.mode is GroupMode.NORMAL
        and broker_id != state.master
        and broker_id in state.in_sync
        and mine.may_read
        and masters.may_read
    )
