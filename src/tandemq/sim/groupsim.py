"""One seed with groups that have a registry: build, let things go wrong, let them settle, judge.

0 s ─ start ─ … faults … ─ faults end ─ every group takes messages ─ settled ─ judged
"""

from random import Random

from tandemq.sim.groupchecks import GroupChecks
from tandemq.sim.groupclients import GroupConsumer, GroupProducer, Members
from tandemq.sim.groupfaults import GroupFaults
from tandemq.sim.groups import GroupCluster, draw_groups, mode_of
from tandemq.sim.groupverdict import GroupVerdict
from tandemq.sim.network import Network
from tandemq.sim.plan import client_ip
from tandemq.sim.result import Result
from tandemq.sim.seat import Seat
from tandemq.sim.shadow import Shadow
from tandemq.sim.world import MS, SECOND, Violation, World

SERVE_US = 30 * SECOND
"""Within this time after the last fault every group must take messages again, operators included."""
SETTLE_US = 60 * SECOND
"""Within this time everything must be where it belongs."""
OPERATOR_US = 8 * SECOND
"""For so long nobody helps a group that does not serve."""
CONSUMERS = 2
KINDS = frozenset({"batch", "oneway", "nowait", "delay", "reject"})


class GroupSimulation:
    """One world with all that is in it."""

    def __init__(self, seed: int) -> None:
        """Nothing has begun."""
        world = self.world = World(seed)
        self.network = Network(world)
        self.plan = draw_groups(world.random)
        self.shadow = Shadow()
        self.cluster = GroupCluster(world, self.network, self.plan)
        self.checks = GroupChecks(world, self.cluster, self.shadow)
        self.shadow.on_given = self.checks.given
        self.shadow.on_stored = self.checks.acked
        self.producers = [self._producer(number) for number in range(2)]
        self.consumers = [self._consumer(number) for number in range(CONSUMERS)]
        self.verdict = GroupVerdict(world, self.cluster, self.shadow, self.checks, ("G",))
        nodes = [*self.producers, *self.consumers]
        self.clients = [Seat(world, self.network, client_ip(number), node) for number, node in enumerate(nodes)]
        self.faults = GroupFaults(world, self.network, self.cluster, self.clients, self.checks)

    def _dice(self) -> Random:
        return Random(self.world.random.getrandbits(60))

    def _members(self) -> Members:
        found: dict[str, list[str]] = {}
        for host in self.cluster.hosts:
            found.setdefault(host.group.name, []).append(host.address)
        return Members(self._dice(), found)

    def _producer(self, number: int) -> GroupProducer:
        return GroupProducer(self.world, self.shadow, f"p{number}", self._dice(), self._members(), self.checks.heard,
                             pace_ms=self.plan.pace_ms, kinds=self.plan.kinds & KINDS)  # fmt: skip

    def _consumer(self, number: int) -> GroupConsumer:
        return GroupConsumer(self.world, self.shadow, f"c{number}", "G", self._dice(), self._members(),
                             self.checks.heard, suspend_ms=self.plan.suspend_ms)  # fmt: skip

    # Running.

    def run(self) -> None:
        """Run to the end.

        Raises:
            Violation: something that must hold did not.
        """
        world = self.world
        self.cluster.start()
        self.faults.plan(self.plan.fault_count, self.plan.faulty_us)
        world.run_until(self.plan.faulty_us)
        self.faults.end()
        end_us = world.now_us
        world.run_until(end_us + 2 * SECOND)
        for group in self.plan.groups:
            while not self._serves(group.name):
                if world.now_us >= end_us + SERVE_US:
                    raise Violation("I14", f"{group.name} does not serve {SERVE_US // SECOND} s after the last fault: "
                                           f"{self.verdict.why(group)}")  # fmt: skip
                if world.now_us >= end_us + OPERATOR_US:
                    self.faults.help(group)
                world.run_until(world.now_us + 250 * MS)
        for producer in self.producers:
            producer.is_stopped = True
        world.run_until(world.now_us + SECOND)
        while what := self.verdict.unsettled():
            if world.now_us >= end_us + SETTLE_US:
                raise Violation("I14", f"{SETTLE_US // SECOND} s after the last fault: {what}")
            for group in self.plan.groups if world.now_us >= end_us + OPERATOR_US else ():
                self.faults.empty_left_behind(group)
            world.run_until(world.now_us + 500 * MS)
        self.verdict.judge()

    def _serves(self, name: str) -> bool:
        """Whether a group took a message since a moment ago."""
        since_us = self.world.now_us - SECOND
        return any(
            attempt.group == name and attempt.code == 0 and attempt.answered_us >= since_us
            for attempt in reversed(self.shadow.attempts[-200:])
        )

    def result(self, violation: Violation | None) -> Result:
        """What there is to report."""
        world, shadow = self.world, self.shadow
        return Result(
            world.seed, world.digest, violation.rule if violation else "", violation.text if violation else "",
            round(world.now_us / SECOND, 3), len(shadow.attempts), len(shadow.given), world.turns, shadow.duplicates,
            [f"{mode_of(group).value} {group.level}" for group in self.plan.groups],
            dict(sorted(world.faults.items())), dict(sorted(world.requests.items())),
            dict(sorted(self.checks.statuses.items())),
        )  # fmt: skip
