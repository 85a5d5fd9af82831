"""The client's node on asyncio: sockets, clock, futures.

    data_received ─────────┐
    call of an operation ──┼─► once per turn of the loop: node.turn ─► one write per connection, connects, closes
    timer ─────────────────┘

Received data is passed to the node at once, and all data for a peer of one turn of the loop is sent in one write.
There is no task per request and none per message.

A producer or consumer calls an operation of the node with `shell.now`, calls `wake`, and awaits `done(ticket)`.
"""

import asyncio
import contextlib
import ipaddress
import itertools
import logging
import math
import os
import socket
import time
from collections.abc import Callable
from functools import partial
from random import Random, SystemRandom
from threading import get_ident
from typing import TypeVar, cast
from weakref import WeakSet

from tandemq.boundary import Closed, Event, LinkKind, Now, Opened, Turn
from tandemq.client.consumer.offsets.local_store import FileOffsetStorage
from tandemq.client.core.calls import Ticket
from tandemq.client.core.routes import WHERE
from tandemq.client.core.settings import ClientConfig, split_addresses
from tandemq.client.credentials import environment_credentials
from tandemq.client.node import ClientNode
from tandemq.config.tls import ClientTls
from tandemq.errors import ClosedError, LocalError, NetworkError, NoRoute, NotConnected, OutcomeUnknown
from tandemq.model.access import Credentials
from tandemq.real.network.addresses import own_ip
from tandemq.real.network.client_tls import ClientContext, explain

log = logging.getLogger(__name__)
T = TypeVar("T")
WRITE_BUFFER_MAX = 1 << 20
START_PAUSE_MS = 200
"""Pause between two attempts to reach a name server at the start."""
CLOSE_AFTER_ERROR_S = 0.8
"""Timeout of `close` after an error."""
TLS_CLOSE_S = 0.5
"""For how long `close` waits until servers have confirmed the end of TLS."""
NEXT_ADDRESS_S = 0.25
"""After this time without a connection to an address of a host, the next one is tried too (RFC 8305)."""
_serial = itertools.count(1)
_shells: "WeakSet[Shell]" = WeakSet()
running_loop = asyncio._get_running_loop  # noqa: SLF001  # documented for frameworks: None without a loop
_monotonic_ns, _time_ns = time.monotonic_ns, time.time_ns


def make_config(
    name_servers: str, client_id: str = "", tls: ClientTls | bool = False, credentials: Credentials | None = None
) -> ClientConfig:
    """Return the configuration of a client on this machine.

    Args:
        name_servers: "host:port", several separated by ";".
        client_id: by default a unique one.
        tls: TLS on all connections; True: with the authorities of the system.
        credentials: user that signs all requests; None: that of the environment, if there is one.

    Raises:
        ConfigError: an address is not "host:port", or the credentials of the environment are incomplete.
    """
    addresses = split_addresses(name_servers)
    ip = own_ip(addresses[0]) if addresses else "127.0.0.1"
    name = client_id or f"{ip}@{os.getpid()}#{time.time_ns():x}.{next(_serial)}"
    own_tls = ClientTls() if tls is True else tls or None
    return ClientConfig(
        name_servers=addresses,
        client_id=name,
        ip=ip,
        pid=os.getpid(),
        tls=own_tls,
        credentials=credentials or environment_credentials(),
    )


async def _addresses(host: str, port: int) -> list[str]:
    """Return the IP addresses of a host, in the order to try.

    Raises:
        OSError: the name is not known.
    """
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _reason(errors: list[Exception], host: str, *, is_tls: bool) -> str:
    """Return why no address of a host could be connected; the same words on each event loop."""
    error = next((failure for failure in errors if not isinstance(failure, ConnectionRefusedError)), None)
    if error is None:
        return "connection refused"
    if is_tls and isinstance(error, OSError):
        return explain(error, host)
    number = error.errno if isinstance(error, OSError) and not isinstance(error, socket.gaierror) else None
    return os.strerror(number).lower() if number else str(error)


def _forked() -> None:
    for shell in _shells:
        shell.forked()


os.register_at_fork(after_in_child=_forked)


class _Connection(asyncio.Protocol):
    """One connection; passes events to the shell."""

    def __init__(self, shell: "Shell", link: int, host: str) -> None:
        self._shell = shell
        self._link = link
        self.host = host
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not each event loop derives its transports from asyncio's classes.
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_MAX)
        self._shell.opened(self._link, self)

    def data_received(self, data: bytes) -> None:
        self._shell.received(self._link, data)

    def connection_lost(self, exc: Exception | None) -> None:
        reason = "closed by the peer"
        if exc is not None:
            reason = explain(exc, self.host, is_open=True) if isinstance(exc, OSError) else str(exc)
        self._shell.lost(self._link, self, reason)

    def pause_writing(self) -> None:
        self._shell.paused(self._link)

    def resume_writing(self) -> None:
        self._shell.resumed(self._link)


def _end_wait(future: asyncio.Future[None], _ticket: object) -> None:
    if not future.done():
        future.set_result(None)


class Shell:
    """Drives one client node on the running event loop, to which it belongs."""

    def __init__(self, config: ClientConfig) -> None:
        """Create the node; must be called within a running event loop.

        Raises:
            ConfigError: a file of TLS cannot be used.
        """
        self.loop = asyncio.get_running_loop()
        """The event loop that it belongs to."""
        self._create_future = self.loop.create_future
        self._process = os.getpid()
        self._thread = get_ident()
        self._is_running = self.loop.is_running
        _shells.add(self)
        self._tls = ClientContext(config.tls) if config.tls is not None else None
        self.node = ClientNode(
            config, Random(SystemRandom().getrandbits(64)), self.now, FileOffsetStorage(config.client_id)
        )
        self._received: list[tuple[int, bytes]] = []
        self._events: list[Event] = []
        self._links: dict[int, _Connection] = {}
        self._connecting: dict[int, asyncio.Task[None]] = {}
        self._paused: set[int] = set()
        self._writable: list[asyncio.Future[None]] = []
        self.is_awake = False
        """Whether a turn of the node is to come, so that `wake` has no effect."""
        self.is_closed = False
        """Whether the client is closed: by `close`, or by itself because it failed."""
        self._has_failed = False
        """Whether the last operation failed with a NetworkError: then `close` does not wait long."""
        self.waiting: set[asyncio.Future[None]] = set()
        """Futures of `settled`."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        """When the timer is due, if there is one."""
        self._all_lost: asyncio.Future[None] | None = None
        """Done when the last connection is closed."""
        self._closing = asyncio.Lock()
        self.failure: ClosedError | None = None
        """Why the client closed itself, if it did."""
        self.on_closed: Callable[[], None] = lambda: None
        """Called when the client is closed, in whatever way; may be called twice."""

    @property
    def now(self) -> Now:
        """The current time."""
        return Now(_monotonic_ns() // 1_000_000, _time_ns() // 1_000_000)

    # For producers and consumers.

    def drive(self) -> None:
        """Run a turn of the node now; not for callbacks of tickets, which are called within a turn."""
        self._drive()

    def wake(self) -> None:
        """Run a turn of the node in the next turn of the event loop."""
        if not self.is_awake and not self.is_closed:
            self.is_awake = True
            self.loop.call_soon(self._wake_up)

    async def done(self, ticket: Ticket[T]) -> T:
        """Wait for an operation and return its result.

        Raises:
            TandemError: the operation failed.
        """
        if not ticket.done:
            self.wake()
            future = self.settled(ticket)
            try:
                await future
            finally:
                self.waiting.discard(future)
        return self.outcome(ticket)

    def settled(self, ticket: Ticket[T]) -> asyncio.Future[None]:
        """Return a future that is done when the ticket is settled, for the caller, who wakes the node, and removes it
        from `waiting` after that."""
        future: asyncio.Future[None] = self._create_future()
        if ticket.waiter is None:
            ticket.waiter = future
        else:
            ticket.then(partial(_end_wait, future))
        self.waiting.add(future)
        if self.is_closed:
            self._release("the client is closed")
        return future

    def outcome(self, ticket: Ticket[T]) -> T:
        """Return the result of a settled ticket.

        Raises:
            TandemError: the operation failed.
        """
        error = ticket.error
        self._has_failed = error is not None and isinstance(error, NetworkError)
        return ticket.result()

    async def reach_name_server(self, timeout_ms: int, topic: str) -> None:
        """Wait for a response of a name server to the query for a topic's route; retried until the timeout.

        Raises:
            NetworkError: no name server responded in time.
            RemoteError: the server at the address is not a name server.
        """
        started = self.now.mono_ms
        while timeout_ms:
            self.check_open()
            left_ms = max(1, started + timeout_ms - self.now.mono_ms)
            try:
                async with asyncio.timeout(left_ms / 1000):
                    await self.done(self.node.runner.start(self.node.routes.fetch_within(topic, left_ms), self.now))
            except NoRoute:
                return
            except TimeoutError:
                self._has_failed = True
                servers = ";".join(self.node.config.name_servers)
                raise NotConnected(f"no name server responds within {timeout_ms} ms: {servers}", hint=WHERE) from None
            except NetworkError:
                self.check_open()
                if self.now.mono_ms + START_PAUSE_MS >= started + timeout_ms:
                    raise
                await asyncio.sleep(START_PAUSE_MS / 1000)
            else:
                return

    async def writable(self) -> None:
        """Wait while a send buffer is full."""
        if self._paused:
            future = self.loop.create_future()
            self._writable.append(future)
            await future

    @property
    def is_paused(self) -> bool:
        """Whether a send buffer is full."""
        return bool(self._paused)

    @property
    def is_in_use(self) -> bool:
        """Whether the client is open, and its event loop too."""
        return not self.is_closed and not self.loop.is_closed()

    def check_open(self) -> None:
        """Check that the client is open, and called on its event loop.

        Raises:
            ClosedError: the client was closed.
            LocalError: it belongs to another event loop.
        """
        if self.is_closed:
            raise ClosedError(str(self.failure or "the client is closed"))
        if running_loop() is not self.loop:
            self._check_loop()

    def is_usable(self) -> bool:
        """Return whether the client is open, and called on its event loop; as `check_open`, which costs a system call
        in some versions of Python."""
        return not self.is_closed and self._is_running() and get_ident() == self._thread

    def forked(self) -> None:
        """Belong to no thread: this is a copy in a process made by fork."""
        self._thread = 0

    def _check_loop(self) -> None:
        if os.getpid() != self._process:
            raise LocalError(
                f"the client belongs to process {self._process}; process {os.getpid()} is a copy made by fork",
                hint="create clients after the fork, in the process that uses them",
            )
        if running_loop() is not self.loop:
            raise LocalError(
                "the client was started on another event loop",
                hint="start one on each loop; from other threads use asyncio.run_coroutine_threadsafe",
            )

    async def close(self, *, after_error: bool = False, limit_s: float | None = None) -> None:
        """Leave all groups and close all connections.

        Waits for operations in flight, within their timeouts and `limit_s`; for `CLOSE_AFTER_ERROR_S` at most if the
        last operation failed with a NetworkError, nothing is connected, or the caller closes because of an error. Other
        calls of `close` wait for the first one. A cancelled one closes the connections at once. Operations without a
        response then end with OutcomeUnknown.

        Raises:
            LocalError: the client belongs to another event loop.
        """
        if self.is_closed:
            return
        self._check_loop()
        async with self._closing:
            if self.is_closed:
                return
            try:
                is_short = after_error or self._has_failed or not self._links
                await self._close(min(limit_s or math.inf, CLOSE_AFTER_ERROR_S if is_short else math.inf))
            except asyncio.CancelledError:
                self.abort()
                raise

    async def _close(self, limit_s: float) -> None:
        try:
            async with asyncio.timeout(limit_s if limit_s < math.inf else None):
                await self.done(self.node.close(self.now))
        except TimeoutError:
            log.info("closed without the responses in flight")
        except NetworkError as error:
            log.info("closed: %s", error)
        self._drive()
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._connecting.values():
            task.cancel()
        await asyncio.gather(*self._connecting.values(), return_exceptions=True)
        for link in list(self._links.values()):
            if link.transport is not None:
                link.transport.close()
        self._end_operations("the client was closed")
        # Transports close in the next turn of the event loop; those with TLS when the server confirms.
        await asyncio.sleep(0)
        if self._tls is not None and self._links:
            await self._end_tls()

    async def _end_tls(self) -> None:
        ended = self._all_lost = self.loop.create_future()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TLS_CLOSE_S):
                await ended
        for link in list(self._links.values()):
            if link.transport is not None:
                link.transport.abort()
        await asyncio.sleep(0)

    # Turns.

    def _wake_up(self) -> None:
        if self.is_awake:
            self._drive()

    def _drive(self) -> None:
        self.is_awake = False
        if self.is_closed:
            return
        received, self._received = self._received, []
        events, self._events = self._events, []
        try:
            self._perform(self.node.turn(received, events, self.now))
        except Exception as error:  # a bug: the state may be inconsistent, and no caller must wait for ever
            log.exception("the client failed and is closed")
            self.failure = ClosedError(f"the client failed: {error!r}")
            self.abort(str(self.failure))
            return
        self._arm()

    def abort(self, reason: str = "the client was closed") -> None:
        """Close all connections at once; operations in flight fail."""
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._connecting.values()):
            task.cancel()
        for link in list(self._links.values()):
            if link.transport is not None:
                link.transport.abort()
        self._end_operations(reason)

    def _end_operations(self, reason: str) -> None:
        """Have the node fail what is in flight, and end all waits of callers."""
        try:
            self.node.end(self.now, reason)
        except Exception:  # a bug, see `_drive`
            log.exception("the client failed while it was closed")
        self._release(reason)
        self._free_writers()
        self.on_closed()

    def _release(self, reason: str) -> None:
        """End the waits for operations that have not ended: some of their requests may have been carried out."""
        for future in list(self.waiting):
            if not future.done():
                future.set_exception(OutcomeUnknown(reason, hint="the operation may have been carried out"))

    def _arm(self) -> None:
        deadline_ms = self.node.deadline_ms()
        if deadline_ms is None:
            return
        if self._timer is not None:
            if self._timer_ms <= deadline_ms:
                return
            self._timer.cancel()
        self._timer_ms = deadline_ms
        self._timer = self.loop.call_later(max(0, deadline_ms / 1000 + 0.001 - time.monotonic()), self._due)

    def _due(self) -> None:
        self._timer = None
        self.wake()

    def _perform(self, turn: Turn) -> None:
        for number, buffers in turn.sends.items():
            link = self._links.get(number)
            if link is not None and link.transport is not None:
                link.transport.write(buffers[0] if len(buffers) == 1 else b"".join(buffers))
        for number, _reason in turn.closes:
            link = self._links.get(number)
            if link is not None and link.transport is not None:
                link.transport.abort()
            elif number in self._connecting:
                self._connecting[number].cancel()
        for connect in turn.connects:
            task = self.loop.create_task(self._connect(connect.link, connect.address))
            self._connecting[connect.link] = task

    async def _connect(self, number: int, address: str) -> None:
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        errors: list[Exception] = []
        try:
            addresses = await _addresses(host, int(port))
            errors = await self._connect_any(number, host, [(ip, int(port)) for ip in addresses])
        except (OSError, ValueError, OverflowError) as error:
            errors = [error]
        finally:
            self._connecting.pop(number, None)
        if errors:
            self._events.append(Closed(number, _reason(errors, host, is_tls=self._tls is not None)))
            self.wake()

    async def _connect_any(self, number: int, host: str, addresses: list[tuple[str, int]]) -> list[Exception]:
        """Connect to the first address that accepts. One that does not respond delays the next by `NEXT_ADDRESS_S`.

        Returns:
            why each address failed; empty if there is a connection.
        """
        left, errors = addresses[::-1], list[Exception]()
        attempts: set[asyncio.Task[None]] = set()
        try:
            while left or attempts:
                if left:
                    attempts.add(self.loop.create_task(self._connect_to(number, host, *left.pop())))
                timeout_s = NEXT_ADDRESS_S if left else None
                done, attempts = await asyncio.wait(attempts, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
                failed = [task.exception() for task in done]
                if None in failed:
                    return []
                errors += [error for error in failed if isinstance(error, Exception)]
            return errors
        finally:
            for attempt in attempts:
                attempt.cancel()
            await asyncio.gather(*attempts, return_exceptions=True)

    async def _connect_to(self, number: int, host: str, address: str, port: int) -> None:
        if self._tls is None:
            await self.loop.create_connection(lambda: _Connection(self, number, host), address, port)
        else:
            await self.loop.create_connection(
                lambda: _Connection(self, number, host),
                address,
                port,
                ssl=self._tls.current(),
                server_hostname=host,
                ssl_shutdown_timeout=TLS_CLOSE_S,
            )

    # Called by connections.

    def opened(self, number: int, link: _Connection) -> None:
        """Handle an open connection."""
        assert link.transport is not None
        if self.is_closed or number in self._links:
            link.transport.abort()
            return
        self._links[number] = link
        peer = link.transport.get_extra_info("peername") or ("", 0)
        local = link.transport.get_extra_info("sockname") or ("", 0)
        self._events.append(Opened(number, LinkKind.PEER, f"{peer[0]}:{peer[1]}", f"{local[0]}:{local[1]}"))
        self.wake()

    def received(self, number: int, data: bytes) -> None:
        """Handle received bytes, at once: a turn of the event loop less than by `wake`."""
        self._received.append((number, data))
        self._drive()

    def lost(self, number: int, link: _Connection, reason: str) -> None:
        """Handle the end of a connection."""
        if self._links.get(number) is not link:
            return  # another address of the host was faster
        del self._links[number]
        if self._all_lost is not None and not self._links and not self._all_lost.done():
            self._all_lost.set_result(None)
        self.resumed(number)
        self._events.append(Closed(number, reason))
        self.wake()

    def paused(self, number: int) -> None:
        """Handle a full send buffer."""
        self._paused.add(number)

    def resumed(self, number: int) -> None:
        """Handle a send buffer that has room again."""
        self._paused.discard(number)
        if not self._paused:
            self._free_writers()

    def _free_writers(self) -> None:
        waiting, self._writable = self._writable, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
