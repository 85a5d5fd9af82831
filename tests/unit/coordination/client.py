"""Registry client of the simulated group: the I/O shell's part, on a virtual clock."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tandemq.coordination.registry.interface import (
    Confirmed,
    RegistryEvent,
    RegistryRequest,
    RegistryResponse,
    SessionLost,
    SessionSuspended,
    SessionUp,
    Unknown,
)

if TYPE_CHECKING:
    from tests.unit.coordination.node import Node
    from tests.unit.coordination.world import World

SESSION_MS = 2_000


@dataclass(slots=True)
class Connection:
    """A connection from a member to the registry; requests and answers are in order."""

    is_open: bool = True
    out_at: float = 0
    back_at: float = 0
    waiting: dict[int, int] = field(default_factory=dict)


class RegistryClient:
    """Keeps a session, sends pings, and passes events to the member."""

    def __init__(self, world: "World", node: "Node") -> None:
        self.world, self.node = world, node
        self.session = 0
        self.name = f"{node.id}-{node.life}"
        self.connection: Connection | None = None
        self.told_session = 0
        world.after(world.random.randint(1, 30), self._connect)

    @property
    def is_current(self) -> bool:
        return self.node.registry is self

    def _connect(self) -> None:
        world = self.world
        if not self.is_current or self.connection is not None:
            return
        if not world.registry_reachable(self.node.id):
            world.after(150, self._connect)
            return
        new = 0
        if self.session and world.tree.resume_session(self.session, self.name, world.clock_ms):
            new = self.session
        self.connection = connection = Connection()
        if not new:
            if self.session:
                self._tell(connection, SessionLost())
            new = world.tree.open_session(SESSION_MS, self.name, world.clock_ms)
        self.session = new
        self._tell(connection, SessionUp(new, world.tree.timeout_ms(new)))
        self._ping(connection)

    def _tell(self, connection: Connection, event: RegistryEvent, extra: float = 0) -> None:
        world = self.world
        at = max(connection.back_at, world.now + world.delay())
        connection.back_at = at
        world.at(at + extra, lambda: self._arrives(connection, event))

    def _arrives(self, connection: Connection, event: RegistryEvent) -> None:
        if self.is_current and connection is self.connection and connection.is_open:
            if isinstance(event, RegistryResponse):
                connection.waiting.pop(event.token, None)
                self.node.input(lambda m, now: m.receive(Confirmed(event.sent_ms), now))
            self.node.input(lambda m, now: m.receive(event, now))

    def _ping(self, connection: Connection) -> None:
        world = self.world
        if not self.is_current or connection is not self.connection:
            return
        if world.is_paused(self.node):
            world.at(self.node.paused_until + 1, lambda: self._ping(connection))
            return
        sent = self.node.clock().mono_ms
        self._send(connection, lambda: self._tell(connection, Confirmed(sent)))
        world.after(SESSION_MS / 3, lambda: self._ping(connection))

    def _send(self, connection: Connection, serve: Callable[[], None]) -> None:
        world = self.world
        at = max(connection.out_at, world.now + world.delay() + world.registry_delay_ms.get(self.node.id, 0))
        connection.out_at = at

        def arrives() -> None:
            if connection.is_open or connection.out_at == -1:
                if not world.tree.touch(self.session, world.clock_ms):
                    self.cut()  # the server closes connections of ended sessions
                    return
                serve()
                world.fire_watches()

        world.at(at, arrives)

    def ask(self, ask: RegistryRequest) -> None:
        connection, sent = self.connection, self.node.clock().mono_ms
        if connection is None or not connection.is_open:
            self.world.after(0, lambda: self._unknown(ask.token, sent))
            return
        connection.waiting[ask.token] = sent
        session = self.session

        def serve() -> None:
            outcome = self.world.tree.execute(session, ask.operation)
            self._tell(connection, RegistryResponse(ask.token, outcome, sent))

        self._send(connection, serve)

    def _unknown(self, token: int, sent: int) -> None:
        if self.is_current:
            self.node.input(lambda m, now: m.receive(RegistryResponse(token, Unknown(), sent), now))

    def cut(self) -> None:
        """The connection breaks; what was on its way may still arrive."""
        connection, self.connection = self.connection, None
        if connection is None:
            return
        connection.is_open = False
        if self.world.random.random() < 0.5:
            connection.out_at = -1  # requests under way are carried out, their answers are lost
        waiting = dict(connection.waiting)
        self.world.after(
            self.world.random.choice((1, 30, SESSION_MS * 0.6)), lambda: self._noticed(connection, waiting)
        )

    def _noticed(self, connection: Connection, waiting: dict[int, int]) -> None:
        connection.out_at = 0
        if not self.is_current:
            return
        for token, sent in waiting.items():
            self._unknown(token, sent)
        self.node.input(lambda m, now: m.receive(SessionSuspended(), now))
        self.world.after(self.world.random.randint(1, 300), self._connect)
