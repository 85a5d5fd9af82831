"""Writes of the record by a member that the record names: claims, and changes of the in-sync set.

Source: docs/internals/failover.md, "Leases", "In-sync set"; requirements F09, F16, R11.
"""

from dataclasses import replace

from tandemq.boundary import Now
from tandemq.coordination.election import rank_of
from tandemq.coordination.member.facts import MemberFacts
from tandemq.coordination.member.founding import Founding
from tandemq.coordination.member.handover import Handover
from tandemq.coordination.member.older_record import OlderRecord
from tandemq.coordination.member.orders import MemberStage
from tandemq.coordination.member.outputs import MemberOutputs
from tandemq.coordination.member.service import ServiceState
from tandemq.coordination.registry.records import GroupConfig, GroupMode, GroupState


class RecordProposals:
    """Decides which write of the record follows from the stage; one at a time."""

    def __init__(
        self,
        facts: MemberFacts,
        outputs: MemberOutputs,
        service: ServiceState,
        founding: Founding,
        handover: Handover,
        older: OlderRecord,
    ) -> None:
        """Nothing is proposed."""
        self._facts = facts
        self._view = facts.view
        self._service = service
        self._outputs = outputs
        self._founding = founding
        self._handover = handover
        self._older = older

    def tick(self, now: Now) -> None:
        """Propose the write that is due, if the registry can take one."""
        view, state, stage = self._view, self._view.state, self._service.stage
        if not view.may_propose or self._facts.membership.own is None:
            return
        if state is None:
            self._founding.propose(now)
        elif stage is MemberStage.CLAIMING:
            if not self._older.objection():  # else the member could not proceed with the record
                self._claim(state, now)
        elif stage is MemberStage.AWAITING:
            self._handover.end_reading(now)
        elif stage in (MemberStage.PREPARING, MemberStage.SERVING) and view.written_session != view.session_id:
            self._outputs.propose(state, state.reason, now)
        elif stage is MemberStage.SERVING and state.mode is GroupMode.NORMAL:
            self._change_in_sync(state, now)

    def _claim(self, state: GroupState, now: Now) -> None:
        """Write the record unchanged; a master of `elect` that may have lost part of its log names another one."""
        membership, log, view = self._facts.membership, self._facts.log, self._view
        others = [
            broker_id
            for broker_id in state.in_sync
            if broker_id != membership.id and membership.own_of(broker_id) is not None
        ]
        is_only_member = view.config is not None and len(view.config.members) == 1
        if log.is_whole or not membership.is_elect:
            self._outputs.propose(state, state.reason, now)
        elif log.is_loss_accepted or (not others and is_only_member):
            log.is_loss_accepted = True
            new = replace(state, epoch=state.epoch + 1, in_sync=(membership.id,))
            text = f"broker {membership.id} may have lost the end of its log, and no member has more"
            self._outputs.propose(new, text, now)
        else:
            self._resign(state, others, now)

    def _resign(self, state: GroupState, others: list[int], now: Now) -> None:
        """Name the best live in-sync member as the master; nothing happens while there is none."""
        membership, live = self._facts.membership, self._view.live or {}
        candidates = [
            membership.candidate(broker_id, record.epoch, record.log_end)
            for broker_id in others
            if membership.permission_of(broker_id).may_write and (record := live.get(broker_id)) is not None
        ]
        if candidates:
            heir = min(candidates, key=lambda member: rank_of(member.broker_id, candidates)).broker_id
            new = replace(state, epoch=state.epoch + 1, master=heir, reader=heir, in_sync=tuple(others))
            self._outputs.propose(new, f"broker {membership.id} may have lost the end of its log", now)

    def _change_in_sync(self, state: GroupState, now: Now) -> None:
        config = self._view.config
        assert config is not None, "this member serves by it"
        wanted = self._wanted_in_sync(config, now)
        if wanted is not None and wanted != frozenset(state.in_sync):
            new = replace(state, in_sync=tuple(sorted(wanted)))
            self._outputs.propose(new, f"in sync: {', '.join(map(str, sorted(wanted)))}", now)
            self._facts.in_sync.adopt(state.in_sync, new.in_sync)

    def _wanted_in_sync(self, config: GroupConfig, now: Now) -> frozenset[int] | None:
        is_elect, silence_ms = self._facts.membership.is_elect, self._facts.lease.timing.silence_ms
        gone = self._facts.peers.gone(now, silence_ms)
        return self._facts.in_sync.next_members(
            now.mono_ms,
            self._facts.peers.known,
            gone=gone if is_elect else gone | self._facts.peers.silent(now, silence_ms),
            candidates={member.broker_id for member in config.members},
            readers=() if is_elect else {member.broker_id for member in config.members if member.permission.may_read},
            lag_ms_max=self._facts.membership.settings.lag_ms_max,
        )
