"""One HTTP connection to the JSON gateway of an etcd member: requests, and a stream of lines.

    post("kv/range", {…}, RangeAnswer)      one request at a time, answered within `seconds`
    lines("watch", {…})                     the lines of a stream, until the connection is closed or lost

Errors: NotConnected if nothing was sent, OutcomeUnknown if the answer is missing, EtcdError if etcd answered with one.
Owner: one thread; `interrupt` may be called by any other, and ends what waits.
Source: etcd's API reference; google.rpc.Code.
"""

import contextlib
import socket
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from ssl import SSLContext, SSLEOFError, SSLZeroReturnError
from typing import Any, TypeVar

from tandemq.errors import NetworkError, NotConnected, OutcomeUnknown, ProtocolError, RemoteError
from tandemq.real.etcd.messages import ErrorAnswer, decoded, encoded
from tandemq.real.network.client_tls import explain

ANSWER_BYTES_MAX = 16 << 20
"""Maximum size of an answer, and of a line of a stream."""
INVALID_ARGUMENT, LEASE_NOT_FOUND, PERMISSION_DENIED = 3, 5, 7
RESOURCE_EXHAUSTED, FAILED_PRECONDITION, UNAUTHENTICATED = 8, 9, 16
NO_SPACE = "database space exceeded"
_NO_TOKEN = ("user name is empty", "revision of auth store is old")
"""Errors of requests whose token is missing or outdated, beside UNAUTHENTICATED."""
_CLOSED = (SSLEOFError, SSLZeroReturnError, ConnectionResetError, BrokenPipeError)
"""How a connection ends before the first answer; http.client's own error is one of them, too."""
_WANTS_CERTIFICATE = "it may require a certificate of this client, cert and key in the address"
"""In TLS 1.3 a server refuses the client's certificate after the handshake, and its alert may be lost."""
_WANTS_TLS = "if it uses TLS, add ca=FILE or tls=true to the address"
_KEEP_ALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3))
_T = TypeVar("_T")


class EtcdError(RemoteError):
    """etcd answered with an error. `status`: its code of gRPC."""

    def __init__(self, message: str, status: int, *, hint: str = "") -> None:
        """Create an error."""
        super().__init__(message, hint=hint)
        self.status = status

    @property
    def wants_token(self) -> bool:
        """Whether the request lacks a valid token, so that nothing was done."""
        return self.status == UNAUTHENTICATED or any(text in str(self.args[0]) for text in _NO_TOKEN)

    @property
    def is_refusal(self) -> bool:
        """Whether nothing was done, and a repetition would be refused too."""
        if self.status == RESOURCE_EXHAUSTED:
            return NO_SPACE in str(self.args[0])
        return self.status in (INVALID_ARGUMENT, PERMISSION_DENIED) and not self.wants_token


class Gateway:
    """A connection."""

    def __init__(self, host: str, tls: SSLContext | None, seconds: float) -> None:
        """Prepare a connection to "host:port"; `seconds`: limit of connecting, and of the wait for an answer."""
        self.host = host
        self.token = ""
        """Token of the user that has authenticated; "": none."""
        name, _, port = host.rpartition(":")
        self._name = name.strip("[]")
        if tls is None:
            self._connection = HTTPConnection(self._name, int(port), timeout=seconds)
        else:
            self._connection = HTTPSConnection(self._name, int(port), timeout=seconds, context=tls)
        self._connection.auto_open = 0  # a lost connection is reported, never replaced
        self._socket: socket.socket | None = None
        self._has_tls = tls is not None
        self._has_answered = False
        self._is_interrupted = False

    def connect(self) -> None:
        """Connect.

        Raises:
            NotConnected: no server accepts the connection.
        """
        try:
            self._connection.connect()
        except (OSError, ValueError) as error:  # ValueError: a name that IDNA does not have
            raise NotConnected(self._text(error, is_open=False)) from error
        self._socket = self._connection.sock
        if self._is_interrupted:
            self.close()
            raise NotConnected(f"{self.host}: interrupted")

    def post(self, method: str, request: dict[str, Any], kind: type[_T]) -> _T:
        """Send a request and return its answer.

        Raises:
            OutcomeUnknown: no answer arrived; the connection cannot be used further.
            EtcdError: etcd answered with an error.
            ProtocolError: the answer is not understood.
        """
        with self._network_errors():
            response = self._send(method, request)
            body = response.read(ANSWER_BYTES_MAX + 1)
        if len(body) > ANSWER_BYTES_MAX:
            raise ProtocolError(f"{self.host}: the answer to {method} has more than {ANSWER_BYTES_MAX} bytes")
        if response.status != 200:
            raise self._error(method, response.status, body)
        return decoded(body, kind)

    def lines(self, method: str, request: dict[str, Any]) -> Iterator[bytes]:
        """Send a request and yield the lines of its answer as they arrive.

        Raises:
            OutcomeUnknown: the connection is lost or closed.
            EtcdError: etcd answered with an error.
        """
        with self._network_errors():
            response = self._send(method, request)
            if response.status != 200:
                raise self._error(method, response.status, response.read(ANSWER_BYTES_MAX))
            self._wait_for_ever()
            while True:
                line = response.readline(ANSWER_BYTES_MAX + 1)
                if not line.endswith(b"\n"):
                    raise OutcomeUnknown(f"{self.host}: the stream of {method} ended")
                if line.strip():  # newer gateways send empty lines
                    yield line

    @contextlib.contextmanager
    def _network_errors(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            raise OutcomeUnknown(f"{self.host} does not answer") from error
        except (OSError, HTTPException, ValueError) as error:  # ValueError: a malformed length
            raise OutcomeUnknown(self._text(error, is_open=True)) from error

    def _text(self, error: Exception, *, is_open: bool) -> str:
        if isinstance(error, TimeoutError):
            return f"{self.host} does not answer"
        if is_open and not self._has_answered and isinstance(error, _CLOSED):
            return f"{self.host} closed the connection: {_WANTS_CERTIFICATE if self._has_tls else _WANTS_TLS}"
        text = explain(error, self._name, is_open=is_open) if isinstance(error, OSError) else str(error)
        return f"{self.host}: {text or type(error).__name__}"

    def _send(self, method: str, request: dict[str, Any]) -> HTTPResponse:
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = self.token
        self._connection.request("POST", f"/v3/{method}", encoded(request), headers)
        response = self._connection.getresponse()
        self._has_answered = True
        return response

    def _error(self, method: str, status: int, body: bytes) -> RemoteError | NetworkError:
        try:
            found = decoded(body, ErrorAnswer)
        except ProtocolError:
            if status == 404:
                hint = "etcd 3.4 or newer is needed, with its gRPC gateway"
                return NotConnected(f"{self.host}: there is no /v3/{method}", hint=hint)
            return OutcomeUnknown(f"{self.host}: HTTP status {status} instead of an answer to {method}")
        text = (found.message or found.error).removeprefix("etcdserver: ")
        return EtcdError(f"etcd {self.host}: {text}", found.code)

    def _wait_for_ever(self) -> None:
        assert self._socket is not None, "connect first"
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE:
            if hasattr(socket, name):
                self._socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def limit(self, seconds: float) -> None:
        """Change the limit of the wait for answers."""
        if self._socket is not None:
            self._socket.settimeout(seconds)

    def interrupt(self) -> None:
        """End what waits for the connection, in another thread."""
        self._is_interrupted = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                # Not that of SSLSocket, which takes away the TLS state that the other thread uses.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self._connection.close()
