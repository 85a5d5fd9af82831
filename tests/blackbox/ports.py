"""Ports that stay ours while nobody listens there.

A broker that is killed wants its ports again when it is started anew. Meanwhile the system may give them to anybody's
outgoing connection, unless a socket is bound to them. It is bound exclusively, and allows sharing only afterwards: who
wants the port, too, is refused, but one who knows it may listen there (Linux).
"""

import contextlib
import socket

TRIES = 100


class Reserved:
    """A free port, and those at some distances from it, until `close`. Connections to them are refused."""

    def __init__(self, *distances: int) -> None:
        """Take them all or try others. Raises OSError if there are none."""
        self._held: list[socket.socket] = []
        for _ in range(TRIES):
            with contextlib.suppress(OSError):
                self.port = self._hold(0)
                for distance in distances:
                    self._hold(self.port + distance)
                return
            self.close()
        raise OSError("no free ports")

    def _hold(self, port: int) -> int:
        sock = socket.socket()
        self._held.append(sock)
        sock.bind(("127.0.0.1", port))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return int(sock.getsockname()[1])

    def close(self) -> None:
        """Anybody may have them."""
        while self._held:
            self._held.pop().close()
