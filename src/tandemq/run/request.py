"""Single requests to a broker or name server over a blocking socket.

For commands and for code that starts processes and waits until they are ready; programs use `tandemq.client`.
"""

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from tandemq.client.core.connections import foreign_reason
from tandemq.codec.remoting.frame import FrameDecoder, decode_command, encode_command
from tandemq.config.tls import ClientTls
from tandemq.errors import NetworkError, NotConnected, OutcomeUnknown, WrongProtocol
from tandemq.model.command import Command
from tandemq.real.network.client_tls import ClientContext, explain

SECONDS = 3.0
_RECEIVE_BYTES = 1 << 20


class BlockingConnection:
    """A connection with one request in flight at a time."""

    def __init__(self, address: str, *, seconds: float = SECONDS, tls: ClientTls | None = None) -> None:
        """Connect to `address`, "host:port"; `seconds` is the timeout of connecting and of each receive.

        Raises:
            NotConnected: the connection failed.
            ConfigError: a file of TLS cannot be used.
        """
        host, _, port = address.rpartition(":")
        self._host = host.strip("[]")
        context = ClientContext(tls).current() if tls is not None else None
        self._address = address
        self._decoder = FrameDecoder(64 << 20)
        self._opaque = 0
        try:
            self._socket = socket.create_connection((self._host, int(port)), seconds)
        except (OSError, ValueError, OverflowError) as error:
            raise NotConnected(f"no process answers at {address}: {error}", hint="is it running?") from error
        self._is_tls = context is not None
        if context is not None:
            self._socket = self._secured(context)

    def _secured(self, context: ssl.SSLContext) -> socket.socket:
        try:
            return context.wrap_socket(self._socket, server_hostname=self._host)
        except OSError as error:
            self._socket.close()
            raise NotConnected(f"{self._address}: {explain(error, self._host)}") from error

    def request(self, command: Command) -> Command:
        """Send a request and wait for its response.

        Raises:
            OutcomeUnknown: no response arrived.
        """
        self._opaque += 1
        command.opaque = self._opaque
        try:
            self._socket.sendall(encode_command(command))
            while True:
                data = self._socket.recv(_RECEIVE_BYTES)
                for frame in self._decoder.feed(data):
                    answer = decode_command(frame)
                    if answer.is_response and answer.opaque == self._opaque:
                        return answer
                if not self._is_tls and (reason := foreign_reason(data)) is not None:
                    raise WrongProtocol(f"{self._address}: {reason}")
                if not data:
                    raise OutcomeUnknown(f"{self._address} closed the connection instead of answering")
        except OSError as error:
            reason = explain(error, self._host, is_open=True)
            raise OutcomeUnknown(f"no answer from {self._address}: {reason}") from error

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


@contextmanager
def connect(address: str, *, seconds: float = SECONDS, tls: ClientTls | None = None) -> Iterator[BlockingConnection]:
    """Open a connection for the duration of a `with` block. Raises NotConnected."""
    opened = BlockingConnection(address, seconds=seconds, tls=tls)
    try:
        yield opened
    finally:
        opened.close()


def try_request(address: str, command: Command, tls: ClientTls | None = None) -> Command | None:
    """Send one request and return the response, None if there is none: for waiting until a process is ready."""
    try:
        with connect(address, tls=tls) as opened:
            return opened.request(command)
    except NetworkError:
        return None
