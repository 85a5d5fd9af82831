"""The plan of one seed: roles, durability levels, settings and workload.

Sizes are small, so that segments roll, queue files fill, timeouts pass and limits are reached within a minute.
"""

from dataclasses import dataclass, replace
from random import Random
from typing import TypeVar

from lab.samples import tiny, tiny_name_server
from tandemq.config.settings import BrokerConfig, NameServerConfig

CLUSTER = "Sim"
BROKER_PORT, FAST_PORT, HA_PORT, NAME_SERVER_PORT = 10911, 10909, 10912, 9876
MALFORMED_PEER_IP = "10.0.8.91"
DELAYS = "1s 2s 5s 10s"
APPLICATIONS = (("p1", 0.7), ("G", 0.6), ("GT", 0.6))
"""Simulated clients that an application on the real client may replace, with the share of seeds in which it does."""
STATIC_TOPICS = 0.2
"""Share of the seeds with a static topic."""
POPS = 0.2
"""Share of the seeds with a group that pops."""
ACCESS, LIMITS = 0.8, 0.8
"""Share of the seeds with access control, and with limits, among those whose last two digits are at least `NEWEST`.

The others, many of which tests name, are what they were before these came.
"""
NEWEST = 83
GROUP_SEEDS = 1_000_000
"""Seeds from here on have groups with a registry, up to `STORAGE_SEEDS`."""
STORAGE_SEEDS, STORAGE_GROUP_SEEDS = 5_000_000, 6_000_000
"""Seeds from here on have faults of storage: with fixed roles, and with a registry."""
BEYOND = 0.3
"""Share of them whose faults exceed what a group tolerates."""
COMBINED = 0.6
"""Share of them with transactions, timed messages and pops, each."""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One broker group. `copies`: inSyncReplicas of a SYNC_MASTER, its own copy included."""

    number: int
    name: str
    role: str
    flush: str
    """The setting flushDiskType."""
    slaves: int
    copies: int

    @property
    def level(self) -> str:
        """Return the durability level of an acknowledged message: L0 none, L1 on disk, L2 on a slave, L3 on both."""
        return f"L{(self.flush == 'SYNC_FLUSH') + 2 * (self.role == 'SYNC_MASTER')}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The cluster of one seed, its workload and its faults."""

    groups: tuple[GroupPlan, ...]
    name_servers: tuple[str, ...]
    base: BrokerConfig
    pace_ms: int
    """Mean time between messages of a producer."""
    kinds: frozenset[str]
    """Kinds of messages besides plain ones: see `draw`."""
    binary: bool
    """Whether the first producer and consumer send binary headers."""
    suspend_ms: int
    """How long the broker may hold a pull."""
    tag_group: bool
    """Whether the consumer group `GT` runs, which subscribes to two tags."""
    applications: frozenset[str]
    """Of producer `p1` and consumer groups `G` and `GT`, those that are applications on the real client."""
    orderly: bool
    route_poll_ms: int
    faulty_us: int
    """Simulated time in which faults happen."""
    fault_count: int
    memory_bytes: int
    """Memory of each broker's machine."""
    has_static_topic: bool

    def config(self, group: GroupPlan, broker_id: int) -> BrokerConfig:
        """Return the settings of one member."""
        ip = broker_ip(group.number, broker_id)
        return replace(
            self.base,
            broker_name=group.name,
            broker_id=broker_id,
            role="SLAVE" if broker_id else group.role,
            flush_type=group.flush,
            in_sync_replicas=group.copies,
            advertised_ip=ip,
            ha_advertised_ip=ip,
        )

    @property
    def name_server_config(self) -> NameServerConfig:
        """Return the settings of the name servers."""
        return replace(
            tiny_name_server(), listen_port=NAME_SERVER_PORT, broker_expiry_ms=30_000, connection_idle_ms=30_000
        )


def broker_ip(group: int, broker_id: int) -> str:
    """Return the address of a member's machine."""
    return f"10.0.{group}.{broker_id + 1}"


def client_ip(number: int) -> str:
    """Return the address of a client's machine."""
    return f"10.0.8.{number + 1}"


def draw(random: Random) -> Plan:
    """Return a random plan."""
    groups = []
    for number, name in enumerate(("broker-a", "broker-b"), start=1):
        slaves = 2 if random.random() < 0.25 else 1
        copies = random.randrange(2, slaves + 2) if random.random() < 0.9 else slaves + 2
        groups.append(
            GroupPlan(
                number,
                name,
                random.choice(("SYNC_MASTER", "SYNC_MASTER", "ASYNC_MASTER")),
                random.choice(("SYNC_FLUSH", "ASYNC_FLUSH")),
                slaves,
                copies,
            )
        )
    name_servers = tuple(f"10.0.9.{number}:{NAME_SERVER_PORT}" for number in range(1, random.choice((2, 2, 3))))
    base = tiny(
        cluster=CLUSTER,
        listen_port=BROKER_PORT,
        ha_port=HA_PORT,
        name_servers=name_servers,
        register_ms=10_000,
        register_timeout_ms=1_500,
        connection_idle_ms=20_000,
        default_queue_nums=4,
        segment_bytes=random.choice((16, 32)) * 1024,
        queue_file_bytes=20 * random.choice((7, 30, 100)),
        message_bytes_max=4 * 1024,
        property_filter_enable=True,
        sync_flush_timeout_ms=1_500,
        flush_interval_ms=random.choice((1_000, 2_000)),
        queue_flush_interval_ms=random.choice((2_000, 5_000)),
        offsets_persist_ms=2_000,
        delay_persist_ms=2_000,
        ha_heartbeat_ms=2_500,
        ha_housekeeping_ms=6_000,
        ha_reconnect_ms=1_000,
        slave_timeout_ms=1_000,
        ha_lag_bytes_max=random.choice((8 * 1024, 1 << 20)),
        accept_loss_ms=6_000,
        metadata_sync_ms=random.choice((4_000, 9_000)),
        ha_protocol=random.choice(("auto", "tandemq")),
        slave_read_enable=random.random() < 0.5,
        delay_levels=DELAYS,
        client_expiry_ms=20_000,
        clean_interval_ms=5_000,
        scrub_bytes_per_second=1 << 20,
        scrub_interval_ms=20_000,
        disk_used_ratio_max=75,
        disk_force_ratio=0.85,
        disk_full_ratio=0.90,
    )
    kinds = frozenset(kind for kind in ("batch", "oneway", "nowait", "delay", "reject") if random.random() < 0.8)
    return Plan(
        tuple(groups),
        name_servers,
        base,
        pace_ms=random.choice((1_350, 1_600) if "batch" in kinds else (1_900, 2_200)),
        kinds=kinds,
        binary=random.random() < 0.2,
        suspend_ms=random.choice((4_000, 8_000)),
        tag_group=random.random() < 0.3,
        applications=frozenset(name for name, rate in APPLICATIONS if random.random() < rate),
        orderly=random.random() < 0.5,
        route_poll_ms=random.choice((10_000, 30_000)),
        faulty_us=random.randrange(42, 50) * 1_000_000,
        fault_count=random.randrange(3, 9),
        memory_bytes=random.choice((1 << 30, 40_000)),
        has_static_topic=False,
    )


def has_transactions(seed: int) -> bool:
    """Return whether an application sends transactions: in two of ten seeds. Nothing is drawn for it."""
    if has_storage_faults(seed):
        return Random(f"{seed}-has-transactions").random() < COMBINED
    return seed % 10 in (7, 8)


def has_static_topic(seed: int) -> bool:
    """Return whether a seed has a static topic. It has its own generator: the other draws are the same."""
    return Random(f"{seed}-static-topic").random() < STATIC_TOPICS and not is_beyond_tolerance(seed)


def has_pops(seed: int) -> bool:
    """Return whether a seed has a group that pops. It has its own generator, too."""
    return Random(f"{seed}-pops").random() < share_of(seed, POPS) and not is_beyond_tolerance(seed)


def has_access(seed: int) -> bool:
    """Return whether a seed has access control: one of seven has."""
    is_of_them = seed % 100 >= NEWEST and not is_beyond_tolerance(seed)
    return is_of_them and Random(f"{seed}-access").random() < ACCESS


def has_limits(seed: int) -> bool:
    """Return whether a seed has limits of users, topics and groups: one of seven has."""
    is_of_them = seed % 100 >= NEWEST and not is_beyond_tolerance(seed)
    return is_of_them and Random(f"{seed}-limits").random() < LIMITS


def has_storage_faults(seed: int) -> bool:
    """Return whether devices and files fail unnoticed: in all seeds from `STORAGE_SEEDS` on."""
    return seed >= STORAGE_SEEDS


def is_beyond_tolerance(seed: int) -> bool:
    """Return whether faults exceed what a group tolerates, so that only safety is checked."""
    return has_storage_faults(seed) and Random(f"{seed}-tolerance").random() < BEYOND


def has_registry(seed: int) -> bool:
    """Return whether the groups of a seed have a registry."""
    return GROUP_SEEDS <= seed < STORAGE_SEEDS or seed >= STORAGE_GROUP_SEEDS


def share_of(seed: int, usual: float) -> float:
    """Return the share of the seeds that have a feature; most of those with storage faults have it."""
    return COMBINED if has_storage_faults(seed) else usual


_SomePlan = TypeVar("_SomePlan", bound=Plan)


def with_transactions(plan: _SomePlan, random: Random) -> _SomePlan:
    """Return the plan with settings of transactions. `random`: not the plan's, so that the other draws are the same."""
    base = replace(
        plan.base,
        transaction_timeout_ms=random.choice((500, 2_000)),
        transaction_check_interval_ms=random.choice((1_500, 3_000)),
        transaction_checks_max=random.choice((1_000, 1_000, 1_000, 2)),
        transactions_max=random.choice((1_000_000, 1_000_000, 12)),
    )
    return replace(plan, base=base)
