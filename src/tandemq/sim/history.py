"""The part that simulations of both kinds of groups share: world, expected state, waiting until all has settled.

Does not know: clients, faults and checkers of a kind.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random

from tandemq.boundary import LinkKind
from tandemq.codec.remoting.frame import FrameDecoder, decode_command
from tandemq.sim.checkers.always import ContinuousChecks
from tandemq.sim.checkers.final import FinalChecks
from tandemq.sim.checkers.model import ExpectedState
from tandemq.sim.result import Result
from tandemq.sim.workload.transaction_applications import TransactingApplication
from tandemq.sim.world.network import Network, SimConnection
from tandemq.sim.world.plan import MALFORMED_PEER_IP
from tandemq.sim.world.world import MS, SECOND, Violation, World

LOOK_US = 500 * MS
"""Interval of the checks whether the cluster has settled."""


class History(ABC):
    """The run of one seed."""

    checks: ContinuousChecks
    final_checks: FinalChecks

    def __init__(self, seed: int) -> None:
        """A world in which nothing has happened."""
        self.world = World(seed)
        self.network = Network(self.world)
        self.network.tap = self._count_requests
        self.expected = ExpectedState()

    @abstractmethod
    def run(self) -> None:
        """Run to the end.

        Raises:
            Violation: an invariant does not hold.
        """

    @abstractmethod
    def levels(self) -> list[str]:
        """Return the level of each group."""

    def _count_requests(self, connection: SimConnection, end: int, data: bytes) -> None:
        """Count requests, sent in whole frames by the end that opened a connection; malformed peers do not count."""
        if end or connection.kind is LinkKind.HA_MASTER or connection.owners[0].ip == MALFORMED_PEER_IP:
            return
        for frame in FrameDecoder().feed(data):
            command = decode_command(frame)
            if not command.is_response:
                self.world.requests[command.code] += 1

    def _new_random(self) -> Random:
        return Random(self.world.random.getrandbits(60))

    def _await_settled(self, end_us: int, within_us: int, help_out: Callable[[], None] = lambda: None) -> None:
        """Run until the cluster has settled.

        `help_out`: actions of operators, called at each check that finds something unsettled.

        Raises:
            Violation: it has not settled `within_us` after the faults' end.
        """
        world = self.world
        while (what := self.final_checks.unsettled()) is not None:
            if world.now_us >= end_us + within_us:
                raise Violation(what.rule, f"{within_us // SECOND} s after the last fault: {what.text}")
            help_out()
            world.run_until(world.now_us + LOOK_US)

    def await_confirmed(
        self, transacting: TransactingApplication | None, end_us: int, within_us: int, *, can_be: bool = True
    ) -> None:
        """Run until the end of a transaction is confirmed that was made after the faults, then stop making them.

        Args:
            transacting: the application that makes them, if there is one.
            end_us: when the faults ended.
            within_us: time limit after that.
            can_be: whether the cluster is configured so that transactions can be confirmed.

        Raises:
            Violation: I11, none is confirmed `within_us` after the faults' end.
        """
        if transacting is None:
            return
        while can_be and transacting.confirmed_us < end_us:
            if self.world.now_us >= end_us + within_us:
                raise Violation(
                    "I11", f"no transaction is confirmed {within_us // SECOND} s after the last fault, though it runs"
                )
            self.world.run_until(self.world.now_us + LOOK_US)
        transacting.is_stopped = transacting.is_hasty = True

    def result(self, violation: Violation | None) -> Result:
        """Return the result of the run."""
        world, expected = self.world, self.expected
        return Result(
            world.seed,
            world.digest,
            violation.rule if violation else "",
            violation.text if violation else "",
            round(world.now_us / SECOND, 3),
            len(expected.attempts),
            len(expected.given),
            world.turns,
            expected.duplicates,
            self.levels(),
            dict(sorted(world.faults.items())),
            dict(sorted(world.requests.items())),
            dict(sorted(self.checks.statuses.items())),
        )
