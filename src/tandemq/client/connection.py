"""A connection to a broker or name server over a blocking socket, for tools: commands, checks, measurements, tests.

    with BlockingConnection("127.0.0.1:10911") as broker:
        answer = broker.request(Command(RequestCode.GET_BROKER_RUNTIME_INFO))

    opaques = [broker.begin(command) for command in commands]       several requests in flight
    answers = [broker.receive() for _ in opaques]

One address, no routes, no retries: programs use producers, consumers and `Admin`.
"""

import socket
import ssl
import time
from collections import deque
from types import TracebackType
from typing import Self

from tandemq.client.core.connections import foreign_reason
from tandemq.client.credentials import environment_credentials
from tandemq.codec.remoting.frame import FrameDecoder, decode_command, encode_request
from tandemq.codec.remoting.signature import signed
from tandemq.config.tls import ClientTls
from tandemq.errors import NetworkError, NotConnected, OutcomeUnknown, ProtocolError, WrongProtocol
from tandemq.model.access import Credentials
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.real.network.client_tls import ClientContext, explain

SECONDS = 3.0
_FRAME_BYTES_MAX = 64 << 20
_RECEIVE_BYTES = 1 << 20


class BlockingConnection:
    """A connection of one thread."""

    def __init__(
        self,
        address: str,
        *,
        seconds: float = SECONDS,
        tls: ClientTls | ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """Connect.

        Args:
            address: "host:port".
            seconds: time limit of connecting, of each send, and of the wait for each response.
            tls: files of TLS, or a context that was made from them; None: without TLS.
            credentials: user that signs all requests; None: that of the environment, if there is one.

        Raises:
            NotConnected: the connection failed.
            ConfigError: a file of TLS cannot be used.
        """
        host, _, port = address.rpartition(":")
        self.address = address
        self.host = host.strip("[]")
        self._seconds = seconds
        self._credentials = credentials or environment_credentials()
        self._decoder = FrameDecoder(_FRAME_BYTES_MAX)
        self._received: deque[Command] = deque()
        self._opaque = 0
        context = ClientContext(tls).current() if isinstance(tls, ClientTls) else tls
        try:
            self.socket = socket.create_connection((self.host, int(port)), seconds)
        except (OSError, ValueError, OverflowError) as error:
            raise NotConnected(f"no process answers at {address}: {error}", hint="is it running?") from error
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._may_be_foreign = context is None
        """Whether the first bytes, which may show another protocol, have yet to come."""
        if context is not None:
            self.socket = self._secured(context)

    def _secured(self, context: ssl.SSLContext) -> socket.socket:
        try:
            return context.wrap_socket(self.socket, server_hostname=self.host)
        except OSError as error:
            self.socket.close()
            raise NotConnected(f"{self.address}: {explain(error, self.host)}") from error

    def request(self, command: Command) -> Command:
        """Send a request and return its response; what else is received until then is dropped.

        Raises:
            OutcomeUnknown: no response arrived in time.
            WrongProtocol: the server speaks another protocol, or only TLS.
        """
        wanted = f"to {_name_of(command.code)} "
        opaque = self.begin(command)
        until = time.monotonic() + self._seconds
        while True:
            answer = self._next(until, wanted)
            if answer.is_response and answer.opaque == opaque:
                return answer

    def begin(self, command: Command) -> int:
        """Send a request, do not wait for its response, and return its opaque. Raises OutcomeUnknown."""
        self._opaque += 1
        if self._credentials is not None:
            command.fields = signed(command.fields, command.body, self._credentials)
        self.write(encode_request(command, self._opaque))
        return self._opaque

    def receive(self) -> Command:
        """Return the next response, or request of the peer. Raises as `request`."""
        return self._next(time.monotonic() + self._seconds, "")

    def write(self, data: bytes | memoryview) -> None:
        """Send encoded frames. Raises OutcomeUnknown."""
        try:
            self.socket.settimeout(self._seconds)
            self.socket.sendall(data)
        except OSError as error:
            raise self._unanswered("", error) from error

    def _next(self, until: float, wanted: str) -> Command:
        try:
            while not self._received:
                self.socket.settimeout(max(0.001, until - time.monotonic()))
                self._take(self.socket.recv(_RECEIVE_BYTES))
        except (OSError, ProtocolError) as error:
            raise self._unanswered(wanted, error) from error
        return self._received.popleft()

    def _take(self, data: bytes) -> None:
        if not data:
            raise ConnectionError("the connection was closed instead")
        reason = foreign_reason(data) if self._may_be_foreign else None
        self._may_be_foreign = False
        if reason is not None:
            raise WrongProtocol(f"{self.address}: {reason}")
        self._received.extend(map(decode_command, self._decoder.feed(data)))
        if self._decoder.error is not None and not self._received:
            raise self._decoder.error

    def _unanswered(self, wanted: str, error: OSError | ProtocolError) -> OutcomeUnknown:
        reason = explain(error, self.host, is_open=True) if isinstance(error, OSError) else error
        return OutcomeUnknown(f"no answer {wanted}from {self.address}: {reason}")

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def try_request(address: str, command: Command, tls: ClientTls | None = None) -> Command | None:
    """Send one request and return the response, None if there is none: for waiting until a process is ready."""
    try:
        with BlockingConnection(address, tls=tls) as opened:
            return opened.request(command)
    except NetworkError:
        return None


def _name_of(code: int) -> str:
    return next((known.name for known in RequestCode if known == code), str(code))
