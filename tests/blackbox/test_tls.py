"""TLS between two ends in memory: what is carried, and which words a failure has."""

import re
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tandemq.errors import ConfigError, NetworkError
from tandemq.real.network.certificates import describe
from tandemq.real.network.tls import ENCRYPT_BYTES, HANDSHAKE_BYTES_MAX, NOT_TLS_ALERT, Tls, TlsLink, between_brokers
from tests.blackbox.certificates import Authority

HOST = "127.0.0.1"
_END = "-----END CERTIFICATE-----"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def make(authority: Authority, name: str = "broker", *, server_name: str = "", trusts: Authority | None = None) -> Tls:
    return between_brokers(*authority.issue(name), str((trusts or authority).ca_file), server_name)


def shake(client: TlsLink, server: TlsLink, pieces: Random | None = None) -> None:
    """Let both talk until they have nothing to say.

    Raises:
        NetworkError: one of them will not; the other one was told if it could be.
    """
    while True:
        up, down = client.outgoing(), server.outgoing()
        if not up and not down:
            return
        for data, take in ((up, server.receive), (down, client.receive)):
            give(data, take, pieces)


def give(data: bytes, take: Callable[[bytes], bytes], pieces: Random | None = None) -> bytes:
    plain, at = b"", 0
    while at < len(data):
        size = len(data) if pieces is None else pieces.randint(1, 300)
        plain += take(data[at : at + size])
        at += size
    return plain


def refusals(client: TlsLink, server: TlsLink) -> tuple[str, str]:
    """What each end says when they do not come together, "" if it saw nothing wrong."""
    told = {"client": "", "server": ""}
    up = client.outgoing()
    while True:
        down = _offer(up, server, told, "server")
        up = _offer(down, client, told, "client")
        if not up and not down:
            return told["client"], told["server"]


def _offer(data: bytes, end: TlsLink, told: dict[str, str], name: str) -> bytes:
    if data and not told[name]:
        try:
            end.receive(data)
        except NetworkError as error:
            told[name] = str(error)
    return end.outgoing()


@pytest.mark.parametrize("pieces", [None, Random(3)])
def test_both_ends_get_what_the_other_sent(authority: Authority, pieces: Random | None) -> None:
    client, server = make(authority, "a").connect(HOST), make(authority, "b").accept()
    shake(client, server, pieces)
    assert client.is_ready
    assert server.is_ready
    assert client.version == server.version == "TLSv1.3"
    big = Random(1).randbytes(1 << 20)
    for sender, taker in ((client, server), (server, client)):
        cipher = b"".join(sender.encrypt([b"head", memoryview(big), bytearray(b"tail")]))
        assert big[:64] not in cipher
        assert give(cipher, taker.receive, None if pieces is None else Random(4)) == b"head" + big + b"tail"


def test_buffers_of_every_size_arrive_in_order(authority: Authority) -> None:
    client, server = make(authority, "a").connect(HOST), make(authority, "b").accept()
    shake(client, server)
    random = Random(5)
    assert server.encrypt([]) == server.encrypt([b"", b""]) == []
    for _ in range(60):
        sizes = [
            random.choice((0, 1, 90, 5_000, 16_384, 65_535, 65_536, 200_000)) for _ in range(random.randint(1, 40))
        ]
        buffers = [random.randbytes(size) for size in sizes]
        pieces = server.encrypt(buffers)
        assert max(map(len, pieces), default=0) < 2 * ENCRYPT_BYTES + 4096
        assert give(b"".join(pieces), client.receive) == b"".join(buffers)
        assert client.outgoing() == b""


def test_version_1_2_is_taken_and_nothing_older(authority: Authority) -> None:
    context = ssl.create_default_context(cafile=str(authority.ca_file))
    context.load_cert_chain(*authority.issue("old"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    client, server = TlsLink(context, HOST), make(authority).accept()
    shake(client, server)
    assert server.version == "TLSv1.2"
    hello = bytearray(TlsLink(context, HOST).outgoing())
    hello[9:11] = b"\x03\x02"  # the version that the client offers at most: 1.1
    with pytest.raises(NetworkError, match="TLS: unsupported protocol"):
        make(authority).accept().receive(bytes(hello))


def test_certificate_of_another_authority_is_refused_by_either_end(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    theirs, ours = refusals(make(authority).connect(HOST), make(other, "o").accept())
    assert "the peer's certificate is not accepted: " in theirs
    assert "refused by the peer: unknown ca" in ours
    theirs, ours = refusals(make(other, "o", trusts=authority).connect(HOST), make(authority).accept())
    assert "the peer's certificate is not accepted: " in ours
    assert "refused by the peer: unknown ca" in theirs


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_refused_certificate_is_named_with_its_validity_and_what_to_do(
    authority: Authority, tmp_path: Path, version: ssl.TLSVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    def restricted(context: ssl.SSLContext) -> None:
        context.minimum_version = context.maximum_version = version

    monkeypatch.setattr("tandemq.real.network.tls._restrict", restricted)
    other = Authority(tmp_path, "other")
    good = make(authority)
    for issuer, name, days, why, todo in (
        (
            authority,
            "late",
            (-2, -1),
            "certificate has expired",
            "renew it there, or correct the clock of this machine",
        ),
        (authority, "early", (1, 2), "certificate is not yet valid", "correct the clock of this machine"),
        (other, "foreign", (-1, 9), "local issuer certificate", "put the authority that issued it into haTlsCaFile"),
    ):
        wrong = between_brokers(*issuer.issue(name, days=days), str(authority.ca_file))
        dates = [f"{datetime.now(UTC) + timedelta(days=number):%Y-%m-%d}" for number in days]
        for told in (
            refusals(good.connect(HOST), wrong.accept()),
            refusals(wrong.connect(HOST), good.accept())[::-1],
        ):
            accuser, accused = told
            assert f"the peer's certificate is not accepted: {accuser.split(': ')[2]}: CN={name}," in accuser
            assert why in accuser
            assert "for 127.0.0.1, issued by OU=Testing CA" in accuser
            assert re.search(f"valid from {dates[0]} .* to {dates[1]} ", accuser), accuser
            assert todo in accuser
            assert "refused by the peer" in accused
            assert f"it does not accept haTlsCertFile {tmp_path / name}.crt: CN={name}," in accused
            assert "\n" not in accuser + accused


def test_certificate_of_a_client_is_looked_at_during_handshakes_only(authority: Authority) -> None:
    client, server = make(authority, "a").connect(HOST), make(authority, "b").accept()
    shake(client, server)
    context: Any = server._object.context
    assert context._msg_callback is None


def test_certificate_of_another_host_is_refused_unless_its_name_is_expected(authority: Authority) -> None:
    named = between_brokers(*authority.issue("named", "brokers.example"), str(authority.ca_file))
    theirs, _ = refusals(make(authority).connect(HOST), named.accept())
    assert "not valid for '127.0.0.1': CN=named," in theirs
    assert " for brokers.example, issued by " in theirs
    assert "connect to a name that the certificate is for" in theirs
    shake(make(authority, server_name="brokers.example").connect(HOST), named.accept())


def test_client_without_a_certificate_is_refused_where_an_authority_is_given(authority: Authority) -> None:
    context = ssl.create_default_context(cafile=str(authority.ca_file))
    theirs, ours = refusals(TlsLink(context, HOST), make(authority).accept())
    assert "peer did not return a certificate: give it a certificate of an authority in haTlsCaFile" in ours
    assert "refused by the peer" in theirs
    open_to_all = between_brokers(*authority.issue("open"), "")
    shake(TlsLink(context, HOST), open_to_all.accept())


@pytest.mark.parametrize("data", [b"\xffTandemP", bytes(8), b"GET / HTTP/1.1\r\n", b"x"])
def test_plain_bytes_are_told_from_tls_and_answered_with_an_alert(authority: Authority, data: bytes) -> None:
    server = make(authority).accept()
    with pytest.raises(NetworkError, match="the peer does not use TLS"):
        server.receive(data)
    assert server.outgoing() == NOT_TLS_ALERT
    client = make(authority, "c").connect(HOST)
    with pytest.raises(NetworkError, match="the peer does not use TLS"):
        client.receive(data)


def test_handshake_without_end_is_given_up(authority: Authority) -> None:
    """A peer that promises a long message and sends it in small records."""
    server = make(authority).accept()
    taken = 0
    with pytest.raises(NetworkError, match="TLS: "):
        while True:
            taken += 1024
            assert taken <= HANDSHAKE_BYTES_MAX + 2048
            server.receive(b"\x16\x03\x01\x04\x00" + (b"\x01\x00\xff\xff" if taken == 1024 else b"") + bytes(1020))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_large_request_right_behind_the_handshake_is_no_part_of_it(
    authority: Authority, version: ssl.TLSVersion
) -> None:
    """A busy server reads the end of the handshake and a large request at once."""
    context = ssl.create_default_context(cafile=str(authority.ca_file))
    context.load_cert_chain(*authority.issue("client"))
    context.maximum_version = version
    client, server = TlsLink(context, HOST), make(authority).accept()
    while not client.is_ready:
        server.receive(client.outgoing())
        client.receive(server.outgoing())
    big = Random(1).randbytes(8 * HANDSHAKE_BYTES_MAX)
    rest = client.outgoing() + b"".join(map(bytes, client.encrypt([big])))
    assert server.receive(rest) == big


def test_changed_byte_of_a_record_ends_the_link(authority: Authority) -> None:
    client, server = make(authority, "a").connect(HOST), make(authority, "b").accept()
    shake(client, server)
    cipher = bytearray(b"".join(client.encrypt([b"some bytes of a log"])))
    cipher[-3] ^= 1
    with pytest.raises(NetworkError, match="bad record mac"):
        server.receive(bytes(cipher))


def test_file_that_cannot_be_used_is_named_with_its_setting(authority: Authority, tmp_path: Path) -> None:
    cert, key = authority.issue("broker")
    _, other_key = authority.issue("other")
    rubbish = tmp_path / "rubbish"
    rubbish.write_text("no PEM")
    none, ca = str(tmp_path / "none"), str(authority.ca_file)
    for files, what in (
        ((none, key, ca), "haTlsCertFile .*none: No such file"),
        ((cert, none, ca), "haTlsKeyFile .*none: No such file"),
        ((cert, key, none), "haTlsCaFile .*none: No such file"),
        ((cert, other_key, ca), "is not the key of the certificate in"),
        ((str(rubbish), key, ca), "haTlsCertFile .*rubbish"),
        ((cert, str(rubbish), ca), "haTlsKeyFile .*rubbish"),
        ((cert, key, str(rubbish)), "haTlsCaFile .*rubbish"),
    ):
        with pytest.raises(ConfigError, match=what):
            between_brokers(*files)


def test_certificate_of_any_form_is_described_in_bounded_printable_text(authority: Authority) -> None:
    cert, _ = authority.issue("long" + "\n" + "x" * 50, "a.example", "10.0.0.1", "::1", "b.example", "c.example")
    der = ssl.PEM_cert_to_DER_cert(Path(cert).read_text().partition("-----END CERTIFICATE-----")[0] + _END)
    assert "for a.example, 10.0.0.1, ::1, b.example, issued by" in describe(der)
    random = Random(1)
    changed = [der[:size] for size in range(len(der))]
    for _ in range(3_000):
        copy = bytearray(der)
        for _ in range(random.randint(1, 4)):
            copy[random.randrange(len(copy))] = random.randrange(256)
        changed.append(bytes(copy))
    for one in (der, b"", *changed):
        text = describe(one)
        assert len(text) < 1000
        assert text.isprintable(), text
