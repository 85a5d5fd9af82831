"""A broker of the simulated group: the real member, with minimal other parts."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tandemq.boundary import Now
from tandemq.coordination.liveness import TableProgress
from tandemq.coordination.member.machine import MemberMachine
from tandemq.coordination.member.orders import (
    BecomeMaster,
    BecomeSlave,
    CommandDone,
    HandOffsets,
    MemberSettings,
    MergeOffsets,
    Note,
    PermissionChanged,
)
from tandemq.coordination.registry.interface import RegistryRequest
from tandemq.coordination.registry.records import CopiedOffsets, GroupState, Mode
from tests.unit.coordination.client import RegistryClient

if TYPE_CHECKING:
    from tests.unit.coordination.world import World

CLUSTER, GROUP = "c", "g"
ALL_TABLES = TableProgress(has_needed=True, keeps_up=True)


class Link:
    """A replication connection from a slave to its master; messages are in order in each direction."""

    def __init__(self, world: "World", master: "Node", slave: "Node") -> None:
        self.world, self.master, self.slave = world, master, slave
        self.lives = (master.life, slave.life)
        self.is_open = True
        self.next = len(slave.log)
        self._at = {master.id: 0.0, slave.id: 0.0}

    def send(self, sender: "Node", deliver: Callable[[], None]) -> None:
        """Deliver at the other end, with a delay; messages that are cut or stalled meanwhile do not arrive."""
        world = self.world
        other = self.slave if sender is self.master else self.master
        if not self.is_open:
            return
        late = world.link_delay_ms.get(frozenset((self.master.id, self.slave.id)), 0)
        at = self._at[sender.id] = max(self._at[sender.id], world.now + world.delay() + late)

        def arrives() -> None:
            if not self.is_open:
                return
            if (sender.id, other.id) in world.stalled:
                world.after(40, arrives)
            elif world.is_paused(other):
                world.at(other.paused_until + 0.5, arrives)
            else:
                deliver()

        world.at(at, arrives)

    def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        for node, other in ((self.master, self.slave), (self.slave, self.master)):
            if self in node.links:
                node.links.remove(self)
                if node.member is not None:
                    node.input(lambda m, now, other=other: m.on_link(other.id, now, is_up=False))


class Node:
    """A broker reduced to its member, a log and a consumer offset."""

    def __init__(self, world: "World", node_id: int) -> None:
        self.world, self.id = world, node_id
        self.life = 0
        self.log: list[int] = []
        self.flushed = 0
        self._inbox: list[Callable[..., Any]] = []
        self.is_whole = True
        """Stored on its disk."""
        self.held = (0, 0)
        """Stored on its disk."""
        self.seen: GroupState | None = None
        """Stored on its disk."""
        self.epochs: list[tuple[int, int]] = []
        self.offset = 0
        self.commits: list[tuple[float, int]] = []
        """When offsets were committed here."""
        self.member: MemberMachine | None = None
        self.registry: RegistryClient | None = None
        self.links: list[Link] = []
        self.paused_until = 0.0
        self.drift = 1 + world.random.uniform(-0.02, 0.02) * world.drift_scale
        self.start_mono = world.random.randint(0, 1 << 30)
        self.now = Now(0, 0)
        self.role: BecomeMaster | BecomeSlave | None = None
        self.is_ready = False
        self.unacked: list[tuple[int, int]] = []
        self.ticking: float | None = None
        self.notes: list[str] = []
        self.done: list[CommandDone] = []

    # Life.

    def start(self) -> None:
        world = self.world
        self.life += 1
        world.disturb(self.id)
        self.role, self.is_ready, self.ticking = None, False, None
        self.unacked.clear()
        self._inbox.clear()
        settings = MemberSettings(
            CLUSTER, GROUP, self.id, address=f"h{self.id}:1", ha_address=f"h{self.id}:2", **world.settings
        )
        now = self.clock()
        epoch = self.epochs[-1][0] if self.epochs else 0
        self.member = MemberMachine(
            settings,
            now,
            log_end=len(self.log),
            log_epoch=epoch,
            is_log_whole=self.is_whole,
            held=self.held,
            seen=self.seen,
        )
        self.registry = RegistryClient(world, self)
        self.after_input()
        life = self.life
        world.after(world.random.randint(1, 300), lambda: self._every(life))

    def crash(self) -> None:
        if self.member is None:
            return
        self.is_whole, self.held, self.seen = self.member.is_log_whole, self.member.held, self.member.seen
        self.member, registry, self.registry = None, self.registry, None
        assert registry is not None
        if registry.connection is not None:
            registry.connection.is_open = False
            registry.connection = None
        for link in list(self.links):
            link.close()
        self.links.clear()

    def clock(self) -> Now:
        self.now.mono_ms = int(self.start_mono + self.world.now * self.drift)
        self.now.wall_ms = int(self.world.now)
        return self.now

    def input(self, give: Callable[..., Any]) -> None:
        """Something happens to the member; while it is paused, later."""
        if self.member is None:
            return
        if self.world.is_paused(self) or self._inbox:
            if not self._inbox:
                self._wake(self.life)
            self._inbox.append(give)
            return
        give(self.member, self.clock())
        self.after_input()

    def _wake(self, life: int) -> None:
        """Take what arrived during a pause, in order, when it is over."""
        if self.life != life or self.member is None:
            return
        if self.world.is_paused(self) or not self._inbox:
            self.world.at(self.paused_until + 0.1, lambda: self._wake(life))
            return
        inbox, self._inbox = self._inbox, []
        for give in inbox:
            self.input(give)

    def after_input(self) -> None:
        member, world = self.member, self.world
        assert member is not None
        while effects := member.next_effects():
            for effect in effects:
                self._carry_out(effect)
        due = member.deadline_ms()
        at = max(world.now + 1, (due - self.start_mono) / self.drift + 1)
        if self.ticking is None or at < self.ticking - 5:
            self.ticking = at
            world.at(at, lambda: self._tick(at, self_life))
        self_life = self.life
        world.check()

    def _tick(self, at: float, life: int) -> None:
        if self.member is None or life != self.life or self.ticking != at:
            return
        if self.world.is_paused(self):
            self.ticking = until = self.paused_until
            self.world.at(until, lambda: self._tick(until, life))
            return
        self.ticking = None
        self.input(lambda m, now: m.tick(now))

    def _carry_out(self, effect: object) -> None:
        world, member = self.world, self.member
        assert member is not None and self.registry is not None
        if isinstance(effect, RegistryRequest):
            self.registry.ask(effect)
        elif isinstance(effect, BecomeMaster):
            self.role, self.is_ready = effect, False
            for link in list(self.links):
                link.close()
            life = self.life
            world.after(world.random.randint(1, 40), lambda: self._ready(effect, life))
        elif isinstance(effect, BecomeSlave):
            is_same = isinstance(self.role, BecomeSlave) and self.role[:2] == effect[:2]
            self.role, self.is_ready = effect, False
            self.unacked.clear()
            if not is_same:
                for link in list(self.links):
                    link.close()
                self._connect(effect, self.life)
        elif isinstance(effect, HandOffsets):
            self._hand(effect)
        elif isinstance(effect, MergeOffsets):
            self.offset = max(self.offset, int(effect.copied.table))
            copied, life = effect.copied, self.life
            world.after(world.random.randint(1, 40), lambda: self._merged(copied, life))
        elif isinstance(effect, CommandDone):
            self.done.append(effect)
        elif isinstance(effect, Note):
            self.notes.append(effect.text)
            world.note(f"{self.id} {effect.text}")
        elif isinstance(effect, PermissionChanged):
            what = ("READ " if effect.may_read else "") + ("WRITE" if effect.may_write else "")
            world.note(f"{self.id} may {what.strip() or 'NOTHING'}")

    def _merged(self, copied: CopiedOffsets, life: int) -> None:
        """The merged offsets are saved."""
        if self.life == life:
            self.input(lambda m, now: m.on_merged(copied, now, is_saved=True))

    def _ready(self, order: BecomeMaster, life: int) -> None:
        if self.life != life or self.role != order or self.member is None:
            return
        if self.world.is_paused(self):
            self.world.at(self.paused_until, lambda: self._ready(order, life))
            return
        if not self.epochs or self.epochs[-1][0] < order.epoch:
            self.epochs.append((order.epoch, len(self.log)))
        self.is_ready = True
        self.flushed = len(self.log)
        self.world.began(self, order.epoch)
        self.input(lambda m, now: m.on_ready(order.epoch, len(self.log), now))

    # Replication.

    def _connect(self, order: BecomeSlave, life: int) -> None:
        world = self.world
        if self.life != life or self.role is None or self.role[:2] != order[:2] or self.member is None:
            return
        world.after(world.random.randint(50, 400), lambda: self._connect(order, life))
        master = world.nodes.get(order.master)
        if any(link.slave is self for link in self.links) or master is None or not world.reachable(self.id, master.id):
            return
        if world.is_paused(self) or world.is_paused(master) or master.member is None or not master.is_ready:
            return
        if not isinstance(master.role, BecomeMaster) or master.role.epoch != order.epoch:
            return
        self._agree(master)
        link = Link(world, master, self)
        master.links.append(link)
        self.links.append(link)
        master.input(lambda m, now: m.on_link(self.id, now, is_up=True))
        if link.is_open:
            self.input(lambda m, now: m.on_link(master.id, now, is_up=True))
        if link.is_open:
            self.report(link, 0)

    def _agree(self, master: "Node") -> None:
        """Cut what is not of the master's history."""
        end = len(self.log)
        common = 0
        for position in range(len(self.epochs) - 1, -1, -1):
            pair = self.epochs[position]
            if pair in master.epochs:
                at = master.epochs.index(pair)
                theirs = master.epochs[at + 1][1] if at + 1 < len(master.epochs) else len(master.log)
                ours = self.epochs[position + 1][1] if position + 1 < len(self.epochs) else end
                common = min(theirs, ours)
                break
        del self.log[common:]
        self.epochs = [pair for pair in master.epochs if pair[1] <= common]
        assert self.member is not None
        self.member.on_log(len(self.log), self.epochs[-1][0] if self.epochs else 0)

    def pump(self) -> None:
        for link in list(self.links):
            if link.master is self and link.next < len(self.log):
                start, data = link.next, self.log[link.next :]
                epochs = list(self.epochs)
                link.next = len(self.log)
                link.send(self, partial(link.slave.copy, link, start, data, epochs))

    def copy(self, link: Link, start: int, data: list[int], epochs: list[tuple[int, int]]) -> None:
        if start != len(self.log):
            link.close()
            return
        self.log += data
        self.epochs = [pair for pair in epochs if pair[1] <= len(self.log)]
        assert self.member is not None
        self.member.on_log(len(self.log), self.epochs[-1][0] if self.epochs else 0)
        self.member.on_heard(link.master.id, self.clock())
        self.report(link, 0)

    def report(self, link: Link, echo: int) -> None:
        end = len(self.log)
        link.send(self, lambda: link.master.reported(link, end, echo))

    def reported(self, link: Link, end: int, echo: int) -> None:
        self.input(lambda m, now: m.on_report(link.slave.id, end, echo, now, ALL_TABLES))
        self.acknowledge()

    def beat(self) -> None:
        member = self.member
        assert member is not None
        self.pump()
        heartbeat = member.heartbeat(self.clock())
        for link in list(self.links):
            other = link.slave if link.master is self else link.master
            if heartbeat is not None:
                link.send(self, partial(other.beaten, link, self, heartbeat))
            elif link.slave is self:
                self.report(link, 0)

    def beaten(self, link: Link, sender: "Node", heartbeat: Any) -> None:
        member = self.member
        assert member is not None
        echo = member.on_heartbeat(sender.id, heartbeat, self.clock())
        if link.slave is self:
            self.report(link, echo)
        else:
            link.send(self, lambda: sender.input(lambda m, now: m.on_report(self.id, -1, echo, now, ALL_TABLES)))

    def _every(self, life: int) -> None:
        if self.life != life or self.member is None:
            return
        if not self.world.is_paused(self):
            self.beat()
        self.world.after(self.member.heartbeat_ms, lambda: self._every(life))

    # Offsets.

    def _hand(self, order: HandOffsets) -> None:
        """A call of its own to the other broker, and its answer."""
        world, other, offset, life = self.world, self.world.nodes[order.to], self.offset, self.life

        def arrives() -> None:
            if not world.reachable(self.id, other.id) or other.member is None or world.is_paused(other):
                return
            is_taken = other.member.may_take_offsets(self.id, order.token)
            if is_taken:
                other.offset = max(other.offset, offset)
                other.input(lambda m, now: m.on_taken(self.id, order.token, now))
            world.after(world.delay(), lambda: answered(is_taken))

        def answered(is_taken: bool) -> None:
            if self.life == life and world.reachable(self.id, other.id):
                self.input(lambda m, now: m.on_handed(order.token, now, is_stored=is_taken))

        world.after(world.delay(), arrives)

    # Clients.

    def acknowledge(self) -> None:
        """Answer what every member that must have it has, if we may at this moment."""
        member = self.member
        if member is None or not self.unacked or not member.may_write(self.clock().mono_ms):
            return
        confirm = member.confirm_offset
        while self.unacked and self.unacked[0][0] < confirm:
            offset, message = self.unacked.pop(0)
            if len(member.must_ack) > 1 or not self.world.loses_disks:
                self.world.acked[offset] = message

    def take_message(self, message: int) -> bool:
        member = self.member
        if member is None or self.world.is_paused(self) or not self.is_ready:
            return False
        if not member.may_write(self.clock().mono_ms):
            return False
        self.log.append(message)
        self.unacked.append((len(self.log) - 1, message))
        member.on_log(len(self.log), self.epochs[-1][0])
        self.pump()
        self.acknowledge()
        return True

    def consume(self, count: int) -> bool:
        """A consumer reads some and commits."""
        member, world = self.member, self.world
        if member is None or world.is_paused(self):
            return False
        now_ms = self.clock().mono_ms
        if not member.may_read(now_ms):
            if member.may_commit(now_ms) and self.offset < len(self.log):
                self.offset += 1  # of what was pulled before
                self._committed()
            return False
        visible = len(self.log) if world.mode is not Mode.ELECT else min(member.confirm_offset, len(self.log))
        stop = min(self.offset + count, visible)
        if world.mode is Mode.ELECT and len(member.must_ack) > 1:
            for at in range(self.offset, stop):
                world.seen[at] = self.log[at]
        if stop > self.offset and member.may_commit(now_ms):
            self.offset = stop
            self._committed()
        return True

    def _committed(self) -> None:
        offset = self.offset
        self.commits.append((self.world.now, offset))
        self.input(lambda m, now: m.copy_offsets(b"%d" % offset, now))
