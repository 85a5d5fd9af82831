"""TLS for clients of real brokers and name servers: who gets in, what is carried, new certificates, storms."""

import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tandemq.config.settings import NameServerConfig
from tandemq.errors import NetworkError, NotConnected
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.run.nameserver import NameServerProcess
from tests.blackbox.certificates import Authority
from tests.blackbox.in_process import running
from tests.blackbox.pair import Start
from tests.blackbox.programs import Caller, Program, wait_until
from tests.request_fields import pull_fields

OK = ResponseCode.SUCCESS


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def settings(authority: Authority, mode: str = "permissive", **more: object) -> dict[str, object]:
    """Of a broker that serves TLS."""
    cert, key = authority.issue("server")
    names = {"tls.server.mode": mode, "tls.server.certPath": cert, "tls.server.keyPath": key}
    return names | {"tls.config.file": "/nonexistent", "brokerIP1": "127.0.0.1"} | more


def context(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.ca_file))


def test_permissive_broker_serves_both_on_both_ports(start: Start, authority: Authority) -> None:
    broker = start("broker", **settings(authority))
    bodies = [bytes([number]) * 300_000 for number in range(12)]
    with Caller(broker.port, tls=context(authority)) as secure, Caller(broker.port) as plain:
        assert [secure.send(body) for body in bodies] == [OK] * 12
        assert plain.send(b"x") == OK
    with Caller(broker.port - 2, tls=context(authority)) as fast:
        assert fast.send(b"fast") == OK


def test_enforcing_broker_closes_plain_connections_and_says_why(start: Start, authority: Authority) -> None:
    broker = start("broker", **settings(authority, "enforcing"))
    with Caller(broker.port, tls=context(authority)) as secure:
        assert secure.send(b"x") == OK
    with pytest.raises(NetworkError), Caller(broker.port) as plain:
        plain.send(b"x")
    wait_until(lambda: "the peer does not use TLS" in broker.log_text(), "the broker says why")


def test_disabled_broker_closes_tls(start: Start, authority: Authority) -> None:
    broker = start("broker", **settings(authority, "disabled"))
    with pytest.raises(NotConnected):
        Caller(broker.port, tls=context(authority))
    with Caller(broker.port) as plain:
        assert plain.send(b"x") == OK


def test_client_without_certificate_is_refused_where_one_is_required(
    start: Start, authority: Authority, tmp_path: Path
) -> None:
    asked = {
        "tls.server.need.client.auth": "require",
        "tls.server.authClient": "true",
        "tls.server.trustCertPath": authority.ca_file,
    }
    file = tmp_path / "tls.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in asked.items()))
    broker = start("broker", **settings(authority) | {"tls.config.file": file})
    known = context(authority)
    known.load_cert_chain(*authority.issue("client"))
    with Caller(broker.port, tls=known) as caller:
        assert caller.send(b"x") == OK
    with pytest.raises(NetworkError), Caller(broker.port, tls=context(authority)) as caller:
        caller.send(b"x")
    todo = "peer did not return a certificate: give it a certificate of an authority in tls.server.trustCertPath"
    wait_until(lambda: todo in broker.log_text(), "the broker says why")
    untrusted = context(authority)
    (tmp_path / "other").mkdir()
    untrusted.load_cert_chain(*Authority(tmp_path / "other", "other").issue("untrusted"))
    with pytest.raises(NetworkError), Caller(broker.port, tls=untrusted) as caller:
        caller.send(b"x")


def serial(port: int, authority: Authority) -> str:
    with (
        socket.create_connection(("127.0.0.1", port), 120) as sock,
        context(authority).wrap_socket(sock, server_hostname="127.0.0.1") as secure,
    ):
        found = secure.getpeercert()
        assert found is not None
        return str(found["serialNumber"])


def shakes_hands(port: int, authority: Authority) -> bool:
    try:
        return bool(serial(port, authority))
    except (ssl.SSLEOFError, ConnectionError):
        return False


def test_changed_certificate_is_used_for_new_connections_and_unusable_ones_never(
    start: Start, authority: Authority
) -> None:
    broker = start("broker", **settings(authority))
    cert, key = str(broker.settings["tls.server.certPath"]), str(broker.settings["tls.server.keyPath"])
    first = serial(broker.port, authority)
    with Caller(broker.port, tls=context(authority)) as caller:
        for new in (authority.issue("late", is_expired=True), (str(authority.ca_file), key)):
            before = broker.log_text().count("the certificate in use stays")
            replace_file(new[0], cert)
            if new[1] != key:
                replace_file(new[1], key)
            wait_until(
                lambda seen=before: broker.log_text().count("the certificate in use stays") > seen,  # type: ignore[misc]
                "the broker refuses it",
            )
            assert serial(broker.port, authority) == first
        assert "the certificate has expired on " in broker.log_text()
        fresh = authority.issue("fresh")
        replace_file(fresh[0], cert)
        replace_file(fresh[1], key)
        wait_until(lambda: serial(broker.port, authority) != first, "the new certificate is used")
        assert "new connections use the changed files" in broker.log_text()
        assert caller.send(b"the old connection stays") == OK
        soon = authority.issue("soon", days=(-1, 3))
        replace_file(soon[0], cert)
        replace_file(soon[1], key)
        wait_until(lambda: "the certificate expires on " in broker.log_text(), "the broker warns of it")
        assert caller.send(b"the old connection stays") == OK


def replace_file(source: str, target: str) -> None:
    draft = Path(f"{target}.new")
    shutil.copy(source, draft)
    draft.chmod(0o600)
    draft.replace(target)


def expiries(broker: Program) -> dict[str, float]:
    """Of a broker's metrics page: when the certificate of each setting expires."""
    page = urllib.request.urlopen(f"http://{broker.start_report['metrics']}/metrics", timeout=60).read().decode()
    found = re.findall(
        r'^tandemq_tls_certificate_expiry_timestamp_seconds{.*setting="(.+?)".*} (.+)$', page, re.MULTILINE
    )
    return {setting: float(value) for setting, value in found}


def test_start_with_an_expired_certificate_warns_and_its_expiry_is_a_metric(start: Start, authority: Authority) -> None:
    cert, key = authority.issue("late", is_expired=True)
    more = {"tls.server.certPath": cert, "tls.server.keyPath": key, "metricsPort": 0}
    broker = start("broker", **settings(authority) | more)
    assert f"tls.server.certPath {cert}: the certificate has expired on " in broker.log_text()
    day_s = 86_400
    assert abs(expiries(broker)["tls.server.certPath"] + day_s - time.time()) < 600
    fresh = authority.issue("fresh", days=(-1, 100))
    replace_file(fresh[0], cert)
    replace_file(fresh[1], key)
    wait_until(lambda: expiries(broker)["tls.server.certPath"] > time.time(), "the metric is of the new certificate")
    assert abs(expiries(broker)["tls.server.certPath"] - 100 * day_s - time.time()) < 600


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"tls.server.certPath": "/none"}, "tls.server.certPath /none: No such file"),
        ({"tls.server.keyPath": ""}, "belong together"),
        ({"tls.server.certPath": "", "tls.server.keyPath": "", "tls.server.mode": "enforcing"}, "enforcing needs"),
    ],
)
def test_broker_does_not_start_with_files_that_cannot_be_used(
    authority: Authority, tmp_path: Path, wrong: dict[str, object], what: str
) -> None:
    pairs = settings(authority) | wrong | {"storePathRootDir": tmp_path / "store", "listenPort": 0}
    command = [sys.executable, "-m", "tandemq", "broker"]
    command += [part for key, value in pairs.items() for part in ("--set", f"{key}={value}")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 2
    assert what in done.stderr


@pytest.mark.services
def test_test_mode_has_a_key_of_its_own(start: Start, authority: Authority) -> None:
    broker = start("broker", **{"tls.config.file": "/nonexistent", "tls.test.mode.enable": "true"})
    anyone = ssl.create_default_context()
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    with Caller(broker.port, tls=anyone) as caller:
        assert caller.send(b"x") == OK
    with pytest.raises(NotConnected, match="not of a trusted authority"):
        Caller(broker.port, tls=context(authority))


@pytest.fixture
def name_server(authority: Authority, tmp_path: Path) -> Iterator[NameServerProcess]:
    cert, key = authority.issue("names")
    process = NameServerProcess(
        NameServerConfig(
            bind_address="127.0.0.1",
            listen_port=0,
            data_path=str(tmp_path / "names"),
            tls_mode="enforcing",
            tls_file="",
            tls_cert_file=cert,
            tls_key_file=key,
        )
    )
    with running(process):
        yield process


def test_broker_registers_over_tls_at_a_name_server_that_it_verifies(
    start: Start, authority: Authority, name_server: NameServerProcess
) -> None:
    more: dict[str, Any] = {
        "namesrvAddr": name_server.address,
        "tls.client.authServer": "true",
        "tls.client.checkHost": "true",
        "tls.client.trustCertPath": authority.ca_file,
    }
    start("broker", **settings(authority, "enforcing", **more))
    with Caller(name_server.port, tls=context(authority)) as caller:
        wait_until(
            lambda: b"broker-a" in caller.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body, "the broker is registered"
        )


def test_broker_does_not_register_at_a_name_server_of_another_authority(
    start: Start, authority: Authority, name_server: NameServerProcess, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other", "other")
    more: dict[str, Any] = {
        "namesrvAddr": name_server.address,
        "tls.enable": "true",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": other.ca_file,
    }
    broker = start("broker", **settings(authority, **more))
    wait_until(lambda: "the peer's certificate is not accepted" in broker.log_text(), "the broker says why")
    with Caller(name_server.port, tls=context(authority)) as caller:
        assert b"broker-a" not in caller.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body


HELLO_BEGIN = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""Begin of a hello of 512 bytes, of which nothing more comes."""


def test_handshakes_that_never_finish_are_bounded_in_number_time_and_memory(start: Start, authority: Authority) -> None:
    broker = start("broker", **settings(authority))
    before_kib = broker.memory_kib()
    hello = bytearray()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    wanted = context(authority).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        wanted.do_handshake()
    hello += outgoing.read()
    with ExitStack() as stack:
        for number in range(6_000):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", broker.port), 120))
            sock.send((HELLO_BEGIN, bytes(hello), b"\x16", HELLO_BEGIN + bytes(700))[number % 4])
        with Caller(broker.port) as caller:
            for _ in range(100):
                assert caller.send(b"x") == OK  # clients without TLS are served meanwhile
        assert broker.memory_kib() - before_kib < 192 << 10
        # A handshake gives way to a new one after HANDSHAKE_MS_MIN; until then the client is refused, and tries again.
        wait_until(lambda: shakes_hands(broker.port, authority), "a client that finishes is served meanwhile")
        wait_until(lambda: broker.descriptors() < 200, "all are closed", seconds=200)
    log = broker.log_text()
    assert log.count("closed times=") <= 4, log
    with Caller(broker.port, tls=context(authority)) as caller:
        assert caller.send(b"x") == OK


def test_readers_that_stop_reading_over_tls_are_bounded_in_memory(start: Start, authority: Authority) -> None:
    broker = start("broker", **settings(authority), untakenAnswersMax=64 << 20)
    with ExitStack() as stack:
        caller = stack.enter_context(Caller(broker.port, tls=context(authority)))
        for _ in range(40):
            assert caller.send(bytes(250_000)) == OK
        before_kib = broker.memory_kib()
        for _ in range(12):
            slow = stack.enter_context(Caller(broker.port, tls=context(authority)))
            for _ in range(40):  # responses of about 250 KB, of which it reads none
                slow.begin_request(RequestCode.PULL_MESSAGE, pull_fields())
        wait_until(lambda: "more than untakenAnswersMax on all connections" in broker.log_text(), "some are closed")
        assert caller.send(b"others are served") == OK
        assert broker.memory_kib() - before_kib < 192 << 10


def test_refused_certificate_of_a_client_is_named_in_the_log(
    start: Start, authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    demand: dict[str, Any] = {
        "tls.server.need.client.auth": "require",
        "tls.server.authClient": "true",
        "tls.server.trustCertPath": authority.ca_file,
    }
    foreign = Authority(tmp_path / "other", "other").issue("foreign")
    for name, files, why in (
        ("late", authority.issue("late", is_expired=True), "certificate has expired: CN=late,"),
        ("foreign", foreign, "unable to get local issuer certificate: CN=foreign,"),
    ):
        broker = start(name, **settings(authority, **demand))
        wrong = context(authority)
        wrong.load_cert_chain(*files)
        with pytest.raises(NetworkError), Caller(broker.port, tls=wrong) as caller:
            caller.send(b"x")
        wait_until(lambda broker=broker, why=why: why in broker.log_text(), "the broker names it")  # type: ignore[misc]
        (line,) = [line for line in broker.log_text().splitlines() if why in line]
        assert "peer=127.0.0.1:" in line
        assert "issued by OU=Testing CA" in line
