"""Event loop of a server: sockets and worker threads around one node, which is called once per turn.

    wait → accept, receive → node.turn(received, events, now) → start jobs, send, close, connect

All sockets share one receive buffer, except that the connection to a master has a larger one, and that connections with
much to read are read into blocks of their own. Bytes that the kernel
does not accept are queued per connection. A connection with more than `BACKLOG_READ_STOP` queued bytes is not read
until they are sent; if all connections together queue more than `untaken_max`, stalled ones are closed. With TLS
(`protect`) a connection counts as open after its handshake, and its queued bytes are encrypted.
"""

import contextlib
import errno
import logging
import os
import select
import socket
from collections import deque
from collections.abc import Callable
from time import monotonic_ns

from tandemq.boundary import (
    READS_AT_ONCE,
    Buffer,
    Closed,
    Connect,
    Drained,
    Event,
    LinkKind,
    Node,
    Opened,
    Turn,
)
from tandemq.real.busy_poll import BusyPoll
from tandemq.real.clock import read_clock
from tandemq.real.file_syncs import FileSyncs
from tandemq.real.loop_state import LoopState
from tandemq.real.network.addresses import is_ip, text_of
from tandemq.real.network.admission import Admission
from tandemq.real.network.handshakes import Handshakes
from tandemq.real.network.ports import Ports
from tandemq.real.network.resolver import Resolver
from tandemq.real.network.socket_connection import SocketConnection, surplus
from tandemq.real.network.tls import Tls
from tandemq.real.workers import Workers
from tandemq.refusals import Refusals
from tandemq.registry import RegistrySession

log = logging.getLogger(__name__)
RECEIVE_BYTES = 256 * 1024
TURN_BYTES = 4 << 20
"""Number of bytes that a turn receives, divided among the readable connections: turns stay short, and their memory is
small enough for the C library to keep (`memory.py`)."""
SHARE_BYTES_MIN = 64 * 1024
SHARE_BYTES_MAX = 4 * RECEIVE_BYTES
"""Bounds of a connection's part; with POLLED_MAX connections a turn receives up to 16 MiB."""
UNREAD_BYTES = 32 << 20
CROWDED_SHARE_BYTES = 4096
"""Part of a connection while more than `UNREAD_BYTES` wait for their turn."""
LOG_RECEIVE_BYTES = 1 << 20
"""Receive size for the connection to a master: large, since verifying many records at once is cheaper, but still small
enough to keep turns short."""
BACKLOG_READ_STOP = 8 << 20
BACKLOG_CLOSE = 256 << 20
BULK_BYTES = 64 * 1024
"""After a read of this size or more the next one is made into a block of its own, which saves a copy; a block that is
mostly unused would cost more."""
SMALL_BYTES = 64 * 1024
BUFFERS_PER_SEND = 512
WAIT_MS_MAX = 1_000
LEAVING_MS = 500
SENDING_MS = 1_000
POLLED_MAX = 256
NEVER_NS = 1 << 62
_STALLED = "it does not read its responses"
_GONE = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR)


class Loop:
    """Event loop for one node. `stop` may be called from any thread or signal handler."""

    def __init__(
        self,
        *,
        connections_max: Callable[[], int] = lambda: 50_000,
        is_member: Callable[[str], bool] = lambda _: False,
        untaken_max: Callable[[], int] = lambda: BACKLOG_CLOSE,
        busy_poll_us: int = 0,
    ) -> None:
        """Create a loop; call `listen`, then `run`.

        Args:
            connections_max: returns the maximum number of client connections; called at each accept.
            is_member: whether an IP address is that of a broker of the node's group; connections are reserved for them.
            untaken_max: returns the maximum of queued bytes on all connections; called when bytes are queued.
            busy_poll_us: time to poll before the loop sleeps, if the next event will probably come by then.
        """
        self._busy_poll = BusyPoll(busy_poll_us)
        self._epoll = select.epoll()
        self._ports = Ports(self._epoll)
        self._by_fd: dict[int, SocketConnection] = {}
        self._by_number: dict[int, SocketConnection] = {}
        self._handshakes = Handshakes(self._put, self._drop, self._report)
        self._admission = Admission(connections_max, is_member)
        self._untaken_max = untaken_max
        self._untaken = 0
        """Sum of `SocketConnection.held`."""
        self._stalled = Refusals()
        self._refused = Refusals()
        self._next_number = 0
        self._buffer = bytearray(RECEIVE_BYTES)
        self._view = memoryview(self._buffer)
        self._log_view = memoryview(b"")
        self._events: list[Event] = []
        self._unread: list[tuple[int, bytes]] = []
        """Connections and bytes that the node left for its next turn."""
        self._unread_bytes = 0
        self._turn_began_ns = 0
        self._workers = Workers(self.wake)
        self._readers = Workers(self.wake, "reader", READS_AT_ONCE)
        self._syncs = FileSyncs()
        if self._syncs.fd >= 0:
            self._epoll.register(self._syncs.fd, select.EPOLLIN)
        self._resolver = Resolver(self.wake)
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._epoll.register(self._wake_read, select.EPOLLIN)
        self._stopping = False
        self._report_turns: Callable[[], None] = lambda: None
        self._report_ns = self._report_due_ns = NEVER_NS
        self.registry: RegistrySession | None = None
        """Executes the node's registry operations; calls `wake` when it has events."""

    def backlog(self, link: int) -> int:
        """See `boundary.Outbox`."""
        found = self._by_number.get(link)
        return found.out_bytes if found is not None else 0

    def elapsed_us(self) -> int:
        """See `boundary.Outbox`."""
        return (monotonic_ns() - self._turn_began_ns) // 1000

    def state(self) -> LoopState:
        """Return figures of the loop."""
        return LoopState(len(self._by_fd), self._untaken, self._refused.count, self._busy_poll.total_ns)

    def listen(
        self,
        address: str,
        port: int,
        kind: LinkKind,
        what: str = "listenPort",
        *,
        is_new: bool = False,
        is_shared: bool = False,
    ) -> int:
        """Bind a port, 0 for any free one, and return it; connections are refused until `accept` or `run`.

        Args:
            what: name of the setting for the port, for the error message.
            is_new: whether the port must be nobody's; else it may be one that a process has reserved for this one, or
                that an earlier process used until now.
            is_shared: whether other processes may listen on the port too.

        Raises:
            ConfigError: the address cannot be used.
        """
        return self._ports.listen(address, port, kind, what, is_new=is_new, is_shared=is_shared)

    def accept(self) -> None:
        """Begin to accept connections on all ports.

        Raises:
            ConfigError: another process listens on a port meanwhile.
        """
        self._ports.begin()

    def unlisten(self, port: int) -> None:
        """Release a bound port; only before `run`."""
        self._ports.unlisten(port)

    def protect(self, kind: LinkKind, tls: Tls) -> None:
        """Use TLS on connections of this kind; only before `run`."""
        self._handshakes.protect(kind, tls)

    # Running.

    def report_alive(self, report: Callable[[], None], interval_ns: int) -> None:
        """Have `run` call `report` after its first turn, and after the first turn of each interval from then on.

        Without anything to do the loop turns once in WAIT_MS_MAX.
        """
        self._report_turns, self._report_ns, self._report_due_ns = report, interval_ns, 0
        self.wake()  # the first turn does not wait

    def run(self, node: Node) -> None:
        """Run turns of the node until `stop`."""
        self.accept()
        while not self._stopping:
            self._once(node)
            if self._turn_began_ns >= self._report_due_ns:
                self._report_due_ns = self._turn_began_ns + self._report_ns
                self._report_turns()

    def _once(self, node: Node, wait_ms: int = WAIT_MS_MAX) -> None:
        received = self._take_unread()
        left = len(received)
        is_done = self._workers.done or self._readers.done
        is_due = self._events or is_done or self._resolver.has_found or self._handshakes.has_waiting
        if left or is_due:
            wait_ms = 0
        self._ports.resume()
        self._handshakes.turn_began()
        ready = self._wait(node, wait_ms)
        share = self._share(len(ready))
        buffer, times = self._view[:share], max(1, share // RECEIVE_BYTES)
        for fd, mask in ready:
            link = self._by_fd.get(fd)
            if link is None:
                self._other(fd)
                continue
            if mask & select.EPOLLOUT:
                self._writable(link)
            if mask & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR) and link.is_open and not link.has_unread:
                if link.kind is LinkKind.HA_SLAVE:
                    self._receive(link, received, self._log_view, 1)
                elif not link.is_plain and self._waits(link, mask):
                    continue
                else:
                    self._receive(link, received, buffer, times)
        for link in self._handshakes.due():
            self._set_mask(link)
            self._receive(link, received, buffer, times)
        if self._resolver.has_found:
            self._connect_found()
        events = self._take_events()
        self._turn_began_ns = monotonic_ns()
        turn = node.turn(received, events, read_clock())
        for number, _ in received[:left]:
            if (link := self._by_number.get(number)) is not None:
                link.has_unread = False
        for piece in turn.unread:
            self._leave(*piece)
        self._carry_out(turn)

    def _share(self, connections: int) -> int:
        """Return how many bytes a turn receives from each of the readable connections."""
        if self._unread_bytes > UNREAD_BYTES:
            return CROWDED_SHARE_BYTES
        return min(SHARE_BYTES_MAX, max(SHARE_BYTES_MIN, TURN_BYTES // (connections or 1)))

    def _leave(self, number: int, data: bytes) -> None:
        """Keep bytes for the next turn; nothing more is read from their connection until they are taken."""
        link = self._by_number.get(number)
        if link is not None:
            link.has_unread = True
            self._unread.append((number, data))
            self._unread_bytes += len(data)

    def _take_unread(self) -> list[tuple[int, bytes]]:
        """Return what earlier turns left, except of peers that do not read their responses."""
        unread, self._unread = self._unread, []
        taken = []
        for number, data in unread:
            link = self._by_number.get(number)
            if link is not None and link.out_bytes > BACKLOG_READ_STOP:
                self._unread.append((number, data))
                continue
            self._unread_bytes -= len(data)
            if link is not None:
                taken.append((number, data))
        return taken

    def _wait(self, node: Node, wait_ms: int) -> list[tuple[int, int]]:
        """Return the ready descriptors with their event masks; wait for one until the node's deadline.

        If the next event is probably near, it polls for a moment before it sleeps, and yields the CPU in between.
        """
        poll = self._epoll.poll
        ready = poll(0, POLLED_MAX)
        if ready or not wait_ms:
            return ready
        deadline = node.deadline_ms()
        if deadline is not None:
            wait_ms = min(wait_ms, deadline - read_clock().mono_ms)
            if wait_ms <= 0:
                return ready
        began_ns = monotonic_ns()
        if self._busy_poll.is_worth:
            until_ns = began_ns + self._busy_poll.poll_ns
            while not ready and monotonic_ns() < until_ns:
                os.sched_yield()
                ready = poll(0, POLLED_MAX)
        if not ready:
            ready = poll(wait_ms / 1000, POLLED_MAX)
        self._busy_poll.waited(monotonic_ns() - began_ns)
        return ready

    def _report(self, event: Event) -> None:
        self._events.append(event)

    def _take_events(self) -> list[Event]:
        for done in (self._workers.done, self._readers.done):
            while done:
                self._events.append(done.popleft())
        if self.registry is not None:
            self._events.extend(self.registry.take_events())
        events, self._events = self._events, []
        return events

    def _other(self, fd: int) -> None:
        if fd == self._wake_read:
            try:
                os.read(fd, 4096)
            except BlockingIOError:
                return
        elif fd == self._syncs.fd:
            self._events.extend(self._syncs.take_done())
        elif fd in self._ports:
            self._accept(fd)

    def _accept(self, fd: int) -> None:
        for sock, host, peer, kind in self._ports.accept(fd):
            refusal = self._admission.refusal(kind, host, len(self._by_fd))
            if refusal:
                times = self._refused.note(host, read_clock().mono_ms)
                if times:
                    log.warning("accept: peer=%s refused times=%d reason=%r", peer, times, refusal)
                sock.close()
                continue
            self._next_number += 1
            link = self._add(sock, self._next_number, kind, is_open=True)
            self._admission.opened(kind)
            link.reset_when_killed()
            self._handshakes.opened(link, Opened(link.number, kind, peer, text_of(sock.getsockname())))

    def _add(self, sock: socket.socket, number: int, kind: LinkKind, *, is_open: bool) -> SocketConnection:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = SocketConnection(number, sock, kind, is_open, deque())
        if kind is LinkKind.HA_SLAVE and not self._log_view:
            self._log_view = memoryview(bytearray(LOG_RECEIVE_BYTES))
        if not is_open:
            link.mask = select.EPOLLOUT
        self._by_fd[sock.fileno()] = link
        self._by_number[number] = link
        self._epoll.register(sock.fileno(), link.mask)
        return link

    def _waits(self, link: SocketConnection, mask: int) -> bool:
        """Return whether a readable connection waits for its handshake; one that was reset is closed instead."""
        if self._handshakes.is_waiting(link):
            if mask & (select.EPOLLHUP | select.EPOLLERR):
                self._drop(link, self._handshakes.ended(link))
            return True
        if not self._handshakes.must_wait(link):
            return False
        self._set_mask(link)
        return True

    def _receive(
        self, link: SocketConnection, received: list[tuple[int, bytes]], buffer: memoryview, times: int
    ) -> None:
        for earlier in range(times):
            try:
                if link.is_bulk:
                    data = link.sock.recv(len(buffer))
                    count = len(data)
                else:
                    count = link.sock.recv_into(buffer)
                    data = b""
            except OSError as error:
                if error.errno not in _GONE and not earlier:
                    self._drop(link, os.strerror(error.errno or 0))
                return
            if not count:
                if not earlier:  # else noticed again in the next turn: the node first takes what came before
                    reason = self._handshakes.ended(link)
                    self._drop(link, link.send_error or reason)
                return
            if link.is_plain:
                received.append((link.number, data or bytes(buffer[:count])))
                link.is_bulk = count >= BULK_BYTES
            else:
                plain = self._handshakes.receive(link, buffer[:count])
                if plain:
                    received.append((link.number, plain))
                if not link.is_open:
                    return
            if count < len(buffer):
                return

    # Carrying out.

    def _carry_out(self, turn: Turn) -> None:
        for job in turn.jobs:  # first, since they run in parallel to the rest
            if job.is_read:
                self._readers.start(job)
            elif not self._syncs.begin(job):
                self._workers.start(job)
        for number, buffers in turn.sends.items():
            link = self._by_number.get(number)
            if link is not None:
                self._send(link, buffers)
        for number, reason in turn.closes:
            link = self._by_number.get(number)
            if link is not None:
                self._drop(link, reason)
            elif self._resolver.forget(number):
                self._events.append(Closed(number, reason))
        for connect in turn.connects:
            self._connect(connect)
        if turn.asks:
            assert self.registry is not None, "registry operations need a registry client"
            for ask in turn.asks:
                self.registry.ask(ask)

    def _send(self, link: SocketConnection, buffers: list[Buffer]) -> None:
        self._put(link, buffers if link.tls is None else link.tls.encrypt(buffers))

    def _put(self, link: SocketConnection, buffers: list[Buffer]) -> None:
        if link.send_error:
            return
        if link.out or not link.is_open:
            self._keep(link, buffers)
            return
        try:
            if len(buffers) == 1:
                sent = link.sock.send(buffers[0])
            elif sum(map(len, buffers)) <= SMALL_BYTES:
                buffers = [b"".join(buffers)]
                sent = link.sock.send(buffers[0])
            else:
                sent = link.sock.sendmsg(buffers[:BUFFERS_PER_SEND])
        except OSError as error:
            if error.errno not in _GONE:
                self._stop_sending(link, error)
                return
            sent = 0
        if len(buffers) == 1 and sent == len(buffers[0]):
            return
        self._keep_rest(link, buffers, sent)

    def _stop_sending(self, link: SocketConnection, error: OSError) -> None:
        """Send nothing more on a connection; it is dropped when the node has taken what the peer had sent before."""
        self._untaken -= link.stop_sending(os.strerror(error.errno or 0))
        self._set_mask(link)

    def _keep_rest(self, link: SocketConnection, buffers: list[Buffer], sent: int) -> None:
        for position, buffer in enumerate(buffers):
            if sent < len(buffer):
                rest: list[Buffer] = [memoryview(buffer)[sent:], *buffers[position + 1 :]]
                self._keep(link, rest)
                if link.is_open:
                    self._writable(link)
                return
            sent -= len(buffer)

    def _keep(self, link: SocketConnection, buffers: list[Buffer]) -> None:
        self._untaken += link.keep(buffers)
        if link.out_bytes > BACKLOG_CLOSE:
            link.forget_sent()
            self._drop(link, _STALLED)
        elif self._untaken > self._untaken_max():
            self._make_room()
        if link.number in self._by_number:
            self._set_mask(link)

    def _make_room(self) -> None:
        now_ms = read_clock().mono_ms
        for link in surplus(self._by_number.values(), self._untaken, self._untaken_max()):
            peer = "unknown"
            with contextlib.suppress(OSError):
                peer = text_of(link.sock.getpeername())
            times = self._stalled.note(peer.rpartition(":")[0], now_ms)
            if times:
                log.warning(
                    "link: peer=%s closed times=%d reason='%d bytes are queued, and it has read none for %d ms: more "
                    "than untakenAnswersMax on all connections'",
                    peer,
                    times,
                    link.out_bytes,
                    now_ms - link.taken_ns // 1_000_000,
                )
            link.forget_sent()
            self._drop(link, _STALLED)

    def _writable(self, link: SocketConnection) -> None:
        if not link.is_open:
            self._connected(link)
            if not link.is_open:
                return
        if not link.out:
            self._set_mask(link)
            return
        try:
            while link.out:
                batch = [link.out[i] for i in range(min(len(link.out), BUFFERS_PER_SEND))]
                sent = link.sock.sendmsg(batch)
                self._untaken -= link.took(sent)
        except OSError as error:
            if error.errno not in _GONE:
                self._stop_sending(link, error)
                return
        if not link.out:
            self._events.append(Drained(link.number))
        self._set_mask(link)

    def _set_mask(self, link: SocketConnection) -> None:
        is_read = link.out_bytes <= BACKLOG_READ_STOP and (link.is_plain or not self._handshakes.is_waiting(link))
        mask = select.EPOLLIN if is_read else 0
        if link.out or not link.is_open:
            mask |= select.EPOLLOUT
        if mask != link.mask:
            link.mask = mask
            self._epoll.modify(link.sock.fileno(), mask)

    def _drop(self, link: SocketConnection, reason: str) -> None:
        if self._by_number.pop(link.number, None) is None:
            return
        del self._by_fd[link.sock.fileno()]
        if link.number > 0:
            self._admission.closed(link.kind)
        self._epoll.unregister(link.sock.fileno())
        link.close()
        link.is_open = False
        self._untaken -= link.held
        link.out.clear()
        if self._handshakes.forget(link, reason):
            self._events.append(Closed(link.number, reason))

    # Connecting.

    def _connect(self, connect: Connect) -> None:
        host, _, port = connect.address.rpartition(":")
        host = host.strip("[]")
        if is_ip(host):
            self._connect_to(connect, host, port)
            return
        self._resolver.look_up(connect)

    def _connect_found(self) -> None:
        for found in self._resolver.take():
            if found.host:
                self._connect_to(found.connect, found.host, found.port)
            else:
                self._events.append(Closed(found.connect.link, found.error))

    def _connect_to(self, connect: Connect, host: str, port: str) -> None:
        try:
            tls = self._handshakes.connecting(connect.kind, connect.address.rpartition(":")[0].strip("[]"))
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setblocking(False)
            code = sock.connect_ex((host, int(port)))
        except (OSError, ValueError, OverflowError) as error:
            self._events.append(Closed(connect.link, f"cannot connect to {connect.address}: {error}"))
            return
        if code not in (0, errno.EINPROGRESS):
            sock.close()
            self._events.append(Closed(connect.link, f"cannot connect to {connect.address}: {os.strerror(code)}"))
            return
        self._add(sock, connect.link, connect.kind, is_open=False).tls = tls

    def _connected(self, link: SocketConnection) -> None:
        code = link.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._drop(link, os.strerror(code))
            return
        try:
            peer, local = text_of(link.sock.getpeername()), text_of(link.sock.getsockname())
        except OSError as error:
            self._drop(link, os.strerror(error.errno or 0))
            return
        link.is_open = True
        self._handshakes.opened(link, Opened(link.number, link.kind, peer, local))

    def wake(self) -> None:
        """Make the loop run a turn soon; from any thread. Harmless on a closed loop: a signal may arrive late."""
        if self._wake_write < 0:
            return
        try:
            os.write(self._wake_write, b"\0")
        except BlockingIOError:
            return

    # Stopping.

    def stop(self) -> None:
        """End `run` after the current turn; from any thread or signal handler."""
        self._stopping = True
        self.wake()

    def finish(self, turn: Turn, node: Node, is_left: Callable[[], bool]) -> None:
        """After `run`, carry out the actions of a last turn, without new connections.

        Args:
            turn: the actions.
            node: gets further turns until `is_left`, for at most `LEAVING_MS`. Then bytes that peers have not taken are
                sent for at most `SENDING_MS`.
            is_left: whether its clients know that it stops.
        """
        self._ports.close()
        self._carry_out(turn)
        until = read_clock().mono_ms + LEAVING_MS
        while not is_left() and (left_ms := until - read_clock().mono_ms) > 0:
            self._once(node, left_ms)
        until = read_clock().mono_ms + SENDING_MS
        while any(link.out for link in self._by_number.values()) and read_clock().mono_ms < until:
            for fd, mask in self._epoll.poll(0.05):
                link = self._by_fd.get(fd)
                if link is not None and mask & select.EPOLLOUT:
                    self._writable(link)

    def close(self) -> None:
        """Close all sockets and stop the worker threads."""
        for link in list(self._by_number.values()):
            self._drop(link, "stopping")
        self._ports.close()
        self._workers.end()
        self._readers.end()  # and not joined: nothing depends on a read, which may hang with the device
        self._resolver.close()
        self._workers.join()
        self._syncs.close()
        self._epoll.close()
        wake_write, self._wake_write = self._wake_write, -1
        os.close(self._wake_read)
        os.close(wake_write)
