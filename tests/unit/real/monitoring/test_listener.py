"""The HTTP server of metrics: its answers, and clients that are slow, large or many."""

import errno
import gzip
import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from time import monotonic_ns
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tandemq.boundary import LinkKind
from tandemq.errors import ConfigError
from tandemq.real.loop import Loop
from tandemq.real.monitoring import listener
from tandemq.real.monitoring.listener import _PATHS, CONNECTIONS_MAX, HEAD_BYTES_MAX, MonitoringListener
from tandemq.real.monitoring.metered_node import MeteredNode
from tandemq.real.network.listening import bind
from tests.spec import spec
from tests.unit.real.monitoring.test_metered_node import Node

WAIT_S = 60.0
GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


class Server:
    """A loop with a node on one thread, and the listener on another."""

    def __init__(self, series: int, admits: Callable[[str], bool] | None = None) -> None:
        self.loop = Loop()
        self.loop.listen("127.0.0.1", 0, LinkKind.REMOTING)
        self.metered = MeteredNode(Node(series), self.loop.wake, 50_000)
        self.listener = MonitoringListener("127.0.0.1", 0, self.metered, admits)
        self.listener.start()
        self._thread = threading.Thread(target=self.loop.run, args=(self.metered,), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def get(self, path: str, **headers: str) -> tuple[int, bytes, str]:
        """Return status, body and content type."""
        with self.connect() as sock:
            head = "".join(f"{name.replace('_', '-')}: {text}\r\n" for name, text in headers.items())
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode())
            return answer_of(sock)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.listener.port), timeout=WAIT_S)

    def close(self) -> None:
        self.loop.stop()
        if self._thread.ident is not None:
            self._thread.join(timeout=WAIT_S)
        self.listener.close()
        self.loop.close()


def answer_of(sock: socket.socket) -> tuple[int, bytes, str]:
    """Read to the end; return status, body and content type."""
    data = b"".join(iter(lambda: sock.recv(1 << 16), b""))
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    kinds = [line.partition(": ")[2] for line in lines if line.startswith("Content-Type")]
    return int(lines[0].split()[1]), body, kinds[0]


def is_closed(sock: socket.socket) -> bool:
    """Wait for the end of a connection."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def build(series: int = 10, *, runs: bool = True, admits: Callable[[str], bool] | None = None) -> Server:
        servers.append(Server(series, admits))
        if runs:
            servers[-1].start()
        return servers[-1]

    yield build
    for server in servers:
        server.close()


def test_metrics_are_served_in_both_formats_and_compressed(start: Callable[..., Server]) -> None:
    server = start(10_000)
    status, body, kind = server.get("/metrics")
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert body.count(b"tandemq_size{") == 10_000
    status, body, kind = server.get("/metrics", Accept="application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1")
    assert kind.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
    _, packed, _ = server.get("/metrics", Accept_Encoding="gzip")
    assert gzip.decompress(packed).count(b"tandemq_size{") == 10_000
    with urlopen(Request(f"http://127.0.0.1:{server.listener.port}/metrics", method="HEAD"), timeout=WAIT_S) as head:
        assert head.read() == b""


def test_every_path_but_health_needs_credentials_if_there_are_any(start: Callable[..., Server]) -> None:
    server = start(admits=lambda given: given == "Bearer good")
    shown = {path: server.get(path) for path in _PATHS}
    assert {path: status for path, (status, _, _) in shown.items()} == {
        "/metrics": 401,
        "/healthz": 200,
        "/-/healthy": 200,
        "/readyz": 503,
    }
    assert b"tandemq_size" not in shown["/metrics"][1]
    assert json.loads(shown["/readyz"][1]) == {"ready": False}
    assert server.get("/metrics", Authorization="Bearer bad")[0] == 401
    assert server.get("/metrics", Authorization="Bearer good")[0] == 200
    assert json.loads(server.get("/readyz", Authorization="Bearer good")[1])["reasons"]


@spec("O05")
def test_health_is_answered_while_the_loop_turns_and_readiness_with_reasons(start: Callable[..., Server]) -> None:
    server = start()
    status, body, _ = server.get("/healthz")
    assert status == 200
    assert json.loads(body)["status"] == "alive"
    status, body, kind = server.get("/readyz")
    assert (status, kind) == (503, "application/json")
    assert json.loads(body) == {"ready": False, "reasons": ["it is a test"]}


@spec("O05")
def test_loop_that_does_not_turn_is_neither_alive_nor_ready(
    start: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "ALIVE_SECONDS", 0.0)
    monkeypatch.setattr(listener, "LOOP_SECONDS", 0.05)
    monkeypatch.setattr(listener, "TICK_SECONDS", 0.02)
    server = start(runs=False)
    assert server.get("/healthz")[0] == 503
    assert server.get("/readyz")[0] == 503
    assert server.get("/metrics")[0] == 503


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /other HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", 405),
        (b"GET /metrics HTTP/9.x\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"\x00\x01\x02\x03\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", 431),
        (b"GET /metrics HTTP/1.1\r\nA: " + b"b" * HEAD_BYTES_MAX, 431),
    ],
)
def test_bad_requests_are_refused(start: Callable[..., Server], request_bytes: bytes, status: int) -> None:
    server = start()
    with server.connect() as sock:
        sock.sendall(request_bytes)
        assert answer_of(sock)[0] == status
    assert server.get("/healthz")[0] == 200


@spec("O04")
def test_clients_that_send_no_request_make_room_for_one_that_does(start: Callable[..., Server]) -> None:
    server = start()
    idle = [server.connect() for _ in range(CONNECTIONS_MAX + 5)]
    for sock in idle:
        sock.sendall(b"GET /metrics HTTP/1.1\r\nX")
    assert server.get("/metrics")[0] == 200
    assert is_closed(idle[0])
    for sock in idle:
        sock.close()


@spec("O04")
def test_slow_clients_are_dropped(start: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(listener, "HEAD_SECONDS", 0.1)
    monkeypatch.setattr(listener, "SECONDS", 0.3)
    server = start(50_000)
    with server.connect() as slow, socket.socket() as deaf:
        slow.sendall(b"GET /metrics HTTP/1.1\r\n")
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        deaf.connect(("127.0.0.1", server.listener.port))
        deaf.sendall(GET)  # it does not read the megabytes of the answer until the server has given up
        assert is_closed(slow)
        done = threading.Event()
        threading.Timer(0.6, done.set).start()
        assert done.wait(WAIT_S)
        received = b""
        try:
            received = b"".join(iter(lambda: deaf.recv(1 << 16), b""))
        except ConnectionResetError:
            pass
        assert received.count(b"\ntandemq_size{") < 50_000


@spec("O04")
def test_two_ports_ready_at_once_are_both_served_when_the_rate_of_accepts_is_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "ACCEPTS_PER_SECOND", 1)
    monkeypatch.setattr(listener, "bind", lambda address, port: bind(address, port) + bind(address, port))
    monitoring = MonitoringListener("127.0.0.1", 0, MeteredNode(Node(1), lambda: None, 1))
    with closing(monitoring):
        ports = [sock.getsockname()[1] for sock in monitoring._sockets]
        clients = [socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) for port in ports]
        for client in clients:
            client.sendall(b"GET /other HTTP/1.1\r\n\r\n")
        monitoring.start()
        for client in clients:
            with client:
                assert answer_of(client)[0] == 404


def test_port_pauses_while_no_descriptor_is_left(start: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    seconds: list[int] = []
    accept = socket.socket.accept

    def exhausted(sock: socket.socket) -> Any:
        seconds.append(monotonic_ns() // 1_000_000_000)
        if len(seconds) <= 2:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(sock)

    monkeypatch.setattr(socket.socket, "accept", exhausted)
    assert server.get("/other")[0] == 404
    assert len(seconds) == len(set(seconds)) == 3


def test_error_of_ours_ends_one_connection_only(
    start: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = start()

    def fail(*_: object, **__: object) -> str:
        raise ValueError("a mistake")

    monkeypatch.setattr(listener, "page", fail)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):  # the answer of the event loop, then that of a moment ago
            with server.connect() as sock:
                sock.sendall(GET)
                assert is_closed(sock)
    assert [record.getMessage() for record in caplog.records] == [
        "metrics: connection closed times=1, an error of ours"
    ]
    monkeypatch.undo()
    assert server.get("/metrics")[0] == 200


@spec("O04")
def test_one_collection_answers_all_requests_of_a_moment(start: Callable[..., Server]) -> None:
    server = start(1_000)
    pages = {server.get("/metrics")[1] for _ in range(5)}
    assert len(pages) == 1
    assert b"tandemq_metrics_collect_seconds_count 0\n" in pages.pop()


def test_port_in_use_is_an_error_that_names_the_setting(start: Callable[..., Server]) -> None:
    server = start()
    with pytest.raises(ConfigError, match="metricsPort"):
        MonitoringListener("127.0.0.1", server.listener.port, server.metered)
    with closing(server.connect()):
        pass
