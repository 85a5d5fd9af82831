"""TLS of clients on asyncio and on blocking sockets: their context, read again when files change, and plain errors.

    ClientTls ─► ClientContext ── current ──► SSLContext of the next connection
    OSError of a handshake or of a connection ─► explain ─► one line that says which side must change what

Source: docs/guides/operations.md, "TLS for clients".
"""

import logging
import ssl

from tandemq.config.tls import ClientTls
from tandemq.errors import ConfigError
from tandemq.real.network.refused_certificates import EXPIRED, NAMES, NOT_YET_VALID, advice, described
from tandemq.real.network.tls import Tls, TlsFiles, client_context

log = logging.getLogger(__name__)
_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")
_NOT_TLS_TEXT = "TLS: the server at this port does not use TLS"
_REFUSED = {
    "CERTIFICATE_REQUIRED": "the server requires a certificate of this client: set cert_file and key_file "
    "(--tls-cert, --tls-key)",
    "UNKNOWN_CA": "the server does not trust the authority of this client's certificate",
    "CERTIFICATE_UNKNOWN": "the server does not accept this client's certificate",
    "BAD_CERTIFICATE": "the server does not accept this client's certificate, or requires one",
    "CERTIFICATE_EXPIRED": "this client's certificate has expired, or the server's clock is wrong",
}
"""Meaning of the alerts of a server."""


class ClientContext:
    """The context of a client's connections. Files are read again when they have changed, for new connections."""

    def __init__(self, settings: ClientTls) -> None:
        """Read the files.

        Raises:
            ConfigError: a file cannot be used.
        """
        self._settings = settings
        files = self._files = TlsFiles(
            settings.cert_file,
            settings.key_file,
            settings.ca_file,
            settings.key_password,
            "cert_file",
            "key_file",
            "ca_file",
        )
        self._stamp = files.stamp()
        self._context = self._read()

    def _read(self) -> ssl.SSLContext:
        settings = self._settings
        return client_context(self._files, verifies=settings.verify, checks_host=settings.check_host)

    def current(self) -> ssl.SSLContext:
        """Return the context for the next connection. Changed files that cannot be used are logged and not used."""
        stamp = self._files.stamp()
        if stamp != self._stamp:
            try:
                self._context = self._read()
                self._stamp = stamp
                log.info("tls: new connections use the changed files: %s", ", ".join(self._files.paths))
            except ConfigError as error:
                log.warning("tls: the changed files are not used: %s", error)
        return self._context


def loop_tls(settings: ClientTls) -> Tls:
    """Return the TLS of connections that a server loop opens for a client.

    Raises:
        ConfigError: a file cannot be used.
    """
    context = ClientContext(settings)
    return Tls(None, context.current, TlsFiles("", "", "", "", "cert_file", "key_file", "ca_file"))


def explain(error: OSError, host: str, *, is_open: bool = False) -> str:
    """Return one line for an error of a connection with TLS: its cause, and what to change.

    Args:
        error: of connecting, of the handshake, or of a later read.
        host: that the client connects to.
        is_open: whether the handshake was done.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return _refused(error, host)
    if not is_open and isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ConnectionResetError):
        return "TLS: the server closed the connection; does it use TLS at this port?"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        if reason in _NOT_TLS:
            return _NOT_TLS_TEXT
        alert = reason.partition("ALERT_")[2]
        if alert:
            known = _REFUSED.get(alert)
            return f"TLS: {known or 'refused by the server: ' + alert.lower().replace('_', ' ')}"
        return f"TLS: {reason.lower().replace('_', ' ')}"
    return str(error)


def _refused(error: ssl.SSLCertVerificationError, host: str) -> str:
    if error.verify_code == EXPIRED:
        what = "has expired"
    elif error.verify_code == NOT_YET_VALID:
        what = "is not valid yet"
    elif error.verify_code in NAMES:
        what = f"is not for {host}"
    else:
        what = f"is not of a trusted authority: {error.verify_message}"
    text = ": ".join(part for part in (f"TLS: the server's certificate {what}", described(error)) if part)
    todo = advice(error, "ca_file (--tls-ca)")
    return f"{text}; {todo}" if todo else text
