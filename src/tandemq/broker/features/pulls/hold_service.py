"""Pulls that wait for messages: held per queue, woken by dispatch, answered at their deadline at the latest.

The cost of a step does not grow with the number of held pulls. Events that concern many pulls (a message for a queue
with all of them, a common deadline, a connection that closes) are spread over several turns.

Source: docs/reference/requests.md, "long poll"; RocketMQ PullRequestHoldService.
"""

from heapq import heappop, heappush
from itertools import chain, islice

from tandemq.broker.features.pulls.pull_request import PullRequest
from tandemq.storage.consume_queue import ConsumeQueue

HELD_MAX = 131_072
HELD_PER_LINK_MAX = 4096
SELECTOR_BYTES_MAX = 32 << 20
"""Memory budget for what all held pulls select: tags codes and expressions."""
PART = 2048
"""Maximum number of steps without an answer within one turn."""


class HeldPulls:
    """Held pulls by queue (`ConsumeQueue.held`), by deadline and by connection."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._by_deadline: dict[int, dict[PullRequest, None]] = {}
        """By monotonic time, ms. A key stays until that time: at most one per millisecond of the longest wait."""
        self._deadlines: list[int] = []
        """The keys of `_by_deadline`, a heap."""
        self._by_link: dict[int, dict[PullRequest, None]] = {}
        self._leaving: dict[int, dict[PullRequest, None]] = {}
        """Pulls of closed connections that are still held, by connection."""
        self._steps_left = PART
        self._selector_bytes = 0
        self.size = 0

    def hold(self, queue: ConsumeQueue, pull: PullRequest, deadline_ms: int) -> bool:
        """Hold a pull until its queue gets messages, its deadline passes, or its connection closes.

        Returns False if too many are held already, on its connection or in total.
        """
        of_link = self._by_link.get(pull.link)
        selector_bytes = pull.selector.memory_bytes
        if (
            self.size >= HELD_MAX
            or (of_link is not None and len(of_link) >= HELD_PER_LINK_MAX)
            or self._selector_bytes + selector_bytes > SELECTOR_BYTES_MAX
        ):
            return False
        if of_link is None:
            of_link = self._by_link[pull.link] = {}
        of_link[pull] = None
        pulls = self._by_deadline.get(deadline_ms)
        if pulls is None:
            pulls = self._by_deadline[deadline_ms] = {}
            heappush(self._deadlines, deadline_ms)
        pulls[pull] = None
        pull.deadline_ms = deadline_ms
        self.hold_again(queue, pull)
        self._selector_bytes += selector_bytes
        self.size += 1
        return True

    def hold_again(self, queue: ConsumeQueue, pull: PullRequest) -> None:
        """Move a held pull behind the others of its queue."""
        held = queue.held
        if not isinstance(held, dict):
            held = queue.held = {}
        held.pop(pull, None)
        held[pull] = None

    def count(self, queue: ConsumeQueue) -> int:
        """Return the number of pulls held on a queue."""
        return len(queue.held) if isinstance(queue.held, dict) else 0

    def first(self, queue: ConsumeQueue, limit: int) -> list[PullRequest]:
        """Return the pulls held on a queue for longest; the caller must `release` or `hold_again` each of them."""
        return self._open(list(islice(queue.held, limit))) if isinstance(queue.held, dict) else []

    def _open(self, pulls: list[PullRequest]) -> list[PullRequest]:
        """Return the pulls whose connection is open; release the others."""
        if not self._leaving:
            return pulls
        for pull in pulls:
            if pull.link in self._leaving:
                del self._leaving[pull.link][pull]
                pull.is_answered = True
                self.release(pull)
        return [pull for pull in pulls if not pull.is_answered]

    def due(self, now_ms: int, limit: int) -> list[PullRequest]:
        """Release pulls whose deadline has passed, up to a limit, and return those whose connection is open."""
        pulls: list[PullRequest] = []
        while self._deadlines and self._deadlines[0] <= now_ms and len(pulls) < limit:
            found = list(islice(self._by_deadline[self._deadlines[0]], limit - len(pulls)))
            for pull in found:
                self.release(pull)
            pulls += [pull for pull in found if pull.link not in self._leaving]
            if not self._by_deadline[self._deadlines[0]]:
                del self._by_deadline[heappop(self._deadlines)]
        return pulls

    def release(self, pull: PullRequest) -> None:
        """Stop holding a pull; no effect if it is not held."""
        pulls = self._by_deadline.get(pull.deadline_ms)
        if pulls is None or pull not in pulls:
            return
        del pulls[pull]
        held = pull.queue.held
        if isinstance(held, dict):
            held.pop(pull, None)
            if not held:
                pull.queue.held = None
        of_link = self._by_link.get(pull.link)
        if of_link is not None:
            of_link.pop(pull, None)
            if not of_link:
                del self._by_link[pull.link]
        self._selector_bytes -= pull.selector.memory_bytes
        self.size -= 1

    def of_link(self, link: int) -> list[PullRequest]:
        """Return the pulls held for a connection."""
        return list(self._by_link.get(link, ()))

    def expire(self, link: int, now_ms: int) -> None:
        """Have the pulls held for a connection be due now."""
        pulls = self._by_link.get(link)
        if not pulls:
            return
        due = self._by_deadline.get(now_ms)
        if due is None:
            due = self._by_deadline[now_ms] = {}
            heappush(self._deadlines, now_ms)
        for pull in pulls:
            self._by_deadline[pull.deadline_ms].pop(pull, None)
            pull.deadline_ms = now_ms
            due[pull] = None

    def release_some(self, limit: int) -> list[PullRequest]:
        """Release pulls of any queue, up to a limit, and return them."""
        pulls = list(islice(chain.from_iterable(self._by_link.values()), limit))
        for pull in pulls:
            self.release(pull)
        return pulls

    def drop_link(self, link: int) -> None:
        """Drop the pulls of a connection that closed; very many are dropped over several turns."""
        of_link = self._by_link.pop(link, None)
        if of_link:
            self._leaving[link] = of_link
            self._tidy()

    def begin_turn(self) -> None:
        """Continue dropping pulls of closed connections."""
        self._steps_left = PART
        self._tidy()

    def _tidy(self) -> None:
        while self._leaving and self._steps_left:
            link, leaving = next(iter(self._leaving.items()))
            for pull in list(islice(leaving, self._steps_left)):
                del leaving[pull]
                pull.is_answered = True
                self.release(pull)
                self._steps_left -= 1
            if not leaving:
                del self._leaving[link]

    @property
    def is_tidy(self) -> bool:
        """Whether no pulls of closed connections are left."""
        return not self._leaving

    def next_ms(self) -> int | None:
        """Return the earliest deadline, monotonic ms; possibly one of which no pull is left. None if there is none."""
        for _ in range(PART):
            if not self._deadlines or self._by_deadline[self._deadlines[0]]:
                break
            del self._by_deadline[heappop(self._deadlines)]
        return self._deadlines[0] if self._deadlines else None
