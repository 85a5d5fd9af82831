"""A group whose members die in the middle of what they do: between two effects on their disk, the registry or a link.

    group = MortalGroup(tmp_path, Mode.SLAVE_CONSUME)
    group.on_point = lambda at: group.strike(0, "power") if at.number == 0 and at.what == "answered Write" else None
    traffic = Traffic(group); traffic.pass_time(10_000)

Points, in the order of a member's life: `outputs` (a turn is over, nothing of it has left), `disk OPERATION` (about to
be done), `asked OPERATION` (the registry is about to do it), `answered OPERATION` (it has; the answer is on its way).
Who is killed loses nothing that it wrote or sent; whose power fails loses what was not synced, and what was on its way.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tandemq.boundary import Turn
from tandemq.codec.remoting.fastjson import loads
from tandemq.coordination.registry.records import Mode
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.registry import Outcome, RegistryRequest
from tandemq.sim.world.disk import PowerLoss, SimDisk
from tests.unit.broker.failover.elected import STEP_MS, Broker, ElectedGroup
from tests.unit.broker.harness import messages_in, send_fields

OFFSET = {"consumerGroup": "group", "topic": "TopicA", "queueId": 0}
CHANGES = ("create", "pwrite", "datasync", "truncate", "replace", "remove")
KILL, POWER = "kill", "power"
BEAT_MS = 100
MASTER, SLAVE = 0, 1


class Point(NamedTuple):
    """Something that a member does."""

    number: int
    what: str
    path: str = ""


class Mortal(Broker):
    """A member that may end anywhere."""

    death = ""
    """How it ended; "" while it lives."""
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


class MortalGroup(ElectedGroup):
    """See above. Disks are in memory, so that they can forget."""

    broker_class = Mortal

    def __init__(self, path: Path, mode: Mode, *, members: int = 2, seed: int = 1, **changes: Any) -> None:
        self.sim_disks = {number: SimDisk(Random(seed * 16 + number)) for number in range(members)}
        self.on_point: Callable[[Point], None] | None = None
        self.boots = dict.fromkeys(range(members), 1)
        self._running: list[int] = []
        super().__init__(path, mode, members=members, disks=self.sim_disks, **changes)

    @property
    def mortals(self) -> dict[int, Mortal]:
        """The brokers, as what they are here."""
        return {number: broker for number, broker in self.brokers.items() if isinstance(broker, Mortal)}

    # Lives.

    def start(self, number: int, **changes: Any) -> Broker:
        broker = super().start(number, boot_id=f"boot-{self.boots[number]}", **changes)
        assert isinstance(broker, Mortal)
        broker.tell_point = lambda what: self._point(number, what)
        self.sim_disks[number].on_call = lambda what, path: self._disk_point(number, what, path)
        return broker

    def strike(self, number: int, how: str) -> None:
        """End a member now; inside of what it does, if it is doing something."""
        self.mortals[number].death = how
        self.on_point = None
        if self.is_running(number):
            raise PowerLoss

    def is_running(self, number: int) -> bool:
        """Whether it is this member that does something now."""
        return self._running[-1:] == [number]

    def end(self, number: int, how: str) -> None:
        """A member is gone: its links break, its session ends by itself later."""
        broker, disk = self.mortals[number], self.sim_disks[number]
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
        """What a member's saved table says of the consumer, 0 if nothing."""
        found = self.sim_disks[number].read("config/consumerOffset.json")
        table = {} if found is None else loads(found).get("offsetTable", {})
        return int(table.get("TopicA@group", {}).get("0", 0))

    def check(self) -> None:
        """Never two at once."""
        for what in "RW":
            holders = [number for number, broker in self.mortals.items() if not broker.death and what in broker.may]
            assert len(holders) <= 1, f"brokers {holders} have {what} at once"

    # The registry hears nothing more of the dead.

    def _connect(self, number: int, broker: Broker) -> bool:
        return not self.mortals[number].death and super()._connect(number, broker)

    def _answer(self, number: int, broker: Broker) -> bool:
        if self.mortals[number].death:
            return False
        try:
            return super()._answer(number, broker)
        except PowerLoss:
            return True

    def _execute(self, broker: Broker, session: int, ask: RegistryRequest) -> Outcome:
        (number,) = [number for number, found in self.brokers.items() if found is broker]
        if self.mortals[number].death:
            raise PowerLoss
        operation, path = type(ask.operation).__name__, ask.operation.path
        self._point(number, f"asked {operation}", path)
        outcome = super()._execute(broker, session, ask)
        self._point(number, f"answered {operation}", path)
        return outcome

    def settle(self) -> None:
        super().settle()
        while dead := [(number, broker.death) for number, broker in self.mortals.items() if broker.death]:
            for number, how in dead:
                self.end(number, how)
            super().settle()


class Traffic:
    """A producer and a consumer who use whoever serves, and check what they are told."""

    def __init__(self, group: MortalGroup) -> None:
        self.group = group
        self.acked: dict[bytes, int] = {}
        """Messages answered SEND_OK, and their offsets in the queue."""
        self.committed = 0
        """The highest offset whose commit was answered."""
        self.fell = 0
        """Offsets that whoever serves told: by how much one was below `committed`, at most."""
        self.allowed = 0
        """How far one may fall: by what nobody had saved, or got, when machines lost power."""
        self.is_sending = True
        self._sent = 0
        self._by: Counter[int] = Counter()
        """The offset whose commit each member answered last."""

    def pass_time(self, ms: int) -> None:
        """Time goes on, with a message and a commit now and then."""
        for _ in range(max(1, ms // BEAT_MS)):
            for _ in range(BEAT_MS // STEP_MS):
                self.group.pass_time(STEP_MS)
            self.beat()

    def run_until(self, condition: Callable[[], bool], ms: int) -> bool:
        """Whether it came true within this time."""
        for _ in range(ms // BEAT_MS):
            if condition():
                return True
            self.pass_time(BEAT_MS)
        return condition()

    def beat(self) -> None:
        """Everybody is asked for everything."""
        for number, broker in sorted(self.group.brokers.items()):
            if self.is_sending:
                self.send(broker)
            self._consume(number, broker)

    def send(self, broker: Broker) -> None:
        """One message for a member, whether it takes it or not."""
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
        """End members at once, the one that is doing something last."""
        if how == POWER:
            self.allowed = max(self.allowed, self.committed - self._known_without(victims))
        for number in sorted(victims, key=self.group.is_running):
            self.group.strike(number, how)

    def _known_without(self, victims: list[int]) -> int:
        """The offset that whoever serves next has at least: commits follow the log, and are saved now and then."""
        group, reader = self.group, self.group.record.reader
        if group.mode is Mode.SLAVE_CONSUME:  # the reader goes on with its own
            handed = self._by[SLAVE] if reader == MASTER else 0  # saved before it reads
            return max(handed, group.saved_offset(reader)) if reader in victims else self.committed
        found = [
            broker.node.offsets.get("TopicA", "group", 0) or 0
            for number, broker in group.brokers.items()
            if number not in victims
        ]
        return max(found) if found else min(group.saved_offset(number) for number in victims)

    def help(self) -> None:
        """An operator does what members ask for: a loss may have to be accepted when all machines lost power.

        Patiently: who is asked at once serves without what others still have.
        """
        for broker in self.group.brokers.values():
            if "force-master accepts the loss" in broker.failover.member.why:
                broker.ask(Code.TANDEM_FORCE_MASTER, {})

    def check(self, broker: Broker) -> None:
        """No offset went back, and everything that was acknowledged is there, where its answer said."""
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
