"""Creation of a group's record: the first one, and a new one if the registry has lost it.

    the registry has no record
      ├─ no member ever followed one ─► the configured master creates it, with epoch 1
      └─ some member did: it was lost
           ├─ all members are connected and wait ─► the one with the longest log creates it, with a higher epoch
           ├─ but have seen records that parted  ─► only an operator can decide which log counts
           └─ an operator's force-master         ─► the named broker creates it at once

A waiting member serves no clients and grants no lease, and its live node says so. When all of them wait, no broker
acknowledges anything, and the longest log of the latest epoch holds all acknowledged messages. In `slave-consume` the
member that served last has the consumers' offsets: if it is not the new master, it becomes the reader until it has
handed them over.

Owner: the member. Source: docs/internals/failover.md, "When the registry loses the record"; requirements F09, F30.
"""

from tandemq.boundary import Now
from tandemq.coordination.election import rank_of
from tandemq.coordination.member.facts import MemberFacts
from tandemq.coordination.member.orders import CommandResult
from tandemq.coordination.member.outputs import MemberOutputs
from tandemq.coordination.registry.lineage import is_one_history
from tandemq.coordination.registry.records import NOBODY, GroupConfig, GroupMode, GroupState, LiveBroker, Mode


class Founding:
    """Creates the record, or waits until that is safe."""

    def __init__(self, facts: MemberFacts, outputs: MemberOutputs) -> None:
        """The registry has not been read yet."""
        self._facts = facts
        self._view = facts.view
        self._outputs = outputs
        self._next_poll_ms = 0
        self._is_forced = False
        self.reason = ""
        """Why a lost record is not created again yet; "" if that is not the case."""

    def tick(self, now: Now) -> None:
        """Publish that this broker waits, and look for the other members."""
        view, membership = self._view, self._facts.membership
        if not view.is_record_missing:
            self._is_forced, self.reason = False, ""
            return
        self._outputs.publish_live_node()
        if view.is_up and now.mono_ms >= self._next_poll_ms:
            self._next_poll_ms = now.mono_ms + self._facts.lease.timing.check_ms
            view.poll(other for other in sorted(view.live or ()) if other != membership.id)

    def propose(self, now: Now) -> None:
        """Write the record if that is this broker's task and no acknowledged message can be lost by it."""
        config, live = self._view.config, self._view.live
        if not self._view.is_record_missing or config is None or live is None:
            return
        own_id = self._facts.id
        others = {
            member.broker_id: live.get(member.broker_id) for member in config.members if member.broker_id != own_id
        }
        if self._view.unread(others):
            return  # it may have followed a record
        if self._is_forced:
            self._create_again({}, "an operator accepted the loss", now)
        elif not self._existed_before(others):
            self._create_first(config, now)
        elif away := [number for number, record in sorted(others.items()) if record is None or not record.is_waiting]:
            self._wait_for(away)
        else:
            found = {number: record for number, record in others.items() if record is not None}
            if not self._is_one_history(found):
                self.reason = (
                    "the registry has lost the group's record, and its members have seen records that do not continue "
                    "each other: some served by an older copy of the registry's data. Choose the member whose log "
                    "counts with tandemq ha force-master, which shows what is lost"
                )
            elif self._new_master(config, found) == own_id:
                self._create_again(found, "all members are connected", now)

    def _wait_for(self, away: list[int]) -> None:
        listed = ", ".join(map(str, away))
        self.reason = (
            "the registry has lost the group's record; it is created again when all members are connected and have "
            f"seen that, missing: broker {listed}; if that broker is gone for good, tandemq ha force-master creates it "
            "with the log of the named broker"
        )

    def _is_one_history(self, others: dict[int, LiveBroker]) -> bool:
        """Whether the newest record that any member has seen continues those of all others."""
        seen = [self._view.seen, *(record.seen for record in others.values())]
        return is_one_history([state for state in seen if state is not None])

    def force(self, *, is_preview: bool) -> CommandResult:
        """Carry out an operator's order to create the record with this broker's log; a preview changes nothing."""
        membership = self._facts.membership
        self._is_forced |= not is_preview
        longer = self._facts.member_with_longer_log(without=NOBODY)
        hint = "" if longer is None else f"; broker {longer} has a longer log: force that one instead"
        return CommandResult(
            True,
            False,
            f"the registry has no record of the group; it is created with the log of broker {membership.id}, and "
            f"messages that only others have are lost{hint}",
        )

    def _existed_before(self, others: dict[int, LiveBroker | None]) -> bool:
        """Whether any member has followed a record of this group."""
        epochs = [record.epoch for record in others.values() if record is not None]
        return max(self._facts.log.epoch, self._view.last_epoch, *epochs, 0) > 0

    def _create_first(self, config: GroupConfig, now: Now) -> None:
        own_id = self._facts.id
        able = [member for member in config.members if member.permission.may_write]
        first = config.master or min(able, key=lambda member: (-member.priority, member.broker_id))
        if first.broker_id == own_id:
            if self._facts.log.end == 0:
                self._facts.log.is_whole = True  # no member has acknowledged anything yet
            state = GroupState(1, own_id, (own_id,), GroupMode.NORMAL, own_id)
            self._outputs.propose(state, "the group begins", now)

    def _new_master(self, config: GroupConfig, others: dict[int, LiveBroker]) -> int | None:
        """Return the member with the longest history; among equal ones of slave-consume, the configured master."""
        membership, log = self._facts.membership, self._facts.log
        candidates = [membership.candidate(membership.id, log.epoch, log.end)]
        candidates += [membership.candidate(number, record.epoch, record.log_end) for number, record in others.items()]
        named = None if membership.is_elect or config.master is None else config.master.broker_id
        candidates = [
            candidate._replace(priority=int(candidate.broker_id == named)) if named is not None else candidate
            for candidate in candidates
            if membership.permission_of(candidate.broker_id).may_write or candidate.broker_id == named
        ]
        ids = [candidate.broker_id for candidate in candidates]
        return min(ids, key=lambda broker_id: rank_of(broker_id, candidates), default=None)

    def _create_again(self, others: dict[int, LiveBroker], why: str, now: Now) -> None:
        membership, own_id = self._facts.membership, self._facts.id
        epoch = self._facts.next_epoch()
        state = GroupState(epoch, own_id, (own_id,), GroupMode.NORMAL, own_id)
        if membership.mode is Mode.SLAVE_CONSUME and (reader := self._last_reader(others)) is not None:
            in_sync = tuple(sorted((own_id, reader)))
            state = GroupState(epoch, own_id, in_sync, GroupMode.SLAVE_CONSUME, reader)
        # No member has more, or the operator accepted the loss.
        longer = self._facts.member_with_longer_log(without=NOBODY)
        self._facts.log.is_loss_accepted = membership.is_elect or self._is_forced or longer is None
        self._outputs.propose(state, f"the registry had lost the group's record; it is created again: {why}", now)

    def _last_reader(self, others: dict[int, LiveBroker]) -> int | None:
        """Return the member that served clients last, if it is not this one and may be read."""
        reader = max(others, key=lambda number: others[number].held, default=None)
        if reader is None or others[reader].held <= self._facts.log.held:
            return None
        return reader if self._facts.membership.permission_of(reader).may_read else None
