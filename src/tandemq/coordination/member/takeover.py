"""Taking over from a failed holder, by this member's own decision or by an operator's order.

The holder is the master, or the reader in slave-consume. There an operator can also promote a slave to master, when
neither the master nor another reader is left. Every condition must hold in several checks of the registry in a row.
Source: docs/internals/failover.md, "When another takes over"; requirements F13, F14, F17-F20, F30, R11.
"""

from dataclasses import replace

from tandemq.boundary import Now
from tandemq.coordination.election import may_become_master, rank_of
from tandemq.coordination.lease import NEVER, drift_of
from tandemq.coordination.liveness import AbsenceChecks
from tandemq.coordination.member.copied_offsets import OffsetCopies
from tandemq.coordination.member.facts import MemberFacts
from tandemq.coordination.member.older_record import OlderRecord
from tandemq.coordination.member.orders import CommandResult
from tandemq.coordination.member.outputs import MemberOutputs
from tandemq.coordination.permission import holder_of
from tandemq.coordination.registry.records import NOBODY, GroupMode, GroupState, Mode
from tandemq.coordination.slave_consume import may_take_reading


class Takeover:
    """Detects a failed holder and takes its place after enough checks in a row."""

    def __init__(self, facts: MemberFacts, outputs: MemberOutputs, older: OlderRecord, copies: OffsetCopies) -> None:
        """Nothing is suspected."""
        self._facts = facts
        self._view = facts.view
        self._outputs = outputs
        self._older = older
        self._copies = copies
        self.checks = AbsenceChecks()
        self._forced_until_ms: int | None = None
        self._published_ms = NEVER
        self._took = (0, NEVER)
        """The last epoch that this member began in place of a failed master by its own decision, and when."""

    @property
    def is_forced(self) -> bool:
        """Whether an operator accepted a possible loss or duplicate deliveries."""
        return self._forced_until_ms is not None

    def took_ms_ago(self, now: Now) -> int | None:
        """Return how long ago this master took over from a failed one; None if it is the master for another reason."""
        epoch, took_ms = self._took
        state = self._view.state
        is_it = state is not None and (state.epoch, state.master) == (epoch, self._facts.id)
        return now.mono_ms - took_ms if is_it else None

    def force(self, now: Now, *, is_preview: bool) -> CommandResult:
        """Carry out an operator's order; it waits for the same checks as any takeover. A preview only states the
        possible loss."""
        membership, state = self._facts.membership, self._view.state
        own_id = membership.id
        if state is None or membership.own is None:
            return CommandResult(False, False, f"broker {own_id} has not read the group's record from the registry")
        if state.master == own_id == holder_of(state):
            return CommandResult(True, True, f"broker {own_id} is it already")
        refusal = self._older.order_refusal(needs_write=state.master != own_id)
        if refusal is not None:
            return refusal
        failed = self._failed_for(state, is_forced=True)
        alive = next((broker_id for broker_id in failed if not self._older.is_out(broker_id, state)), None)
        if alive is not None and self._older.witnesses():
            return self._older.must_stop(alive)
        if alive is not None:
            text = f"broker {alive} is alive; use switch, or stop it and wait until its registry session has expired"
            return CommandResult(False, False, text)
        if not is_preview:
            self._forced_until_ms = now.mono_ms + self._facts.lease.order_ms
        is_older = bool(self._older.witnesses())
        return CommandResult(True, False, self._older.possible_loss() if is_older else self._possible_loss(state, now))

    def settled(self, text: str, *, is_done: bool) -> None:
        """End a forced takeover: the record has another holder, or the order expired."""
        if self._forced_until_ms is not None:
            self._forced_until_ms = None
            self._outputs.command_done(text, is_done=is_done)

    def tick(self, now: Now) -> None:
        """Evaluate the answered checks and start the next one when it is due."""
        view, membership = self._view, self._facts.membership
        if self._forced_until_ms is not None and now.mono_ms >= self._forced_until_ms:
            self.settled("given up: the other broker could not be shown to be gone in time", is_done=False)
        if self._evaluate_polls(now):
            return
        if not self._suspects(now):
            self.checks.reset()
            self._publish_if_holder_missing(now)
            return
        self.checks.begin(now.mono_ms)
        if self.checks.is_due(now.mono_ms, self._facts.lease.timing.check_ms):
            self._outputs.publish_live_node()
            if view.state is not None and view.state.mode is GroupMode.SLAVE_CONSUME:
                self._copies.read()
            view.poll(other for other in sorted(view.live or ()) if other != membership.id)

    def _publish_if_holder_missing(self, now: Now) -> None:
        """Publish our log end once per check while other members may begin to check: they order themselves by it."""
        state, live = self._view.state, self._view.live
        is_missing = state is not None and live is not None and holder_of(state) not in (NOBODY, *live)
        if is_missing and now.mono_ms >= self._published_ms + self._facts.lease.timing.check_ms:
            self._published_ms = now.mono_ms
            self._outputs.publish_live_node()

    def _evaluate_polls(self, now: Now) -> bool:
        """Count the answered checks; True if they led to a takeover."""
        polls, self._view.polls = self._view.polls, []
        for is_fresh in polls:
            failed = self._suspects(now)
            self.checks.found(holds=is_fresh and bool(failed))
            if not failed or not self._has_offsets():
                continue
            if self.checks.count >= self._facts.lease.timing.checks + self._place(failed):
                self._take_over(failed, now)
                return True
        return False

    def _has_offsets(self) -> bool:
        """Whether this member has the offsets that a reader in whose place it serves had copied."""
        state = self._view.state
        return state is None or self._copies.are_merged(state)

    def _suspects(self, now: Now) -> tuple[int, ...]:
        """Return the failed members that this one replaces, if all conditions of a takeover hold now; else ()."""
        view, state = self._view, self._view.state
        if state is None or self._facts.membership.own is None or view.live is None or not view.may_propose:
            return ()
        failed = self._failed_for(state, is_forced=self.is_forced)
        if any(not self._older.is_out(broker_id, state) or not self._is_silent(broker_id, now) for broker_id in failed):
            return ()
        if not failed or not self._is_eligible(state, failed[0], now):
            return ()
        return () if (self._older.unread_text() if self.is_forced else self._older.objection()) else failed

    def _failed_for(self, state: GroupState, *, is_forced: bool) -> tuple[int, ...]:
        """Return the members that must have failed before this one takes over: the holder; for a promotion in
        slave-consume also the master."""
        own_id, needed = self._facts.id, {holder_of(state)}
        if is_forced and self._is_promotion(state):
            needed.add(state.master)
        return tuple(sorted(needed - {own_id, NOBODY}))

    def _is_promotion(self, state: GroupState) -> bool:
        """Whether a forced takeover makes this slave of a slave-consume group its master."""
        return self._facts.membership.mode is Mode.SLAVE_CONSUME and state.master != self._facts.id

    def _is_silent(self, holder: int, now: Now) -> bool:
        peer = self._facts.peers.get(holder)
        lease_ms = max(self._facts.lease.timing.lease_ms, peer.lease_ms)
        return now.mono_ms - peer.heard_ms > lease_ms + drift_of(lease_ms)

    def _is_eligible(self, state: GroupState, holder: int, now: Now) -> bool:
        """Whether this member may be the next holder."""
        membership, own_id = self._facts.membership, self._facts.id
        if membership.is_elect:
            is_in_sync = own_id in state.in_sync and membership.permission_of(own_id).may_write
            is_whole = self._facts.log.is_whole
            return may_become_master(is_in_sync=is_in_sync, is_log_whole=is_whole, is_forced=self.is_forced)
        if state.mode is GroupMode.SLAVE_CONSUME and state.master == own_id:
            return self.is_forced or self._may_end_unclean(holder, now)
        if self.is_forced:
            return membership.permission_of(own_id).may_write
        own, masters = membership.permission_of(own_id), membership.permission_of(state.master)
        return membership.mode is Mode.SLAVE_CONSUME and may_take_reading(state, own_id, own, masters)

    def _may_end_unclean(self, reader: int, now: Now) -> bool:
        after_ms = self._facts.membership.settings.unclean_hand_back_after_ms
        return after_ms > 0 and now.mono_ms - self._facts.peers.get(reader).heard_ms >= after_ms

    def _place(self, failed: tuple[int, ...]) -> int:
        """Return how many checks longer this member waits than the first candidate."""
        membership, view, log = self._facts.membership, self._view, self._facts.log
        if self.is_forced or view.state is None or view.config is None or view.state.master == membership.id:
            return 0
        candidates = [membership.candidate(membership.id, log.epoch, log.end)]
        for other, record in (view.live or {}).items():
            is_in_line = other in view.state.in_sync and other not in (membership.id, *failed)
            if is_in_line and record is not None and self._may_follow(other):
                candidates.append(membership.candidate(other, record.epoch, record.log_end))
        return rank_of(membership.id, candidates)

    def _may_follow(self, broker_id: int) -> bool:
        """Whether the configuration allows a member to take over: writes in `elect`, reads in `slave-consume`."""
        allowed = self._facts.membership.permission_of(broker_id)
        return allowed.may_write if self._facts.membership.is_elect else allowed.may_read

    def _take_over(self, failed: tuple[int, ...], now: Now) -> None:
        """Propose the record that makes this member the holder."""
        own_id, state, holder = self._facts.id, self._view.state, failed[0]
        assert state is not None, "suspected without a record"
        how = "by an operator's order" if self.is_forced else f"missing in {self.checks.count} checks"
        self.checks.reset()
        is_founding = self.is_forced and bool(self._older.witnesses())
        if is_founding or self._facts.membership.is_elect or (self.is_forced and self._is_promotion(state)):
            self._facts.log.is_loss_accepted |= self.is_forced
            epoch = self._facts.next_epoch() if is_founding else max(state.epoch, self._facts.log.epoch) + 1
            new = GroupState(epoch, own_id, (own_id,), GroupMode.NORMAL, own_id)
            if not self.is_forced:
                self._took = (epoch, now.mono_ms)
            reason = f"broker {own_id} follows {', '.join(map(str, failed))}, {how}"
            if state.mode is GroupMode.SLAVE_CONSUME:
                reason += f", {self._copies.text(state)}"
        elif state.mode is GroupMode.NORMAL:
            new = replace(state, mode=GroupMode.SLAVE_CONSUME, reader=own_id)
            reason = f"broker {own_id} reads for {holder}, {how}"
        else:
            new = replace(state, mode=GroupMode.NORMAL, reader=state.master)
            reason = f"broker {own_id} takes reading back from {holder} {self._copies.text(state)}, {how}"
        self._outputs.propose(new, reason, now, is_founding=is_founding)

    def _possible_loss(self, state: GroupState, now: Now) -> str:
        """Return a sentence for the operator about messages that a forced takeover may lose."""
        own_id, reader, holder = self._facts.id, holder_of(state), state.master
        again = ""
        if reader not in (own_id, state.master):
            again = (
                f"offsets committed at broker {reader} that did not reach this broker or the registry, where it copies "
                "them once a second, are lost, so their messages are delivered again; "
            )
        if state.master == own_id:
            return f"{again}taking over when broker {reader} is shown to be gone"
        peer, log_end = self._facts.peers.get(holder), self._facts.log.end
        lost = f"{max(0, peer.log_end - log_end)} bytes" if peer.log_end >= 0 else "an unknown number of bytes"
        lost, not_in_sync = f"{lost} of broker {holder}'s log", ""
        if own_id not in state.in_sync:  # the holder has acknowledged messages without this member since
            if peer.log_end >= 0:
                lost += f", and all it stored since it was last heard {(now.mono_ms - peer.heard_ms) // 1000} s ago,"
            not_in_sync = f"; broker {own_id} is not in the in-sync set"
        longer = self._facts.member_with_longer_log(without=holder)
        hint = "" if longer is None else f"; broker {longer} has a longer log: force that one instead"
        return f"{again}{lost} may be lost{not_in_sync}{hint}; taking over when it is shown to be gone"
