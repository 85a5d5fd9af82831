"""Configuration changes by an administrator while a group with a registry runs; see `administrator`.

    permission   of a member, most often the active one; soon changed again or back
    member       removed, its broker stopped or not, and added again
    weight       or priority in elections
    master       another one in slave-consume; then a switch, or a restart of the present master, or neither
    settings     minInSyncReplicas, which is no part of the configuration: each broker restarts with it

About every third seed has some, from a generator of its own. Contradictory changes are not attempted. What the group's
state forbids (such as removing its only master) is refused, and counted as a consequence. Some changes are followed by
a kill of the active member, or come just after a switch was ordered.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

from lab.sim.workload.administrator import Administrator
from lab.sim.world.cluster import Host
from lab.sim.world.groups import GroupCluster, ManagedGroup, mode_of
from lab.sim.world.world import MS, SECOND, World
from tandemq.coordination.registry.records import (
    BrokerPermission,
    GroupConfig,
    GroupMember,
    Mode,
    Role,
    contradictions,
    with_member,
)

RATE = 0.35
"""Share of the seeds with configuration changes."""
MEETS_A_KILL = 0.35
MEETS_A_SWITCH = 0.2
STOPS = 0.4
"""Share of the removed members whose broker is stopped."""


class ConfigurationFaults:
    """The configuration changes of one seed."""

    def __init__(self, world: World, cluster: GroupCluster, make: Callable[[], Administrator]) -> None:
        """`make`: creates the administrator, called if there are changes."""
        self._world = world
        self._cluster = cluster
        self._make = make
        self._random = Random(f"{world.seed}-configurations")
        self._administrator: Administrator | None = None
        self.is_over = False
        self.kill_leader: Callable[[Host], None] = lambda _: None
        self.switch: Callable[[Host, int], None] = lambda _host, _target: None
        """Kill the active member; order a switch to another one."""

    def plan(self, until_us: int) -> None:
        """Spread changes over the time up to `until_us`, in some seeds."""
        groups = [group for group in self._cluster.plan.groups if mode_of(group) is not Mode.STATIC]
        if not groups or self._random.random() >= RATE:
            return
        for _ in range(self._random.choice((1, 2, 2, 3, 4))):
            self._world.at(self._random.randrange(4 * SECOND, until_us - 3 * SECOND), self._strike)

    @property
    def administrator(self) -> Administrator:
        """Return the administrator."""
        if self._administrator is None:
            self._administrator = self._make()
        return self._administrator

    def end(self) -> None:
        """Restore all members with full permission, and change nothing more.

        Also called when the registry was lost: a member that is removed while there is no record may hold what no
        other has.
        """
        self.is_over = True
        for group in self._cluster.plan.groups:
            if self._administrator is not None and group.name in self._administrator.wanted:
                assert isinstance(group, ManagedGroup), "it was changed"
                self._administrator.restore(group.name, group.config())

    # Changes.

    def _strike(self) -> None:
        if self.is_over:
            return
        group = self._random.choice(
            [candidate for candidate in self._cluster.plan.groups if mode_of(candidate) is not Mode.STATIC]
        )
        assert isinstance(group, ManagedGroup), "it has a registry"
        kinds: list[tuple[int, Callable[[ManagedGroup], None]]] = [(5, self._permit), (5, self._drop), (1, self._weigh)]
        if mode_of(group) is Mode.ELECT:
            kinds.append((2, self._require))
        if mode_of(group) is Mode.SLAVE_CONSUME:
            kinds.append((4, self._name_master))
        self._random.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])[0](group)
        leader = self._cluster.leader(group)
        if leader is not None and self._random.random() < MEETS_A_KILL:
            self._later(0, 2_500, lambda: self.kill_leader(leader))

    def _later(self, low_ms: int, high_ms: int, action: Callable[[], None]) -> None:
        delay_us = self._random.randrange(low_ms, high_ms) * MS
        self._world.after(delay_us, lambda: None if self.is_over else action())

    def _present(self, group: ManagedGroup) -> GroupConfig:
        return self.administrator.wanted.get(group.name) or group.config()

    def _change(self, group: ManagedGroup, config: GroupConfig, kind: str, text: str) -> None:
        """Apply a change, unless it contradicts itself: a tool would not accept it."""
        if config != self._present(group) and not list(contradictions(config)):
            self.administrator.change(group.name, config, kind, text)

    def _member(self, group: ManagedGroup) -> GroupMember:
        """Return the active member, or any one."""
        config, leader = self._present(group), self._cluster.leader(group)
        found = config.member(leader.broker_id) if leader is not None and self._random.random() < 0.5 else None
        return found or self._random.choice(config.members)

    def _permit(self, group: ManagedGroup) -> None:
        member = self._member(group)
        self._meet_switch(group, member)
        permission = self._random.choice(
            [candidate for candidate in BrokerPermission if candidate is not member.permission]
        )
        self._set_permission(group, member.broker_id, permission)
        if self._random.random() < 0.8:
            self._later(500, 8_000, lambda: self._set_permission(group, member.broker_id, BrokerPermission.FULL))

    def _set_permission(self, group: ManagedGroup, broker_id: int, permission: BrokerPermission) -> None:
        config = self._present(group)
        member = config.member(broker_id)
        if member is not None:
            after = with_member(config, replace(member, permission=permission))
            self._change(group, after, "config-permission", f"{broker_id} {permission.value}")

    def _drop(self, group: ManagedGroup) -> None:
        config = self._present(group)
        member = self._random.choice(config.members)
        self._meet_switch(group, member)
        others = tuple(other for other in config.members if other is not member)
        self._change(group, replace(config, members=others), "config-drop", str(member.broker_id))
        host = next(candidate for candidate in self._cluster.members(group) if candidate.broker_id == member.broker_id)
        if self._random.random() < STOPS:
            self._later(100, 3_000, lambda: self._stop_dropped(group, host))
        self._later(1_500, 9_000, lambda: self._put_back(group, member, host))

    def _stop_dropped(self, group: ManagedGroup, host: Host) -> None:
        if self._present(group).member(host.broker_id) is None and host.process is not None:
            self._world.consequence("operator", f"{host.name}: it is stopped, it was taken out")
            host.stop()

    def _put_back(self, group: ManagedGroup, member: GroupMember, host: Host) -> None:
        config = self._present(group)
        if config.member(member.broker_id) is None:
            self._change(group, with_member(config, member), "config-return", str(member.broker_id))
        host.start()

    def _weigh(self, group: ManagedGroup) -> None:
        config = self._present(group)
        member = self._random.choice(config.members)
        weight, priority = self._random.choice((0, 1, 50, 10_000)), self._random.choice((-1, 0, 5))
        after = with_member(config, replace(member, weight=weight, priority=priority))
        self._change(group, after, "config-weight", f"{member.broker_id} {weight} {priority}")

    def _name_master(self, group: ManagedGroup) -> None:
        """Configure another master, and let the change take effect in one of the ways, or not yet."""
        config, leader = self._present(group), self._cluster.leader(group)
        chosen = self._random.choice(config.members).broker_id
        members = tuple(
            replace(member, role=Role.MASTER if member.broker_id == chosen else Role.SLAVE) for member in config.members
        )
        self._change(group, replace(config, members=members), "config-master", str(chosen))
        way = self._random.choice((self.switch, None, self._restart_master))
        if leader is not None and way is not None:
            self._later(300, 3_000, partial(way, leader, chosen))

    def _restart_master(self, host: Host, _chosen: int) -> None:
        self._restart(host)

    def _require(self, group: ManagedGroup) -> None:
        """Change minInSyncReplicas, broker by broker."""
        needed = self._random.randrange(1, group.slaves + 2)
        self._world.fault("config-min-in-sync", f"{group.name}: {needed}")
        for place, host in enumerate(self._cluster.members(group)[::-1]):
            host.config = replace(host.config, min_in_sync=needed)
            self._later(2_000 * place, 2_000 * place + 1_500, partial(self._restart, host))

    def _restart(self, host: Host) -> None:
        if host.process is not None:
            host.stop()
            self._later(50, 400, host.start)

    def _meet_switch(self, group: ManagedGroup, member: GroupMember) -> None:
        """In some cases order a switch to the member that is about to be changed."""
        leader = self._cluster.leader(group)
        if leader is not None and mode_of(group) is Mode.ELECT and self._random.random() < MEETS_A_SWITCH:
            self.switch(leader, member.broker_id)
