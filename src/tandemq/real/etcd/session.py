"""A session at etcd: a lease, the connection that has it, and the operations in flight.

    DOWN ──connect, authenticate, take or begin the lease──► UP ──no answer, or the session is gone──► DOWN
         SessionUp                                            Unknown for all operations, SessionSuspended
    while DOWN: the key of the session is gone ─► SessionLost, and a new lease

While it is UP, one thread carries out operations and pings, one after the other, so responses are in order. When a
connection does not answer, another member is tried at once; if none answers, again after 0.1 to 1 s.
Source: `tandemq.real.etcd`.
"""

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from math import ceil
from random import SystemRandom
from typing import Any, TypeVar

from tandemq.config.tls import ClientTls
from tandemq.errors import ConfigError, NetworkError, OutcomeUnknown, ProtocolError, RemoteError, TandemError
from tandemq.real.clock import read_clock
from tandemq.real.etcd import transactions
from tandemq.real.etcd.gateway import FAILED_PRECONDITION, LEASE_NOT_FOUND, PERMISSION_DENIED, EtcdError, Gateway
from tandemq.real.etcd.messages import (
    AnyAnswer,
    Header,
    KeepAliveAnswer,
    LeaseAnswer,
    RangeAnswer,
    TokenAnswer,
    TransactionAnswer,
    WatchBatch,
)
from tandemq.real.etcd.transactions import RANGE, TRANSACTION, Fence, Keys
from tandemq.real.etcd.watch_stream import WatchStream
from tandemq.real.etcd.watches import Watches
from tandemq.real.network.client_tls import ClientContext
from tandemq.registry import (
    Changed,
    Confirmed,
    Create,
    Delete,
    Outcome,
    Read,
    ReadChildren,
    RegistryAddress,
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
ANSWERS_PER_TIMEOUT = 2
"""A member has this share of the timeout to answer; then another one is tried."""
RETRY_SECONDS = 0.1
RETRY_SECONDS_MAX = 1.0
STEADY_SECONDS = 1.0
"""A session that was up for less is not reconnected at once, and a watch stream not begun again."""
CLOSE_SECONDS = 2.0
_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class EtcdRegistry:
    """One session at etcd. `ask`, `take_events` and `close` are called on the loop's thread, and do not block it."""

    def __init__(
        self,
        address: RegistryAddress,
        timeout_ms: int,
        wake: Callable[[], None],
        read_password: Callable[[], str] = str,
    ) -> None:
        """Prepare a session; `start` connects.

        Args:
            address: of etcd.
            timeout_ms: requested session timeout; etcd grants whole seconds, and has a minimum.
            wake: called from other threads when there are events.
            read_password: returns the user's password, at each connection. May raise ConfigError.

        Raises:
            ConfigError: a file of TLS cannot be used.
        """
        access = address.access
        self.address = address
        self.problem = "not connected yet"
        """Why there is currently no session; "" while there is one."""
        self.refusal = ""
        """Why etcd refuses the session: the user, the password, or the user's rights; "" if it does not."""
        self._tls = (
            ClientContext(ClientTls(ca_file=access.ca_file, cert_file=access.cert_file, key_file=access.key_file))
            if access.tls
            else None
        )
        self._read_password = read_password
        self._wake = wake
        self._requested_ttl = self._ttl = max(1, ceil(timeout_ms / 1000))
        self._keys = Keys(address.prefix)
        self._hosts = address.hosts.split(",")
        SystemRandom().shuffle(self._hosts)
        self._events: deque[RegistryEvent] = deque()
        self._changed = threading.Condition(threading.RLock())
        """Protects the fields below; notified when the thread has something to do."""
        self._in_flight: deque[RegistryRequest] = deque()
        self._is_up = False
        self._is_stopping = False
        self._watches = Watches(0)
        self._stream: WatchStream | None = None
        self._stream_begun_s = 0.0
        self._stream_problem = ""
        self._gateway: Gateway | None = None
        # Only the session's thread uses these.
        self._lease = self._announced = 0
        """The lease, and the last one that was reported by SessionUp; 0: none."""
        self._fence = Fence(b"", 0)
        self._witness = (0, 0)
        """Member and Raft term of the last answer that went through a majority."""
        self._token = ""
        self._thread = threading.Thread(target=self._run, name="registry", daemon=True)

    # Called by the loop.

    def start(self) -> None:
        """Begin to connect; does not block."""
        self._thread.start()

    def ask(self, ask: RegistryRequest) -> None:
        """Begin an operation; its response is an event."""
        with self._changed:
            if self._is_up:
                self._in_flight.append(ask)
                self._changed.notify_all()
                return
            reason = refusal(ask.operation)
            outcome = Unknown() if reason is None else RegistryRefused(reason)
            self._events.append(RegistryResponse(ask.token, outcome, read_clock().mono_ms))
        self._wake()

    def take_events(self) -> list[RegistryEvent]:
        """Return the events since the last call, in order."""
        events = []
        while self._events:
            events.append(self._events.popleft())
        return events

    def close(self) -> None:
        """End the session, which deletes its ephemeral nodes; blocks for at most CLOSE_SECONDS.

        If etcd does not answer, the session expires.
        """
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            _log.info("registry session not ended, it expires by itself: etcd does not answer")
        with self._changed:
            if self._gateway is not None:
                self._gateway.interrupt()
            self._close_stream()

    # The session's thread.

    def _run(self) -> None:
        failures = 0
        for host in itertools.cycle(self._hosts):
            if self._is_stopping:
                return
            failures = 0 if self._attempt(host) else failures + 1
            rounds, at = divmod(failures, len(self._hosts))
            if rounds and not at:
                seconds = min(RETRY_SECONDS * 2 ** min(rounds - 1, 10), RETRY_SECONDS_MAX)
                with self._changed:
                    self._changed.wait_for(lambda: self._is_stopping, seconds)

    def _attempt(self, host: str) -> bool:
        """Connect to a member, and serve until the connection is lost. Returns whether it was of use."""
        begun_s = None
        gateway = self._new_gateway(host)
        with self._changed:
            self._gateway = gateway
        try:
            gateway.connect()
            self._authenticate(gateway)
            self._up(self._take(gateway))
            begun_s = time.monotonic()
            self._serve(gateway)
            self._revoke(gateway)
        except (NetworkError, RemoteError, ConfigError) as error:
            self._down(error)
        finally:
            gateway.close()
        return begun_s is not None and time.monotonic() - begun_s >= STEADY_SECONDS

    def _new_gateway(self, host: str) -> Gateway:
        tls = self._tls.current() if self._tls is not None else None
        gateway = Gateway(host, tls, self._ttl / ANSWERS_PER_TIMEOUT)
        gateway.token = self._token
        return gateway

    def _authenticate(self, gateway: Gateway) -> None:
        access = self.address.access
        if not access.user:
            return
        request = {"name": access.user, "password": self._read_password()}
        try:
            self._token = gateway.token = gateway.post("auth/authenticate", request, TokenAnswer).token
        except EtcdError as error:
            if error.status != FAILED_PRECONDITION:
                raise
            _log.info("registry hosts=%s: etcd has no access control, the user is not needed", self.address.hosts)

    def _post(self, gateway: Gateway, method: str, request: dict[str, Any], kind: type[_T]) -> _T:
        """Send a request; if its token has expired, with a new one. Raises as `Gateway.post`."""
        try:
            return gateway.post(method, request, kind)
        except EtcdError as error:
            if not error.wants_token or not self.address.access.user:
                raise
        self._authenticate(gateway)
        return gateway.post(method, request, kind)

    # The lease.

    def _take(self, gateway: Gateway) -> Header:
        """Take the session for this connection, or begin a new one; returns the header of the answer."""
        if self._lease:
            header = self._write_key(gateway, is_new=False)
            if header is not None:
                return header
            self._revoke(gateway)
            self._lost()
        granted = self._post(gateway, "lease/grant", {"TTL": str(self._requested_ttl), "ID": "0"}, LeaseAnswer)
        self._lease, self._ttl = granted.id, granted.ttl
        gateway.limit(self._ttl / ANSWERS_PER_TIMEOUT)
        header = self._write_key(gateway, is_new=True)
        if header is None:
            raise OutcomeUnknown(f"{gateway.host}: the new lease is not there")
        return header

    def _write_key(self, gateway: Gateway, *, is_new: bool) -> Header | None:
        """Write the session's key; returns None if the session does not exist."""
        key = self._keys.session(self._lease)
        request = transactions.taking(key, self._lease, is_new=is_new)
        try:
            answer = self._post(gateway, TRANSACTION, request, TransactionAnswer)
        except EtcdError as error:
            if error.status != LEASE_NOT_FOUND:
                raise
            return None
        if not answer.succeeded:
            return None
        written = answer.found(1)
        if not written:
            raise ProtocolError(f"{gateway.host}: the session's key was written, and is not there")
        self._fence = Fence(key, written[0].version)
        self._witness = answer.header.member_id, answer.header.raft_term
        return answer.header

    def _revoke(self, gateway: Gateway) -> None:
        """End the lease, which deletes its keys."""
        try:
            self._post(gateway, "lease/revoke", {"ID": str(self._lease)}, AnyAnswer)
        except EtcdError as error:
            if error.status != LEASE_NOT_FOUND:
                raise

    def _ping(self, gateway: Gateway) -> None:
        """Renew the lease, and prove that it was renewed: see `tandemq.real.etcd`."""
        sent_ms = read_clock().mono_ms
        renewed = self._post(gateway, "lease/keepalive", {"ID": str(self._lease)}, KeepAliveAnswer).result
        answer = self._post(gateway, RANGE, {"key": self._fence.key, "keys_only": True}, RangeAnswer)
        if not self._fence.is_in(answer.kvs):
            raise OutcomeUnknown(f"{gateway.host}: the session has ended")
        witness = answer.header.member_id, answer.header.raft_term
        is_proved = renewed.ttl > 0 and renewed.header.member_id == witness[0] and witness == self._witness
        self._witness = witness
        if is_proved:
            self._events.append(Confirmed(sent_ms))
            self._wake()

    # Operations.

    def _serve(self, gateway: Gateway) -> None:
        """Carry out operations and pings until `close`. Raises NetworkError, RemoteError."""
        period_s = self._ttl / PINGS_PER_TIMEOUT
        ping_s = time.monotonic()
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work, max(0.0, ping_s - time.monotonic()))
                if self._is_stopping:
                    return
                if self._stream_problem:
                    raise OutcomeUnknown(f"the watch was lost: {self._stream_problem}")
                ask = self._in_flight[0] if self._in_flight else None
            now_s = time.monotonic()
            if now_s >= ping_s:
                self._ping(gateway)
                ping_s = now_s + period_s
            elif ask is not None:
                self._carry_out(gateway, ask)
                if isinstance(ask.operation, Create | Write | Delete) and len(self._in_flight) == 0:
                    ping_s = now_s  # a permission may depend on the confirmation

    def _has_work(self) -> bool:
        return self._is_stopping or bool(self._in_flight) or bool(self._stream_problem)

    def _carry_out(self, gateway: Gateway, ask: RegistryRequest) -> None:
        operation, sent_ms = ask.operation, read_clock().mono_ms
        reason, revision = refusal(operation), None
        outcome: Outcome
        try:
            if reason is not None:
                outcome = RegistryRefused(reason)
            elif isinstance(operation, Read | ReadChildren):
                outcome, revision = self._read(gateway, operation)
            else:
                outcome = self._write(gateway, operation)
        except EtcdError as error:
            if not error.is_refusal:
                raise
            outcome = RegistryRefused(str(_explained(error, self.address)))
        with self._changed:
            self._in_flight.popleft()
            self._events.append(RegistryResponse(ask.token, outcome, sent_ms))
            if isinstance(operation, Read | ReadChildren) and operation.watch:
                self._end_watch(revision)
        self._wake()

    def _read(self, gateway: Gateway, operation: Read | ReadChildren) -> tuple[Outcome, int]:
        """Return the outcome, and the revision that was read."""
        if operation.watch:
            self._begin_watch(operation)
        if isinstance(operation, Read):
            found = self._post(gateway, RANGE, transactions.reading(operation, self._keys), RangeAnswer)
            return transactions.read_outcome(found), found.header.revision
        answer = self._post(gateway, TRANSACTION, transactions.listing(operation, self._keys), TransactionAnswer)
        return transactions.listing_outcome(operation, answer, self._keys), answer.header.revision

    def _write(self, gateway: Gateway, operation: Create | Write | Delete) -> Outcome:
        request = transactions.writing(operation, self._keys, self._lease, self._fence)
        answer = self._post(gateway, TRANSACTION, request, TransactionAnswer)
        outcome = transactions.written_outcome(operation, answer, self._fence)
        if outcome is None:
            raise OutcomeUnknown(f"{gateway.host}: the session has ended")
        return outcome

    # Watches.

    def _begin_watch(self, operation: Read | ReadChildren) -> None:
        with self._changed:
            if self._watches.begin(operation.path, children=isinstance(operation, ReadChildren)):
                self._open_stream()

    def _end_watch(self, revision: int | None) -> None:
        """Arm the watch of a read; `revision`: of the answer, None if the read was refused."""
        if revision is None:
            self._watches.cancel()
        elif (path := self._watches.end(revision)) is not None:
            self._events.append(Changed(path))

    def _open_stream(self) -> None:
        """Begin a watch stream behind the last change seen, in place of the one that there is."""
        self._close_stream()
        assert self._gateway is not None, "connected"
        assert self._watches.directory is not None, "there is a watch"
        keys = transactions.below(self._keys.of(self._watches.directory))
        gateway = self._new_gateway(self._gateway.host)
        self._stream = WatchStream(gateway, keys, self._watches.seen + 1, self._on_batch, self._on_stream_end)
        self._stream_begun_s = time.monotonic()
        self._stream.start()

    def _close_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _on_batch(self, stream: WatchStream, batch: WatchBatch) -> None:
        """Take a message of a stream, on its thread."""
        with self._changed:
            if stream is not self._stream:
                return
            fired: list[str] = []
            for event in batch.events:
                found = event.kv
                path = self._keys.path(found.key)
                fired += self._watches.change(path, found.mod_revision, is_written=found.version > 1)
            if batch.canceled and batch.compact_revision:
                fired += self._watches.compacted(batch.compact_revision)
                self._open_stream()
            elif batch.canceled:
                self._stream_problem = batch.cancel_reason or "etcd canceled it"
                self._changed.notify_all()
            self._events.extend(map(Changed, fired))
        if fired:
            self._wake()

    def _on_stream_end(self, stream: WatchStream, reason: str) -> None:
        """Take the end of a stream, on its thread: begin it again, unless it did not last."""
        with self._changed:
            if stream is not self._stream:
                return
            if stream.was_created and time.monotonic() - self._stream_begun_s >= STEADY_SECONDS:
                self._open_stream()
                return
            self._stream_problem = reason
            self._changed.notify_all()

    # States.

    def _up(self, header: Header) -> None:
        timeout_ms = self._ttl * 1000
        with self._changed:
            self._is_up = True
            self.problem = self.refusal = self._stream_problem = ""
            self._watches = Watches(header.revision)
            self._events.append(SessionUp(self._lease, timeout_ms))
            self._announced = self._lease
        _log.info("registry session up hosts=%s session=%x timeout_ms=%d", self.address.hosts, self._lease, timeout_ms)
        self._wake()

    def _down(self, error: TandemError) -> None:
        explained = _explained(error, self.address)
        text, now_ms = str(explained), read_clock().mono_ms
        with self._changed:
            self._events.extend(RegistryResponse(ask.token, Unknown(), now_ms) for ask in self._in_flight)
            self._in_flight.clear()
            self._close_stream()
            if self._is_up:
                self._events.append(SessionSuspended())
                _log.warning("registry suspended hosts=%s session=%x: %s", self.address.hosts, self._lease, text)
            elif text != self.problem:
                _log.info("registry not reached hosts=%s: %s", self.address.hosts, text)
            self._is_up = False
            self.problem = text
            is_refused = isinstance(error, EtcdError) and (error.is_refusal or error.wants_token)
            self.refusal = text if is_refused else ""
        self._wake()

    def _lost(self) -> None:
        if self._lease == self._announced:
            _log.warning("registry session lost hosts=%s session=%x", self.address.hosts, self._lease)
            self._events.append(SessionLost())
            self._wake()
        self._lease = 0


def _explained(error: TandemError, address: RegistryAddress) -> TandemError:
    """Return an error with a hint where etcd's access control is the cause."""
    if not isinstance(error, EtcdError):
        return error
    is_denied = error.status == PERMISSION_DENIED
    if (error.wants_token or is_denied) and not address.access.user:
        return EtcdError(str(error.args[0]), error.status, hint="add user=NAME&passwordFile=FILE to the address")
    if is_denied:
        what = f"grant-permission ROLE --prefix=true readwrite {address.prefix}/tandemq"
        return EtcdError(str(error.args[0]), error.status, hint=f"etcdctl role {what}")
    return error
