"""TLS of clients on asyncio and on blocking sockets: their context, read again when files change, and plain errors.

    ClientTls ─► ClientContext ── current ──► SSLContext of the next connection
    OSError of a handshake or of a connection ─► explain ─► one line that says which side must change what

Source: docs/guides/operations.md, "TLS for clients".
"""

import logging
import ssl

from tandemq.config.tls import ClientTls
from tandemq.errors import ConfigError
from tandemq.real.network.tls import Tls, TlsFiles, client_context

log = logging.getLogger(__name__)
_EXPIRED, _NOT_YET_VALID, _NAMES = 10, 9, (62, 64)
"""Verification results of OpenSSL: X509_V_ERR_CERT_HAS_EXPIRED, …_NOT_YET_VALID, …_HOSTNAME_MISMATCH, …_IP_…."""
_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")
_NOT_TLS_TEXT = "TLS: the server at this port does not use TLS"
_REFUSED = {
    "CERTIFICATE_REQUIRED": "the server requires a certificate of this client",
    "UNKNOWN_CA": "the server does not trust the authority of this client's certificate",
    "CERTIFICATE_UNKNOWN": "the server does not accept this client's certificate",
    "BAD_CERTIFICATE": "the server does not accept this client's certificate, or requires one",
    "CERTIFICATE_EXPIRED": "this client's certificate has expired",
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
    return Tls(None, context.current, TlsFiles("", ""))


def explain(error: OSError, host: str, *, is_open: bool = False) -> str:
    """Return one line for an error of a connection with TLS: its cause, and what to change.

    Args:
        error: of connecting, of the handshake, or of a later read.
        host: that the client connects to.
        is_open: whether the handshake was done.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == _EXPIRED:
            return "TLS: the server's certificate has expired"
        if error.verify_code == _NOT_YET_VALID:
            return "TLS: the server's certificate is not valid yet"
        if error.verify_code in _NAMES:
            return f"TLS: the server's certificate is not for {host}"
        return f"TLS: the server's certificate is not of a trusted authority: {error.verify_message}"
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
