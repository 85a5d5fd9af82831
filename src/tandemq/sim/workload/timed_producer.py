"""A raw producer of timed messages: each is to be delivered after its own delay.

Times are near and far; with the seed's short roll window those far away are stored again while they wait.
"""

from random import Random

from tandemq.sim.checkers.model import ExpectedState
from tandemq.sim.workload.producer import SimProducer
from tandemq.sim.world.world import World

NAME = "pt"
ROLL_WINDOW_S = 6
"""timerRollWindowSlot, so that messages are stored again."""
PACE_MS = 1_500
LONGEST_MS = ((1_500, 4), (6_000, 4), (15_000, 1))
"""Longest delays, with their weights."""


class TimedProducer(SimProducer):
    """A raw producer of timed messages."""

    def __init__(
        self,
        world: World,
        expected: ExpectedState,
        random: Random,
        name_servers: tuple[str, ...],
        kinds: frozenset[str],
    ) -> None:
        """`kinds`: kinds of messages of the seed; none is sent in batches."""
        super().__init__(
            world,
            expected,
            NAME,
            random,
            name_servers,
            pace_ms=PACE_MS,
            kinds=kinds & {"oneway", "nowait"},
            binary=False,
        )

    def _step(self) -> None:
        if self.is_stopped:
            return
        for _ in range(self.random.randrange(1, 4)):
            wanted = self._make(self._factory.topic(), plain=True)
            longest, weights = zip(*LONGEST_MS, strict=True)
            wanted.timer_ms = self.random.randrange(1, self.random.choices(longest, weights)[0])
            self._send([wanted], set())
        self.after(self.random.randrange(PACE_MS // 4, PACE_MS * 2), self._step)
