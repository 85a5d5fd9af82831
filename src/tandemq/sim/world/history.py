"""What every seed has, whatever its groups are like: a world, what should be there, the wait until all is settled.

Does not know: which clients, faults and checkers there are.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random

from tandemq.boundary import LinkKind
from tandemq.codec.remoting.frame import FrameDecoder, decode_command
from tandemq.sim.checkers.always import ContinuousChecks
from tandemq.sim.checkers.final import FinalChecks
from tandemq.sim.checkers.model import Shadow
from tandemq.sim.result import Result
from tandemq.sim.world.network import Network, SimConnection
from tandemq.sim.world.plan import STRANGER_IP
from tandemq.sim.world.world import MS, SECOND, Violation, World

LOOK_US = 500 * MS
"""How often it is looked whether all is settled."""


class History(ABC):
    """One seed from beginning to end."""

    checks: ContinuousChecks
    verdict: FinalChecks

    def __init__(self, seed: int) -> None:
        """Nothing has begun."""
        self.world = World(seed)
        self.network = Network(self.world)
        self.network.tap = self._count_requests
        self.shadow = Shadow()

    @abstractmethod
    def run(self) -> None:
        """Run to the end.

        Raises:
            Violation: something that must hold did not.
        """

    @abstractmethod
    def levels(self) -> list[str]:
        """What each group promises."""

    def _count_requests(self, connection: SimConnection, end: int, data: bytes) -> None:
        """Whoever asked for a connection asks on it, in whole frames; what a stranger says is no request."""
        if end or connection.kind is LinkKind.HA_MASTER or connection.owners[0].ip == STRANGER_IP:
            return
        for frame in FrameDecoder().feed(data):
            command = decode_command(frame)
            if not command.is_response:
                self.world.requests[command.code] += 1

    def _dice(self) -> Random:
        return Random(self.world.random.getrandbits(60))

    def _await_settled(self, end_us: int, within_us: int, help_out: Callable[[], None] = lambda: None) -> None:
        """Go on until everything is where it belongs: `within_us` after the faults' end it must be.

        `help_out`: what operators do at each look about what is not.
        """
        world = self.world
        while (what := self.verdict.unsettled()) is not None:
            if world.now_us >= end_us + within_us:
                raise Violation(what.rule, f"{within_us // SECOND} s after the last fault: {what.text}")
            help_out()
            world.run_until(world.now_us + LOOK_US)

    def result(self, violation: Violation | None) -> Result:
        """What there is to report."""
        world, shadow = self.world, self.shadow
        return Result(
            world.seed,
            world.digest,
            violation.rule if violation else "",
            violation.text if violation else "",
            round(world.now_us / SECOND, 3),
            len(shadow.attempts),
            len(shadow.given),
            world.turns,
            shadow.duplicates,
            self.levels(),
            dict(sorted(world.faults.items())),
            dict(sorted(world.requests.items())),
            dict(sorted(self.checks.statuses.items())),
        )
