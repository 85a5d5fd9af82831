"""The status of one member as `tandemq ha status` shows it.

Source: docs/internals/failover.md, "Leases"; requirement F31.
"""

from tandemq.boundary import Now
from tandemq.coordination.lease import FOREVER, NEVER, is_lonely
from tandemq.coordination.member.diagnosis import Diagnosis
from tandemq.coordination.member.facts import MemberFacts
from tandemq.coordination.member.orders import MemberStage, Status
from tandemq.coordination.member.service import ServiceState
from tandemq.coordination.permission import holder_of
from tandemq.coordination.registry.records import NOBODY


def status_of(
    facts: MemberFacts, service: ServiceState, diagnosis: Diagnosis, took_ms_ago: int | None, now: Now
) -> Status:
    """Collect the status at this moment."""
    view, lease = facts.view, facts.lease
    state, now_ms = view.state, now.mono_ms
    until = lease.until_ms() if service.stage in (MemberStage.SERVING, MemberStage.HANDING) else NEVER
    asked = None if view.pending is None else view.pending.state.in_sync
    lonely = is_lonely(
        is_master=state is not None and holder_of(state) == facts.id,
        has_slave_assigned=view.config is not None and len(view.config.members) > 1,
        slave_once_connected=bool(lease.rivals()),
        no_slave_connected=lease.peers_until_ms() <= now_ms,
        registry_lost=lease.registry_until_ms() <= now_ms,
    )
    return Status(
        mode=facts.membership.mode,
        stage=service.stage,
        epoch=0 if state is None else state.epoch,
        master=NOBODY if state is None else state.master,
        reader=NOBODY if state is None else holder_of(state),
        group_mode=None if state is None else state.mode,
        in_sync=() if state is None else state.in_sync,
        asked_in_sync=asked if state is not None and asked != state.in_sync else None,
        may_read=now_ms < service.permitted_until.read,
        may_write=now_ms < service.permitted_until.write,
        why=service.why,
        since_ms=service.changed_ms,
        lease_left_ms=None if until == FOREVER else max(0, until - now_ms),
        is_lonely=lonely,
        registry="up" if view.is_up else "suspended" if view.session_id else "none",
        live=None if view.live is None else tuple(sorted(view.live)),
        session_ms=view.session_ms,
        lease_ms=lease.timing.lease_ms,
        checks=lease.timing.checks,
        confirm_offset=facts.in_sync.confirm_offset,
        reason="" if state is None else state.reason,
        took_ms_ago=took_ms_ago,
        trouble=diagnosis.problem(now_ms),
    )
