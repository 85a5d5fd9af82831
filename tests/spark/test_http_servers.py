"""The client of query planners, at addresses that are not those of a name server."""

import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tandemq.client.admin.cluster import topic_names
from tandemq.errors import NetworkError, WrongProtocol
from tandemq.spark.runtime.client_pool import ClusterClient, check_not_http

TIMEOUT_MS = 300_000
"""Longer than the test may take: the error comes at once, not at the timeout."""
SAYS = "127.0.0.1:{}: the server at this port answers HTTP, not the remoting protocol"


@pytest.fixture
def client() -> Iterator[Callable[[int], ClusterClient]]:
    made: list[ClusterClient] = []

    def make(port: int) -> ClusterClient:
        made.append(ClusterClient(f"127.0.0.1:{port}"))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_name_server_that_answers_http_is_named_at_once(client: Callable[[int], ClusterClient]) -> None:
    def answer(server: socket.socket) -> None:
        link, _ = server.accept()
        with link:
            link.recv(100)
            link.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=(server,))
        thread.start()
        port = server.getsockname()[1]
        with pytest.raises(WrongProtocol) as found:
            client(port).run(topic_names, TIMEOUT_MS, connect_ms=TIMEOUT_MS)
        thread.join()
    hint = f"(is 127.0.0.1:{port} the address of a name server?)"
    assert str(found.value) == f"no name server responds: {SAYS.format(port)} {hint}"


def test_http_server_that_waits_for_the_end_of_a_line_is_named_after_the_timeout_of_connections(
    client: Callable[[int], ClusterClient],
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with pytest.raises(WrongProtocol, match=SAYS.format(server.server_port)):
                client(server.server_port).run(topic_names, TIMEOUT_MS, connect_ms=10)
        finally:
            server.shutdown()
            thread.join()


def test_silent_server_is_no_http_server(
    client: Callable[[int], ClusterClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandemq.spark.runtime.client_pool.PROBE_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_not_http(f"127.0.0.1:{port}")
        with pytest.raises(NetworkError, match="no answer within 100 ms"):
            client(port).run(topic_names, 100, connect_ms=10)
