"""Popped messages that are not acknowledged yet, of the groups that have a limit of them.

They are counted from the start of a broker, or of its mastership, on. A message whose time is over counts no more.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from tandemq.broker.features.pop.records import Popped
from tandemq.broker.kernel.quotas import Quotas
from tandemq.model.pop import MESSAGES_MAX

_Message = tuple[Popped, int]
"""What a pop took, and the queue offset of the message."""
_TIMES_KEPT = 1_024


class _Group:
    """The messages of one group."""

    __slots__ = ("back_ms", "times")

    def __init__(self) -> None:
        self.back_ms: dict[_Message, int] = {}
        """When each comes back, ms since 1970."""
        self.times: list[tuple[int, _Message]] = []
        """The same as a heap, with entries of messages that are acknowledged."""

    def expire(self, wall_ms: int) -> None:
        """Forget the messages whose time is over."""
        while self.times and (self.times[0][0] <= wall_ms or self.back_ms.get(self.times[0][1]) != self.times[0][0]):
            back_ms, message = heappop(self.times)
            if self.back_ms.get(message) == back_ms:
                del self.back_ms[message]

    def tidy(self) -> None:
        """Forget the times of acknowledged messages, once they are the most."""
        if len(self.times) > 2 * len(self.back_ms) + _TIMES_KEPT:
            self.times = [(back_ms, message) for message, back_ms in self.back_ms.items()]
            heapify(self.times)


class InFlight:
    """The messages in flight of groups with a limit."""

    def __init__(self, quotas: Quotas) -> None:
        """Begin without messages."""
        self._quotas = quotas
        self._groups: dict[str, _Group] = {}

    def room(self, group: str, wall_ms: int) -> int:
        """Return how many messages a pop of a group may take, at most `MESSAGES_MAX`."""
        most = self._quotas.in_flight_of(group) if self._quotas.limits_groups else 0
        if not most:
            self._groups.pop(group, None)
            return MESSAGES_MAX
        found = self._groups.setdefault(group, _Group())
        found.expire(wall_ms)
        return min(MESSAGES_MAX, max(0, most - len(found.back_ms)))

    def counts(self, group: str) -> bool:
        """Whether the messages of a group are counted."""
        return group in self._groups

    def next_ms(self, group: str) -> int | None:
        """Return when the next message of a group comes back, ms since 1970; None: none is in flight."""
        found = self._groups.get(group)
        return found.times[0][0] if found is not None and found.times else None

    def add(self, popped: Popped, offsets: Sequence[int], back_ms: int) -> None:
        """Count messages that a pop has taken."""
        found = self._groups.get(popped.group)
        if found is not None:
            for offset in offsets:
                found.back_ms[popped, offset] = back_ms
                heappush(found.times, (back_ms, (popped, offset)))

    def remove(self, popped: Popped, offset: int) -> bool:
        """Count a message no more; return whether it was counted."""
        found = self._groups.get(popped.group)
        if found is None or found.back_ms.pop((popped, offset), None) is None:
            return False
        found.tidy()
        return True

    def forget(self) -> None:
        """Forget all messages: another broker is the master, or those of a turn are not in the log."""
        self._groups.clear()
