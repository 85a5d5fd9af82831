"""The gRPC server on real sockets, with grpcio's client: sizes, streams, many calls, cancelled ones, its end."""

import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest

from tandemq.boundary import Closed, Event, LinkKind, Now, Opened, Turn
from tandemq.grpc.server import Call, GrpcServer, GrpcStatus, Method
from tandemq.real.loop import Loop
from tandemq.real.network.tls import Tls, TlsFiles, server_context
from tests.blackbox.certificates import Authority
from tests.blackbox.programs import wait_until

MESSAGE_BYTES_MAX = 4 << 20
SLICE_BYTES = 16 * 1024
pytestmark = pytest.mark.timeout(120)
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Node:
    """A node with nothing but a gRPC server."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.waiting: dict[Call, None] = {}
        self.cancelled = 0
        self.ended: list[str] = []
        """Why the server has closed connections."""
        self.must_leave = False
        methods = {
            "/s/Echo": Method(lambda call, message, _now: call.respond(message)),
            "/s/Later": Method(self._later),
            "/s/Stream": Method(lambda call, message, _now: call.send(message), is_streamed=True, opened=_opened),
            "/s/Many": Method(_many),
            "/s/Fail": Method(lambda call, message, _now: call.end(GrpcStatus.NOT_FOUND, message.decode())),
        }
        self.server = GrpcServer(methods, MESSAGE_BYTES_MAX, 64 << 20)

    def _later(self, call: Call, _message: bytes, _now: Now) -> None:
        self.waiting[call] = None
        call.on_cancel = lambda _now: self._gone(call)

    def _gone(self, call: Call) -> None:
        del self.waiting[call]
        self.cancelled += 1

    def turn(self, received: Sequence[tuple[int, bytes]], events: Sequence[Event], now: Now) -> Turn:
        for event in events:
            if isinstance(event, Opened):
                self.server.opened(event.link, event.peer, now)
        for link, data in received:
            for at in range(0, len(data), SLICE_BYTES):
                self.server.receive(link, data[at : at + SLICE_BYTES], now)
        for event in events:
            if isinstance(event, Closed):
                self.server.closed(event.link, now)
        if self.must_leave:
            self.must_leave = False
            self.server.leave()
            waiting, self.waiting = self.waiting, {}
            for call in waiting:
                call.respond(b"leaving")
        turn = Turn()
        sends, ended = self.server.take_output(now)
        for link, buffers in sends:
            turn.send(link, *buffers)
        turn.closes += ended
        self.ended += [reason for _, reason in ended]
        return turn

    def deadline_ms(self) -> int | None:
        return None

    def leave(self) -> None:
        self.must_leave = True
        self._loop.wake()


def _opened(call: Call, _now: Now) -> None:
    call.on_end = lambda _now: call.end()


def _many(call: Call, message: bytes, _now: Now) -> None:
    count, size = map(int, message.split())
    call.send(*[bytes(size)] * count)
    call.end()


@pytest.fixture
def served() -> Iterator[tuple[Node, grpc.Channel]]:
    with _serving() as (node, port), grpc.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
        yield node, channel


@contextmanager
def _serving(tls: Tls | None = None) -> Iterator[tuple[Node, int]]:
    loop = Loop()
    if tls is not None:
        loop.protect(LinkKind.GRPC, tls)
    node = Node(loop)
    port = loop.listen("127.0.0.1", 0, LinkKind.GRPC)
    loop.accept()
    thread = threading.Thread(target=loop.run, args=(node,))
    thread.start()
    try:
        yield node, port
    finally:
        loop.stop()
        thread.join()
        loop.close()


def _same(message: bytes) -> bytes:
    return message


def _unary(channel: grpc.Channel, name: str) -> "grpc.UnaryUnaryMultiCallable[bytes, bytes]":
    return channel.unary_unary(f"/s/{name}", _same, _same)


def _code_of(call: "grpc.Future[bytes]") -> grpc.StatusCode:
    error = call.exception()
    assert isinstance(error, grpc.RpcError)
    code = error.code()
    assert isinstance(code, grpc.StatusCode)
    return code


def test_messages_of_any_size_pass_and_larger_ones_are_refused(served: tuple[Node, grpc.Channel]) -> None:
    node, channel = served
    echo = _unary(channel, "Echo")
    for size in (0, 1, 300, 16_379, 16_384, 65_535, 65_536, 1 << 20, MESSAGE_BYTES_MAX):
        body = bytes(range(256)) * (size // 256) + bytes(size % 256)
        assert echo(body) == body
    assert _code_of(echo.future(bytes(MESSAGE_BYTES_MAX + 1))) is grpc.StatusCode.RESOURCE_EXHAUSTED
    text = b"compressible " * 10_000
    assert echo(text, compression=grpc.Compression.Gzip) == text
    assert _code_of(echo.future(text, compression=grpc.Compression.Deflate)) is grpc.StatusCode.UNIMPLEMENTED
    assert _code_of(_unary(channel, "None").future(b"")) is grpc.StatusCode.UNIMPLEMENTED
    failed = _unary(channel, "Fail").future("ä % \n 😀".encode()).exception()
    assert isinstance(failed, grpc.RpcError)
    assert (failed.code(), failed.details()) == (grpc.StatusCode.NOT_FOUND, "ä % \n 😀")
    assert echo(b"x", metadata=(("x-bin", bytes(range(256))), ("large", "y" * 6_000))) == b"x"
    assert node.ended == []


def test_streams_and_thousands_of_calls_on_one_connection(served: tuple[Node, grpc.Channel]) -> None:
    node, channel = served
    bodies = [bytes(size) for size in range(0, 40_000, 100)]
    assert list(channel.stream_stream("/s/Stream", _same, _same)(iter(bodies))) == bodies
    assert [len(body) for body in channel.unary_stream("/s/Many", _same, _same)(b"30 1000000")] == [1_000_000] * 30
    echo = _unary(channel, "Echo")
    calls = [echo.future(b"%d" % number * 100) for number in range(3_000)]
    assert [call.result() for call in calls] == [b"%d" % number * 100 for number in range(3_000)]
    assert node.ended == [] and node.server.connection_count == 1


def test_calls_that_are_given_up_are_reported_and_others_go_on(served: tuple[Node, grpc.Channel]) -> None:
    node, channel = served
    later, echo = _unary(channel, "Later"), _unary(channel, "Echo")
    polls = [later.future(b"") for _ in range(900)]
    wait_until(lambda: len(node.waiting) == 900, "all polls wait")
    for poll in polls:
        poll.cancel()
    wait_until(lambda: node.cancelled == 900, "all are reported")
    timed = [later.future(b"", timeout=0.2) for _ in range(500)]
    assert {_code_of(call) for call in timed} == {grpc.StatusCode.DEADLINE_EXCEEDED}
    assert echo(b"still", wait_for_ready=True) == b"still"
    wait_until(lambda: not node.waiting and not node.server.open_calls, "no call is left")
    assert node.ended == [] and node.server.connection_count == 1


def test_a_server_that_leaves_finishes_the_calls_that_it_has(served: tuple[Node, grpc.Channel]) -> None:
    node, channel = served
    polls = [_unary(channel, "Later").future(b"") for _ in range(500)]
    requests: SimpleQueue[bytes | None] = SimpleQueue()
    stream = channel.stream_stream("/s/Stream", _same, _same)(iter(requests.get, None))
    requests.put(b"before")
    assert next(stream) == b"before"
    wait_until(lambda: len(node.waiting) == 500, "all polls wait")
    node.leave()
    assert {poll.result() for poll in polls} == {b"leaving"}
    requests.put(bytes(1_000_000))
    assert next(stream) == bytes(1_000_000)
    requests.put(None)
    assert list(stream) == []
    wait_until(lambda: not node.server.connection_count, "the client has closed the connection")
    assert node.ended == []


def test_a_client_that_reads_slowly_gets_all(served: tuple[Node, grpc.Channel]) -> None:
    node, channel = served
    sizes = []
    for body in channel.unary_stream("/s/Many", _same, _same)(b"40 1000000"):
        sizes.append(len(body))
        assert _unary(channel, "Echo")(b"between") == b"between"
    assert sizes == [1_000_000] * 40 and node.ended == []


def test_clients_with_and_without_tls_share_a_port(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = TlsFiles(*authority.issue("proxy"))
    tls = Tls(lambda: server_context(files, ssl.CERT_NONE, ("h2",)), None, files, is_permissive=True)
    credentials = grpc.ssl_channel_credentials(authority.ca_file.read_bytes())
    with _serving(tls) as (_, port):
        address = f"127.0.0.1:{port}"
        with grpc.secure_channel(address, credentials) as safe, grpc.insecure_channel(address) as plain:
            for channel in (safe, plain):
                call: Any = channel.unary_unary("/s/Echo")
                assert call(b"hello", timeout=60) == b"hello"
