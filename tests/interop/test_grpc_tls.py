"""gRPC clients with TLS, and without it on the same port."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.blackbox.certificates import Authority
from tests.interop.checks import bodies
from tests.interop.grpc_clients import GrpcClient
from tests.interop.grpc_proxies import OurProxy, Proxy, proxy
from tests.interop.grpc_stacks import QUICK, Stack
from tests.interop.peers import broker, name_server, start_registered
from tests.samples import slow


@pytest.mark.parametrize(
    ("kind", "language"),
    [("ours", "java-5.2.0"), ("ours", "python"), slow(("ours", "node")), slow(("5.3.3", "java-5.2.0"))],
)
def test_clients_with_and_without_tls_share_a_port(kind: str, language: str, tmp_path: Path) -> None:
    """A Java proxy makes a certificate for itself, which only clients that do not verify it accept."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server")
    with (
        name_server("ours", tmp_path / "namesrv") as namesrv,
        broker("ours", tmp_path / "broker", namesrv, settings=QUICK) as keeper,
    ):
        namesrv.start()
        start_registered(keeper, namesrv)
        front: Proxy = (
            OurProxy(tmp_path / "proxy", namesrv.address, tls=(Path(certificate), Path(key)))
            if kind == "ours"
            else proxy(kind, tmp_path / "proxy", namesrv.address)
        )
        with front, GrpcClient(language, tmp_path / "client", "", authorities=authority.ca_file) as client:
            front.start()
            servers = Stack(namesrv, keeper, front)
            topic, group = servers.topic(), servers.group()
            at = client.towards(front.address)
            encrypted, plain = (at.producer(topics=topic, tls=tls) for tls in (True, False))
            sent = encrypted.send_all(["encrypted"], topic=topic) + plain.send_all(["plain"], topic=topic)
            consumer = at.simple(group=group, topic=topic, tls=True)
            assert sorted(bodies(consumer.receive_all(2))) == sorted(sent)
