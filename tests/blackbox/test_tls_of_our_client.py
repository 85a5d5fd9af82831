"""Our client over TLS: at real brokers and name servers, with certificates that are right, wrong, expired, replaced."""

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tandemq.cli.support.tls import spark_tls, tls_options
from tandemq.client.aio.admin import Admin
from tandemq.client.aio.producer import Producer
from tandemq.client.aio.pull_consumer import PullConsumer
from tandemq.client.blocking import BlockingConsumer, BlockingProducer
from tandemq.client.connection import BlockingConnection
from tandemq.client.core.settings import ConsumeFrom
from tandemq.config.tls import ClientTls, read_client_tls
from tandemq.errors import ConfigError, NetworkError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import Message, SendStatus
from tandemq.registry import NodeMissing, Read, parse_address
from tandemq.run import registry_session
from tandemq.run.registry_session import RegistryClient
from tests.blackbox.certificates import Authority
from tests.blackbox.conftest import StartNameServer
from tests.blackbox.pair import Start
from tests.blackbox.programs import Program, wait_until
from tests.blackbox.test_client_tls import replace_file, settings


@pytest.fixture
def trust(authority: Authority) -> ClientTls:
    return ClientTls(ca_file=str(authority.ca_file))


@pytest.fixture
def cluster(start: Start, authority: Authority, start_name_server: StartNameServer, trust: ClientTls) -> Program:
    """An enforcing broker, registered at an enforcing name server."""
    names = start_name_server()
    own = {"namesrvAddr": names.address, "autoCreateTopicEnable": "true"}
    own |= {"tls.client.authServer": "true", "tls.client.trustCertPath": str(authority.ca_file)}
    broker = start("broker", **settings(authority, "enforcing", **own))
    wait_until(lambda: is_registered(names.address, trust), "the broker is registered")
    return broker


def is_registered(name_servers: str, trust: ClientTls) -> bool:
    async def ask() -> bool:
        async with Admin(name_servers, tls=trust) as admin:
            return bool((await admin.cluster_info()).brokers)

    return asyncio.run(ask())


def names_of(cluster: Program) -> str:
    return str(cluster.settings["namesrvAddr"])


def test_client_sends_pulls_long_polls_and_administers_over_tls(cluster: Program, trust: ClientTls) -> None:
    bodies = [bytes([number]) * size for number, size in enumerate((1, 100, 20_000, 300_000) * 5)]

    async def run() -> None:
        async with (
            Admin(names_of(cluster), tls=trust) as admin,
            Producer(names_of(cluster), group="p", tls=trust, compress_above_bytes=1 << 30) as producer,
            PullConsumer(names_of(cluster), group="c", tls=trust, consume_from=ConsumeFrom.FIRST) as consumer,
        ):
            await admin.create_topic("Secured", queues=2)
            consumer.assign(await consumer.queues("Secured"))
            waiting = asyncio.create_task(consumer.poll(1, timeout_s=60))
            done = await asyncio.gather(*(producer.send(Message("Secured", body)) for body in bodies))
            assert {result.status for result in done} == {SendStatus.SEND_OK}
            found = [message.body for message in await waiting]
            while len(found) < len(bodies):
                messages = await consumer.poll(timeout_s=60)
                assert messages, "all are delivered"
                found += [message.body for message in messages]
            assert sorted(found) == sorted(bodies)

    asyncio.run(run())


def test_blocking_client_works_over_tls(cluster: Program, trust: ClientTls) -> None:
    with BlockingProducer(names_of(cluster), group="p", tls=trust) as producer:
        producer.send(Message("Blocking", b"first"))
        first = ConsumeFrom.FIRST
        with BlockingConsumer(
            names_of(cluster), group="c", topics={"Blocking": "*"}, tls=trust, consume_from=first
        ) as consumer:
            message = consumer.receive(120)
            assert message is not None
            assert message.body == b"first"
            message.ack()


def refusal(address: str, tls: ClientTls | bool) -> str:
    """Why an admin client gets no answer."""

    async def ask() -> str:
        async with Admin(address, tls=tls) as admin:
            with pytest.raises(NetworkError) as raised:
                await admin.cluster_info()
        return str(raised.value)

    return asyncio.run(ask())


def blocking_refusal(address: str, tls: ClientTls | None) -> str:
    with pytest.raises(NetworkError) as raised, BlockingConnection(address, tls=tls) as opened:
        opened.request(Command(RequestCode.GET_BROKER_CLUSTER_INFO))
    return str(raised.value)


def both(address: str, tls: ClientTls | None) -> tuple[str, str]:
    return refusal(address, tls or False), blocking_refusal(address, tls)


def test_each_refusal_is_one_line_that_says_why(
    authority: Authority, trust: ClientTls, start_name_server: StartNameServer, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other", "other")
    good = start_name_server().address
    expired = start_name_server(authority.issue("late", is_expired=True)).address
    early = start_name_server(authority.issue("early", days=(1, 2))).address
    renamed = start_name_server(authority.issue("renamed", "elsewhere.example")).address
    plain = start_name_server(tls_mode="disabled").address
    demanding = start_name_server(
        tls_client_auth="require", tls_verify_clients=True, tls_ca_file=str(authority.ca_file)
    ).address
    foreign_cert, foreign_key = other.issue("foreign")
    foreign = replace(trust, cert_file=foreign_cert, key_file=foreign_key)
    for address, tls, what in (
        (good, ClientTls(ca_file=str(other.ca_file)), "TLS: the server's certificate is not of a trusted authority: "),
        (good, ClientTls(ca_file=str(other.ca_file)), "; put the authority that issued it into ca_file (--tls-ca)"),
        (expired, trust, "TLS: the server's certificate has expired: CN=late,"),
        (expired, trust, "; renew it there, or correct the clock of this machine"),
        (early, trust, "TLS: the server's certificate is not valid yet: CN=early,"),
        (early, trust, "; correct the clock of this machine"),
        (renamed, trust, "TLS: the server's certificate is not for 127.0.0.1: CN=renamed,"),
        (renamed, trust, " for elsewhere.example, issued by "),
        (plain, trust, "TLS: the server closed the connection; does it use TLS at this port?"),
        (
            demanding,
            trust,
            "TLS: the server requires a certificate of this client: set cert_file and key_file (--tls-c",
        ),
        (demanding, foreign, "TLS: the server does not trust the authority of this client's certificate"),
        (good, None, "the server at this port requires TLS, which this client does not use"),
    ):
        for text in both(address, tls):
            assert what in text, (address, tls, text)
            assert "\n" not in text
    cert, key = authority.issue("client")
    known = replace(trust, cert_file=cert, key_file=key)
    for address, tls in (
        (demanding, known),
        (renamed, replace(trust, check_host=False)),
        (expired, ClientTls(verify=False)),
    ):
        with BlockingConnection(address, tls=tls) as opened:
            assert opened.request(Command(RequestCode.GET_BROKER_CLUSTER_INFO)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"ca_file": "/none"}, "ca_file /none: No such file"),
        ({"cert_file": "/none", "key_file": "/none"}, "cert_file /none: No such file"),
    ],
)
def test_unusable_files_are_reported_at_the_start(wrong: dict[str, str], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        asyncio.run(Producer("127.0.0.1:1", group="p", tls=ClientTls(**wrong)).start())  # type: ignore[arg-type]


def test_client_reconnects_after_brokers_and_its_own_certificates_were_replaced(
    start: Start, authority: Authority, start_name_server: StartNameServer, trust: ClientTls
) -> None:
    cert, key = authority.issue("client")
    mine = replace(trust, cert_file=cert, key_file=key)
    names = start_name_server()
    asked = {"tls.server.need.client.auth": "require", "tls.server.authClient": "true"}
    own = {"namesrvAddr": names.address, "tls.server.trustCertPath": authority.ca_file} | asked
    broker = start("broker", **settings(authority, "enforcing", **own))
    wait_until(lambda: is_registered(names.address, trust), "the broker is registered")

    async def run() -> None:
        async with Producer(names.address, group="p", tls=mine, retry_ms=30_000) as producer:
            assert (await producer.send(Message("Kept", b"1"))).status is SendStatus.SEND_OK
            for place, (new_cert, new_key) in (
                ((cert, key), authority.issue("client-2")),
                (
                    (str(broker.settings["tls.server.certPath"]), str(broker.settings["tls.server.keyPath"])),
                    authority.issue("server-2"),
                ),
            ):
                replace_file(new_cert, place[0])
                replace_file(new_key, place[1])
            wait_until(lambda: "new connections use the changed files" in broker.log_text(), "the broker reloads")
            assert (await producer.send(Message("Kept", b"2"))).status is SendStatus.SEND_OK
            broker.kill()
            sending = asyncio.create_task(producer.send(Message("Kept", b"3")))
            await asyncio.to_thread(broker.start)
            assert (await sending).status is SendStatus.SEND_OK

    asyncio.run(run())


def test_registry_tool_works_over_tls(
    start_name_server: StartNameServer, trust: ClientTls, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = start_name_server().address
    with RegistryClient(parse_address(f"namesrv://{address}"), tls=trust) as registry:
        assert isinstance(registry.do(Read("/tandemq/none")), NodeMissing)
    monkeypatch.setattr(registry_session, "ANSWER_SECONDS", 1.0)
    with pytest.raises(NetworkError, match="does not answer"):
        RegistryClient(parse_address(f"namesrv://{address}"))


def run_command(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tandemq", *words],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, **(env or {})},
    )


def test_commands_work_over_tls_by_options_environment_or_file(
    cluster: Program, authority: Authority, tmp_path: Path
) -> None:
    names, address = names_of(cluster), f"127.0.0.1:{cluster.port}"
    at = {"TANDEMQ_NAMESRV": names, "TANDEMQ_TLS_CA": str(authority.ca_file)}
    working: tuple[tuple[tuple[str, ...], str], ...] = (
        (("topic", "create", "Commands"), "Commands"),
        (("message", "send", "Commands", "hello"), "SEND_OK"),
        (("message", "tail", "Commands", "--from", "earliest", "--count", "1"), "hello"),
        (("topic", "list"), "Commands"),
        (("cluster", "list"), address),
        (("ha", "status"), "broker-a"),
        (("ha", "status", "--address", address), "broker-a"),
        (("ha", "check", "--address", address), "HEALTHY"),
    )
    for words, what in working:
        done = run_command(*words, env=at)
        assert done.returncode == 0, (words, done.stderr)
        assert what in done.stdout, (words, done.stdout)
    file = tmp_path / "client.properties"
    file.write_text(f"tls.client.trustCertPath={authority.ca_file}\ntls.server.mode=enforcing\n")
    assert run_command("--tls-config", str(file), "topic", "list", "-n", names).returncode == 0
    refused: tuple[tuple[tuple[str, ...], str], ...] = (
        (("topic", "list", "-n", names), "requires TLS, which this client does not use"),
        (("--tls", "topic", "list", "-n", names), "not of a trusted authority"),
        (("--tls-ca", "/none", "topic", "list", "-n", names), "/none: No such file"),
        (("--tls-config", "/none", "topic", "list", "-n", names), "--tls-config /none: No such file"),
        (("--tls-cert", "x", "topic", "list", "-n", names), "--tls-cert and --tls-key need each other"),
    )
    for words, what in refused:
        done = run_command(*words)
        assert done.returncode in (1, 2), (words, done.stderr)
        assert what in done.stderr, (words, done.stderr)
        assert "Traceback" not in done.stderr


def test_spark_commands_pass_the_options_of_tls_on() -> None:
    @click.command()
    @tls_options
    def show() -> None:
        click.echo(json.dumps(spark_tls()))

    done = CliRunner().invoke(show, ["--tls-ca", "/ca"])
    assert json.loads(done.output) == {"tls": "true", "tlsCaFile": "/ca", "tlsCheckHost": "true"}
    assert json.loads(CliRunner().invoke(show, []).output) == {}


def test_client_settings_are_read_from_javas_file() -> None:
    found = read_client_tls(
        "tls.client.trustCertPath=/ca\ntls.client.certPath=/c\ntls.client.keyPath=/k\ntls.client.keyPassword=p\n"
        "tls.client.checkHost=false\ntls.server.keyPath=/s\n"
    )
    assert found == ClientTls(ca_file="/ca", cert_file="/c", key_file="/k", key_password="p", check_host=False)
    assert "p'" not in repr(found).replace("/", "")
    assert read_client_tls("tls.client.authServer=false\ntls.client.trustCertPath=/ca\n") == ClientTls(verify=False)
    with pytest.raises(ConfigError, match="cert_file without key_file"):
        read_client_tls("tls.client.certPath=/c\n")
