"""What our shell asks of kazoo, beside the suite all registries pass (`test_registry`)."""

from types import SimpleNamespace

import pytest
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Connect, GetData

from tandemq.real.zookeeper import ZooKeeperRegistry


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
