"""The event loop's ports, and what a turn receives."""

import contextlib
import socket
from collections.abc import Sequence

import pytest

from tandemq.boundary import Event, LinkKind, Now, Turn
from tandemq.errors import ConfigError
from tandemq.real.loop import POLLED_MAX, SHARE_BYTES_MIN, TURN_BYTES, Loop

PIECE = bytes(64 * 1024)


class _Counter:
    """A node that counts the bytes of each turn, and stops the loop after `total_bytes`."""

    def __init__(self, loop: Loop, total_bytes: int) -> None:
        self.loop = loop
        self.total_bytes = total_bytes
        self.turns: list[int] = []

    def turn(self, received: Sequence[tuple[int, bytes]], _events: Sequence[Event], _now: Now) -> Turn:
        self.turns.append(sum(len(data) for _, data in received))
        if sum(self.turns) >= self.total_bytes:
            self.loop.stop()
        return Turn()

    def deadline_ms(self) -> int | None:
        return None


def _fill(sock: socket.socket) -> int:
    """Send until the kernel accepts no more; return the number of bytes."""
    sock.setblocking(False)
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while sent < 4 << 20:
            sent += sock.send(PIECE)
    return sent


@pytest.mark.parametrize("connections", [1, 10, 100])
def test_turn_receives_a_bounded_number_of_bytes_from_all_connections_together(connections: int) -> None:
    loop = Loop()
    port = loop.listen("127.0.0.1", 0, LinkKind.REMOTING)
    loop.accept()
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(connections)]
        node = _Counter(loop, sum([_fill(sock) for sock in socks]))
        loop.run(node)
    loop.close()
    assert sum(node.turns) == node.total_bytes
    assert max(node.turns) <= max(TURN_BYTES, connections * SHARE_BYTES_MIN)


def test_connections_that_are_polled_at_once_have_16_mib_at_most() -> None:
    assert POLLED_MAX * SHARE_BYTES_MIN == 16 << 20


def test_port_that_must_be_new_is_not_taken_from_a_process_that_has_reserved_it() -> None:
    loop = Loop()
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port = reserved.getsockname()[1]
        with pytest.raises(ConfigError, match="Address already in use"):
            loop.listen("127.0.0.1", port, LinkKind.FAST, is_new=True)
        assert loop.listen("127.0.0.1", port, LinkKind.REMOTING) == port
    loop.close()
