"""Who may do what for clients at which moment, and whether that is kept: the checker of I6.

After every turn of a broker all members of its group are asked, each by its own clock, what they may do: at most one
may be read, at most one written. Between turns permissions only end. A broker that is paused is asked too.

What a client was given, or was told is stored, must have been permitted to that broker at some moment between the
question and the answer; and a broker that may do nothing must not count anything as given or stored in its turn.
"""

from collections import deque
from dataclasses import dataclass, field

from tandemq.coordination.registry.records import Mode
from tandemq.sim.world.cluster import Host
from tandemq.sim.world.groups import GroupCluster, mode_of
from tandemq.sim.world.world import MS, SECOND, Violation, World

READ, WRITE, COMMIT = 0, 1, 2
WHAT = ("be read", "be written", "take commits")
NOTHING = (-1, -1, -1)
KEPT = 400
ROUNDING_US = 2 * MS
"""Clocks show whole milliseconds, and run at speeds of their own."""


@dataclass(slots=True)
class Held:
    """Spans in which one broker had one permission, µs, the last one perhaps to come; `given` counts what it did."""

    spans: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=KEPT))

    def note(self, now_us: int, until_us: int) -> None:
        """From now on it ends at `until_us`, which may be past."""
        if self.spans and self.spans[-1][1] >= now_us:
            start, end = self.spans.pop()
            self.spans.append((start, max(now_us, until_us) if until_us > now_us else min(end, now_us)))
        elif until_us > now_us:
            self.spans.append((now_us, until_us))

    def within(self, from_us: int, to_us: int) -> bool:
        """Whether there was a moment of it."""
        return any(start <= to_us and end >= from_us for start, end in reversed(self.spans))


class Permissions:
    """The permissions of all brokers of a run."""

    def __init__(self, world: World, cluster: GroupCluster) -> None:
        """Nobody may do anything."""
        self._world = world
        self._cluster = cluster
        self._held: dict[str, tuple[Held, Held, Held]] = {host.name: (Held(), Held(), Held()) for host in cluster.hosts}
        self._members: dict[str, list[Host]] = {}
        for host in cluster.hosts:
            self._members.setdefault(host.group.name, []).append(host)
        self._done: dict[str, tuple[int, int]] = {}
        self.serving: dict[str, str] = {}
        """Group to the member that could be read last."""
        self.changes: list[tuple[int, str, str, str]] = []
        """(µs, group, who could be read before, who can be now)."""

    def _until_us(self, host: Host) -> tuple[int, int, int]:
        """When each permission of a broker ends, -1 without it at this moment, by its own clock."""
        broker = host.broker
        if broker is None or broker.failover is None or not broker.registration.address:
            return NOTHING
        member, machine = broker.failover.member, host.machine
        now_ms = machine.now().mono_ms
        may = (member.may_read(now_ms), member.may_write(now_ms), member.may_commit(now_ms))
        if not any(may):
            return NOTHING
        latest_us = self._world.now_us + 3600 * SECOND
        read, write, commit = (
            min(machine.us_of(member.permitted_until[what]) + ROUNDING_US, latest_us) if may[what] else -1
            for what in (READ, WRITE, COMMIT)
        )
        return read, write, commit

    def turned(self, host: Host) -> None:
        """A broker was driven."""
        if mode_of(host.group) is Mode.STATIC:
            return
        now_us = self._world.now_us
        held = self._held[host.name]
        until_us = self._until_us(host)
        for what in (READ, WRITE, COMMIT):
            held[what].note(now_us, until_us[what])
        self._judge_deeds(host, held)
        if until_us is NOTHING:
            return  # who was not driven has got nothing since
        others = [(member, self._until_us(member)) for member in self._members[host.group.name] if member is not host]
        for what in (READ, WRITE):
            if until_us[what] < 0:
                continue
            found = [host.name, *(member.name for member, until in others if until[what] >= 0)]
            if len(found) > 1:
                raise Violation("I6", f"{' and '.join(sorted(found))} may both {WHAT[what]}")
            if what == READ and self.serving.get(host.group.name) != host.name:
                before = self.serving.get(host.group.name, "")
                self.serving[host.group.name] = host.name
                self.changes.append((now_us, host.group.name, before, host.name))

    def stopped(self, host: Host) -> None:
        """A broker is gone."""
        for held in self._held[host.name]:
            held.note(self._world.now_us, -1)
        self._done.pop(host.name, None)

    def _judge_deeds(self, host: Host, held: tuple[Held, Held, Held]) -> None:
        broker = host.broker
        assert broker is not None, "it was driven"
        now_us = self._world.now_us
        done = (broker.pull.count, broker.send.count)
        before, self._done[host.name] = self._done.get(host.name, (0, 0)), done
        for what in (READ, WRITE):
            if done[what] > before[what] and not held[what].within(now_us, now_us):
                raise Violation("I6", f"{host.name} served clients, and may not {WHAT[what]}")

    def answered(self, host: Host, what: int, asked_us: int) -> None:
        """A client heard from a broker that what it asked for at a time was done."""
        if mode_of(host.group) is Mode.STATIC:
            return
        if not self._held[host.name][what].within(asked_us, self._world.now_us):
            raise Violation(
                "I6", f"{host.name} did what was asked at {asked_us / SECOND:.3f} s, and could not {WHAT[what]} since"
            )
