"""One seed with groups that have a registry: build, let things go wrong, let them settle, judge.

0 s ─ start ─ … faults … ─ faults end ─ every group takes messages ─ settled ─ judged
"""

from functools import partial
from random import Random

from tandemq.sim.checkers.final_groups import GroupFinalChecks
from tandemq.sim.checkers.groups import GroupChecks
from tandemq.sim.faults.groups import GroupFaults
from tandemq.sim.workload.application import Application, Surroundings
from tandemq.sim.workload.group_applications import FOUND_US, GroupConsuming, GroupProducing
from tandemq.sim.workload.group_clients import GroupConsumer, GroupProducer, Members
from tandemq.sim.workload.raw_client import RawClient
from tandemq.sim.world.groups import GroupCluster, draw_groups, mode_of, with_secret
from tandemq.sim.world.history import History
from tandemq.sim.world.host import Seat
from tandemq.sim.world.plan import client_ip
from tandemq.sim.world.world import MS, SECOND, Violation

SERVE_US = 30 * SECOND
"""Within this time after the last fault every group must take messages again, operators included."""
SETTLE_US = 60 * SECOND
"""Within this time everything must be where it belongs."""
OPERATOR_US = 8 * SECOND
"""For so long nobody helps a group that does not serve."""
CONSUMERS = 2
APPLICATIONS = 0.3
"""The part of the seeds in which real clients produce and consume, too."""
APPLICATIONS_GROUP = "GA"
KINDS = frozenset({"batch", "oneway", "nowait", "delay", "reject"})


class GroupSimulation(History):
    """One world with all that is in it."""

    checks: GroupChecks
    verdict: GroupFinalChecks

    def __init__(self, seed: int) -> None:
        """Nothing has begun."""
        super().__init__(seed)
        world = self.world
        self.plan = with_secret(draw_groups(world.random), Random(f"{seed}-secret"))
        self.cluster = GroupCluster(world, self.network, self.plan)
        self.shadow.has_rot = self.cluster.has_rot
        self.checks = GroupChecks(world, self.cluster, self.shadow)
        self.shadow.on_given = self.checks.given
        self.shadow.on_stored = self.checks.acked
        self.producers = [self._producer(number) for number in range(2)]
        self.consumers = [self._consumer(number) for number in range(CONSUMERS)]
        self.applications = self._applications(Random(f"{seed}-real-clients"))
        groups = ("G", APPLICATIONS_GROUP) if self.applications else ("G",)
        self.verdict = GroupFinalChecks(world, self.cluster, self.shadow, self.checks, groups)
        nodes: list[RawClient | Application] = [*self.producers, *self.consumers, *self.applications]
        self.clients = [Seat(world, self.network, client_ip(number), node) for number, node in enumerate(nodes)]
        self.faults = GroupFaults(world, self.network, self.cluster, self.clients, self.checks)

    def _members(self) -> Members:
        found: dict[str, list[str]] = {}
        for host in self.cluster.hosts:
            found.setdefault(host.group.name, []).append(host.address)
        return Members(self._dice(), found)

    def _producer(self, number: int) -> GroupProducer:
        return GroupProducer(
            self.world,
            self.shadow,
            f"p{number}",
            self._dice(),
            self._members(),
            self.checks.heard,
            pace_ms=self.plan.pace_ms,
            kinds=self.plan.kinds & KINDS,
        )

    def _consumer(self, number: int) -> GroupConsumer:
        return GroupConsumer(
            self.world,
            self.shadow,
            f"c{number}",
            "G",
            self._dice(),
            self._members(),
            self.checks.heard,
            suspend_ms=self.plan.suspend_ms,
        )

    def _applications(self, dice: Random) -> list[Application]:
        """Real clients, by dice of their own: other seeds stay as they are."""
        if dice.random() >= APPLICATIONS:
            return []
        members = {host.address: (host.group.name, host.broker_id) for host in self.cluster.hosts}
        around = Surroundings(self.world, self.shadow, members, self.plan.name_servers, self.plan.route_poll_ms)
        ips = [client_ip(len(self.producers) + len(self.consumers) + number) for number in range(2)]
        producing = GroupProducing(
            around,
            "a0",
            ips[0],
            Random(dice.random()),
            self.checks.heard,
            pace_ms=self.plan.pace_ms,
            kinds=self.plan.kinds & KINDS,
        )
        consuming = GroupConsuming(
            around,
            "a1",
            ips[1],
            Random(dice.random()),
            self.checks.heard,
            group=APPLICATIONS_GROUP,
            orderly=dice.random() < 0.3,
            suspend_ms=self.plan.suspend_ms,
        )
        return [producing, consuming]

    # Running.

    def run(self) -> None:
        """See `History`."""
        world = self.world
        self.cluster.start()
        self.faults.plan(self.plan.fault_count, self.plan.faulty_us)
        world.run_until(self.plan.faulty_us)
        self.faults.end()
        end_us = world.now_us
        world.run_until(end_us + 2 * SECOND)
        self._await_service(end_us)
        senders = [sender for sender in self.applications if isinstance(sender, GroupProducing)]
        for sender in senders:
            self._await_found(sender)
        everybody: list[GroupProducer | GroupProducing] = [*self.producers, *senders]
        for producer in everybody:
            producer.is_stopped = True
        for application in self.applications:
            if isinstance(application, GroupConsuming):
                application.is_hasty = True
        world.run_until(world.now_us + SECOND)
        self._await_settled(end_us, SETTLE_US, partial(self._help, end_us + OPERATOR_US))
        self.verdict.judge()

    def _await_service(self, end_us: int) -> None:
        """Go on until every group takes messages."""
        world = self.world
        for group in self.plan.groups:
            while not self._serves(group.name):
                if world.now_us >= end_us + SERVE_US:
                    raise Violation(
                        "I14",
                        f"{group.name} does not serve {SERVE_US // SECOND} s after the last fault: "
                        f"{self.verdict.why(group)}",
                    )
                if world.now_us >= end_us + OPERATOR_US:
                    self.faults.help(group)
                    self.faults.empty_left_behind(group)
                world.run_until(world.now_us + 250 * MS)

    def _await_found(self, sender: GroupProducing) -> None:
        """Go on until an application has a message stored; it may stay away from a group that failed long ago."""
        world = self.world
        since_us = sender.calm_us = world.now_us
        while not sender.has_stored_since(since_us):
            if world.now_us >= since_us + FOUND_US:
                why = "; ".join(map(self.verdict.why, self.plan.groups))
                raise Violation("I14", f"{sender.name} has nothing stored in {FOUND_US // SECOND} s: {why}")
            world.run_until(world.now_us + 250 * MS)

    def _help(self, from_us: int) -> None:
        """What operators do, from a time on, about what does not settle by itself."""
        if self.world.now_us >= from_us:
            for group in self.plan.groups:
                self.faults.help(group)
                self.faults.empty_left_behind(group)

    def _serves(self, name: str) -> bool:
        """Whether a group took a message since a moment ago."""
        since_us = self.world.now_us - SECOND
        return any(
            attempt.group == name and attempt.code == 0 and attempt.answered_us >= since_us
            for attempt in reversed(self.shadow.attempts[-200:])
        )

    def levels(self) -> list[str]:
        """Mode and level of each group."""
        return [f"{mode_of(group).value} {group.level}" for group in self.plan.groups]
