"""Client for query planners and tasks: runs client operations from ordinary threads, with a deadline.

    cluster_client(name servers) ─► ClusterClient ─► run(lambda routes: …, timeout) ─► the result, or the last error

One client is kept per process and cluster: Spark reuses its Python processes, so that a micro-batch opens no new
connections. The client's event loop runs in a thread of its own.

Source: docs/guides/pipeline.md; tandemq.client.core.operations for operations.
"""

import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from tandemq.client.aio.loop_thread import LoopThread
from tandemq.client.aio.transport import Shell, make_config
from tandemq.client.connection import BlockingConnection
from tandemq.client.core.connections import RemotingClient
from tandemq.client.core.operations import Steps
from tandemq.client.core.routes import Routes
from tandemq.client.core.settings import split_addresses
from tandemq.client.credentials import ENVIRONMENT, Signer
from tandemq.config.tls import ClientTls
from tandemq.errors import NetworkError, NotConnected, OutcomeUnknown, TandemError, WrongProtocol

T = TypeVar("T")
Operation = Callable[[Routes], Steps[T]]
RETRY_PAUSE_S = 0.1
RESPONSE_MS = 5
"""Extension of the timeout for each response: an operation with ten thousand requests has 50 s more than one."""
CONNECT_MS = 1_500
"""Timeout of the first contact of a query with a cluster to which no connection can be opened."""
PROBE_S = 1.0
"""Timeout of each step of the check for servers of HTTP."""
_clients: dict[tuple[int, str, ClientTls | None, Signer], "ClusterClient"] = {}
"""By process id, name servers, TLS and user."""


def cluster_client(name_servers: str, tls: ClientTls | None = None, signer: Signer = ENVIRONMENT) -> "ClusterClient":
    """Return this process's client of a cluster for a user, created at the first call."""
    key = os.getpid(), name_servers, tls, signer
    if key not in _clients:
        _clients[key] = ClusterClient(name_servers, tls, signer)
    return _clients[key]


def close_clients() -> None:
    """Close all clients of this process."""
    while _clients:
        (pid, *_), client = _clients.popitem()
        if pid == os.getpid():
            client.close()


def check_not_http(name_servers: str) -> None:
    """Raise if a name server that does not respond answers a request of HTTP: such servers wait for the end of a line,
    and requests have none. A server that speaks the protocol closes the connection.

    Raises:
        WrongProtocol: it is a server of HTTP.
    """
    for address in split_addresses(name_servers):
        try:
            with BlockingConnection(address, seconds=PROBE_S) as link:
                link.write(b"HEAD / HTTP/1.0\r\n\r\n")
                link.receive()
        except WrongProtocol:
            raise
        except NetworkError:
            continue


class _InFlight(OutcomeUnknown):
    """The timeout interrupted a request."""


class _Deadline:
    """Timeout of an operation, extended by the responses of one attempt."""

    def __init__(self, timeout_ms: int, remoting: RemotingClient) -> None:
        self._timeout_s = timeout_ms / 1000
        self._remoting = remoting
        self._start = time.monotonic()
        self._count_before = remoting.response_count
        self._most = 0

    @property
    def has_responses(self) -> bool:
        return self._most > 0

    def begin_attempt(self) -> None:
        self._count_before = self._remoting.response_count

    def passed_s(self) -> float:
        return time.monotonic() - self._start

    def left_s(self) -> float:
        self._most = max(self._most, self._remoting.response_count - self._count_before)
        return self._timeout_s + self._most * RESPONSE_MS / 1000 - self.passed_s()


class ClusterClient:
    """A client of one cluster and the thread of its event loop."""

    def __init__(self, name_servers: str, tls: ClientTls | None = None, signer: Signer = ENVIRONMENT) -> None:
        """Create a client that connects when it is first used.

        Raises:
            ConfigError: an address is malformed, or a file of TLS or of a user cannot be used.
        """
        self._name_servers = name_servers
        self._tls = tls
        config = make_config(name_servers, tls=tls or False, credentials=signer.credentials())
        self._thread = LoopThread()

        async def open_shell() -> Shell:
            return Shell(config)

        try:
            self._shell = self._thread.call(open_shell())
        except TandemError:
            self._thread.stop()
            raise

    def run(self, operation: Operation[T], timeout_ms: int, *, connect_ms: int | None = None) -> T:
        """Run an operation and return its result. After a NetworkError it is started again until the timeout.

        Args:
            timeout_ms: without the responses of the cluster, each of which extends it by `RESPONSE_MS`: in total by
                those of the attempt that got the most.
            connect_ms: timeout while no connection can be opened, if it is less: for the first contact of a query, as
                its address may be wrong. It begins after the first attempt if that got responses.
        Raises:
            NotConnected: no connection could be opened within `connect_ms`.
            WrongProtocol: a server does not speak the protocol.
            NetworkError: no answer within the timeout.
            TandemError: any other error of the operation.
        """
        deadline = _Deadline(timeout_ms, self._shell.node.remoting)
        hint = f"is the cluster of the name server {self._name_servers} up and reachable from here?"
        previous: NetworkError | None = None
        connect_from_s: float | None = None
        while True:
            deadline.begin_attempt()
            try:
                return self._wait(self.start(operation), deadline, connect_ms)
            except WrongProtocol as foreign:
                asks = f"is {self._name_servers} the address of a name server?"
                raise WrongProtocol(foreign.args[0], hint=asks) from foreign
            except NetworkError as latest:
                # A request that the timeout interrupts says less than the error of the attempt before.
                error = previous if previous is not None and isinstance(latest, _InFlight) else latest
                previous = error
                if deadline.left_s() <= RETRY_PAUSE_S:
                    raise NetworkError(f"no answer within {timeout_ms} ms: {error}", hint=hint) from error
                if connect_from_s is None:
                    connect_from_s = deadline.passed_s() if deadline.has_responses else 0.0
                passed_ms = (deadline.passed_s() + RETRY_PAUSE_S - connect_from_s) * 1000
                if connect_ms is not None and isinstance(error, NotConnected) and passed_ms >= connect_ms:
                    raise NotConnected(f"no connection within {connect_ms} ms: {error.args[0]}", hint=hint) from error
            time.sleep(RETRY_PAUSE_S)

    def _wait(self, started: Future[T], deadline: "_Deadline", connect_ms: int | None) -> T:
        first_ms = None if self._tls is not None else connect_ms
        while True:
            left_s = max(0.001, deadline.left_s())
            try:
                return started.result(left_s if first_ms is None else min(left_s, first_ms / 1000))
            except TimeoutError as error:
                if first_ms is not None and deadline.left_s() > 0:
                    first_ms = None
                    if not deadline.has_responses:
                        self._check_not_http(started)
                elif deadline.left_s() <= 0:
                    started.cancel()
                    raise _InFlight("a request is still in flight") from error

    def _check_not_http(self, started: Future[T]) -> None:
        try:
            check_not_http(self._name_servers)
        except WrongProtocol:
            started.cancel()
            raise

    def start(self, operation: Operation[T]) -> Future[T]:
        """Start an operation without waiting for it."""

        async def run() -> T:
            shell = self._shell
            return await shell.done(shell.node.runner.start(operation(shell.node.routes), shell.now))

        return self._thread.begin(run())

    def close(self) -> None:
        """Close all connections and stop the thread."""
        self._thread.call(self._shell.close())
        self._thread.stop()
