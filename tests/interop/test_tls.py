"""TLS between both: Java clients and mqadmin at our enforcing broker and name server, our client at Java's."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from tandemq.client.blocking import BlockingConsumer, BlockingProducer
from tandemq.client.core.settings import ConsumeFrom
from tandemq.config.tls import ClientTls
from tandemq.errors import NetworkError
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.model.message import Message, SendStatus
from tandemq.run.request import connect, try_request
from tests.blackbox.certificates import Authority
from tests.interop.driver import JavaDriver
from tests.interop.java import SERVER_VERSIONS, SMALL_JVM, JavaBroker, JavaNameServer, wait_until
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


def java_tls(directory: Path, authority: Authority) -> list[str]:
    """Options of a Java broker or name server that requires TLS; Java reads PKCS #8 keys only."""
    cert, key = authority.issue("java")
    private = load_pem_private_key(Path(key).read_bytes(), None)
    converted = directory / "java.pk8"
    converted.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return [
        *(option for option in SMALL_JVM if not option.startswith("-Dtls.")),
        "-Dtls.server.mode=enforcing",
        "-Dtls.test.mode.enable=false",
        f"-Dtls.server.certPath={cert}",
        f"-Dtls.server.keyPath={converted}",
        "-Dtls.enable=true",
        "-Dtls.config.file=/nonexistent",
    ]


def is_registered(address: str, tls: ClientTls) -> bool:
    answer = try_request(address, Command(RequestCode.GET_BROKER_CLUSTER_INFO), tls)
    return answer is not None and b"broker-a" in answer.body


@pytest.mark.parametrize("version", SERVER_VERSIONS)
def test_our_client_works_with_a_java_broker_over_tls(version: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    options = java_tls(tmp_path, authority)
    namesrv = JavaNameServer(version, tmp_path / "namesrv", jvm_options=options)
    broker = JavaBroker(
        version,
        tmp_path / "broker",
        namesrv=namesrv.address,
        jvm_options=options,
        settings=SMALL_STORE,
        autoCreateTopicEnable=True,
    )
    with namesrv, broker:
        namesrv.start()
        broker.start()
        trust = ClientTls(ca_file=str(authority.ca_file))
        wait_until(lambda: is_registered(namesrv.address, trust), what="the broker is registered", within_s=90)
        bodies = [bytes([number]) * 20_000 for number in range(50)]
        with BlockingProducer(namesrv.address, group="p", tls=trust, retry_ms=60_000) as producer:
            for body in bodies:
                assert producer.send(Message("Secured", body)).status is SendStatus.SEND_OK
        first = ConsumeFrom.FIRST
        with BlockingConsumer(
            namesrv.address, group="c", topics={"Secured": "*"}, tls=trust, consume_from=first
        ) as consumer:
            found: set[bytes] = set()  # a send that is retried may be stored twice
            while len(found) < len(bodies):
                message = consumer.receive(timeout_s=60)
                assert message is not None
                found.add(message.body)
                message.ack()
        assert found == set(bodies)
        with pytest.raises(NetworkError), connect(broker.address) as plain:
            plain.request(Command(RequestCode.GET_BROKER_CONFIG))
        (tmp_path / "other").mkdir()
        foreign = ClientTls(ca_file=str(Authority(tmp_path / "other", "other").ca_file))
        with pytest.raises(NetworkError, match="not of a trusted authority"):
            connect(broker.address, tls=foreign).__enter__()
