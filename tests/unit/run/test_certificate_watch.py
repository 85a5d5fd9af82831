"""Certificates that change while a node runs."""

import logging
import ssl
import time
from pathlib import Path

import pytest

from tandemq.real.network.tls import Tls, TlsFiles, server_context
from tandemq.run.tls import CertificateWatch
from tests.blackbox.certificates import Authority


def look_twice(watch: CertificateWatch) -> None:
    """A change counts once it has lasted for one comparison."""
    for _ in range(2):
        watch.look(time.time())


def test_new_key_that_every_user_can_read_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("server")
    files = TlsFiles(cert, key, cert_setting="tls.server.certPath", key_setting="tls.server.keyPath")
    tls = Tls(lambda: server_context(files, ssl.CERT_NONE), None, files)
    watch, first = CertificateWatch([tls]), tls.certificate

    authority.issue("server", "other.example")
    Path(key).chmod(0o644)
    with caplog.at_level(logging.ERROR):
        look_twice(watch)
    assert tls.certificate == first
    assert "the certificate in use stays: tls.server.keyPath" in caplog.text and "all users have access" in caplog.text

    Path(key).chmod(0o600)
    look_twice(watch)
    assert tls.certificate is not None and tls.certificate.names == ("other.example",)
