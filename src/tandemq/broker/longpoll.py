"""Pulls that wait for messages: held per queue, woken by dispatch, answered at their deadline at the latest.

Source: docs/requests.md, "long poll"; RocketMQ PullRequestHoldService.
"""

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from tandemq.storage.consumequeue import ConsumeQueue

if TYPE_CHECKING:
    from tandemq.broker.pull import Pull

HELD_PER_LINK_MAX = 4096
ANSWERED_KEPT_MAX = 1024
"""Answered pulls whose deadlines may still be remembered, beyond as many as are held."""


class HeldPulls:
    """Held pulls by queue (`ConsumeQueue.held`) and by deadline."""

    def __init__(self) -> None:
        """Nothing is held."""
        self._deadlines: list[tuple[int, int, Pull]] = []
        self._count = 0
        self._by_link: dict[int, int] = {}
        self.size = 0

    def hold(self, queue: ConsumeQueue, pull: "Pull", deadline_ms: int) -> bool:
        """Keep a pull until its queue gets messages, its deadline comes, or its link closes; False if its link has
        HELD_PER_LINK_MAX already."""
        if self._by_link.get(pull.link, 0) >= HELD_PER_LINK_MAX:
            return False
        self.hold_again(queue, pull)
        self._count += 1
        heappush(self._deadlines, (deadline_ms, self._count, pull))
        if len(self._deadlines) > 2 * self.size + ANSWERED_KEPT_MAX:
            self._deadlines = [due for due in self._deadlines if not due[2].is_answered]
            heapify(self._deadlines)
        return True

    def take(self, queue: ConsumeQueue) -> "list[Pull]":
        """All pulls held on a queue; the caller answers them or holds them again."""
        held, queue.held = queue.held, None
        pulls = [pull for pull in held if not pull.is_answered] if isinstance(held, list) else []
        for pull in pulls:
            self._by_link[pull.link] -= 1
        self.size -= len(pulls)
        return pulls

    def take_all(self) -> "list[Pull]":
        """Every pull held anywhere; none is held afterwards."""
        pulls = [due[2] for due in self._deadlines if not due[2].is_answered and not due[2].is_waiting]
        for pull in pulls:
            self._forget(pull)
        self._deadlines.clear()
        return pulls

    def hold_again(self, queue: ConsumeQueue, pull: "Pull") -> None:
        """Put a pull back whose deadline is still known."""
        held = queue.held
        if not isinstance(held, list):
            held = queue.held = []
        held.append(pull)
        self._by_link[pull.link] = self._by_link.get(pull.link, 0) + 1
        self.size += 1

    def due(self, now_ms: int) -> "list[Pull]":
        """Pulls whose deadline has come; they are no longer held."""
        pulls: list[Pull] = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            pull = heappop(self._deadlines)[2]
            if not pull.is_answered:
                self._forget(pull)
                pulls.append(pull)
        return pulls

    def _forget(self, pull: "Pull") -> None:
        held = pull.queue.held
        if isinstance(held, list) and pull in held:
            held.remove(pull)
            self._by_link[pull.link] -= 1
            self.size -= 1
            if not held:
                pull.queue.held = None

    def drop_link(self, link: int) -> None:
        """Forget the pulls of a link that closed."""
        if not self._by_link.get(link):
            self._by_link.pop(link, None)
            return
        for _, _, pull in self._deadlines:
            if pull.link == link and not pull.is_answered:
                pull.is_answered = True
                self._forget(pull)
        del self._by_link[link]

    def next_ms(self) -> int | None:
        """The earliest deadline."""
        while self._deadlines and self._deadlines[0][2].is_answered:
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None
