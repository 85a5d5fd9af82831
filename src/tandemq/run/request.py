"""One request to a broker or name server and its answer, over a socket of its own that blocks.

For what starts processes and waits until they are ready; programs use the client.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from tandemq.codec.remoting.frame import FrameDecoder, decode_command, encode_command
from tandemq.errors import NetworkError, NotConnected, OutcomeUnknown
from tandemq.model.command import Command

SECONDS = 3.0
_RECEIVE_BYTES = 1 << 20


class Line:
    """A connection that carries one request at a time."""

    def __init__(self, address: str, *, seconds: float = SECONDS) -> None:
        """Connect.

        Raises:
            NotConnected: nobody listens there.
        """
        host, _, port = address.rpartition(":")
        self._address = address
        self._decoder = FrameDecoder(64 << 20)
        self._opaque = 0
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), seconds)
        except (OSError, ValueError, OverflowError) as error:
            raise NotConnected(f"nobody answers at {address}: {error}", hint="is it running?") from error

    def ask(self, command: Command) -> Command:
        """Send a request, wait for its answer.

        Raises:
            OutcomeUnknown: none came.
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
                if not data:
                    raise OutcomeUnknown(f"{self._address} closed the connection instead of answering")
        except OSError as error:
            raise OutcomeUnknown(f"no answer from {self._address}: {error}") from error

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


@contextmanager
def line(address: str, *, seconds: float = SECONDS) -> Iterator[Line]:
    """A connection for the length of a `with` block. Raises NotConnected."""
    opened = Line(address, seconds=seconds)
    try:
        yield opened
    finally:
        opened.close()


def try_ask(address: str, command: Command) -> Command | None:
    """The answer to one request, None if there is none: for those who wait for a process to be ready."""
    try:
        with line(address) as opened:
            return opened.ask(command)
    except NetworkError:
        return None
