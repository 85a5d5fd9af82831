"""Clusters whose groups have a registry: the plan drawn from a seed, and hosts with registry sessions.

The registry is the one of the first name server with its journal, or an ideal ZooKeeper (`simulated_registry`). Group
configurations are in the registry before any broker starts, as an administrator's tool would put them there.
"""

from dataclasses import dataclass, fields, replace
from random import Random
from typing import NamedTuple

from lab.sim.world.cluster import Cluster, Host
from lab.sim.world.disk import SimDisk
from lab.sim.world.network import Network
from lab.sim.world.plan import CLUSTER, GroupPlan, Plan, draw
from lab.sim.world.process import Process
from lab.sim.world.simulated_registry import REGISTRY_IP, SimRegistry
from lab.sim.world.world import SECOND, World
from tandemq.broker.node import Broker
from tandemq.codec.proofs import Keyring
from tandemq.config.settings import BrokerConfig, NameServerConfig
from tandemq.coordination.member.orders import MemberStage
from tandemq.coordination.registry.interface import Create, NodeFound, Read
from tandemq.coordination.registry.records import (
    BrokerPermission,
    CopiedOffsets,
    GroupConfig,
    GroupMember,
    GroupState,
    Mode,
    Role,
    check_config,
    config_path,
    config_to_json,
    offsets_from_node,
    offsets_path,
    state_from_json,
    state_path,
)
from tandemq.coordination.registry.tree import Change, Tree
from tandemq.nameserver.registry_journal import JOURNAL, SNAPSHOT, Journal
from tandemq.registry import NAME_SERVER, ZOOKEEPER

SESSION_MS = 2_000
SHORT_SESSIONS_MS = (300, 500, 1_000)
SHORT_SESSIONS = 0.2
"""Share of the seeds with a session of one of these timeouts."""
DRIFT_PPM = 15_000
"""Maximum clock drift of a machine in either direction, ppm."""

SECRETS = 0.25
"""Share of the seeds in which members have a secret."""
STATIC_TOPICS = 0.3
"""Share of the seeds with a static topic, among the seeds without a `slave-consume` group."""
SLAVE_READS = 1 / 3
"""Share of the seeds in which slaves deliver old messages."""


FILES = (SNAPSHOT, JOURNAL)
"""Beginnings of the names of a name server's registry files."""


class RegistryCopy(NamedTuple):
    """A backup of the registry: of an ideal ZooKeeper its nodes and sessions, of a name server its files."""

    nodes: list[Change]
    files: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class ManagedGroup(GroupPlan):
    """A broker group with a registry."""

    mode: Mode
    min_in_sync: int = 1
    uneven: bool = False
    """Whether one member has a higher priority in elections."""
    master: int = 0
    """Broker id of the configured master."""
    unclean_hand_back_ms: int = 0
    """In slave-consume: see the setting."""

    def config(self) -> GroupConfig:
        """Return the configuration that its administrator wrote."""
        members = tuple(
            GroupMember(
                broker_id,
                Role.MASTER if broker_id == self.master else Role.SLAVE,
                BrokerPermission.FULL,
                priority=int(self.uneven and broker_id == self.slaves),
            )
            for broker_id in range(self.slaves + 1)
        )
        return check_config(self.name, GroupConfig(self.mode, members))


def mode_of(group: GroupPlan) -> Mode:
    """Return the mode that a group was configured with."""
    return group.mode if isinstance(group, ManagedGroup) else Mode.STATIC


@dataclass(frozen=True, slots=True)
class GroupsPlan(Plan):
    """One seed's cluster. `registry`: its kind.

    `secret`: shared secret of the members and the name server's registry; empty: no authentication. `session_ms`:
    session timeout that brokers request.
    """

    registry: str
    secret: bytes = b""
    session_ms: int = SESSION_MS

    @property
    def registry_address(self) -> str:
        """Return the address as in a broker's settings."""
        if self.registry == NAME_SERVER:
            return f"{NAME_SERVER}://{self.name_servers[0]}"
        return f"{ZOOKEEPER}://{REGISTRY_IP}:2181"

    def config(self, group: GroupPlan, broker_id: int) -> BrokerConfig:
        """Return the settings of one member."""
        base = Plan.config(self, group, broker_id)
        assert isinstance(group, ManagedGroup), "all groups here have a registry"
        if group.mode is Mode.SLAVE_CONSUME:  # the settings need not say who is the master
            base = replace(
                base,
                role="ASYNC_MASTER" if group.role == "ASYNC_MASTER" else "",
                unclean_hand_back_ms=group.unclean_hand_back_ms,
            )
        return replace(
            base,
            registry_address=self.registry_address,
            registry_session_ms=self.session_ms,
            min_in_sync=group.min_in_sync,
            lag_ms_max=5_000,
        )

    @property
    def name_server_config(self) -> NameServerConfig:
        """Return the settings of the name servers; only the first one's registry is used."""
        return replace(super(GroupsPlan, self).name_server_config, registry_enable=self.registry == NAME_SERVER)


def draw_groups(random: Random) -> GroupsPlan:
    """Draw a plan: one group or, in a quarter of the seeds, two."""
    plan = draw(random)
    groups = []
    for group in plan.groups[: 1 + (random.random() < 0.25)]:
        mode = random.choice((Mode.ELECT,) * 5 + (Mode.SLAVE_CONSUME,) * 4 + (Mode.STATIC,))
        slaves = 1 if mode is Mode.SLAVE_CONSUME else random.choice((1, 1, 2))
        copies = random.choice((1, 2, slaves + 1)) if mode is Mode.ELECT else min(group.copies, slaves + 1)
        groups.append(
            ManagedGroup(
                group.number,
                group.name,
                group.role,
                group.flush,
                slaves,
                copies,
                mode,
                random.choice((1, 1, 2)) if mode is Mode.ELECT else 1,
                random.random() < 0.5,
            )
        )
    same = {item.name: getattr(plan, item.name) for item in fields(Plan)}
    same |= {
        "groups": tuple(groups),
        "pace_ms": random.choice((500, 900)),
        "suspend_ms": random.choice((1_500, 4_000)),
        "faulty_us": random.randrange(20, 34) * SECOND,
        "fault_count": random.randrange(3, 10),
        "base": replace(plan.base, segment_bytes=random.choice((32, 64)) * 1024),
    }
    return GroupsPlan(**same, registry=random.choice((NAME_SERVER, ZOOKEEPER)))


def with_secret(plan: GroupsPlan, random: Random) -> GroupsPlan:
    """Return the plan, in some seeds with a secret. Its own generator keeps seeds without a secret as they are."""
    return replace(plan, secret=random.randbytes(32)) if random.random() < SECRETS else plan


def with_session(plan: GroupsPlan, random: Random) -> GroupsPlan:
    """Return the plan, in some seeds with a short session. Its own generator keeps the other seeds as they are."""
    return replace(plan, session_ms=random.choice(SHORT_SESSIONS_MS)) if random.random() < SHORT_SESSIONS else plan


def with_roles(plan: GroupsPlan, random: Random) -> GroupsPlan:
    """Return the plan with up to three slaves in slave-consume groups, and masters with any id. Its own generator keeps
    seeds without such groups as they are."""
    groups = []
    for group in plan.groups:
        assert isinstance(group, ManagedGroup), "all groups here have a registry"
        if group.mode is Mode.SLAVE_CONSUME:
            slaves = random.choice((1, 1, 2, 3))
            group = replace(
                group,
                slaves=slaves,
                master=random.choice((0, random.randrange(slaves + 1))),
                unclean_hand_back_ms=random.choice((0, 2_000, 5_000, 30_000)),
            )
        groups.append(group)
    return replace(plan, groups=tuple(groups))


def with_slave_reads(plan: GroupsPlan, random: Random) -> GroupsPlan:
    """Return the plan, in a third of the seeds with slaves that deliver old messages. Its own generator keeps the other
    seeds as they are."""
    if random.random() > SLAVE_READS:
        return plan
    base = replace(plan.base, slave_read_enable=True, memory_ratio_max=random.choice((0, 20)))
    return replace(plan, base=base, memory_bytes=40_000)


def with_static_topic(plan: GroupsPlan, random: Random) -> GroupsPlan:
    """Return the plan, in some seeds with a static topic. A separate generator keeps other draws unchanged."""
    return replace(plan, has_static_topic=random.random() < STATIC_TOPICS)


class GroupCluster(Cluster):
    """Hosts, name servers and a registry."""

    def __init__(self, world: World, network: Network, plan: GroupsPlan) -> None:
        """A cluster in which nothing runs yet; the registry has the groups' configurations."""
        super().__init__(world, network, plan)
        self.groups_plan = plan
        self.registry = SimRegistry(world, network)
        self._fill_registry()
        for host in self.hosts:
            host.machine.drift_ppm = world.random.randrange(-DRIFT_PPM, DRIFT_PPM)

    def _fill_registry(self) -> None:
        if self.groups_plan.registry == NAME_SERVER:
            journal = Journal(self.name_server_machine(self.plan.name_servers[0]).disk)
            tree = journal.load()
            self._configure(tree, tree.open_session(1_000, "operator", self.registry.clock_ms))
            journal.write(tree.take_changes()).datasync()
            journal.close()
        else:
            self._configure(self.registry.tree, self.registry.operator)

    def lose_registry(self) -> None:
        """Lose the registry's data; operators restore the configurations. A name server must be started again."""
        if self.groups_plan.registry == NAME_SERVER:
            address = self.plan.name_servers[0]
            self.kill_name_server(address)
            self.name_server_machine(address).disk = SimDisk(Random(self.world.now_us))
        else:
            self.registry.lose()
        self._fill_registry()

    def copy_registry(self) -> RegistryCopy:
        """Back up the registry's data while it runs."""
        if self.groups_plan.registry == ZOOKEEPER:
            return RegistryCopy(self.registry.tree.snapshot(), {})
        disk = self.name_server_machine(self.plan.name_servers[0]).disk
        return RegistryCopy([], {name: disk.read(name) or b"" for name in disk.list("") if name.startswith(FILES)})

    def restore_registry(self, copy: RegistryCopy) -> None:
        """Replace the registry's data by an older copy. A name server must be started again."""
        if self.groups_plan.registry == ZOOKEEPER:
            self.registry.restore(copy.nodes)
            return
        address = self.plan.name_servers[0]
        self.kill_name_server(address)
        machine = self.name_server_machine(address)
        machine.disk = SimDisk(Random(self.world.now_us))
        for name, data in copy.files.items():
            machine.disk.replace(name, data)

    def record_in(self, copy: RegistryCopy, group: GroupPlan) -> GroupState | None:
        """Return a group's record in a copy of the registry's data; None if it has none."""
        data = self._data_in(copy, state_path(CLUSTER, group.name))
        return None if data is None else state_from_json(group.name, data)

    def copied_offsets(self, group: GroupPlan) -> CopiedOffsets | None:
        """Return the offsets that a reader has copied to the registry; None if there are none."""
        data = self._data_in(self.copy_registry(), offsets_path(CLUSTER, group.name))
        return None if data is None else offsets_from_node(data)

    def _data_in(self, copy: RegistryCopy, path: str) -> bytes | None:
        tree = Tree()
        tree.restore(copy.nodes)
        if copy.files:
            disk = SimDisk(Random(0))
            for name, data in copy.files.items():
                disk.replace(name, data)
            tree = Journal(disk).load()
        reader = tree.open_session(1_000, "reader", 0)
        found = tree.execute(reader, Read(path))
        return found.data if isinstance(found, NodeFound) else None

    def _configure(self, tree: Tree, session: int) -> None:
        for group in self.plan.groups:
            assert isinstance(group, ManagedGroup), "all groups here have a registry"
            tree.execute(session, Create(config_path(CLUSTER, group.name), config_to_json(group.config())))

    def prepare(self, host: Host, process: Process) -> None:
        """Open a registry session for the process, unless the name server hosts the registry."""
        if self.groups_plan.registry == ZOOKEEPER:
            client = f"{host.name}-{self.world.now_us}"
            process.registry = self.registry.open(process, client, self.groups_plan.session_ms).ask

    def keyring(self, name: str) -> Keyring | None:
        """See `Cluster`."""
        secret = self.groups_plan.secret
        return Keyring(lambda: (secret,), Random(f"{self.world.seed}-{name}-{self.world.now_us}")) if secret else None

    def leader(self, group: GroupPlan) -> Host | None:
        """Return the active member, or at least the leader; None without one."""
        if mode_of(group) is Mode.STATIC:
            return super().members(group)[0]
        found = [
            (epoch_of(host.broker), stage_of(host) in (MemberStage.SERVING, MemberStage.HANDING), -host.broker_id, host)
            for host in self.hosts
            if host.group is group and host.broker is not None and host.broker.is_master
        ]
        return max(found)[3] if found else None

    def members(self, group: GroupPlan) -> list[Host]:
        """Return the hosts of a group, its leader first."""
        leader = self.leader(group)
        found = super().members(group)
        return found if leader is None else [leader, *(host for host in found if host is not leader)]


def epoch_of(broker: Broker) -> int:
    """Return the epoch that a broker acts by; 0: none yet."""
    return 0 if broker.failover is None else broker.failover.epoch


def stage_of(host: Host) -> MemberStage | None:
    """Return the stage of a host's member; None if it is down or has none."""
    broker = host.broker
    return None if broker is None or broker.failover is None else broker.failover.member.stage


def state_of(host: Host) -> GroupState | None:
    """Return the group's record as a host knows it."""
    broker = host.broker
    return None if broker is None or broker.failover is None else broker.failover.member.view.state
