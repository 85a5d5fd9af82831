"""An OpenTelemetry collector for tests: decodes pushes with the official messages; its responses are configurable."""

import gzip
import ssl
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

from tests.unit.telemetry.otlp import decoded

WAIT_S = 20.0


class Push(NamedTuple):
    """A request that arrived."""

    path: str
    headers: Mapping[str, str]
    request: Any
    at_s: float


class Response(NamedTuple):
    """What the collector answers; `silent`: nothing, until the connection is closed."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    is_silent: bool = False


class _Handler(BaseHTTPRequestHandler):
    server: "_Server"

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.headers["Content-Encoding"] == "gzip"
        assert self.headers["Content-Type"] == "application/x-protobuf"
        response = self.server.collector.take(
            Push(self.path, dict(self.headers), decoded(gzip.decompress(data)), time.monotonic())
        )
        if response.is_silent:
            self.rfile.read(1)
            return
        self.send_response(response.status)
        for name, value in response.headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(response.body)))
        self.end_headers()
        self.wfile.write(response.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # overridden
        """Log nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    collector: "Collector"


class Collector:
    """The collector; `with Collector() as collector`."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.collector = self
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._scheme = "http" if tls is None else "https"
        self._answers: list[Response] = []
        self._arrived = threading.Condition()
        self.pushes: list[Push] = []

    @property
    def url(self) -> str:
        """The URL to push to."""
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}"

    def answer(self, *responses: Response) -> None:
        """Answer the next requests so, in turn; those after them with 200."""
        self._answers += responses

    def take(self, push: Push) -> Response:
        """Keep a push; return the answer."""
        with self._arrived:
            self.pushes.append(push)
            self._arrived.notify_all()
            return self._answers.pop(0) if self._answers else Response()

    def wait(self, count: int) -> list[Push]:
        """Return the pushes once there are as many."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.pushes) >= count, WAIT_S), f"{len(self.pushes)} of {count}"
            return list(self.pushes)

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
