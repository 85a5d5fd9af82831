"""A group whose members crash between two effects on their disk, the registry or a connection.

    group = CrashingGroup(tmp_path, Mode.SLAVE_CONSUME)
    group.on_point = lambda at: group.strike(0, "power") if at.number == 0 and at.what == "answered Write" else None
    traffic = Traffic(group); traffic.pass_time(10_000)

Crash points: `outputs` (a turn is over, nothing of it was sent), `disk OPERATION` (about to be done), `asked OPERATION`
(the registry is about to do it), `answered OPERATION` (it has done it; the response is in flight). A killed member
loses nothing that it wrote or sent; a member without power loses what was not synced and what was in flight.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from lab.sim.world.disk import PowerLoss, SimDisk
from tandemq.boundary import Turn
from tandemq.codec.remoting.fastjson import loads
from tandemq.coordination.registry.records import Mode
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.registry import Outcome, RegistryRequest
from tests.unit.broker.harness import messages_in, send_fields
from tests.unit.broker.roles.registry_group import STEP_MS, Broker, RegistryGroup

OFFSET = {"consumerGroup": "group", "topic": "TopicA", "queueId": 0}
CHANGES = ("create", "pwrite", "datasync", "truncate", "replace", "remove")
KILL, POWER = "kill", "power"
BEAT_MS = 100
MASTER, SLAVE = 0, 1


class Point(NamedTuple):
    """An effect at which a member can crash."""

    number: int
    what: str
    path: str = ""


class CrashingBroker(Broker):
    """A member that can crash at any point."""

    death = ""
    """How it crashed; "" while it runs."""
    tell_point: Callable[[str], None] | None = None

    def turn(self, *arguments: Any, **named: Any) -> Turn:
        if self.death:
            return Turn()
        try:
            return super().turn(*arguments, **named)
        except PowerLoss:
            return Turn()

    def _take(self, turn: Turn) -> None:
        if self.tell_point is not None and (turn.sends or turn.asks or turn.connects):
            self.tell_point("outputs")
        super()._take(turn)


class CrashingGroup(RegistryGroup):
    """A group with crash points; disks are in memory, so that they can lose unsynced data."""

    broker_class = CrashingBroker

    def __init__(self, path: Path, mode: Mode, *, members: int = 2, seed: int = 1, **changes: Any) -> None:
        self.sim_disks = {number: SimDisk(Random(seed * 16 + number)) for number in range(members)}
        self.on_point: Callable[[Point], None] | None = None
        self.boots = dict.fromkeys(range(members), 1)
        self._running: list[int] = []
        super().__init__(path, mode, members=members, disks=self.sim_disks, **changes)

    @property
    def crashing_brokers(self) -> dict[int, CrashingBroker]:
        """The brokers with their type here."""
        return {number: broker for number, broker in self.brokers.items() if isinstance(broker, CrashingBroker)}

    # Crashes.

    def start(self, number: int, **changes: Any) -> Broker:
        broker = super().start(number, boot_id=f"boot-{self.boots[number]}", **changes)
        assert isinstance(broker, CrashingBroker)
        broker.tell_point = lambda what: self._point(number, what)
        self.sim_disks[number].on_call = lambda what, path: self._disk_point(number, what, path)
        return broker

    def strike(self, number: int, how: str) -> None:
        """Crash a member now, in the middle of its turn if it runs one."""
        self.crashing_brokers[number].death = how
        self.on_point = None
        if self.is_running(number):
            raise PowerLoss

    def is_running(self, number: int) -> bool:
        """Return whether this member runs a turn now."""
        return self._running[-1:] == [number]

    def end(self, number: int, how: str) -> None:
        """Stop a crashed member: its connections break, its session expires later."""
        broker, disk = self.crashing_brokers[number], self.sim_disks[number]
        broker.death = how
        if how == KILL:
            for wire in [wire for wire in self.wires if broker in (wire.top, wire.bottom) and wire.is_open]:
                wire.flush(broker)
            disk.kill()
        else:
            disk.crash()
            self.boots[number] += 1
        self.kill(number)

    def _disk_point(self, number: int, what: str, path: str) -> None:
        if what in CHANGES:
            self._point(number, f"disk {what}", path)

    def _point(self, number: int, what: str, path: str = "") -> None:
        if self.on_point is None:
            return
        self.check()
        self._running.append(number)
        try:
            self.on_point(Point(number, what, path))
        finally:
            self._running.pop()

    def saved_offset(self, number: int) -> int:
        """Return the offset of the consumer in a member's saved table; 0 if there is none."""
        found = self.sim_disks[number].read("config/consumerOffset.json")
        table = {} if found is None else loads(found).get("offsetTable", {})
        return int(table.get("TopicA@group", {}).get("0", 0))

    def check(self) -> None:
        """Assert that at most one member may be read or written at a time."""
        for what in "RW":
            holders = [
                number for number, broker in self.crashing_brokers.items() if not broker.death and what in broker.may
            ]
            assert len(holders) <= 1, f"brokers {holders} have {what} at once"

    # The registry receives nothing more from crashed members.

    def _connect(self, number: int, broker: Broker) -> bool:
        return not self.crashing_brokers[number].death and super()._connect(number, broker)

    def _answer(self, number: int, broker: Broker) -> bool:
        if self.crashing_brokers[number].death:
            return False
        try:
            return super()._answer(number, broker)
        except PowerLoss:
            return True

    def _execute(self, broker: Broker, session: int, ask: RegistryRequest) -> Outcome:
        (number,) = [number for number, found in self.brokers.items() if found is broker]
        if self.crashing_brokers[number].death:
            raise PowerLoss
        operation, path = type(ask.operation).__name__, ask.operation.path
        self._point(number, f"asked {operation}", path)
        outcome = super()._execute(broker, session, ask)
        self._point(number, f"answered {operation}", path)
        return outcome

    def settle(self) -> None:
        super().settle()
        while dead := [(number, broker.death) for number, broker in self.crashing_brokers.items() if broker.death]:
            for number, how in dead:
                self.end(number, how)
            super().settle()


class Traffic:
    """A producer and a consumer that use the active member and check its responses."""

    def __init__(self, group: CrashingGroup) -> None:
        self.group = group
        self.acked: dict[bytes, int] = {}
        """Messages answered SEND_OK, and their offsets in the queue."""
        self.committed = 0
        """The highest offset whose commit was acknowledged."""
        self.fell = 0
        """Maximum difference by which an offset of the active member was below `committed`."""
        self.allowed = 0
        """Maximum allowed difference: commits that no member had saved or received when machines lost power."""
        self.is_sending = True
        self._sent = 0
        self._by: Counter[int] = Counter()
        """By member: the offset whose commit it acknowledged last."""

    def pass_time(self, ms: int) -> None:
        """Advance the time, with a message and a commit from time to time."""
        for _ in range(max(1, ms // BEAT_MS)):
            for _ in range(BEAT_MS // STEP_MS):
                self.group.pass_time(STEP_MS)
            self.beat()

    def run_until(self, condition: Callable[[], bool], ms: int) -> bool:
        """Advance the time until a condition holds; return whether it did within the limit."""
        for _ in range(ms // BEAT_MS):
            if condition():
                return True
            self.pass_time(BEAT_MS)
        return condition()

    def beat(self) -> None:
        """Send a message, a pull and a commit to every member."""
        for number, broker in sorted(self.group.brokers.items()):
            if self.is_sending:
                self.send(broker)
            self._consume(number, broker)

    def send(self, broker: Broker) -> None:
        """Send one message to a member, which may refuse it."""
        body = b"%d" % self._sent
        opaque = broker.send_request(Code.SEND_MESSAGE_V2, send_fields("TopicA", 0, {}), body)
        self.group.settle()
        answer = broker.answer_to(opaque)
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            self.acked[body] = int(answer.fields["queueOffset"])
        self._sent += 1

    def _consume(self, number: int, broker: Broker) -> None:
        opaque = broker.send_request(Code.QUERY_CONSUMER_OFFSET, OFFSET)
        answer = broker.answer_to(opaque)
        if answer is None or answer.code not in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND):
            return
        begins = int(answer.fields["offset"]) if answer.code == ResponseCode.SUCCESS else 0
        self.fell = max(self.fell, self.committed - begins)
        pulled = broker.pull("TopicA", begins, most=1)
        if pulled is None or pulled.code != ResponseCode.SUCCESS:
            return
        position = messages_in(pulled)[-1].queue_offset + 1
        opaque = broker.send_request(Code.UPDATE_CONSUMER_OFFSET, OFFSET | {"commitOffset": position})
        self.group.settle()
        answer = broker.answer_to(opaque)
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            self.committed = max(self.committed, position)
            self._by[number] = position

    def strike(self, victims: list[int], how: str) -> None:
        """Crash members at the same time, the one that runs a turn last."""
        if how == POWER:
            self.allowed = max(self.allowed, self.committed - self._known_without(victims))
        for number in sorted(victims, key=self.group.is_running):
            self.group.strike(number, how)

    def _known_without(self, victims: list[int]) -> int:
        """Return the offset that the next active member has at least: commits follow the log and are saved later."""
        group, reader = self.group, self.group.record.reader
        if group.mode is Mode.SLAVE_CONSUME:  # the reading slave continues with its own
            handed = self._by[SLAVE] if reader == MASTER else 0  # saved before it reads
            return max(handed, group.saved_offset(reader)) if reader in victims else self.committed
        found = [
            broker.node.offsets.get("TopicA", "group", 0) or 0
            for number, broker in group.brokers.items()
            if number not in victims
        ]
        return max(found) if found else min(group.saved_offset(number) for number in victims)

    def help(self) -> None:
        """Act as an operator: accept a loss if it is needed, as when all machines lost power.

        With patience: a member that is forced at once would serve without data that others still have.
        """
        for broker in self.group.brokers.values():
            if "force-master accepts the loss" in broker.failover.member.why:
                broker.ask(Code.TANDEM_FORCE_MASTER, {})

    def check(self, broker: Broker) -> None:
        """Assert that no offset went back, and that every acknowledged message is at its acknowledged offset."""
        assert self.fell <= self.allowed, f"a committed offset went back by {self.fell}, of {self.committed}"
        found: dict[bytes, int] = {}
        at, end = 0, broker.node.store.queues["TopicA", 0].max_offset
        while at < end:
            answer = broker.pull("TopicA", at)
            assert answer is not None and answer.code == ResponseCode.SUCCESS, answer
            for message in messages_in(answer):
                found[message.body], at = message.queue_offset, message.queue_offset + 1
        lost = {body: offset for body, offset in self.acked.items() if found.get(body) != offset}
        assert not lost, f"acknowledged and lost, or moved: {lost}"
