"""Giving up what one serves, in order: a reader gives back to its master, a master hands over to a member in sync.

    DRAIN ── consumers drained, or time ──► OFFSETS ── stored by the other ──► WAIT ── record changed ──► over
      └───────────────────┴── time, refusal, no registry: given up ──┘

What was given up is claimed anew first, if the other one may have a write under way by which it serves. It cannot
before it has the offsets of a hand-back; in a switch never, for there the giver writes.

In a hand-back the master writes the record, once it has stored the offsets; in a switch the giver does, once the target
also holds all of the log.
Source: docs/internals/failover.md, "Hand-back", "Switch"; requirements F22, F25, F26, V18, V19, M07.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tandemq.boundary import Now
from tandemq.coordination.lease import NEVER
from tandemq.coordination.member.orders import CommandResult, HandOffsets, MemberStage
from tandemq.coordination.permission import holder_of
from tandemq.coordination.registry.records import GroupMode, Mode
from tandemq.coordination.slave_consume import HandStep

if TYPE_CHECKING:
    from tandemq.coordination.member.machine import MemberMachine


@dataclass(slots=True)
class Hand:
    """A hand-over under way."""

    to: int
    is_switch: bool
    begun_ms: int
    token: int
    step: HandStep = HandStep.DRAIN
    is_proposed: bool = False


class Giver:
    """Hands over, or takes a hand-back."""

    def __init__(self, member: "MemberMachine") -> None:
        """Nothing under way."""
        self._member = member
        self.hand: Hand | None = None
        self._next_ms = NEVER
        self.taken: int | None = None
        """As master: offsets that belong to this version of the record are stored here."""

    # Commands.

    def switch(self, target: int, now: Now) -> CommandResult:
        """An operator wants another master."""
        member, state = self._member, self._member.view.state
        if state is None or member.view.config is None:
            return CommandResult(False, False, f"broker {member.id} has not read the group's record from the registry")
        if member.mode is not Mode.ELECT:
            return CommandResult(
                False, False, f"roles are fixed in mode {member.mode.value if member.mode else 'unknown'}"
            )
        if state.master == target:
            return CommandResult(True, True, f"broker {target} is the master already")
        if self.hand is not None and self.hand.to == target:
            return CommandResult(True, False, f"the switch to broker {target} is under way")
        refusal = self._refusal(target)
        if refusal is not None:
            return CommandResult(False, False, refusal)
        self._begin(target, now, is_switch=True)
        member.think(now)
        return CommandResult(True, False, f"switching to broker {target}")

    def _refusal(self, target: int) -> str | None:
        member, state = self._member, self._member.view.state
        assert state is not None, "checked before"
        if member.stage is not MemberStage.SERVING or state.master != member.id:
            return f"broker {member.id} is not the serving master; the record names broker {state.master}"
        if member.own_of(target) is None:
            return f"broker {target} is no member of the group"
        if not member.configured(target).may_write:
            return f"broker {target} may not be written to by configuration; allow it WRITE first"
        if target not in state.in_sync:
            return f"broker {target} is not in sync; wait until it has caught up"
        peer = member.peer(target)
        if not peer.is_linked or peer.acked < 0:
            return f"broker {target} is not connected"
        lag = member.log_end - peer.acked
        if lag > member.settings.switch_lag_bytes_max:
            return f"broker {target} lags by {lag} bytes; wait until it has caught up"
        if not member.view.may_propose:
            return "the registry does not answer, or a change is not decided yet; try again"
        return None

    # Giving.

    def _begin(self, to: int, now: Now, *, is_switch: bool) -> None:
        member = self._member
        self.hand = Hand(to, is_switch, now.mono_ms, member.view.version)
        member.become(MemberStage.HANDING, f"handing over to broker {to}", now)

    def tick(self, now: Now) -> None:
        """Go on with what is under way, or begin a hand-back that has become possible."""
        member = self._member
        if self.hand is None:
            if self._may_give_back(now):
                assert member.view.state is not None, "checked before"
                self._begin(member.view.state.master, now, is_switch=False)
            return
        hand, settings = self.hand, member.settings
        drain_ms = settings.switch_drain_ms if hand.is_switch else settings.drain_ms
        if self._is_forbidden(hand):
            self.give_up(f"by its configuration broker {hand.to} may not be written to any more", now)
            return
        if hand.step is HandStep.DRAIN and now.mono_ms - hand.begun_ms >= drain_ms:
            self._send_offsets(hand, now)
            return
        if hand.step is HandStep.WAIT and hand.is_switch and not hand.is_proposed and member.view.may_propose:
            self._propose_switch(hand, now)
        if member.view.pending is None and hand.is_proposed:
            self.give_up("the switch was not decided in our favour", now)
        elif member.view.pending is None and now.mono_ms - hand.begun_ms >= settings.hand_over_ms:
            self.give_up(f"no end after {now.mono_ms - hand.begun_ms} ms", now)

    def _is_forbidden(self, hand: Hand) -> bool:
        """Whether the configuration has changed, and its target may not become master any more."""
        return hand.is_switch and not hand.is_proposed and not self._member.configured(hand.to).may_write

    def _may_give_back(self, now: Now) -> bool:
        member, state = self._member, self._member.view.state
        return (
            state is not None
            and member.stage is MemberStage.SERVING
            and state.mode is GroupMode.SLAVE_CONSUME
            and member.view.may_propose
            and state.master in (member.view.live or {})
            and member.peer(state.master).is_linked
            and now.mono_ms >= self._next_ms
        )

    def deadline_ms(self) -> int | None:
        """When the present step ends by time."""
        hand, settings = self.hand, self._member.settings
        if hand is None:
            return None
        if hand.step is HandStep.DRAIN:
            return hand.begun_ms + (settings.switch_drain_ms if hand.is_switch else settings.drain_ms)
        return hand.begun_ms + settings.hand_over_ms

    def drained(self, now: Now) -> None:
        """Consumers have committed what they had pulled."""
        if self.hand is not None and self.hand.step is HandStep.DRAIN:
            self._send_offsets(self.hand, now)

    def _send_offsets(self, hand: Hand, now: Now) -> None:
        if not self._member.view.may_propose:
            self.give_up("the registry does not answer", now)
            return
        hand.step = HandStep.OFFSETS
        self._member.order(HandOffsets(hand.to, hand.token))

    def handed(self, token: int, now: Now, *, is_stored: bool) -> None:
        """The other one answered."""
        hand = self.hand
        if hand is None or hand.token != token or hand.step is not HandStep.OFFSETS:
            return
        if is_stored:
            hand.step = HandStep.WAIT
        else:
            self.give_up(f"broker {hand.to} did not take the offsets", now)

    def _propose_switch(self, hand: Hand, now: Now) -> None:
        member, state = self._member, self._member.view.state
        assert state is not None, "we serve by it"
        if member.peer(hand.to).acked < member.log_end or not member.peer(hand.to).is_linked:
            return
        hand.is_proposed = True
        new = replace(state, epoch=state.epoch + 1, master=hand.to, reader=hand.to)
        member.propose(new, f"switch from broker {member.id} to {hand.to} by an operator", now)

    def give_up(self, why: str, now: Now) -> None:
        """Serve again, if the other one may have a write under way after a write of ours, so that its own fails."""
        hand, self.hand = self.hand, None
        assert hand is not None, "nothing to give up"
        self._next_ms = now.mono_ms + self._member.settings.hand_back_wait_ms
        text = f"the hand-over to broker {hand.to} was given up: {why}"
        if hand.step is HandStep.DRAIN or (hand.is_switch and not hand.is_proposed):
            self._member.become(MemberStage.SERVING, text, now)
        else:
            self._member.reclaim(text, now)
        if hand.is_switch:
            self._member.command_done(f"not switched: {why}", is_done=False)

    def over(self) -> None:
        """The record names another holder now."""
        hand, self.hand = self.hand, None
        state = self._member.view.state
        if hand is not None and hand.is_switch and state is None:
            self._member.command_done("not switched: the group's record is lost", is_done=False)
        elif hand is not None and hand.is_switch and state is not None:
            is_done = state.master == hand.to
            self._member.command_done(f"broker {state.master} is the master, epoch {state.epoch}", is_done=is_done)

    # Taking a hand-back, as the master.

    def take(self, giver: int, token: int) -> bool:
        """Whether offsets of this member, for this version, may be merged into ours and stored."""
        state = self._member.view.state
        if state is None or holder_of(state) != giver or giver == self._member.id:
            return False
        return token >= self._member.view.version

    def took(self, giver: int, token: int, now: Now) -> None:
        """They are stored: what was read there is known here."""
        if self._member.stage is MemberStage.AWAITING and self.take(giver, token):
            self.taken = token
            if token > self._member.view.version:
                self._member.view.read_state()
            self._member.think(now)

    def end_reading(self, now: Now) -> None:
        """Write the record back to normal, when the offsets for its present version are here."""
        member, view = self._member, self._member.view
        if self.taken is None or view.state is None or not view.may_propose:
            return
        if self.taken < view.version:
            self.taken = None
        elif self.taken == view.version:
            self.taken = None
            reader = view.state.reader
            new = replace(view.state, mode=GroupMode.NORMAL, reader=member.id)
            member.propose(new, f"broker {reader} handed its offsets back", now)
