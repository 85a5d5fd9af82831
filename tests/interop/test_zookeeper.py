"""Sessions at an ensemble of ZooKeeper servers: a killed leader, a lost majority, and a server that does not respond.

The rules for every registry are tested in tests/unit/boundary/test_registry.py, with one ZooKeeper server.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandemq.real.clock import read_clock
from tandemq.real.zookeeper import CLOSE_SECONDS, ZooKeeperRegistry
from tandemq.registry import (
    Confirmed,
    Create,
    Done,
    NodeFound,
    Operation,
    Outcome,
    Read,
    RegistryEvent,
    RegistryRequest,
    RegistryResponse,
    SessionLost,
    SessionUp,
    Unknown,
    Write,
)
from tests.interop.java import wait_until
from tests.interop.zookeeper import ZooKeeper, quorum

SESSION_MS = 6_000


class Client:
    """A session, with operations that wait for their outcome."""

    def __init__(self, hosts: str, timeout_ms: int = SESSION_MS) -> None:
        self.events: list[RegistryEvent] = []
        self.registry = ZooKeeperRegistry(hosts, timeout_ms, lambda: None)
        self.registry.start()
        self._token = 0
        self.until(lambda: any(isinstance(event, SessionUp) for event in self.events), "a session")

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Take events until a condition holds."""

        def poll() -> bool:
            self.events += self.registry.take_events()
            return holds()

        wait_until(poll, what=what, within_s=60)

    def do(self, operation: Operation) -> Outcome:
        self._token += 1
        token = self._token
        self.registry.ask(RegistryRequest(token, operation))
        self.until(
            lambda: any(isinstance(e, RegistryResponse) and e.token == token for e in self.events), f"{operation}"
        )
        return next(e.outcome for e in self.events if isinstance(e, RegistryResponse) and e.token == token)

    def do_until_known(self, operation: Operation) -> Outcome:
        """Repeat an operation until its outcome is known, as the machines of a broker do."""
        outcomes: list[Outcome] = [Unknown()]

        def attempt() -> bool:
            outcomes[0] = self.do(operation)
            return outcomes[0] != Unknown()

        wait_until(attempt, what=f"an answer to {operation}", within_s=60)
        return outcomes[0]

    def wait_confirmed_since(self, since_ms: int) -> None:
        self.until(lambda: any(isinstance(e, Confirmed) and e.sent_ms > since_ms for e in self.events), "confirmed")


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[ZooKeeper]]:
    started = quorum(tmp_path)
    for server in started:
        server.begin_start()
    yield started
    for server in started:
        server.kill()


def test_a_session_and_its_nodes_outlive_a_killed_leader(servers: list[ZooKeeper]) -> None:
    client = Client(",".join(server.address for server in servers))
    try:
        assert client.do_until_known(Create("/live", b"me", ephemeral=True)) == Done(0)
        assert client.do(Create("/state", b"0")) == Done(0)
        for version, server in enumerate(servers):  # one of them is the leader
            server.kill()
            killed_ms = read_clock().mono_ms
            written = client.do_until_known(Write("/state", str(version).encode(), version))
            found = client.do_until_known(Read("/state"))
            assert isinstance(found, NodeFound)
            assert (found.version, written) == (version + 1, Done(version + 1)) or found.data == str(version).encode()
            client.wait_confirmed_since(killed_ms)
            server.begin_start()
        live = client.do_until_known(Read("/live"))
        assert isinstance(live, NodeFound)
        assert live.owner == next(event.session_id for event in client.events if isinstance(event, SessionUp))
        assert not any(isinstance(event, SessionLost) for event in client.events)
    finally:
        client.registry.close()


def test_without_a_majority_nothing_is_confirmed_and_nothing_is_lost(servers: list[ZooKeeper]) -> None:
    client = Client(",".join(server.address for server in servers))
    try:
        client.do_until_known(Create("/kept", b"x"))
        for server in servers[:2]:
            server.kill()
        client.until(lambda: client.registry.problem != "", "suspended")
        since_ms = read_clock().mono_ms
        assert client.do(Write("/kept", b"y", 0)) == Unknown()
        assert not any(isinstance(e, Confirmed) and e.sent_ms > since_ms for e in client.events)
        for server in servers[:2]:
            server.begin_start()
        client.until(lambda: client.registry.problem == "", "up again")
        assert client.do_until_known(Read("/kept")) == NodeFound(b"x", 0)
    finally:
        client.registry.close()


def test_a_session_is_given_up_quickly_when_no_server_responds(tmp_path: Path) -> None:
    with ZooKeeper(tmp_path).start() as server:
        client = Client(server.address, timeout_ms=20_000)
        server.sigstop()
        began_ms = read_clock().mono_ms
        client.registry.close()
        assert read_clock().mono_ms - began_ms < 1_000 * (CLOSE_SECONDS + 5)
        server.sigcont()


def test_the_session_timeout_is_what_the_server_allows(tmp_path: Path) -> None:
    with ZooKeeper(tmp_path, tick_ms=2_000).start() as server:
        client = Client(server.address, timeout_ms=2_000)
        client.registry.close()
        assert [event.timeout_ms for event in client.events if isinstance(event, SessionUp)] == [4_000]
