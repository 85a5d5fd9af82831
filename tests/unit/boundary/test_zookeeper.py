"""What our shell asks of kazoo, beside the suite all registries pass (`test_registry`)."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from kazoo.exceptions import ConnectionDropped, SessionExpiredError
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Connect, GetData

from tandemq.boundary import Now
from tandemq.real import zookeeper
from tandemq.real.zookeeper import REFUSED_TIMEOUTS, ZooKeeperRegistry
from tandemq.registry import Create, RegistryEvent, RegistryRequest, SessionLost, SessionUp
from tests.interop.java import wait_until
from tests.interop.zookeeper import ZooKeeper


@pytest.mark.parametrize(("hosts", "given_s", "waits_s"), [("a:1", 12.0, 6.0), ("a:1,b:1,c:1", 4.0, 4.0)])
def test_handshake_that_hangs_is_begun_anew_within_the_session(
    hosts: str, given_s: float, waits_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def invoke(_: ConnectionHandler, timeout: float, request: object, xid: int | None = None) -> list[SimpleNamespace]:
        waited.append(timeout)
        return [SimpleNamespace(time_out=9_000)]

    monkeypatch.setattr(ConnectionHandler, "_invoke", invoke)
    connection = ZooKeeperRegistry(hosts, 12_000, lambda: None)._connection
    connection._invoke(given_s, Connect(0, 0, 12_000, 0, b"", False))
    connection._invoke(given_s, GetData("/a", None))
    assert waited == [waits_s, given_s]
    assert connection.negotiated_ms == 9_000


def test_session_whose_handshakes_stay_without_a_response_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now, answers = Now(1_000, 0), True

    def invoke(*_: object) -> list[SimpleNamespace]:
        if not answers:
            raise ConnectionDropped("socket connection broken")
        return [SimpleNamespace(time_out=2_000)]

    monkeypatch.setattr(ConnectionHandler, "_invoke", invoke)
    monkeypatch.setattr(zookeeper, "read_clock", lambda: now)
    connection = ZooKeeperRegistry("a:1", 2_000, lambda: None)._connection
    shake, begin = Connect(0, 77, 2_000, 5, b"", False), Connect(0, 0, 2_000, 0, b"", False)
    connection._invoke(1.0, shake)
    answers = False
    for now.mono_ms in (1_000, 1_000 + REFUSED_TIMEOUTS * 2_000):
        with pytest.raises(ConnectionDropped):
            connection._invoke(1.0, shake)
    answers = True
    connection._invoke(1.0, shake)  # begins the wait anew
    answers = False
    for now.mono_ms in (6_000, 6_000 + REFUSED_TIMEOUTS * 2_000):
        with pytest.raises(ConnectionDropped):
            connection._invoke(1.0, shake)
    now.mono_ms += 1
    with pytest.raises(ConnectionDropped):  # no session is given up that does not exist
        connection._invoke(1.0, begin)
    with pytest.raises(SessionExpiredError):
        connection._invoke(1.0, shake)


@pytest.mark.system
@pytest.mark.services
def test_session_begins_anew_at_a_server_with_older_data(tmp_path: Path) -> None:
    data, copy = tmp_path / "zk" / "data", tmp_path / "copy"
    events: list[RegistryEvent] = []

    def seen(kind: type[RegistryEvent]) -> int:
        events.extend(session.take_events())
        return sum(isinstance(event, kind) for event in events)

    with ZooKeeper(tmp_path / "zk") as server:
        server.start()
        server.kill()
        shutil.copytree(data, copy)
        server.start()
        session = ZooKeeperRegistry(server.address, 2_000, lambda: None)
        session.start()
        try:
            wait_until(lambda: seen(SessionUp) == 1, what="the session is up", within_s=30)
            session.ask(RegistryRequest(1, Create("/newer", b"", ephemeral=False)))
            wait_until(lambda: len(events) > 1 or seen(SessionUp) > 1, what="the node is made", within_s=30)
            server.kill()
            shutil.rmtree(data)
            shutil.copytree(copy, data)
            server.start()
            wait_until(lambda: seen(SessionUp) == 2, what="there is a session again", within_s=60)
            assert seen(SessionLost) == 1
        finally:
            session.close()
