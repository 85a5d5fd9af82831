"""Faults in groups with a registry: those of other groups, and faults of the registry and of roles.

    registry   unreachable, slow, late watch events, a session expired, a broker cut off from it, its peers, or both;
               replaced by an older copy (`older_registry`)
    roles      a master paused for longer than its lease, killed, isolated; an operator's switch, force-master; a switch
               with sends in flight; a member killed right after a handover; configuration changes (`configuration`)

Every fault is survivable: bits are flipped in logs only, as in other groups, and only a member whose group is in sync
loses its disk.
"""

from collections.abc import Callable
from functools import partial
from random import Random

from lab.sim.checkers.groups import GroupChecks
from lab.sim.faults.cluster import Faults
from lab.sim.faults.configuration import ConfigurationFaults
from lab.sim.faults.older_registry import OlderRegistry
from lab.sim.workload.administrator import Administrator
from lab.sim.workload.host import ClientHost
from lab.sim.world.cluster import Host
from lab.sim.world.groups import GroupCluster, mode_of, stage_of, state_of
from lab.sim.world.network import Network
from lab.sim.world.plan import GroupPlan
from lab.sim.world.simulated_registry import REGISTRY_IP
from lab.sim.world.world import MS, SECOND, World
from tandemq.boundary import Now
from tandemq.coordination.member.machine import MemberMachine
from tandemq.coordination.member.orders import MemberStage
from tandemq.coordination.registry.records import GroupMode, Mode
from tandemq.registry import NAME_SERVER

LOST_READERS = 0.5
"""Share of the slave-consume groups in which a reader dies and the master returns alone."""


class GroupFaults(Faults):
    """The faults of one seed."""

    def __init__(
        self, world: World, network: Network, cluster: GroupCluster, clients: list[ClientHost], checks: GroupChecks
    ) -> None:
        """No faults yet."""
        super().__init__(world, network, cluster, clients)
        self._random = Random(f"{world.seed}-group-faults")
        self._groups = cluster
        self._checks = checks
        checks.on_handed = self._handed
        self._kill_next_holder: set[str] = set()
        """Groups whose next active member is killed right after the handover."""
        self._kinds = [
            (3, self._cut),
            (2, self._half_open),
            (2, self._black_hole),
            (3, self._stall),
            (3, self._partition),
            (2, self._slow_links),
            (2, self._flip_in_flight),
            (4, self._pause),
            (5, self._kill),
            (3, self._kill_both),
            (4, self._stop_at_call),
            (5, self._power_loss),
            (2, self._power_loss_both),
            (2, self._jump),
            (2, self._slow_disk),
            (2, self._full_disk),
            (2, self._failing_sync),
            (2, self._failing_write),
            (2, self._restart),
            (3, self._wipe),
            (7, self._kill_leader),
            (5, self._pause_leader),
            (4, self._registry_away),
            (3, self._registry_slow),
            (3, self._session_over),
            (4, self._cut_registry),
            (3, self._cut_peers),
            (4, self._isolate_member),
            (5, self._switch),
            (1, self._force),
            (4, self._switch_while_waiting),
            (7, self._hand_and_kill),
        ]
        if any(client.application is not None for client in clients):
            self._kinds += [(3, self._cut_client), (4, self._end_client)]
        self._rare += [self._flip_log, self._flip_log, self._registry_lost, self._registry_lost]
        self._is_registry_lost = False
        self._changes = ConfigurationFaults(world, cluster, self._administrator)
        self._older = OlderRegistry(world, cluster, checks, lambda: self.is_over)
        self._changes.kill_leader, self._changes.switch = self._kill_that_leads, self._order_switch

    def plan(self, count: int, until_us: int) -> None:
        """See `Faults`; in some seeds configurations change, too, or the registry is replaced by an older copy."""
        super().plan(count, until_us)
        self._older.plan(until_us)
        if not self._older.is_planned:
            self._changes.plan(until_us)
        dice = Random(f"{self._world.seed}-lost-reader")
        for group in self._cluster.plan.groups:
            if mode_of(group) is Mode.SLAVE_CONSUME and dice.random() < LOST_READERS:
                when = dice.randrange(4 * SECOND, until_us - 14 * SECOND)
                self._world.at(when, partial(self._strike, partial(self._lose_reader, group)))

    def _strike(self, kind: Callable[[], None]) -> None:
        """See `Faults`; nothing else happens while members find that the registry is an older copy."""
        if self._world.now_us >= self._older.calm_until_us:
            super()._strike(kind)

    def _administrator(self) -> Administrator:
        administrator = Administrator(self._world, self._network, self._groups)
        administrator.on_ordered = self._checks.configurations.ordered
        administrator.on_settled = self._checks.configurations.settled
        return administrator

    # Choice of targets.

    def _group(self) -> GroupPlan:
        return self._random.choice(self._cluster.plan.groups)

    def _leader(self) -> Host | None:
        return self._groups.leader(self._group())

    def _registry_ip(self) -> str:
        if self._groups.groups_plan.registry == NAME_SERVER:
            return self._cluster.plan.name_servers[0].partition(":")[0]
        return REGISTRY_IP

    # Processes.

    def _kill_leader(self) -> None:
        host = self._leader()
        if host is not None:
            self._kill_that_leads(host)

    def _kill_that_leads(self, host: Host) -> None:
        self._note("kill-master", host.name)
        host.kill()
        self._later(50, 9_000, host.start)

    def _lose_reader(self, group: GroupPlan) -> None:
        """Kill a master, then the slave that reads for it; the master returns long before the slave."""
        host = self._groups.leader(group)
        if host is None:
            return
        self._kill_alone(host)

        def reader_dies() -> None:
            others = [member for member in self._cluster.members(group) if member is not host]
            reader = next((member for member in others if stage_of(member) is MemberStage.SERVING), None)
            if reader is not None:
                self._note("kill-reader", reader.name)
                reader.kill()
                self._later(9_000, 14_000, reader.start)
            self._later(50, 1_500, host.start)

        self._later(4_500, 9_000, reader_dies)

    def _kill_alone(self, host: Host) -> None:
        self._note("kill-master", host.name)
        host.kill()

    def _pause_leader(self) -> None:
        host = self._leader()
        if host is not None and host.process is not None:
            duration = self._random.choice((1_200, 2_500, 4_000, 7_000)) * MS
            self._note("pause-master", f"{host.name} {duration // MS} ms")
            host.process.pause(duration)

    def _wipe(self) -> None:
        """Lose a disk while all other members have everything: no group survives the loss of all replicas."""
        host = self._host()
        members = self._cluster.members(host.group)
        state = state_of(host)
        if (
            self._is_registry_lost
            or self._older.is_planned
            or state is None
            or host.wipes_us
            or len(state.in_sync) != len(members)
            or host.group.name in self._flipped
        ):
            return
        is_whole = all(
            member.broker is not None
            and member.process is not None
            and stage_of(member) in (MemberStage.SERVING, MemberStage.SLAVE)
            for member in members
        )
        is_slave = self._groups.leader(host.group) is not host
        may_lose = mode_of(host.group) is Mode.ELECT or (is_slave and state.mode is GroupMode.NORMAL)
        if is_whole and may_lose:
            self._note("disk-lost", host.name)
            host.wipe()
            self._later(100, 4_000, host.start)

    # Registry.

    def _registry_away(self) -> None:
        self._note("registry-away", self._groups.groups_plan.registry)
        if self._groups.groups_plan.registry == NAME_SERVER:
            address = self._cluster.plan.name_servers[0]
            self._cluster.kill_name_server(address)
            self._later(100, 6_000, lambda: self._cluster.start_name_server(address))
        else:
            self._groups.registry.stop()
            self._later(100, 6_000, self._groups.registry.start)

    def _registry_lost(self) -> None:
        """Lose the registry, unless a disk was lost: with an empty registry an empty member begins a new group."""
        if any(host.wipes_us for host in self._cluster.hosts):
            return
        self._is_registry_lost = True
        self._changes.end()
        self._note("registry-lost", self._groups.groups_plan.registry)
        self._groups.lose_registry()
        if self._groups.groups_plan.registry == NAME_SERVER:
            address = self._cluster.plan.name_servers[0]
            self._later(100, 3_000, lambda: self._cluster.start_name_server(address))

    def _registry_slow(self) -> None:
        self._note("registry-slow", self._groups.groups_plan.registry)
        registry = self._groups.registry
        registry.delay_us, registry.watch_delay_us = self._random.choice(
            ((100 * MS, 0), (500, 1_500 * MS), (300 * MS, 800 * MS), (900 * MS, 0))
        )

        def restore() -> None:
            registry.delay_us, registry.watch_delay_us = 500, 0

        self._later(500, 6_000, restore)

    def _session_over(self) -> None:
        host = self._host()
        for client in self._groups.registry.clients:
            if client.process is host.process:
                self._note("session-over", host.name)
                self._groups.registry.expire(client)

    def _cut_registry(self) -> None:
        host = self._leader() if self._random.random() < 0.6 else self._host()
        if host is not None:
            host_ip, registry_ip = host.machine.ip, self._registry_ip()
            pairs = [(host_ip, registry_ip), (registry_ip, host_ip)]
            self._block("cut-from-registry", pairs if self._random.random() < 0.7 else [self._random.choice(pairs)])

    def _cut_peers(self) -> None:
        host = self._host()
        others = [member.machine.ip for member in self._cluster.members(host.group) if member is not host]
        self._block(
            "cut-from-peers", [pair for ip in others for pair in ((host.machine.ip, ip), (ip, host.machine.ip))]
        )

    def _isolate_member(self) -> None:
        """Isolate a member from its peers and the registry, in some cases from clients too."""
        host = self._leader() if self._random.random() < 0.6 else self._host()
        if host is None:
            return
        others = [ip for ip in self._ips() if ip != host.machine.ip]
        if self._random.random() < 0.7:
            others = [member.machine.ip for member in self._cluster.members(host.group) if member is not host]
        others += [self._registry_ip()]
        self._block("isolation", [pair for ip in others for pair in ((host.machine.ip, ip), (ip, host.machine.ip))])

    # Operators.

    def _command(self, host: Host, give: Callable[[MemberMachine, Now], object]) -> None:
        if host.broker is not None and host.broker.failover is not None and host.process is not None:
            give(host.broker.failover.member, host.machine.now())
            host.process.wake()

    def _switch(self) -> None:
        host = self._leader()
        if host is not None and mode_of(host.group) is not Mode.STATIC:
            self._order_switch(host, self._random.choice(self._cluster.members(host.group)).broker_id)

    def _switch_while_waiting(self) -> None:
        """Order a switch to one slave while sends wait for another, which is in sync and receives nothing more."""
        host = self._leader()
        others = self._cluster.members(host.group)[1:] if host is not None else []
        if host is not None and mode_of(host.group) is Mode.ELECT and len(others) > 1:
            target, unreachable = self._random.sample(others, 2)
            self._block("one-way-stall", [(host.machine.ip, unreachable.machine.ip)])
            self._later(50, 900, lambda: self._order_switch(host, target.broker_id))

    def _order_switch(self, host: Host, target: int) -> None:
        self._note("switch", f"{host.name} to {target}")
        self._command(host, lambda member, now: member.switch(target, now))

    def _hand_and_kill(self) -> None:
        """Kill a member right after an orderly handover to it, with a slow disk: nothing may be lost by that."""
        host = self._leader()
        if host is None or mode_of(host.group) is Mode.STATIC:
            return
        self._kill_next_holder.add(host.group.name)
        if mode_of(host.group) is Mode.ELECT:
            target = self._random.choice(self._cluster.members(host.group)[1:])
            self._slow_down(target)
            self._order_switch(host, target.broker_id)
            return
        self._kill_alone(host)

        def back() -> None:
            host.start()
            self._slow_down(host)

        self._later(4_500, 8_000, back)

    def _slow_down(self, host: Host) -> None:
        if host.process is not None:
            self._note("slow-disk", host.name)
            host.process.sync_delay_us = (100_000, 400_000)

    def _handed(self, host: Host) -> None:
        """Kill the member that an orderly handover made active, in some cases."""
        if not self.is_over and (host.group.name in self._kill_next_holder or self._random.random() < 0.5):
            self._kill_next_holder.discard(host.group.name)
            self._later(0, 3, lambda: self._kill_new_holder(host))

    def _kill_new_holder(self, host: Host) -> None:
        self._note("kill-new-holder", host.name)
        host.kill()
        self._later(50, 5_000, host.start)

    def _force(self) -> None:
        host = self._host()
        if mode_of(host.group) is not Mode.STATIC and not self._goes_on_alone(host):
            self._note("force-master", host.name)
            self._accept(host)

    def _goes_on_alone(self, host: Host) -> bool:
        """Return whether another member is alone in sync: it needs no lease, so an operator must stop it first."""
        return any(
            other is not host
            and other.broker is not None
            and (failover := other.broker.failover) is not None
            and failover.is_master
            and failover.member.must_ack == {failover.member.id}
            for other in self._cluster.members(host.group)
        )

    def _accept(self, host: Host) -> None:
        """Force a member to become active, with any loss, for as long as the command may take."""
        self._checks.older.decided(host.group.name)
        self._checks.accepted_us[host.group.name] = self._world.now_us + 16 * SECOND
        self._command(host, lambda member, now: member.force_master(now))

    def help(self, group: GroupPlan) -> None:
        """Act as the operator of a group without an active member: force the member with the longest log.

        A member that may serve by an older record is forced instead: no other can be while it runs.
        """
        asking = [
            (broker.store.log.written_end, host, broker.failover.member.why)
            for host in self._cluster.members(group)
            if (broker := host.broker) is not None
            and broker.failover is not None
            and "force-master" in broker.failover.member.why
        ]
        if asking:
            _, host, why = max(asking, key=lambda candidate: candidate[0])
            host = next(filter(self._older.may_serve, self._cluster.members(group)), host)
            self._world.consequence("operator", f"{host.name}: {why}")
            self._accept(host)

    def empty_left_behind(self, group: GroupPlan) -> None:
        """Empty the store of a slave that cannot follow its master.

        The master no longer has the log from the slave's end or from the point where their histories diverge, or the
        slave
        has nothing left of what they have in common.
        """
        leader = self._groups.leader(group) or self._cluster.members(group)[0]
        for host in self._cluster.members(group):
            if (
                host is leader
                or leader.broker is None
                or host.broker is None
                or host.wipes_us[-1:] == [self._world.now_us]
            ):
                continue
            ours, its = leader.broker.replication.generations, host.broker.replication.generations
            is_other = bool(its) and not {epoch for epoch, _ in ours} & {epoch for epoch, _ in its}
            parted = min([start for epoch, start in ours if epoch not in dict(its)], default=0)
            is_other = is_other or host.broker.store.log.start > parted > 0
            common_end = min(host.broker.store.log.written_end, parted or host.broker.store.log.written_end)
            if 0 < common_end < leader.broker.store.log.start or is_other:
                self._world.consequence("operator", f"{host.name}: its store is emptied, it was left behind")
                host.wipe()
                host.start()

    def end(self) -> None:
        """Undo everything that can be undone."""
        registry = self._groups.registry
        registry.delay_us, registry.watch_delay_us = 500, 0
        registry.start()
        super().end()
        self._changes.end()
