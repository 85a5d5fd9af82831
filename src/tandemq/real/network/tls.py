"""TLS on byte buffers, without sockets or clocks.

    network ──► TlsLink.receive ──► plain bytes for the node
    network ◄── TlsLink.outgoing ◄── handshake, alerts          network ◄── TlsLink.encrypt ◄── bytes of the node

A connection is ready after its handshake. The owner limits the duration of a handshake; its size is limited here.
Errors are raised as NetworkError, with a message that says which side must change what; `outgoing` then returns the
alert for the peer.
Source: docs/internals/ha.md 10; decision 0009.
"""

import os
import ssl
from collections.abc import Sequence
from pathlib import Path

from tandemq.boundary import Buffer
from tandemq.errors import ConfigError, NetworkError

HANDSHAKE_BYTES_MAX = 128 * 1024
"""Larger than any handshake with usual certificate chains."""
READ_BYTES = 64 * 1024
HANDSHAKE_RECORD, ALERT_RECORD = 22, 21
NOT_TLS_ALERT = bytes((ALERT_RECORD, 3, 1, 0, 2, 2, 70))
"""Fatal alert protocol_version, sent to a peer that does not begin with TLS."""


class Tls:
    """TLS configuration of one kind of connection: own certificate and trusted authorities."""

    def __init__(self, cert_file: str, key_file: str, ca_file: str, server_name: str = "") -> None:
        """Load certificates.

        Args:
            cert_file: certificate of this node, and the intermediate ones.
            key_file: its private key, without a password.
            ca_file: trusted authorities; peers must then present a certificate in both directions. "": those of the
                system, and peers that connect need no certificate.
            server_name: name expected in the certificates of servers; "": the host that is connected to.

        Raises:
            ConfigError: a file cannot be used.
        """
        self._server_name = server_name
        self._server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._server.num_tickets = 0
        for context in (self._server, self._client):
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.options |= ssl.OP_NO_RENEGOTIATION
            _load_own(context, cert_file, key_file)
            if ca_file:
                _load_authorities(context, ca_file)
        if ca_file:
            self._server.verify_mode = ssl.CERT_REQUIRED
        else:
            self._client.load_default_certs()

    def accept(self) -> "TlsLink":
        """Return the TLS state for an accepted connection."""
        return TlsLink(self._server, None)

    def connect(self, host: str) -> "TlsLink":
        """Return the TLS state for a connection to this host; `outgoing` returns its first bytes."""
        return TlsLink(self._client, self._server_name or host)


def _load_own(context: ssl.SSLContext, cert_file: str, key_file: str) -> None:
    for key, path in (("haTlsCertFile", cert_file), ("haTlsKeyFile", key_file)):
        _check_readable(key, path)
    try:
        # Without a password argument OpenSSL would ask for one at the terminal.
        context.load_cert_chain(_path(cert_file), _path(key_file), password="")
    except ssl.SSLError as error:
        is_other = error.reason == "KEY_VALUES_MISMATCH"
        what = "is not the key of the certificate in" if is_other else "cannot be used with"
        raise ConfigError(
            f"haTlsKeyFile {key_file} {what} haTlsCertFile {cert_file}: {error.reason or error}",
            hint="both are PEM files; the key has no password",
        ) from error


def _load_authorities(context: ssl.SSLContext, ca_file: str) -> None:
    _check_readable("haTlsCaFile", ca_file)
    try:
        context.load_verify_locations(_path(ca_file))
    except ssl.SSLError as error:
        raise ConfigError(
            f"haTlsCaFile {ca_file}: {error.reason or error}", hint="it is a PEM file of one certificate or more"
        ) from error


def _path(text: str) -> Path:
    return Path(text).expanduser()


def _check_readable(key: str, path: str) -> None:
    try:
        with _path(path).open("rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{key} {path}: {os.strerror(error.errno or 0)}") from error


class TlsLink:
    """TLS state of one connection."""

    def __init__(self, context: ssl.SSLContext, connects_to: str | None) -> None:
        """Begin a handshake. `connects_to`: expected name of the server; None for an accepted connection."""
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._is_server = connects_to is None
        self._object = context.wrap_bio(self._in, self._out, self._is_server, connects_to)
        self._handshake_bytes = 0
        self._alert = b""
        self.is_ready = False
        """Whether the handshake is done."""
        if not self._is_server:
            self._shake()

    @property
    def version(self) -> str:
        """TLS version, for example "TLSv1.3"; "" before the end of the handshake."""
        return self._object.version() or ""

    def receive(self, data: bytes) -> bytes:
        """Process received bytes and return the decrypted ones, possibly b"".

        Raises:
            NetworkError: the connection must be closed after `outgoing` was sent.
        """
        if not self.is_ready:
            self._check_handshake(data)
        self._in.write(data)
        if not self.is_ready and not self._shake():
            return b""
        pieces = []
        try:
            while piece := self._object.read(READ_BYTES):
                pieces.append(piece)
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass  # everything was read; after a close_notify the peer closes the connection
        except ssl.SSLError as error:
            raise NetworkError(_message(error)) from error
        return b"".join(pieces)

    def encrypt(self, buffers: Sequence[Buffer]) -> bytes:
        """Encrypt bytes of the node; only after the handshake."""
        rest = memoryview(b"".join(buffers))
        while rest:
            rest = rest[self._object.write(rest) :]
        return self._out.read()

    def outgoing(self) -> bytes:
        """Return handshake bytes and alerts to send now."""
        alert, self._alert = self._alert, b""
        return self._out.read() + alert

    def _check_handshake(self, data: bytes) -> None:
        if not self._handshake_bytes and data[0] not in (HANDSHAKE_RECORD, ALERT_RECORD):
            self._alert = NOT_TLS_ALERT
            raise NetworkError("TLS: the peer does not use TLS: set haTlsCertFile there as well")
        self._handshake_bytes += len(data)
        if self._handshake_bytes > HANDSHAKE_BYTES_MAX:
            raise NetworkError(f"TLS: a handshake of more than {HANDSHAKE_BYTES_MAX} bytes")

    def _shake(self) -> bool:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise NetworkError(_message(error)) from error
        self.is_ready = True
        return True


def _message(error: ssl.SSLError) -> str:
    reason = (error.reason or str(error)).lower().replace("_", " ")
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: the peer's certificate is not accepted: {error.verify_message}"
    if "alert" in reason:
        return f"TLS: refused by the peer: {reason.partition('alert ')[2] or reason}"
    return f"TLS: {reason}"
