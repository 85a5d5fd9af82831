"""TLS on byte buffers, without sockets or clocks.

    network ──► TlsLink.receive ──► plain bytes for the node
    network ◄── TlsLink.outgoing ◄── handshake, alerts          network ◄── TlsLink.encrypt ◄── bytes of the node

A connection is ready after its handshake. The owner limits the duration of a handshake; its size is limited here.
Errors are raised as NetworkError, with a message that says which side must change what; `outgoing` then returns the
alert for the peer.
Source: docs/internals/ha.md 10; decision 0009.
"""

import contextlib
import os
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tandemq.boundary import Buffer
from tandemq.errors import ConfigError, NetworkError
from tandemq.real.network.certificates import Certificate, read_certificate
from tandemq.real.network.refused_certificates import RefusedCertificate, described, describing, refusal

HANDSHAKE_BYTES_MAX = 128 * 1024
"""Larger than any handshake with usual certificate chains."""
READ_BYTES = 64 * 1024
"""At least one record."""
FEED_BYTES = 32 * 1024
"""Bytes passed to OpenSSL at a time. It keeps a buffer of that size per connection."""
HANDSHAKE_RECORD, ALERT_RECORD = 22, 21
NOT_TLS_ALERT = bytes((ALERT_RECORD, 3, 1, 0, 2, 2, 70))
"""Fatal alert protocol_version, sent to a peer that does not begin with TLS."""
ENCRYPT_BYTES = 64 * 1024
"""Bytes joined for one call of OpenSSL."""
_NO_CERTIFICATE = "PEER_DID_NOT_RETURN_A_CERTIFICATE"
_ABOUT_OURS = ("certificate", "unknown ca")
"""In the alerts of peers that refuse a certificate or require one."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of one end, and the settings that name them, for error messages."""

    cert: str
    key: str
    ca: str = ""
    """Trusted authorities; "": those of the system."""
    password: str = ""
    cert_setting: str = "haTlsCertFile"
    key_setting: str = "haTlsKeyFile"
    ca_setting: str = "haTlsCaFile"

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the files that are set."""
        return tuple(path for path in (self.cert, self.key, self.ca) if path)

    def stamp(self) -> tuple[tuple[int, ...], ...]:
        """Return what changes with the files: modification time, size, inode, mode of each; zeros for a missing one."""
        found = []
        for path in self.paths:
            try:
                status = _path(path).stat()
                found.append((status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode))
            except OSError:
                found.append((0, 0, 0, 0))
        return tuple(found)


class Tls:
    """TLS of one kind of connection. Its files can be read again; connections keep what they began with."""

    def __init__(
        self,
        server: Callable[[], ssl.SSLContext] | None,
        client: Callable[[], ssl.SSLContext] | None,
        files: TlsFiles,
        *,
        server_name: str = "",
        is_permissive: bool = False,
    ) -> None:
        """Load certificates.

        Args:
            server: makes the context of accepted connections.
            client: makes the context of connections that the node opens.
            files: what both read.
            server_name: name expected in the certificates of servers; "": the host that is connected to.
            is_permissive: whether peers may also connect without TLS.

        Raises:
            ConfigError: a file cannot be used.
        """
        self.files = files
        self.is_permissive = is_permissive
        self._server_name = server_name
        self._make_server, self._make_client = server, client
        self._server: ssl.SSLContext | None = None
        self._client: ssl.SSLContext | None = None
        self.certificate: Certificate | None = None
        """The certificate in use, None without one of its own."""
        self._load()

    def _load(self) -> None:
        server = self._make_server() if self._make_server is not None else None
        client = self._make_client() if self._make_client is not None else None
        self.certificate = read_certificate(self.files.cert) if self.files.cert else None
        self._server, self._client = server, client

    def reload(self, now_s: float) -> None:
        """Read the files again, for new connections. Callable from any thread.

        Raises:
            ConfigError: a file cannot be used, or the certificate has expired; the old ones stay in use.
        """
        if self.files.cert:
            problem = read_certificate(self.files.cert).validity.problem(now_s)
            if problem:
                raise ConfigError(f"{self.files.cert_setting} {self.files.cert}: {problem}")
        self._load()

    def accept(self) -> "TlsLink":
        """Return the TLS state for an accepted connection."""
        assert self._server is not None, "not for accepted connections"
        return TlsLink(self._server, None, self)

    def connect(self, host: str) -> "TlsLink":
        """Return the TLS state for a connection to this host; `outgoing` returns its first bytes."""
        assert self._client is not None, "not for connections to servers"
        return TlsLink(self._client, self._server_name or host, self)

    def own(self) -> str:
        """Return which certificate of this end a peer refuses, for its message."""
        if self.certificate is None:
            return ""
        return f"{self.files.cert_setting} {self.files.cert}: {self.certificate}"


def between_brokers(cert_file: str, key_file: str, ca_file: str, server_name: str = "") -> Tls:
    """Return the TLS of replication connections, the same in both directions.

    Args:
        cert_file: certificate of this node, and the intermediate ones.
        key_file: its private key, without a password.
        ca_file: trusted authorities; peers must then present a certificate in both directions. "": those of the
            system, and peers that connect need no certificate.
        server_name: see `Tls`.

    Raises:
        ConfigError: a file cannot be used.
    """
    files = TlsFiles(cert_file, key_file, ca_file)
    return Tls(
        lambda: server_context(files, ssl.CERT_REQUIRED if ca_file else ssl.CERT_NONE),
        lambda: client_context(files),
        files,
        server_name=server_name,
    )


def server_context(files: TlsFiles, verify: ssl.VerifyMode, protocols: Sequence[str] = ()) -> ssl.SSLContext:
    """Return the context of a server.

    Args:
        files: its certificate.
        verify: whether clients may or must present a certificate.
        protocols: what it speaks, by the names of ALPN, for clients that ask.

    Raises:
        ConfigError: a file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0
    _restrict(context)
    _load_own(context, files)
    if verify is not ssl.CERT_NONE:
        _load_authorities(context, files)
        context.verify_mode = verify
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context


def client_context(files: TlsFiles, *, verifies: bool = True, checks_host: bool = True) -> ssl.SSLContext:
    """Return the context of a client, which presents its certificate if it has one.

    Args:
        verifies: whether the server's certificate must come from a trusted authority.
        checks_host: whether it must also contain the server's name.

    Raises:
        ConfigError: a file cannot be used.
    """
    context = describing(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    context.check_hostname = verifies and checks_host
    _restrict(context)
    if files.cert:
        _load_own(context, files)
    if verifies:
        _load_authorities(context, files)
    else:
        context.verify_mode = ssl.CERT_NONE
    return context


def _restrict(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION


def _load_own(context: ssl.SSLContext, files: TlsFiles) -> None:
    for setting, path in ((files.cert_setting, files.cert), (files.key_setting, files.key)):
        _check_readable(setting, path)
    try:
        # Without a password argument OpenSSL would ask for one at the terminal.
        context.load_cert_chain(_path(files.cert), _path(files.key), password=files.password)
    except ssl.SSLError as error:
        is_other = error.reason == "KEY_VALUES_MISMATCH"
        what = "is not the key of the certificate in" if is_other else "cannot be used with"
        raise ConfigError(
            f"{files.key_setting} {files.key} {what} {files.cert_setting} {files.cert}: {error.reason or error}",
            hint="both are PEM files; the key has no password, or the one of the settings",
        ) from error


def _load_authorities(context: ssl.SSLContext, files: TlsFiles) -> None:
    if not files.ca:
        context.load_default_certs()
        return
    _check_readable(files.ca_setting, files.ca)
    try:
        context.load_verify_locations(_path(files.ca))
    except ssl.SSLError as error:
        raise ConfigError(
            f"{files.ca_setting} {files.ca}: {error.reason or error}",
            hint="it is a PEM file of one certificate or more",
        ) from error


def _path(text: str) -> Path:
    return Path(text).expanduser()


def _check_readable(key: str, path: str) -> None:
    if not path:
        raise ConfigError(f"{key} is missing")
    try:
        with _path(path).open("rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{key} {path}: {os.strerror(error.errno or 0)}") from error


class TlsLink:
    """TLS state of one connection."""

    def __init__(self, context: ssl.SSLContext, connects_to: str | None, tls: Tls | None = None) -> None:
        """Begin a handshake.

        Args:
            context: of the connection.
            connects_to: expected name of the server; None for an accepted connection.
            tls: whose connection it is, for messages.
        """
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._is_server = connects_to is None
        self._tls = tls
        self._client_certificate = RefusedCertificate(context) if self._is_server else None
        with self._looking():
            self._object = context.wrap_bio(self._in, self._out, self._is_server, connects_to)
        self._handshake_bytes = 0
        self._alert = b""
        self.is_ready = False
        """Whether the handshake is done."""
        self.is_ended = False
        """Whether the peer has announced the end of its data."""
        if not self._is_server:
            self._shake()

    @property
    def version(self) -> str:
        """TLS version, for example "TLSv1.3"; "" before the end of the handshake."""
        return self._object.version() or ""

    def receive(self, data: Buffer) -> bytes:
        """Process received bytes and return the decrypted ones, possibly b"".

        Raises:
            NetworkError: the connection must be closed after `outgoing` was sent.
        """
        if self.is_ended:
            return b""
        view = memoryview(data)
        pieces: list[bytes] = []
        for start in range(0, len(view), FEED_BYTES):
            part = view[start : start + FEED_BYTES]
            if not self.is_ready:
                self._check_handshake(part)  # what follows it in the same bytes does not count
            self._in.write(part)
            if self.is_ready or self._shake():
                self._decrypt(pieces)
            if self.is_ended:
                break
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _decrypt(self, pieces: list[bytes]) -> None:
        """Append what can be decrypted. Nothing is read from an empty buffer: that would be an exception per call."""
        incoming, read = self._in, self._object.read
        try:
            while incoming.pending:
                piece = read(READ_BYTES)
                if not piece:
                    self.is_ended = True
                    return
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass  # the rest of a record is missing
        except ssl.SSLZeroReturnError:
            self.is_ended = True
        except ssl.SSLError as error:  # in version 1.3 also a refusal of this client's certificate
            raise NetworkError(self._failure(error)) from error

    def encrypt(self, buffers: Sequence[Buffer]) -> list[Buffer]:
        """Encrypt bytes of the node, in pieces of about `ENCRYPT_BYTES`; only after the handshake.

        The buffers of OpenSSL, which it keeps for the next call, stay as small as a piece.
        """
        pieces: list[Buffer] = []
        if sum(map(len, buffers)) <= ENCRYPT_BYTES:
            self._encrypt_into(pieces, buffers[0] if len(buffers) == 1 else b"".join(buffers))
            return pieces
        small: list[Buffer] = []
        size = 0
        for buffer in buffers:
            if len(buffer) >= ENCRYPT_BYTES:
                self._encrypt_into(pieces, b"".join(small))
                small, size = [], 0
                view = memoryview(buffer)
                for start in range(0, len(view), ENCRYPT_BYTES):
                    self._encrypt_into(pieces, view[start : start + ENCRYPT_BYTES])
                continue
            small.append(buffer)
            size += len(buffer)
            if size >= ENCRYPT_BYTES:
                self._encrypt_into(pieces, b"".join(small))
                small, size = [], 0
        self._encrypt_into(pieces, b"".join(small))
        return pieces

    def _encrypt_into(self, pieces: list[Buffer], data: Buffer) -> None:
        """Append the encrypted bytes. OpenSSL may take one record of them per call."""
        if not data:
            return
        rest = memoryview(data)
        while rest:
            rest = rest[self._object.write(rest) :]
        pieces.append(self._out.read())

    def outgoing(self) -> bytes:
        """Return handshake bytes and alerts to send now."""
        alert, self._alert = self._alert, b""
        return self._out.read() + alert

    def _check_handshake(self, data: Buffer) -> None:
        if not self._handshake_bytes and data[0] not in (HANDSHAKE_RECORD, ALERT_RECORD):
            self._alert = NOT_TLS_ALERT
            raise NetworkError("TLS: the peer does not use TLS: switch it on there as well")
        self._handshake_bytes += len(data)
        if self._handshake_bytes > HANDSHAKE_BYTES_MAX:
            raise NetworkError(f"TLS: a handshake of more than {HANDSHAKE_BYTES_MAX} bytes")

    def _shake(self) -> bool:
        try:
            with self._looking():
                self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLCertVerificationError as error:
            seen = self._client_certificate.text if self._client_certificate is not None else described(error)
            raise refusal(error, seen, self._ca_setting) from error
        except ssl.SSLError as error:
            raise NetworkError(self._failure(error)) from error
        self.is_ready = True
        self._client_certificate = None
        return True

    def _looking(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._client_certificate is None else self._client_certificate.seen()

    @property
    def _ca_setting(self) -> str:
        return "the trusted authorities" if self._tls is None else self._tls.files.ca_setting

    def _failure(self, error: ssl.SSLError) -> str:
        text = _message(error)
        if error.reason == _NO_CERTIFICATE:
            return f"{text}: give it a certificate of an authority in {self._ca_setting}, and its key"
        if self._tls is None or not any(what in text for what in _ABOUT_OURS):
            return text
        own = self._tls.own()
        return f"{text}: it does not accept {own}" if own else f"{text}: set {self._tls.files.cert_setting}"


def _message(error: ssl.SSLError) -> str:
    reason = (error.reason or str(error)).lower().replace("_", " ")
    if "alert" in reason:
        return f"TLS: refused by the peer: {reason.partition('alert ')[2] or reason}"
    return f"TLS: {reason}"
