"""The cluster of one seed: machines, name servers, brokers, and the operators' actions.

A `Host` is a broker's machine with its disk and settings, and the process on it, if any. It can be started, killed,
lose power or lose its disk; it restarts on what its disk holds. Operators follow the hints of errors: they delete a
table that cannot be read.
"""

import logging
from collections.abc import Callable
from random import Random

from lab.sim.world.disk import PowerLoss, SimDisk
from lab.sim.world.network import Network
from lab.sim.world.plan import BROKER_PORT, FAST_PORT, HA_PORT, GroupPlan, Plan
from lab.sim.world.process import Process, SimMachine
from lab.sim.world.world import SECOND, Violation, World
from tandemq.boundary import LinkKind
from tandemq.broker.kernel.context import Machine as MachineFacts
from tandemq.broker.node import Broker
from tandemq.codec.proofs import Keyring
from tandemq.config.settings import BrokerConfig, parse_delay_levels
from tandemq.errors import StoreDamaged, StoreError
from tandemq.nameserver.node import NameServer

log = logging.getLogger(__name__)

UNCACHED = (0.0, 0.0, 0.05, 0.5)
"""Probabilities that the page cache lacks what is read, of which each run has one."""


class Host:
    """A broker's machine, disk and settings, and the process that runs there, if any."""

    def __init__(self, cluster: "Cluster", group: GroupPlan, broker_id: int, config: BrokerConfig) -> None:
        """A host without a process."""
        self._cluster = cluster
        self.group = group
        self.broker_id = broker_id
        self.name = f"{group.name}/{broker_id}"
        self.config = config
        world = cluster.world
        self.machine = SimMachine(world, self.name, config.advertised_ip, self._new_disk())
        self.process: Process | None = None
        self.broker: Broker | None = None
        self.losses_us: list[int] = []
        """Times at which it lost unsynced bytes or its whole disk."""
        self.wipes_us: list[int] = []
        self.flips: list[tuple[str, int]] = []
        """(path, position) of bits flipped on its disk."""
        self.harms_us: list[int] = []
        """Times at which bytes on its disk were damaged, or were not what had been written."""
        self.kills = 0
        self.starts = 0
        """Number of starts of its process."""

    def _new_disk(self) -> SimDisk:
        disk = SimDisk(Random(self._cluster.world.random.getrandbits(64)))
        disk.uncached = Random(f"{self._cluster.world.seed}-cache").choice(UNCACHED)
        return disk

    @property
    def is_master(self) -> bool:
        """Return whether this member is the master of a group with fixed roles."""
        return self.broker_id == 0

    @property
    def address(self) -> str:
        """Return the address for clients."""
        return f"{self.machine.ip}:{BROKER_PORT}"

    def harmed(self, path: str, position: int) -> None:
        """Note damage of its disk."""
        self.flips.append((path, position))
        self.harms_us.append(self._cluster.world.now_us)

    # Start and stop.

    def start(self) -> None:
        """Open the store and run the broker; on an error, act on its hint."""
        if self.process is not None:
            return
        world, network = self._cluster.world, self._cluster.network
        self.starts += 1
        process = Process(world, network, self.machine, self.name)
        process.on_power_loss = self.power_loss
        process.after_turn = self._after_turn
        self._cluster.prepare(self, process)
        self.machine.disk.wall_ms = self.machine.now().wall_ms
        network.dead_machines.pop(self.machine.ip, None)
        try:
            broker = self._open(process)
        except PowerLoss:
            process.kill()
            self._power_lost()
            return
        except StoreDamaged as error:
            self._repair(error)
            return
        except StoreError as error:
            world.consequence("start-failed", f"{self.name}: {error}")
            self.machine.disk.kill()
            world.after(SECOND, self.start)
            return
        self.process, self.broker = process, broker
        ip = self.machine.ip
        for port, kind in ((BROKER_PORT, LinkKind.REMOTING), (FAST_PORT, LinkKind.FAST), (HA_PORT, LinkKind.HA_MASTER)):
            network.listen(f"{ip}:{port}", process, kind)
        broker.listening(self.address, f"{ip}:{HA_PORT}", self.machine.now())
        process.start(broker)
        log.info("%s: runs, log end %d", self.name, broker.store.log.end)
        if self._cluster.on_start is not None:
            self._cluster.on_start(self)

    def _open(self, process: Process) -> Broker:
        facts = MachineFacts(self.machine.boot_id, self._cluster.plan.memory_bytes)
        random = Random(f"{self._cluster.world.seed}-{self.name}-{self.starts}")
        delays = parse_delay_levels(self.config.delay_levels)
        return Broker(
            self.config,
            self.machine.disk,
            process,
            random,
            facts,
            self.machine.now(),
            delays,
            keyring=self._cluster.keyring(self.name),
        )

    def _repair(self, error: StoreDamaged) -> None:
        """Delete the table that cannot be read, as the hint says."""
        path = str(error).partition(" ")[0].removesuffix(":")
        self._cluster.world.consequence("start-refused", f"{self.name}: {error}")
        disk = self.machine.disk
        disk.kill()
        if self.harms_us and (path.startswith("commitlog") or str(error).startswith("the log ends")):
            self._cluster.restore_log(self)
            self._cluster.world.after(SECOND, self.start)
            return
        stem = path.removesuffix(".bak")
        is_table = any(disk.exists(name) for name in (stem, f"{stem}.bak"))
        if not self.flips or not is_table or stem.startswith(("commitlog", "consumequeue")):
            raise Violation("I10", f"{self.name} does not start on what it wrote itself: {error}") from error
        disk.remove(stem)
        disk.remove(f"{stem}.bak")
        self._cluster.world.after(SECOND, self.start)

    def _after_turn(self, _process: Process) -> None:
        if self._cluster.on_turn is not None:
            self._cluster.on_turn(self)

    def _gone(self, *, notify: bool) -> None:
        process = self.process
        if process is None:
            return
        if self._cluster.on_stop is not None:
            self._cluster.on_stop(self)
        process.kill()
        self._cluster.network.forget(process, notify=notify)
        self.process = self.broker = None

    def kill(self) -> None:
        """Kill the process (SIGKILL): its written bytes stay, the kernel resets its connections."""
        if self.process is not None:
            self._gone(notify=True)
            self.kills += 1
        self.machine.disk.kill()

    def stop(self) -> None:
        """Stop cleanly."""
        if self.process is None or self.broker is None:
            return
        process, broker = self.process, self.broker
        process.carry_out(broker.stop(self.machine.now()))
        try:
            broker.close()
        except StoreError as error:
            log.warning("%s: not stopped cleanly: %s", self.name, error)
        except PowerLoss:
            self._power_lost()
            return
        self.kill()

    def crash(self) -> None:
        """Cut the machine's power: unsynced bytes survive at random, peers receive no reset."""
        self._gone(notify=False)
        self.machine.disk.crash()
        self.losses_us.append(self._cluster.world.now_us)
        self._cluster.network.dead_machines[self.machine.ip] = None
        self.machine.boot()

    def wipe(self) -> None:
        """Replace the disk by an empty one."""
        self.kill()
        self.machine.disk = self._new_disk()
        self.machine.disk.wall_ms = self.machine.now().wall_ms
        self.losses_us.append(self._cluster.world.now_us)
        self.wipes_us.append(self._cluster.world.now_us)
        if self._cluster.on_wipe is not None:
            self._cluster.on_wipe(self)

    def power_loss(self) -> None:
        """Handle the disk call at which the process was to stop."""
        self._power_lost()

    def _power_lost(self) -> None:
        world = self._cluster.world
        if self._cluster.stop_kills:
            self._gone(notify=True)
            self.kills += 1
            self.machine.disk.kill()
            world.fault("killed-at-call", self.name)
        else:
            self.crash()
            world.fault("power-lost-at-call", self.name)
        world.after(world.random.randrange(SECOND // 2, 4 * SECOND), self.start)


def _log_end(disk: SimDisk) -> int:
    """Return the log offset behind the last byte of a log that is not zero."""
    paths = [path for path in disk.paths() if path.startswith("commitlog/")]
    written = [(path, len(disk.peek(path, 1 << 20, 0, safe=False).rstrip(b"\0"))) for path in paths]
    return max([int(path.rpartition("/")[2]) + size for path, size in written if size], default=0)


class Cluster:
    """All hosts of a world."""

    def __init__(self, world: World, network: Network, plan: Plan) -> None:
        """A cluster in which nothing runs yet."""
        self.world = world
        self.network = network
        self.plan = plan
        self.on_start: Callable[[Host], None] | None = None
        self.on_stop: Callable[[Host], None] | None = None
        self.on_turn: Callable[[Host], None] | None = None
        self.on_wipe: Callable[[Host], None] | None = None
        self.stop_kills = True
        """Whether stopping a process at a disk call means a kill (True) or a power loss of its machine (False)."""
        self.hosts = [
            Host(self, group, broker_id, plan.config(group, broker_id))
            for group in plan.groups
            for broker_id in range(group.slaves + 1)
        ]
        self.name_servers: dict[str, Process] = {}
        self._ns_machines = {
            address: SimMachine(world, f"namesrv-{number}", address.partition(":")[0], SimDisk(Random(number)))
            for number, address in enumerate(plan.name_servers)
        }

    def start(self) -> None:
        """Start everything, in random order."""
        for address in self.plan.name_servers:
            self.start_name_server(address)
        order = list(self.hosts)
        self.world.random.shuffle(order)
        for host in order:
            self.world.after(self.world.random.randrange(0, SECOND), host.start)

    def start_name_server(self, address: str) -> None:
        """Start a name server, unless it runs."""
        if address in self.name_servers:
            return
        machine = self._ns_machines[address]
        process = Process(self.world, self.network, machine, machine.name)
        self.network.listen(address, process, LinkKind.REMOTING)
        keyring = self.keyring(machine.name)
        process.start(NameServer(self.plan.name_server_config, machine.disk, process, keyring))
        self.name_servers[address] = process

    def name_server_machine(self, address: str) -> SimMachine:
        """Return the machine of a name server."""
        return self._ns_machines[address]

    def kill_name_server(self, address: str) -> None:
        """Kill a name server (SIGKILL)."""
        process = self.name_servers.pop(address, None)
        if process is not None:
            process.kill()
            self.network.forget(process, notify=True)
            self._ns_machines[address].disk.kill()

    def prepare(self, host: Host, process: Process) -> None:
        """Prepare a broker's process before its node is created."""

    def keyring(self, _name: str) -> Keyring | None:
        """Return the secrets of a node that starts; None without authentication."""
        return None

    def restore_log(self, host: Host) -> None:
        """Give a member whose log lacks bytes the log files of another, and forget the marks if there is none."""
        sources = [
            member.machine.disk for member in self.members(host.group) if member is not host and not member.harms_us
        ]
        disk, segment = host.machine.disk, host.config.segment_bytes
        disk.total_bytes = 1 << 40  # an operator makes room
        ends = [_log_end(source) for source in sources]
        if not ends or max(ends) < _log_end(disk):
            disk.remove("tandemq.marks")
            for path in [path for path in disk.paths() if path.startswith("commitlog/")]:
                data = disk.read(path) or b""
                if len(data) != segment:
                    disk.replace(path, data.ljust(segment, b"\0"))
            return
        source = sources[ends.index(max(ends))]
        first = min(path for path in source.paths() if path.startswith("commitlog/"))
        for path in [path for path in disk.paths() if path.startswith("commitlog/") and path >= first]:
            disk.remove(path)
        for path in [path for path in source.paths() if path.startswith("commitlog/")]:
            disk.replace(path, source.peek(path, segment, 0, safe=False))

    def has_bit_rot(self, address: str) -> bool:
        """Return whether bits were flipped at rest on the host with this address."""
        return any(host.flips for host in self.hosts if host.address == address)

    def is_harmed(self, name: str) -> bool:
        """Return whether a device of a member of a group has lost or changed bytes unnoticed."""
        return any(host.harms_us for host in self.hosts if host.group.name == name)

    def is_beyond_tolerance(self, group: GroupPlan) -> bool:
        """Return whether a member of a group is harmed and others lost bytes, so that operators have to copy stores."""
        members = self.members(group)
        return any(host.harms_us for host in members) and any(host.losses_us for host in members if not host.harms_us)

    def members(self, group: GroupPlan) -> list[Host]:
        """Return the hosts of a group, master first."""
        return [host for host in self.hosts if host.group is group]

    def master(self, group: GroupPlan) -> Host:
        """Return the master's host."""
        return self.members(group)[0]
