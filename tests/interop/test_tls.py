"""TLS between both: Java clients and mqadmin at our enforcing broker and name server, our client at Java's."""

import json
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from tandemq.client.blocking import BlockingConsumer, BlockingProducer
from tandemq.client.connection import BlockingConnection, try_request
from tandemq.client.core.settings import ConsumeFrom
from tandemq.config.tls import ClientTls
from tandemq.errors import NetworkError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import Message, SendStatus
from tests.blackbox.certificates import Authority
from tests.blackbox.test_client_tls import replace_file
from tests.blackbox.test_console_tls import Api, make_token
from tests.interop.driver import JavaDriver
from tests.interop.java import SERVER_VERSIONS, SMALL_JVM, JavaBroker, JavaNameServer, wait_until
from tests.interop.ours import OurBroker, OurNameServer
from tests.interop.peers import CLIENTS, SMALL_STORE
from tests.interop.wire import loads_lenient

COUNT = 200


@dataclass
class Secured:
    """A Java client with TLS, at an enforcing broker whose certificate it verifies."""

    driver: JavaDriver
    authority: Authority
    broker: OurBroker
    cert: str
    key: str


def client_options(authority: Path) -> list[str]:
    """Options of a Java client that verifies servers."""
    return [
        "-Dtls.enable=true",
        "-Dtls.test.mode.enable=false",
        "-Dtls.client.authServer=true",
        f"-Dtls.client.trustCertPath={authority}",
        "-Dtls.config.file=/nonexistent",
    ]


@pytest.fixture(scope="module", params=CLIENTS)
def secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
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
    namesrv = OurNameServer(directory / "namesrv", settings=settings)
    broker = OurBroker(
        directory / "broker", namesrv=namesrv.address, settings=SMALL_STORE | settings, autoCreateTopicEnable=True
    )
    with namesrv, broker:
        namesrv.start()
        broker.start()
        options = client_options(authority.ca_file)
        with JavaDriver(request.param, directory / "client", jvm_options=options) as driver:
            yield Secured(driver.at(namesrv.address), authority, broker, cert, key)


@pytest.fixture(scope="module")
def client(secured: Secured) -> JavaDriver:
    return secured.driver


def test_java_client_sends_and_consumes_over_tls(client: JavaDriver) -> None:
    sent = client.call("produce", topic="Secured", mode="sync", count=COUNT, size=20_000, retries=5)
    assert [event["status"] for event in sent if event["event"] == "sent"] == ["SEND_OK"] * COUNT
    consumer = client.begin("push", topic="Secured", group="secured", deadline_ms=90_000)
    found = consumer.wait_for(lambda event: event["event"] == "message", within_s=60, count=COUNT)
    consumer.end()
    assert len({event["body"] for event in found}) == COUNT


def test_mqadmin_works_over_tls(client: JavaDriver) -> None:
    assert "broker-a" in client.mqadmin("clusterList", "-n", client.defaults["namesrv"])  # type: ignore[arg-type]


def serial(secured: Secured) -> str:
    """Of the certificate that the broker presents to a new connection."""
    context = ssl.create_default_context(cafile=str(secured.authority.ca_file))
    with (
        socket.create_connection(("127.0.0.1", secured.broker.port), 20) as sock,
        context.wrap_socket(sock, server_hostname="127.0.0.1") as connection,
    ):
        found = connection.getpeercert()
        assert found is not None
        return str(found["serialNumber"])


def connections(secured: Secured, topic: str) -> set[str]:
    """Addresses of the producer and the consumer of a topic at the broker."""
    found = set()
    tls = ClientTls(ca_file=str(secured.authority.ca_file))
    for code, fields in (
        (RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": f"{topic}-p", "topic": topic}),
        (RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": f"{topic}-c"}),
    ):
        answer = try_request(secured.broker.address, Command(code, fields=fields), tls)
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            found |= {one["clientAddr"] for one in loads_lenient(answer.body.decode())["connectionSet"]}
    return found


def test_new_certificates_under_traffic_close_no_connection(secured: Secured) -> None:
    """Three times while a producer and a consumer work: all messages arrive, on the connections of the beginning."""
    topic, java = "Renewed", secured.driver
    consumer = java.begin("push", topic=topic, group=f"{topic}-c", deadline_ms=120_000)
    producer = java.begin(
        "produce", topic=topic, group=f"{topic}-p", mode="sync", count=0, interval_ms=5, retries=0, size=2_000
    )
    producer.wait_for(lambda event: event["event"] == "sent", within_s=60, count=20)
    wait_until(lambda: len(connections(secured, topic)) == 2, what="both are connected", within_s=60)
    before = connections(secured, topic)
    for number in range(3):
        old = serial(secured)
        fresh = secured.authority.issue(f"renewed-{number}")
        for new, used in zip(fresh, (secured.cert, secured.key), strict=True):
            replace_file(new, used)
        wait_until(lambda old=old: serial(secured) != old, what="new connections get it", within_s=60)  # type: ignore[misc]
        done = len(producer.events("sent"))
        producer.wait_for(lambda event: event["event"] == "sent", within_s=60, count=done + 50)
    assert connections(secured, topic) == before, "the connections are those of the beginning"
    sent = producer.end()
    assert {event["event"] for event in sent} == {"sent"}, "no send failed, and none was retried"
    assert {event["status"] for event in sent} == {"SEND_OK"}
    consumer.wait_for(lambda event: event["event"] == "message", within_s=60, count=len(sent))
    consumed = [event for event in consumer.end() if event["event"] == "message"]
    assert len({event["body"] for event in consumed}) == len(consumed) == len(sent)


def is_topic(api: Api, name: str) -> bool:
    return any(one["name"] == name for one in api.call("GET", "/topics")["items"])


def test_mqadmin_and_the_console_work_at_a_cluster_of_up_with_tls(tmp_path: Path) -> None:
    """`tandemq up --tls --console`: two members, elections, one message that each tool sees."""
    words = ["up", "--tls", "--console", "--brokers", "1", "--port", "0", "--data", str(tmp_path), "--json"]
    with subprocess.Popen([sys.executable, "-m", "tandemq", *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            printed = json.loads(process.stdout.readline())
            namesrv, master = printed["nameServer"], printed["brokers"][0]["address"]
            api = Api(printed["console"]["address"], make_token(printed["database"]))
            assert [one["answers"] for group in api.call("GET", "/cluster")["groups"] for one in group["members"]] == [
                True,
                True,
            ]
            api.call("POST", "/topics", {"name": "FromConsole", "queues": 1})
            sent = api.call("POST", "/topics/FromConsole/messages", {"body": "hello"})
            for version in CLIENTS:
                directory, options = tmp_path / f"java-{version}", client_options(Path(printed["tlsCa"]))
                with JavaDriver(version, directory, jvm_options=options) as java:
                    assert master in java.mqadmin("clusterList", "-n", namesrv)
                    java.mqadmin("updateTopic", "-n", namesrv, "-c", "DefaultCluster", "-t", f"From{version[0]}")
                    assert "FromConsole" in java.mqadmin("topicList", "-n", namesrv)
                    found = java.mqadmin(
                        "queryMsgByOffset",
                        *("-n", namesrv, "-t", "FromConsole", "-b", sent["broker"], "-i", "0", "-o", "0"),
                    )
                    assert "FromConsole" in found and "Exception" not in found, found
                made = f"From{version[0]}"
                wait_until(partial(is_topic, api, made), what="the console has it", within_s=30)
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
        finally:
            process.kill()


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
        with pytest.raises(NetworkError), BlockingConnection(broker.address) as plain:
            plain.request(Command(RequestCode.GET_BROKER_CONFIG))
        (tmp_path / "other").mkdir()
        foreign = ClientTls(ca_file=str(Authority(tmp_path / "other", "other").ca_file))
        with pytest.raises(NetworkError, match="not of a trusted authority"):
            BlockingConnection(broker.address, tls=foreign).__enter__()
