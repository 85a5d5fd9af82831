"""The stage of a member, and until when it may serve which requests of clients.

                 record names another
    UNREAD ─► SLAVE ◄──────────────────────────────┬──────────────┐
                │ record names this broker         │              │
                ▼          own write of the record │  log ready   │
             CLAIMING ────────────────────► PREPARING ───────► SERVING ─► HANDING ─► SLAVE
                ▲ handover given up                                          │
                └────────────────────────────────────────────────────────────┘
    AWAITING: master by the record while the slave is the reader; ends with the offset handover.

Owner: the member. Source: docs/internals/failover.md, "Permissions"; requirements F06, F12, F24, F31.
"""

from tandemq.boundary import Now
from tandemq.coordination.lease import NEVER
from tandemq.coordination.member.diagnosis import Diagnosis
from tandemq.coordination.member.facts import MemberFacts
from tandemq.coordination.member.orders import MemberStage, PermissionChanged, PermittedUntil
from tandemq.coordination.member.outputs import MemberOutputs
from tandemq.coordination.permission import granted_permission
from tandemq.coordination.registry.records import BrokerPermission
from tandemq.coordination.registry.view import NO_NODE

_TRANSITIONS: dict[MemberStage, frozenset[MemberStage]] = {
    MemberStage.UNREAD: frozenset({MemberStage.SLAVE, MemberStage.CLAIMING, MemberStage.AWAITING}),
    MemberStage.SLAVE: frozenset({MemberStage.UNREAD, MemberStage.CLAIMING, MemberStage.AWAITING}),
    MemberStage.CLAIMING: frozenset(
        {MemberStage.UNREAD, MemberStage.SLAVE, MemberStage.PREPARING, MemberStage.AWAITING}
    ),
    MemberStage.PREPARING: frozenset(
        {MemberStage.UNREAD, MemberStage.SLAVE, MemberStage.SERVING, MemberStage.CLAIMING, MemberStage.AWAITING}
    ),
    MemberStage.SERVING: frozenset(
        {MemberStage.UNREAD, MemberStage.SLAVE, MemberStage.HANDING, MemberStage.CLAIMING, MemberStage.AWAITING}
    ),
    MemberStage.HANDING: frozenset(
        {MemberStage.UNREAD, MemberStage.SLAVE, MemberStage.CLAIMING, MemberStage.AWAITING, MemberStage.SERVING}
    ),
    MemberStage.AWAITING: frozenset({MemberStage.UNREAD, MemberStage.SLAVE, MemberStage.CLAIMING}),
}


class ServiceState:
    """Stage and permissions. A change of a permission is reported to the broker as an effect."""

    def __init__(self, facts: MemberFacts, outputs: MemberOutputs, diagnosis: Diagnosis, now: Now) -> None:
        """Stage UNREAD: the broker serves no clients."""
        self._facts = facts
        self._view = facts.view
        self._diagnosis = diagnosis
        self._outputs = outputs
        self.stage = MemberStage.UNREAD
        self.claim_above = NO_NODE
        """A write of the record by this broker is a claim if it made a version above this one."""
        self.takes_commits = False
        """In stage HANDING: whether consumers may still commit."""
        self.is_saved = True
        """Whether the broker has saved the newest record that it has seen; until then it takes no messages."""
        self.permitted_until = PermittedUntil(NEVER, NEVER, NEVER)
        self.changed_ms = now.mono_ms
        """Monotonic time of the last change of a permission."""
        self._may_read = False
        self._may_write = False
        self._reason = "the group's record has not been read yet"

    @property
    def is_serving_clients(self) -> bool:
        """Whether the last reported permissions include reads or writes."""
        return self._may_read or self._may_write

    @property
    def why(self) -> str:
        """Why clients may or may not be served, for refusals and operators."""
        if self.stage is MemberStage.SERVING and not self.is_serving_clients:
            if self._facts.membership.permission_of(self._facts.id) is BrokerPermission.NONE:
                return "the group's configuration gives it no permission"
            return "lonely: neither the registry nor every in-sync member confirms that no other broker serves"
        if self.stage is MemberStage.SERVING and not self.is_saved:
            return "the group's record cannot be saved on its disk: see its log"
        if self.stage is MemberStage.AWAITING and self._view.state is not None:
            reader = self._view.state.reader
            after_ms = self._facts.membership.settings.unclean_hand_back_after_ms
            ends = f", or {after_ms // 1000} s without it (uncleanHandBackAfter)" if after_ms else ""
            return f"broker {reader} serves reads until it has handed its offsets over; ha force-master ends that{ends}"
        if self.stage is MemberStage.CLAIMING and self._facts.membership.is_elect and not self._facts.log.is_whole:
            return (
                "the end of the log may be lost: waits for an in-sync member to take over; "
                "ha force-master accepts the loss"
            )
        is_beginning = self.stage in (MemberStage.CLAIMING, MemberStage.PREPARING)
        if is_beginning and (why := self._diagnosis.why_unclaimed()):
            return why
        if self.stage is MemberStage.UNREAD:
            return self._diagnosis.why_unread() or self._reason
        return self._reason

    def become(self, stage: MemberStage, reason: str, now: Now) -> None:
        """Change the stage, or only the reason for it."""
        if stage is not self.stage:
            assert stage in _TRANSITIONS[self.stage], f"{self.stage} does not become {stage}"
            self.stage = stage
        self._outputs.note(f"{stage.value}: {reason}")
        self._reason = reason
        self.update(now)

    def reclaim(self, reason: str, now: Now) -> None:
        """Serve again only after another own write of the record."""
        self.claim_above = self._view.version
        self.become(MemberStage.CLAIMING, reason, now)

    def update(self, now: Now) -> None:
        """Recompute the permissions; also to be called when the lease may have ended."""
        ended_ms = min(now.mono_ms, max(self.permitted_until[:2]))
        self.permitted_until = until = self._compute()
        may_read, may_write = now.mono_ms < until.read, now.mono_ms < until.write
        if (may_read, may_write) != (self._may_read, self._may_write):
            self._may_read, self._may_write, self.changed_ms = may_read, may_write, now.mono_ms
            at_ms = now.mono_ms if may_read or may_write else ended_ms
            self._outputs.add(PermissionChanged(may_read, may_write, self.why, at_ms))

    def _compute(self) -> PermittedUntil:
        if self.stage not in (MemberStage.SERVING, MemberStage.HANDING):
            return PermittedUntil(NEVER, NEVER, NEVER)
        own_id = self._facts.id
        right = granted_permission(self._facts.membership.permission_of(own_id), own_id, self._view.state)
        until_ms = self._facts.lease.until_ms()
        readable_ms = until_ms if right.may_read else NEVER
        writable_ms = until_ms if right.may_write and self.is_saved else NEVER
        if self.stage is MemberStage.HANDING:
            return PermittedUntil(NEVER, NEVER, readable_ms if self.takes_commits else NEVER)
        return PermittedUntil(readable_ms, writable_ms, readable_ms)
