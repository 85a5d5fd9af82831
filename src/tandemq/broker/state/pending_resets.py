"""Offset resets that the consumer of a queue has not applied yet.

    reset ─► a pull from another offset: answered once with OFFSET_MOVED and the new offset
          ─► commits of members: answered as successful, and ignored
          ─► a pull from the new offset, or FOLLOW_MS later: commits are accepted again

A consumer takes seconds to apply a reset: the Java client stops for ten seconds, and commits its former offsets
meanwhile.

Pending resets are kept in memory only and end with the master's process; the new offset itself is committed
(`ConsumerOffsets.reset`).
Source: docs/reference/requests.md, "Resetting offsets"; RocketMQ 5.x
ConsumerOffsetManager.assignResetOffset.
"""

from dataclasses import dataclass

FOLLOW_MS = 60_000
"""Longer than a Java consumer needs: it stops for ten seconds, and rebalances at most twenty seconds later."""
PENDING_MAX = 20_000
"""Maximum number of queues with a pending reset; beyond it the oldest reset is dropped."""


@dataclass(slots=True)
class _Pending:
    offset: int
    until_ms: int
    is_sent: bool = False
    """Whether a pull was answered with the new offset."""


class PendingResets:
    """Resets by topic, group and queue id."""

    def __init__(self) -> None:
        """Begin without resets."""
        self.table: dict[tuple[str, str, int], _Pending] = {}
        """By topic, group and queue id; expired ones included."""

    def __len__(self) -> int:
        """Return the number of pending resets, expired ones included."""
        return len(self.table)

    def add(self, topic: str, group: str, queue_id: int, offset: int, now_ms: int) -> None:
        """Add a reset of a queue that a member of the group consumes."""
        key = (topic, group, queue_id)
        self.table.pop(key, None)
        while self.table and len(self.table) >= PENDING_MAX:
            del self.table[next(iter(self.table))]
        self.table[key] = _Pending(offset, now_ms + FOLLOW_MS)

    def drop(self, topic: str, group: str, queue_id: int) -> None:
        """Remove a reset, since the offset was set in another way."""
        self.table.pop((topic, group, queue_id), None)

    def clear(self) -> None:
        """Remove all resets, since another broker serves consumers now."""
        self.table.clear()

    def ignores_commit(self, topic: str, group: str, queue_id: int, now_ms: int) -> bool:
        """Return whether commits of a queue are ignored, because its consumer has not applied a reset."""
        return bool(self.table) and self._find((topic, group, queue_id), now_ms) is not None

    def note_pull(self, topic: str, group: str, queue_id: int, offset: int, now_ms: int) -> int | None:
        """Return the offset to answer a pull with instead of messages; None without reset, or if sent before."""
        if not self.table:
            return None
        key = (topic, group, queue_id)
        pending = self._find(key, now_ms)
        if pending is None:
            return None
        if offset == pending.offset:
            del self.table[key]
            return None
        if pending.is_sent:
            return None
        pending.is_sent = True
        return pending.offset

    def _find(self, key: tuple[str, str, int], now_ms: int) -> _Pending | None:
        pending = self.table.get(key)
        if pending is not None and now_ms >= pending.until_ms:
            del self.table[key]
            return None
        return pending
