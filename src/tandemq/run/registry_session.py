"""Registry sessions for programs that are not brokers, such as command line tools: one blocking operation at a time.

    with RegistryClient(parse_address("namesrv://127.0.0.1:9876")) as registry:
        outcome = registry.do(Read(path))

A session at a name server's registry uses the same state machine as the brokers (`coordination.registry.embedded`),
with its own event loop and thread.
"""

import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from tandemq.boundary import Closed, Event, LinkKind, Now, Opened, Turn
from tandemq.codec.proofs import Keyring
from tandemq.config.tls import ClientTls
from tandemq.coordination.registry.embedded import EmbeddedRegistry, RegistrySessionState
from tandemq.errors import ConfigError, NotConnected, RemoteError
from tandemq.real.clock import read_clock
from tandemq.real.loop import Loop
from tandemq.real.network.client_tls import loop_tls
from tandemq.registry import (
    ETCD,
    NAME_SERVER,
    Operation,
    Outcome,
    RegistryAddress,
    RegistryEvent,
    RegistryRequest,
    RegistryResponse,
    RegistrySession,
    SessionUp,
    Unknown,
)
from tandemq.run.secret import check_private, open_keyring, read_first_line

TIMEOUT_MS = 5_000
"""Session timeout. Such a client owns no ephemeral nodes, so nothing depends on the value."""
ANSWER_SECONDS = 10.0
CLOSE_SECONDS = 2.0
_log = logging.getLogger(__name__)


class ClosableSession(RegistrySession, Protocol):
    """A session that its owner closes."""

    @property
    def refusal(self) -> str:
        """Why the registry refuses the session; "" if it does not, or did not answer."""

    def close(self) -> None:
        """End the session; its ephemeral nodes are deleted at once."""


class EmbeddedSession:
    """A session at a name server's registry, run as a `boundary.Node` in its own thread."""

    def __init__(
        self,
        address: str,
        client: str,
        timeout_ms: int,
        wake: "threading.Event | None" = None,
        keyring: Keyring | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        """Start to connect. `wake` is set when there are events, or when the session is refused.

        Raises:
            ConfigError: a file of TLS cannot be used.
        """
        self._links = 0
        self._machine = EmbeddedRegistry(address, client, timeout_ms, self._next_link, keyring)
        self._wake = wake
        self._asks: deque[RegistryRequest] = deque()
        self._events: deque[RegistryEvent] = deque()
        self._is_closing = False
        self._is_over = threading.Event()
        self._loop = Loop()
        if tls is not None:
            self._loop.protect(LinkKind.PEER, loop_tls(tls))
        self._thread = threading.Thread(target=self._loop.run, args=(self,), name="registry", daemon=True)
        self._thread.start()

    @property
    def problem(self) -> str:
        """See `RegistrySession`."""
        return self._machine.problem

    @property
    def refusal(self) -> str:
        """See `ClosableSession`."""
        return self._machine.refusal

    def _next_link(self) -> int:
        self._links -= 1
        return self._links

    def turn(self, received: Sequence[tuple[int, bytes]], events: Sequence[Event], now: Now) -> Turn:
        """See `boundary.Node`."""
        turn, machine = Turn(), self._machine
        for event in events:
            if isinstance(event, Opened) and machine.owns(event.link):
                machine.opened(event.link, turn, now)
            elif isinstance(event, Closed) and machine.owns(event.link):
                machine.closed(event.link, event.reason, now)
        for link, data in received:
            if machine.owns(link):
                machine.received(link, data, turn, now)
        while self._asks:
            machine.ask(self._asks.popleft(), turn, now)
        if self._is_closing and machine.state is not RegistrySessionState.CLOSED:
            machine.close(turn, now)
        machine.tick(turn, now)
        fresh = machine.take_events()
        self._events.extend(fresh)
        if (fresh or machine.refusal) and self._wake is not None:
            self._wake.set()
        if machine.state is RegistrySessionState.CLOSED and not machine.owns(self._links):
            self._is_over.set()
        return turn

    def deadline_ms(self) -> int | None:
        """See `boundary.Node`."""
        return self._machine.deadline_ms()

    def ask(self, ask: RegistryRequest) -> None:
        """See `RegistrySession`; from any thread."""
        self._asks.append(ask)
        self._loop.wake()

    def take_events(self) -> list[RegistryEvent]:
        """See `RegistrySession`; from one thread."""
        events = []
        while self._events:
            events.append(self._events.popleft())
        return events

    def close(self) -> None:
        """End the session and the thread; waits at most 2 * CLOSE_SECONDS."""
        self._is_closing = True
        self._loop.wake()
        if not self._is_over.wait(CLOSE_SECONDS):
            _log.info("registry session not ended, it expires by itself: %s", self.problem)
        self._loop.stop()
        self._thread.join(CLOSE_SECONDS)
        self._loop.close()


def start_session(
    address: RegistryAddress,
    timeout_ms: int,
    wake: threading.Event,
    keyring: Keyring | None = None,
    tls: ClientTls | None = None,
) -> ClosableSession:
    """Start a session; its events follow later. `tls`: of the connection to a name server.

    Raises:
        ConfigError: see `open_session`, or a file of TLS cannot be used.
    """
    if address.kind == NAME_SERVER:
        return EmbeddedSession(address.hosts, f"tool-{secrets.token_hex(8)}", timeout_ms, wake, keyring, tls)
    return open_session(address, timeout_ms, wake.set)


def open_session(address: RegistryAddress, timeout_ms: int, wake: Callable[[], None]) -> ClosableSession:
    """Start a session at ZooKeeper or etcd; `wake` is called from other threads when there are events.

    Raises:
        ConfigError: ZooKeeper's client is not installed, or a file that etcd's address names cannot be used.
    """
    return open_etcd(address, timeout_ms, wake) if address.kind == ETCD else open_zookeeper(address, timeout_ms, wake)


def open_etcd(address: RegistryAddress, timeout_ms: int, wake: Callable[[], None]) -> ClosableSession:
    """Start a session at etcd; `wake` is called from other threads when there are events.

    Raises:
        ConfigError: a file that the address names cannot be used, or other users can read a secret one.
    """
    from tandemq.real.etcd.session import EtcdRegistry  # noqa: PLC0415  # http.client and ssl, for few programs

    access = address.access
    if access.key_file:
        check_private("key in registryAddr", access.key_file)
    read_password = partial(read_first_line, "passwordFile in registryAddr", access.password_file)
    if access.user:
        read_password()
    session = EtcdRegistry(address, timeout_ms, wake, read_password)
    session.start()
    return session


def open_zookeeper(address: RegistryAddress, timeout_ms: int, wake: Callable[[], None]) -> ClosableSession:
    """Start a session at ZooKeeper; `wake` is called from other threads when there are events.

    Raises:
        ConfigError: ZooKeeper's client is not installed.
    """
    try:
        from tandemq.real.zookeeper import ZooKeeperRegistry  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise ConfigError(
            f"{address} needs kazoo, which is not installed", hint="pip install 'tandemq[zookeeper]'"
        ) from error
    session = ZooKeeperRegistry(address.hosts, timeout_ms, wake)
    session.start()
    return session


class RegistryClient:
    """A blocking client of a registry."""

    def __init__(
        self,
        address: RegistryAddress,
        *,
        secret_file: str | Path = "",
        tls: ClientTls | None = None,
    ) -> None:
        """Connect and wait for a session.

        Args:
            address: the registry.
            secret_file: secret file for authentication at a name server, the same as its haSecretFile.
            tls: TLS of the connection to a name server.

        Raises:
            NotConnected: there was no session in time.
            RemoteError: the name server refused the authentication.
            ConfigError: see `open_session`, or the secret file or a file of TLS cannot be used.
        """
        self._wake = threading.Event()
        self._session = start_session(address, TIMEOUT_MS, self._wake, open_keyring(str(secret_file)), tls)
        self._token = 0
        if self._wait_for(SessionUp) is None:
            reason, refusal = self._session.problem, self._session.refusal
            self.close()
            if refusal:
                raise RemoteError(refusal)
            raise NotConnected(f"the registry {address} does not answer within {ANSWER_SECONDS:g} s: {reason}")

    def do(self, operation: Operation) -> Outcome:
        """Execute one operation; returns Unknown if no answer arrives in time."""
        self._token += 1
        self._session.ask(RegistryRequest(self._token, operation))
        answer = self._wait_for(RegistryResponse)
        return answer.outcome if isinstance(answer, RegistryResponse) else Unknown()

    def _wait_for(self, kind: type[RegistryEvent]) -> RegistryEvent | None:
        """Wait for the next event of a kind (a response must be that of the last request); None after the timeout."""
        until_ms = read_clock().mono_ms + int(ANSWER_SECONDS * 1000)
        while True:
            self._wake.clear()
            for event in self._session.take_events():
                if isinstance(event, kind) and (not isinstance(event, RegistryResponse) or event.token == self._token):
                    return event
            left_ms = until_ms - read_clock().mono_ms
            if left_ms <= 0 or self._session.refusal or not self._wake.wait(left_ms / 1000):
                return None

    def close(self) -> None:
        """End the session."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
