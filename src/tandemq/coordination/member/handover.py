"""Orderly handovers: a reader returns reading to its master, a master is switched to an in-sync member.

A switch is an operator's order. A master switches by itself in `elect` if its log takes no record any more, and in
`slave-consume` if it starts while the configuration names another master.

    DRAIN ── consumers drained, or timeout ──► OFFSETS ── stored by the other ──► WAIT ── record changed ──► over
      └────────────────────┴── timeout, refusal, no registry: given up ──┘

After a handover that was given up, this member claims the record again by a write if the other one may have a write in
flight by which it would serve. In an offset handover that is possible only after it has the offsets; in a switch never,
because there this member writes.

In an offset handover the master writes the record, once it has stored the offsets; in a switch the old master does,
once the target also has the whole log and all topics and consumer groups.
Source: docs/internals/failover.md, "Offset handover", "Switch"; requirements F22, F25, F26, V18, V19, M07.
"""

from dataclasses import dataclass, replace

from tandemq.boundary import Now
from tandemq.coordination.lease import NEVER
from tandemq.coordination.member.facts import MemberFacts
from tandemq.coordination.member.older_record import OlderRecord
from tandemq.coordination.member.orders import CommandResult, HandOffsets, MemberStage
from tandemq.coordination.member.outputs import MemberOutputs
from tandemq.coordination.member.service import ServiceState
from tandemq.coordination.permission import holder_of
from tandemq.coordination.registry.records import GroupMode, Mode
from tandemq.coordination.slave_consume import HandoverStep


@dataclass(slots=True)
class HandoverProgress:
    """A handover in progress."""

    to: int
    is_switch: bool
    why: str
    """For the record: who ordered it."""
    begun_ms: int
    token: int
    """Version of the record that the offsets belong to."""
    step: HandoverStep = HandoverStep.DRAIN
    is_proposed: bool = False
    """In a switch: the record that names the target is written, or its outcome unknown."""

    @property
    def is_revocable(self) -> bool:
        """Whether the other member cannot have a write in flight by which it would serve."""
        return self.step is HandoverStep.DRAIN or (self.is_switch and not self.is_proposed)


class Handover:
    """Hands over the serving of clients to another member, and takes offsets as the master."""

    def __init__(self, facts: MemberFacts, outputs: MemberOutputs, service: ServiceState, older: OlderRecord) -> None:
        """No handover is in progress."""
        self._facts = facts
        self._view = facts.view
        self._service = service
        self._outputs = outputs
        self._older = older
        self.progress: HandoverProgress | None = None
        self._next_ms = NEVER
        self.taken: int | None = None
        """As master: the offsets that belong to this version of the record are stored here."""

    @property
    def target(self) -> int | None:
        """The next master while a switch is in progress."""
        progress = self.progress
        return progress.to if progress is not None and progress.is_switch else None

    # Commands.

    def switch(self, target: int, now: Now, *, why: str) -> CommandResult:
        """Begin to make another member the master, by an order. `why`: who gave it, for the record."""
        membership, state = self._facts.membership, self._view.state
        if state is None or self._view.config is None:
            return CommandResult(
                False, False, f"broker {membership.id} has not read the group's record from the registry"
            )
        if state.master == target:
            return CommandResult(True, True, f"broker {target} is the master already")
        if self.progress is not None and self.progress.to == target:
            return CommandResult(True, False, f"the switch to broker {target} is in progress")
        refusal = self._refusal(target)
        if refusal is not None:
            return CommandResult(False, False, refusal)
        self._begin(target, now, is_switch=True, why=why)
        return CommandResult(True, False, f"switching to broker {target}")

    def _refusal(self, target: int) -> str | None:
        """Return why the group cannot be switched to a member now; None if it can."""
        membership, state = self._facts.membership, self._view.state
        assert state is not None, "checked before"
        if self._service.stage is not MemberStage.SERVING or state.master != membership.id:
            return f"broker {membership.id} is not the serving master; the record names broker {state.master}"
        if membership.own_of(target) is None:
            return f"broker {target} is not a member of the group"
        if not membership.permission_of(target).may_write:
            return f"broker {target} may not be written to by configuration; allow it WRITE first"
        if target not in state.in_sync:
            return f"broker {target} is not in sync; wait until it has caught up"
        peer = self._facts.peers.get(target)
        if not peer.is_linked or peer.acked < 0:
            return f"broker {target} is not connected"
        if not peer.has_tables:
            return f"broker {target} has not received topics and groups yet; try again in some seconds"
        lag = self._facts.log.end - peer.acked
        if lag > membership.settings.switch_lag_bytes_max:
            return f"broker {target} lags by {lag} bytes; wait until it has caught up"
        if not self._view.may_propose:
            return "the registry does not answer, or a change is still in flight; try again"
        return self._older.objection() or None

    # Handing over.

    def _begin(self, to: int, now: Now, *, is_switch: bool, why: str = "") -> None:
        self.progress = HandoverProgress(to, is_switch, why, now.mono_ms, self._view.version)
        self._service.takes_commits = True
        if is_switch:
            self._facts.peers.get(to).has_tables = False  # until it reports that it has the last changes
        self._service.become(MemberStage.HANDING, f"handing over to broker {to}", now)

    def tick(self, now: Now) -> None:
        """Continue the handover in progress, or begin an offset handover that has become possible."""
        progress, settings = self.progress, self._facts.membership.settings
        if progress is None:
            if self._may_return_reading(now):
                assert self._view.state is not None, "checked before"
                self._begin(self._view.state.master, now, is_switch=False)
            elif (order := self._own_order(now)) is not None:
                target, why = order
                self._begin(target, now, is_switch=True, why=why)
            return
        if self._is_forbidden(progress):
            self.give_up(f"by its configuration broker {progress.to} may not be written to any more", now)
            return
        if progress.is_revocable and (why := self._older.reason()):
            self.give_up(why, now)
            return
        if progress.step is HandoverStep.DRAIN and now.mono_ms >= progress.begun_ms + self._drain_ms(progress):
            self._send_offsets(progress, now)
            return
        is_ready = progress.step is HandoverStep.WAIT and progress.is_switch and not progress.is_proposed
        if is_ready and self._view.may_propose:
            self._propose_switch(progress, now)
        if self._view.pending is None and progress.is_proposed:
            self.give_up("another change of the record came first", now)
        elif self._view.pending is None and now.mono_ms - progress.begun_ms >= settings.hand_over_ms:
            self.give_up(f"not completed after {now.mono_ms - progress.begun_ms} ms", now)

    def _drain_ms(self, progress: HandoverProgress) -> int:
        settings = self._facts.membership.settings
        return settings.switch_drain_ms if progress.is_switch else settings.drain_ms

    def _is_forbidden(self, progress: HandoverProgress) -> bool:
        """Whether the configuration has changed so that the target may not become master any more."""
        may_write = self._facts.membership.permission_of(progress.to).may_write
        return progress.is_switch and not progress.is_proposed and not may_write

    def _may_return_reading(self, now: Now) -> bool:
        """Whether this member is the reader and its master is ready to take the offsets."""
        view, state = self._view, self._view.state
        return (
            state is not None
            and self._service.stage is MemberStage.SERVING
            and state.mode is GroupMode.SLAVE_CONSUME
            and view.may_propose
            and state.master in (view.live or {})
            and self._facts.peers.get(state.master).is_linked
            and now.mono_ms >= self._next_ms
            and not self._older.objection()
        )

    def _own_order(self, now: Now) -> tuple[int, str] | None:
        """Return the member to which this master hands over now without an operator's order, and why; None: to none."""
        if self._service.stage is not MemberStage.SERVING or now.mono_ms < self._next_ms:
            return None
        targets, why = self._own_targets()
        return next(((target, why) for target in targets if self._refusal(target) is None), None)

    def _own_targets(self) -> tuple[list[int], str]:
        """Return the members that should be the master in place of this one, the best first, and why."""
        membership, state = self._facts.membership, self._view.state
        if membership.mode is Mode.SLAVE_CONSUME:
            return ([] if membership.successor is None else [membership.successor]), "as configured"
        if state is None or not self._facts.log.is_refused:
            return [], ""
        others = [membership.candidate(member, 0, 0) for member in state.in_sync if member != membership.id]
        best = sorted(others, key=lambda member: (-member.priority, member.broker_id))
        return [member.broker_id for member in best], f"as broker {membership.id} cannot write to its device"

    def deadline_ms(self) -> int | None:
        """When the present step times out; None if no handover is in progress."""
        progress = self.progress
        if progress is None:
            return None
        if progress.step is HandoverStep.DRAIN:
            return progress.begun_ms + self._drain_ms(progress)
        return progress.begun_ms + self._facts.membership.settings.hand_over_ms

    def drained(self, now: Now) -> None:
        """Note that consumers have committed the messages they had pulled."""
        if self.progress is not None and self.progress.step is HandoverStep.DRAIN:
            self._send_offsets(self.progress, now)

    def _send_offsets(self, progress: HandoverProgress, now: Now) -> None:
        if not self._view.may_propose:
            self.give_up("the registry does not answer", now)
            return
        progress.step = HandoverStep.OFFSETS
        self._service.takes_commits = False
        self._outputs.add(HandOffsets(progress.to, progress.token))

    def handed(self, token: int, now: Now, *, is_stored: bool) -> None:
        """Take the answer of the other member: whether it has stored the offsets."""
        progress = self.progress
        if progress is None or progress.token != token or progress.step is not HandoverStep.OFFSETS:
            return
        if is_stored:
            progress.step = HandoverStep.WAIT
        else:
            self.give_up(f"broker {progress.to} did not take the offsets", now)

    def _propose_switch(self, progress: HandoverProgress, now: Now) -> None:
        """Write the record that names the target, once it has the whole log and all tables."""
        state, peer = self._view.state, self._facts.peers.get(progress.to)
        assert state is not None, "this member serves by it"
        if peer.acked < self._facts.log.end or not peer.is_linked or not peer.has_tables:
            return
        progress.is_proposed = True
        epoch = max(state.epoch, self._facts.log.epoch) + 1
        new = replace(state, epoch=epoch, master=progress.to, reader=progress.to)
        self._outputs.propose(new, f"switch from broker {self._facts.id} to {progress.to} {progress.why}", now)

    def give_up(self, why: str, now: Now) -> None:
        """Serve again; after another write of the record if the other member may have a write in flight."""
        progress, self.progress = self.progress, None
        assert progress is not None, "no handover is in progress"
        self._next_ms = now.mono_ms + self._facts.membership.settings.hand_back_wait_ms
        text = f"the handover to broker {progress.to} was given up: {why}"
        if progress.is_revocable:
            self._service.become(MemberStage.SERVING, text, now)
        else:
            self._service.reclaim(text, now)
        if progress.is_switch:
            self._outputs.command_done(f"not switched: {why}", is_done=False)

    def over(self) -> None:
        """End the handover: the record names another holder now, or is lost."""
        progress, self.progress = self.progress, None
        if progress is None or not progress.is_switch:
            return
        state = self._view.state
        if state is None:
            self._outputs.command_done("not switched: the group's record is lost", is_done=False)
        else:
            text = f"broker {state.master} is the master, epoch {state.epoch}"
            self._outputs.command_done(text, is_done=state.master == progress.to)

    # Taking offsets, as the master.

    def may_take(self, giver: int, token: int) -> bool:
        """Whether offsets of a member, for this version of the record, may be merged and stored."""
        state = self._view.state
        if state is None or holder_of(state) != giver or giver == self._facts.id:
            return False
        return token >= self._view.version

    def took(self, giver: int, token: int) -> None:
        """The offsets are merged and stored."""
        if self._service.stage is MemberStage.AWAITING and self.may_take(giver, token):
            self.taken = token
            if token > self._view.version:
                self._view.read_state()

    def end_reading(self, now: Now) -> None:
        """Write the record back to normal, once the offsets for its present version are stored."""
        view = self._view
        if self.taken is None or view.state is None or not view.may_propose or self._older.objection():
            return
        if self.taken < view.version:
            self.taken = None
        elif self.taken == view.version:
            self.taken = None
            reader = view.state.reader
            new = replace(view.state, mode=GroupMode.NORMAL, reader=self._facts.id)
            self._outputs.propose(new, f"broker {reader} handed its offsets over", now)
