"""A broker group under the control of a test: a master and slaves on simulated wires, with a common clock.

    group = Group(tmp_path)                           a SYNC_MASTER with one slave, connected
    group.master.send_request(...); group.settle()    all data is transferred, no time passes
    group.wires[0].stalls_down = True                 data from the master waits
    group.pass_time(5_000)                            a turn at every deadline of every member
    group.cut()                                       the replication connections break

A wire carries bytes in random pieces; `group.pieces = None` carries them whole.
"""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from lab.samples import tiny
from tandemq.boundary import Closed, Disk, Drained, LinkKind, Now, Turn
from tandemq.broker.kernel.context import Machine
from tandemq.model.codes import RequestCode
from tandemq.replication.authentication import Keyring
from tests.unit.broker.harness import ADDRESS, HA_ADDRESS, START_WALL_MS, Harness, send_fields

FAST_ADDRESS = "127.0.0.1:10909"
TURNS_MAX = 100_000


class Member(Harness):
    """A broker whose connections to other members are wires of the group."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.wired: set[int] = set()
        self.out: dict[int, bytearray] = {}
        self.seen_connects = 0
        self.seen_closes = 0
        super().__init__(*arguments, **named)

    def _take(self, turn: Turn) -> None:
        for link in [link for link in turn.sends if link in self.wired]:
            self.out.setdefault(link, bytearray()).extend(b"".join(turn.sends.pop(link)))
            self.outbox.waiting[link] = len(self.out[link])
        super()._take(turn)

    @property
    def log_end(self) -> int:
        return self.node.store.log.written_end

    def log_bytes(self) -> bytes:
        """Return the whole commit log."""
        log = self.node.store.log
        pieces, at = [], log.start
        while at < log.written_end:
            pieces.append(log.read(at, 1 << 20))
            at += len(pieces[-1])
        return b"".join(pieces)

    def session(self) -> Any:
        """The slave's session with its master; None while there is none."""
        assert self.node.replication.slave is not None, "the member is a slave"
        return self.node.replication.slave.session


class Wire:
    """One connection: `down` from the member that accepted it, `up` from the one that asked for it."""

    def __init__(self, top: Member, top_link: int, bottom: Member, bottom_link: int, kind: LinkKind) -> None:
        self.top, self.top_link, self.bottom, self.bottom_link = top, top_link, bottom, bottom_link
        self.kind = kind
        self.is_open = True
        self.stalls_up = self.stalls_down = False
        self.change_down: Callable[[bytes], bytes] | None = None
        """Changes data on its way down."""
        self.went_up = bytearray()
        self.went_down = bytearray()

    def carry(self, pieces: Random | None) -> bool:
        moved = self.is_open and not self.stalls_up and self._carry(pieces, is_up=True)
        return (self.is_open and not self.stalls_down and self._carry(pieces, is_up=False)) or moved

    def _carry(self, pieces: Random | None, *, is_up: bool) -> bool:
        sender, link = (self.bottom, self.bottom_link) if is_up else (self.top, self.top_link)
        receiver, other = (self.top, self.top_link) if is_up else (self.bottom, self.bottom_link)
        waiting = sender.out.get(link)
        if not waiting:
            return False
        size = (
            len(waiting)
            if pieces is None
            else pieces.randint(1, min(len(waiting), pieces.choice((8, 60, 4000, 60_000))))
        )
        piece = bytes(waiting[:size])
        del waiting[:size]
        sender.outbox.waiting[link] = len(waiting)
        if self.change_down is not None and not is_up:
            piece = self.change_down(piece)
        (self.went_up if is_up else self.went_down).extend(piece)
        receiver.turn([(other, piece)])
        if not waiting:
            sender.turn([], [Drained(link)])
        return True

    def flush(self, sender: Member) -> None:
        """Close one side after its data, which still arrives."""
        if not (self.stalls_down if sender is self.top else self.stalls_up):
            while self._carry(None, is_up=sender is self.bottom):
                pass

    def end(self, reason: str) -> None:
        """Close the connection for both sides; data in flight is lost."""
        if self.is_open:
            self.is_open = False
            for member, link in ((self.top, self.top_link), (self.bottom, self.bottom_link)):
                member.out.pop(link, None)
                member.outbox.waiting.pop(link, None)
                member.wired.discard(link)
                member.turn([], [Closed(link, reason)])


class Group:
    """A master and its slaves."""

    def __init__(
        self,
        path: Path,
        *,
        role: str = "SYNC_MASTER",
        slaves: int = 1,
        boot_id: str = "boot-1",
        connects: bool = True,
        slave_changes: dict[str, Any] | None = None,
        secrets: dict[int, bytes] | None = None,
        **changes: Any,
    ) -> None:
        """`changes` are settings of all members; `connects` False leaves the slaves without a connection for now.

        `secrets`: replication secrets by broker id.
        """
        self.path = path
        self.secrets = secrets or {}
        self.master_disk: Disk | None = None
        """Disk of the master instead of its directory."""
        self.changes = changes
        self.slave_changes = {"ha_protocol": "tandemq"} | (slave_changes or {})
        self.role = role
        self.now = Now(1_000, START_WALL_MS)
        self.pieces: Random | None = Random(11)
        self.wires: list[Wire] = []
        """Open replication wires, oldest first; `all_wires` has also the closed ones."""
        self.all_wires: list[Wire] = []
        self.refuses = not connects
        self.is_silent = False
        """Whether the master's machine answers nothing, not even a connection attempt."""
        self._links = 1000
        self.master = self.start_master(boot_id=boot_id)
        self.slaves = [self.start_slave(number) for number in range(1, slaves + 1)]
        self.settle()

    @property
    def slave(self) -> Member:
        return self.slaves[0]

    @property
    def members(self) -> list[Member]:
        return [self.master, *self.slaves]

    @property
    def wire(self) -> Wire:
        """The one open replication wire."""
        (found,) = self.wires
        return found

    # Starting and stopping members.

    def start_master(self, *, boot_id: str = "boot-1", accept_loss: bool = False, **changes: Any) -> Member:
        config = tiny(role=self.role, **(self.changes | changes))
        self.master = Member(
            self.master_disk or self.path / "master",
            config,
            machine=Machine(boot_id, 8 << 30),
            now=self.now,
            accept_loss=accept_loss,
            keyring=self._keyring(0),
        )
        return self.master

    def _keyring(self, broker_id: int) -> Keyring | None:
        secret = self.secrets.get(broker_id)
        return None if secret is None else Keyring(lambda: (secret,), Random(1_000 + broker_id))

    def start_slave(self, number: int, *, boot_id: str = "boot-1", **changes: Any) -> Member:
        settings = {"ha_master_address": HA_ADDRESS} | self.changes | self.slave_changes | changes
        config = tiny(role="SLAVE", broker_id=number, **settings)
        slave = Member(
            self.path / f"slave{number}",
            config,
            machine=Machine(boot_id, 8 << 30),
            now=self.now,
            seed=number,
            keyring=self._keyring(number),
        )
        slave.node.kernel.own.address = f"127.0.0.{number + 1}:10911"
        return slave

    def stop(self, member: Member, *, clean: bool = False) -> None:
        """Stop a member, and break its wires; it is killed unless `clean`."""
        self.cut(member)
        if clean:
            member.node.close()

    def restart_master(self, *, clean: bool = False, **changes: Any) -> Member:
        self.stop(self.master, clean=clean)
        master = self.start_master(**changes)
        self.settle()
        return master

    def restart_slave(self, number: int = 1, *, clean: bool = False, **changes: Any) -> Member:
        self.stop(self.slaves[number - 1], clean=clean)
        self.slaves[number - 1] = self.start_slave(number, **changes)
        self.settle()
        return self.slaves[number - 1]

    def tell_master(self, slave: Member, host: str = "127.0.0.1") -> None:
        """Send a slave the address of its master, as a name server."""
        found = slave.node.replication.master_found
        slave.node.kernel.schedule.at(self.now.mono_ms, lambda now: found(f"{host}:10911", f"{host}:10912", now))
        slave.turn()
        self.settle()

    # Transfer.

    def settle(self) -> None:
        """Transfer data until nothing is in flight; no time passes."""
        for _ in range(TURNS_MAX):
            moves = sum(self._plug(member) for member in self.members)
            moves += sum(wire.carry(self.pieces) for wire in list(self.all_wires) if wire.is_open)
            self.wires = [wire for wire in self.all_wires if wire.is_open and wire.kind is LinkKind.HA_MASTER]
            if not moves:
                return
        raise AssertionError("it never comes to rest")

    def _plug(self, member: Member) -> bool:
        moved = False
        while member.seen_connects < len(member.connects):
            connect = member.connects[member.seen_connects]
            member.seen_connects += 1
            kinds = {HA_ADDRESS: LinkKind.HA_MASTER, ADDRESS: LinkKind.REMOTING, FAST_ADDRESS: LinkKind.FAST}
            asked = [slave for slave in self.slaves if slave.node.kernel.own.address == connect.address]
            if asked and not self.refuses:
                self._join(member, connect.link, connect.kind, LinkKind.REMOTING, asked[0])
                moved = True
                continue
            if self.is_silent:
                continue
            if self.refuses or connect.address not in kinds:
                member.turn([], [Closed(connect.link, "connection refused")])
            else:
                self._join(member, connect.link, connect.kind, kinds[connect.address])
            moved = True
        while member.seen_closes < len(member.closes):
            link, reason = member.closes[member.seen_closes]
            member.seen_closes += 1
            wires = [
                w
                for w in self.all_wires
                if w.is_open and (member, link) in ((w.top, w.top_link), (w.bottom, w.bottom_link))
            ]
            for wire in wires:
                wire.flush(member)
                wire.end(reason)
                moved = True
            if not wires and link < 0:
                member.turn([], [Closed(link, reason)])
        return moved

    def _join(self, member: Member, link: int, kind: LinkKind, accepted: LinkKind, top: Member | None = None) -> None:
        self._links += 1
        top = top or self.master
        wire = Wire(top, self._links, member, link, accepted)
        self.all_wires.append(wire)
        top.wired.add(self._links)
        member.wired.add(link)
        top.open(self._links, accepted, f"10.0.1.{self.members.index(member)}:{40_000 + self._links % 20_000}")
        member.open(link, kind, HA_ADDRESS)

    def cut(self, member: Member | None = None) -> None:
        """Break the wires of one member, or all of them."""
        for wire in [wire for wire in self.all_wires if wire.is_open]:
            if member is None or member in (wire.top, wire.bottom):
                wire.end("cut")
        self.wires = [wire for wire in self.wires if wire.is_open]

    def pass_time(self, ms: int) -> None:
        """Advance the common clock, with a turn of each member at its deadlines, and transfer all data."""
        end = self.now.mono_ms + ms
        at_once = 0
        self.settle()
        while True:
            due = min((d for m in self.members if (d := m.node.deadline_ms()) is not None), default=end + 1)
            if due > end:
                break
            at_once = at_once + 1 if due <= self.now.mono_ms else 0
            assert at_once < 50, "a deadline stays after its turn"
            self._move(max(due, self.now.mono_ms))
            for member in self.members:
                member.turn()
            self.settle()
        self._move(end)

    def _move(self, mono_ms: int) -> None:
        self.now = Now(mono_ms, self.now.wall_ms + mono_ms - self.now.mono_ms)
        for member in self.members:
            member.now = self.now

    # Requests of producers.

    def send(self, body: bytes = b"body", topic: str = "TopicA", **properties: str) -> int:
        """Send to the master; return the opaque of the request. Nothing is transferred yet."""
        return self.master.send_request(RequestCode.SEND_MESSAGE_V2, send_fields(topic, 0, properties), body)

    def send_many(self, count: int, size: int = 100, topic: str = "TopicA") -> None:
        """Send messages, and ignore the responses."""
        for number in range(count):
            self.send(bytes([number % 251]) * size, topic)
        self.settle()

    def code_of(self, opaque: int) -> int | None:
        """Return the code of the response to a send; None while it waits."""
        answer = self.master.answer_to(opaque)
        return None if answer is None else answer.code

    def send_and_settle(self, body: bytes = b"body", topic: str = "TopicA", **properties: str) -> int | None:
        opaque = self.send(body, topic, **properties)
        self.settle()
        return self.code_of(opaque)

    def assert_same_logs(self) -> None:
        """Assert that every slave's log equals the master's."""
        for slave in self.slaves:
            assert slave.log_end == self.master.log_end
            assert (
                slave.log_bytes()
                == self.master.log_bytes()[slave.node.store.log.start - self.master.node.store.log.start :]
            )


def delete_files(path: Path) -> None:
    """Delete the content of a directory."""
    for child in path.rglob("*"):
        if child.is_file():
            child.unlink()
    for child in sorted(path.rglob("*"), reverse=True):
        child.rmdir()
