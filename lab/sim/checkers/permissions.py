"""Checks of I6: which broker may serve clients at which moment, and whether brokers keep to it.

After every turn of a broker all members of its group are asked, each by its own clock: at most one may be read, and at
most one written. Between turns permissions can only end. Paused brokers are included.

A delivery or an acknowledgement must have been permitted at some moment between request and response; a broker without
permission must not count a message as delivered or stored in its turn. The exception are messages that a slave in sync
delivers for the master with `slaveReadEnable`: `GroupChecks` checks how old they are.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from lab.sim.world.cluster import Host
from lab.sim.world.groups import GroupCluster, mode_of, state_of
from lab.sim.world.world import MS, SECOND, Violation, World
from tandemq.coordination.registry.records import GroupMode, GroupState, Mode

READ, WRITE, COMMIT = 0, 1, 2
WHAT = ("be read", "be written", "take commits")
NOTHING = (-1, -1, -1)
KEPT = 400
ROUNDING_US = 2 * MS
"""Tolerance: clocks show whole milliseconds, and run at slightly different speeds."""


@dataclass(slots=True)
class PermissionSpans:
    """Time spans in which one broker had one permission, µs; the last one may end in the future."""

    spans: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=KEPT))

    def note(self, now_us: int, until_us: int) -> None:
        """Extend or end the current span: the permission ends at `until_us`, which may be in the past."""
        if self.spans and self.spans[-1][1] >= now_us:
            start, end = self.spans.pop()
            self.spans.append((start, max(now_us, until_us) if until_us > now_us else min(end, now_us)))
        elif until_us > now_us:
            self.spans.append((now_us, until_us))

    def within(self, from_us: int, to_us: int) -> bool:
        """Return whether the permission held at some moment of an interval."""
        return any(start <= to_us and end >= from_us for start, end in reversed(self.spans))


class Permissions:
    """The permissions of all brokers of a run."""

    def __init__(self, world: World, cluster: GroupCluster) -> None:
        self._world = world
        self._cluster = cluster
        self._held: dict[str, tuple[PermissionSpans, PermissionSpans, PermissionSpans]] = {
            host.name: (PermissionSpans(), PermissionSpans(), PermissionSpans()) for host in cluster.hosts
        }
        self._members: dict[str, list[Host]] = {}
        for host in cluster.hosts:
            self._members.setdefault(host.group.name, []).append(host)
        self._done: dict[str, tuple[int, int]] = {}
        self._helped: dict[str, int] = {}
        self._records: dict[str, GroupState | None] = {}
        """Host to the record that it had read at the end of its last turn."""
        self.serving: dict[str, str] = {}
        """Group to the member that could be read last."""
        self.may_be_unaware: Callable[[Host], bool] = lambda _: False
        """Whether an older copy of the registry hides another member's takeover from a host."""
        self.changes: list[tuple[int, str, str, str]] = []
        """(time in µs, group, member read before, member read now)."""

    def _until_us(self, host: Host) -> tuple[int, int, int]:
        """Return when each permission of a broker ends, by its own clock; -1 for a permission that it lacks."""
        broker = host.broker
        if broker is None or broker.failover is None or not broker.kernel.own.address:
            return NOTHING
        member, machine = broker.failover.member, host.machine
        now_ms = machine.now().mono_ms
        may = (member.may_read(now_ms), member.may_write(now_ms), member.may_commit(now_ms))
        if not any(may):
            return NOTHING
        latest_us = self._world.now_us + 3600 * SECOND
        until_us = [min(machine.us_of(end_ms) + ROUNDING_US, latest_us) for end_ms in member.permitted_until]
        return (
            until_us[READ] if may[READ] else -1,
            until_us[WRITE] if may[WRITE] else -1,
            until_us[COMMIT] if may[COMMIT] else -1,
        )

    def turned(self, host: Host) -> None:
        """Check a broker after one of its turns."""
        if mode_of(host.group) is Mode.STATIC:
            return
        now_us = self._world.now_us
        held = self._held[host.name]
        until_us = self._until_us(host)
        for what in (READ, WRITE, COMMIT):
            held[what].note(now_us, until_us[what])
        self._judge_deeds(host, held)
        if until_us is NOTHING:
            return  # members without a turn have gained no permission since
        others = [(member, self._until_us(member)) for member in self._members[host.group.name] if member is not host]
        for what in (READ, WRITE):
            if until_us[what] < 0:
                continue
            found = [host, *(member for member, until in others if until[what] >= 0)]
            if len(found) > 1 and not any(map(self.may_be_unaware, found)):
                raise Violation("I6", f"{' and '.join(sorted(holder.name for holder in found))} may both {WHAT[what]}")
            if what == READ and self.serving.get(host.group.name) != host.name:
                before = self.serving.get(host.group.name, "")
                self.serving[host.group.name] = host.name
                self.changes.append((now_us, host.group.name, before, host.name))

    def stopped(self, host: Host) -> None:
        """Note that a broker stopped."""
        for held in self._held[host.name]:
            held.note(self._world.now_us, -1)
        self._done.pop(host.name, None)
        self._helped.pop(host.name, None)
        self._records.pop(host.name, None)

    def _judge_deeds(self, host: Host, held: tuple[PermissionSpans, PermissionSpans, PermissionSpans]) -> None:
        broker = host.broker
        assert broker is not None, "it was driven"
        now_us = self._world.now_us
        counters = broker.pull.counters
        if counters.helped > self._helped.get(host.name, 0):
            self._judge_help(host)
        self._helped[host.name] = counters.helped
        self._records[host.name] = state_of(host)
        done = (counters.messages - counters.helped, broker.puts.count)
        before, self._done[host.name] = self._done.get(host.name, (0, 0)), done
        for what in (READ, WRITE):
            if done[what] > before[what] and not held[what].within(now_us, now_us):
                raise Violation("I6", f"{host.name} served clients, and may not {WHAT[what]}")

    def _judge_help(self, host: Host) -> None:
        """Check a slave that delivered messages for the master."""
        broker = host.broker
        assert broker is not None and broker.failover is not None, "it was driven"
        state = broker.failover.member.view.state or self._records.get(host.name)  # it may have lost it behind the pull
        if state is None or state.mode is not GroupMode.NORMAL or broker.failover.member.id not in state.in_sync:
            raise Violation("I6", f"{host.name} delivered old messages, and the record it has read is {state}")
        if not broker.config.slave_read_enable:
            raise Violation("I6", f"{host.name} delivered old messages without slaveReadEnable")

    def permitted(self, host: Host, what: int, asked_us: int) -> bool:
        """Return whether a broker had permission between a request and its response that arrives now."""
        return self._held[host.name][what].within(asked_us, self._world.now_us)

    def answered(self, host: Host, what: int, asked_us: int) -> None:
        """Check that a broker had permission between a request and its successful response."""
        if mode_of(host.group) is Mode.STATIC:
            return
        if not self.permitted(host, what, asked_us):
            raise Violation(
                "I6", f"{host.name} did what was asked at {asked_us / SECOND:.3f} s, and could not {WHAT[what]} since"
            )
