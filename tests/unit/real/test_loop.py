"""The event loop's ports, and what a turn receives."""

import contextlib
import socket
import threading
from collections.abc import Sequence
from random import Random
from threading import Thread

import pytest

from tandemq.boundary import READS_AT_ONCE, Closed, Event, Job, JobDone, LinkKind, Now, Turn
from tandemq.errors import ConfigError
from tandemq.real import loop as loop_module
from tandemq.real.loop import POLLED_MAX, SHARE_BYTES_MIN, TURN_BYTES, Loop

PIECE = bytes(64 * 1024)


class _Counter:
    """A node that counts the bytes of each turn, and stops the loop after `total_bytes`."""

    def __init__(self, loop: Loop, total_bytes: int) -> None:
        self.loop = loop
        self.total_bytes = total_bytes
        self.turns: list[int] = []
        self.received: list[bytes] = []

    def turn(self, received: Sequence[tuple[int, bytes]], _events: Sequence[Event], _now: Now) -> Turn:
        self.turns.append(sum(len(data) for _, data in received))
        self.received += [data for _, data in received]
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


def test_bytes_of_large_and_small_reads_are_those_that_were_sent() -> None:
    loop = Loop()
    port = loop.listen("127.0.0.1", 0, LinkKind.REMOTING)
    loop.accept()
    data = Random(1).randbytes(3 << 20)
    with socket.create_connection(("127.0.0.1", port)) as sock:
        node = _Counter(loop, len(data) + 5)
        sender = Thread(target=sock.sendall, args=(data + b"small",))
        sender.start()
        loop.run(node)
        sender.join()
    loop.close()
    assert b"".join(node.received) == data + b"small"
    assert max(map(len, node.received)) >= loop_module.BULK_BYTES


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


class _Reading:
    """A node whose reads hang, and whose other jobs are done."""

    def __init__(self, loop: Loop, device: threading.Event) -> None:
        self.loop = loop
        self.done: list[str] = []
        self.jobs = [Job(f"read {number}", device.wait, is_read=True) for number in range(2 * READS_AT_ONCE)]
        self.jobs += [Job(f"sync {number}", lambda: None) for number in range(3)]

    def turn(self, _received: Sequence[tuple[int, bytes]], events: Sequence[Event], _now: Now) -> Turn:
        self.done += [event.job.name for event in events if isinstance(event, JobDone)]
        if len(self.done) == 3:
            self.loop.stop()
        jobs, self.jobs = self.jobs, []
        return Turn(jobs=jobs)

    def deadline_ms(self) -> int | None:
        return None


def test_reads_that_hang_with_the_device_delay_no_other_job_and_no_stop() -> None:
    loop, device = Loop(), threading.Event()
    node = _Reading(loop, device)
    loop.run(node)
    assert sorted(node.done) == ["sync 0", "sync 1", "sync 2"]
    loop.close()
    hanging = [thread for thread in threading.enumerate() if thread.name.startswith("reader-")]
    assert len(hanging) == READS_AT_ONCE
    device.set()
    for thread in hanging:
        thread.join(60)
        assert not thread.is_alive()


class _Leaving:
    """A node that serves one byte of each connection and turn, and leaves the rest."""

    def __init__(self, loop: Loop, expected: int, answer: bytes = b"") -> None:
        self.loop = loop
        self.expected = expected
        self.answer = answer
        self.served: dict[int, bytearray] = {}
        self.left_bytes: list[int] = []
        self.closed_after: dict[int, int] = {}

    def turn(self, received: Sequence[tuple[int, bytes]], events: Sequence[Event], _now: Now) -> Turn:
        turn = Turn()
        served: set[int] = set()
        for link, data in received:
            if link in served:
                turn.unread.append((link, data))
                continue
            served.add(link)
            self.served.setdefault(link, bytearray()).extend(data[:1])
            if self.answer:
                turn.send(link, self.answer)
            if data[1:]:
                turn.unread.append((link, data[1:]))
        for event in events:
            if isinstance(event, Closed):
                self.closed_after[event.link] = len(self.served[event.link])
        self.left_bytes.append(sum(len(data) for _, data in turn.unread))
        if len(self.closed_after) == self.expected:
            self.loop.stop()
        return turn

    def deadline_ms(self) -> int | None:
        return None


def test_bytes_that_a_node_left_come_again_before_newer_ones_and_before_the_end() -> None:
    loop = Loop()
    port = loop.listen("127.0.0.1", 0, LinkKind.REMOTING)
    loop.accept()
    for text in (b"abcdefgh" * 20, b"xyz"):
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(text)
    node = _Leaving(loop, expected=2)
    loop.run(node)
    loop.close()
    assert sorted(map(bytes, node.served.values())) == [b"abcdefgh" * 20, b"xyz"]
    assert sorted(node.closed_after.values()) == [3, 160]


@pytest.mark.parametrize("answer_bytes", [10, 2 << 20])  # The latter is queued: the kernel does not accept all of it.
def test_requests_of_a_client_that_closed_are_served_although_responses_to_it_fail(
    answer_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "SHARE_BYTES_MAX", 100)  # Three receives.
    loop = Loop()
    port = loop.listen("127.0.0.1", 0, LinkKind.REMOTING)
    loop.accept()
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(b"abcdefghij" * 25)
    node = _Leaving(loop, expected=1, answer=bytes(answer_bytes))
    loop.run(node)
    loop.close()
    assert list(map(bytes, node.served.values())) == [b"abcdefghij" * 25]
    assert list(node.closed_after.values()) == [250]
    assert loop.state()[:2] == (0, 0)


def test_connection_with_bytes_that_a_node_left_is_not_read() -> None:
    loop = Loop()
    port = loop.listen("127.0.0.1", 0, LinkKind.REMOTING)
    loop.accept()
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sent = _fill(sock)
        node = _Leaving(loop, expected=1)

        def turn(received: Sequence[tuple[int, bytes]], events: Sequence[Event], now: Now) -> Turn:
            if len(node.left_bytes) == 50:
                loop.stop()
            return _Leaving.turn(node, received, events, now)

        node.turn = turn  # type: ignore[method-assign, assignment]
        loop.run(node)
    loop.close()
    assert max(node.left_bytes) < TURN_BYTES < 50 * SHARE_BYTES_MIN + sent
