"""Schedules of faults, one per seed, and the conditions that must hold in the end.

    seed ─► mode, size, clocks ─► traffic and faults for some seconds ─► all healed ─► the group serves again

Every fault ends by itself or when all is healed. A disk is lost at most once per schedule, and only while another
member in sync has all messages.
"""

from dataclasses import replace
from functools import partial
from random import Random
from typing import TypeVar

from tandemq.coordination.member.orders import MemberStage
from tandemq.coordination.registry.records import GroupMode, Mode, Role
from tests.unit.coordination.world import Violation, World

Key = TypeVar("Key")
FAULTY_MS = 14_000
RECOVERY_MS = 25_000
REGISTRY_LOST = 0.2
"""Share of schedules in which the registry loses the group's record, drawn by a separate generator. No disk is lost in
these, because a member with an empty store takes an empty registry for a new group's."""


class Schedule:
    """The schedule of one seed."""

    def __init__(self, seed: int, *, traced: bool = False) -> None:
        mode = Mode.ELECT if seed % 2 else Mode.SLAVE_CONSUME
        size = 3 if seed % 4 in (2, 3) else 2
        self.seed = seed
        master = seed // 4 % size if mode is Mode.SLAVE_CONSUME else None
        self.world = World(seed, mode, size=size, master=master, traced=traced)
        self.random = self.world.random
        self._may_lose_disk = self.world.loses_disks = seed % 3 == 0
        self._is_faulty = True

    def run(self) -> World:
        """Run the schedule. Raises Violation."""
        world = self.world
        world.after(100, self._traffic)
        world.after(self.random.uniform(100, 4_000), self._fault)
        dice = Random(f"{self.seed}-registry")
        if dice.random() < REGISTRY_LOST and not self._may_lose_disk:
            world.at(dice.uniform(1_000, FAULTY_MS), world.lose_registry)
        world.run(FAULTY_MS)
        self._is_faulty = False
        world.heal()
        if not world.run_until(self._is_healthy, RECOVERY_MS) and not self._ask_operator():
            raise Violation(f"seed {self.seed}: not healthy after {RECOVERY_MS} ms: {self._show()}")
        world.run(world.now + 1_500)
        if world.mode is Mode.ELECT:
            world.check_history(world.nodes[world.record.master])
        return world

    def _traffic(self) -> None:
        self.world.traffic()
        self.world.after(self.random.uniform(20, 120), self._traffic)

    def _is_healthy(self) -> bool:
        world, record = self.world, self.world.record
        if record is None or record.mode is not GroupMode.NORMAL or len(record.in_sync) < len(world.nodes):
            return False
        return world.readers() == world.writers() == [record.master]

    def _ask_operator(self) -> bool:
        """A master that may have lost something, and nobody in sync has more: only an operator may decide that."""
        world = self.world
        if world.record is None:
            return False
        master = world.nodes[world.record.master]
        if master.member is None or master.member.is_log_whole or world.stage(master.id) is not MemberStage.CLAIMING:
            return False
        if world.record.in_sync != (master.id,):
            return False
        world.is_unclean = True
        master.input(lambda m, now: m.force_master(now))
        return world.run_until(self._is_healthy, RECOVERY_MS)

    def _show(self) -> str:
        world = self.world
        members = [f"{n.id} {n.member.status(n.clock()) if n.member else 'down'}" for n in world.nodes.values()]
        return f"{world.record}\n" + "\n".join(members)

    # Faults.

    def _fault(self) -> None:
        if not self._is_faulty:
            return
        kinds = [
            self._crash,
            self._crash,
            self._lose_disk,
            self._pause,
            self._cut_registry,
            self._cut_registry,
            self._flicker,
            self._cut_link,
            self._stall,
            self._stop_registry,
            self._expire,
            self._slow,
            self._switch,
            self._configure_master,
            self._isolate,
            self._lag,
            self._late_registry,
        ]
        self.random.choice(kinds)()
        self.world.after(self.random.choice((50, 300, 1_000, 3_000)) * self.random.random() * 2, self._fault)

    def _some(self) -> int:
        record = self.world.record
        if record is not None and self.random.random() < 0.5:
            return int(record.reader)
        return self.random.choice(list(self.world.nodes))

    def _later(self) -> float:
        return self.random.choice((100, 700, 2_000, 5_000)) * (0.5 + self.random.random())

    def _crash(self) -> None:
        node = self.world.nodes[self._some()]
        node.crash()
        self.world.after(self._later(), lambda: node.start() if node.member is None else None)

    def _lose_disk(self) -> None:
        """A machine goes down, with the end of its log, or with all of it."""
        world, record = self.world, self.world.record
        node = world.nodes[self._some()]
        others = [one for one in world.nodes.values() if one is not node]
        is_safe = record is not None and len(record.in_sync) == len(world.nodes) and node.member is not None
        if not (self._may_lose_disk and is_safe and all(one.member is not None for one in others)):
            return
        if world.mode is not Mode.ELECT:
            return  # there the broker takes the end of its log back from its slave before it is ready
        self._may_lose_disk = False
        node.crash()
        keep = 0 if self.random.random() < 0.4 else min(node.flushed, len(node.log))
        del node.log[keep:]
        node.epochs = [pair for pair in node.epochs if pair[1] <= keep] if keep else []
        node.offset = min(node.offset, keep)
        node.is_whole = False
        world.after(self._later(), lambda: node.start() if node.member is None else None)

    def _pause(self) -> None:
        self.world.pause(self._some(), self._later())

    def _cut_registry(self) -> None:
        node = self._some()
        self.world.cut_registry(node)
        self.world.after(self._later(), lambda: self.world.cut_from_registry.discard(node))

    def _flicker(self) -> None:
        """The connection breaks and is found again at once."""
        client = self.world.nodes[self._some()].registry
        if client is not None:
            client.cut()

    def _pair(self) -> tuple[int, int]:
        one, other = self.random.sample(list(self.world.nodes), 2)
        return one, other

    def _cut_link(self) -> None:
        one, other = self._pair()
        self.world.cut_link(one, other)
        self.world.after(self._later(), lambda: self.world.cut_links.discard(frozenset((one, other))))

    def _isolate(self) -> None:
        """From everybody, clients excepted."""
        node = self._some()
        self.world.cut_registry(node)
        self.world.after(self._later(), lambda: self.world.cut_from_registry.discard(node))
        for other in self.world.nodes:
            if other != node:
                self.world.cut_link(node, other)
                self.world.after(self._later(), partial(self.world.cut_links.discard, frozenset((node, other))))

    def _stall(self) -> None:
        pair = self._pair()
        self.world.stalled.add(pair)
        self.world.after(self._later(), lambda: self.world.stalled.discard(pair))

    def _stop_registry(self) -> None:
        if self.world.is_registry_up:
            self.world.stop_registry()
            self.world.after(self._later() / 2, self.world.start_registry)

    def _expire(self) -> None:
        """The registry ends a session that lives."""
        client = self.world.nodes[self._some()].registry
        if client is not None and client.session and self.world.is_registry_up:
            client.cut()
            self.world.cut_from_registry.add(client.node.id)
            self.world.after(SESSION_OVER_MS, lambda: self.world.cut_from_registry.discard(client.node.id))

    def _slow(self) -> None:
        """Messages take long, and watches longer."""
        world = self.world
        world.delay_ms_max, world.watch_delay_ms = self.random.choice(((80, 0), (12, 1_500), (300, 800)))

        def over() -> None:
            world.disturb()
            world.delay_ms_max, world.watch_delay_ms = 12.0, 0.0

        world.after(self._later(), over)

    def _lag(self) -> None:
        """Two members copy from each other with a delay."""
        pair = frozenset(self._pair())
        self.world.link_delay_ms[pair] = self.random.choice((100, 500, 1_500))
        self.world.after(self._later(), lambda: self._over(self.world.link_delay_ms, pair))

    def _late_registry(self) -> None:
        """Requests of one member reach the registry late."""
        node = self._some()
        self.world.registry_delay_ms[node] = self.random.choice((100, 400, 1_200))
        self.world.after(self._later(), lambda: self._late_no_more(node))

    def _late_no_more(self, node: int) -> None:
        self.world.disturb(node)
        self._over(self.world.registry_delay_ms, node)

    def _over(self, delays: dict[Key, float], key: Key) -> None:
        delays.pop(key, None)

    def _configure_master(self) -> None:
        """An administrator makes another member the master, and may restart the present one."""
        world = self.world
        chosen = self.random.choice(list(world.nodes))
        if world.mode is not Mode.SLAVE_CONSUME:
            return
        members = tuple(
            replace(one, role=Role.MASTER if one.broker_id == chosen else Role.SLAVE) for one in world.config.members
        )
        world.config = replace(world.config, members=members)
        world.configure(world.config)
        if self.random.random() < 0.5 and world.record is not None:
            node = world.nodes[world.record.master]
            node.crash()
            world.after(self._later(), lambda: node.start() if node.member is None else None)

    def _switch(self) -> None:
        """An operator orders a switch, or consumers are quick to drain."""
        world = self.world
        target = self.random.choice(list(world.nodes))
        for node in world.nodes.values():
            if node.member is not None:
                node.input(lambda m, now: m.switch(target, now))
                node.input(lambda m, now: m.on_drained(now))


SESSION_OVER_MS = 2_100
