"""Certificates of a local cluster."""

import shutil
import ssl
from pathlib import Path

import pytest

from tandemq.errors import ConfigError
from tandemq.run import local_tls
from tandemq.run.local_tls import client_tls, make_certificates


@pytest.mark.system
def test_certificates_are_made_once_and_the_key_is_private(tmp_path: Path) -> None:
    place = tmp_path / "tls"
    make_certificates(place)
    made = {path.name: path.read_bytes() for path in place.iterdir()}
    assert sorted(made) == ["ca.pem", "server.crt", "server.key"]
    assert (place / "server.key").stat().st_mode & 0o077 == 0
    make_certificates(place)
    assert {path.name: path.read_bytes() for path in place.iterdir()} == made
    (place / "server.crt").unlink()
    make_certificates(place)
    assert (place / "ca.pem").read_bytes() != made["ca.pem"]


@pytest.mark.system
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_certificate_is_valid_for_the_loopback_addresses(tmp_path: Path, host: str) -> None:
    make_certificates(tmp_path)
    assert _handshake(tmp_path, host) == ""
    assert "doesn't match" in _handshake(tmp_path, "example.org") or "mismatch" in _handshake(tmp_path, "example.org")


def _handshake(directory: Path, host: str) -> str:
    """Shake hands in memory; return the client's error."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(directory / "server.crt", directory / "server.key")
    client = ssl.create_default_context(cafile=client_tls(directory).ca_file)
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


@pytest.mark.system
def test_openssl_that_fails_is_an_error_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_tls, "_COMMANDS", ("req -nonsense",))
    with pytest.raises(ConfigError, match="nonsense"):
        make_certificates(tmp_path)
    assert list(tmp_path.iterdir()) == []
