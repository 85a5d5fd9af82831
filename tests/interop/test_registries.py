"""Sessions at three servers of ZooKeeper or etcd: a killed and a paused leader, a lost majority, silent servers.

The rules for every registry are tested in tests/unit/boundary/test_registry.py, with one server of each.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandemq.real.clock import read_clock
from tandemq.real.zookeeper import CLOSE_SECONDS
from tandemq.registry import (
    Confirmed,
    Create,
    Done,
    NodeFound,
    NodeMissing,
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
    parse_address,
)
from tandemq.run.registry_session import open_session
from tests.interop.ensembles import KINDS, Ensemble
from tests.interop.etcd import Etcd
from tests.interop.java import wait_until
from tests.interop.zookeeper import ZooKeeper

SESSION_MS = 6_000


class Client:
    """A session, with operations that wait for their outcome."""

    def __init__(self, address: str, timeout_ms: int = SESSION_MS) -> None:
        self.events: list[RegistryEvent] = []
        self.registry = open_session(parse_address(address), timeout_ms, lambda: None)
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

    def count(self, kind: type[RegistryEvent]) -> int:
        self.events += self.registry.take_events()
        return sum(isinstance(event, kind) for event in self.events)


@pytest.fixture(params=KINDS)
def ensemble(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ensemble]:
    with Ensemble(request.param, tmp_path) as started:
        yield started


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ZooKeeper | Etcd]:
    alone: ZooKeeper | Etcd = ZooKeeper(tmp_path) if request.param == "zookeeper" else Etcd(tmp_path)
    with alone.start():
        yield alone


def address_of(server: ZooKeeper | Etcd) -> str:
    return f"{'etcd' if isinstance(server, Etcd) else 'zookeeper'}://{server.address}"


def test_a_session_and_its_nodes_outlive_a_killed_leader(ensemble: Ensemble) -> None:
    client = Client(ensemble.address)
    try:
        assert client.do_until_known(Create("/live", b"me", ephemeral=True)) == Done(0)
        assert client.do(Create("/state", b"0")) == Done(0)
        for version, server in enumerate(ensemble.servers):  # one of them is the leader
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
        assert client.count(SessionLost) == 0
    finally:
        client.registry.close()


def test_a_leader_that_was_paused_and_replaced_confirms_no_session_that_has_ended(ensemble: Ensemble) -> None:
    leader = ensemble.leader
    others = [server for server in ensemble.servers if server is not leader]
    client = Client(ensemble.address.replace(ensemble.hosts, leader.address), 2_000)
    watching = Client(ensemble.address.replace(ensemble.hosts, ",".join(server.address for server in others)))
    try:
        assert client.do(Create("/live", b"", ephemeral=True)) == Done(0)
        client.wait_confirmed_since(read_clock().mono_ms)
        leader.sigstop()
        wait_until(lambda: watching.do(Read("/live")) == NodeMissing(), what="the session has ended", within_s=60)
        ended_ms = read_clock().mono_ms
        leader.sigcont()
        client.until(lambda: client.count(SessionUp) == 2, "a new session")
        up = max(index for index, event in enumerate(client.events) if isinstance(event, SessionUp))
        confirmed = [event for event in client.events[:up] if isinstance(event, Confirmed)]
        assert confirmed
        assert all(event.sent_ms < ended_ms for event in confirmed)
        assert client.count(SessionLost) == 1
    finally:
        leader.sigcont()
        client.registry.close()
        watching.registry.close()


def test_a_leader_whose_followers_are_paused_confirms_nothing(ensemble: Ensemble) -> None:
    leader = ensemble.leader
    followers = [server for server in ensemble.servers if server is not leader]
    client = Client(ensemble.address.replace(ensemble.hosts, leader.address))
    try:
        client.wait_confirmed_since(read_clock().mono_ms)
        for server in followers:
            server.sigstop()
        paused_ms = read_clock().mono_ms  # The leader goes on until it misses their answers.
        client.until(lambda: client.count(SessionSuspended) > 0, "suspended")
        assert [e for e in client.events if isinstance(e, Confirmed) and e.sent_ms > paused_ms] == []
    finally:
        for server in followers:
            server.sigcont()
        client.registry.close()


def test_without_a_majority_nothing_is_confirmed_and_nothing_is_lost(ensemble: Ensemble) -> None:
    servers = ensemble.servers
    client = Client(ensemble.address)
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


def test_a_session_is_given_up_quickly_when_no_server_responds(server: ZooKeeper | Etcd) -> None:
    client = Client(address_of(server), timeout_ms=20_000)
    server.sigstop()
    began_ms = read_clock().mono_ms
    client.registry.close()
    assert read_clock().mono_ms - began_ms < 1_000 * (CLOSE_SECONDS + 5)
    server.sigcont()


def test_the_session_timeout_is_what_the_server_allows(tmp_path: Path) -> None:
    with ZooKeeper(tmp_path, tick_ms=2_000).start() as server:
        client = Client(address_of(server), timeout_ms=2_000)
        client.registry.close()
        assert [event.timeout_ms for event in client.events if isinstance(event, SessionUp)] == [4_000]
