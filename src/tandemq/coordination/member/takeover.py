"""Taking over from a holder that is gone, by oneself or by an operator's order.

Source: docs/internals/failover.md, "When another takes over"; requirements F13, F14, F17-F20, F30, R11.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from tandemq.boundary import Now
from tandemq.coordination.election import Candidate, may_stand, place_of
from tandemq.coordination.lease import drift_of
from tandemq.coordination.liveness import AbsenceChecks
from tandemq.coordination.member.orders import CommandResult
from tandemq.coordination.permission import holder_of
from tandemq.coordination.registry.records import GroupMode, GroupState, Mode
from tandemq.coordination.slave_consume import may_take_reading

if TYPE_CHECKING:
    from tandemq.coordination.member.machine import MemberMachine


class Taker:
    """Looks for a holder that is gone, and takes its place after enough looks in a row."""

    def __init__(self, member: "MemberMachine") -> None:
        """Not looking."""
        self._member = member
        self.checks = AbsenceChecks()
        self._forced_until_ms: int | None = None

    @property
    def is_forced(self) -> bool:
        """Whether an operator accepted what may be lost or repeated."""
        return self._forced_until_ms is not None

    def force(self, now: Now, *, is_preview: bool) -> CommandResult:
        """The operator's order; it waits for the same looks as any take-over. A preview only says what it may cost."""
        member, state = self._member, self._member.view.state
        if member.own is not None and member.founder.waits:
            return member.founder.force(is_preview=is_preview)
        if state is None or member.own is None:
            return CommandResult(False, False, f"broker {member.id} has not read the group's record from the registry")
        holder = holder_of(state)
        if holder == member.id:
            return CommandResult(True, True, f"broker {member.id} is it already")
        if member.mode is Mode.SLAVE_CONSUME and (state.mode is GroupMode.NORMAL or state.master != member.id):
            return CommandResult(
                False, False, "in slave-consume only the master can be forced, while its slave is reading"
            )
        if not member.view.may_propose or member.view.live is None:
            return CommandResult(False, False, f"broker {member.id} has no registry; without it nobody may take over")
        if holder in member.view.live:
            return CommandResult(
                False, False, f"broker {holder} lives; use switch, or stop it and wait until the registry misses it"
            )
        if not is_preview:
            self._forced_until_ms = now.mono_ms + member.settings.force_ms
        return CommandResult(True, False, self._price(state, holder, now))

    def settled(self, text: str, *, is_done: bool) -> None:
        """The record changed hands, or it cannot any more."""
        if self._forced_until_ms is not None:
            self._forced_until_ms = None
            self._member.command_done(text, is_done=is_done)

    def tick(self, now: Now) -> None:
        """Look when it is time; act on what was found."""
        member = self._member
        if self._forced_until_ms is not None and now.mono_ms >= self._forced_until_ms:
            self.settled("given up: the other one could not be shown to be gone in time", is_done=False)
        looks, member.view.looks = member.view.looks, []
        for is_fresh in looks:
            holder = self._suspect(now)
            self.checks.found(holds=is_fresh and holder is not None)
            if holder is not None and self.checks.count >= member.timing.checks + self._place(holder):
                self._take_over(holder, now)
                return
        holder = self._suspect(now)
        if holder is None:
            self.checks.reset()
            return
        self.checks.begin(now.mono_ms)
        if self.checks.looked(now.mono_ms, member.settings.check_ms):
            member.tell_registry()
            member.view.look(other for other in sorted(member.view.live or ()) if other != member.id)

    def _suspect(self, now: Now) -> int | None:
        """The holder, if all conditions of a take-over hold right now; None if one does not."""
        member, view = self._member, self._member.view
        state = view.state
        if state is None or member.own is None or view.live is None or not view.may_propose:
            return None
        holder = holder_of(state)
        if holder == member.id or holder in view.live or not self._is_silent(holder, now):
            return None
        return holder if self._is_eligible(state, holder, now) else None

    def _is_silent(self, holder: int, now: Now) -> bool:
        peer = self._member.peer(holder)
        lease_ms = max(self._member.timing.lease_ms, peer.lease_ms)
        return now.mono_ms - peer.heard_ms > lease_ms + drift_of(lease_ms)

    def _is_eligible(self, state: GroupState, holder: int, now: Now) -> bool:
        member = self._member
        if member.mode is Mode.ELECT:
            is_in_sync = member.id in state.in_sync and member.configured(member.id).may_write
            return may_stand(is_in_sync=is_in_sync, is_log_whole=member.is_log_whole, is_forced=self.is_forced)
        if state.mode is GroupMode.SLAVE_CONSUME:
            return state.master == member.id and (self.is_forced or self._may_end_unclean(holder, now))
        mine, masters = member.configured(member.id), member.configured(state.master)
        return member.mode is Mode.SLAVE_CONSUME and may_take_reading(state, member.id, mine, masters)

    def _may_end_unclean(self, reader: int, now: Now) -> bool:
        after_ms = self._member.settings.unclean_hand_back_after_ms
        return after_ms > 0 and now.mono_ms - self._member.peer(reader).heard_ms >= after_ms

    def _place(self, holder: int) -> int:
        """How many looks this member lets others go first."""
        member, view = self._member, self._member.view
        if member.mode is not Mode.ELECT or self.is_forced or view.state is None or view.config is None:
            return 0
        candidates = [Candidate(member.id, member.log_epoch, member.log_end, member.priority(member.id))]
        for other, record in (view.live or {}).items():
            is_in_line = other in view.state.in_sync and other not in (member.id, holder)
            if is_in_line and record is not None and member.configured(other).may_write:
                candidates.append(Candidate(other, record.epoch, record.log_end, member.priority(other)))
        return place_of(member.id, candidates)

    def _take_over(self, holder: int, now: Now) -> None:
        member, state = self._member, self._member.view.state
        assert state is not None, "suspected without a record"
        how = "by an operator's order" if self.is_forced else f"missing in {self.checks.count} looks"
        self.checks.reset()
        if member.mode is Mode.ELECT:
            member.is_loss_accepted |= self.is_forced
            new = replace(state, epoch=state.epoch + 1, master=member.id, in_sync=(member.id,), reader=member.id)
            reason = f"broker {member.id} follows {holder}, {how}"
        elif state.mode is GroupMode.NORMAL:
            new = replace(state, mode=GroupMode.SLAVE_CONSUME, reader=member.id)
            reason = f"broker {member.id} reads for {holder}, {how}"
        else:
            new = replace(state, mode=GroupMode.NORMAL, reader=state.master)
            reason = f"broker {member.id} takes reading back from {holder} without its offsets, {how}"
        member.propose(new, reason, now)

    def _price(self, state: GroupState, holder: int, now: Now) -> str:
        member = self._member
        if member.mode is not Mode.ELECT:
            return (
                f"offsets that consumers committed at broker {holder} and that did not reach this broker will repeat; "
                f"taking over when broker {holder} is shown to be gone"
            )
        peer = member.peer(holder)
        lost = f"{max(0, peer.log_end - member.log_end)} bytes" if peer.log_end >= 0 else "an unknown number of bytes"
        lost, sync = f"{lost} of broker {holder}'s log", ""
        if member.id not in state.in_sync:  # it has acknowledged messages without us since
            if peer.log_end >= 0:
                lost += f", and all it stored since it was last heard {(now.mono_ms - peer.heard_ms) // 1000} s ago,"
            sync = f"; broker {member.id} is not in the in-sync set"
        fuller = self._fuller(holder)
        hint = "" if fuller is None else f"; broker {fuller} has more of the log: force that one instead"
        return f"{lost} may be lost{sync}{hint}; taking over when it is shown to be gone"

    def _fuller(self, holder: int) -> int | None:
        """The living member whose log reaches farthest, if it reaches farther than ours."""
        member = self._member
        held = {
            other: (record.epoch, record.log_end)
            for other, record in (member.view.live or {}).items()
            if record is not None and other not in (member.id, holder)
        }
        best = max(held, key=held.__getitem__, default=None)
        return best if best is not None and held[best] > (member.log_epoch, member.log_end) else None
