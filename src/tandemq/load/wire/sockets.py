"""Connections of the load generator: non-blocking for the hot loops, blocking for single requests.

An address is `host:port`. Every socket has TCP_NODELAY. A `LoadConnection` keeps what the kernel did not accept and
sends it when epoll reports room. After `use_tls` all connections use TLS. Requests are signed if the environment has
credentials.
"""

from __future__ import annotations

import select

from tandemq.client.connection import BlockingConnection
from tandemq.client.credentials import environment_credentials
from tandemq.config.tls import ClientTls
from tandemq.errors import NetworkError, NotConnected
from tandemq.load.wire.responses import LoadError
from tandemq.load.wire.signing import signed_frames
from tandemq.real.network.client_tls import ClientContext
from tandemq.real.network.tls import TlsLink

RECEIVE_BYTES = 1 << 18
_CONNECT_S = 5.0
# All connections read into this buffer and copy out what came: a fresh 256 KiB buffer per read costs page faults.
_shared = memoryview(bytearray(RECEIVE_BYTES))
_READ, _WRITE = select.EPOLLIN, select.EPOLLOUT
_contexts: list[ClientContext] = []
"""TLS context of all connections of this process; empty: no TLS."""


def use_tls(settings: ClientTls) -> None:
    """Use TLS on all connections that are opened from now on.

    Raises:
        ConfigError: a file cannot be used.
    """
    _contexts[:] = [ClientContext(settings)]


def connect(address: str, seconds: float = _CONNECT_S) -> BlockingConnection:
    """Return a blocking connection, for single requests and for other protocols.

    Raises:
        NotConnected: the connection failed.
    """
    return BlockingConnection(address, seconds=seconds, tls=_contexts[0].current() if _contexts else None)


class LoadConnection:
    """One non-blocking connection in an epoll set."""

    __slots__ = ("_epoll", "_tls", "_unsent", "_user", "fd", "sock")

    def __init__(self, address: str, epoll: select.epoll) -> None:
        opened = BlockingConnection(address, seconds=_CONNECT_S)
        self.sock = opened.socket
        self._tls = _shake(opened) if _contexts else None
        self.sock.setblocking(False)
        self.fd = self.sock.fileno()
        self._epoll = epoll
        self._user = environment_credentials()
        self._unsent = b""
        epoll.register(self.fd, _READ)

    @property
    def is_tls(self) -> bool:
        """Whether the connection uses TLS."""
        return self._tls is not None

    def send(self, data: bytes | memoryview) -> None:
        """Send whole frames; keep the rest that does not fit until `ready` reports room."""
        if self._user is not None:
            data = signed_frames(data, self._user)
        if self._tls is not None:
            data = b"".join(self._tls.encrypt([data]))
        if self._unsent:
            self._unsent += data
            return
        sent = self._send_some(data)
        if sent < len(data):
            self._unsent = bytes(data[sent:])
            self._epoll.modify(self.fd, _READ | _WRITE)

    def _send_some(self, data: bytes | memoryview) -> int:
        try:
            return self.sock.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise LoadError(f"the connection broke while sending: {error}") from error

    def ready(self, events: int) -> None:
        """Handle epoll events other than readability."""
        if events & _WRITE and self._unsent:
            self._unsent = self._unsent[self._send_some(self._unsent) :]
            if not self._unsent:
                self._epoll.modify(self.fd, _READ)

    def receive(self) -> bytes:
        """Return the bytes that have arrived, possibly none.

        Raises:
            LoadError: the server closed the connection.
        """
        try:
            size = self.sock.recv_into(_shared)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise LoadError(f"the connection broke: {error}") from error
        if not size:
            raise LoadError("the server closed the connection")
        data = _shared[:size].tobytes()
        return data if self._tls is None else self._tls.receive(data)

    def close(self) -> None:
        """Close the socket, which removes it from the epoll set."""
        self.sock.close()


def _shake(opened: BlockingConnection) -> TlsLink:
    """Do the handshake on a blocking socket."""
    link = TlsLink(_contexts[0].current(), opened.host)
    try:
        while not link.is_ready:
            opened.socket.sendall(link.outgoing())
            data = opened.socket.recv(RECEIVE_BYTES)
            if not data:
                raise ConnectionError("closed during the handshake; does it use TLS at this port?")
            link.receive(data)
        opened.socket.sendall(link.outgoing())
    except (OSError, NetworkError) as error:
        raise NotConnected(f"cannot connect to {opened.address}: {error}") from error
    return link
