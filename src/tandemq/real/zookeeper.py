"""Registry client for ZooKeeper: executes operations, returns responses and session events.

    loop ──ask──► kazoo's threads ──► ZooKeeper
    loop ◄─take_events── deque ◄─ responses, watches, session states    `wake` is called after each

    kazoo              here
    CONNECTED          SessionUp, with the session id and the timeout granted by the server
    SUSPENDED          Unknown for all operations in flight, SessionSuspended: the session may still exist
    LOST               the same, and SessionLost: ZooKeeper has ended the session

A session is confirmed to exist by operations that a quorum has stored: writes, and a transaction that changes nothing,
sent `PINGS_PER_TIMEOUT` times per session timeout. A read is answered by a single server and confirms nothing. Nor does
a `sync`: a leader that has been replaced and does not know it yet answers it by itself (ZOOKEEPER-1675).

Operations are executed and answered in the order of the requests. A creation may take several requests if parents are
missing, so operations after it wait until it is answered.

Reading a missing node with a watch takes a second request (ZooKeeper sets no watch if there is no node). If the node
appears in between, the read is repeated.

Needs kazoo, from the extra `zookeeper`. Owner: the shell of one node. Threads: kazoo's, and one that pings.
Source: docs/internals/failover.md, "ZooKeeper"; kazoo's documentation of states.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from kazoo import exceptions as zk
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped, SessionExpiredError
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import EventType, KazooState, WatchedEvent
from kazoo.retry import KazooRetry

from tandemq.real.clock import read_clock
from tandemq.registry import (
    Changed,
    Confirmed,
    Conflict,
    Create,
    Delete,
    Done,
    Exists,
    Guard,
    Names,
    NodeFound,
    NodeMissing,
    Operation,
    Outcome,
    Read,
    ReadChildren,
    RegistryEvent,
    RegistryRefused,
    RegistryRequest,
    RegistryResponse,
    SessionLost,
    SessionSuspended,
    SessionUp,
    Unknown,
    Write,
    refusal,
)

PINGS_PER_TIMEOUT = 6
RETRY_SECONDS = 0.1
RETRY_SECONDS_MAX = 1.0
ANY_VERSION = -1
READS_MAX = 5
"""Maximum number of reads of a node that appears and disappears; then the outcome is Unknown."""
CLOSE_SECONDS = 2
REFUSED_TIMEOUTS = 2
"""After how many session timeouts of handshakes without a response a session is given up."""
_log = logging.getLogger(__name__)

_OUTCOMES: dict[type[Exception], Outcome] = {
    zk.NoNodeError: NodeMissing(),
    zk.NodeExistsError: Exists(),
    zk.BadVersionError: Conflict(),
    zk.NotEmptyError: RegistryRefused("it has children"),
    zk.NoChildrenForEphemeralsError: RegistryRefused("an ephemeral node has no children"),
    zk.NoAuthError: RegistryRefused("ZooKeeper's access control does not allow it"),
    zk.InvalidACLError: RegistryRefused("ZooKeeper refused the access control list"),
    zk.BadArgumentsError: RegistryRefused("ZooKeeper refused the arguments"),
}


def _attempts_log() -> logging.Logger:
    """Return the logger for kazoo. It logs every connection attempt, shown with -v; the results are logged here."""
    attempts = logging.getLogger(f"{__name__}.kazoo")
    attempts.setLevel(logging.DEBUG if logging.getLogger().isEnabledFor(logging.DEBUG) else logging.ERROR)
    return attempts


class _Connection(ConnectionHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's connection, with the session timeout granted by the server, which kazoo does not publish.

    With a single server kazoo waits for the response to a handshake as long as the session timeout. Here it waits half
    of that, so that the handshake can be repeated before the session expires.

    Servers whose data were replaced by an older copy close each connection of a client that has seen newer data,
    without a response, as long as it names these. Kazoo would repeat that for ever, so a session is given up once
    handshakes have ended like this for `REFUSED_TIMEOUTS` session timeouts: it has expired by then, and a new one names
    no data.
    """

    negotiated_ms = 0
    handshake_seconds_max = 0.0
    refused_since_ms: int | None = None
    """Time of the first of the handshakes without a response since the last one with a response."""

    def _invoke(self, timeout: float, request: object, xid: int | None = None) -> Any:
        if not isinstance(request, Connect):
            return super()._invoke(timeout, request, xid)
        try:
            result = super()._invoke(min(timeout, self.handshake_seconds_max), request, xid)
        except ConnectionDropped:
            self._refused(request)
            raise
        self.refused_since_ms = None
        self.negotiated_ms = int(result[0].time_out)
        return result

    def _refused(self, request: Connect) -> None:
        """Note a handshake without a response.

        Raises:
            SessionExpiredError: this has lasted so long that the session is over.
        """
        now_ms = read_clock().mono_ms
        if self.refused_since_ms is None:
            self.refused_since_ms = now_ms
        if request.session_id and now_ms - self.refused_since_ms > REFUSED_TIMEOUTS * self.negotiated_ms:
            self.refused_since_ms = None
            raise SessionExpiredError("no server has answered a handshake for longer than the session timeout")


class ZooKeeperRegistry:
    """One session at a ZooKeeper ensemble. `ask`, `take_events` and `close` are called on the loop's thread."""

    def __init__(self, hosts: str, timeout_ms: int, wake: Callable[[], None]) -> None:
        """Prepare a session; `start` connects.

        Args:
            hosts: "host:port,host:port".
            timeout_ms: requested session timeout; the server may grant another one.
            wake: called from other threads when there are events.
        """
        self.hosts = hosts
        self.problem = "not connected yet"
        """Why there is currently no session; "" while there is one."""
        self.refusal = ""
        """Always "": ZooKeeper requires no proof of the registry secret."""
        self._wake = wake
        self._timeout_ms = timeout_ms
        self._events: deque[RegistryEvent] = deque()
        self._lock = threading.RLock()
        """Protects the fields below, and the order in which requests are passed to kazoo."""
        self._in_flight: dict[int, RegistryRequest] = {}
        """Requests by serial number, in order. Tokens may repeat, so they cannot be the key."""
        self._answered: dict[int, list[RegistryEvent]] = {}
        """Events to publish once all earlier requests are answered, by serial number."""
        self._waiting: deque[tuple[int, RegistryRequest, int]] = deque()
        """Requests that wait for a creation in flight: serial number, request, time of the request (ms)."""
        self._creating: int | None = None
        self._serial = 0
        self._is_up = False
        self._last_session = 0
        retry = KazooRetry(max_tries=-1, delay=RETRY_SECONDS, max_delay=RETRY_SECONDS_MAX)
        self._client = KazooClient(
            hosts=hosts, timeout=timeout_ms / 1000, connection_retry=retry, logger=_attempts_log()
        )
        self._connection = _Connection(self._client, retry.copy(), logger=self._client.logger)
        self._connection.handshake_seconds_max = timeout_ms / 2000
        self._client._connection = self._connection  # noqa: SLF001  # see _Connection
        self._stopping = threading.Event()
        self._pinger = threading.Thread(target=self._ping, name="registry-ping", daemon=True)

    # Called by the loop.

    def start(self) -> None:
        """Begin to connect; does not block."""
        self._client.add_listener(self._on_state)
        self._client.start_async()
        self._pinger.start()

    def ask(self, ask: RegistryRequest) -> None:
        """Begin an operation; its response is an event."""
        sent_ms = read_clock().mono_ms
        reason = refusal(ask.operation)
        with self._lock:
            self._serial += 1
            serial = self._serial
            self._in_flight[serial] = ask
            if reason is None and self._is_up:
                self._waiting.append((serial, ask, sent_ms))
                self._begin_waiting()
            else:
                outcome = Unknown() if reason is None else RegistryRefused(reason)
                self._publish(serial, [RegistryResponse(ask.token, outcome, sent_ms)])
        self._wake()

    def _begin_waiting(self) -> None:
        """Send the waiting requests up to and including the next creation, unless a creation is in flight."""
        while self._waiting and self._creating is None:
            serial, ask, sent_ms = self._waiting.popleft()
            if isinstance(ask.operation, Create):
                self._creating = serial
            self._begin(serial, ask, sent_ms)

    def _publish(self, serial: int, events: list[RegistryEvent]) -> None:
        """Publish the events of an operation, after those of all earlier operations."""
        self._answered[serial] = events
        while (first := next(iter(self._in_flight), None)) in self._answered and first is not None:
            self._events.extend(self._answered.pop(first))
            del self._in_flight[first]

    def take_events(self) -> list[RegistryEvent]:
        """Return the events since the last call, in order."""
        events = []
        while self._events:
            events.append(self._events.popleft())
        return events

    def close(self) -> None:
        """End the session, which deletes its ephemeral nodes; blocks for at most CLOSE_SECONDS.

        If ZooKeeper does not respond, kazoo's threads end by themselves and the session expires.
        """
        self._stopping.set()
        self._client.remove_listener(self._on_state)
        stopper = threading.Thread(target=self._stop, name="registry-stop", daemon=True)
        stopper.start()
        stopper.join(CLOSE_SECONDS)

    def _stop(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except zk.KazooException as error:
            _log.info("registry session not ended, it expires by itself: %s", error)

    # Operations. The functions below also run on kazoo's threads.

    def _begin(self, serial: int, ask: RegistryRequest, sent_ms: int, reads_left: int = READS_MAX) -> None:
        def ended(result: Any) -> None:
            self._ended(serial, ask, sent_ms, result, reads_left)

        self._request(ask.operation).rawlink(ended)

    def _request(self, operation: Operation) -> Any:
        client = self._client
        match operation:
            case Read(path=path, watch=watch):
                return client.get_async(path, watch=self._on_watch if watch else None)
            case ReadChildren(path=path, watch=watch):
                return client.get_children_async(path, watch=self._on_watch if watch else None)
            case Create(path=path, data=data, ephemeral=ephemeral):
                return client.create_async(path, data, ephemeral=ephemeral, makepath=True)
            case Write(path=path, data=data, version=version, guard=None):
                return client.set_async(path, data, version=version)
            case Write(path=path, data=data, version=version, guard=Guard() as guard):
                both = client.transaction()
                both.set_data(path, data, version)
                both.check(guard.path, guard.version)
                return both.commit_async()
            case Delete(path=path, version=version):
                return client.delete_async(path, version=version)

    def _ended(self, serial: int, ask: RegistryRequest, sent_ms: int, result: Any, reads_left: int) -> None:
        operation = ask.operation
        if result.exception is None:
            self._answer(serial, ask, _outcome(operation, result.value), sent_ms)
        elif isinstance(operation, Read | ReadChildren) and operation.watch and _is_missing(result.exception):
            self._watch_missing(serial, ask, sent_ms, reads_left)
        else:
            self._answer(serial, ask, _failure(result.exception), sent_ms)

    def _watch_missing(self, serial: int, ask: RegistryRequest, sent_ms: int, reads_left: int) -> None:
        def ended(result: Any) -> None:
            if result.exception is not None:
                self._answer(serial, ask, _failure(result.exception), sent_ms)
            elif result.value is None:
                self._answer(serial, ask, NodeMissing(), sent_ms)
            elif reads_left:
                self._begin(serial, ask, sent_ms, reads_left - 1)
            else:
                self._answer(serial, ask, Unknown(), sent_ms)

        self._client.exists_async(ask.operation.path, watch=self._on_watch).rawlink(ended)

    def _answer(self, serial: int, ask: RegistryRequest, outcome: Outcome, sent_ms: int) -> None:
        with self._lock:
            if serial not in self._in_flight:
                return  # answered with Unknown when the connection was lost
            events: list[RegistryEvent] = [RegistryResponse(ask.token, outcome, sent_ms)]
            if not isinstance(outcome, Unknown | RegistryRefused) and isinstance(
                ask.operation, Create | Write | Delete
            ):
                events.append(Confirmed(sent_ms))
            self._publish(serial, events)
            if serial == self._creating:
                self._creating = None
            self._begin_waiting()
        self._wake()

    # Watches, session states, pings.

    def _on_watch(self, event: WatchedEvent) -> None:
        if event.type != EventType.NONE:
            self._events.append(Changed(event.path))
            self._wake()

    def _on_state(self, state: str) -> None:
        """Process a new connection state; called on kazoo's connection thread."""
        now_ms = read_clock().mono_ms
        with self._lock:
            if state == KazooState.CONNECTED:
                self._up()
            else:
                self._down(now_ms, lost=state == KazooState.LOST)
        self._wake()

    def _up(self) -> None:
        session = int(self._client.client_id[0])
        self._is_up = True
        self.problem = ""
        self._last_session = session
        _log.info("registry session up hosts=%s session=%x timeout_ms=%d", self.hosts, session, self._negotiated_ms())
        self._events.append(SessionUp(session, self._negotiated_ms()))

    def _down(self, now_ms: int, *, lost: bool) -> None:
        for serial, ask in self._in_flight.items():
            self._events.extend(self._answered.get(serial, [RegistryResponse(ask.token, Unknown(), now_ms)]))
        self._in_flight.clear()
        self._answered.clear()
        self._waiting.clear()
        self._creating = None
        if self._is_up and not lost:
            self.problem = "ZooKeeper does not answer"
            _log.warning("registry suspended hosts=%s session=%x", self.hosts, self._last_session)
            self._events.append(SessionSuspended())
        if lost and self._last_session:
            self.problem = "ZooKeeper ended the session"
            _log.warning("registry session lost hosts=%s session=%x", self.hosts, self._last_session)
            self._events.append(SessionLost())
            self._last_session = 0
        self._is_up = False

    def _negotiated_ms(self) -> int:
        return self._connection.negotiated_ms or self._timeout_ms

    def _ping(self) -> None:
        while not self._stopping.wait(self._negotiated_ms() / PINGS_PER_TIMEOUT / 1000):
            if self._is_up:
                self._ping_once()

    def _ping_once(self) -> None:
        session, sent_ms = self._last_session, read_clock().mono_ms

        def ended(result: Any) -> None:
            if result.exception is None and _was_stored(result.value) and session == self._last_session:
                self._events.append(Confirmed(sent_ms))
                self._wake()

        check = self._client.transaction()
        check.check("/", ANY_VERSION)
        try:
            check.commit_async().rawlink(ended)
        except zk.KazooException as error:
            _log.debug("registry ping: %r", error)


def _was_stored(results: Any) -> bool:
    """Return whether a quorum has stored a check of the root. ZooKeeper stores a denied one, too, as an error."""
    return any(result is True or isinstance(result, zk.NoAuthError) for result in results)


def _outcome(operation: Operation, value: Any) -> Outcome:
    match operation:
        case Read():
            data, stat = value
            return NodeFound(data, stat.version, stat.ephemeralOwner)
        case ReadChildren():
            return Names(tuple(sorted(value)))
        case Create():
            return Done(0)
        case Write(guard=None):
            return Done(value.version)
        case Write():
            return _outcome_of_both(*value)
        case Delete(version=version):
            return Done(version)


def _outcome_of_both(written: Any, guarded: Any) -> Outcome:
    """Return the outcome of a write with a guard. If they fail, only one of the two results has the reason."""
    if isinstance(guarded, zk.NoNodeError | zk.BadVersionError):
        return Conflict()
    return _failure(written) if isinstance(written, Exception) else Done(written.version)


def _failure(error: Exception) -> Outcome:
    """Return the outcome for an exception; Unknown unless the exception proves that nothing was done."""
    return _OUTCOMES.get(type(error), Unknown())


def _is_missing(error: Exception) -> bool:
    return isinstance(error, zk.NoNodeError)
