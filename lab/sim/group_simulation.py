"""One seed of groups with a registry: build, inject faults, let the cluster settle, check.

0 s ─ start ─ … faults … ─ faults end ─ every group accepts messages ─ settled ─ checked
"""

from dataclasses import replace
from functools import partial
from random import Random

from lab.sim.checkers.final_groups import GroupFinalChecks
from lab.sim.checkers.groups import GroupChecks
from lab.sim.checkers.model import POP_GROUP, BrokerRef
from lab.sim.checkers.pops import PopChecks
from lab.sim.faults.groups import GroupFaults
from lab.sim.faults.replicated_tables import ChangeFaults
from lab.sim.history import History
from lab.sim.workload.access_administrator import AccessAdministrator
from lab.sim.workload.application import Application, ApplicationContext
from lab.sim.workload.group_applications import FOUND_US, GroupConsuming, GroupProducing
from lab.sim.workload.group_clients import GroupConsumer, GroupProducer, MemberPicker
from lab.sim.workload.host import ClientHost
from lab.sim.workload.limited_clients import LimitAdministrator
from lab.sim.workload.pop_consumer import GroupPopConsumer
from lab.sim.workload.producer import SimProducer
from lab.sim.workload.raw_client import RawClient
from lab.sim.workload.timed_producer import TIMED, GroupTimedProducer, with_timed
from lab.sim.workload.topic_cycles import SHARE as CYCLES
from lab.sim.workload.topic_cycles import GroupTopicCycles
from lab.sim.workload.transaction_applications import TransactingApplication
from lab.sim.world.access import with_access
from lab.sim.world.groups import (
    GroupCluster,
    GroupsPlan,
    draw_groups,
    mode_of,
    with_roles,
    with_secret,
    with_session,
    with_slave_reads,
    with_static_topic,
)
from lab.sim.world.plan import (
    client_ip,
    has_access,
    has_limits,
    has_pops,
    has_transactions,
    is_beyond_tolerance,
    share_of,
    with_transactions,
)
from lab.sim.world.world import MS, SECOND, Violation
from tandemq.coordination.registry.records import Mode

SERVE_US = 30 * SECOND
"""Time limit after the last fault for every group to accept messages again, with the help of operators."""
SETTLE_US = 60 * SECOND
"""Time limit after the last fault for the cluster to settle."""
OPERATOR_US = 8 * SECOND
"""Time after the last fault before operators act on a group that accepts no messages."""
CONSUMERS = 2
APPLICATIONS = 0.3
"""Share of the seeds in which applications on the real client run too."""
APPLICATIONS_GROUP = "GA"
RETRY_MS = 10_000
"""For how long an application tries to have a transaction stored, or ended."""
CLOCKS_MS = 6_000
"""How far apart the clocks of members may be: they start up to 4 s apart, and drift."""
INVISIBLE_MS = (8_000, 14_000)
"""Shortest and longest time that popped messages are invisible."""
CHANGE_FAULTS = 0.05
"""Share of the changes of users and limits around which a fault happens."""
MAPPING_FAULTS = 0.25
"""The same of mappings."""
KINDS = frozenset({"batch", "oneway", "nowait", "delay", "reject"})


def _drawn(random: Random, seed: int) -> GroupsPlan:
    plan = with_roles(draw_groups(random), Random(f"{seed}-roles"))
    plan = with_secret(plan, Random(f"{seed}-secret"))
    plan = with_session(plan, Random(f"{seed}-session"))
    plan = with_slave_reads(plan, Random(f"{seed}-slave-reads"))
    if not is_beyond_tolerance(seed):
        plan = with_static_topic(plan, Random(f"{seed}-moved-queues-groups"))
    return with_transactions(plan, Random(f"{seed}-transactions-plan"))


class GroupSimulation(History):
    """A simulated cluster of groups with a registry, its clients, faults and checks."""

    cluster: GroupCluster
    checks: GroupChecks
    final_checks: GroupFinalChecks

    def __init__(self, seed: int) -> None:
        """Build everything; nothing runs yet."""
        super().__init__(seed)
        world = self.world
        self.plan = _drawn(world.random, seed)
        timed = Random(f"timer-wheel-{seed}")
        has_timed = timed.random() < share_of(seed, TIMED)
        if has_timed:
            self.plan = replace(self.plan, base=with_timed(self.plan.base))
        if has_access(seed):
            self.plan = with_access(self.plan, has_secret=bool(self.plan.secret))
        self.cluster = GroupCluster(world, self.network, self.plan)
        self.expected.has_bit_rot = self.cluster.has_bit_rot
        self.checks = GroupChecks(world, self.cluster, self.expected)
        self.expected.on_delivery = self.checks.given
        self.expected.on_shown = self.checks.shown
        self.expected.on_stored = self.checks.acked
        self.producers: list[GroupProducer] = [self._producer(number) for number in range(2)]
        self.consumers = [self._consumer(number) for number in range(CONSUMERS)]
        self.applications = self._applications(Random(f"{seed}-real-clients"))
        groups: tuple[str, ...] = ("G", APPLICATIONS_GROUP) if self.applications else ("G",)
        pop_checks = self._pop_checks() if has_pops(seed) else None
        if pop_checks is not None:
            groups += (POP_GROUP,)
            self.popping = [self._popping(pop_checks, number) for number in range(2)]
        self.final_checks = GroupFinalChecks(world, self.cluster, self.expected, self.checks, groups)
        self.final_checks.pops = pop_checks
        nodes: list[RawClient | Application] = [*self.producers, *self.consumers, *self.applications]
        self.transacting = self._transacting(Random(f"{seed}-transactions"), len(nodes))
        if self.transacting is not None:
            nodes.append(self.transacting)
        if has_timed:
            producer = self._timed(timed)
            self.producers.append(producer)
            nodes.append(producer)
        cycles = Random(f"{seed}-topic-cycles")
        if cycles.random() < CYCLES:
            cycling = self._cycling(cycles)
            self.producers.append(cycling)
            nodes.append(cycling)
        if self.plan.has_static_topic:
            members = self._context().members
            self.add_static_topic(nodes, self.cluster, members, has_one_master=False)
            assert self.checks.logical is not None, "there is a static topic"
            self.checks.logical.was_forced = lambda: bool(self.checks.accepted_us)
        nodes.extend(self.popping)
        self.add_searcher(nodes, self.cluster)
        self.add_entry_reader(nodes, self.cluster)
        changing: dict[str, LimitAdministrator | AccessAdministrator] = {}
        if has_limits(seed):
            limits, changing["limits"] = self.add_limits(
                nodes, self.cluster, has_one_master=False, has_users=has_access(seed)
            )
            limits.excuses = self._is_loss_accepted
            self.final_checks.limits = limits
        if has_access(seed):
            checks, changing["users"] = self.add_access(nodes, self.cluster, has_one_master=False)
            checks.excuses = self._is_loss_accepted
            self.final_checks.access = checks
        self.clients = [ClientHost(world, self.network, client_ip(number), node) for number, node in enumerate(nodes)]
        self.faults = GroupFaults(world, self.network, self.cluster, self.clients, self.checks)
        if is_beyond_tolerance(seed):
            self.checks.keep_safety_only()
            self.expected.on_stored = self.expected.on_committed = lambda _: None
        if self.moving is not None:
            strikes = self._strikes("mapping", MAPPING_FAULTS)
            self.moving.on_sent, self.moving.on_confirmed = strikes.sent, strikes.confirmed
        for what, administrator in changing.items():
            strikes = self._strikes(what)
            administrator.on_sent, administrator.on_confirmed = strikes.sent, strikes.confirmed

    def _strikes(self, what: str, rate: float = CHANGE_FAULTS) -> ChangeFaults:
        return ChangeFaults(self.world, self.network, self.cluster, lambda: self.faults.is_over, what=what, rate=rate)

    def _is_loss_accepted(self, name: str) -> bool:
        return name in self.checks.accepted_us or self.cluster.is_harmed(name)

    def _addresses(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for host in self.cluster.hosts:
            found.setdefault(host.group.name, []).append(host.address)
        return found

    def _member_picker(self) -> MemberPicker:
        return MemberPicker(self._new_random(), self._addresses())

    def _producer(self, number: int) -> GroupProducer:
        return GroupProducer(
            self.world,
            self.expected,
            f"p{number}",
            self._new_random(),
            self._member_picker(),
            self.checks.responded,
            pace_ms=self.plan.pace_ms,
            kinds=self.plan.kinds & KINDS,
        )

    def _timed(self, random: Random) -> GroupTimedProducer:
        members = MemberPicker(Random(random.random()), self._addresses())
        kinds = self.plan.kinds & KINDS
        return GroupTimedProducer(
            self.world, self.expected, Random(random.random()), members, self.checks.responded, kinds
        )

    def _cycling(self, random: Random) -> GroupTopicCycles:
        members = MemberPicker(Random(random.random()), self._addresses())
        return GroupTopicCycles(self.world, self.expected, Random(random.random()), members, self.checks.responded)

    def _consumer(self, number: int) -> GroupConsumer:
        return GroupConsumer(
            self.world,
            self.expected,
            f"c{number}",
            "G",
            self._new_random(),
            self._member_picker(),
            self.checks.responded,
            suspend_ms=self.plan.suspend_ms,
        )

    def _applications(self, random: Random) -> list[Application]:
        """Return the applications on the real client; a generator of their own keeps other seeds as they are."""
        if random.random() >= APPLICATIONS:
            return []
        context = self._context()
        ips = [client_ip(len(self.producers) + len(self.consumers) + number) for number in range(2)]
        producing = GroupProducing(
            context,
            "a0",
            ips[0],
            Random(random.random()),
            self.checks.responded,
            pace_ms=self.plan.pace_ms,
            kinds=self.plan.kinds & KINDS,
        )
        consuming = GroupConsuming(
            context,
            "a1",
            ips[1],
            Random(random.random()),
            self.checks.responded,
            group=APPLICATIONS_GROUP,
            orderly=random.random() < 0.3,
            suspend_ms=self.plan.suspend_ms,
        )
        return [producing, consuming]

    def _context(self) -> ApplicationContext:
        members = {host.address: BrokerRef(host.group.name, host.broker_id) for host in self.cluster.hosts}
        return ApplicationContext(self.world, self.expected, members, self.plan.name_servers, self.plan.route_poll_ms)

    def _transacting(self, random: Random, number: int) -> TransactingApplication | None:
        """Return the application that sends transactions, if there is one."""
        if not has_transactions(self.world.seed):
            return None
        return TransactingApplication(
            self._context(),
            "tx",
            client_ip(number),
            Random(random.random()),
            retry_ms=RETRY_MS,
            on_response=self.checks.responded,
        )

    def _pop_checks(self) -> PopChecks:
        """Return the checks of pops.

        Excused is what groups may lose that do not elect, or whose operators accepted a loss, and the time of members
        that take over from one whose clock had jumped.
        """
        timeout_ms = self.cluster.hosts[0].config.slave_timeout_ms
        checks = PopChecks(self.world, self.cluster, self.expected, slack_ms=CLOCKS_MS, slave_timeout_ms=timeout_ms)
        elected = {group.name for group in self.plan.groups if mode_of(group) is Mode.ELECT}

        def is_excused(name: str) -> bool:
            members = [host for host in self.cluster.hosts if host.group.name == name]
            has_jumped = any(host.machine.jumps for host in members)
            return name not in elected or name in self.checks.accepted_us or has_jumped

        checks.excuses = is_excused
        return checks

    def _popping(self, checks: PopChecks, number: int) -> GroupPopConsumer:
        name = f"pop{number}"
        members = MemberPicker(Random(f"{self.world.seed}-{name}-members"), self._addresses())
        return GroupPopConsumer(
            self.world,
            self.expected,
            checks,
            name,
            Random(f"{self.world.seed}-{name}"),
            members,
            self.checks.responded,
            invisible_ms=INVISIBLE_MS,
        )

    # Running.

    def run(self) -> None:
        """See `History`."""
        world = self.world
        self.cluster.start()
        self.faults.plan(self.plan.fault_count, self.plan.faulty_us)
        world.run_until(self.plan.faulty_us)
        if is_beyond_tolerance(world.seed):
            self.end_beyond_tolerance(self.faults)
            return
        self.faults.end()
        end_us = world.now_us
        world.run_until(end_us + 2 * SECOND)
        self._await_service(end_us)
        senders = [sender for sender in self.applications if isinstance(sender, GroupProducing)]
        for sender in senders:
            self._await_found(sender)
        help_out = partial(self._help, end_us + OPERATOR_US)
        self.await_confirmed(self.transacting, end_us, SETTLE_US, help_out)
        self.await_moves(end_us, SETTLE_US, help_out)
        self.await_changes(end_us, SETTLE_US, help_out)
        if self.logical is not None:
            self.logical.is_stopped = True
        producers: list[SimProducer | GroupProducing] = [*self.producers, *senders, *self.askers]
        for producer in producers:
            producer.is_stopped = True
        for application in self.applications:
            if isinstance(application, GroupConsuming):
                application.is_hasty = True
        for consumer in self.popping:
            consumer.is_hasty = True
        world.run_until(world.now_us + SECOND)
        self._await_settled(end_us, SETTLE_US, help_out)
        self.final_checks.judge()

    def _await_service(self, end_us: int) -> None:
        """Run until every group accepts messages."""
        world = self.world
        for group in self.plan.groups:
            while not self._serves(group.name):
                if world.now_us >= end_us + SERVE_US:
                    raise Violation(
                        "I14",
                        f"{group.name} does not serve {SERVE_US // SECOND} s after the last fault: "
                        f"{self.final_checks.describe(group)}",
                    )
                if world.now_us >= end_us + OPERATOR_US:
                    self.faults.help(group)
                    self.faults.empty_left_behind(group)
                world.run_until(world.now_us + 250 * MS)

    def _await_found(self, sender: GroupProducing) -> None:
        """Run until an application has stored a message; it may avoid a group that failed a while ago."""
        world = self.world
        since_us = sender.calm_us = world.now_us
        while not sender.has_stored_since(since_us):
            if world.now_us >= since_us + FOUND_US:
                describe = "; ".join(map(self.final_checks.describe, self.plan.groups))
                raise Violation("I14", f"{sender.name} has nothing stored in {FOUND_US // SECOND} s: {describe}")
            world.run_until(world.now_us + 250 * MS)

    def _help(self, from_us: int) -> None:
        """Act as operators on groups that do not settle by themselves, from a time on."""
        if self.world.now_us >= from_us:
            for group in self.plan.groups:
                self.faults.help(group)
                self.faults.empty_left_behind(group)

    def _serves(self, name: str) -> bool:
        """Return whether a group stored a message within the last second."""
        since_us = self.world.now_us - SECOND
        return any(
            attempt.group == name and attempt.code == 0 and attempt.answered_us >= since_us
            for attempt in reversed(self.expected.attempts[-200:])
        )

    def levels(self) -> list[str]:
        """Return the mode and level of each group."""
        return [f"{mode_of(group).value} {group.level}" for group in self.plan.groups]
