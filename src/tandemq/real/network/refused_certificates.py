"""Certificates of peers that verification refuses, for the message of the error.

    client  ssl.SSLObject, ssl.SSLSocket ── do_handshake fails ──► the error gets a note that describes the certificate
    server  RefusedCertificate.seen() around each step of the handshake ──► text

OpenSSL says why it refuses a certificate, and not which one. A client can ask its connection for what the server sent.
A server cannot: OpenSSL drops the certificate of a client that it refuses. So it looks at handshake messages, by a hook
of `ssl.SSLContext` that is set during steps of handshakes only: left in place it would cost 4 µs per record.

Source: RFC 8446, 4.4.2; RFC 5246, 7.4.2.
"""

import contextlib
import ssl
from collections.abc import Iterator
from typing import Any

from tandemq.errors import NetworkError
from tandemq.real.network.certificates import describe

CERTIFICATE = 11
"""Type of the handshake message."""
_HOOK = "_msg_callback"
_DER = 2
"""Form of `public_bytes`."""
_HEADER_BYTES, _LENGTH_BYTES = 4, 3
EXPIRED, NOT_YET_VALID, NAMES, UNKNOWN = 10, 9, (62, 64), (2, 18, 19, 20, 21)
"""Verification results of OpenSSL: X509_V_ERR_CERT_HAS_EXPIRED, …_NOT_YET_VALID; …_HOSTNAME_MISMATCH, …_IP_…; and those
of a certificate whose issuer is unknown or self-signed."""


class _Object(ssl.SSLObject):
    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except ssl.SSLCertVerificationError as error:
            _note(error, self)
            raise


class _Socket(ssl.SSLSocket):
    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except ssl.SSLCertVerificationError as error:
            _note(error, self)
            raise


def describing(context: ssl.SSLContext) -> ssl.SSLContext:
    """Let errors of a client's context describe the certificate that is refused, see `described`."""
    context.sslobject_class = _Object
    context.sslsocket_class = _Socket
    return context


def _note(error: ssl.SSLCertVerificationError, connection: Any) -> None:
    chain = connection._sslobj.get_unverified_chain()  # noqa: SLF001  # in the public class since 3.13
    if chain:
        error.add_note(describe(chain[0].public_bytes(_DER)))


def described(error: ssl.SSLError) -> str:
    """Return the description of the certificate that the error is about, "" if it is not known."""
    return " ".join(getattr(error, "__notes__", ()))


class RefusedCertificate:
    """The certificate that a client presents to one accepted connection."""

    def __init__(self, context: ssl.SSLContext) -> None:
        """`context`: the server's."""
        self._context = context
        self._is_needed = context.verify_mode is not ssl.CERT_NONE and hasattr(context, _HOOK)
        self.text = ""
        """Its description; "" before it has been presented."""

    @contextlib.contextmanager
    def seen(self) -> Iterator[None]:
        """Look at the messages of a step of the handshake; also around the creation of the connection."""
        if not self._is_needed:
            yield
            return
        setattr(self._context, _HOOK, self._take)
        try:
            yield
        finally:
            setattr(self._context, _HOOK, None)

    def _take(self, _connection: object, direction: str, version: int, _kind: int, message: int, data: bytes) -> None:
        if direction != "read" or message != CERTIFICATE or data[:1] != bytes((CERTIFICATE,)):
            return  # types of other things have the same number
        position = _HEADER_BYTES
        if version == ssl.TLSVersion.TLSv1_3:
            position += 1 + int.from_bytes(data[position : position + 1])  # the context of the request
        position += _LENGTH_BYTES  # of the list
        size = int.from_bytes(data[position : position + _LENGTH_BYTES])
        der = data[position + _LENGTH_BYTES : position + _LENGTH_BYTES + size]
        if der:
            self.text = describe(der)


def advice(error: ssl.SSLCertVerificationError, ca_setting: str) -> str:
    """Return what to do about a refused certificate, "" if there is nothing particular.

    `ca_setting`: name of the setting for trusted authorities.
    """
    if error.verify_code == EXPIRED:
        return "renew it there, or correct the clock of this machine"
    if error.verify_code == NOT_YET_VALID:
        return "correct the clock of this machine, or of the one that has issued it"
    if error.verify_code in NAMES:
        return "connect to a name that the certificate is for, or issue one for this name"
    if error.verify_code in UNKNOWN:
        return f"put the authority that issued it into {ca_setting}"
    return ""


def refusal(error: ssl.SSLCertVerificationError, certificate: str, ca_setting: str) -> NetworkError:
    """Return the error of a connection whose peer's certificate is refused."""
    parts = (f"TLS: the peer's certificate is not accepted: {error.verify_message.rstrip('.')}", certificate)
    text = ": ".join(part for part in parts if part)
    todo = advice(error, ca_setting)
    return NetworkError(f"{text}; {todo}" if todo else text)
