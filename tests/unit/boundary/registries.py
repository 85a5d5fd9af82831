"""Registries under one face: the plain tree, a real name server, ZooKeeper and etcd; and what goes wrong with them.

A `Place` is a registry; a `Session` is a client's life at it. Both are driven with `until`, which lets time pass: on
the tree it moves the clock, elsewhere it waits.
"""

import contextlib
import json
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tandemq.coordination.registry.tree import Tree
from tandemq.real.clock import read_clock
from tandemq.real.etcd.session import EtcdRegistry
from tandemq.real.zookeeper import ZooKeeperRegistry
from tandemq.registry import (
    Changed,
    Confirmed,
    Create,
    Delete,
    Operation,
    Outcome,
    RegistryEvent,
    RegistryRequest,
    RegistryResponse,
    SessionLost,
    SessionSuspended,
    SessionUp,
    Unknown,
    Write,
    parse_address,
)
from tandemq.run.registry_session import ClosableSession, EmbeddedSession
from tests.blackbox.programs import WAIT_S, Proxy, wait_until
from tests.interop.etcd import Etcd
from tests.interop.zookeeper import ZooKeeper

PROCESSES = [
    pytest.param("name-server", marks=pytest.mark.system),
    pytest.param("zookeeper", marks=[pytest.mark.system, pytest.mark.services]),
    pytest.param("etcd", marks=[pytest.mark.system, pytest.mark.services]),
]
"""Registries in processes of their own, as parameters of a test; ZooKeeper needs Java, etcd its package."""
LONG_MS = 4_000
"""A session that survives what a busy machine does to it."""
START_MS = 12_000
"""A session that survives the start of a JVM on a busy machine."""
SHORT_MS = 600
"""A session that a test waits to expire."""


class Line(Protocol):
    """What carries a session's operations, and what can go wrong with it."""

    def ask(self, ask: RegistryRequest) -> None: ...
    def take_events(self) -> list[RegistryEvent]: ...
    def cut(self) -> None: ...
    def silence(self) -> None: ...
    def restore(self) -> None: ...
    def close(self) -> None: ...


class Session:
    """A client of a registry: asks, and remembers all it was told."""

    def __init__(self, place: "Place", line: Line) -> None:
        self.place = place
        self.line = line
        self.told: list[RegistryEvent] = []
        self._token = 0
        self._is_closed = False

    def close(self) -> None:
        """Say goodbye; once."""
        if not self._is_closed:
            self._is_closed = True
            self.line.restore()
            self.line.close()

    def listen(self) -> None:
        self.told += self.line.take_events()

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        def look() -> bool:
            self.listen()
            return is_so()

        self.place.until(look, f"{what}; told so far: {self.told[-20:]}")

    def ask(self, operation: Operation) -> int:
        self._token += 1
        self.line.ask(RegistryRequest(self._token, operation))
        return self._token

    def answer(self, token: int) -> RegistryResponse:
        def found() -> list[RegistryResponse]:
            return [event for event in self.told if isinstance(event, RegistryResponse) and event.token == token]

        self.until(lambda: bool(found()), f"an answer to {token}")
        return found()[0]

    def do(self, operation: Operation) -> Outcome:
        return self.answer(self.ask(operation)).outcome

    def count(self, kind: type[RegistryEvent]) -> int:
        self.listen()
        return sum(isinstance(event, kind) for event in self.told)

    def changed(self, path: str) -> int:
        self.listen()
        return self.told.count(Changed(path))

    def wait(self, kind: type[RegistryEvent], count: int = 1) -> None:
        self.until(lambda: self.count(kind) >= count, f"{count} {kind.__name__}")

    @property
    def id(self) -> int:
        return [event.session_id for event in self.told if isinstance(event, SessionUp)][-1]


class Place(Protocol):
    """A registry."""

    def line(self, timeout_ms: int) -> Line: ...
    def until(self, is_so: Callable[[], bool], what: str) -> None: ...
    def restart(self) -> None: ...
    def close(self) -> None: ...
    def now_ms(self) -> int: ...
    def granted_ms(self, timeout_ms: int) -> int: ...


# The tree.

STEP_MS = 20
PING_MS = 100


class TreeLine:
    """A client on the tree: what it asks is carried out at once, unless the line is cut or silent."""

    def __init__(self, place: "TreePlace", timeout_ms: int) -> None:
        self._place = place
        self._timeout_ms = timeout_ms
        self._session = 0
        self._is_up = False
        self._is_silent = False
        self._ping_ms = 0
        self._events: list[RegistryEvent] = []
        place.lines.append(self)

    def turn(self) -> None:
        tree, now_ms = self._place.tree, self._place.clock_ms
        if self._is_silent:
            return
        if not self._is_up:
            self._connect(tree, now_ms)
        elif now_ms >= self._ping_ms:
            self._ping_ms = now_ms + PING_MS
            if tree.touch(self._session, now_ms):
                self._events.append(Confirmed(now_ms))
            else:
                self._lose()

    def _connect(self, tree: Tree, now_ms: int) -> None:
        if not tree.resume_session(self._session, "me", now_ms):
            if self._session:
                self._events.append(SessionLost())
            self._session = tree.open_session(self._timeout_ms, "me", now_ms)
        self._is_up = True
        self._place.owners[self._session] = self
        self._events.append(SessionUp(self._session, tree.timeout_ms(self._session)))

    def _lose(self) -> None:
        self._is_up, self._session = False, 0
        self._events.append(SessionLost())

    def ask(self, ask: RegistryRequest) -> None:
        now_ms = self._place.clock_ms
        if not self._is_up or not self._place.tree.touch(self._session, now_ms):
            self._events.append(RegistryResponse(ask.token, Unknown(), now_ms))
            return
        self._events.append(RegistryResponse(ask.token, self._place.tree.execute(self._session, ask.operation), now_ms))
        if isinstance(ask.operation, Create | Write | Delete):
            self._events.append(Confirmed(now_ms))
        self._place.deliver()

    def fired(self, path: str) -> None:
        self._events.append(Changed(path))

    def take_events(self) -> list[RegistryEvent]:
        events, self._events = self._events, []
        return events

    def cut(self) -> None:
        if self._is_up:
            self._is_up = False
            self._events.append(SessionSuspended())

    def silence(self) -> None:
        self._is_silent = True
        self.cut()

    def restore(self) -> None:
        self._is_silent = False

    def close(self) -> None:
        self._place.tree.close_session(self._session)
        self._place.lines.remove(self)
        self._place.deliver()


class TreePlace:
    """The plain object, its clock, and a journal of its changes."""

    def __init__(self) -> None:
        self.tree = Tree()
        self.clock_ms = 1_000
        self.lines: list[TreeLine] = []
        self.owners: dict[int, TreeLine] = {}

    def now_ms(self) -> int:
        return self.clock_ms

    def granted_ms(self, timeout_ms: int) -> int:
        return timeout_ms

    def line(self, timeout_ms: int) -> Line:
        return TreeLine(self, timeout_ms)

    def deliver(self) -> None:
        for session, path in self.tree.take_fired():
            self.owners[session].fired(path)

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        for _ in range(int(WAIT_S * 1000) // STEP_MS):
            if is_so():
                return
            self.clock_ms += STEP_MS
            for line in list(self.lines):
                line.turn()
            self.tree.expire(self.clock_ms)
            self.deliver()
        raise AssertionError(f"not within {WAIT_S:.0f} s: {what}")

    def restart(self) -> None:
        fresh = Tree()
        fresh.restore(self.tree.snapshot())
        fresh.last_session = self.tree.last_session
        self.tree = fresh
        for line in self.lines:
            line.cut()

    def close(self) -> None:
        pass


# A name server, as a process.


class ProxiedLine:
    """A session's real shell behind a proxy of its own."""

    def __init__(self, proxy: Proxy, shell: ClosableSession) -> None:
        self._proxy = proxy
        self._shell = shell

    def ask(self, ask: RegistryRequest) -> None:
        self._shell.ask(ask)

    def take_events(self) -> list[RegistryEvent]:
        return self._shell.take_events()

    def cut(self) -> None:
        self._proxy.cut()

    def silence(self) -> None:
        self._proxy.swallows = True

    def restore(self) -> None:
        """What was swallowed is lost, so the connection is of no use any more."""
        if self._proxy.swallows:
            self._proxy.swallows = False
            self._proxy.cut()

    def close(self) -> None:
        self._shell.close()
        self._proxy.close()


class NameServerPlace:
    """`tandemq namesrv` with the registry, as a process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.port = 0
        self._count = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        conf = self.directory / "namesrv.conf"
        data = self.directory / "data"
        conf.write_text(f"bindAddress=127.0.0.1\nlistenPort={self.port}\nkvConfigPath={data}\nregistryEnable=true\n")
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tandemq", "namesrv", "-c", str(conf), "--json", "--while-stdin"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], WAIT_S)
        line = self._process.stdout.readline() if readable else b""
        assert line, (self.directory / "log").read_text()[-2000:]
        self.port = int(str(json.loads(line)["address"]).rpartition(":")[2])

    def kill(self) -> None:
        process = self._process
        assert process is not None
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        process.wait(WAIT_S)

    def now_ms(self) -> int:
        return read_clock().mono_ms

    def granted_ms(self, timeout_ms: int) -> int:
        return timeout_ms

    def line(self, timeout_ms: int) -> Line:
        self._count += 1
        proxy = Proxy(self.port)
        return ProxiedLine(proxy, EmbeddedSession(f"127.0.0.1:{proxy.port}", f"client-{self._count}", timeout_ms))

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        wait_until(is_so, what)

    def restart(self) -> None:
        self.kill()
        self.start()

    def close(self) -> None:
        self.kill()


class ZooKeeperPlace:
    """One real server."""

    def __init__(self, directory: Path) -> None:
        self.server = ZooKeeper(directory)
        self.server.start()

    def now_ms(self) -> int:
        return read_clock().mono_ms

    def granted_ms(self, timeout_ms: int) -> int:
        return timeout_ms

    def line(self, timeout_ms: int) -> Line:
        proxy = Proxy(self.server.port)
        shell = ZooKeeperRegistry(f"127.0.0.1:{proxy.port}", timeout_ms, lambda: None)
        shell.start()
        return ProxiedLine(proxy, shell)

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        wait_until(is_so, what)

    def restart(self) -> None:
        self.server.kill()
        self.server.start()

    def close(self) -> None:
        self.server.kill()


class EtcdPlace:
    """One real server."""

    def __init__(self, directory: Path) -> None:
        self.server = Etcd(directory)
        self.server.start()

    def now_ms(self) -> int:
        return read_clock().mono_ms

    def granted_ms(self, timeout_ms: int) -> int:
        return -(-timeout_ms // 1000) * 1000

    def line(self, timeout_ms: int) -> Line:
        proxy = Proxy(self.server.port)
        address = parse_address(f"etcd://127.0.0.1:{proxy.port}/apps/one")
        shell = EtcdRegistry(address, timeout_ms, lambda: None)
        shell.start()
        return ProxiedLine(proxy, shell)

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        wait_until(is_so, what)

    def restart(self) -> None:
        self.server.kill()
        self.server.start()

    def close(self) -> None:
        self.server.kill()


_PLACES: dict[str, Callable[[Path], Place]] = {
    "tree": lambda _: TreePlace(),
    "name-server": NameServerPlace,
    "zookeeper": ZooKeeperPlace,
    "etcd": EtcdPlace,
}


def open_place(kind: str, directory: Path) -> Place:
    """A registry of a kind: "tree", "name-server", "zookeeper", "etcd"."""
    return _PLACES[kind](directory)


@contextlib.contextmanager
def sessions(place: Place) -> Iterator[Callable[..., Session]]:
    """Give sessions, ready for use; end those that are left."""
    given: list[Session] = []

    def begin(timeout_ms: int = LONG_MS) -> Session:
        session = Session(place, place.line(timeout_ms))
        given.append(session)
        session.wait(SessionUp)
        return session

    try:
        yield begin
    finally:
        for session in given:
            session.close()
