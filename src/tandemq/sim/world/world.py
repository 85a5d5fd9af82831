"""One simulated world: a seed, a virtual clock, a queue of what happens when, and the record of what happened.

    at / after ─► queue by (time, number) ─► run_until ─► action()

Time is counted in whole microseconds from 0 and only moves between two actions. Equal times run in the order in which
they were asked for, so that a seed is one history, in every process. All dice are drawn from `random` (or from a
`Random` made of it), all that happens is folded into `digest`.

Does not know: machines, networks, brokers.
"""

import logging
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from heapq import heappop, heappush
from random import Random
from zlib import crc32

log = logging.getLogger(__name__)
MS = 1_000
SECOND = 1_000_000
Action = Callable[[], None]


class Violation(Exception):
    """Something that must always hold did not. `rule` is its name in docs/internals/simulation.md, such as "I1"."""

    def __init__(self, rule: str, text: str) -> None:
        """With the rule and what was seen instead."""
        super().__init__(f"{rule}: {text}")
        self.rule = rule
        self.text = text

    def __reduce__(self) -> tuple[type["Violation"], tuple[str, str]]:
        """Travels between processes whole."""
        return (Violation, (self.rule, self.text))


class World:
    """Clock, queue, dice and record of one seed."""

    def __init__(self, seed: int) -> None:
        """Nothing has happened; it is 0."""
        self.seed = seed
        self.random = Random(seed)
        self.now_us = 0
        self.faults: Counter[str] = Counter()
        self.consequences: Counter[str] = Counter()
        self.requests: Counter[int] = Counter()
        self.turns = 0
        self._queue: list[tuple[int, int, Action]] = []
        self._count = 0
        self._digest = blake2b(digest_size=8)

    def at(self, when_us: int, action: Action) -> None:
        """Let something happen at a time, now at the earliest."""
        self._count += 1
        now_us = self.now_us
        heappush(self._queue, (when_us if when_us > now_us else now_us, self._count, action))

    def after(self, delay_us: int, action: Action) -> None:
        """Let something happen later."""
        self._count += 1
        heappush(self._queue, (self.now_us + delay_us, self._count, action))

    def run_until(self, until_us: int) -> None:
        """Let everything happen that is due up to a time; then it is that time."""
        queue = self._queue
        while queue and queue[0][0] <= until_us:
            self.now_us, _, action = heappop(queue)
            action()
        self.now_us = until_us

    def fold(self, *values: object) -> None:
        """Make something that happened part of the digest."""
        self._digest.update(repr((self.now_us, values)).encode())

    def fold_sent(self, name: str, link: int, data: bytes) -> None:
        """Fold a name, a link, the size and the checksum of what is sent: as `fold` does, in half the time."""
        self._digest.update(f"({self.now_us}, ({name!r}, {link}, {len(data)}, {crc32(data)}))".encode())

    def fault(self, kind: str, text: str) -> None:
        """Record that a fault was injected."""
        self.faults[kind] += 1
        self.fold(kind, text)
        log.info("fault: %s %s", kind, text)

    def consequence(self, kind: str, text: str) -> None:
        """Record what a fault led to."""
        self.consequences[kind] += 1
        self.fold(kind, text)
        log.info("%s: %s", kind, text)

    @property
    def digest(self) -> str:
        """What happened, in 16 digits: equal for equal histories."""
        return self._digest.hexdigest()

    @property
    def clock(self) -> str:
        """The time as text: seconds with six decimals."""
        return f"{self.now_us / SECOND:11.6f}"
