"""Links to name servers and brokers: one per address, opened when first needed, requests matched with answers.

    request ─► no link: connect, keep the frame ─► open: greet, then what was kept ─► answer ─► on_answer(answer)
                  └► refused: NotConnected                   └► closed or silent: OutcomeUnknown

What always holds: `on_answer` is called exactly once for each request that is not recalled, never before `request` has
returned. An error says whether the request left this machine: NotConnected, or OutcomeUnknown. That bytes were handed
to the network proves nothing; only an answer does.

A peer is believed dead by its silence, not by TCP: a request unanswered at its deadline, with nothing at all read since
it was sent, closes the link, and everybody waiting on it hears so at once. Own writes do not count as signs of life.

An address that failed is *down* until it has spoken again on a new link. It is tried again in the background, ever less
often; whoever has a choice leaves it alone meanwhile.

Owner: the node. Does not know: what requests mean, topics, groups. Source: docs/internals/remoting.md.
"""

import logging
from collections.abc import Callable
from enum import Enum
from heapq import heappop, heappush

from tandemq.boundary import Closed, Connect, Event, LinkKind, Now, Opened, Turn
from tandemq.client.core.calls import Timers
from tandemq.client.core.settings import ClientConfig
from tandemq.codec.remoting.frame import FrameDecoder, decode_command, encode_command
from tandemq.errors import NetworkError, NotConnected, OutcomeUnknown, ProtocolError, TandemError
from tandemq.model.command import FLAG_ONEWAY, Command

log = logging.getLogger(__name__)

Answer = Command | TandemError
OnAnswer = Callable[[Answer, Now], None]
DEADLINE_STEP_MS = 20
"""Deadlines are kept in steps of this, so that a thousand requests need one timer."""
DOWN_FORGOTTEN_MS = 600_000
"""An address that nobody asked for during this time is not tried any more."""


class _PeerState(Enum):
    """What there is of a link."""

    IDLE = "idle"
    """None."""
    CONNECTING = "connecting"
    OPEN = "open"


class _PendingRequest:
    """A request that waits for its answer."""

    __slots__ = ("closes", "on_answer", "sent_ms", "together")

    def __init__(self, on_answer: OnAnswer, together: "_DeadlineBucket", *, closes: bool) -> None:
        self.on_answer = on_answer
        self.together = together
        self.closes = closes
        self.sent_ms = -1


class _DeadlineBucket:
    """Requests whose time is up in the same step."""

    __slots__ = ("left", "requests")

    def __init__(self) -> None:
        self.requests: list[tuple[_Peer, int]] = []
        self.left = 0
        """How many of them wait for their answer."""


class _Peer:
    """An address, and the link to it if there is one."""

    __slots__ = (
        "address",
        "decoder",
        "failures",
        "is_down",
        "is_leaving",
        "kept",
        "link",
        "opened_ms",
        "probe_ms",
        "read_ms",
        "state",
        "waiting",
        "wanted_ms",
    )

    def __init__(self, address: str) -> None:
        """Nothing is known of it."""
        self.address = address
        self.state = _PeerState.IDLE
        self.link = 0
        self.decoder = FrameDecoder()
        self.waiting: dict[int, _PendingRequest] = {}
        self.kept: list[tuple[int, bytes]] = []
        self.opened_ms = 0
        self.read_ms = -1
        self.is_down = False
        self.is_leaving = False
        self.failures = 0
        self.probe_ms = 0
        self.wanted_ms = 0


class RemotingClient:
    """All links of one client."""

    def __init__(self, config: ClientConfig, timers: Timers) -> None:
        """No link is open. Set the three hooks before the first turn."""
        self._config = config
        self._timers = timers
        self._by_address: dict[str, _Peer] = {}
        self._by_link: dict[int, _Peer] = {}
        self._due: dict[int, _DeadlineBucket] = {}
        self._due_ms: list[int] = []
        """The steps of `_due`, a heap."""
        self._opaque = 0
        self._link_count = 0
        self._turn = Turn()
        self.on_open: Callable[[str, Now], None] = lambda _address, _now: None
        """A link is open; what is sent now goes before all that was kept."""
        self.on_up: Callable[[str, Now], None] = lambda _address, _now: None
        """An address that was down has spoken again."""
        self.on_request: Callable[[str, Command, Now], Command | None] = lambda _address, _command, _now: None
        """A peer asks something; the return value is the answer, if it wants one."""

    def take_turn(self) -> Turn:
        """All that is to be sent, closed and connected since the last call."""
        turn, self._turn = self._turn, Turn()
        return turn

    def is_down(self, address: str) -> bool:
        """Whether an address failed and has not spoken since."""
        peer = self._by_address.get(address)
        return peer is not None and peer.is_down

    def is_open(self, address: str) -> bool:
        """Whether a link to an address is open."""
        peer = self._by_address.get(address)
        return peer is not None and peer.state is _PeerState.OPEN

    def open_ms(self, address: str, now: Now) -> int:
        """How long the link to an address has been open, milliseconds; 0 if it is not."""
        peer = self._by_address.get(address)
        return now.mono_ms - peer.opened_ms if peer is not None and peer.state is _PeerState.OPEN else 0

    def open_addresses(self) -> list[str]:
        """Addresses with an open link."""
        return [peer.address for peer in self._by_address.values() if peer.state is _PeerState.OPEN]

    # Asking.

    def request(
        self,
        address: str,
        command: Command,
        now: Now,
        on_answer: OnAnswer,
        *,
        timeout_ms: int = 0,
        closes: bool = False,
    ) -> int:
        """Send a request; connects if need be.

        Args:
            timeout_ms: 0 for `request_timeout_ms`.
            closes: close the link if no answer comes in time, whatever else was read on it: for long polls.
        Returns:
            its number, for `recall`.
        """
        opaque = self._opaque = self._opaque + 1 & 0x7FFFFFFF
        command.opaque = opaque
        peer = self._peer(address, now)
        together = self._due_at(now.mono_ms + (timeout_ms or self._config.request_timeout_ms))
        together.requests.append((peer, opaque))
        together.left += 1
        waiting = peer.waiting[opaque] = _PendingRequest(on_answer, together, closes=closes)
        if peer.state is _PeerState.OPEN:
            waiting.sent_ms = now.mono_ms
            self._turn.send(peer.link, encode_command(command))
        else:
            peer.kept.append((opaque, encode_command(command)))
        return opaque

    def recall(self, address: str, number: int) -> bool:
        """Take back a request that waits for its link; its `on_answer` is not called any more. False: it has left."""
        peer = self._by_address.get(address)
        waiting = peer.waiting.get(number) if peer is not None else None
        if peer is None or waiting is None or waiting.sent_ms >= 0:
            return False
        del peer.waiting[number]
        waiting.together.left -= 1
        return True

    def _due_at(self, deadline_ms: int) -> _DeadlineBucket:
        step = -(-deadline_ms // DEADLINE_STEP_MS) * DEADLINE_STEP_MS
        together = self._due.get(step)
        if together is None:
            together = self._due[step] = _DeadlineBucket()
            heappush(self._due_ms, step)
        return together

    def tell(self, address: str, command: Command, now: Now) -> None:
        """Send a one-way request: nobody hears what became of it."""
        command.flag |= FLAG_ONEWAY
        command.opaque = self._opaque = self._opaque + 1 & 0x7FFFFFFF
        peer = self._peer(address, now)
        if peer.state is _PeerState.OPEN:
            self._turn.send(peer.link, encode_command(command))
        else:
            peer.kept.append((-1, encode_command(command)))

    def _peer(self, address: str, now: Now) -> _Peer:
        peer = self._by_address.get(address)
        if peer is None:
            peer = self._by_address[address] = _Peer(address)
        peer.wanted_ms = now.mono_ms
        if peer.state is _PeerState.IDLE:
            self._connect(peer, now)
        return peer

    def _connect(self, peer: _Peer, now: Now) -> None:
        self._link_count -= 1
        link = peer.link = self._link_count
        peer.state = _PeerState.CONNECTING
        peer.decoder = FrameDecoder(self._config.frame_bytes_max)
        self._by_link[link] = peer
        self._turn.connects.append(Connect(link, LinkKind.PEER, peer.address))
        self._timers.at(now.mono_ms + self._config.connect_timeout_ms, lambda at: self._give_up(peer, link, at))

    def _give_up(self, peer: _Peer, link: int, now: Now) -> None:
        if peer.link == link and peer.state is _PeerState.CONNECTING:
            self.drop(peer, f"not connected within {self._config.connect_timeout_ms} ms", now)

    def want(self, address: str, now: Now) -> None:
        """Somebody would use an address that is down: go on trying it."""
        peer = self._by_address.get(address)
        if peer is not None:
            peer.wanted_ms = now.mono_ms
            self._probe(peer, now)

    # What comes in.

    def on_event(self, event: Event, now: Now) -> None:
        """A link opened or closed."""
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
        kept, peer.kept = peer.kept, []
        self.on_open(peer.address, now)
        for opaque, frame in kept:
            waiting = peer.waiting.get(opaque)
            if waiting is not None:
                waiting.sent_ms = now.mono_ms
                self._turn.send(peer.link, frame)
            elif opaque < 0:
                self._turn.send(peer.link, frame)

    def on_data(self, link: int, data: bytes, now: Now) -> None:
        """Bytes from a peer: answers, and requests of its own."""
        peer = self._by_link.get(link)
        if peer is None:
            return
        peer.read_ms = now.mono_ms
        if peer.is_down:
            self._up(peer, now)
        try:
            for frame in peer.decoder.feed(data):
                command = decode_command(frame)
                if command.is_response:
                    waiting = peer.waiting.pop(command.opaque, None)
                    if waiting is not None:
                        waiting.together.left -= 1
                        waiting.on_answer(command, now)
                else:
                    self._asked(peer, command, now)
        except ProtocolError as error:
            if peer.link == link:
                self.drop(peer, str(error), now)
            return
        if peer.link != link:
            return
        if peer.decoder.error is not None:
            self.drop(peer, str(peer.decoder.error), now)
        elif peer.is_leaving and not peer.waiting:
            self._part(peer, "nothing is under way any more")

    def _up(self, peer: _Peer, now: Now) -> None:
        log.info("up address=%s", peer.address)
        peer.is_down = False
        peer.failures = 0
        self.on_up(peer.address, now)

    def _asked(self, peer: _Peer, command: Command, now: Now) -> None:
        answer = self.on_request(peer.address, command, now)
        if answer is not None:
            self.answer(peer.address, command, answer)

    def answer(self, address: str, request: Command, answer: Command) -> None:
        """Answer a peer's request, now or later; dropped if it wants none or its link is gone."""
        peer = self._by_address.get(address)
        if peer is not None and peer.state is _PeerState.OPEN and not request.is_oneway:
            self._turn.send(peer.link, encode_command(answer))

    # What goes wrong.

    def next_ms(self) -> int | None:
        """When the time of a request that waits is up; None if none waits."""
        while self._due_ms and not self._due[self._due_ms[0]].left:
            del self._due[heappop(self._due_ms)]
        return self._due_ms[0] if self._due_ms else None

    def expire(self, now: Now) -> None:
        """Give up the requests whose time is up."""
        while self._due_ms and self._due_ms[0] <= now.mono_ms:
            self._expire(self._due.pop(heappop(self._due_ms)), now)

    def _expire(self, together: _DeadlineBucket, now: Now) -> None:
        silent: dict[str, _Peer] = {}
        for peer, opaque in together.requests:
            waiting = peer.waiting.get(opaque)
            if waiting is None:
                continue
            sent_ms = waiting.sent_ms
            if sent_ms >= 0 and (waiting.closes or peer.read_ms <= sent_ms):
                silent[peer.address] = peer
                continue
            del peer.waiting[opaque]
            waiting.on_answer(_failure(peer, sent_ms, "no answer in time"), now)
        for peer in silent.values():
            if peer.state is _PeerState.OPEN:
                self.drop(peer, "it owes an answer and is silent", now)

    def leave(self, address: str, reason: str) -> None:
        """Close a link, if there is one, after what is under way has ended. The address is not down: it is connected
        again when it is needed."""
        peer = self._by_address.get(address)
        if peer is None or peer.state is not _PeerState.OPEN:
            return
        if peer.waiting:
            peer.is_leaving = True
        else:
            self._part(peer, reason)

    def _part(self, peer: _Peer, reason: str) -> None:
        log.info("left address=%s reason=%s", peer.address, reason)
        self._turn.closes.append((peer.link, reason))
        del self._by_link[peer.link]
        peer.state = _PeerState.IDLE
        peer.link = 0
        peer.is_leaving = False

    def drop(self, peer: _Peer, reason: str, now: Now) -> None:
        """Close a link; everybody who waits on it hears that nobody answered."""
        self._turn.closes.append((peer.link, reason))
        self._lost(peer, reason, now)

    def _lost(self, peer: _Peer, reason: str, now: Now) -> None:
        log.info("down address=%s reason=%s waiting=%d", peer.address, reason, len(peer.waiting))
        del self._by_link[peer.link]
        self._turn.sends.pop(peer.link, None)
        peer.state = _PeerState.IDLE
        peer.link = 0
        peer.kept.clear()
        peer.is_leaving = False
        peer.is_down = True
        peer.failures += 1
        waiting, peer.waiting = peer.waiting, {}
        pause_ms = min(self._config.probe_max_ms, self._config.probe_ms << min(peer.failures - 1, 16))
        peer.probe_ms = now.mono_ms + pause_ms
        self._timers.at(peer.probe_ms, lambda at: self._probe(peer, at))
        for entry in waiting.values():
            entry.together.left -= 1
            entry.on_answer(_failure(peer, entry.sent_ms, reason), now)

    def _probe(self, peer: _Peer, now: Now) -> None:
        is_due = peer.is_down and peer.state is _PeerState.IDLE and peer.probe_ms <= now.mono_ms
        if is_due and now.mono_ms - peer.wanted_ms < DOWN_FORGOTTEN_MS:
            self._connect(peer, now)

    def owing(self, silence_ms: int, now: Now) -> list[str]:
        """Addresses that owe an answer and from which nothing came for `silence_ms`."""
        return [
            peer.address
            for peer in self._by_link.values()
            if peer.state is _PeerState.OPEN and peer.waiting and now.mono_ms - peer.read_ms >= silence_ms
        ]

    def close(self, now: Now) -> None:
        """Close all links; what waits fails."""
        for peer in list(self._by_link.values()):
            self.drop(peer, "the client was closed", now)
            peer.wanted_ms = -DOWN_FORGOTTEN_MS


def _failure(peer: _Peer, sent_ms: int, reason: str) -> NetworkError:
    if sent_ms < 0:
        return NotConnected(f"{peer.address} cannot be reached: {reason}")
    return OutcomeUnknown(f"no answer from {peer.address}: {reason}", hint="what was asked for may have been done")
