"""One seed of groups with fixed roles: build, inject faults, let the cluster settle, check.

0 s ─ start ─ … faults … ─ faults end ─ probes until every group answers SEND_OK ─ settled ─ checked
"""

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import IO

from lab.sim.checkers.always import ContinuousChecks
from lab.sim.checkers.deliveries import REJECTING_GROUP
from lab.sim.checkers.final import FinalChecks
from lab.sim.checkers.model import POP_GROUP, BrokerRef, SentMessage
from lab.sim.checkers.pops import PopChecks
from lab.sim.export import Export
from lab.sim.faults.cluster import Faults
from lab.sim.group_simulation import GroupSimulation
from lab.sim.history import History
from lab.sim.result import Result
from lab.sim.workload.application import Application, ApplicationContext
from lab.sim.workload.client_consumer import ConsumingApplication
from lab.sim.workload.client_producer import ProducingApplication
from lab.sim.workload.consumer import Consumer
from lab.sim.workload.host import ClientHost
from lab.sim.workload.malformed_peer import MalformedPeer
from lab.sim.workload.pop_consumer import RawPopConsumer
from lab.sim.workload.producer import SimProducer
from lab.sim.workload.raw_client import RawClient
from lab.sim.workload.request_applications import (
    REPLYING_GROUP,
    SELECTING_GROUP,
    RequestingApplication,
    is_request,
    responding,
    selecting,
    selects,
)
from lab.sim.workload.timed_producer import TIMED, TimedProducer, with_timed
from lab.sim.workload.topic_cycles import SHARE as CYCLES
from lab.sim.workload.topic_cycles import TopicCycles
from lab.sim.workload.transaction_applications import TransactingApplication
from lab.sim.world.access import with_access
from lab.sim.world.cluster import Cluster
from lab.sim.world.plan import (
    MALFORMED_PEER_IP,
    client_ip,
    draw,
    has_access,
    has_limits,
    has_pops,
    has_registry,
    has_static_topic,
    has_transactions,
    is_beyond_tolerance,
    share_of,
    with_transactions,
)
from lab.sim.world.world import SECOND, Violation
from tandemq.broker.features.delay import service as delay
from tandemq.client.core import connections

SETTLE_US = 150 * SECOND
"""Time limit after the last fault for everything to work again."""
RUN_US_MIN = 60 * SECOND
SENDS_MIN = 200
FAULTS_MIN = 3
GROUPS = 2
SCAN_MS = 1_000
"""Interval at which brokers look for due delayed messages: the default of 100 ms would cost a third of all turns."""
DEADLINE_STEP_MS = 250
"""Granularity of the client's request timeouts, for the same reason."""
REQUESTS = 0.2
"""Share of the seeds in which applications ask and reply."""
SELECTIONS = 0.2
"""Share of the seeds in which a consumer group selects messages by an SQL92 expression."""
INVISIBLE_MS = (2_000, 6_000)
"""Shortest and longest time that popped messages are invisible."""


class Simulation(History):
    """A simulated cluster with fixed roles, its clients, faults and checks."""

    def __init__(self, seed: int) -> None:
        """Build everything; nothing runs yet."""
        super().__init__(seed)
        world = self.world
        self.plan = with_transactions(draw(world.random), Random(f"{seed}-transactions-plan"))
        timed = Random(f"timer-wheel-{seed}")
        has_timed = timed.random() < share_of(seed, TIMED)
        if has_timed:
            self.plan = replace(self.plan, base=with_timed(self.plan.base))
        self.plan = replace(self.plan, has_static_topic=has_static_topic(seed))
        if has_access(seed):
            self.plan = with_access(self.plan, has_secret=False)
        self.cluster = Cluster(world, self.network, self.plan)
        self.expected.has_bit_rot = self.cluster.has_bit_rot
        self.checks = ContinuousChecks(world, self.cluster, self.expected)
        self.expected.on_delivery = self.checks.given
        self.expected.on_stored = self.checks.acked
        members = {host.address: BrokerRef(host.group.name, host.broker_id) for host in self.cluster.hosts}
        self.context = ApplicationContext(
            world, self.expected, members, self.plan.name_servers, self.plan.route_poll_ms
        )
        self.prober = self._producer(0, binary=self.plan.binary)
        second = self._application() if "p1" in self.plan.applications else self._producer(1, binary=False)
        self.producers: list[SimProducer | ProducingApplication] = [self.prober, second]
        groups = [("G", "*"), ("G", "*"), *([("GT", "A || B")] if self.plan.tag_group else [])]
        self.consumers = [self._consumer(number, *group) for number, group in enumerate(groups)]
        nodes: list[RawClient | Application] = [*self.producers, *self.consumers]
        self.requesting: RequestingApplication | None = None
        self.transacting: TransactingApplication | None = None
        selections = self._add_applications(nodes, Random(f"{seed}-requests-and-filters"))
        if has_timed:
            producer = TimedProducer(
                world, self.expected, Random(timed.random()), self.plan.name_servers, self.plan.kinds
            )
            self.producers.append(producer)
            nodes.append(producer)
        cycles = Random(f"{seed}-topic-cycles")
        if cycles.random() < CYCLES:
            cycling = TopicCycles(world, self.expected, Random(cycles.random()), self.plan.name_servers)
            self.producers.append(cycling)
            nodes.append(cycling)
        if self.plan.has_static_topic:
            self.producers.append(self.add_static_topic(nodes, self.cluster, members, has_one_master=True))
        pop_checks = PopChecks(world, self.cluster, self.expected) if has_pops(seed) else None
        if pop_checks is not None:
            selections[POP_GROUP] = lambda _: True
            self.popping = [self._popping(pop_checks, number) for number in range(2)]
            nodes.extend(self.popping)
        names = (*dict(groups), *selections)
        self.final_checks = FinalChecks(world, self.cluster, self.expected, self.checks, names)
        self.final_checks.selections |= selections
        self.final_checks.pops = pop_checks
        self.add_searcher(nodes, self.cluster)
        self.add_entry_reader(nodes, self.cluster)
        if has_limits(seed):
            self.final_checks.limits, _ = self.add_limits(
                nodes, self.cluster, has_one_master=True, has_users=has_access(seed)
            )
            self.final_checks.limits.excuses = self.cluster.is_harmed
        if has_access(seed):
            self.final_checks.access, _ = self.add_access(nodes, self.cluster, has_one_master=True)
            self.final_checks.access.excuses = self.cluster.is_harmed
        self.clients = [ClientHost(world, self.network, client_ip(number), node) for number, node in enumerate(nodes)]
        ClientHost(world, self.network, MALFORMED_PEER_IP, MalformedPeer(self._new_random(), self.network))
        self.faults = Faults(world, self.network, self.cluster, self.clients)
        if is_beyond_tolerance(seed):
            self.checks.keep_safety_only()
            self.expected.on_stored = lambda _: None

    def _add_applications(
        self, nodes: list[RawClient | Application], random: Random
    ) -> dict[str, Callable[[SentMessage], bool]]:
        """Add the applications that ask, reply, select and send transactions; return the filters of their groups.

        A generator of their own keeps the histories of seeds without them as they are.
        """
        found: dict[str, Callable[[SentMessage], bool]] = {}
        if random.random() < REQUESTS:
            ips = [client_ip(len(nodes) + number) for number in range(2)]
            self.requesting = RequestingApplication(self.context, "asker", ips[0], Random(random.random()))
            nodes.append(self.requesting)
            nodes.append(responding(self.context, ips[1], Random(random.random()), self.plan.suspend_ms))
            found[REPLYING_GROUP] = is_request
        if random.random() < SELECTIONS:
            ip = client_ip(len(nodes))
            nodes.append(selecting(self.context, ip, Random(random.random()), self.plan.suspend_ms))
            found[SELECTING_GROUP] = selects
        if has_transactions(self.world.seed):
            random = Random(f"{self.world.seed}-transactions")
            ip = client_ip(len(nodes))
            self.transacting = TransactingApplication(self.context, "tx", ip, Random(random.random()))
            nodes.append(self.transacting)
        return found

    def _producer(self, number: int, *, binary: bool) -> SimProducer:
        plan = self.plan
        return SimProducer(
            self.world,
            self.expected,
            f"p{number}",
            self._new_random(),
            plan.name_servers,
            pace_ms=plan.pace_ms,
            kinds=plan.kinds,
            binary=binary,
        )

    def _application(self) -> ProducingApplication:
        plan = self.plan
        return ProducingApplication(
            self.context, "p1", client_ip(1), self._new_random(), pace_ms=plan.pace_ms, kinds=plan.kinds
        )

    def _consumer(self, number: int, group: str, expression: str) -> Consumer | ConsumingApplication:
        plan, name = self.plan, f"c{number}"
        if group in plan.applications:
            return ConsumingApplication(
                self.context,
                name,
                client_ip(2 + number),
                self._new_random(),
                group=group,
                expression=expression,
                orderly=plan.orderly and group != REJECTING_GROUP,
                suspend_ms=plan.suspend_ms,
            )
        return Consumer(
            self.world,
            self.expected,
            name,
            group,
            expression,
            self._new_random(),
            plan.name_servers,
            binary=plan.binary and number == 0,
            suspend_ms=plan.suspend_ms,
        )

    def _popping(self, checks: PopChecks, number: int) -> RawPopConsumer:
        name = f"pop{number}"
        return RawPopConsumer(
            self.world,
            self.expected,
            checks,
            name,
            Random(f"{self.world.seed}-{name}"),
            self.plan.name_servers,
            invisible_ms=INVISIBLE_MS,
        )

    # Running.

    def run(self) -> None:
        """See `History`."""
        world = self.world
        self.cluster.start()
        self.faults.plan(self.plan.fault_count, self.plan.faulty_us)
        world.run_until(self.plan.faulty_us)
        while world.faults.total() < FAULTS_MIN or len(self.expected.attempts) < SENDS_MIN:
            if world.faults.total() < FAULTS_MIN:
                self.faults.plan(2, world.now_us + 8 * SECOND)
            world.run_until(world.now_us + SECOND)
        if is_beyond_tolerance(world.seed):
            self.end_beyond_tolerance(self.faults)
            return
        self._settle()
        self.final_checks.judge()
        assert len(self.expected.attempts) >= SENDS_MIN, "a seed has as many sends"
        assert world.faults.total() >= FAULTS_MIN, "a seed has as many faults"
        assert world.now_us >= RUN_US_MIN, "a seed lasts as long"
        assert len(self.plan.groups) == GROUPS, "a seed has two groups of brokers"

    def _settle(self) -> None:
        world = self.world
        self.faults.end()
        end_us = world.now_us
        world.run_until(end_us + 3 * SECOND)
        self._probe(end_us + SETTLE_US)
        self._await_reply(end_us)
        self.await_moves(end_us, SETTLE_US, self._empty_stores)
        self.await_changes(end_us, SETTLE_US, self._empty_stores)
        # A half message that has fewer copies than configured is rolled back, and so is every one of such groups.
        has_copies = [group.role == "ASYNC_MASTER" or group.copies <= group.slaves + 1 for group in self.plan.groups]
        self.await_confirmed(self.transacting, end_us, SETTLE_US, can_be=any(has_copies))
        for producer in (*self.producers, *self.askers):
            producer.is_stopped = True
        for consumer in self.popping:
            consumer.is_hasty = True
        world.run_until(max(world.now_us, RUN_US_MIN))
        self._await_settled(end_us, SETTLE_US, self._empty_stores)

    def _await_reply(self, end_us: int) -> None:
        """Wait until a request that was made after the faults has its reply."""
        world, requesting = self.world, self.requesting
        while requesting is not None and requesting.replied_us < end_us:
            if world.now_us >= end_us + SETTLE_US:
                raise Violation("I20", f"no request has a reply {SETTLE_US // SECOND} s after the last fault")
            self._empty_stores()
            world.run_until(world.now_us + SECOND)
        if requesting is not None:
            requesting.is_stopped = True

    def _empty_stores(self) -> None:
        """Empty the store of a slave that cannot follow its master, as its log tells an operator to.

        A full disk made the master delete bytes that the slave lacks, or the slave delete bytes that the master then
        lost, so that the slave cannot be truncated to the point where their histories diverge.
        """
        for group in self.plan.groups if self.world.faults["disk-full"] else ():
            master, *slaves = self.cluster.members(group)
            for slave in slaves:
                if master.broker is None or slave.broker is None:
                    continue
                ours, its = master.broker.replication.generations, dict(slave.broker.replication.generations)
                parted = min([start for number, start in ours if number not in its], default=0)
                is_behind = 0 < slave.broker.store.log.written_end < master.broker.store.log.start
                if is_behind or 0 < parted < slave.broker.store.log.start:
                    self.world.consequence("operator", f"{slave.name}: its store is emptied, it was left behind")
                    slave.wipe()
                    slave.start()

    def _probe(self, until_us: int) -> None:
        """Send to each group until it answers with the status that its level promises."""
        world = self.world
        for group in self.plan.groups:
            best = 0 if group.role == "ASYNC_MASTER" or group.copies <= group.slaves + 1 else 11
            while True:
                self._empty_stores()
                attempt = self.prober.probe(group.name, self.cluster.master(group).address)
                self.clients[0].wake()
                world.run_until(world.now_us + SECOND)
                if attempt.code == best:
                    break
                if world.now_us >= until_us:
                    raise Violation(
                        "I14", f"{group.name} still answers {attempt.code} {SETTLE_US // SECOND} s after the last fault"
                    )

    def levels(self) -> list[str]:
        """Return the level of each group."""
        return [group.level for group in self.plan.groups]


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disable garbage collection while a world exists: it has many objects and little garbage.

    The world is collected at the end; objects that were there before it are not scanned for that.
    """
    was_on = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        gc.unfreeze()
        if was_on:
            gc.enable()


@contextmanager
def _coarse_timers() -> Iterator[None]:
    """Lengthen the check intervals of brokers and clients, which saves half of all turns."""
    before = delay.SCAN_MS, connections.DEADLINE_STEP_MS
    delay.SCAN_MS, connections.DEADLINE_STEP_MS = SCAN_MS, DEADLINE_STEP_MS
    try:
        yield
    finally:
        delay.SCAN_MS, connections.DEADLINE_STEP_MS = before


def run_seed(seed: int, history: IO[str] | None = None) -> Result:
    """Run one seed. `history`: file for its history, as `python -m judge` reads it."""
    with _coarse_timers(), _uncollected():
        return _run(seed, history)


def _run(seed: int, history: IO[str] | None) -> Result:
    """Run one seed in a world that can be collected as garbage after the return."""
    simulation = GroupSimulation(seed) if has_registry(seed) else Simulation(seed)
    found = None
    try:
        simulation.run()
    except Violation as violation:
        found = None if simulation.is_excused(violation) else violation
    if history is not None:
        Export(simulation, simulation.cluster).write(history)
    return simulation.result(found)


@contextmanager
def quiet() -> Iterator[None]:
    """Disable logging, which would take longer than the run itself."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
