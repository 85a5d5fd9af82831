"""TLS of a server process: settings and files to the loop's TLS, and a watch over the files.

    settings, tls.config.file ──► protect ──► Loop.protect for clients and for connections to servers
    files ── changed ──► CertificateWatch ──► Tls.reload: new connections use the new certificates

Files are compared twice per second, on a thread of their own. A change counts when it has lasted for one comparison, so
that a half-written file is not read. If new files cannot be used, the old certificate stays in use; so it does if other
users can read the new key, with which the node would not start again.
"""

import logging
import shutil
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tandemq.boundary import LinkKind
from tandemq.config.settings import TlsConfig
from tandemq.config.tls import TlsSettings, read_tls
from tandemq.errors import ConfigError
from tandemq.real.loop import Loop
from tandemq.real.network.tls import Tls, TlsFiles, client_context, server_context
from tandemq.run.secret import check_private

log = logging.getLogger(__name__)
WATCH_SECONDS = 0.5
WARN_DAYS = 14
DAY_SECONDS = 86_400.0
_VERIFY = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "require": ssl.CERT_REQUIRED}
_MAKE_KEY = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "3650")
_OPENSSL_SECONDS = 30


REMOTING_KINDS = (LinkKind.REMOTING, LinkKind.FAST)
HTTP2_PROTOCOLS = ("h2",)


def protect(loop: Loop, config: TlsConfig, kinds: Iterable[LinkKind] = REMOTING_KINDS) -> list[Tls]:
    """Set up TLS on a node's loop for clients and for connections to name servers and brokers; return what to watch.

    `kinds`: of the connections of clients.

    Raises:
        ConfigError: the settings or files cannot be used.
    """
    settings = read_tls(config, _read(config.tls_file))
    watched = []
    if settings.serves:
        kinds = tuple(kinds)
        protocols = HTTP2_PROTOCOLS if LinkKind.GRPC in kinds else ()
        serving = _test_tls(settings, protocols) if settings.tls_test_mode else _server_tls(settings, protocols)
        for kind in kinds:
            loop.protect(kind, serving)
        if not settings.tls_test_mode:
            watched.append(serving)
    if settings.connects:
        connecting = _client_tls(settings)
        loop.protect(LinkKind.PEER, connecting)
        watched.append(connecting)
    return watched


def _read(path: str) -> str | None:
    if not path:
        return None
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or "") if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"tls.config.file {path}: {reason}") from error


def _server_tls(settings: TlsSettings, protocols: Sequence[str]) -> Tls:
    check_private("tls.server.keyPath", settings.tls_key_file)
    verify = _VERIFY[settings.tls_client_auth] if settings.tls_verify_clients else ssl.CERT_NONE
    files = TlsFiles(
        settings.tls_cert_file,
        settings.tls_key_file,
        settings.tls_ca_file if settings.tls_verify_clients else "",
        settings.server_password,
        "tls.server.certPath",
        "tls.server.keyPath",
        "tls.server.trustCertPath",
    )
    is_permissive = settings.tls_mode == "permissive"
    return Tls(lambda: server_context(files, verify, protocols), None, files, is_permissive=is_permissive)


def connecting_context(config: TlsConfig) -> ssl.SSLContext | None:
    """Return the context of connections that a node opens to brokers, with the files as they are; None without TLS.

    Raises:
        ConfigError: the settings or files cannot be used.
    """
    settings = read_tls(config, _read(config.tls_file))
    return _client_context(settings) if settings.connects else None


def _client_tls(settings: TlsSettings) -> Tls:
    files = _client_files(settings)
    return Tls(None, lambda: _client_context(settings), files)


def _client_context(settings: TlsSettings) -> ssl.SSLContext:
    files = _client_files(settings)
    return client_context(files, verifies=_verifies(settings), checks_host=settings.tls_check_host)


def _verifies(settings: TlsSettings) -> bool:
    return settings.tls_verify_servers and not settings.tls_test_mode


def _client_files(settings: TlsSettings) -> TlsFiles:
    if settings.tls_client_key_file:
        check_private("tls.client.keyPath", settings.tls_client_key_file)
    return TlsFiles(
        settings.tls_client_cert_file,
        settings.tls_client_key_file,
        settings.tls_client_ca_file if _verifies(settings) else "",
        settings.client_password,
        "tls.client.certPath",
        "tls.client.keyPath",
        "tls.client.trustCertPath",
    )


def _test_tls(settings: TlsSettings, protocols: Sequence[str]) -> Tls:
    """Return TLS with a key of its own that nobody can verify."""
    log.warning("tls: tls.test.mode.enable: clients cannot verify the certificate, which is made at every start")
    program = shutil.which("openssl")
    if program is None:
        raise ConfigError(
            "tls.test.mode.enable needs the program openssl, which is not installed",
            hint="install it, or set tls.server.certPath and tls.server.keyPath",
        )
    with tempfile.TemporaryDirectory(prefix="tandemq-tls-") as directory:
        cert, key = f"{directory}/test.crt", f"{directory}/test.key"
        command = [program, *_MAKE_KEY, "-subj", "/CN=tandemq-test", "-keyout", key, "-out", cert]
        try:
            subprocess.run(  # noqa: S603  # found on PATH
                command, check=True, capture_output=True, timeout=_OPENSSL_SECONDS
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise ConfigError(f"tls.test.mode.enable: openssl made no key: {error}") from error
        files = TlsFiles(cert, key)
        is_permissive = settings.tls_mode == "permissive"
        return Tls(lambda: server_context(files, ssl.CERT_NONE, protocols), None, files, is_permissive=is_permissive)


class CertificateWatch:
    """Reloads certificates when their files change, and warns before they expire."""

    def __init__(self, watched: Iterable[Tls]) -> None:
        """Begin with the files as they are; `start` begins to watch."""
        self._watched = [(tls, tls.files.stamp(), tls.files.stamp()) for tls in watched if tls.files.paths]
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._warned_s = 0.0

    def start(self) -> None:
        """Warn of certificates that have expired or soon will, and watch the files, if there are any."""
        self._warn(time.time())
        if self._watched:
            self._thread = threading.Thread(target=self._run, name="certificates", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(WATCH_SECONDS):
            self.look(time.time())

    def look(self, now_s: float) -> None:
        """Compare the files with those in use, and reload what has changed since the look before the last."""
        for position, (tls, used, seen) in enumerate(self._watched):
            stamp = tls.files.stamp()
            if stamp == seen != used:
                self._reload(tls, now_s)
                used = stamp  # stored below
            self._watched[position] = (tls, used, stamp)
        if now_s - self._warned_s > DAY_SECONDS:
            self._warn(now_s)

    def expiries(self) -> dict[str, float]:
        """Return until when the certificates in use are valid, seconds since 1970, by the setting that names each."""
        return {
            tls.files.cert_setting: tls.certificate.validity.end_s
            for tls, _, _ in self._watched
            if tls.certificate is not None
        }

    def _reload(self, tls: Tls, now_s: float) -> None:
        names = ", ".join(tls.files.paths)
        try:
            if tls.files.key:
                check_private(tls.files.key_setting, tls.files.key)
            tls.reload(now_s)
        except ConfigError as error:
            log.error("tls: the changed files are not used, the certificate in use stays: %s", error)
            return
        log.info("tls: new connections use the changed files: %s", names)
        _warn_of(tls, now_s)

    def _warn(self, now_s: float) -> None:
        self._warned_s = now_s
        for tls, _, _ in self._watched:
            _warn_of(tls, now_s)


def _warn_of(tls: Tls, now_s: float) -> None:
    warning = "" if tls.certificate is None else tls.certificate.validity.warning(now_s, WARN_DAYS)
    if warning:
        log.warning(
            "tls: %s %s: %s: replace the file, new connections use it at once (%s)",
            tls.files.cert_setting,
            tls.files.cert,
            warning,
            tls.certificate,
        )
