"""The first record of a group; and the next one if the registry lost it.

    the registry has no record
      ├─ no member ever acted by one ─► the configured master begins the group, in epoch 1
      └─ some did: it is lost
           ├─ all members are there and wait ─► who has most of the log begins anew, in a higher epoch
           └─ an operator's force-master     ─► who was named begins anew, at once

A member that waits serves nobody and promises nothing, and its live node says so: when all of them wait nobody
acknowledges anything, and the longest log of the latest epoch holds all that ever was. In `slave-consume` the log is
the master's, but nobody knows who was read from last: the slave is, until it has handed over whatever offsets it has.

Owner: the member. Source: docs/internals/failover.md, "When the registry loses the record"; requirements F09, F30.
"""

from typing import TYPE_CHECKING

from tandemq.boundary import Now
from tandemq.coordination.election import Candidate, place_of
from tandemq.coordination.member.orders import CommandResult
from tandemq.coordination.registry.records import GroupConfig, GroupMode, GroupState, LiveBroker, Mode
from tandemq.coordination.registry.view import NO_NODE

if TYPE_CHECKING:
    from tandemq.coordination.member.machine import MemberMachine


class Founder:
    """Begins the group, or waits until that is safe."""

    def __init__(self, member: "MemberMachine") -> None:
        """There is a record, or nobody has looked."""
        self._member = member
        self._next_ms = 0
        self._is_forced = False
        self.why = ""
        """Why a group whose record is lost does not begin anew; "" if that is not so."""

    @property
    def waits(self) -> bool:
        """Whether the registry was read and has no record."""
        view = self._member.view
        return view.is_state_read and view.state is None and view.version == NO_NODE

    def tick(self, now: Now) -> None:
        """Tell the others how we stand, and look how they do."""
        member, view = self._member, self._member.view
        if not self.waits:
            self._is_forced, self.why = False, ""
            return
        member.tell_registry()
        if view.is_up and now.mono_ms >= self._next_ms:
            self._next_ms = now.mono_ms + member.settings.check_ms
            view.look(other for other in sorted(view.live or ()) if other != member.id)

    def propose(self, now: Now) -> None:
        """Write the record if it is ours to write, and nothing can be lost by that."""
        member, config, live = self._member, self._member.view.config, self._member.view.live
        if not self.waits or config is None or live is None:
            return
        others = {one.broker_id: live.get(one.broker_id) for one in config.members if one.broker_id != member.id}
        if self._is_forced:
            self._begin_anew({}, "an operator accepted what is lost", now)
        elif not self._was_there_before(others):
            self._begin(config, now)
        elif away := [number for number, record in sorted(others.items()) if record is None or not record.is_waiting]:
            listed = ", ".join(map(str, away))
            self.why = (
                f"the registry has lost the group's record; it begins anew when broker {listed} is there too and has "
                "seen that; if it is gone for good, tandemq ha force-master begins it with what the named one holds"
            )
        else:
            found = {number: record for number, record in others.items() if record is not None}
            if self._heir(config, found) == member.id:
                self._begin_anew(found, "all members are there", now)

    def force(self, *, is_preview: bool) -> CommandResult:
        """An operator names this broker; what others hold beyond its log is lost then."""
        member = self._member
        if member.mode is not Mode.ELECT and not self._is_master(member.view.config):
            return CommandResult(False, False, "roles are fixed: force the configured master")
        self._is_forced |= not is_preview
        held = {
            number: record
            for number, record in (member.view.live or {}).items()
            if record is not None and number != member.id
        }
        fuller = max(held, key=lambda number: (held[number].epoch, held[number].log_end), default=None)
        hint = ""
        if fuller is not None and (held[fuller].epoch, held[fuller].log_end) > (member.log_epoch, member.log_end):
            hint = f"; broker {fuller} has more of the log: force that one instead"
        return CommandResult(
            True,
            False,
            f"the registry has no record of the group; it begins anew with the log of broker "
            f"{member.id}, and what others hold beyond it is lost{hint}",
        )

    def _was_there_before(self, others: dict[int, LiveBroker | None]) -> bool:
        epochs = [record.epoch for record in others.values() if record is not None]
        return max(self._member.log_epoch, self._member.view.last_epoch, *epochs, 0) > 0

    def _is_master(self, config: GroupConfig | None) -> bool:
        return config is not None and config.master is not None and config.master.broker_id == self._member.id

    def _begin(self, config: GroupConfig, now: Now) -> None:
        member = self._member
        able = [one for one in config.members if one.permission.may_write]
        first = config.master or min(able, key=lambda one: (-one.priority, one.broker_id))
        if first.broker_id == member.id:
            if member.log_end == 0:
                member.is_log_whole = True  # nobody has acknowledged anything yet
            state = GroupState(1, member.id, (member.id,), GroupMode.NORMAL, member.id)
            member.propose(state, "the group begins", now)

    def _heir(self, config: GroupConfig, others: dict[int, LiveBroker]) -> int | None:
        member = self._member
        if member.mode is not Mode.ELECT:
            return None if config.master is None else config.master.broker_id
        candidates = [Candidate(member.id, member.log_epoch, member.log_end, member.priority(member.id))]
        candidates += [
            Candidate(number, record.epoch, record.log_end, member.priority(number))
            for number, record in others.items()
        ]
        candidates = [one for one in candidates if member.configured(one.broker_id).may_write]
        return min((one.broker_id for one in candidates), key=lambda one: place_of(one, candidates), default=None)

    def _begin_anew(self, others: dict[int, LiveBroker], why: str, now: Now) -> None:
        member = self._member
        epochs = [member.log_epoch, member.view.last_epoch, *(record.epoch for record in others.values())]
        state = GroupState(max(epochs) + 1, member.id, (member.id,), GroupMode.NORMAL, member.id)
        readers = [number for number in others if member.configured(number).may_read]
        if member.mode is Mode.SLAVE_CONSUME and readers:
            reader = max(readers, key=lambda number: (others[number].epoch, others[number].log_end, -number))
            in_sync = tuple(sorted((member.id, reader)))
            state = GroupState(max(epochs) + 1, member.id, in_sync, GroupMode.SLAVE_CONSUME, reader)
        member.is_loss_accepted = True  # nobody has more, or nobody who matters
        member.propose(state, f"the registry had lost the group's record; it begins anew: {why}", now)
