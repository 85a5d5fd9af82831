"""Certificates of a local cluster."""

import shutil
import ssl
from pathlib import Path

import pytest

from tandemq.errors import ConfigError
from tandemq.run import local_tls
from tandemq.run.local_tls import ClusterCertificates, make_certificates
from tests.blackbox.certificates import Authority


@pytest.mark.services
def test_certificates_are_made_once_and_the_key_is_private(tmp_path: Path) -> None:
    place = tmp_path / "tls"
    make_certificates(place)
    made = {path.name: path.read_bytes() for path in place.iterdir()}
    assert sorted(made) == ["ca.pem", "server.crt", "server.key"]
    assert (place / "server.key").stat().st_mode & 0o077 == 0
    make_certificates(place)
    assert {path.name: path.read_bytes() for path in place.iterdir()} == made
    ClusterCertificates.kept_in(place).check()
    (place / "server.crt").unlink()
    make_certificates(place)
    assert (place / "ca.pem").read_bytes() != made["ca.pem"]


@pytest.mark.services
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_certificate_is_valid_for_the_loopback_addresses(tmp_path: Path, host: str) -> None:
    make_certificates(tmp_path)
    assert _handshake(tmp_path, host) == ""
    assert "doesn't match" in _handshake(tmp_path, "example.org") or "mismatch" in _handshake(tmp_path, "example.org")


def _handshake(directory: Path, host: str) -> str:
    """Shake hands in memory; return the client's error."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(directory / "server.crt", directory / "server.key")
    client = ssl.create_default_context(cafile=ClusterCertificates.kept_in(directory).client_tls().ca_file)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (client.wrap_bio(down, up, server_hostname=host), server.wrap_bio(up, down, server_side=True))
    for _ in range(4):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLCertVerificationError as error:
                return str(error)
    assert sides[0].getpeercert()
    return ""


def test_missing_openssl_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(ConfigError, match="openssl"):
        make_certificates(tmp_path)


@pytest.mark.services
def test_openssl_that_fails_is_an_error_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_tls, "_COMMANDS", ("req -nonsense",))
    with pytest.raises(ConfigError, match="nonsense"):
        make_certificates(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_given_certificates_are_checked_by_a_connection_in_memory(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other", "other")
    good = authority.issue("good")
    certificates(good, authority.ca_file).check()
    Path(authority.issue("open")[1]).chmod(0o644)
    for files, ca, what in (
        (
            authority.issue("named", "brokers.example"),
            authority.ca_file,
            "certificate is not valid for '127.0.0.1': CN=nam",
        ),
        (authority.issue("late", is_expired=True), authority.ca_file, "certificate has expired: CN=late"),
        (authority.issue("early", days=(2, 3)), authority.ca_file, "certificate is not yet valid: CN=early"),
        (good, other.ca_file, "put the authority that issued it into --tls-ca"),
        ((good[0], other.issue("o")[1]), authority.ca_file, "is not the key of the certificate in --tls-cert"),
        ((good[0], str(tmp_path / "open.key")), authority.ca_file, "--tls-key .*: all users have access to it"),
        ((str(tmp_path / "none"), good[1]), authority.ca_file, "--tls-cert .*none: No such file"),
    ):
        with pytest.raises(ConfigError, match=what):
            certificates(files, ca).check()


def certificates(files: tuple[str, str], ca: Path) -> ClusterCertificates:
    return ClusterCertificates(Path(files[0]), Path(files[1]), ca)
