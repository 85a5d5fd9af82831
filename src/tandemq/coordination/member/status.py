"""What `ha status` shows of one member. Source: docs/internals/failover.md, "Leases"; requirement F31."""

from typing import TYPE_CHECKING

from tandemq.boundary import Now
from tandemq.coordination.lease import FOREVER, NEVER, is_lonely
from tandemq.coordination.member.diagnosis import trouble_of
from tandemq.coordination.member.orders import MemberStage, Status
from tandemq.coordination.permission import holder_of
from tandemq.coordination.registry.records import NOBODY

if TYPE_CHECKING:
    from tandemq.coordination.member.machine import MemberMachine


def status_of(member: "MemberMachine", now: Now) -> Status:
    """Everything an operator wants to know, at this moment."""
    view, state, now_ms = member.view, member.view.state, now.mono_ms
    until = member.lease_until() if member.stage in (MemberStage.SERVING, MemberStage.HANDING) else NEVER
    rivals = member.rivals()
    is_holder = state is not None and holder_of(state) == member.id
    lonely = is_lonely(
        is_master=is_holder,
        has_slave_assigned=view.config is not None and len(view.config.members) > 1,
        slave_once_connected=bool(rivals),
        no_slave_connected=member.lease.peers_until_ms(rivals, member.timing.lease_ms) <= now_ms,
        registry_lost=member.lease.registry_until_ms(member.timing.lease_ms) <= now_ms,
    )
    asked = None if view.pending is None else view.pending.state.in_sync
    return Status(
        mode=member.mode,
        stage=member.stage,
        epoch=0 if state is None else state.epoch,
        master=NOBODY if state is None else state.master,
        reader=NOBODY if state is None else holder_of(state),
        group_mode=None if state is None else state.mode,
        in_sync=() if state is None else state.in_sync,
        asked_in_sync=asked if state is not None and asked != state.in_sync else None,
        may_read=member.may_read(now_ms),
        may_write=member.may_write(now_ms),
        why=member.why,
        since_ms=member.told_ms,
        lease_left_ms=None if until == FOREVER else max(0, until - now_ms),
        is_lonely=lonely,
        registry="up" if view.is_up else "suspended" if view.session_id else "none",
        live=None if view.live is None else tuple(sorted(view.live)),
        session_ms=view.session_ms,
        lease_ms=member.timing.lease_ms,
        checks=member.timing.checks,
        confirm_offset=member.confirm_offset,
        reason="" if state is None else state.reason,
        trouble=trouble_of(member, now_ms),
    )
