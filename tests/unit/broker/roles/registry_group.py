"""Brokers of one group and an ideal registry in one process: connections are simulated wires, with a common clock.

group = RegistryGroup(tmp_path, Mode.ELECT)        members 0 and 1, in sync, one of them active
group.pass_time(5_000)                            clocks, deadlines, sessions, wires
group.kill(0); group.start(0)                     its session expires later
group.registry_is_up = False                      no request to the registry is answered
group.allow(1, Permission.NONE)                   an administrator changes what a member may do
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from random import Random
from typing import Any

from lab.samples import tiny
from tandemq.boundary import Closed, Disk, LinkKind, Now, Turn
from tandemq.broker.kernel.context import Machine
from tandemq.broker.roles.registry_role import RegistryRole
from tandemq.coordination.registry import records
from tandemq.coordination.registry.records import BrokerPermission, GroupConfig, GroupState, Mode, Role
from tandemq.coordination.registry.tree import Tree
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.registry import (
    Changed,
    Confirmed,
    Create,
    Delete,
    Done,
    NodeFound,
    Operation,
    Outcome,
    Read,
    RegistryEvent,
    RegistryRequest,
    RegistryResponse,
    SessionLost,
    SessionSuspended,
    SessionUp,
    Unknown,
    Write,
)
from tandemq.replication.authentication import Keyring
from tests.unit.broker.ha.group import Member, Wire
from tests.unit.broker.harness import CLIENT, START_WALL_MS, send_fields

SESSION_MS = 2_000
CONFIRM_MS = 300
STEP_MS = 20
WAIT_STEPS_MAX = 300
"""Maximum number of steps in which a response that waits for other members must come."""


class Broker(Member):
    """A member of the group; passes the registry requests of its turns on."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.asks: list[RegistryRequest] = []
        self.group: RegistryGroup | None = None
        super().__init__(*arguments, **named)

    def _take(self, turn: Turn) -> None:
        self.asks += turn.asks
        super()._take(turn)

    def ask(
        self,
        code: int,
        fields: Mapping[str, object] | None = None,
        body: bytes = b"",
        *,
        link: int = CLIENT,
        **header: Any,
    ) -> Command:
        """Send a request and return the response, which may wait for other members for a moment."""
        opaque = self.send_request(code, fields, body, link=link, **header)
        answer = self.answer_to(opaque, link=link)
        for _ in range(WAIT_STEPS_MAX):
            if answer is None and self.group is not None:
                self.group.pass_time(STEP_MS)
                answer = self.answer_to(opaque, link=link)
        assert answer is not None, f"no response to {code} yet"
        return answer

    @property
    def failover(self) -> RegistryRole:
        assert self.node.failover is not None
        return self.node.failover

    @property
    def may(self) -> str:
        """Permissions of the member for clients at this moment: "", "R", "W" or "RW"."""
        if self.node.failover is None:
            return ""
        member, now = self.failover.member, self.now.mono_ms
        return "R" * member.may_read(now) + "W" * member.may_write(now)

    @property
    def stage(self) -> str:
        return self.failover.member.stage.value


class RegistryGroup:
    """Members 0, 1, …; `master` is the configured one in `slave-consume`."""

    broker_class = Broker

    def __init__(
        self,
        path: Path,
        mode: Mode,
        *,
        members: int = 2,
        started: Collection[int] | None = None,
        disks: Mapping[int, Disk] | None = None,
        settles: bool = True,
        secret: bytes | None = None,
        master: int = 0,
        memory_bytes: int = 8 << 30,
        **changes: Any,
    ) -> None:
        """Start a group.

        Args:
            path: directory under which members have theirs.
            mode: failover mode.
            members: number of configured members.
            started: members to start; None: all.
            disks: disks of members instead of directories.
            settles: whether to wait until a member is active.
            secret: secret with which members authenticate each other.
            master: id of the configured master.
            memory_bytes: memory of each member's machine.
            changes: settings of all members.
        """
        self.secret = secret
        self.master = master
        self.memory_bytes = memory_bytes
        self.path, self.mode, self.changes = path, mode, changes
        self.disks = disks or {}
        self.allowed = dict.fromkeys(range(members), BrokerPermission.FULL)
        self.now = Now(1_000, START_WALL_MS)
        self.tree = Tree()
        self.registry_is_up = True
        self.cut_off: set[int] = set()
        """Members without a connection to the registry."""
        self.apart: set[int] = set()
        """Members whose connections to other members break."""
        self.sessions: dict[int, int] = {}
        self.confirm_ms: dict[int, int] = {}
        self.brokers: dict[int, Broker] = {}
        self.wires: list[Wire] = []
        self._links = 1_000
        self.configure()
        for number in range(members) if started is None else started:
            self.start(number)
        if settles:
            self.pass_time(4_000)

    def allow(self, number: int, permission: BrokerPermission) -> None:
        """Change the permission of a member as an administrator."""
        self.allowed[number] = permission
        self.configure()

    def configure(self) -> None:
        config = GroupConfig(
            self.mode,
            tuple(
                records.GroupMember(number, Role.MASTER if number == self.master else Role.SLAVE, permission)
                for number, permission in self.allowed.items()
            ),
        )
        path = records.config_path("DefaultCluster", "broker-a")
        found, data = self._do(Read(path)), records.config_to_json(config)
        wanted = Write(path, data, found.version) if isinstance(found, NodeFound) else Create(path, data)
        assert isinstance(self._do(wanted), Done)

    @property
    def record(self) -> GroupState:
        """Return the state of the group in the registry."""
        found = self._do(Read(records.state_path("DefaultCluster", "broker-a")))
        assert isinstance(found, NodeFound), "the group has begun"
        return records.state_from_json("broker-a", found.data)

    def lose_record(self) -> None:
        """Delete the state of the group in the registry."""
        path = records.state_path("DefaultCluster", "broker-a")
        found = self._do(Read(path))
        assert isinstance(found, NodeFound), "the group has begun"
        assert isinstance(self._do(Delete(path, found.version)), Done)

    def _do(self, operation: Operation) -> Outcome:
        """Execute an operation in a session of its own, as a tool of an operator."""
        tool = self.tree.open_session(SESSION_MS, "tool", self.now.mono_ms)
        outcome = self.tree.execute(tool, operation)
        self.tree.close_session(tool)
        return outcome

    # Starting and killing members.

    def start(self, number: int, *, boot_id: str = "boot-1", **changes: Any) -> Broker:
        settings: dict[str, Any] = {"role": "SLAVE" if number else "SYNC_MASTER"}
        settings |= self.changes | changes
        config = tiny(broker_id=number, registry_address="zookeeper://box:2181", **settings)
        broker = self.broker_class(
            self.disks.get(number, self.path / f"b{number}"),
            config,
            machine=Machine(boot_id, self.memory_bytes),
            now=self.now,
            seed=number,
            address=f"10.1.0.{number}:10911",
            ha_address=f"10.1.0.{number}:10912",
            keyring=self._keyring(number),
        )
        broker.group = self
        self.brokers[number] = broker
        return broker

    def _keyring(self, number: int) -> Keyring | None:
        secret = self.secret
        return None if secret is None else Keyring(lambda: (secret,), Random(1_000 + number))

    def kill(self, number: int) -> None:
        """Kill a member: its connections break, its session expires later."""
        broker = self.brokers.pop(number)
        for wire in [wire for wire in self.wires if broker in (wire.top, wire.bottom)]:
            wire.end("killed")
        self.sessions.pop(number, None)

    def let_slave_read(self) -> Broker:
        """In `slave-consume`: kill the master, so that its slave serves reads; return the slave."""
        self.pass_time(1_500)
        self.kill(0)
        self.pass_time(4_000)
        assert self.brokers[1].may == "R"
        return self.brokers[1]

    # The registry.

    def _serve_registry(self) -> bool:
        moved = False
        for number, broker in list(self.brokers.items()):
            if broker.node.failover is None:
                continue
            reachable = self.registry_is_up and number not in self.cut_off
            if not reachable:
                asks, broker.asks = broker.asks, []
                if broker.failover.registry.is_up:
                    broker.turn([], [SessionSuspended()])
                if asks:
                    broker.turn([], [RegistryResponse(ask.token, Unknown(), self.now.mono_ms) for ask in asks])
                continue
            moved |= self._connect(number, broker)
            moved |= self._answer(number, broker)
        for session, path in self.tree.take_fired():
            for number, mine in self.sessions.items():
                if mine == session and number in self.brokers:
                    self.brokers[number].turn([], [Changed(path)])
                    moved = True
        return moved

    def _connect(self, number: int, broker: Broker) -> bool:
        session = self.sessions.get(number)
        if session is not None and broker.failover.registry.is_up:
            return False
        events: list[RegistryEvent] = []
        if session is not None and not self.tree.resume_session(session, f"b{number}", self.now.mono_ms):
            events.append(SessionLost())
            session = None
        if session is None:
            session = self.sessions[number] = self.tree.open_session(SESSION_MS, f"b{number}", self.now.mono_ms)
        broker.turn([], [*events, SessionUp(session, SESSION_MS)])
        return True

    def _answer(self, number: int, broker: Broker) -> bool:
        session = self.sessions[number]
        asks, broker.asks = broker.asks, []
        for ask in asks:
            self.tree.touch(session, self.now.mono_ms)
            outcome = self._execute(broker, session, ask)
            broker.turn([], [RegistryResponse(ask.token, outcome, self.now.mono_ms)])
        if self.now.mono_ms - self.confirm_ms.get(number, 0) >= CONFIRM_MS:
            self.confirm_ms[number] = self.now.mono_ms
            self.tree.touch(session, self.now.mono_ms)
            broker.turn([], [Confirmed(self.now.mono_ms)])
            return True
        return bool(asks)

    def _execute(self, _broker: Broker, session: int, ask: RegistryRequest) -> Outcome:
        return self.tree.execute(session, ask.operation)

    # Transfer.

    def settle(self) -> None:
        """Transfer data until nothing is in flight; no time passes."""
        for _ in range(10_000):
            moved = sum(self._plug(number, broker) for number, broker in list(self.brokers.items())) > 0
            moved = sum(wire.carry(None) for wire in self.wires if wire.is_open) > 0 or moved
            moved = self._serve_registry() or moved
            self.wires = [wire for wire in self.wires if wire.is_open]
            if not moved:
                return
        raise AssertionError("it never comes to rest")

    def _plug(self, number: int, broker: Broker) -> bool:
        moved = False
        while broker.seen_connects < len(broker.connects):
            connect = broker.connects[broker.seen_connects]
            broker.seen_connects += 1
            host, _, port = connect.address.rpartition(":")
            other = self.brokers.get(int(host.rpartition(".")[2])) if host.startswith("10.1.0.") else None
            if other is None or self.apart & {number, int(host.rpartition(".")[2])}:
                broker.turn([], [Closed(connect.link, "connection refused")])
            else:
                self._links += 1
                accepted = LinkKind.HA_MASTER if port == "10912" else LinkKind.REMOTING
                wire = Wire(other, self._links, broker, connect.link, accepted)
                self.wires.append(wire)
                other.wired.add(self._links)
                broker.wired.add(connect.link)
                other.open(self._links, accepted, f"10.1.0.{number}:{20_000 + self._links}")
                broker.open(connect.link, connect.kind, connect.address)
            moved = True
        while broker.seen_closes < len(broker.closes):
            link, reason = broker.closes[broker.seen_closes]
            broker.seen_closes += 1
            for wire in [w for w in self.wires if (broker, link) in ((w.top, w.top_link), (w.bottom, w.bottom_link))]:
                wire.flush(broker)
                wire.end(reason)
                moved = True
        return moved

    def pass_time(self, ms: int) -> None:
        """Advance the common clock in small steps; assert that at most one member may be read or written at a time."""
        end = self.now.mono_ms + ms
        for wire in self.wires:
            if any(self.brokers.get(number) in (wire.top, wire.bottom) for number in self.apart):
                wire.end("cut")
        self.settle()
        while self.now.mono_ms < end:
            step = min(STEP_MS, end - self.now.mono_ms)
            self.now = Now(self.now.mono_ms + step, self.now.wall_ms + step)
            self.tree.expire(self.now.mono_ms)
            for broker in list(self.brokers.values()):
                broker.now = self.now
                due = broker.node.deadline_ms()
                if due is not None and due <= self.now.mono_ms:
                    broker.turn()
            self.settle()
            for what in "RW":
                holders = [number for number, broker in self.brokers.items() if what in broker.may]
                assert len(holders) <= 1, f"brokers {holders} have {what} at once"

    @property
    def serving(self) -> Broker:
        """The active member."""
        (found,) = [broker for broker in self.brokers.values() if broker.may]
        return found

    def send(self, broker: Broker, body: bytes = b"body", *, topic: str = "TopicA") -> int | None:
        """Send a message; return the code of the response once all data is transferred, None while it waits."""
        opaque = broker.send_request(RequestCode.SEND_MESSAGE_V2, send_fields(topic, 0, {}), body)
        self.settle()
        answer = broker.answer_to(opaque)
        return None if answer is None else answer.code
