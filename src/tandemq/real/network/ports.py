"""Listening ports of the server loop.

    listen ──► bound ── begin ──► accepting ── out of descriptors ──► paused ── resume ──► accepting

An accept that fails for lack of descriptors or memory pauses its port for a moment: it would be ready again
immediately.
"""

import errno
import logging
import os
import select
import socket
from collections.abc import Iterator
from typing import NamedTuple

from tandemq.boundary import LinkKind
from tandemq.real.clock import read_clock
from tandemq.real.network.addresses import text_of
from tandemq.real.network.listening import bind, cannot_listen

log = logging.getLogger(__name__)
ACCEPT_BACKLOG = 1024
ACCEPTS_PER_TURN = 256
ACCEPT_PAUSE_MS = 1_000
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_GONE = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR)


class Accepted(NamedTuple):
    """An accepted connection."""

    sock: socket.socket
    host: str
    """IP address of the peer."""
    peer: str
    """Address of the peer, "ip:port"."""
    kind: LinkKind


class Ports:
    """The listening sockets of a loop."""

    def __init__(self, epoll: select.epoll) -> None:
        """Begin without ports. `epoll` is the loop's."""
        self._epoll = epoll
        self._listeners: dict[int, tuple[socket.socket, LinkKind]] = {}
        self._is_accepting = False
        self._paused: dict[int, int] = {}
        """Paused listeners with the time (ms) at which they resume."""

    def __contains__(self, fd: int) -> bool:
        """Whether a descriptor is one of the ports."""
        return fd in self._listeners

    def listen(
        self, address: str, port: int, kind: LinkKind, what: str, *, is_new: bool = False, is_shared: bool = False
    ) -> int:
        """Bind a port; see `Loop.listen`."""
        try:
            socks = bind(address, port, is_new=is_new, is_shared=is_shared)
        except (OSError, OverflowError) as error:
            raise cannot_listen(f"{text_of((address, port))} ({what})", error) from error
        for sock in socks:
            sock.setblocking(False)
            self._listeners[sock.fileno()] = (sock, kind)
        return int(socks[0].getsockname()[1])

    def unlisten(self, port: int) -> None:
        """Release a bound port that does not accept yet."""
        for number, (sock, _) in list(self._listeners.items()):
            if sock.getsockname()[1] == port:
                del self._listeners[number]
                sock.close()

    def begin(self) -> None:
        """Begin to accept connections on all ports.

        Raises:
            ConfigError: another process listens on a port meanwhile.
        """
        for fd, (sock, _) in self._listeners.items():
            try:
                sock.listen(ACCEPT_BACKLOG)
            except OSError as error:
                raise cannot_listen(text_of(sock.getsockname()), error) from error
            if not self._is_accepting:
                self._epoll.register(fd, select.EPOLLIN)
        self._is_accepting = True

    def accept(self, fd: int) -> Iterator[Accepted]:
        """Yield the connections that wait at a port, at most `ACCEPTS_PER_TURN`."""
        listener, kind = self._listeners[fd]
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, address = listener.accept()
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._pause(fd, error)
                elif error.errno not in _GONE:
                    log.warning("accept: %s", os.strerror(error.errno or 0))
                return
            yield Accepted(sock, str(address[0]), text_of(address), kind)

    def _pause(self, fd: int, error: OSError) -> None:
        log.error("accept: %s; trying again in %d ms", os.strerror(error.errno or 0), ACCEPT_PAUSE_MS)
        self._epoll.unregister(fd)
        self._paused[fd] = read_clock().mono_ms + ACCEPT_PAUSE_MS

    def resume(self) -> None:
        """Accept again on ports whose pause is over; to be called in every turn."""
        if not self._paused:
            return
        now_ms = read_clock().mono_ms
        for fd in [fd for fd, until_ms in self._paused.items() if until_ms <= now_ms]:
            del self._paused[fd]
            self._epoll.register(fd, select.EPOLLIN)

    def close(self) -> None:
        """Close all ports."""
        for sock, _ in self._listeners.values():
            sock.close()
        self._listeners.clear()
        self._paused.clear()
