"""A simulated broker group: real members, a registry, connections, clients, faults, and invariants.

Time is one virtual clock in milliseconds; each member's own clock has an offset and up to 2 % drift. Logs are lists of
numbers, one per message. Only the members are real code; all other parts are minimal.
"""

import heapq
from collections.abc import Callable
from random import Random
from typing import Any

from tandemq.coordination.member.orders import MemberStage
from tandemq.coordination.registry.interface import Changed, Create, NodeFound, Read, Write
from tandemq.coordination.registry.records import (
    BrokerPermission,
    GroupConfig,
    GroupMember,
    GroupMode,
    GroupState,
    Mode,
    Role,
    config_path,
    config_to_json,
    state_from_json,
    state_path,
    state_to_json,
)
from tandemq.coordination.registry.tree import Change, Tree
from tests.unit.coordination.node import CLUSTER, GROUP, Node

UNDISTURBED_MS = 6_000
COPIED_MS = 1_500
"""What was committed longer before the end of a reader is in the registry."""


class Violation(AssertionError):
    """An invariant was violated."""


class World:
    """All parts of the group, and the virtual clock."""

    def __init__(
        self,
        seed: int,
        mode: Mode,
        *,
        size: int = 2,
        master: int | None = None,
        drift_scale: float = 1.0,
        traced: bool = False,
        started: bool = True,
        **settings: Any,
    ) -> None:
        self.random = Random(seed)
        self.mode, self.settings, self.drift_scale = mode, settings, drift_scale
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.tree = Tree()
        self.is_registry_up = True
        self.cut_from_registry: set[int] = set()
        self.cut_links: set[frozenset[int]] = set()
        self.stalled: set[tuple[int, int]] = set()
        self.watch_delay_ms = 0.0
        self.link_delay_ms: dict[frozenset[int], float] = {}
        """Of replication links of some pairs, each way."""
        self.registry_delay_ms: dict[int, float] = {}
        """Of requests of some members, beyond what all have."""
        self.delay_ms_max = 12.0
        self.acked: dict[int, int] = {}
        self.seen: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        self.is_unclean = False
        self.loses_disks = False
        """What one member alone acknowledged may be lost then."""
        self.last_reader = -1
        self.disturbed_ms: dict[int, float] = {}
        """When a fault last kept a member from the registry, or delayed it."""
        self.is_traced = traced
        self.trace: list[str] = []
        self.message = 0
        ids = range(size) if mode is Mode.SLAVE_CONSUME else range(1, size + 1)
        self.nodes = {number: Node(self, number) for number in ids}
        first = ids[0] if master is None else master
        members = tuple(
            GroupMember(number, Role.MASTER if number == first else Role.SLAVE, BrokerPermission.FULL) for number in ids
        )
        self.config = GroupConfig(mode, members)
        self.admin = self.tree.open_session(60_000, "admin", 0)
        self.tree.execute(self.admin, Create(config_path(CLUSTER, GROUP), config_to_json(self.config)))
        if started:
            for node in self.nodes.values():
                node.start()
        self.after(50, self._expire)

    # Time.

    @property
    def clock_ms(self) -> int:
        """The registry's clock."""
        return int(self.now)

    def at(self, time: float, call: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (max(time, self.now), self._count, call))

    def after(self, delay: float, call: Callable[[], None]) -> None:
        self.at(self.now + delay, call)

    def run(self, until: float) -> None:
        while self._heap and self._heap[0][0] <= until:
            self.now, _, call = heapq.heappop(self._heap)
            call()
        self.now = until
        self.check()

    def step_until(self, condition: Callable[[], bool], within: float) -> bool:
        """Like `run_until`, one event at a time: stops at the very moment."""
        end = self.now + within
        while not condition():
            if not self._heap or self._heap[0][0] > end:
                return False
            self.now, _, call = heapq.heappop(self._heap)
            call()
        return True

    def run_until(self, condition: Callable[[], bool], within: float) -> bool:
        """Let time pass until something is so; whether it was in time."""
        end = self.now + within
        while not condition():
            if self.now >= end:
                return False
            self.run(self.now + 20)
        return True

    def delay(self) -> float:
        return self.random.uniform(0.2, self.delay_ms_max)

    def _expire(self) -> None:
        self.tree.touch(self.admin, self.clock_ms)
        if self.is_registry_up:
            self.tree.expire(self.clock_ms)
            self.fire_watches()
        self.after(50, self._expire)

    def fire_watches(self) -> None:
        for session, path in self.tree.take_fired():
            for node in self.nodes.values():
                client = node.registry
                if client is not None and client.session == session and client.connection is not None:
                    extra = self.random.uniform(0, self.watch_delay_ms)
                    client._tell(client.connection, Changed(path), extra)

    # Who reaches whom.

    def registry_reachable(self, node: int) -> bool:
        return self.is_registry_up and node not in self.cut_from_registry

    def reachable(self, one: int, other: int) -> bool:
        return frozenset((one, other)) not in self.cut_links

    def is_paused(self, node: Node) -> bool:
        return node.paused_until > self.now

    # Faults.

    def disturb(self, *nodes: int) -> None:
        """Note that a fault touches these members now; without arguments: all."""
        self.disturbed_ms |= dict.fromkeys(nodes or self.nodes, self.now)

    def cut_registry(self, node: int) -> None:
        self.disturb(node)
        self.cut_from_registry.add(node)
        client = self.nodes[node].registry
        if client is not None:
            client.cut()

    def join_registry(self, node: int) -> None:
        self.disturb(node)
        self.cut_from_registry.discard(node)

    def stop_registry(self) -> None:
        self.is_registry_up = False
        for node in self.nodes.values():
            if node.registry is not None:
                node.registry.cut()

    def start_registry(self) -> None:
        self.disturb()
        self.is_registry_up = True
        for node in self.nodes.values():
            if node.registry is not None and node.registry.session:
                self.tree.touch(node.registry.session, self.clock_ms)

    def lose_registry(self, *, state: GroupState | None = None) -> None:
        """All it had is gone but the configuration, which an operator brought; or an older `state`, too."""
        self.stop_registry()
        self.tree = Tree()
        self.admin = self.tree.open_session(60_000, "admin", self.clock_ms)
        self.tree.execute(self.admin, Create(config_path(CLUSTER, GROUP), config_to_json(self.config)))
        if state is not None:
            self.tree.execute(self.admin, Create(state_path(CLUSTER, GROUP), state_to_json(state)))
        self.start_registry()

    def copy_registry(self) -> list[Change]:
        """A backup of the registry's data: nodes and sessions."""
        return self.tree.snapshot()

    def restore_registry(self, copy: list[Change]) -> None:
        """The registry's data are replaced by an older copy."""
        self.stop_registry()
        self.tree = Tree()
        self.tree.restore(copy)
        self.start_registry()

    def cut_link(self, one: int, other: int) -> None:
        self.cut_links.add(frozenset((one, other)))
        for link in list(self.nodes[one].links):
            if other in (link.master.id, link.slave.id):
                link.close()

    def pause(self, node: int, ms: float) -> None:
        until = self.nodes[node].paused_until = max(self.nodes[node].paused_until, self.now + ms)
        self.disturbed_ms[node] = until

    def configure(self, config: GroupConfig) -> None:
        path = config_path(CLUSTER, GROUP)
        found = self.tree.execute(self.admin, Read(path))
        assert isinstance(found, NodeFound)
        self.tree.execute(self.admin, Write(path, config_to_json(config), found.version))
        self.fire_watches()

    def write_state(self, state: GroupState) -> None:
        """As an operator's tool does."""
        found = self.tree.execute(self.admin, Read(state_path(CLUSTER, GROUP)))
        assert isinstance(found, NodeFound)
        self.tree.execute(self.admin, Write(state_path(CLUSTER, GROUP), state_to_json(state), found.version))
        self.fire_watches()

    def heal(self) -> None:
        self.cut_from_registry.clear()
        self.cut_links.clear()
        self.stalled.clear()
        self.link_delay_ms.clear()
        self.registry_delay_ms.clear()
        self.watch_delay_ms, self.delay_ms_max = 0.0, 12.0
        if not self.is_registry_up:
            self.start_registry()
        for node in self.nodes.values():
            if node.member is None:
                node.start()

    # What is so.

    @property
    def record(self) -> Any:
        found = self.tree.execute(self.admin, Read(state_path(CLUSTER, GROUP)))
        return state_from_json(GROUP, found.data) if isinstance(found, NodeFound) else None

    def readers(self) -> list[int]:
        return [n.id for n in self.nodes.values() if n.member is not None and n.member.may_read(n.clock().mono_ms)]

    def writers(self) -> list[int]:
        return [n.id for n in self.nodes.values() if n.member is not None and n.member.may_write(n.clock().mono_ms)]

    def note(self, text: str) -> None:
        if self.is_traced:
            self.trace.append(f"{self.now:9.0f} {text}")

    # What must hold.

    def check(self) -> None:
        """After every event; between events permissions only end."""
        readers, writers = self.readers(), self.writers()
        if readers and readers[0] != self.last_reader:
            before, after, record = self.nodes.get(self.last_reader), self.nodes[readers[0]], self.record
            self.last_reader = after.id
            is_handed = record.reason.startswith("switch") or "handed its offsets over" in record.reason
            is_checked = self.mode is Mode.SLAVE_CONSUME and is_handed and not self.is_unclean
            if before is not None and is_checked and after.offset < before.offset:
                raise Violation(f"at {self.now:.0f} offset {before.offset} goes back to {after.offset}")
            if before is not None and "takes reading back" in record.reason:
                self._check_copies(before, after)
            self._check_freshness(after, record)
        if len(readers) > 1 or len(writers) > 1:
            raise Violation(f"at {self.now:.0f} readers {readers}, writers {writers}")

    def _check_copies(self, before: Node, after: Node) -> None:
        """A master that follows a reader which is gone has what was committed there, but for the last seconds."""
        is_slow = self.delay_ms_max > 12 or self.registry_delay_ms or not self.is_registry_up
        if before.member is not None or is_slow or self.is_unclean or not before.commits:
            return
        died = before.commits[-1][0]
        if self.disturbed_ms.get(before.id, 0) > died - UNDISTURBED_MS:
            return
        least = max((offset for at, offset in before.commits if at <= died - COPIED_MS), default=0)
        if after.offset < least:
            raise Violation(
                f"at {self.now:.0f} offset {least}, committed before {died - COPIED_MS:.0f}, is {after.offset}"
            )

    def _check_freshness(self, reader: Node, record: Any) -> None:
        """A slave that begins to serve reads has the longest log of those in sync that could have done so."""
        if record.mode is not GroupMode.SLAVE_CONSUME or not record.reason.startswith(f"broker {reader.id} reads for"):
            return
        is_slow = self.delay_ms_max > 12 or self.watch_delay_ms or self.registry_delay_ms
        is_crash = self.now - self.disturbed_ms.get(record.master, 0) > UNDISTURBED_MS
        if self.nodes[record.master].member is not None or is_slow or not is_crash:
            return
        for number in record.in_sync:
            other = self.nodes[number]
            is_fit = other.member is not None and self.now - self.disturbed_ms.get(number, 0) > UNDISTURBED_MS
            if is_fit and len(other.log) > len(reader.log):
                raise Violation(
                    f"at {self.now:.0f} broker {reader.id} reads with {len(reader.log)} messages, "
                    f"broker {number} has {len(other.log)}"
                )

    def began(self, node: Node, epoch: int) -> None:
        """A master begins, or goes on with, an epoch."""
        if self.epochs.setdefault(epoch, node.id) != node.id:
            raise Violation(f"epoch {epoch} has masters {self.epochs[epoch]} and {node.id}")
        self.check_history(node)

    def check_history(self, node: Node) -> None:
        if self.is_unclean:
            return
        for name, known in (("acknowledged", self.acked), ("seen", self.seen)):
            for offset, message in known.items():
                if offset >= len(node.log) or node.log[offset] != message:
                    raise Violation(f"at {self.now:.0f} message {message} was {name} at {offset}; not so on {node.id}")

    def traffic(self) -> None:
        """One message offered to all, one consumer's turn."""
        for node in self.nodes.values():
            if node.take_message(self.message):
                self.message += 1
        for node in self.nodes.values():
            node.consume(1)

    def stage(self, node: int) -> MemberStage | None:
        member = self.nodes[node].member
        return None if member is None else member.stage
