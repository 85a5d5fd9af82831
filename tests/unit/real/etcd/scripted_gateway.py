"""A server that answers as etcd's JSON gateway does, for one session, and as a test tells it to.

It knows the session's key and no other; what a test scripts for a method is answered first, once each.
"""

import json
import queue
import threading
from base64 import b64decode, b64encode
from collections import defaultdict, deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tandemq.real.etcd.session import EtcdRegistry
from tandemq.registry import Changed, Operation, RegistryEvent, RegistryRequest, RegistryResponse, parse_address
from tests.blackbox.programs import wait_until

LEASE = 77
CUT = None
"""An answer that ends the connection instead."""
Json = dict[str, Any]
Answer = tuple[int, Json] | None


def error(status: int, code: int, message: str) -> Answer:
    """Return an error of etcd."""
    return status, {"code": code, "error": f"etcdserver: {message}", "message": f"etcdserver: {message}"}


class ScriptedGateway:
    """One member of etcd."""

    def __init__(self) -> None:
        """Begin to listen."""
        self.term, self.member, self.revision, self.ttl = 3, 1 << 63, 10, 3
        self.key_version = 0
        """Of the session's key; 0: it does not exist."""
        self.script: dict[str, deque[Callable[[Json], Answer]]] = defaultdict(deque)
        """Answers to the next requests of a method; "ping": to reads of the session's key."""
        self.requests: list[tuple[str, Json, str]] = []
        """Method, request and token of all requests."""
        self.streams: queue.Queue[tuple[Json, queue.Queue[Json | None]]] = queue.Queue()
        """Watches as they begin: their request, and where to put their messages; None ends the stream."""
        self.holds = threading.Event()
        """Whether requests are answered; a test clears it."""
        self.holds.set()
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                gateway._answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.host = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        """Stop."""
        self.holds.set()
        self._server.shutdown()
        self._server.server_close()

    def count(self, method: str) -> int:
        """Return the number of requests of a method."""
        return sum(name == method for name, _, _ in self.requests)

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        request = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        method = handler.path.removeprefix("/v3/")
        self.requests.append((method, request, handler.headers.get("Authorization", "")))
        self.holds.wait()
        if method == "watch":
            self._watch(handler, request)
            return
        script = self.script["ping" if self._is_ping(method, request) else method]
        answer = script.popleft()(request) if script else (200, self.usual(method, request))
        if answer is CUT:
            handler.close_connection = True
            return
        body = json.dumps(answer[1]).encode()
        handler.send_response(answer[0])
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    @staticmethod
    def _is_ping(method: str, request: Json) -> bool:
        return method == "kv/range" and b"/tandemq-sessions/" in b64decode(request["key"])

    def usual(self, method: str, request: Json) -> Json:
        """Return what etcd answers."""
        if method == "lease/grant":
            return {"header": self.header(), "ID": str(LEASE), "TTL": str(self.ttl)}
        if method == "lease/keepalive":
            ttl = {"TTL": str(self.ttl)} if self.key_version else {}
            return {"result": {"header": self.header(), "ID": str(LEASE), **ttl}}
        if method == "kv/range":
            return {"header": self.header(), **self.found(b64decode(request["key"]).decode())}
        if method == "kv/txn":
            return self._transaction(request)
        if method == "lease/revoke":
            self.key_version = 0
        return {"header": self.header()}

    def header(self) -> Json:
        """Return the header of answers."""
        return {"member_id": str(self.member), "raft_term": str(self.term), "revision": str(self.revision)}

    def found(self, key: str) -> Json:
        """Return what a read of a key finds."""
        if "/tandemq-sessions/" not in key or not self.key_version:
            return {}
        found = {"key": b64encode(key.encode()).decode(), "version": str(self.key_version), "lease": str(LEASE)}
        return {"kvs": [found]}

    def _transaction(self, request: Json) -> Json:
        puts = [each["request_put"] for each in request["success"] if "request_put" in each]
        takes = any("/tandemq-sessions/" in b64decode(put["key"]).decode() for put in puts)
        if takes and ("compare" not in request or self.key_version):
            self.key_version += 1
            key = b64decode(puts[0]["key"]).decode()
            return {"header": self.header(), "succeeded": True, "responses": [{}, {"response_range": self.found(key)}]}
        return {"header": self.header(), "succeeded": not takes}

    def _watch(self, handler: BaseHTTPRequestHandler, request: Json) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.close_connection = True
        messages: queue.Queue[Json | None] = queue.Queue()
        messages.put({"result": {"header": self.header(), "created": True}})
        self.streams.put((request["create_request"], messages))
        while (message := messages.get()) is not None:
            try:
                handler.wfile.write(json.dumps(message).encode() + b"\n\n")
            except OSError:
                return


def event(path: str, revision: int, version: int) -> Json:
    """Return a message of a watch: a key was written, or deleted (version 0)."""
    found = {"key": b64encode(path.encode()).decode(), "mod_revision": str(revision)}
    if not version:
        return {"result": {"events": [{"type": "DELETE", "kv": found}]}}
    return {"result": {"events": [{"kv": found | {"version": str(version)}}]}}


class Client:
    """A session at scripted members."""

    def __init__(self, *gateways: ScriptedGateway, parameters: str = "", password: str = "") -> None:
        """Start. The order in which members are tried is theirs here."""
        self.registry = EtcdRegistry(
            parse_address(f"etcd://{','.join(gateway.host for gateway in gateways)}{parameters}"),
            3_000,
            lambda: None,
            lambda: password,
        )
        self.registry._hosts = [gateway.host for gateway in gateways]
        self.events: list[RegistryEvent] = []
        self._token = 0
        self.registry.start()

    def look(self) -> list[RegistryEvent]:
        self.events += self.registry.take_events()
        return self.events

    def kinds(self) -> list[str]:
        """The names of all events but confirmations."""
        return [name for event in self.look() if (name := type(event).__name__) != "Confirmed"]

    def count(self, kind: type[RegistryEvent]) -> int:
        return sum(isinstance(event, kind) for event in self.look())

    def wait(self, kind: type[RegistryEvent], count: int = 1) -> None:
        wait_until(lambda: self.count(kind) >= count, f"{count} {kind.__name__}; so far {self.events}")

    def changed(self) -> list[str]:
        return [event.path for event in self.look() if isinstance(event, Changed)]

    def begin(self, operation: Operation) -> int:
        self._token += 1
        self.registry.ask(RegistryRequest(self._token, operation))
        return self._token

    def do(self, operation: Operation) -> object:
        token = self.begin(operation)

        def answers() -> list[RegistryResponse]:
            return [event for event in self.look() if isinstance(event, RegistryResponse) and event.token == token]

        wait_until(lambda: bool(answers()), f"an answer to {operation}; so far {self.events}")
        return answers()[0].outcome
