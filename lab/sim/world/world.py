"""One simulated world: a seed, a virtual clock, an event queue, and the digest of its events.

    at / after ─► queue by (time, number) ─► run_until ─► action()

Time is counted in whole microseconds from 0 and only moves between two actions. Actions at the same time run in the
order of scheduling, so that a seed gives the same history in every process. All random choices come from `random` (or
from a `Random` seeded by it), and all that happens is part of `digest`.

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
    """An invariant does not hold. `rule`: its name in docs/internals/simulation.md, such as "I1"."""

    def __init__(self, rule: str, text: str) -> None:
        """`text`: the observation."""
        super().__init__(f"{rule}: {text}")
        self.rule = rule
        self.text = text

    def __reduce__(self) -> tuple[type["Violation"], tuple[str, str]]:
        """Support pickling between processes."""
        return (Violation, (self.rule, self.text))


class World:
    """Clock, event queue, random generator and digest of one seed."""

    def __init__(self, seed: int) -> None:
        """A world at time 0 in which nothing has happened."""
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
        """Schedule an action at a time, now at the earliest."""
        self._count += 1
        now_us = self.now_us
        heappush(self._queue, (when_us if when_us > now_us else now_us, self._count, action))

    def after(self, delay_us: int, action: Action) -> None:
        """Schedule an action after a delay."""
        self._count += 1
        heappush(self._queue, (self.now_us + delay_us, self._count, action))

    def run_until(self, until_us: int) -> None:
        """Run all actions due up to a time, and advance the clock to it."""
        queue = self._queue
        while queue and queue[0][0] <= until_us:
            self.now_us, _, action = heappop(queue)
            action()
        self.now_us = until_us

    def fold(self, *values: object) -> None:
        """Add values to the digest."""
        self._digest.update(repr((self.now_us, values)).encode())

    def fold_sent(self, name: str, link: int, data: bytes) -> None:
        """Add a name, a connection, and the size and checksum of sent data to the digest: half the cost of `fold`."""
        self._digest.update(f"({self.now_us}, ({name!r}, {link}, {len(data)}, {crc32(data)}))".encode())

    def fault(self, kind: str, text: str) -> None:
        """Record an injected fault."""
        self.faults[kind] += 1
        self.fold(kind, text)
        log.info("fault: %s %s", kind, text)

    def consequence(self, kind: str, text: str) -> None:
        """Record the consequence of a fault."""
        self.consequences[kind] += 1
        self.fold(kind, text)
        log.info("%s: %s", kind, text)

    @property
    def digest(self) -> str:
        """Return the digest of the history, 16 digits."""
        return self._digest.hexdigest()

    @property
    def clock(self) -> str:
        """Return the time as text: seconds with six decimals."""
        return f"{self.now_us / SECOND:11.6f}"
