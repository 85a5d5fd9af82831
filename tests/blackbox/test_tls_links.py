"""TLS on the replication port of real brokers: what travels, who is turned away and how that is said."""

import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lab.samples import tiny
from tandemq.codec.ha import HELLO_MARK, SlaveHello, encode_hello
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.replication.master import BACKLOG_BYTES_MAX, CHUNK_BYTES
from tandemq.run.broker import BrokerProcess
from tests.blackbox.certificates import Authority
from tests.blackbox.in_process import running
from tests.blackbox.pair import Start, start_slave, wait_for_copy
from tests.blackbox.programs import Caller, Proxy, wait_until
from tests.spec import spec

OK = ResponseCode.SUCCESS
MARKER = b"a body that nobody else should see"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@spec("H24")
def test_pair_copies_under_tls_and_a_secret_and_nobody_between_sees_anything(
    start: Start, proxied: Callable[[int], Proxy], authority: Authority, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text("a secret of some length")
    master = start("master", brokerRole="SYNC_MASTER", haSecretFile=secret, **authority.settings("m"))
    proxy = proxied(master.ha_port)
    proxy.seen = bytearray()
    slave = start_slave(start, proxy.port, haSecretFile=secret, **authority.settings("s"))
    with Caller(master.port) as caller:
        wait_until(lambda: caller.send(MARKER) == OK, "the slave copies")
        for number in range(40):
            assert caller.send(bytes([number]) * 20_000) == OK
        proxy.cut()
        wait_until(lambda: caller.send(MARKER) == OK, "the slave copies again")
    wait_for_copy(master, slave)
    assert slave.log_bytes() == master.log_bytes()
    assert len(proxy.seen) > 800_000
    for plain in (MARKER, HELLO_MARK, b"brokerName"):
        assert plain not in proxy.seen
    (link,) = master.ha_status()["haConnectionInfo"]
    own = slave.ha_status()["haClientRuntimeInfo"]
    assert (link["authenticated"], link["tls"]) == (True, "TLSv1.3")
    assert (own["authenticated"], own["tls"]) == (True, "TLSv1.3")


def refused_pair(start: Start, ours: dict[str, str], theirs: dict[str, str]) -> tuple[str, str]:
    """What master and slave log when they do not come together."""
    master = start("master", brokerRole="SYNC_MASTER", **ours)
    slave = start_slave(start, master.ha_port, **theirs)
    wait_until(lambda: "refused times=1" in slave.log_text(), "the slave says why")
    wait_until(lambda: "refused times=1" in master.log_text(), "the master says why")
    with Caller(master.port) as caller:
        for _ in range(10):
            assert caller.send(b"alone") == ResponseCode.SLAVE_NOT_AVAILABLE
    wait_until(lambda: slave.ha_status()["refusedTimes"] > 2, "further attempts")
    assert master.ha_status()["refusedTimes"] > 1
    texts = master.log_text(), slave.log_text()
    for text in texts:
        assert text.count("refused times=") == 1, text
    assert slave.log_end() == 0
    return texts


@spec("H24")
def test_authority_that_is_not_trusted_is_said_by_both(start: Start, authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    ours, theirs = refused_pair(start, authority.settings("m"), other.settings("s", trusts=authority))
    assert "the peer's certificate is not accepted" in ours
    assert "refused by the peer: unknown ca" in theirs


def test_expired_certificate_of_the_master_is_said_by_both(start: Start, authority: Authority) -> None:
    ours, theirs = refused_pair(start, authority.settings("m", is_expired=True), authority.settings("s"))
    assert "certificate has expired" in theirs
    assert "refused by the peer" in ours


@spec("H24")
def test_slave_without_tls_is_told_by_a_master_that_has_it(start: Start, authority: Authority) -> None:
    master = start("master", brokerRole="SYNC_MASTER", **authority.settings("m"))
    slave = start_slave(start, master.ha_port)
    wait_until(lambda: "the peer does not use TLS" in master.log_text(), "the master says why")
    wait_until(lambda: "the master uses TLS" in slave.log_text(), "the slave says why")
    assert slave.log_end() == 0


def test_slave_with_tls_gives_up_a_master_that_has_none(start: Start, authority: Authority) -> None:
    ours, theirs = refused_pair(start, {}, authority.settings("s"))
    assert "it uses TLS, this port does not" in ours
    assert "closed by the peer during the handshake" in theirs


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"haTlsCertFile": "{dir}/none.crt", "haTlsKeyFile": "{dir}/b.key"}, "haTlsCertFile .*none.crt: No such file"),
        ({"haTlsCertFile": "{dir}/b.crt", "haTlsKeyFile": "{dir}/open.key"}, "all users have access to it"),
        ({"haTlsCertFile": "{dir}/b.crt"}, "haTlsKeyFile: the private key"),
        ({"haSecretFile": "{dir}/none"}, "haSecretFile .*none: No such file"),
    ],
)
def test_broker_does_not_start_with_files_that_cannot_be_used(
    authority: Authority, tmp_path: Path, settings: dict[str, str], what: str
) -> None:
    authority.issue("b")
    (tmp_path / "open.key").write_bytes((tmp_path / "b.key").read_bytes())
    (tmp_path / "open.key").chmod(0o644)
    words = [f"--set={key}={value.format(dir=tmp_path)}" for key, value in settings.items()]
    words += ["--set=listenPort=0", "--set=haListenPort=0", f"--set=storePathRootDir={tmp_path / 'store'}"]
    done = subprocess.run(
        [sys.executable, "-m", "tandemq", "broker", *words], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 2
    assert re.search(what, done.stderr), done.stderr


# One broker in this process, and peers made by hand.


@pytest.fixture
def broker(authority: Authority, tmp_path: Path) -> Iterator[BrokerProcess]:
    cert, key = authority.issue("broker")
    config = replace(
        tiny(segment_bytes=1 << 20),
        store_path=str(tmp_path / "store"),
        ha_tls_cert_file=cert,
        ha_tls_key_file=key,
        ha_tls_ca_file=str(authority.ca_file),
    )
    with running(BrokerProcess(config)) as process:
        yield process


def test_peer_that_says_nothing_is_given_up(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandemq.real.network.handshakes.HANDSHAKE_MS_MAX", 50)
    with socket.create_connection(("127.0.0.1", broker.ha_port), 120) as sock:
        assert sock.recv(100) == b""
    masters = broker.node.replication.masters
    wait_until(lambda: masters.refusals.count == 1, "the refusal is counted")
    assert masters.sessions == {}


def test_slave_that_does_not_read_is_sent_a_bounded_part_of_the_log(
    broker: BrokerProcess, authority: Authority
) -> None:
    """Cipher bytes that wait count like plain ones."""
    with Caller(broker.port) as caller:
        opaques = [caller.begin_send(bytes(8_000)) for _ in range(4_000)]
        assert {caller.receive().code for _ in opaques} == {OK}
        context = ssl.create_default_context(cafile=str(authority.ca_file))
        context.load_cert_chain(*authority.issue("slave"))
        raw = socket.create_connection(("127.0.0.1", broker.ha_port), 120)
        with context.wrap_socket(raw, server_hostname="127.0.0.1") as sock:
            config = broker.config
            hello = SlaveHello(config.cluster, config.broker_name, 1, 7, 0, 0, config.segment_bytes)
            sock.sendall(encode_hello(hello))
            masters = broker.node.replication.masters
            wait_until(lambda: any(s.transferred_bytes for s in masters.sessions.values()), "the copying begins")
            before = -1
            (session,) = masters.sessions.values()
            while session.transferred_bytes > before:
                before = session.transferred_bytes
                for _ in range(50):
                    assert caller.ask(RequestCode.GET_MAX_OFFSET, {"topic": "TopicA", "queueId": 0}).code == OK
            assert before <= BACKLOG_BYTES_MAX + CHUNK_BYTES + (12 << 20)
            assert before < broker.node.store.log.written_end
            # Whatever waited arrives, and all that follows.
            taken = 0
            while taken < broker.node.store.log.written_end:
                taken += len(sock.recv(1 << 20))
