"""Outputs of a member: effects for its broker, and its own writes to the registry.

Source: docs/internals/failover.md, "A broker and its member".
"""

from dataclasses import replace

from tandemq.boundary import Now
from tandemq.coordination.member.facts import MemberFacts
from tandemq.coordination.member.orders import CommandDone, Effect, Note
from tandemq.coordination.registry.lineage import with_change
from tandemq.coordination.registry.records import GroupMode, GroupState, LiveBroker


class MemberOutputs:
    """The effects that the broker has not taken yet, in order; writes of the record and of this broker's live node."""

    def __init__(self, facts: MemberFacts) -> None:
        """Nothing is produced yet."""
        self._facts = facts
        self._view = facts.view
        self._effects: list[Effect] = []

    def __len__(self) -> int:
        """The number of effects."""
        return len(self._effects)

    def add(self, *effects: Effect) -> None:
        """Append effects."""
        self._effects.extend(effects)

    def note(self, text: str) -> None:
        """Append a line for the timeline, with the present epoch."""
        state = self._view.state
        self.add(Note(0 if state is None else state.epoch, text))

    def command_done(self, text: str, *, is_done: bool) -> None:
        """Append the outcome of an operator's command."""
        self.add(CommandDone(is_done, text))

    def take(self) -> list[Effect]:
        """Return all effects and clear the queue."""
        effects, self._effects = self._effects, []
        return effects

    def propose(self, state: GroupState, reason: str, now: Now, *, is_founding: bool = False) -> None:
        """Write the record by compare-and-set. The present record is written unchanged, `reason` included.

        `is_founding`: it replaces whatever members have seen of earlier epochs; so does a record without a present one.
        """
        present = self._view.state
        if state is not present:
            if is_founding or present is None:
                state = replace(state, founded=state.epoch, changes=())
            else:
                state = replace(state, founded=present.founded, changes=present.changes)
            since = self._reading_since(state, present)
            state = replace(state, reason=reason, since_ms=now.wall_ms, by=self._facts.id, reading_since=since)
            state = with_change(state, self._view.version + 1)
        self._view.propose(state)

    def _reading_since(self, state: GroupState, present: GroupState | None) -> int:
        if state.mode is not GroupMode.SLAVE_CONSUME:
            return 0
        is_same = present is not None and (present.mode, present.reader) == (state.mode, state.reader)
        return present.reading_since if present is not None and is_same else self._view.version + 1

    def publish_live_node(self) -> None:
        """Bring the live node up to date: other members order an election by its log end."""
        settings, log = self._facts.membership.settings, self._facts.log
        self._view.publish(
            LiveBroker(
                settings.broker_id,
                settings.address,
                settings.ha_address,
                log.epoch,
                log.end,
                self._view.is_record_missing,
                log.held,
                self._view.seen,
            )
        )
