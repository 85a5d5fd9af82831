"""Faults drawn from the seed, spread over the first part of a run, and undone before the second.

    network   cut, half-open, black hole, one-way stall, partition, isolation, slow links, split chunks, flipped bits
    machines  pause (SIGSTOP), kill, kill at a chosen disk call, power loss (alone, both, at a chosen disk call),
              clock jump, slave's disk lost
    clients   connections cut; applications killed or stopped, and started again
    disks     slow, full, failing writes, failing syncs, failing reads, bits flipped at rest; tables that are missing,
              empty, zeroed, cut, another one's or an older one

Processes that are down come back after a random time. Every fault is survivable with fixed roles: bits are flipped on
one member of a group only, in log files that all others have already, never in queues or in the index, whose entries
carry no checksum.
"""

from collections.abc import Callable
from functools import partial
from random import Random

from lab.sim.faults.storage import StorageFaults
from lab.sim.workload.host import ClientHost
from lab.sim.world.cluster import Cluster, Host
from lab.sim.world.network import Network, SimConnection
from lab.sim.world.plan import has_storage_faults, is_beyond_tolerance
from lab.sim.world.world import MS, SECOND, World
from tandemq.boundary import LinkKind
from tandemq.errors import DiskFailed

FULL_FREE_BYTES = 16 * 1024
SYNC_US_MAX = 2_500_000
"""Maximum duration of a sync on a slow disk."""
MAPPING_FILES = ("config/topics.json", "config/topicQueueMapping.json")
ACCESS_FILES = ("config/accessControl.json", "config/quotas.json")
RARE = 0.25
"""Share of the seeds with one more fault of a newer kind; its own generator keeps all others as they are."""


class Faults:
    """The faults of one seed."""

    def __init__(self, world: World, network: Network, cluster: Cluster, clients: list[ClientHost]) -> None:
        """No faults yet."""
        self._world = world
        self._network = network
        self._cluster = cluster
        self._clients = clients
        self._random = Random(f"{world.seed}-faults")
        self.is_over = False
        self._flipped: dict[str, Host] = {}
        self._kinds: list[tuple[int, Callable[[], None]]] = [
            (6, self._cut),
            (3, self._half_open),
            (3, self._black_hole),
            (4, self._stall),
            (4, self._partition),
            (2, self._isolate),
            (2, self._slow_links),
            (4, self._flip_in_flight),
            (4, self._pause),
            (7, self._kill),
            (3, self._kill_both),
            (2, self._kill_name_server),
            (3, self._cut_client),
            (4, self._end_client),
            (5, self._stop_at_call),
            (7, self._power_loss),
            (3, self._power_loss_both),
            (3, self._jump),
            (2, self._wipe_slave),
            (3, self._slow_disk),
            (3, self._full_disk),
            (2, self._failing_write),
            (3, self._failing_sync),
            (3, self._flip_log),
            (2, self._flip_derived),
            (2, self._restart),
        ]
        self._rare: list[Callable[[], None]] = [self._failing_read, self._damage_table, self._damage_table]
        self._storage: StorageFaults | None = None
        if has_storage_faults(world.seed):
            self._storage = StorageFaults(
                world, cluster, may_strike=self._may_harm, is_beyond=is_beyond_tolerance(world.seed)
            )

    def plan(self, count: int, until_us: int) -> None:
        """Spread faults over the time up to `until_us`."""
        weights = [weight for weight, _ in self._kinds]
        for _ in range(count):
            when = self._random.randrange(4 * SECOND, until_us - 2 * SECOND)
            kind = self._random.choices(self._kinds, weights)[0][1]
            self._world.at(when, partial(self._strike, kind))
        rare = Random(f"{self._world.seed}-rare")
        if rare.random() < RARE:
            when = rare.randrange(4 * SECOND, until_us - 2 * SECOND)
            self._world.at(when, partial(self._strike, rare.choice(self._rare)))
        if self._storage is not None:
            self._storage.plan(until_us, [partial(self._strike, kind) for _, kind in self._kinds])

    def _may_harm(self, host: Host) -> bool:
        """Whether a member may be damaged where no one notices, while its group tolerates that."""
        return self._may_damage(host)

    def _strike(self, kind: Callable[[], None]) -> None:
        if not self.is_over:
            kind()

    def end(self) -> None:
        """Undo everything that can be undone: everything must work from here on."""
        self.is_over = True
        if self._storage is not None:
            self._storage.is_over = True
        self._network.heal()
        self._network.delay_us, self._network.jitter_us, self._network.split_rate = 300, 400, 0.02
        for host in self._cluster.hosts:
            host.machine.disk.heal()
            host.machine.disk.total_bytes = 1 << 40
            if host.process is not None:
                host.process.paused_until_us = 0
                host.process.sync_delay_us = (800, 6_000)
                if host.broker is not None and host.broker.store.log.refused is not None:
                    host.kill()
            self._world.after(self._random.randrange(SECOND), host.start)
            # A sync in flight may still fail.
            self._world.after(SYNC_US_MAX, partial(self._replace_broken, host))
        for address in self._cluster.plan.name_servers:
            self._cluster.start_name_server(address)
        for client in self._clients:
            client.start()

    # Choice of targets.

    def _later(self, low_ms: int, high_ms: int, action: Callable[[], None]) -> None:
        """Undo a fault after a while, unless `end` has done so by then."""
        self._world.after(self._random.randrange(low_ms, high_ms) * MS, lambda: None if self.is_over else action())

    def _host(self) -> Host:
        return self._random.choice(self._cluster.hosts)

    def _connection(self) -> SimConnection | None:
        found = [connection for connection in self._network.connections if all(connection.open)]
        copying = [connection for connection in found if connection.kind is LinkKind.HA_MASTER]
        if copying and self._random.random() < 0.5:
            found = copying
        return self._random.choice(found) if found else None

    def _ips(self) -> list[str]:
        return [host.machine.ip for host in self._cluster.hosts] + [client.ip for client in self._clients]

    def _note(self, kind: str, text: str) -> None:
        self._world.fault(kind, text)

    # Network.

    def _named(self, connection: SimConnection) -> str:
        return f"{connection.kind.value} {connection.owners[0].ip} to {connection.owners[1].ip}"

    def _cut(self) -> None:
        connection = self._connection()
        if connection is not None:
            self._note("cut", self._named(connection))
            self._network.cut(connection)

    def _half_open(self) -> None:
        connection = self._connection()
        if connection is not None:
            self._note("half-open", self._named(connection))
            self._network.lose(connection, half=True)

    def _black_hole(self) -> None:
        connection = self._connection()
        if connection is not None:
            self._note("black-hole", self._named(connection))
            self._network.lose(connection, half=False)

    def _block(self, kind: str, pairs: list[tuple[str, str]]) -> None:
        self._note(kind, ", ".join(f"{source}>{target}" for source, target in pairs[:4]))
        for source, target in pairs:
            self._network.block(source, target)

        def unblock() -> None:
            for pair in pairs:
                self._network.blocked.pop(pair, None)

        self._later(300, 12_000, unblock)

    def _pair(self) -> tuple[str, str]:
        if self._random.random() < 0.6:
            group = self._random.choice(self._cluster.plan.groups)
            members = self._cluster.members(group)
            slave = self._random.choice(members[1:])
            pair = [members[0].machine.ip, slave.machine.ip]
        else:
            pair = self._random.sample(self._ips(), 2)
        self._random.shuffle(pair)
        return pair[0], pair[1]

    def _stall(self) -> None:
        self._block("one-way-stall", [self._pair()])

    def _partition(self) -> None:
        first, second = self._pair()
        self._block("partition", [(first, second), (second, first)])

    def _isolate(self) -> None:
        ip = self._host().machine.ip
        others = [other for other in self._ips() if other != ip]
        others += [address.partition(":")[0] for address in self._cluster.plan.name_servers]
        self._block("isolation", [pair for other in others for pair in ((ip, other), (other, ip))])

    def _slow_links(self) -> None:
        network = self._network
        self._note("slow-links", "")
        network.delay_us, network.jitter_us = self._random.choice(((5_000, 20_000), (20_000, 150_000)))
        network.split_rate = 0.5

        def restore() -> None:
            network.delay_us, network.jitter_us, network.split_rate = 300, 400, 0.05

        self._later(500, 6_000, restore)

    def _flip_in_flight(self) -> None:
        found = [
            connection
            for connection in self._network.connections
            if connection.kind is LinkKind.HA_MASTER and all(connection.open)
        ]
        if found:
            end = self._random.choice((0, 1, 1))
            self._random.choice(found).flip_in[end] = self._random.randrange(4_000 if end else 200)

    # Processes and machines.

    def _pause(self) -> None:
        candidates = [host.process for host in self._cluster.hosts if host.process is not None]
        candidates += [client.process for client in self._clients if client.process is not None]
        if candidates:
            process = self._random.choice(candidates)
            duration = self._random.choice((300, 1_500, 4_500, 9_000)) * MS
            self._note("pause", f"{process.name} {duration // MS} ms")
            process.pause(duration)

    def _kill(self) -> None:
        host = self._host()
        if host.process is not None:
            self._note("kill", host.name)
            host.kill()
            self._later(50, 7_000, host.start)

    def _restart(self) -> None:
        host = self._host()
        if host.process is not None:
            self._note("clean-restart", host.name)
            host.stop()
            self._later(50, 3_000, host.start)

    def _kill_both(self) -> None:
        group = self._random.choice(self._cluster.plan.groups)
        for host in self._cluster.members(group):
            if host.process is not None:
                self._note("kill", host.name)
                host.kill()
            self._later(50, 5_000, host.start)

    def _kill_name_server(self) -> None:
        address = self._random.choice(self._cluster.plan.name_servers)
        if address in self._cluster.name_servers:
            self._note("kill-name-server", address)
            self._cluster.kill_name_server(address)
            self._later(200, 8_000, lambda: self._cluster.start_name_server(address))

    def _cut_client(self) -> None:
        client = self._random.choice(self._clients)
        found = [connection for connection in self._network.connections if client.process in connection.owners]
        self._note("client-links-cut", client.name)
        for connection in found:
            self._network.cut(connection)

    def _end_client(self) -> None:
        candidates = [client for client in self._clients if client.application is not None]
        if not candidates:
            return
        client = self._random.choice(candidates)
        if client.process is not None and self._random.random() < 0.6:
            self._note("kill-client", client.name)
            client.kill()
        elif client.process is not None:
            self._note("client-leaves", client.name)
            client.leave()
        self._later(200, 9_000, client.start)

    def _stop_at_call(self) -> None:
        host = self._host()
        if host.process is None:
            return
        cluster = self._cluster
        cluster.stop_kills = self._random.random() < 0.6
        operations = self._random.choice(
            (("pwrite",), ("datasync",), ("replace",), ("pwrite", "datasync", "truncate", "create"))
        )
        host.machine.disk.stop_at(self._random.randrange(1, 20), operations)

    def _power_loss(self) -> None:
        self._lose_power(self._host())

    def _lose_power(self, host: Host) -> None:
        self._note("power-loss", host.name)
        host.crash()
        self._later(500, 7_000, host.start)

    def _power_loss_both(self) -> None:
        for host in self._cluster.members(self._random.choice(self._cluster.plan.groups)):
            self._lose_power(host)

    def _jump(self) -> None:
        host = self._host()
        ms = self._random.choice((-3_600_000, -30_000, -2_000, 2_000, 30_000, 3_600_000))
        self._note("clock-jump", f"{host.name} {ms} ms")
        host.machine.jump(ms)

    def _wipe_slave(self) -> None:
        host = self._host()
        if not host.is_master and host.group.name not in self._flipped:
            self._note("slave-disk-lost", host.name)
            host.wipe()
            self._later(100, 4_000, host.start)

    # Disks.

    def _slow_disk(self) -> None:
        host = self._host()
        process = host.process
        if process is not None:
            self._note("slow-disk", host.name)
            process.sync_delay_us = self._random.choice(((50_000, 400_000), (400_000, SYNC_US_MAX)))

            def restore() -> None:
                process.sync_delay_us = (800, 6_000)

            self._later(1_000, 6_000, restore)

    def _full_disk(self) -> None:
        host = self._host()
        disk = host.machine.disk
        usage = disk.usage()
        self._note("disk-full", host.name)
        disk.total_bytes = usage.total_bytes - usage.free_bytes + self._random.choice((0, FULL_FREE_BYTES))

        def free() -> None:
            disk.total_bytes = 1 << 40

        self._later(1_000, 8_000, free)

    def _failing_write(self) -> None:
        self._failing("pwrite", "commitlog/")

    def _failing_sync(self) -> None:
        self._failing("datasync", "commitlog/")

    def _failing_read(self) -> None:
        self._failing("pread", self._random.choice(("commitlog/", "consumequeue/")))

    def _failing(self, operation: str, prefix: str) -> None:
        host = self._host()
        if host.process is not None:
            self._note(f"failing-{operation}", host.name)
            times = 1 if operation != "pread" else self._random.choice((1, 10, 1_000))
            fault = host.machine.disk.fail(
                operation, self._random.randrange(1, 6), times=times, error=DiskFailed, prefix=prefix
            )
            fault.by_instant = operation == "pread"
            self._later(4_000, 9_000, lambda: self._replace_broken(host))

    def _replace_broken(self, host: Host) -> None:
        """Restart a broker that refuses for good, as an operator would."""
        host.machine.disk.heal()
        if host.broker is not None and host.broker.store.log.refused is not None:
            host.kill()
            host.start()

    def _flip_log(self) -> None:
        self._flip("flip-log", "commitlog/")

    def _flip_derived(self) -> None:
        prefix = self._random.choice(("config/", "tandemq.marks", "checkpoint", "epochFileCheckpoint"))
        self._flip("flip-derived", prefix)

    def _flip(self, kind: str, prefix: str) -> None:
        """Flip a bit on the disk of a member that is down; on one member of a group only."""
        host = self._host()
        place = self._place(host, prefix) if self._may_damage(host) else None
        if place is None:
            return
        path, position = place
        self._note(kind, f"{host.name} {path} byte {position}")
        host.kill()
        # In a table only bits are flipped that make it unreadable: a changed digit cannot be detected.
        host.machine.disk.flip(path, position, 7 if prefix == "config/" else self._random.randrange(8))
        host.flips.append((path, position))
        self._later(200, 3_000, host.start)

    def _damage_table(self) -> None:
        """Leave a table of a member as a file system that crashed, a restored backup or a mistake leaves it."""
        host = self._host()
        disk = host.machine.disk
        tables = [path for path in self._paths(host, "config/") if path.endswith(".json")]
        if not tables or disk.faults or disk.usage().free_bytes < FULL_FREE_BYTES or not self._may_damage(host):
            return
        path = self._random.choice(tables)
        content, others = disk.read(path) or b"", [other for other in tables if other != path]
        contents = {
            "missing": None,
            "empty": b"",
            "zeroed": bytes(len(content)),
            "cut": content[: self._random.randrange(len(content) or 1)],
            "swapped": disk.read(self._random.choice(others)) if others else b"",
            "old": disk.read(f"{path}.bak"),
        }
        kind = self._random.choice(list(contents))
        self._note(f"table-{kind}", f"{host.name} {path}")
        host.kill()
        damaged = contents[kind]
        if damaged is None:
            disk.remove(path)
        else:
            disk.replace(path, damaged)
        host.flips.append((path, 0))
        self._later(200, 3_000, host.start)

    def _may_damage(self, host: Host) -> bool:
        """Whether no other member of its group has damage, or lost its disk."""
        is_first = self._flipped.setdefault(host.group.name, host) is host
        return is_first and not any(member.wipes_us for member in self._cluster.members(host.group))

    def _paths(self, host: Host, prefix: str) -> list[str]:
        # A broker without users, or with older ones, refuses what it should not, or the reverse.
        paths = [
            path for path in host.machine.disk.paths() if path.startswith(prefix) and not path.startswith(ACCESS_FILES)
        ]
        if self._cluster.plan.has_static_topic:
            # A broker that goes back to the backup would take messages of queues that have moved away.
            paths = [path for path in paths if not path.startswith(MAPPING_FILES)]
        return paths

    def _place(self, host: Host, prefix: str) -> tuple[str, int] | None:
        disk = host.machine.disk
        paths = self._paths(host, prefix)
        if not paths:
            return None
        path = self._random.choice(paths)
        size = len(disk.read(path) or b"")
        if prefix == "commitlog/":
            end = self._copied_everywhere(host)
            size = min(size, end - end % host.config.segment_bytes - int(path.rpartition("/")[2]))
        return (path, self._random.randrange(size)) if size > 0 else None

    def _copied_everywhere(self, host: Host) -> int:
        """Return the log offset below which all members of the group have durable bytes."""
        ends = [
            0 if member.broker is None else member.broker.store.log.flushed_offset
            for member in self._cluster.members(host.group)
        ]
        return min(ends)
