"""Heartbeats and reports between the members, over their replication connections.

The serving member sends numbered heartbeats; a report that echoes a number grants it a lease. A member with a write in
flight that could make it the holder, or with offsets taken from the reader, grants none.

Source: docs/internals/failover.md, "Leases"; requirements F15, F16, R11.
"""

from tandemq.boundary import Now
from tandemq.codec.ha import Heartbeat
from tandemq.coordination.liveness import TableProgress
from tandemq.coordination.member.facts import MemberFacts
from tandemq.coordination.member.handover import Handover
from tandemq.coordination.permission import holder_of


class HeartbeatExchange:
    """Applies heartbeats and reports to the known peers, log and lease."""

    def __init__(self, facts: MemberFacts, handover: Handover) -> None:
        """Nothing was sent or received."""
        self._facts = facts
        self._view = facts.view
        self._handover = handover

    def next_heartbeat(self, now: Now) -> Heartbeat | None:
        """Return the next heartbeat of a serving member; None without a record."""
        state = self._view.state
        if state is None:
            return None
        number = self._facts.lease.grants.next_heartbeat(now.mono_ms)
        confirmed = self._facts.in_sync.confirm(self._facts.log.end, self._facts.peers.known)
        return Heartbeat(state.epoch, number, self._facts.lease.timing.lease_ms, self._facts.log.end, confirmed)

    def take_heartbeat(self, peer: int, heartbeat: Heartbeat, now: Now) -> int:
        """Return the number to echo, which grants a lease; 0 if this member cannot grant one."""
        found, log = self._facts.peers.get(peer), self._facts.log
        found.heard_ms, found.lease_ms, found.log_end = now.mono_ms, heartbeat.lease_ms, heartbeat.log_end
        state = self._view.state
        if state is None or heartbeat.epoch != state.epoch:
            return 0
        if peer == state.master and found.is_linked and state.master != self._facts.id:
            if log.end >= heartbeat.log_end and not log.is_doubt_final:
                log.is_whole = True
            confirmed = min(heartbeat.confirm_offset, log.end)
            self._facts.in_sync.confirm_offset = max(self._facts.in_sync.confirm_offset, confirmed)
        may_grant = holder_of(state) == peer and self._view.pending is None and self._handover.taken is None
        return heartbeat.number if may_grant else 0

    def take_report(self, peer: int, acked: int, now: Now, tables: TableProgress) -> None:
        """Note the log end that a member reported, and how much of the metadata it has."""
        found = self._facts.peers.get(peer)
        found.heard_ms, found.has_tables = now.mono_ms, tables.has_needed
        if tables.keeps_up:
            found.tables_ms = now.mono_ms
        if acked >= found.end_then:
            found.caught_up_ms = now.mono_ms
        found.acked, found.end_then = acked, self._facts.log.end
