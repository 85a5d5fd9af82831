"""Java clients over TLS: at an enforcing broker and name server, with certificates that they verify, and mqadmin."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.blackbox.certificates import Authority
from tests.interop.driver import JavaDriver
from tests.interop.ours import OurBroker, OurNameServer
from tests.interop.peers import CLIENTS, SMALL_STORE

COUNT = 200


@pytest.fixture(scope="module", params=CLIENTS)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaDriver]:
    """A Java client with TLS, at an enforcing broker whose certificate it verifies."""
    directory: Path = tmp_path_factory.mktemp("tls")
    authority = Authority(directory)
    cert, key = authority.issue("server")
    settings = {
        "tls.config.file": "/nonexistent",
        "tls.server.mode": "enforcing",
        "tls.server.certPath": cert,
        "tls.server.keyPath": key,
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": str(authority.ca_file),
    }
    options = [
        "-Dtls.enable=true",
        "-Dtls.test.mode.enable=false",
        "-Dtls.client.authServer=true",
        f"-Dtls.client.trustCertPath={authority.ca_file}",
        "-Dtls.config.file=/nonexistent",
    ]
    namesrv = OurNameServer(directory / "namesrv", settings=settings)
    broker = OurBroker(
        directory / "broker", namesrv=namesrv.address, settings=SMALL_STORE | settings, autoCreateTopicEnable=True
    )
    with namesrv, broker:
        namesrv.start()
        broker.start()
        with JavaDriver(request.param, directory / "client", jvm_options=options) as driver:
            yield driver.at(namesrv.address)


def test_java_client_sends_and_consumes_over_tls(client: JavaDriver) -> None:
    sent = client.call("produce", topic="Secured", mode="sync", count=COUNT, size=20_000, retries=5)
    assert [event["status"] for event in sent if event["event"] == "sent"] == ["SEND_OK"] * COUNT
    consumer = client.begin("push", topic="Secured", group="secured", deadline_ms=90_000)
    found = consumer.wait_for(lambda event: event["event"] == "message", within_s=60, count=COUNT)
    consumer.end()
    assert len({event["body"] for event in found}) == COUNT


def test_mqadmin_works_over_tls(client: JavaDriver) -> None:
    assert "broker-a" in client.mqadmin("clusterList", "-n", client.defaults["namesrv"])  # type: ignore[arg-type]
