"""Free ports of this machine that stay reserved while no process listens on them.

A node that was killed is restarted on its ports, which others know. Meanwhile the system may give them to any outgoing
connection or to another process that asks for a free port, unless a socket is bound to them. `ReservedPorts` binds one
exclusively and only then allows sharing: a process that asks for a free port does not get it, and one that knows it
can listen there (Linux).
"""

import contextlib
import socket
from collections.abc import Mapping

from tandemq.real.network.listening import bind

Setting = str | int | float | bool
LOOPBACK = "127.0.0.1"
FAST_PORT_DISTANCE = 2
"""The fast port of a broker is its listen port minus this."""
_NEIGHBOURS = {"listenPort": (-FAST_PORT_DISTANCE,)}
_TRIES = 100


class ReservedPorts:
    """Ports of 127.0.0.1, reserved until `close`. Connections to them are refused unless a node listens there."""

    def __init__(self) -> None:
        """Begin without ports."""
        self._held: list[socket.socket] = []

    def reserve(self, *distances: int) -> int:
        """Reserve a free port and those at the given distances from it.

        Returns:
            The port.

        Raises:
            OSError: no port is free together with its neighbours.
        """
        for _ in range(_TRIES):
            with contextlib.ExitStack() as attempt, contextlib.suppress(OSError, OverflowError):
                first = attempt.enter_context(_bound(0))
                port = int(first.getsockname()[1])
                others = [attempt.enter_context(_bound(port + distance)) for distance in distances]
                attempt.pop_all()
                self._held += [first, *others]
                return port
        raise OSError("no free ports")

    def instead_of_any(self, settings: Mapping[str, Setting]) -> dict[str, Setting]:
        """Return settings of a node with a reserved port for each that is 0, which stands for any free one."""
        free = {key for key in ("listenPort", "haListenPort", "metricsPort") if str(settings.get(key)) == "0"}
        if "listenPort" not in free:
            free.discard("haListenPort")  # then 0 stands for the port above the listen port
        ports = {key: self.reserve(*_NEIGHBOURS.get(key, ())) for key in sorted(free)}
        return {**settings, **ports}

    def close(self) -> None:
        """Release all reserved ports."""
        while self._held:
            self._held.pop().close()


def _bound(port: int) -> socket.socket:
    (sock,) = bind(LOOPBACK, port, is_new=True)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return sock
