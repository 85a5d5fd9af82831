"""`tandemq kafka` with unmodified consumers: Java's, aiokafka, librdkafka, Spark's source in real-time mode."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from click.testing import CliRunner

from bench.spark.kafka import KAFKA, KafkaBroker
from tandemq.cli import main
from tandemq.client.blocking import BlockingProducer
from tandemq.client.connection import try_request
from tandemq.client.core.requests import TOOLS_GROUP
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import Message
from tandemq.run.children import ChildCluster
from tandemq.run.local import LocalCluster
from tests.blackbox.programs import wait_until
from tests.interop.grpc_clients import installed
from tests.interop.java import REPOSITORY, JavaJars, java_executable
from tests.spark.messages import make_topic
from tests.spec import spec

TOPIC = "Orders"
COUNT = 200
TIMEOUT_S = 120


def clients_python() -> Path:
    """Return the Python of an environment with Kafka's clients; made if its lock file is new."""
    lock = REPOSITORY / "requirements-kafka-clients.lock"
    install = ["{}/bin/python", "-m", "pip", "install", "--quiet", "--no-compile", "--require-hashes", "-r", str(lock)]
    return installed("kafka-clients", [lock], [sys.executable, "-m", "venv", "{}"], install) / "bin" / "python"


@contextmanager
def kafka(name_servers: str, partitions: Path, *options: str) -> Iterator[str]:
    """Run `tandemq kafka`; yields its address."""
    words = [sys.executable, "-m", "tandemq", "kafka", "--namesrv", name_servers, "--partitions", str(partitions)]
    words += ["--port", "0", "--json", "--while-stdin", *options]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["address"]
        process.stdin.close()
        assert process.wait(TIMEOUT_S) == 0


def send(name_servers: str, numbers: range) -> None:
    """Send numbered messages in turn to all queues."""
    with BlockingProducer(name_servers, group="shop") as producer:
        for number in numbers:
            properties = {"number": str(number)}
            producer.send(Message(TOPIC, b"%d" % number, keys=[f"k{number}"], tags="paid", properties=properties))


def read(address: str, count: int, *proofs: str, client: str = "aiokafka") -> tuple[list[list[int]], list[Any]]:
    """Return the bounds of the partitions and the messages that a client reads."""
    script = Path(__file__).with_name(f"{client}_reader.py")
    words = [str(clients_python()), str(script), address, TOPIC, str(count), *proofs]
    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    bounds, *messages = [json.loads(line) for line in done.stdout.splitlines()]
    return bounds, messages


def java(address: str, tool: str, *words: str) -> list[str]:
    """Return the lines that one of Kafka's tools for Java prints about the topic."""
    command = [java_executable(), "-cp", JavaJars.class_path("kafka", KAFKA), f"org.apache.kafka.tools.{tool}"]
    command += ["--bootstrap-server", address, "--topic", TOPIC, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    return done.stdout.splitlines()


@spec("P43")
def test_aiokafka_reads_two_broker_groups_and_finds_its_partitions_after_a_restart(
    tandemq_cluster: LocalCluster, tmp_path: Path
) -> None:
    names, numbers = tandemq_cluster.name_servers, tmp_path / "numbers.json"
    make_topic(names, TOPIC)
    send(names, range(COUNT))
    with kafka(names, numbers) as address:
        bounds, messages = read(address, COUNT)
    known = json.loads(numbers.read_text())[TOPIC]
    assert [number for number, *_ in bounds] == list(range(len(known)))
    assert {name for name, _ in known} == {"broker-a", "broker-b"}
    ends = {number: end for number, _, end in bounds}
    assert sum(ends.values()) == COUNT
    assert {(number, offset) for number, offset, *_ in messages} == {
        (number, offset) for number, end in ends.items() for offset in range(end)
    }
    assert sorted(int(body) for *_, body, _ in messages) == list(range(COUNT))
    for _, _, _, key, body, headers in messages:
        assert (key, headers) == (f"k{body}", {"number": body, "TAGS": "paid"})
    with kafka(names, numbers) as address:
        assert read(address, COUNT)[0] == bounds


@spec("P43")
def test_a_slave_serves_consumers_while_the_master_is_down(tandemq_pair: LocalCluster, tmp_path: Path) -> None:
    names = tandemq_pair.name_servers
    make_topic(names, TOPIC)
    send(names, range(COUNT))
    with kafka(names, tmp_path / "numbers.json") as address:
        tandemq_pair.broker().kill()
        bounds, messages = read(address, COUNT)
    assert sum(end for _, _, end in bounds) == COUNT
    assert sorted(int(body) for *_, body, _ in messages) == list(range(COUNT))


@spec("P43")
def test_it_starts_without_a_name_server_and_serves_when_there_is_one(tmp_path: Path) -> None:
    with ChildCluster(tmp_path) as cluster:
        names = cluster.name_servers
        make_topic(names, TOPIC)
        send(names, range(COUNT))
        cluster.name_server.kill()
        with kafka(names, tmp_path / "numbers.json") as address:
            cluster.name_server.start()
            route = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": TOPIC})

            def is_known() -> bool:
                answer = try_request(names, route)
                return answer is not None and answer.code == ResponseCode.SUCCESS

            wait_until(is_known, "the broker has registered the topic")
            _, messages = read(address, COUNT)
    assert sorted(int(body) for *_, body, _ in messages) == list(range(COUNT))


@spec("P43")
def test_librdkafka_reads_and_is_told_what_is_not_served(tandemq_broker: LocalCluster, tmp_path: Path) -> None:
    names = tandemq_broker.name_servers
    make_topic(names, TOPIC)
    send(names, range(COUNT))
    with kafka(names, tmp_path / "numbers.json") as address:
        bounds, messages = read(address, COUNT, client="librdkafka")
        assert read(address, COUNT)[0] == bounds
        found = messages.pop()
    errors = {"group": "_UNSUPPORTED_FEATURE", "send": "TOPIC_AUTHORIZATION_FAILED"}
    assert found == {"first": 0, "past": -1} | errors
    assert sorted(int(body) for *_, body, _ in messages) == list(range(COUNT))
    for _, _, _, key, body, headers in messages:
        assert (key, headers) == (f"k{body}", {"number": body, "TAGS": "paid"})


@spec("P43")
def test_kafkas_java_consumer_reads_a_queue_in_order_and_finds_offsets(
    tandemq_broker: LocalCluster, tmp_path: Path
) -> None:
    names = tandemq_broker.name_servers
    make_topic(names, TOPIC)
    send(names, range(COUNT))
    with kafka(names, tmp_path / "numbers.json") as address:
        ends = dict(line.split(":")[1:] for line in java(address, "GetOffsetShell"))
        assert sum(map(int, ends.values())) == COUNT
        words = ["--partition", "0", "--offset", "5", "--max-messages", str(int(ends["0"]) - 5)]
        words += ["--property", "print.offset=true", "--property", "print.key=true"]
        lines = java(address, "consumer.ConsoleConsumer", *words)
    rows = [line.split("\t") for line in lines]
    assert [offset for offset, _, _ in rows] == [f"Offset:{offset}" for offset in range(5, int(ends["0"]))]
    bodies = [int(body) for _, _, body in rows]
    assert bodies == sorted(bodies)
    assert [key for _, key, _ in rows] == [f"k{body}" for body in bodies]


@spec("P43")
def test_consumers_present_certificates_if_they_must(tandemq_broker: LocalCluster, tmp_path: Path) -> None:
    names, authority = tandemq_broker.name_servers, trustme.CA()
    make_topic(names, TOPIC)
    send(names, range(8))
    files = {}
    for name, certificate in (
        ("server", authority.issue_cert("127.0.0.1")),
        ("reader", authority.issue_cert("reader")),
    ):
        files[name] = str(tmp_path / f"{name}.pem"), str(tmp_path / f"{name}.key")
        certificate.cert_chain_pems[0].write_to_path(files[name][0])
        certificate.private_key_pem.write_to_path(files[name][1])
    ca = str(tmp_path / "ca.pem")
    authority.cert_pem.write_to_path(ca)
    chain, key = files["server"]
    options = "--certificate", chain, "--key", key, "--client-ca", ca
    with kafka(names, tmp_path / "numbers.json", *options) as address:
        assert len(read(address, 8, ca, *files["reader"])[1]) == 8
        with pytest.raises(AssertionError, match="KafkaConnectionError"):
            read(address, 8)


@spec("P49")
def test_consumers_sign_in_as_users_of_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def act_as(user: str, key: str) -> None:
        monkeypatch.setenv("TANDEMQ_ACCESS_KEY", user)
        monkeypatch.setenv("TANDEMQ_SECRET_KEY", key)

    admin = "admin", "a key of the administrator"
    settings = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": json.dumps({"username": admin[0], "password": admin[1]}),
    }
    act_as(*admin)
    with LocalCluster(tmp_path / "cluster", groups=1, slaves=0, settings=settings) as cluster:
        names = cluster.name_servers
        make_topic(names, TOPIC)
        send(names, range(COUNT))
        keys = {}
        for user in ("billing", "audit"):
            words = ["acl", "user", "create", user, "-n", names]
            keys[user] = CliRunner().invoke(main, words, catch_exceptions=False).stdout.split()[3]
        for resource in (f"Topic:{TOPIC}", f"Group:{TOOLS_GROUP}"):
            words = ["acl", "allow", "billing", resource, "--action", "Sub", "-n", names]
            assert CliRunner().invoke(main, words, catch_exceptions=False).exit_code == 0
        with kafka(names, tmp_path / "numbers.json", "--sasl") as address:
            _, messages = read(address, COUNT, "billing", keys["billing"])
            assert sorted(int(body) for *_, body, _ in messages) == list(range(COUNT))
            signing = tmp_path / "client.properties"
            signing.write_text(
                "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
                "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
                f'username="billing" password="{keys["billing"]}";\n'
            )
            ends = java(address, "GetOffsetShell", "--command-config", str(signing))
            assert sum(int(line.split(":")[2]) for line in ends) == COUNT
            for proofs, error in (
                (("billing", "another key"), "authentication failed"),
                (("audit", keys["audit"]), "TopicAuthorizationFailed"),
                ((), "KafkaConnectionError"),
            ):
                with pytest.raises(AssertionError, match=error):
                    read(address, COUNT, *proofs)


@spec("P44")
def test_spark_reads_in_real_time_mode_while_its_only_batch_lasts(tandemq_broker: LocalCluster, tmp_path: Path) -> None:
    names = tandemq_broker.name_servers
    make_topic(names, TOPIC)
    send(names, range(20))
    with KafkaBroker(tmp_path / "sink") as sink, kafka(names, tmp_path / "numbers.json") as address:
        sink.format()
        sink.start(TIMEOUT_S)
        sink.create_topic(TOPIC, 1)
        words = [sys.executable, "-m", "tests.interop.real_time_query", address, TOPIC, sink.address, str(tmp_path)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as query:
            first = {int(body) for *_, body, _ in read(sink.address, 18)[1]}
            send(names, range(20, 40))
            messages = read(sink.address, 36)[1]
            said, _ = query.communicate("")
    assert first == {number for number in range(20) if number % 10 != 7}
    assert sorted(int(body) for *_, body, _ in messages) == [number for number in range(40) if number % 10 != 7]
    for _, _, _, key, body, headers in messages:
        assert (key, headers) == (f"k{body}", {"number": body, "TAGS": "paid"})
    assert said.split() == ["0", "True", "None"]
