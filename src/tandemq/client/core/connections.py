"""Connections to name servers and brokers: one per address, opened on demand, responses matched with requests.

    request ─► not connected: connect, queue the frame ─► open: on_open, then the queued frames ─► response ─► on_answer
                  └► refused: NotConnected                    └► closed or silent: OutcomeUnknown

Invariant: `on_answer` is called exactly once for each request that is not recalled, and never before `request` has
returned. The error tells whether the request left this machine: NotConnected, or OutcomeUnknown. Bytes handed to the
network prove nothing; only a response does.

A peer is taken for dead because of its silence, not because of TCP: a request without a response at its deadline, and
nothing at all read since it was sent, closes the connection, and all requests in flight on it fail at once. Own writes
do not count as signs of life.

An address that failed is *down* until it has sent something on a new connection. The client reconnects to it in the
background with growing pauses; callers with a choice of addresses avoid it meanwhile.

Owner: the node. Does not know what requests mean, topics or groups. Source: docs/internals/remoting.md; RocketMQ
RemotingClient.
"""

import logging
from collections.abc import Callable
from enum import Enum
from heapq import heappop, heappush
from typing import Protocol

import msgspec

from tandemq.boundary import Closed, Connect, Event, LinkKind, Now, Opened, Turn
from tandemq.client.core.calls import Timers
from tandemq.client.core.settings import ClientConfig
from tandemq.codec.remoting.frame import FrameDecoder, JsonRequest, encode_command, encode_request
from tandemq.codec.remoting.header import FORM_JSON, decode_header
from tandemq.codec.remoting.signature import signed
from tandemq.engine import json_frame, plain_frame, stored_sends
from tandemq.errors import NetworkError, NotConnected, OutcomeUnknown, ProtocolError, TandemError, WrongProtocol
from tandemq.model.codes import ResponseCode
from tandemq.model.command import FLAG_RESPONSE, Command
from tandemq.model.message import Message

log = logging.getLogger(__name__)

Answer = Command | TandemError
OnAnswer = Callable[[Answer, Now], None]
TLS_ALERT = b"\x15\x03"
"""First bytes of the response of a port that requires TLS to a client without it."""
NEEDS_TLS = "the server at this port requires TLS, which this client does not use"
HTTP = b"HTTP/"
SPEAKS_HTTP = "the server at this port answers HTTP, not the remoting protocol"
DEADLINE_STEP_MS = 20
"""Deadlines are rounded up to a multiple of this, so that a thousand requests need one timer."""
DOWN_FORGOTTEN_MS = 600_000
"""The client stops reconnecting to an address that was not requested for this long."""


class _PeerState(Enum):
    """State of the connection to an address."""

    IDLE = "idle"
    CONNECTING = "connecting"
    OPEN = "open"


_IDLE, _OPEN = _PeerState.IDLE, _PeerState.OPEN


class _PendingRequest(msgspec.Struct, eq=False):
    """A request that waits for its response."""

    on_answer: OnAnswer
    bucket: "DeadlineBucket"
    closes: bool
    sent_ms: int


class DeadlineBucket:
    """Requests with the same rounded deadline."""

    __slots__ = ("pending_count", "requests")

    def __init__(self) -> None:
        self.requests: dict[_Peer, list[int]] = {}
        """Opaques, also of requests that were answered. A tuple for each would burden the garbage collector."""
        self.pending_count = 0
        """Number of them that wait for their response."""


NO_BUCKET = DeadlineBucket()
"""Bucket of requests that are not sent yet."""


class PendingPlain(Protocol):
    """An ordinary send that waits for its response."""

    unique_key: str
    frame: bytes
    bucket: DeadlineBucket
    sent_ms: int

    @property
    def closes(self) -> bool:
        """As of other requests: False."""

    def on_stored(self, queue_id: int, queue_offset: int, msg_id: str, now: Now) -> None:
        """Handle the response to a stored message."""

    def on_answer(self, answer: Answer, now: Now) -> None:
        """Handle another response, or an error."""


class _Peer:
    """An address and its connection, if there is one."""

    __slots__ = (
        "address",
        "decoder",
        "failures",
        "is_down",
        "is_leaving",
        "is_unread",
        "link",
        "opened_ms",
        "probe_ms",
        "queued",
        "read_ms",
        "sends_plain",
        "state",
        "waiting",
        "wanted_ms",
    )

    def __init__(self, address: str) -> None:
        self.address = address
        self.state = _PeerState.IDLE
        self.link = 0
        self.decoder = FrameDecoder()
        self.waiting: dict[int, _PendingRequest | PendingPlain] = {}
        self.sends_plain = False
        """Whether ordinary sends may wait for their responses."""
        self.queued: list[tuple[int, bytes]] = []
        self.opened_ms = 0
        self.read_ms = -1
        self.is_down = False
        self.is_leaving = False
        self.is_unread = True
        self.failures = 0
        self.probe_ms = 0
        self.wanted_ms = 0


class RemotingClient:
    """Connections of one client, by address."""

    def __init__(self, config: ClientConfig, timers: Timers) -> None:
        """Not connected. Set the three callbacks before the first turn."""
        self._config = config
        self._timers = timers
        self._by_address: dict[str, _Peer] = {}
        self._by_link: dict[int, _Peer] = {}
        self._due: dict[int, DeadlineBucket] = {}
        self._due_ms: list[int] = []
        """The keys of `_due`, as a heap."""
        self._opaque = 0
        self._last_ms = -1
        """Deadline of the last ordinary send; -1: find its bucket again."""
        self._last_peer: _Peer | None = None
        self._last_bucket = NO_BUCKET
        self._last_opaques: list[int] = []
        self._link_count = 0
        self.down_count = 0
        """Number of addresses that are down, see `is_down`."""
        self._turn = Turn()
        self.response_count = 0
        """Number of responses received."""
        self.malformed_count = 0
        """Number of connections closed because the peer sent a malformed frame."""
        self.on_open: Callable[[str, Now], None] = lambda _address, _now: None
        """Called when a connection is open; requests sent from it precede those that were queued."""
        self.on_recovered: Callable[[str, Now], None] = lambda _address, _now: None
        """Called when an address that was down has sent something."""
        self.on_request: Callable[[str, Command, Now], Command | None] = lambda _address, _command, _now: None
        """Called with a request of the peer; returns the response, or None for none or a later one."""

    def take_turn(self) -> Turn:
        """Return the sends, closes and connects accumulated since the last call."""
        turn, self._turn = self._turn, Turn()
        return turn

    def is_down(self, address: str) -> bool:
        """Return whether an address failed and has sent nothing since."""
        peer = self._by_address.get(address)
        return peer is not None and peer.is_down

    def is_open(self, address: str) -> bool:
        """Return whether the connection to an address is open."""
        peer = self._by_address.get(address)
        return peer is not None and peer.state is _PeerState.OPEN

    def link_to(self, address: str) -> int:
        """Return the id of the connection to an address; 0 if there is none."""
        peer = self._by_address.get(address)
        return peer.link if peer is not None else 0

    def open_ms(self, address: str, now: Now) -> int:
        """Return for how long the connection to an address has been open, milliseconds; 0 if it is not."""
        peer = self._by_address.get(address)
        return now.mono_ms - peer.opened_ms if peer is not None and peer.state is _PeerState.OPEN else 0

    def open_addresses(self) -> list[str]:
        """Return the addresses with an open connection."""
        return [peer.address for peer in self._by_address.values() if peer.state is _PeerState.OPEN]

    # Requests.

    def request(
        self,
        address: str,
        command: Command | JsonRequest,
        now: Now,
        on_answer: OnAnswer,
        *,
        timeout_ms: int = 0,
        closes: bool = False,
    ) -> int:
        """Send a request, and connect first if necessary.

        Args:
            timeout_ms: 0 for `request_timeout_ms` of the configuration.
            closes: close the connection if the response is late, whatever else was read on it; for long polls.
        Returns:
            the opaque of the request, for `recall`.
        """
        opaque = self._opaque = self._opaque + 1 & 0x7FFFFFFF
        mono_ms = now.mono_ms
        peer = self._by_address.get(address)
        if peer is None or peer.state is _IDLE:
            peer = self._peer(address, now)
        peer.wanted_ms = mono_ms
        deadline_ms = mono_ms + (timeout_ms or self._config.request_timeout_ms)
        bucket = self._due.get(-(-deadline_ms // DEADLINE_STEP_MS) * DEADLINE_STEP_MS) or self._due_at(deadline_ms)
        opaques = bucket.requests.get(peer)
        if opaques is None:
            opaques = bucket.requests[peer] = []
        opaques.append(opaque)
        bucket.pending_count += 1
        frame = self._frame(command, opaque)
        if peer.state is _OPEN:
            peer.waiting[opaque] = _PendingRequest(on_answer, bucket, closes, mono_ms)
            queued = self._turn.sends.get(peer.link)
            if queued is None:
                self._turn.send(peer.link, frame)
            else:
                queued.append(frame)
        else:
            peer.waiting[opaque] = _PendingRequest(on_answer, bucket, closes, -1)
            peer.queued.append((opaque, frame))
        return opaque

    @property
    def signs(self) -> bool:
        """Whether requests are signed."""
        return self._config.credentials is not None

    def send_plain(
        self, address: str, head: bytes, message: Message, bytes_max: int, sent: PendingPlain, timeout_ms: int, now: Now
    ) -> bool:
        """Send an ordinary message without a signature, whose frame is kept in `sent`; False if there is no open
        connection, or the message is not ordinary (`engine.new_messages`).

        Args:
            head: beginning of its header.
            bytes_max: maximum size of its body.
        """
        peer = self._by_address.get(address)
        if peer is None or peer.state is not _OPEN:
            return False
        mono_ms = now.mono_ms
        opaque = self._opaque + 1 & 0x7FFFFFFF
        frame = plain_frame(message, sent.unique_key, bytes_max, head, now.wall_ms, opaque)
        if frame is None:
            return False
        self._opaque = opaque
        peer.wanted_ms = mono_ms
        peer.sends_plain = True
        deadline_ms = mono_ms + (timeout_ms or self._config.request_timeout_ms)
        if deadline_ms != self._last_ms or peer is not self._last_peer:
            self._last_ms, self._last_peer = deadline_ms, peer
            self._last_bucket = self._due_at(deadline_ms)
            self._last_opaques = self._last_bucket.requests.setdefault(peer, [])
        self._last_opaques.append(opaque)
        bucket = sent.bucket = self._last_bucket
        bucket.pending_count += 1
        sent.sent_ms = mono_ms
        sent.frame = frame
        peer.waiting[opaque] = sent
        queued = self._turn.sends.get(peer.link)
        if queued is None:
            self._turn.send(peer.link, frame)
        else:
            queued.append(frame)
        return True

    def recall(self, address: str, opaque: int) -> bool:
        """Cancel a request that waits for its connection; its `on_answer` will not be called. False if it was sent."""
        peer = self._by_address.get(address)
        waiting = peer.waiting.get(opaque) if peer is not None else None
        if peer is None or waiting is None or waiting.sent_ms >= 0:
            return False
        del peer.waiting[opaque]
        waiting.bucket.pending_count -= 1
        return True

    def _due_at(self, deadline_ms: int) -> DeadlineBucket:
        step = -(-deadline_ms // DEADLINE_STEP_MS) * DEADLINE_STEP_MS
        bucket = self._due.get(step)
        if bucket is None:
            bucket = self._due[step] = DeadlineBucket()
            heappush(self._due_ms, step)
        return bucket

    def send_oneway(self, address: str, command: Command | JsonRequest, now: Now) -> None:
        """Send a one-way request: there is no response and no error."""
        self._opaque = self._opaque + 1 & 0x7FFFFFFF
        frame = self._frame(command, self._opaque, oneway=True)
        peer = self._peer(address, now)
        if peer.state is _OPEN:
            self._turn.send(peer.link, frame)
        else:
            peer.queued.append((-1, frame))

    def _frame(self, command: Command | JsonRequest, opaque: int, *, oneway: bool = False) -> bytes:
        """Return the frame of a request, with the client's signature if it has credentials."""
        credentials = self._config.credentials
        if isinstance(command, JsonRequest):
            if credentials is None:
                return json_frame(command.fields, opaque, command.body, oneway=oneway)
            command = command.as_command()
        if credentials is not None:
            command.fields = signed(command.fields, command.body, credentials)
        return encode_request(command, opaque, oneway=oneway)

    def _peer(self, address: str, now: Now) -> _Peer:
        peer = self._by_address.get(address)
        if peer is None:
            peer = self._by_address[address] = _Peer(address)
        peer.wanted_ms = now.mono_ms
        if peer.state is _IDLE:
            self._connect(peer, now)
        return peer

    def _connect(self, peer: _Peer, now: Now) -> None:
        self._link_count -= 1
        link = peer.link = self._link_count
        peer.state = _PeerState.CONNECTING
        peer.decoder = FrameDecoder(self._config.frame_bytes_max)
        self._by_link[link] = peer
        self._turn.connects.append(Connect(link, LinkKind.PEER, peer.address))
        self._timers.at(now.mono_ms + self._config.connect_timeout_ms, lambda now: self._give_up(peer, link, now))

    def _give_up(self, peer: _Peer, link: int, now: Now) -> None:
        if peer.link == link and peer.state is _PeerState.CONNECTING:
            self._drop(peer, f"not connected within {self._config.connect_timeout_ms} ms", now)

    def keep_reconnecting(self, address: str, now: Now) -> None:
        """Keep reconnecting to an address that is down, because it is needed."""
        peer = self._by_address.get(address)
        if peer is not None:
            peer.wanted_ms = now.mono_ms
            self._reconnect(peer, now)

    # Events and data.

    def on_event(self, event: Event, now: Now) -> None:
        """Handle a connection that opened or closed."""
        if isinstance(event, Opened):
            peer = self._by_link.get(event.link)
            if peer is not None:
                self._opened(peer, now)
        elif isinstance(event, Closed):
            peer = self._by_link.get(event.link)
            if peer is not None:
                self._lost(peer, event.reason, now)

    def _opened(self, peer: _Peer, now: Now) -> None:
        peer.state = _PeerState.OPEN
        peer.opened_ms = peer.read_ms = now.mono_ms
        peer.is_unread = True
        queued, peer.queued = peer.queued, []
        self.on_open(peer.address, now)
        for opaque, frame in queued:
            waiting = peer.waiting.get(opaque)
            if waiting is not None:
                waiting.sent_ms = now.mono_ms
                self._turn.send(peer.link, frame)
            elif opaque < 0:
                self._turn.send(peer.link, frame)

    def on_data(self, link: int, data: bytes, now: Now) -> None:
        """Handle bytes from a peer: responses, and requests of its own."""
        peer = self._by_link.get(link)
        if peer is None:
            return
        peer.read_ms = now.mono_ms
        if peer.is_unread:
            peer.is_unread = False
            if (foreign := foreign_reason(data)) is not None:
                self._drop(peer, foreign, now, is_foreign=True)
                return
        if peer.is_down:
            self._recovered(peer, now)
        decoder = peer.decoder
        try:
            data = decoder.join(data)
            position = self._take_stored(peer, data, 0, now) if peer.sends_plain else 0
            while (frame := decoder.split(data, position)) is not None:
                position = decoder.position
                self._on_command(peer, link, decode_header(*frame), now)
                if peer.sends_plain:
                    position = self._take_stored(peer, data, position, now)
        except ProtocolError as error:
            if peer.link == link:
                self._drop_malformed(peer, error, now)
            return
        if peer.link != link:
            return
        if decoder.error is not None:
            self._drop_malformed(peer, decoder.error, now)
        elif peer.is_leaving and not peer.waiting:
            self._close_idle(peer, "no request is in flight")

    def _take_stored(self, peer: _Peer, data: bytes, position: int, now: Now) -> int:
        """Handle the responses to ordinary sends from a position on; return where the first other frame begins."""
        found, end = stored_sends(data, position, self._config.frame_bytes_max)
        waiting = peer.waiting
        for opaque, queue_id, queue_offset, msg_id, frame_end in found:
            pending = waiting.pop(opaque, None)
            if pending is not None:
                self.response_count += 1
                pending.bucket.pending_count -= 1
                if isinstance(pending, _PendingRequest):
                    header = data[position + 8 : frame_end]
                    pending.on_answer(decode_header(FORM_JSON, header, b""), now)
                else:
                    pending.on_stored(queue_id, queue_offset, msg_id, now)
            position = frame_end
        return end

    def _on_command(self, peer: _Peer, link: int, command: Command, now: Now) -> None:
        if not command.flag & FLAG_RESPONSE:
            self._on_request(peer, command, now)
            return
        waiting = peer.waiting.pop(command.opaque, None)
        if waiting is not None:
            self.response_count += 1
            waiting.bucket.pending_count -= 1
            waiting.on_answer(command, now)
        if command.code == ResponseCode.GO_AWAY and peer.link == link:
            peer.is_leaving = True

    def _drop_malformed(self, peer: _Peer, error: ProtocolError, now: Now) -> None:
        self.malformed_count += 1
        self._drop(peer, str(error), now)

    def _recovered(self, peer: _Peer, now: Now) -> None:
        log.info("up address=%s", peer.address)
        peer.is_down = False
        self.down_count -= 1
        peer.failures = 0
        self.on_recovered(peer.address, now)

    def _on_request(self, peer: _Peer, command: Command, now: Now) -> None:
        answer = self.on_request(peer.address, command, now)
        if answer is not None:
            self.answer(peer.address, command, answer)

    def answer(self, address: str, request: Command, answer: Command) -> None:
        """Send the response to a peer's request, now or later; dropped for one-way requests and closed connections."""
        peer = self._by_address.get(address)
        if peer is not None and peer.state is _PeerState.OPEN and not request.is_oneway:
            self._turn.send(peer.link, encode_command(answer))

    # Timeouts, closed connections.

    def next_ms(self) -> int | None:
        """Return the earliest deadline of a request, milliseconds on the monotonic clock; None if none waits."""
        while self._due_ms and not self._due[self._due_ms[0]].pending_count:
            del self._due[heappop(self._due_ms)]
            self._last_ms = -1
        return self._due_ms[0] if self._due_ms else None

    def expire(self, now: Now) -> None:
        """Fail the requests whose deadline has passed; close the connections of silent peers."""
        while self._due_ms and self._due_ms[0] <= now.mono_ms:
            self._last_ms = -1
            self._expire(self._due.pop(heappop(self._due_ms)), now)

    def _expire(self, bucket: DeadlineBucket, now: Now) -> None:
        silent: dict[str, _Peer] = {}
        for peer, opaques in bucket.requests.items():
            for opaque in opaques:
                waiting = peer.waiting.get(opaque)
                if waiting is None:
                    continue
                sent_ms = waiting.sent_ms
                if sent_ms >= 0 and (waiting.closes or peer.read_ms <= sent_ms):
                    silent[peer.address] = peer
                    continue
                del peer.waiting[opaque]
                waiting.on_answer(_failure(peer, sent_ms, "no response in time"), now)
        for peer in silent.values():
            if peer.state is _PeerState.OPEN:
                self._drop(peer, "it owes a response and is silent", now)

    def close_when_idle(self, address: str, reason: str) -> None:
        """Close the connection to an address, if it is open, after the in-flight responses have arrived. The address is
        not down: the next request connects again."""
        peer = self._by_address.get(address)
        if peer is None or peer.state is not _PeerState.OPEN:
            return
        if peer.waiting:
            peer.is_leaving = True
        else:
            self._close_idle(peer, reason)

    def _close_idle(self, peer: _Peer, reason: str) -> None:
        log.info("closed address=%s reason=%s", peer.address, reason)
        self._turn.closes.append((peer.link, reason))
        del self._by_link[peer.link]
        peer.state = _PeerState.IDLE
        peer.link = 0
        peer.is_leaving = False

    def _drop(self, peer: _Peer, reason: str, now: Now, *, is_foreign: bool = False) -> None:
        """Close a connection and fail the requests that wait for it."""
        self._turn.closes.append((peer.link, reason))
        self._lost(peer, reason, now, is_foreign=is_foreign)

    def _lost(self, peer: _Peer, reason: str, now: Now, *, is_foreign: bool = False) -> None:
        log.info("down address=%s reason=%s waiting=%d", peer.address, reason, len(peer.waiting))
        del self._by_link[peer.link]
        self._turn.sends.pop(peer.link, None)
        peer.state = _PeerState.IDLE
        peer.link = 0
        peer.queued.clear()
        peer.is_leaving = False
        self.down_count += not peer.is_down
        peer.is_down = True
        peer.failures += 1
        waiting, peer.waiting = peer.waiting, {}
        pause_ms = min(self._config.probe_max_ms, self._config.probe_ms << min(peer.failures - 1, 16))
        peer.probe_ms = now.mono_ms + pause_ms
        self._timers.at(peer.probe_ms, lambda now: self._reconnect(peer, now))
        for entry in waiting.values():
            entry.bucket.pending_count -= 1
            failure = _failure(peer, entry.sent_ms, reason)
            entry.on_answer(WrongProtocol(f"{peer.address}: {reason}") if is_foreign else failure, now)

    def _reconnect(self, peer: _Peer, now: Now) -> None:
        is_due = peer.is_down and peer.state is _PeerState.IDLE and peer.probe_ms <= now.mono_ms
        if is_due and now.mono_ms - peer.wanted_ms < DOWN_FORGOTTEN_MS:
            self._connect(peer, now)

    def silent_addresses(self, silence_ms: int, now: Now) -> list[str]:
        """Return the addresses that owe a response and have sent nothing for `silence_ms`."""
        return [
            peer.address
            for peer in self._by_link.values()
            if peer.state is _PeerState.OPEN and peer.waiting and now.mono_ms - peer.read_ms >= silence_ms
        ]

    def close(self, now: Now, reason: str = "the client was closed") -> None:
        """Close all connections; the requests that wait fail."""
        for peer in list(self._by_link.values()):
            self._drop(peer, reason, now)
            peer.wanted_ms = -DOWN_FORGOTTEN_MS


def foreign_reason(data: bytes) -> str | None:
    """Return what the first bytes of a server show that does not speak the protocol; None if they may be a frame."""
    if data.startswith(TLS_ALERT):
        return NEEDS_TLS
    return SPEAKS_HTTP if data.startswith(HTTP) else None


def _failure(peer: _Peer, sent_ms: int, reason: str) -> NetworkError:
    if sent_ms < 0:
        return NotConnected(f"{peer.address} cannot be reached: {reason}")
    return OutcomeUnknown(f"no response from {peer.address}: {reason}", hint="the request may have been carried out")
