"""Offsets that consumers commit at the reader of a slave-consume group: copied to the registry, and taken from there.

    reader   consumers commit ─► broker: copy ─► node `offsets`, at most once per second
    master   the reader is missing in a check ─► node read ─► MergeOffsets ─► merged ─► may take reading back

Without the copy, a master that takes reading back from a reader that is gone delivers again what was read there.
Source: docs/internals/failover.md, "A reader that does not return"; requirement F42.
"""

from tandemq.boundary import Now
from tandemq.coordination.lease import NEVER
from tandemq.coordination.member.facts import MemberFacts
from tandemq.coordination.member.orders import MergeOffsets
from tandemq.coordination.member.outputs import MemberOutputs
from tandemq.coordination.registry.records import CopiedOffsets, GroupMode, GroupState
from tandemq.coordination.registry.view import RETRY_MS

COPY_MS = 1_000
"""Minimum interval of the copies."""


class OffsetCopies:
    """Both sides."""

    def __init__(self, facts: MemberFacts, outputs: MemberOutputs) -> None:
        """Nothing is copied."""
        self._facts = facts
        self._view = facts.view
        self._outputs = outputs
        self._newest: CopiedOffsets | None = None
        self._next_ms = NEVER
        self._read_ms = NEVER
        self._ordered: CopiedOffsets | None = None
        self._merged: CopiedOffsets | None = None

    # The reader.

    def copy(self, table: bytes) -> None:
        """Take the offsets that consumers have committed here since this member became the reader."""
        state = self._view.state
        if state is not None and self._is_reading(state):
            self._newest = CopiedOffsets(self._facts.id, state.reading_since, table)

    def tick(self, now: Now) -> None:
        """Write the newest offsets if they are not in the registry, when due."""
        state, node = self._view.state, self._view.offsets
        if state is None or not self._is_reading(state):
            self._newest = None
            return
        if self._newest in (None, node.written) or not self._view.is_up:
            return
        if node.needs_read:
            if now.mono_ms >= self._read_ms:
                self._read_ms = now.mono_ms + RETRY_MS
                self._view.read_offsets()
        elif node.may_write and now.mono_ms >= self._next_ms:
            self._next_ms = now.mono_ms + COPY_MS
            self._view.write_offsets(self._newest)

    def deadline_ms(self) -> int | None:
        """When the next copy is due; None if there is none."""
        node = self._view.offsets
        has_news = self._newest not in (None, node.written)
        return self._next_ms if has_news and node.may_write and self._view.is_up else None

    def _is_reading(self, state: GroupState) -> bool:
        """Whether this member is the reader; also while it hands over, which may be given up."""
        return state.mode is GroupMode.SLAVE_CONSUME and state.reader == self._facts.id

    # A member that follows the reader.

    def read(self) -> None:
        """Read the offsets that the missing reader has copied."""
        self._view.read_offsets()

    def are_merged(self, state: GroupState) -> bool:
        """Whether this broker has all that the reader copied; if not, order it."""
        if state.mode is not GroupMode.SLAVE_CONSUME:
            return True
        if not self._view.offsets.is_read:
            return False
        copied = self._found(state)
        if copied in (None, self._merged):
            return True
        if copied != self._ordered:
            self._ordered = copied
            self._outputs.add(MergeOffsets(copied))
        return False

    def merged(self, copied: CopiedOffsets, *, is_saved: bool) -> None:
        """MergeOffsets is carried out: the offsets are saved, or could not be."""
        if is_saved:
            self._merged = copied
        else:
            self._ordered = None

    def text(self, state: GroupState) -> str:
        """Return with which offsets this member follows the reader, for the record."""
        return "without its offsets" if self._found(state) is None else "with the offsets that it had copied"

    def _found(self, state: GroupState) -> CopiedOffsets | None:
        """Return the offsets that the reader of this record copied; None if it copied none."""
        copied = self._view.offsets.copied
        is_its = copied is not None and (copied.reader, copied.reading_since) == (state.reader, state.reading_since)
        return copied if is_its and state.reading_since else None
