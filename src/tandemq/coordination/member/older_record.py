"""An older copy of the group's record: the registry's data were restored, and members have seen more.

    this broker has seen more      it serves no client, follows nobody and truncates nothing
    another live member has        this broker is not elected, claims nothing and hands nothing over; what it serves
                                   already, it serves on
    an operator's force-master     the named broker writes a record of a higher epoch, which continues all others

A broker that has seen no more than the copy cannot know: if it is in sync there and starts alone, it is elected and
takes messages. Those that return refuse its record, so that both logs are kept until an operator has chosen one.

Owner: the member. Source: docs/internals/failover.md, "When the registry has an older record"; requirements F09, F30.
"""

from tandemq.boundary import Now
from tandemq.coordination.liveness import AbsenceChecks
from tandemq.coordination.member.facts import MemberFacts
from tandemq.coordination.member.orders import CommandResult
from tandemq.coordination.member.outputs import MemberOutputs
from tandemq.coordination.permission import holder_of
from tandemq.coordination.registry.lineage import continues, is_one_history, newest
from tandemq.coordination.registry.records import NOBODY, GroupMode, GroupState, LiveBroker
from tandemq.coordination.registry.view import older_text


class OlderRecord:
    """Compares the registry's record with the records that members have seen; replaces it by an operator's order."""

    def __init__(self, facts: MemberFacts, outputs: MemberOutputs) -> None:
        """Nothing was ordered."""
        self._facts = facts
        self._view = facts.view
        self._outputs = outputs
        self._checks = AbsenceChecks()
        self._ordered_ms: int | None = None
        """When an operator ordered that this broker's log counts; None: nothing is ordered."""
        self._noted = ""

    @property
    def is_found(self) -> bool:
        """Whether this broker, or another live member, has seen a record that the registry's does not continue."""
        return self._view.refused is not None or bool(self.witnesses())

    @property
    def is_mine(self) -> bool:
        """Whether a forced mastership of this broker is this object's task: it refuses the record, or is its holder."""
        state = self._view.state
        is_holder = state is not None and holder_of(state) == self._facts.id
        return self._view.refused is not None or (is_holder and bool(self.witnesses()))

    def witnesses(self) -> dict[int, GroupState]:
        """Return what other live members have seen, of those that the record which this broker follows does not
        continue. May be outdated for the moment between a change of the record and its read."""
        state = self._view.state
        if state is None:
            return {}
        found = {number: record.seen for number, record in self._others().items() if record.seen is not None}
        return {number: seen for number, seen in found.items() if not continues(state, seen)}

    def _others(self) -> dict[int, LiveBroker]:
        """Return the live nodes of the other configured members, as read last."""
        return {
            number: record
            for number, record in sorted((self._view.live or {}).items())
            if record is not None and number != self._facts.id and self._facts.membership.own_of(number) is not None
        }

    def unread_text(self) -> str:
        """Return that live nodes of other members have not been read on this connection; "" if they have."""
        if self._view.live is None:
            return "the live nodes of the other members have not been read yet"
        config = self._view.config
        others = [member.broker_id for member in config.members if member.broker_id != self._facts.id] if config else []
        unread = self._view.unread(others)
        return f"the live node of broker {', '.join(map(str, unread))} has not been read yet" if unread else ""

    def objection(self) -> str:
        """Return why no member may become active by the record: another one has seen more, or may have; else ""."""
        return self.unread_text() or self.reason()

    def reason(self) -> str:
        """Return what other members have seen, and what to do; "" if they have seen no more than the registry has."""
        found, state = self.witnesses(), self._view.state
        if not found or state is None:
            return ""
        return (
            f"broker {', '.join(map(str, found))} has seen a newer record of the group (epoch "
            f"{max(seen.epoch for seen in found.values())}) than the registry's, of epoch {state.epoch}: an older copy "
            "of the registry's data was restored; no other member becomes active by this record: choose the member "
            "whose log counts with tandemq ha force-master, which shows what is lost"
        )

    # An operator's order.

    def order_refusal(self, *, needs_write: bool) -> CommandResult | None:
        """Return why this broker cannot carry out a force-master now, whatever the record; None if it can."""
        own_id, text = self._facts.id, self.unread_text()
        if needs_write and not self._facts.membership.permission_of(own_id).may_write:
            text = f"broker {own_id} may not be written to by configuration; allow it WRITE first"
        elif not self._view.may_propose or self._view.live is None:
            text = f"broker {own_id} has no connection to the registry; without it no broker may take over"
        return CommandResult(False, False, text) if text else None

    def must_stop(self, holder: int) -> CommandResult:
        """Return the refusal of an order while a member may serve by the older record."""
        text = (
            f"broker {holder} may serve by the older record: stop it, and wait until its registry session has expired; "
            "or force that one, if its log is to count"
        )
        return CommandResult(False, False, text)

    def is_out(self, member: int, record: GroupState) -> bool:
        """Whether a member cannot serve by a record: it has no live node, or refuses the record as an older copy."""
        live = self._view.live
        if live is None or member not in live:
            return live is not None
        found = live[member]
        return found is not None and found.seen is not None and not continues(record, found.seen)

    def force(self, now: Now, *, is_preview: bool) -> CommandResult:
        """Make this broker's log the group's. A preview only states what is lost."""
        record = self._view.refused or self._view.state
        assert record is not None, "asked without a record"
        refusal = self.order_refusal(needs_write=True)
        if refusal is not None:
            return refusal
        if not self._is_holder_out(record):
            return self.must_stop(holder_of(record))
        if not is_preview and self._ordered_ms is None:  # a repeated order does not restart the checks
            self._ordered_ms = now.mono_ms
        return CommandResult(True, False, self.possible_loss())

    def possible_loss(self) -> str:
        """Return what members have seen, and what is lost by making this broker's log the group's."""
        refused, seen = self._view.refused, self._view.seen
        text = older_text(refused, seen) if refused is not None and seen is not None else self.reason()
        return f"{text}. {self._loss_text()}"

    def _loss_text(self) -> str:
        own_id, log, others = self._facts.id, self._facts.log, self._others()
        listed = [f"broker {number} (epoch {record.epoch}, end {record.log_end})" for number, record in others.items()]
        away = [member.broker_id for member in self._view.config.members] if self._view.config is not None else []
        listed += [f"broker {number} (not connected)" for number in away if number not in others and number != own_id]
        what = f"The log of broker {own_id} (epoch {log.epoch}, end {log.end}) becomes the group's"
        if not self._facts.membership.is_elect:
            what += (
                ", and so do its offsets: messages whose offsets were committed at another member are delivered again"
            )
        if not listed:
            return what
        return (
            f"{what}; messages that only others have are lost, acknowledged ones too, and those members move them to "
            f"their quarantine when they follow: {', '.join(listed)}{self._hint()}"
        )

    def _hint(self) -> str:
        """Say which member has the acknowledged messages, as far as live members know."""
        own = self._view.seen
        seen = {number: record.seen for number, record in self._others().items() if record.seen is not None}
        if own is None:
            return ""
        known = [own, *seen.values()]
        if not is_one_history(known):
            return "; the histories have parted, so that each may have acknowledged messages which the other lacks"
        top = newest(known)
        better = {number: self._others()[number] for number, state in seen.items() if state in top}
        best = max(better, key=lambda number: (better[number].epoch, better[number].log_end), default=None)
        log = self._facts.log
        is_longer = best is not None and (better[best].epoch, better[best].log_end) > (log.epoch, log.end)
        if best is not None and (own not in top or is_longer):
            return f"; broker {best} has seen the newest record and has a longer log: force that one instead"
        return ""

    def _is_holder_out(self, record: GroupState) -> bool:
        """Whether the older record names this member, or one that cannot serve by it."""
        holder = holder_of(record)
        return holder in (self._facts.id, NOBODY) or self.is_out(holder, record)

    def tick(self, now: Now) -> None:
        """Note in the timeline that a record is refused, and carry out an operator's order."""
        self._note()
        if self._ordered_ms is None:
            return
        if now.mono_ms >= self._ordered_ms + self._facts.lease.order_ms:
            self._settle("given up: the record could not be written in time", is_done=False)
        elif self.is_mine:
            self._carry_out(self._ordered_ms, now)
        elif (state := self._view.state) is not None and self._view.pending is None:
            is_done = state.master == self._facts.id
            self._settle(f"the record says: {state.reason}", is_done=is_done)

    def _note(self) -> None:
        text = "the registry's record is refused as an older copy" if self._view.refused is not None else ""
        if text and text != self._noted:
            self._outputs.note(text)
        self._noted = text

    def _settle(self, text: str, *, is_done: bool) -> None:
        self._ordered_ms = None
        self._checks.reset()
        self._outputs.command_done(text, is_done=is_done)

    def _carry_out(self, ordered_ms: int, now: Now) -> None:
        """Write the record once the old holder cannot serve any more: it has no lease, nor a live node in several
        checks in a row. A holder that is this broker needs no checks."""
        view, own_id = self._view, self._facts.id
        record = view.refused or view.state
        assert record is not None, "is_mine"
        if view.pending is not None:
            return
        for is_fresh in view.polls:
            self._checks.found(holds=is_fresh and self._is_holder_out(record))
        timing = self._facts.lease.timing
        is_over = now.mono_ms - ordered_ms > timing.silence_ms and self._checks.count >= timing.checks
        is_possible = view.may_propose and not self.unread_text() and self._is_holder_out(record)
        if is_possible and (is_over or holder_of(record) == own_id):
            self._facts.log.is_loss_accepted = True
            new = GroupState(self._facts.next_epoch(), own_id, (own_id,), GroupMode.NORMAL, own_id)
            text = f"broker {own_id} replaces an older copy of the record, by an operator's order"
            self._outputs.propose(new, text, now, is_founding=True)
            return
        self._checks.begin(now.mono_ms)
        if view.is_up and self._checks.is_due(now.mono_ms, timing.check_ms):
            self._outputs.publish_live_node()
            view.poll(other for other in sorted(view.live or ()) if other != own_id)
