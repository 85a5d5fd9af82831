"""Following the record: the stage and the replication role that it gives this member.

Source: docs/internals/failover.md, "A broker and its member"; requirements F09-F33, R11.
"""

from typing import NamedTuple

from tandemq.boundary import Now
from tandemq.coordination.member.facts import MemberFacts
from tandemq.coordination.member.handover import Handover
from tandemq.coordination.member.older_record import OlderRecord
from tandemq.coordination.member.orders import BecomeMaster, BecomeSlave, MemberStage
from tandemq.coordination.member.outputs import MemberOutputs
from tandemq.coordination.member.service import ServiceState
from tandemq.coordination.member.takeover import Takeover
from tandemq.coordination.permission import holder_of
from tandemq.coordination.registry.records import GroupMode, GroupState


class _Assignment(NamedTuple):
    """The part of a record that decides on roles."""

    epoch: int
    master: int
    mode: GroupMode
    reader: int
    restorations: int
    """Of the registry's data: see `RegistryView`."""


class RecordFollower:
    """Brings this member to the stage and role that the record gives it."""

    def __init__(
        self,
        facts: MemberFacts,
        outputs: MemberOutputs,
        service: ServiceState,
        takeover: Takeover,
        handover: Handover,
        older: OlderRecord,
    ) -> None:
        """No record has been read."""
        self._facts = facts
        self._view = facts.view
        self._service = service
        self._outputs = outputs
        self._takeover = takeover
        self._handover = handover
        self._older = older
        self._followed_epoch: int | None = None
        self._followed: _Assignment | None = None
        """The assignment this member acts by; None while it is in no record."""
        self._role: BecomeMaster | BecomeSlave | None = None

    def follow(self, now: Now) -> None:
        """Adopt the record that was read last."""
        self._facts.membership.adopt_mode()
        state = self._view.state
        if state is None or self._facts.membership.own is None:
            self._leave(state, now)
            return
        assignment = _Assignment(state.epoch, state.master, state.mode, state.reader, self._view.restorations)
        if assignment != self._followed:
            is_new_epoch = state.epoch != self._followed_epoch
            self._facts.membership.note_master(state.master)
            self._followed, self._followed_epoch = assignment, state.epoch
            self._enter(state, now, is_new_epoch=is_new_epoch)
        elif self._facts.membership.is_elect and frozenset(state.in_sync) != self._facts.in_sync.decided:
            self._outputs.note(f"in sync: {', '.join(map(str, state.in_sync))}")
        pending = self._view.pending
        self._facts.in_sync.adopt(state.in_sync, pending.state.in_sync if pending is not None else ())
        self._advance(state, now)

    def _leave(self, state: GroupState | None, now: Now) -> None:
        """Serve no clients: there is no record, or this broker is not a member."""
        if self._service.stage is MemberStage.UNREAD:
            return
        self._followed = None
        if state is None:  # else connections and copies of this epoch count again when it is a member again
            self._followed_epoch = None
        self._handover.over()
        why = "this broker is not in the group's configuration"
        if state is None:
            why = "the group's record is lost" if self._view.refused is None else "the group's record is an older copy"
        self._service.become(MemberStage.UNREAD, why, now)

    def _enter(self, state: GroupState, now: Now, *, is_new_epoch: bool) -> None:
        """Take the stage that a changed assignment gives this member."""
        if is_new_epoch:
            self._facts.in_sync.begin_epoch(state.in_sync, self._facts.log.end)
            self._facts.lease.grants.drop_peers()
            self._facts.peers.drop_connections()
        own_id = self._facts.id
        is_holder = holder_of(state) == own_id
        self._takeover.settled(f"the record says: {state.reason}", is_done=is_holder)
        self._handover.over()
        self._handover.taken = None
        if is_holder:
            self._facts.log.held = (state.epoch, self._view.version)
            self._service.claim_above = self._view.version - 1
            self._service.become(MemberStage.CLAIMING, state.reason, now)
        else:
            self._facts.log.is_loss_accepted = False
            stage = MemberStage.AWAITING if state.master == own_id else MemberStage.SLAVE
            self._service.become(stage, state.reason, now)

    def _advance(self, state: GroupState, now: Now) -> None:
        """Go on from CLAIMING after an own write, and from PREPARING when the log is ready."""
        service, view = self._service, self._view
        is_claimed = view.pending is None and view.written_version > service.claim_above
        if service.stage is MemberStage.CLAIMING and is_claimed and self._may_lead():
            service.become(MemberStage.PREPARING, "the record is claimed", now)
        is_ready = state.master != self._facts.id or self._facts.log.ready_epoch == state.epoch
        if service.stage is MemberStage.PREPARING and is_ready and self._may_lead():
            service.become(MemberStage.SERVING, state.reason, now)

    def _may_lead(self) -> bool:
        """Whether the log has all that the group's can have, and no live member has seen a newer record."""
        log = self._facts.log
        is_log_enough = not self._facts.membership.is_elect or log.is_whole or log.is_loss_accepted
        return is_log_enough and not self._older.objection()

    def assign_role(self) -> None:
        """Order the broker to replicate from the record's master, or to be the master, if that is news."""
        state = self._view.state
        if state is None or self._facts.membership.own is None:
            return
        role: BecomeMaster | BecomeSlave | None = None
        if state.master != self._facts.id:
            role = self._slave_role(state)
        elif self._service.stage in (MemberStage.PREPARING, MemberStage.AWAITING):
            role = BecomeMaster(state.epoch)
        if role is not None and role != self._role:
            self._role = role
            self._outputs.add(role)

    def _slave_role(self, state: GroupState) -> BecomeSlave | None:
        """Return the order to follow the master; None to keep a known address while its live node is missing."""
        record, role = (self._view.live or {}).get(state.master), self._role
        if record is not None:
            return BecomeSlave(state.master, state.epoch, record.address, record.ha_address)
        if isinstance(role, BecomeSlave) and (role.master, role.epoch) == (state.master, state.epoch):
            return None
        return BecomeSlave(state.master, state.epoch, "", "")
