"""Checks of group configurations while they change: permissions of members, and whose replica counts.

    I6    a member without permission by the configuration it has read serves nothing; no member elects a master that
          may not be written, or takes over reading for one that may not be read, unless an operator forces it; a slave
          takes over reading only while it is in sync, and the last slave of a slave-consume group stays in sync
    I14   a removed member leaves the in-sync set as soon as the registry allows it
          at the end the master of a slave-consume group is the configured one, if that was so when it started
    I17   an acknowledgement counts members only; with fewer in sync than minInSyncReplicas nothing is stored

Until a broker has read a change, the previous configuration counts for it.
"""

from collections import deque
from dataclasses import dataclass, field

from lab.sim.world.cluster import Host
from lab.sim.world.groups import GroupCluster, mode_of
from lab.sim.world.world import SECOND, Violation, World
from tandemq.broker.node import Broker
from tandemq.coordination.member.machine import MemberMachine
from tandemq.coordination.member.orders import MemberStage
from tandemq.coordination.registry.records import NOBODY, BrokerPermission, GroupConfig, GroupMode, GroupState, Mode
from tandemq.coordination.registry.view import Pending

LEAVES_US = 3 * SECOND
"""Time limit for an active master that can write the record to remove a former member from the in-sync set."""
KEPT = 50
FOR_EVER = 1 << 62


@dataclass(slots=True)
class BrokerObservations:
    """Configurations that one broker process has read, and how it acted on them."""

    configs: deque[tuple[int, GroupConfig | None]] = field(default_factory=lambda: deque([(0, None)], maxlen=KEPT))
    """(time of reading in µs, configuration)."""
    right: BrokerPermission | None = None
    """Permission by the last of `configs`; None: not determined yet."""
    pending: Pending | None = None
    stays_us: int | None = None
    """Time since which it could have removed a former member from the in-sync set."""
    is_short: bool = False
    stored: int = 0
    first_master: int = NOBODY
    """The master by the first configuration read."""
    is_master_since_start: bool = True
    """Whether every record read names it as master."""


class Configurations:
    """The configurations of all groups in a run."""

    def __init__(self, world: World, cluster: GroupCluster) -> None:
        self._world = world
        self._cluster = cluster
        self._seen: dict[str, BrokerObservations] = {}
        self._out_until_us: dict[str, int] = {}
        """Host to the time until which it may not have been a member."""
        self.forced_until_us: dict[str, int] = {}
        """Group to the end of an operator's force-master; set by the owner."""

    # The registry's content.

    def ordered(self, name: str, config: GroupConfig) -> None:
        """Note that the registry may contain a configuration from now on."""
        for host in self._hosts(name):
            if config.member(host.broker_id) is None:
                self._out_until_us[host.name] = FOR_EVER

    def settled(self, name: str, config: GroupConfig) -> None:
        """Note that the registry contains a configuration."""
        for host in self._hosts(name):
            if config.member(host.broker_id) is not None and self._out_until_us.get(host.name) == FOR_EVER:
                self._out_until_us[host.name] = self._world.now_us

    def _hosts(self, name: str) -> list[Host]:
        return [host for host in self._cluster.hosts if host.group.name == name]

    def was_out(self, host: Host, since_us: int) -> bool:
        """Return whether a host may have been outside the group since a time, so that its replica did not count."""
        return self._out_until_us.get(host.name, -1) >= since_us

    # The content that a broker has read.

    def known(self, host: Host, since_us: int) -> list[GroupConfig]:
        """Return the configurations that a broker acted by since a time."""
        found: list[GroupConfig] = []
        for from_us, config in reversed(self._seen_by(host).configs):
            if config is not None:
                found.append(config)
            if from_us < since_us:
                break
        return found

    def names(self, host: Host, broker_id: int) -> bool:
        """Return whether a broker is a member by the configuration that a host has read."""
        config = self._seen_by(host).configs[-1][1]
        return config is None or config.member(broker_id) is not None

    def successor(self, host: Host) -> int:
        """Return the member that a master of `slave-consume` must hand over to, because it was the configured master
        already when this one started as master; NOBODY if there is none."""
        seen = self._seen_by(host)
        config = seen.configs[-1][1]
        if config is None or config.mode is not Mode.SLAVE_CONSUME or config.master is None:
            return NOBODY
        is_due = seen.is_master_since_start and config.master.broker_id == seen.first_master != host.broker_id
        return seen.first_master if is_due else NOBODY

    def _seen_by(self, host: Host) -> BrokerObservations:
        return self._seen.setdefault(host.name, BrokerObservations())

    def stopped(self, host: Host) -> None:
        """Note that a broker stopped."""
        if host.name in self._seen:
            configs = self._seen[host.name].configs
            configs.append((self._world.now_us, None))
            self._seen[host.name] = BrokerObservations(configs)

    def turned(self, host: Host, broker: Broker) -> None:
        """Check a broker after one of its turns."""
        if broker.failover is None or mode_of(host.group) is Mode.STATIC or not broker.kernel.own.address:
            return
        seen, member = self._seen_by(host), broker.failover.member
        config, before = member.view.config, seen.configs[-1][1]
        if config is not before:
            seen.configs.append((self._world.now_us, config))
            if before is None and config is not None and config.master is not None:
                seen.first_master = config.master.broker_id
        if member.view.state is not None and member.view.state.master != host.broker_id:
            seen.is_master_since_start = False
        if seen.right is None or config is not before:
            seen.right = _right(config, host.broker_id)
        self._judge_rights(host, member, seen.right)
        if member.view.pending is not seen.pending:
            seen.pending = member.view.pending
            if seen.pending is not None:
                self._judge_record(host, member, seen.pending.state, (before, config))
        if member.mode is Mode.ELECT:
            self._judge_leaving(host, member, seen)
            self._judge_shortness(host, broker, seen)

    def _judge_rights(self, host: Host, member: MemberMachine, right: BrokerPermission) -> None:
        if right is BrokerPermission.FULL:
            return
        now_ms = host.machine.now().mono_ms
        for what, may, is_right in (
            ("be read", member.may_read(now_ms), right.may_read),
            ("be written", member.may_write(now_ms), right.may_write),
            ("take commits", member.may_commit(now_ms), right.may_read),
        ):
            if may and not is_right:
                raise Violation("I6", f"{host.name} may {what}, and has read that it may not: {right.value}")

    def _judge_record(
        self, host: Host, member: MemberMachine, new: GroupState, configs: tuple[GroupConfig | None, ...]
    ) -> None:
        """Check a group record that a broker starts to write, by its state before and after the turn."""
        state = member.view.state
        if self.forced_until_us.get(host.group.name, -1) >= self._world.now_us:
            return
        if (member.mode is Mode.ELECT and state is None) or (state is not None and new.master != state.master):
            if not any(_right(config, new.master).may_write for config in configs):
                raise Violation(
                    "I6",
                    f"{host.name} makes {new.master} the master, and has read that it may not be "
                    f"written to: {configs[-1]}",
                )
        elif new.mode is GroupMode.SLAVE_CONSUME and state is not None and state.mode is GroupMode.NORMAL:
            both = (new.master, new.reader)
            if not any(all(_right(config, broker_id).may_read for broker_id in both) for config in configs):
                raise Violation(
                    "I6",
                    f"{host.name} reads for {new.master}, and has read that one of them may not be read: {configs[-1]}",
                )
            if new.reader not in state.in_sync:
                raise Violation("I6", f"{host.name} takes over reading, and in sync are {state.in_sync}")
        elif member.mode is Mode.SLAVE_CONSUME and state is not None and new.epoch == state.epoch:
            left = {
                broker_id
                for broker_id in state.in_sync
                if broker_id not in new.in_sync and _may_read(configs, broker_id, always=True)
            }
            if left and not any(_may_read(configs, broker_id) for broker_id in new.in_sync if broker_id != new.master):
                raise Violation("I6", f"{host.name} lets {sorted(left)} leave, and no other slave could serve reads")

    def _judge_leaving(self, host: Host, member: MemberMachine, seen: BrokerObservations) -> None:
        state, config = member.view.state, member.view.config
        removed = (
            [broker_id for broker_id in state.in_sync if config.member(broker_id) is None] if state and config else []
        )
        if not removed or member.stage is not MemberStage.SERVING or not member.view.may_propose:
            seen.stays_us = None
        elif seen.stays_us is None:
            seen.stays_us = self._world.now_us
        elif self._world.now_us - seen.stays_us > LEAVES_US:
            raise Violation("I14", f"{host.name} leaves {removed} in sync, which are no longer members")

    def _judge_shortness(self, host: Host, broker: Broker, seen: BrokerObservations) -> None:
        """Check that nothing is stored in a turn before and after which too few members are in sync."""
        assert broker.failover is not None, "masters are elected"
        member, stored = broker.failover.member, broker.puts.count
        state = member.view.state
        count = 0 if state is None else sum(self.names(host, broker_id) for broker_id in state.in_sync)
        was_short, seen.is_short = seen.is_short, state is not None and count < broker.config.min_in_sync
        if was_short and seen.is_short and stored > seen.stored:
            raise Violation(
                "I17", f"{host.name} takes messages, and {count} members are in sync, not {broker.config.min_in_sync}"
            )
        seen.stored = stored


def _may_read(configs: tuple[GroupConfig | None, ...], broker_id: int, *, always: bool = False) -> bool:
    """Return whether a member may be read by any of these configurations, or `always` by all of them."""
    rights = [_right(config, broker_id).may_read for config in configs]
    return all(rights) if always else any(rights)


def _right(config: GroupConfig | None, broker_id: int) -> BrokerPermission:
    found = config.member(broker_id) if config is not None and broker_id != NOBODY else None
    return BrokerPermission.NONE if found is None else found.permission
