"""Offset resets that the consumer of a queue has not followed yet.

    reset ─► a pull from another offset: answered once with OFFSET_MOVED and the new offset
          ─► commits of members: answered as successful, and ignored
          ─► a pull from the new offset, or FOLLOW_MS later: the consumer commits again as before

A consumer takes seconds to move: Java's stops for ten, and commits its former offsets meanwhile.

In memory, so it ends with the master; the new offset itself is committed, and outlasts it (`ConsumerOffsets.reset`).
Source: docs/reference/requests.md, "Resetting offsets"; RocketMQ 5.x
ConsumerOffsetManager.assignResetOffset.
"""

from dataclasses import dataclass

FOLLOW_MS = 60_000
"""More than a Java consumer needs: ten seconds of standstill, then at most twenty until it rebalances."""
PENDING_MAX = 20_000
"""Queues; the resets that are pending longest are given up first."""


@dataclass(slots=True)
class _Pending:
    offset: int
    until_ms: int
    is_told: bool = False


class PendingResets:
    """Resets by topic, group and queue id."""

    def __init__(self) -> None:
        """No reset is pending."""
        self._table: dict[tuple[str, str, int], _Pending] = {}

    def __len__(self) -> int:
        """How many are pending, expired ones included."""
        return len(self._table)

    def add(self, topic: str, group: str, queue_id: int, offset: int, now_ms: int) -> None:
        """The group's offset was set, and a member has to follow."""
        key = (topic, group, queue_id)
        self._table.pop(key, None)
        while self._table and len(self._table) >= PENDING_MAX:
            del self._table[next(iter(self._table))]
        self._table[key] = _Pending(offset, now_ms + FOLLOW_MS)

    def drop(self, topic: str, group: str, queue_id: int) -> None:
        """The offset was set in another way."""
        self._table.pop((topic, group, queue_id), None)

    def clear(self) -> None:
        """Another broker answers consumers now."""
        self._table.clear()

    def ignores_commit(self, topic: str, group: str, queue_id: int, now_ms: int) -> bool:
        """Whether a commit of a member is of the time before the reset."""
        return bool(self._table) and self._find((topic, group, queue_id), now_ms) is not None

    def note_pull(self, topic: str, group: str, queue_id: int, offset: int, now_ms: int) -> int | None:
        """A member pulls from an offset; returns the offset it has to go to instead, None if none or told before."""
        if not self._table:
            return None
        key = (topic, group, queue_id)
        pending = self._find(key, now_ms)
        if pending is None:
            return None
        if offset == pending.offset:
            del self._table[key]
            return None
        if pending.is_told:
            return None
        pending.is_told = True
        return pending.offset

    def _find(self, key: tuple[str, str, int], now_ms: int) -> _Pending | None:
        pending = self._table.get(key)
        if pending is not None and now_ms >= pending.until_ms:
            del self._table[key]
            return None
        return pending
