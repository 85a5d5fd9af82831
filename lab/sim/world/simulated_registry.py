"""Simulated registry with ZooKeeper's behaviour: one tree on its own machine, sessions over connections that may break.

    turn.asks ─► SimRegistryClient ─► (delay, blocked path, outage) ─► Tree.execute ─► (delay) ─► Answer, Confirmed
                      └ pings six times per session timeout; after two thirds without a response: suspended, reconnects

Operations in flight when a connection breaks have an unknown outcome, and half of them are executed. Watch events may
be late. Reads do not confirm the session, as with one server of an ensemble.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from lab.sim.world.network import Network
from lab.sim.world.process import Process
from lab.sim.world.world import MS, World
from tandemq.coordination.registry.interface import (
    Changed,
    Confirmed,
    Create,
    Delete,
    RegistryEvent,
    RegistryRequest,
    RegistryResponse,
    SessionLost,
    SessionSuspended,
    SessionUp,
    Unknown,
    Write,
)
from tandemq.coordination.registry.tree import Change, Tree

REGISTRY_IP = "10.0.7.1"
LOOK_US = 100 * MS
PINGS_PER_SESSION = 6


class _Request(NamedTuple):
    token: int | None
    sent_ms: int


class _Pipe:
    """One direction of a connection: in order, each item with its own delay; items without a path wait for one."""

    def __init__(self, client: "SimRegistryClient") -> None:
        self._client = client
        self._queue: deque[tuple[int, Callable[[], None]]] = deque()
        self._last_us = 0

    def put(self, delay_us: int, deliver: Callable[[], None]) -> None:
        world = self._client.registry.world
        self._last_us = max(self._last_us, world.now_us + delay_us)
        self._queue.append((self._last_us, deliver))
        if len(self._queue) == 1:
            world.at(self._last_us, self._run)

    def _run(self) -> None:
        client = self._client
        registry, queue = client.registry, self._queue
        now_us = registry.world.now_us
        if client.is_connected and not registry.reaches(client.process.ip):
            registry.world.after(LOOK_US, self._run)
            return
        while queue and queue[0][0] <= now_us:
            queue.popleft()[1]()
        if queue:
            registry.world.at(queue[0][0], self._run)


class SimRegistry:
    """The registry and its sessions."""

    def __init__(self, world: World, network: Network) -> None:
        """A running registry with an empty tree."""
        self.world = world
        self.network = network
        self.tree = Tree()
        self.is_up = True
        self.delay_us = 500
        self.watch_delay_us = 0
        """Maximum delay of watch events."""
        self.clients: list[SimRegistryClient] = []
        self.operator = self.tree.open_session(60_000, "operator", 0)
        world.after(LOOK_US, self._look)

    @property
    def clock_ms(self) -> int:
        """Return the registry's own clock."""
        return self.world.now_us // MS

    def delay(self) -> int:
        """Return the delay of one direction."""
        return 200 + int(self.world.random.random() * self.delay_us)

    def open(self, process: Process, client_id: str, timeout_ms: int) -> "SimRegistryClient":
        """Open a session for a process; it connects a moment later."""
        self.clients = [client for client in self.clients if client.process.is_running]
        client = SimRegistryClient(self, process, client_id, timeout_ms)
        self.clients.append(client)
        return client

    def reaches(self, ip: str) -> bool:
        """Return whether a machine and the registry can reach each other."""
        blocked = self.network.blocked
        return self.is_up and (ip, REGISTRY_IP) not in blocked and (REGISTRY_IP, ip) not in blocked

    def stop(self) -> None:
        """Stop answering; sessions are kept, and their timeouts stand still."""
        self.is_up = False
        for client in self.clients:
            client.cut()

    def start(self) -> None:
        """Answer again: every session has its whole timeout from now on."""
        if not self.is_up:
            self.is_up = True
            for client in self.clients:
                self.tree.touch(client.session, self.clock_ms)

    def lose(self) -> None:
        """Lose all nodes and sessions."""
        for client in self.clients:
            client.cut()
        self.tree = Tree()
        self.operator = self.tree.open_session(60_000, "operator", self.clock_ms)

    def restore(self, copy: list[Change]) -> None:
        """Replace all nodes and sessions by those of an older copy."""
        for client in self.clients:
            client.cut()
        self.tree = Tree()
        self.tree.restore(copy)

    def expire(self, client: "SimRegistryClient") -> None:
        """Expire a session although its owner is alive."""
        self.tree.close_session(client.session)
        self.notify_watches()
        client.cut()

    def _look(self) -> None:
        if self.is_up:
            self.tree.touch(self.operator, self.clock_ms)
            self.tree.expire(self.clock_ms)
            self.notify_watches()
        self.world.after(LOOK_US, self._look)

    def notify_watches(self) -> None:
        """Send watch events to the sessions that watch a changed node."""
        self.tree.take_changes()
        for session, path in self.tree.take_fired():
            for client in self.clients:
                if client.session == session:
                    client.notify(Changed(path), int(self.world.random.random() * self.watch_delay_us))


class SimRegistryClient:
    """The registry client in a broker's shell: keeps a session, pings, forwards events."""

    def __init__(self, registry: SimRegistry, process: Process, client_id: str, timeout_ms: int) -> None:
        """A client that connects a moment later."""
        self.registry = registry
        self.process = process
        self.session = 0
        self._client_id = client_id
        self._timeout_ms = timeout_ms
        self._connection = 0
        """Number of the connection: incremented when one is made and when it breaks; odd: connected."""
        self._out = _Pipe(self)
        self._back = _Pipe(self)
        self._heard_us = 0
        self._waiting: dict[int, _Request] = {}
        self._count = 0
        self._after(int(registry.world.random.random() * 30 * MS), self._connect)

    @property
    def is_connected(self) -> bool:
        """Return whether there is a connection, as far as the client knows."""
        return self._connection % 2 == 1

    def _after(self, delay_us: int, action: Callable[[], None]) -> None:
        """Call later if the process is still alive; if it is paused then, when it resumes."""
        world, process = self.registry.world, self.process

        def act() -> None:
            if process.is_running and process.paused_until_us > world.now_us:
                world.at(process.paused_until_us + 1, act)
            elif process.is_running:
                action()

        world.after(delay_us, act)

    def _connect(self) -> None:
        registry = self.registry
        if self.is_connected:
            return
        if not registry.reaches(self.process.ip):
            self._after(150 * MS, self._connect)
            return
        resumed = bool(self.session) and registry.tree.resume_session(self.session, self._client_id, registry.clock_ms)
        self._connection += 1
        self._heard_us = registry.world.now_us
        if not resumed:
            if self.session:
                self.notify(SessionLost())
            self.session = registry.tree.open_session(self._timeout_ms, self._client_id, registry.clock_ms)
        self.notify(SessionUp(self.session, registry.tree.timeout_ms(self.session)))
        self._ping(self._connection)

    def _ping(self, connection: int) -> None:
        if connection != self._connection:
            return
        if self.registry.world.now_us - self._heard_us > self._timeout_ms * MS * 2 // 3:
            self.cut()
            return
        self._request(None)
        self._after(self._timeout_ms * MS // PINGS_PER_SESSION, lambda: self._ping(connection))

    def ask(self, ask: RegistryRequest) -> None:
        """Begin an operation."""
        if self.is_connected:
            self._request(ask)
        else:
            sent_ms = self.process.machine.now().mono_ms
            self._after(1, lambda: self.process.post(RegistryResponse(ask.token, Unknown(), sent_ms)))

    def _request(self, ask: RegistryRequest | None) -> None:
        connection = self._connection
        self._count += 1
        number, sent_ms = self._count, self.process.machine.now().mono_ms
        self._waiting[number] = _Request(None if ask is None else ask.token, sent_ms)
        self._out.put(self.registry.delay(), lambda: self._serve(connection, number, ask, sent_ms))

    def _serve(self, connection: int, number: int, ask: RegistryRequest | None, sent_ms: int) -> None:
        registry = self.registry
        if connection != self._connection:
            # The connection broke: the operation may have arrived, but not after one on a later connection.
            is_lucky = registry.is_up and connection + 1 == self._connection and registry.world.random.random() < 0.5
            if ask is not None and is_lucky and registry.tree.touch(self.session, registry.clock_ms):
                registry.tree.execute(self.session, ask.operation)
                registry.notify_watches()
            return
        if not registry.tree.touch(self.session, registry.clock_ms):
            self.cut()
            return
        if ask is None:
            self._answer(number, Confirmed(sent_ms))
            return
        self._answer(number, RegistryResponse(ask.token, registry.tree.execute(self.session, ask.operation), sent_ms))
        if isinstance(ask.operation, Create | Write | Delete):
            self._answer(number, Confirmed(sent_ms))
        registry.notify_watches()

    def _answer(self, number: int, event: RegistryEvent) -> None:
        connection = self._connection

        def arrive() -> None:
            if connection == self._connection:
                self._waiting.pop(number, None)
                self._arrive(event)

        self._back.put(self.registry.delay(), arrive)

    def notify(self, event: RegistryEvent, late_us: int = 0) -> None:
        """Deliver an event that answers no request."""
        connection = self._connection

        def arrive() -> None:
            if connection == self._connection:
                self._arrive(event)

        if late_us:
            self.registry.world.after(late_us, lambda: self._back.put(self.registry.delay(), arrive))
        else:
            self._back.put(self.registry.delay(), arrive)

    def _arrive(self, event: RegistryEvent) -> None:
        if self.process.is_running:
            self._heard_us = self.registry.world.now_us
            self.process.post(event)

    def cut(self) -> None:
        """Break the connection: outcomes of pending operations are unknown, and the client reconnects."""
        if not self.is_connected:
            return
        self._connection += 1
        waiting, self._waiting = self._waiting, {}
        random = self.registry.world.random

        def noticed() -> None:
            for request in waiting.values():
                if request.token is not None:
                    self.process.post(RegistryResponse(request.token, Unknown(), request.sent_ms))
            self.process.post(SessionSuspended())
            self._after(int(random.random() * 300 * MS), self._connect)

        self._after(random.choice((1, 30, 400)) * MS, noticed)
