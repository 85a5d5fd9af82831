"""A small HTTP server on a thread of its own: /metrics, /healthz and /readyz of one process.

    GET /metrics     all metrics; text of Prometheus, or OpenMetrics if the request accepts it; gzip if it accepts that
    GET /healthz     200 while the event loop turns (also /-/healthy, as RocketMQ's)
    GET /readyz      200 if the node can serve clients, else 503 with the reasons; both as JSON

One request per connection. The thread waits for sockets and for answers of the event loop, which it asks and never
touches. Peers are not trusted: CONNECTIONS_MAX connections, of which the oldest incomplete one makes room for a new
one; HEAD_BYTES_MAX bytes of request, HEAD_SECONDS to send it, SECONDS for the whole, ACCEPTS_PER_SECOND. The event loop
is asked one question at a time, and its answer serves all requests of the next ANSWER_SECONDS. What it sends has names
of topics and groups: if there are credentials, /metrics needs one of them, and /readyz has reasons only with one.
"""

import contextlib
import json
import logging
import os
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from time import monotonic_ns
from typing import Protocol

from isal import igzip

from tandemq.real.monitoring.metered_node import Answer, Question, QuestionKind
from tandemq.real.network.addresses import text_of
from tandemq.real.network.listening import bind, cannot_listen
from tandemq.refusals import Refusals
from tandemq.telemetry.exposition import OPENMETRICS_TYPE, TEXT_TYPE, page

log = logging.getLogger(__name__)
CONNECTIONS_MAX = 16
HEAD_BYTES_MAX = 8 * 1024
HEAD_SECONDS = 5
SEND_BUFFER_BYTES = 256 * 1024
SECONDS = 15
LOOP_SECONDS = 9
"""How long the event loop may take to answer; Prometheus waits for 10 s."""
ANSWER_SECONDS = 0.5
ACCEPTS_PER_SECOND = 50
ALIVE_SECONDS = 5
"""The event loop turns at least each second."""
TICK_SECONDS, PAUSE_SECONDS = 1.0, 0.1
_SECOND_NS = 1_000_000_000
_GZIP_FROM_BYTES = 1_024
_JSON = "application/json"
_PATHS = ("/metrics", "/healthz", "/-/healthy", "/readyz")
_CHALLENGES = ("Bearer", 'Basic realm="tandemq"')
Admits = Callable[[str], bool]
"""Whether the header `Authorization` of a request, "" if it has none, has credentials."""


class Answering(Protocol):
    """What is monitored: it answers questions of the listener's thread."""

    @property
    def last_turn_ns(self) -> int:
        """When it was last seen alive, monotonic."""

    def ask(self, question: Question) -> None:
        """Ask; the reply may come from any thread."""


class _Request(BaseHTTPRequestHandler):
    """A request parsed by the standard library, and the response, as bytes."""

    server_version = "tandemq"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"

    def __init__(self, head: bytes) -> None:
        """Parse the head of a request; a malformed one is answered already."""
        self.rfile = BytesIO(head)
        self.wfile = self._out = BytesIO()
        self.requestline = self.command = self.path = ""
        self.request_version = "HTTP/1.1"
        self.client_address = ("", 0)
        self.raw_requestline = self.rfile.readline()
        self.is_valid = self.parse_request()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # overridden
        """Log nothing: clients choose the text."""

    def respond(
        self, status: HTTPStatus, body: bytes, kind: str, *, encoding: str = "", challenges: Sequence[str] = ()
    ) -> bytes:
        """Return the response."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.send_header("Cache-Control", "no-store")
        if encoding:
            self.send_header("Content-Encoding", encoding)
        for challenge in challenges:
            self.send_header("WWW-Authenticate", challenge)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        return self.response

    @property
    def response(self) -> bytes:
        """The bytes of the response so far."""
        return self._out.getvalue()


@dataclass(slots=True, eq=False)
class _Connection:
    """A connection: it reads a head, waits for the event loop, or sends."""

    sock: socket.socket
    opened_ns: int
    head: bytearray = field(default_factory=bytearray)
    request: _Request | None = None
    out: memoryview | None = None


@dataclass(slots=True, eq=False)
class _Asked:
    """A question to the event loop: the connections that wait for the answer, and the last answer."""

    waiting: list[_Connection] = field(default_factory=list)
    answer: Answer | None = None
    answered_ns: int = 0
    is_pending: bool = False


class MonitoringListener:
    """The server. `open` binds, `start` begins to answer, `close` ends it."""

    def __init__(self, address: str, port: int, node: Answering, admits: Admits | None = None) -> None:
        """Bind the port; 0 for any free one. `port` then has its number. `admits`: None if no credentials are needed.

        Raises:
            ConfigError: the address cannot be used.
        """
        self._node = node
        self._admits = admits
        self._sockets: list[socket.socket] = []
        try:
            self._sockets = bind(address, port)
            for sock in self._sockets:
                sock.setblocking(False)
                sock.listen(CONNECTIONS_MAX)
        except (OSError, OverflowError) as error:
            for sock in self._sockets:
                sock.close()
            raise cannot_listen(f"{text_of((address, port))} (metricsPort)", error) from error
        self._by_fd = {sock.fileno(): sock for sock in self._sockets}
        self.port = int(self._sockets[0].getsockname()[1])
        self._replies: deque[Answer] = deque()
        self._connections: dict[int, _Connection] = {}
        self._asked = {QuestionKind.PAGE: _Asked(), QuestionKind.READINESS: _Asked()}
        self._second, self._accepted, self._is_paused = 0, 0, False
        self._failures = Refusals()
        self._is_closing = False
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        for sock in self._sockets:
            self._selector.register(sock, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Close all connections and end the thread. To be called once the event loop no longer runs."""
        self._is_closing = True
        self._wake()
        if self._thread.ident is not None:
            self._thread.join(timeout=SECONDS)
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._selector.close()
        for sock in self._sockets:
            sock.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"\0")

    # The thread.

    def _run(self) -> None:
        while not self._is_closing:
            for key, _ in self._selector.select(PAUSE_SECONDS if self._is_paused else TICK_SECONDS):
                connection = self._connections.get(key.fd)
                if key.fd in self._by_fd:
                    self._accept(self._by_fd[key.fd])
                elif key.fd == self._wake_read:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_read, 4_096)
                elif connection is not None and connection.sock is key.fileobj:
                    self._attempt(connection, self._serve)
            while self._replies:
                self._deliver(self._replies.popleft())
            self._expire()
            if self._is_paused and monotonic_ns() // _SECOND_NS != self._second:
                self._is_paused = False
                for sock in self._sockets:
                    self._selector.register(sock, selectors.EVENT_READ)

    def _attempt(self, connection: _Connection, step: Callable[[_Connection], None]) -> None:
        """Take a step of a connection; an error ends that connection only."""
        try:
            step(connection)
        except OSError:
            self._drop(connection)
        except Exception:  # the outermost loop of a connection
            self._drop(connection)
            times = self._failures.note("", monotonic_ns() // 1_000_000)
            if times:
                log.exception("metrics: connection closed times=%d, an error of ours", times)

    def _accept(self, listener: socket.socket) -> None:
        if self._is_paused:  # since the accept of the other listener, which was ready at the same time
            return
        second = monotonic_ns() // _SECOND_NS
        self._accepted = self._accepted + 1 if second == self._second else 1
        self._second = second
        try:
            sock, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:  # no descriptor or no memory is left: it would be ready again immediately
            self._pause()
            return
        if self._accepted >= ACCEPTS_PER_SECOND:
            self._pause()
        if len(self._connections) >= CONNECTIONS_MAX:
            idle = (connection for connection in self._connections.values() if connection.request is None)
            self._drop(next(idle, self._oldest()))
        connection = self._connections[sock.fileno()] = _Connection(sock, monotonic_ns())
        self._attempt(connection, self._admit)

    def _pause(self) -> None:
        """Accept nothing until the next second."""
        self._is_paused = True
        for sock in self._sockets:
            self._selector.unregister(sock)

    def _admit(self, connection: _Connection) -> None:
        connection.sock.setblocking(False)
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._selector.register(connection.sock, selectors.EVENT_READ)

    def _oldest(self) -> _Connection:
        return next(iter(self._connections.values()))

    def _drop(self, connection: _Connection) -> None:
        if self._connections.pop(connection.sock.fileno(), None) is None:
            return  # dropped already
        connection.request = None
        with contextlib.suppress(KeyError):
            self._selector.unregister(connection.sock)
        connection.sock.close()

    def _expire(self) -> None:
        now_ns = monotonic_ns()
        for connection in list(self._connections.values()):
            limit_seconds = HEAD_SECONDS if connection.request is None else SECONDS
            if now_ns - connection.opened_ns > limit_seconds * _SECOND_NS:
                self._drop(connection)
            elif connection.request is not None and connection.out is None and self._is_overdue(connection, now_ns):
                self._attempt(connection, self._give_up)

    def _is_overdue(self, connection: _Connection, now_ns: int) -> bool:
        return now_ns - connection.opened_ns > LOOP_SECONDS * _SECOND_NS

    def _give_up(self, connection: _Connection) -> None:
        assert connection.request is not None
        body = b"the event loop does not answer\n"
        self._respond(connection, connection.request.respond(HTTPStatus.SERVICE_UNAVAILABLE, body, "text/plain"))

    def _serve(self, connection: _Connection) -> None:
        if connection.out is not None:
            self._send(connection)
        else:
            self._read(connection)

    def _read(self, connection: _Connection) -> None:
        data = connection.sock.recv(HEAD_BYTES_MAX)
        if connection.request is not None:  # nothing behind the request is read
            self._selector.unregister(connection.sock)
            return
        if not data:
            self._drop(connection)
            return
        connection.head += data
        end = connection.head.find(b"\r\n\r\n")
        if end < 0 and len(connection.head) <= HEAD_BYTES_MAX:
            return
        if end < 0 or end > HEAD_BYTES_MAX:
            request = _Request(b"GET / HTTP/1.1\r\n\r\n")
            too_large = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            connection.request = request
            self._respond(connection, request.respond(too_large, b"the request is too large\n", "text/plain"))
            return
        request = connection.request = _Request(bytes(connection.head[: end + 4]))
        if not request.is_valid:
            self._respond(connection, request.response)
        else:
            self._handle(connection, request)

    def _handle(self, connection: _Connection, request: _Request) -> None:
        path = request.path.partition("?")[0]
        if request.command not in ("GET", "HEAD"):
            body = b"only GET is answered here\n"
            self._respond(connection, request.respond(HTTPStatus.METHOD_NOT_ALLOWED, body, "text/plain"))
        elif path in ("/healthz", "/-/healthy"):
            self._respond(connection, self._health(request))
        elif path == "/readyz":
            self._ask(connection, QuestionKind.READINESS)
        elif path == "/metrics" and not self._is_admitted(request):
            body = b"metricsCredentialsFile: a token, or user and password, is missing or wrong\n"
            self._respond(
                connection, request.respond(HTTPStatus.UNAUTHORIZED, body, "text/plain", challenges=_CHALLENGES)
            )
        elif path == "/metrics":
            self._ask(connection, QuestionKind.PAGE)
        else:
            body = f"there is only {', '.join(_PATHS)}\n".encode()
            self._respond(connection, request.respond(HTTPStatus.NOT_FOUND, body, "text/plain"))

    def _is_admitted(self, request: _Request) -> bool:
        return self._admits is None or self._admits(request.headers.get("Authorization", ""))

    def _ask(self, connection: _Connection, kind: QuestionKind) -> None:
        asked = self._asked[kind]
        if asked.answer is not None and monotonic_ns() - asked.answered_ns < ANSWER_SECONDS * _SECOND_NS:
            self._answered(connection, asked.answer)
            return
        asked.waiting.append(connection)
        if not asked.is_pending:
            asked.is_pending = True
            self._node.ask(Question(kind, self._reply))

    def _reply(self, answer: Answer) -> None:
        """Take an answer, on any thread."""
        self._replies.append(answer)
        self._wake()

    def _deliver(self, answer: Answer) -> None:
        asked = self._asked[answer.kind]
        asked.answer, asked.answered_ns, asked.is_pending = answer, monotonic_ns(), False
        waiting, asked.waiting = asked.waiting, []
        for connection in waiting:
            if connection.request is not None and connection.out is None:
                self._attempt(connection, lambda served: self._answered(served, answer))

    # Responses.

    def _health(self, request: _Request) -> bytes:
        age = (monotonic_ns() - self._node.last_turn_ns) / _SECOND_NS
        is_alive = age < ALIVE_SECONDS
        status = HTTPStatus.OK if is_alive else HTTPStatus.SERVICE_UNAVAILABLE
        body = {"status": "alive" if is_alive else "the event loop does not turn", "lastTurnSeconds": round(age, 3)}
        return request.respond(status, json.dumps(body).encode(), _JSON)

    def _answered(self, connection: _Connection, answer: Answer) -> None:
        request = connection.request
        assert request is not None
        if answer.kind is QuestionKind.READINESS:
            is_ready = not answer.reasons
            status = HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
            state: dict[str, object] = {"ready": is_ready}
            if self._is_admitted(request):
                state["reasons"] = list(answer.reasons)
            self._respond(connection, request.respond(status, json.dumps(state).encode(), _JSON))
            return
        is_openmetrics = "application/openmetrics-text" in request.headers.get("Accept", "")
        text, encoding = page(answer.families, is_openmetrics=is_openmetrics), ""
        if len(text) >= _GZIP_FROM_BYTES and "gzip" in request.headers.get("Accept-Encoding", ""):
            text, encoding = igzip.compress(text, 1), "gzip"
        kind = OPENMETRICS_TYPE if is_openmetrics else TEXT_TYPE
        self._respond(connection, request.respond(HTTPStatus.OK, text, kind, encoding=encoding))

    def _respond(self, connection: _Connection, response: bytes) -> None:
        connection.out = memoryview(response)
        with contextlib.suppress(KeyError):
            self._selector.unregister(connection.sock)
        self._selector.register(connection.sock, selectors.EVENT_WRITE)
        self._send(connection)

    def _send(self, connection: _Connection) -> None:
        assert connection.out is not None
        try:
            connection.out = connection.out[connection.sock.send(connection.out) :]
        except BlockingIOError:
            return
        if not connection.out:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_WR)
            self._drop(connection)
