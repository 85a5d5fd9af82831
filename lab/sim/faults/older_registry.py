"""The registry is replaced by an older copy of its data, while its members run, or after all of them have stopped.

    backup ─── faults, messages ─── all members run ─► (killed) ─► restored ─► calm, members start in any order

Only in seeds whose groups all elect: in other modes offsets may go back. Members whose newest record the copy does not
contain must keep their logs until an operator decides. The others cannot know, and may be elected; what they lack is
then a loss like one that an operator has accepted.
"""

import json
from collections.abc import Callable
from random import Random

from lab.sim.checkers.groups import GroupChecks
from lab.sim.world.cluster import Host
from lab.sim.world.groups import GroupCluster, RegistryCopy, mode_of, stage_of
from lab.sim.world.world import MS, SECOND, World
from tandemq.broker.roles.journal import FILE
from tandemq.coordination.member.orders import MemberStage
from tandemq.coordination.registry.lineage import continues
from tandemq.coordination.registry.records import GroupState, Mode, state_from_fields
from tandemq.registry import NAME_SERVER

SHARE = 0.2
"""Share of the seeds in which the registry is replaced, among the seeds whose groups all elect."""
CALM_US = 12 * SECOND
LOOK_US = 250 * MS


class OlderRegistry:
    """The fault of one seed."""

    def __init__(self, world: World, cluster: GroupCluster, checks: GroupChecks, is_over: Callable[[], bool]) -> None:
        """Nothing is planned. `is_over`: whether faults have ended."""
        self._world = world
        self._cluster = cluster
        self._checks = checks
        self._is_over = is_over
        self._random = Random(f"{world.seed}-older-registry")
        self._copy: RegistryCopy | None = None
        self.is_planned = False
        self.calm_until_us = 0
        """No other fault strikes before."""

    def plan(self, until_us: int) -> None:
        """Draw whether and when it happens."""
        is_elect = all(mode_of(group) is Mode.ELECT for group in self._cluster.plan.groups)
        self.is_planned = is_elect and self._random.random() < SHARE
        if self.is_planned:
            copied_us = self._random.randrange(4 * SECOND, until_us // 2)
            self._world.at(copied_us, self._back_up)
            self._world.at(self._random.randrange(copied_us + SECOND, until_us - 2 * SECOND), self._restore)

    def _back_up(self) -> None:
        self._copy = self._cluster.copy_registry()

    def _restore(self) -> None:
        """Restore the copy as soon as no other fault is in progress."""
        copy = self._copy
        if copy is None or self._is_over():
            return
        if self._cluster.network.blocked or not all(map(self._is_well, self._cluster.hosts)):
            self._world.after(LOOK_US, self._restore)
            return
        self._world.fault("registry-older", self._cluster.groups_plan.registry)
        self.calm_until_us = self._world.now_us + CALM_US
        self._checks.older.restored(
            {host.name: seen for host in self._cluster.hosts if (seen := self._seen_more(host, copy)) is not None}
        )
        is_stopped = self._random.random() < 0.6
        for host in self._cluster.hosts if is_stopped else ():
            host.kill()
        self._cluster.restore_registry(copy)
        if self._cluster.groups_plan.registry == NAME_SERVER:
            address = self._cluster.plan.name_servers[0]
            self._later(1_000, lambda: self._cluster.start_name_server(address))
        for host in self._cluster.hosts if is_stopped else ():
            self._later(9_000, host.start)

    def _later(self, most_ms: int, call: Callable[[], None]) -> None:
        self._world.after(self._random.randrange(100 * MS, most_ms * MS), call)

    def _is_well(self, host: Host) -> bool:
        process = host.process
        is_running = process is not None and process.paused_until_us <= self._world.now_us
        return is_running and stage_of(host) in (MemberStage.SERVING, MemberStage.SLAVE)

    def _seen_more(self, host: Host, copy: RegistryCopy) -> GroupState | None:
        """Return the newest record that a member has seen and saved, if the copy's does not continue it.

        While its disk is full a member cannot save the record, acknowledges nothing, and may forget it.
        """
        saved = json.loads(host.machine.disk.peek(FILE.path, 1 << 20, 0, safe=False) or b"{}").get("seen")
        record = self._cluster.record_in(copy, host.group)
        if record is None or saved is None:
            return None
        seen = state_from_fields(FILE.path, saved)
        return None if continues(record, seen) else seen

    def may_serve(self, host: Host) -> bool:
        """Return whether a member serves by the older record, or is its master and waits; others have seen more."""
        failover = None if host.broker is None else host.broker.failover
        is_holder = stage_of(host) in (MemberStage.CLAIMING, MemberStage.PREPARING, MemberStage.SERVING)
        return failover is not None and is_holder and failover.member.is_record_older
