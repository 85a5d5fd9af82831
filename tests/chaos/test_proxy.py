"""What the proxies of `make chaos` do to connections: both directions, or one of them."""

import gc
import socket
import threading
import time
import warnings
from collections.abc import Iterator

import pytest

from chaos.proxy import BEHAVIOURS, SLOW_BYTES, Behaviour, Proxy, ProxyLoop

pytestmark = pytest.mark.system
_SILENCE_S = 0.3
_PATIENCE_S = 60.0


class Pair:
    """A connection through a proxy: its client's end, and the end at the target."""

    def __init__(self, where: ProxyLoop) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.proxy = Proxy(where, ("127.0.0.1", 0), listener.getsockname())
        host, _, port = self.proxy.address.rpartition(":")
        self.near = socket.create_connection((host, int(port)), _PATIENCE_S)
        self.far, _ = listener.accept()
        listener.close()
        self._where = where
        assert passes(self.near, self.far), "the proxy has both ends"

    def behave(self, behaviour: Behaviour) -> None:
        """Change the behaviour; return when it has changed."""
        self.proxy.behave(behaviour)
        done = threading.Event()
        self._where.loop.call_soon_threadsafe(done.set)
        assert done.wait(_PATIENCE_S)

    def close(self) -> None:
        self.near.close()
        self.far.close()


def passes(source: socket.socket, target: socket.socket, *, within_s: float = _PATIENCE_S) -> bool:
    """Return whether a byte arrives; False if the connection ends instead."""
    source.sendall(b"x")
    target.settimeout(within_s)
    try:
        return target.recv(1) == b"x"
    except (TimeoutError, ConnectionError):
        return False


@pytest.fixture
def where() -> Iterator[ProxyLoop]:
    loop = ProxyLoop()
    yield loop
    loop.stop()


@pytest.fixture
def pair(where: ProxyLoop) -> Iterator[Pair]:
    found = Pair(where)
    yield found
    found.close()


@pytest.mark.parametrize(
    ("behaviour", "goes_in", "goes_out"),
    [
        ("pass", True, True),
        ("slow", True, True),
        ("jitter", True, True),
        ("stall", False, False),
        ("stall-in", False, True),
        ("stall-out", True, False),
        ("hole", False, False),
        ("hole-in", False, True),
        ("hole-out", True, False),
    ],
)
def test_bytes_pass_in_the_directions_that_are_not_disturbed(
    pair: Pair, behaviour: Behaviour, *, goes_in: bool, goes_out: bool
) -> None:
    pair.behave(behaviour)
    for source, target, goes in ((pair.near, pair.far, goes_in), (pair.far, pair.near, goes_out)):
        assert passes(source, target, within_s=_PATIENCE_S if goes else _SILENCE_S) is goes


@pytest.mark.parametrize("behaviour", ["stall", "stall-in", "stall-out"])
def test_what_waited_arrives_after_a_stall(pair: Pair, behaviour: Behaviour) -> None:
    pair.behave(behaviour)
    pair.near.sendall(b"in")
    pair.far.sendall(b"out")
    pair.behave("pass")
    pair.far.settimeout(_PATIENCE_S)
    pair.near.settimeout(_PATIENCE_S)
    assert (pair.far.recv(2), pair.near.recv(3)) == (b"in", b"out")


@pytest.mark.parametrize("behaviour", ["hole", "hole-in", "hole-out", "cut"])
def test_connection_that_lacks_bytes_ends(pair: Pair, behaviour: Behaviour) -> None:
    pair.behave(behaviour)
    pair.behave("pass")
    assert not passes(pair.near, pair.far)


def test_slow_connection_takes_its_time_and_keeps_the_order(pair: Pair) -> None:
    pair.behave("slow")
    sent = bytes(range(256)) * 100
    begun = time.monotonic()
    pair.near.sendall(sent)
    pair.far.settimeout(_PATIENCE_S)
    found = b""
    while len(found) < len(sent):
        found += pair.far.recv(len(sent))
    assert found == sent
    assert time.monotonic() - begun > len(sent) / SLOW_BYTES * 0.9


def test_jitter_keeps_the_order(pair: Pair) -> None:
    pair.behave("jitter")
    sent = [bytes([number]) * 1_000 for number in range(20)]
    for piece in sent:
        pair.near.sendall(piece)
    pair.far.settimeout(_PATIENCE_S)
    found = b""
    while len(found) < 20_000:
        found += pair.far.recv(20_000)
    assert found == b"".join(sent)


def test_every_behaviour_is_tested_here() -> None:
    assert len(BEHAVIOURS) == 10


def test_stopped_loop_leaves_no_connection_open_whose_bytes_nobody_takes() -> None:
    where = ProxyLoop()
    pair = Pair(where)
    pair.near.settimeout(_SILENCE_S)
    with pytest.raises(TimeoutError):  # all buffers up to the far end are full
        while True:
            pair.near.sendall(b"x" * (1 << 20))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        where.stop()
        del where.servers[:]
        gc.collect()
    pair.close()
    assert [str(one.message) for one in found] == []
