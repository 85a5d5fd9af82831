"""Pulls that wait for messages: held per queue, woken by dispatch, answered at their deadline at the latest.

Every step costs the same however many pulls are held, and what concerns many of them (a message for a queue where all
wait, many with one deadline, a connection that closes) is done in parts, turn by turn.

Source: docs/reference/requests.md, "long poll"; RocketMQ PullRequestHoldService.
"""

from heapq import heappop, heappush
from itertools import chain, islice
from typing import TYPE_CHECKING

from tandemq.broker.pull.subscriptions import CODE_BYTES
from tandemq.storage.consume_queue import ConsumeQueue

if TYPE_CHECKING:
    from tandemq.broker.pull.processor import Pull

HELD_MAX = 131_072
HELD_PER_LINK_MAX = 4096
CODES_BYTES_MAX = 32 << 20
"""Memory of all held pulls' tags codes."""
PART = 2048
"""Number of cheap steps, which answer nothing, within one turn."""


class HeldPulls:
    """Held pulls by queue (`ConsumeQueue.held`), by deadline and by connection."""

    def __init__(self) -> None:
        """Nothing is held."""
        self._by_deadline: dict[int, dict[Pull, None]] = {}
        """By monotonic time, ms. A time stays until it has come, so there are no more than the longest wait has ms."""
        self._deadlines: list[int] = []
        """The keys of `_by_deadline`, a heap."""
        self._by_link: dict[int, dict[Pull, None]] = {}
        self._leaving: dict[int, dict[Pull, None]] = {}
        """Pulls of closed connections that are still held, by connection."""
        self._steps_left = PART
        self._codes_bytes = 0
        self.size = 0

    def hold(self, queue: ConsumeQueue, pull: "Pull", deadline_ms: int) -> bool:
        """Keep a pull until its queue gets messages, its deadline comes, or its connection closes.

        False if too many are held already, on its connection or in all.
        """
        of_link = self._by_link.get(pull.link)
        codes_bytes = CODE_BYTES * len(pull.codes or ())
        if (
            self.size >= HELD_MAX
            or (of_link is not None and len(of_link) >= HELD_PER_LINK_MAX)
            or self._codes_bytes + codes_bytes > CODES_BYTES_MAX
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
        self._codes_bytes += codes_bytes
        self.size += 1
        return True

    def hold_again(self, queue: ConsumeQueue, pull: "Pull") -> None:
        """Let a held pull wait behind the others of its queue."""
        held = queue.held
        if not isinstance(held, dict):
            held = queue.held = {}
        held.pop(pull, None)
        held[pull] = None

    def count(self, queue: ConsumeQueue) -> int:
        """How many are held on a queue."""
        return len(queue.held) if isinstance(queue.held, dict) else 0

    def first(self, queue: ConsumeQueue, most: int) -> "list[Pull]":
        """The pulls that have waited on a queue for longest; the caller calls `release` or `hold_again` for each."""
        return self._open(list(islice(queue.held, most))) if isinstance(queue.held, dict) else []

    def _open(self, pulls: "list[Pull]") -> "list[Pull]":
        """Those whose connection is open; the others are forgotten."""
        if not self._leaving:
            return pulls
        for pull in pulls:
            if pull.link in self._leaving:
                del self._leaving[pull.link][pull]
                pull.is_answered = True
                self.release(pull)
        return [pull for pull in pulls if not pull.is_answered]

    def due(self, now_ms: int, most: int) -> "list[Pull]":
        """Pulls whose deadline has come, `most` at most; they are no longer held."""
        pulls: list[Pull] = []
        while self._deadlines and self._deadlines[0] <= now_ms and len(pulls) < most:
            found = list(islice(self._by_deadline[self._deadlines[0]], most - len(pulls)))
            for pull in found:
                self.release(pull)
            pulls += [pull for pull in found if pull.link not in self._leaving]
            if not self._by_deadline[self._deadlines[0]]:
                del self._by_deadline[heappop(self._deadlines)]
        return pulls

    def release(self, pull: "Pull") -> None:
        """Hold a pull no longer; harmless if it is not held."""
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
        self._codes_bytes -= CODE_BYTES * len(pull.codes or ())
        self.size -= 1

    def of_link(self, link: int) -> "list[Pull]":
        """The pulls held for a connection."""
        return list(self._by_link.get(link, ()))

    def any(self, most: int) -> "list[Pull]":
        """Some of the pulls held anywhere; they are held no longer."""
        pulls = list(islice(chain.from_iterable(self._by_link.values()), most))
        for pull in pulls:
            self.release(pull)
        return pulls

    def drop_link(self, link: int) -> None:
        """Forget the pulls of a connection that closed; of very many, some in each turn."""
        of_link = self._by_link.pop(link, None)
        if of_link:
            self._leaving[link] = of_link
            self._tidy()

    def begin_turn(self) -> None:
        """Go on with what earlier turns left."""
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
        """The earliest deadline; times at which nobody waits any more may be among them."""
        for _ in range(PART):
            if not self._deadlines or self._by_deadline[self._deadlines[0]]:
                break
            del self._by_deadline[heappop(self._deadlines)]
        return self._deadlines[0] if self._deadlines else None
