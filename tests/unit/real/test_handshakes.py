"""TLS handshakes have a share of a turn, and those that wait delay no other connection."""

import contextlib
import socket
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tandemq.boundary import Event, LinkKind, Now, Opened, Turn
from tandemq.real import loop as loop_module
from tandemq.real.loop import Loop
from tandemq.real.network import handshakes
from tandemq.real.network.tls import Tls, TlsFiles, server_context
from tests.blackbox.certificates import Authority

POLLED = 4
HALF_OPEN = 40
Connected = Callable[[], socket.socket]


class _Recorder:
    """A node that records what it receives."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.versions: list[str] = []

    def turn(self, received: Sequence[tuple[int, bytes]], events: Sequence[Event], _now: Now) -> Turn:
        self.received += [data for _, data in received]
        self.versions += [event.tls for event in events if isinstance(event, Opened)]
        return Turn()

    def deadline_ms(self) -> int | None:
        return 0


def _hello() -> bytes:
    """Return the first bytes of a client with TLS."""
    out = ssl.MemoryBIO()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


def _turns_until(loop: Loop, node: _Recorder, is_done: Callable[[], bool]) -> int:
    """Run turns until a condition holds; return their number."""
    for turns in range(1_000):
        if is_done():
            return turns
        loop._once(node)
    raise AssertionError("not so after 1,000 turns")


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
def test_half_open_handshakes_do_not_delay_a_connection(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "POLLED_MAX", POLLED)
    monkeypatch.setattr(handshakes, "TURN_NS", 1)  # A single handshake per turn.
    monkeypatch.setattr(handshakes, "HANDSHAKE_MS_MAX", 600_000)
    hello = _hello()
    files = TlsFiles(*Authority(tmp_path).issue("broker"))
    loop = Loop()
    loop.protect(
        LinkKind.REMOTING,
        Tls(lambda: server_context(files, ssl.CERT_NONE), None, files, is_permissive=mode == "permissive"),
    )
    port = loop.listen("127.0.0.1", 0, LinkKind.REMOTING)
    other_port = loop.listen("127.0.0.1", 0, LinkKind.FAST)
    loop.accept()
    node = _Recorder()
    with contextlib.ExitStack() as stack:
        stack.callback(loop.close)
        other = stack.enter_context(socket.create_connection(("127.0.0.1", other_port)))
        half_open = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(HALF_OPEN)]
        _turns_until(loop, node, lambda: len(loop._by_number) == HALF_OPEN + 1)
        for sock in half_open:
            sock.sendall(hello)
        for _ in range(HALF_OPEN // POLLED + 2):  # Until each was reported once.
            loop._once(node)
        for number in range(HALF_OPEN // POLLED // 2):
            other.sendall(b"%d" % number)
            turns = _turns_until(loop, node, lambda number=number: b"%d" % number in node.received)  # type: ignore[misc]
            assert turns <= 2
        assert loop._handshakes.has_waiting
        _turns_until(loop, node, lambda: not loop._handshakes.has_waiting)
        for sock in half_open:
            sock.settimeout(10)
            assert sock.recv(1), "the server has answered"


def test_connection_that_is_reset_while_its_handshake_waits_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "TURN_NS", 0)  # No handshake at all.
    monkeypatch.setattr(handshakes, "HANDSHAKE_MS_MAX", 600_000)
    files = TlsFiles(*Authority(tmp_path).issue("broker"))
    loop = Loop()
    loop.protect(LinkKind.REMOTING, Tls(lambda: server_context(files, ssl.CERT_NONE), None, files))
    port = loop.listen("127.0.0.1", 0, LinkKind.REMOTING)
    loop.accept()
    node = _Recorder()
    with contextlib.closing(loop):
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(_hello())
            _turns_until(loop, node, lambda: loop._handshakes.has_waiting)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        _turns_until(loop, node, lambda: not loop._by_number)
        assert not loop._handshakes.has_waiting
