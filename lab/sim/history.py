"""The part that simulations of both kinds of groups share: world, expected state, waiting until all has settled.

Does not know: clients, faults and checkers of a kind.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from random import Random

from lab.sim.checkers.access import AccessChecks, ExpectedEntry, UserState
from lab.sim.checkers.always import ContinuousChecks
from lab.sim.checkers.final import FinalChecks
from lab.sim.checkers.limits import LimitChecks
from lab.sim.checkers.logical_queues import QUEUES, LogicalQueues
from lab.sim.checkers.model import BrokerRef, ExpectedState
from lab.sim.faults.cluster import Faults
from lab.sim.result import Result
from lab.sim.workload.access_administrator import AccessAdministrator
from lab.sim.workload.access_clients import AccessClient
from lab.sim.workload.application import Application
from lab.sim.workload.entry_reader import SHARE as ENTRY_READS
from lab.sim.workload.entry_reader import EntryReader
from lab.sim.workload.limited_clients import LimitAdministrator, PoppingTooMuch, PullingTooMuch, SendingTooMuch
from lab.sim.workload.logical_clients import LogicalConsumer, LogicalProducer
from lab.sim.workload.pop_consumer import RawPopConsumer
from lab.sim.workload.producer import SimProducer
from lab.sim.workload.raw_client import RawClient
from lab.sim.workload.searcher import SHARE as SEARCHES
from lab.sim.workload.searcher import Searcher
from lab.sim.workload.static_topic_administrator import StaticTopicAdministrator
from lab.sim.workload.stepping_client import SteppingClient
from lab.sim.workload.transaction_applications import TransactingApplication
from lab.sim.world.access import ADMIN, APPLICATION, BUSY, FIRST, write_users
from lab.sim.world.cluster import Cluster
from lab.sim.world.network import Network, SimConnection
from lab.sim.world.plan import MALFORMED_PEER_IP
from lab.sim.world.world import MS, SECOND, Violation, World
from tandemq.boundary import LinkKind
from tandemq.codec.remoting.frame import FrameDecoder, decode_command
from tandemq.model.access import Credentials

AFTERMATH_US = 40 * SECOND
"""Time after the last fault in seeds whose faults exceed what a group tolerates."""
LOOK_US = 500 * MS
"""Interval of the checks whether the cluster has settled."""


class History(ABC):
    """The run of one seed."""

    cluster: Cluster
    checks: ContinuousChecks
    final_checks: FinalChecks

    def __init__(self, seed: int) -> None:
        """A world in which nothing has happened."""
        self.world = World(seed)
        self.network = Network(self.world)
        self.network.tap = self._count_requests
        self.expected = ExpectedState()
        self.moving: StaticTopicAdministrator | None = None
        self.logical: LogicalProducer | None = None
        """The administrator of the static topic, and its producer, if there is one."""
        self.popping: list[RawPopConsumer] = []
        """The members of the group that pops, if there is one."""
        self.administrators: list[SteppingClient] = []
        """Those of users and limits, if there are any."""
        self._users: dict[str, Credentials] = {}
        """Name of a client to the user as which it signs, if it is another one than that of applications."""
        self.is_settled = False
        """Whether the faults are over, and everything works and is consumed again."""
        self.askers: list[SimProducer] = []
        """Clients of users whose rights change, and those that exceed limits."""

    @abstractmethod
    def run(self) -> None:
        """Run to the end.

        Raises:
            Violation: an invariant does not hold.
        """

    def end_beyond_tolerance(self, faults: Faults) -> None:
        """End the faults and go on for a while: what was lost stays so, and nothing wrong may come of it.

        Raises:
            Violation: a rule of safety does not hold.
        """
        faults.end()
        self.world.run_until(self.world.now_us + AFTERMATH_US)
        self.final_checks.judge_safety()

    def is_excused(self, violation: Violation) -> bool:
        """Return whether a cluster rightly does not work again: a group has fewer good copies than it tolerates."""
        if violation.rule != "I14" or not any(map(self.cluster.is_beyond_tolerance, self.cluster.plan.groups)):
            return False
        self.world.fold("beyond tolerance")
        try:
            self.final_checks.judge_safety()
        except Violation:
            return False
        return True

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
        self.is_settled = True

    def await_confirmed(
        self,
        transacting: TransactingApplication | None,
        end_us: int,
        within_us: int,
        help_out: Callable[[], None] = lambda: None,
        *,
        can_be: bool = True,
    ) -> None:
        """Run until the end of a transaction is confirmed that was made after the faults, then stop making them.

        Args:
            transacting: the application that makes them, if there is one.
            end_us: when the faults ended.
            within_us: time limit after that.
            help_out: actions of operators, called at each check.
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
            help_out()
            self.world.run_until(self.world.now_us + LOOK_US)
        transacting.is_stopped = transacting.is_hasty = True

    def add_static_topic(
        self,
        nodes: list[RawClient | Application],
        cluster: Cluster,
        brokers: dict[str, BrokerRef],
        *,
        has_one_master: bool,
    ) -> LogicalProducer:
        """Add the clients of a static topic, and the administrator who moves its queues; return the producer.

        A generator of their own keeps the histories of seeds without them as they are.
        """
        random, world, plan = Random(f"{self.world.seed}-static-topic-clients"), self.world, cluster.plan
        groups = {group.name: group for group in plan.groups}

        def master_of(name: str) -> str:
            return cluster.master(groups[name]).address

        queues = LogicalQueues(world, cluster, self.expected, has_one_master=has_one_master)
        self.checks.logical = queues
        producer = LogicalProducer(world, self.expected, Random(random.random()), plan.name_servers, plan.kinds)
        consumer = LogicalConsumer(
            world,
            self.expected,
            queues,
            brokers,
            master_of,
            Random(random.random()),
            plan.name_servers,
            suspend_ms=plan.suspend_ms,
        )
        self.logical = producer
        self.moving = StaticTopicAdministrator(world, queues, list(groups), master_of, Random(random.random()))
        nodes.extend((producer, consumer, self.moving))
        return producer

    def add_access(
        self, nodes: list[RawClient | Application], cluster: Cluster, *, has_one_master: bool
    ) -> tuple[AccessChecks, AccessAdministrator]:
        """Have all clients sign, and add those of users whose rights change, and the administrator who changes them.

        Generators of their own keep the histories of seeds without them as they are.
        """
        seed, world = self.world.seed, self.world
        groups = [group.name for group in cluster.plan.groups]
        write_users(cluster)
        checks = AccessChecks(world, cluster, has_one_master=has_one_master)
        everything = UserState(FIRST.secret_key).with_entries(
            ExpectedEntry(resource, ("All",), is_allowed=True) for resource in ("Topic:*", "Group:*")
        )
        members: dict[str, list[str]] = {}
        for host in cluster.hosts:
            checks.known(host.group.name, FIRST.access_key, everything)
            if host.broker_id == 0 or not has_one_master:
                members.setdefault(host.group.name, []).append(host.address)
        for node in nodes:
            node.sign_as(self._users.get(node.name, APPLICATION))

        master_of = partial(self._master_of, cluster)
        administrator = AccessAdministrator(world, checks, groups, master_of, Random(f"{seed}-access-admin"))
        self.administrators.append(administrator)
        clients = [
            AccessClient(world, self.expected, checks, name, Random(f"{seed}-{name}"), master_of, members)
            for name in ("s0", "s1")
        ]
        self.askers += clients
        nodes.extend((*clients, administrator))
        return checks, administrator

    def add_limits(
        self, nodes: list[RawClient | Application], cluster: Cluster, *, has_one_master: bool, has_users: bool
    ) -> tuple[LimitChecks, LimitAdministrator]:
        """Add the clients of limits, and the administrator who changes them."""
        seed, world = self.world.seed, self.world
        groups = [group.name for group in cluster.plan.groups]
        checks = LimitChecks(world, cluster, has_one_master=has_one_master)
        master_of = partial(self._master_of, cluster)
        administrator = LimitAdministrator(
            world, checks, groups, master_of, Random(f"{seed}-limit-admin"), has_users=has_users
        )
        sending = SendingTooMuch(
            world, self.expected, checks, Random(f"{seed}-l0"), groups, master_of, has_user=has_users
        )
        pulling = PullingTooMuch(world, checks, "l1", Random(f"{seed}-l1"), groups, master_of)
        popping = PoppingTooMuch(world, checks, "l2", Random(f"{seed}-l2"), groups, master_of)
        self._users |= {administrator.name: ADMIN, sending.name: BUSY}
        self.administrators.append(administrator)
        self.askers.append(sending)
        nodes.extend((sending, pulling, popping, administrator))
        return checks, administrator

    def add_searcher(self, nodes: list[RawClient | Application], cluster: Cluster) -> None:
        """Add a client that looks for messages, in a share of the seeds."""
        random = Random(f"{self.world.seed}-searcher")
        if random.random() < SEARCHES:
            master_of = partial(self._master_of, cluster)
            nodes.append(Searcher(self.world, self.expected, Random(random.random()), master_of))

    def add_entry_reader(self, nodes: list[RawClient | Application], cluster: Cluster) -> None:
        """Add a client that reads queue entries, in a share of the seeds."""
        random = Random(f"{self.world.seed}-entry-reader")
        if random.random() < ENTRY_READS:
            groups = [group.name for group in cluster.plan.groups]
            master_of = partial(self._master_of, cluster)
            nodes.append(EntryReader(self.world, self.expected, Random(random.random()), groups, master_of))

    def _master_of(self, cluster: Cluster, name: str) -> str:
        """Return the address of a group's master at this moment."""
        group = next(group for group in cluster.plan.groups if group.name == name)
        return cluster.members(group)[0].address

    def await_changes(self, end_us: int, within_us: int, help_out: Callable[[], None]) -> None:
        """Run until no change of users or limits is in progress; none begins from then on.

        Raises:
            Violation: I14, that is not so `within_us` after the faults' end.
        """
        for administrator in self.administrators:
            administrator.is_stopped = True
            while not administrator.is_idle:
                if self.world.now_us >= end_us + within_us:
                    raise Violation("I14", f"{administrator.name} cannot change anything {within_us // SECOND} s after")
                help_out()
                self.world.run_until(self.world.now_us + LOOK_US)

    def await_moves(self, end_us: int, within_us: int, help_out: Callable[[], None]) -> None:
        """Run until no logical queue moves, and each has taken a message since the faults; none moves from then on.

        Raises:
            Violation: I14, that is not so `within_us` after the faults' end.
        """
        world, moving, logical, queues = self.world, self.moving, self.logical, self.checks.logical
        if moving is None or logical is None or queues is None:
            return
        moving.is_stopped = True
        while not queues.was_forced():
            if moving.is_idle and all(logical.has_placed(number, end_us) for number in range(QUEUES)):
                return
            if world.now_us >= end_us + within_us:
                raise Violation("I14", f"the static topic is not complete {within_us // SECOND} s after the last fault")
            help_out()
            world.run_until(world.now_us + SECOND)

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
