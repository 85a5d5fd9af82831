"""Sockets of the load generator: non-blocking for the hot loops, blocking for single requests.

An address is `host:port`. Every socket has TCP_NODELAY. A `LoadConnection` keeps what the kernel did not accept and
sends it when epoll reports room. After `use_tls` all connections use TLS.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Mapping

from tandemq.config.tls import ClientTls
from tandemq.errors import NetworkError
from tandemq.load.wire.headers import request_frame
from tandemq.load.wire.responses import LoadError, ParsedResponse, parse_response
from tandemq.real.network.client_tls import ClientContext, explain
from tandemq.real.network.tls import TlsLink

RECEIVE_BYTES = 1 << 18
# All connections read into this buffer and copy out what came: a fresh 256 KiB buffer per read costs page faults.
_shared = memoryview(bytearray(RECEIVE_BYTES))
_READ, _WRITE = select.EPOLLIN, select.EPOLLOUT
_contexts: list[ClientContext] = []
"""TLS of this process's connections; empty without."""


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port`.

    Raises:
        LoadError: the text has another form.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise LoadError(f"not an address (host:port): {address!r}")
    return host.strip("[]"), int(port)


def use_tls(settings: ClientTls) -> None:
    """Use TLS on all connections that are opened from now on.

    Raises:
        ConfigError: a file cannot be used.
    """
    _contexts[:] = [ClientContext(settings)]


def connect(address: str, timeout_s: float = 5.0) -> socket.socket:
    """Return a connected blocking socket with a timeout.

    Raises:
        LoadError: the connection failed.
    """
    sock = _connect(address, timeout_s)
    if not _contexts:
        return sock
    host, _ = parse_address(address)
    try:
        return _contexts[0].current().wrap_socket(sock, server_hostname=host)
    except OSError as error:
        sock.close()
        raise LoadError(f"cannot connect to {address}: {explain(error, host)}") from error


def _connect(address: str, timeout_s: float = 5.0) -> socket.socket:
    try:
        sock = socket.create_connection(parse_address(address), timeout_s)
    except OSError as error:
        raise LoadError(f"cannot connect to {address}: {error}") from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class LoadConnection:
    """One non-blocking connection in an epoll set."""

    __slots__ = ("_epoll", "_tls", "_unsent", "fd", "sock")

    def __init__(self, address: str, epoll: select.epoll) -> None:
        self.sock = _connect(address)
        self._tls = _shake(self.sock, address) if _contexts else None
        self.sock.setblocking(False)
        self.fd = self.sock.fileno()
        self._epoll = epoll
        self._unsent = b""
        epoll.register(self.fd, _READ)

    @property
    def is_tls(self) -> bool:
        """Whether the connection uses TLS."""
        return self._tls is not None

    def send(self, data: bytes | memoryview) -> None:
        """Send; keep what does not fit until `ready` reports room."""
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
        """Return what has arrived, possibly nothing.

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


def _shake(sock: socket.socket, address: str) -> TlsLink:
    """Do the handshake on a blocking socket."""
    host, _ = parse_address(address)
    link = TlsLink(_contexts[0].current(), host)
    try:
        while not link.is_ready:
            sock.sendall(link.outgoing())
            data = sock.recv(RECEIVE_BYTES)
            if not data:
                raise LoadError(
                    f"cannot connect to {address}: closed during the handshake; does it use TLS at this port?"
                )
            link.receive(data)
        sock.sendall(link.outgoing())
    except (OSError, NetworkError) as error:
        raise LoadError(f"cannot connect to {address}: {error}") from error
    return link


def read_exactly(sock: socket.socket, size: int) -> bytes:
    """Read `size` bytes from a blocking socket.

    Raises:
        LoadError: the peer closed, or the socket's timeout passed.
    """
    data = bytearray()
    while len(data) < size:
        try:
            piece = sock.recv(min(size - len(data), 1 << 20))
        except OSError as error:
            raise LoadError(f"no response: {error}") from error
        if not piece:
            raise LoadError("the server closed the connection")
        data += piece
    return bytes(data)


def ask(sock: socket.socket, code: int, fields: Mapping[str, object], body: bytes = b"") -> ParsedResponse:
    """Send one request on a blocking socket and return its response; one request at a time."""
    return exchange(sock, request_frame(code, int(time.monotonic() * 1000) & 0x3FFFFFFF, fields, body))


def exchange(sock: socket.socket, frame: bytes) -> ParsedResponse:
    """Send a complete frame on a blocking socket and return the next response."""
    try:
        sock.sendall(frame)
    except OSError as error:
        raise LoadError(f"the connection broke while sending: {error}") from error
    head = read_exactly(sock, 4)
    return parse_response(head + read_exactly(sock, struct.unpack(">I", head)[0]))
