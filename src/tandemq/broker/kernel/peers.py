"""Requests of this broker to name servers and other brokers: one connection per address, responses with a timeout."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tandemq.boundary import Connect, LinkKind, Now, Turn
from tandemq.codec.proofs import PROOF
from tandemq.codec.remoting.frame import FrameDecoder, decode_command, encode_command
from tandemq.codec.remoting.signature import signed
from tandemq.errors import ProtocolError
from tandemq.model.access import Credentials
from tandemq.model.command import FLAG_ONEWAY, Command

OnAnswer = Callable[[Command | None, Now], None]
"""Called once: with the response, or with None if there was none in time."""
WAITING_MAX = 1000


@dataclass(slots=True)
class _Peer:
    link: int
    address: str
    is_open: bool = False
    decoder: FrameDecoder = field(default_factory=FrameDecoder)
    queued: list[bytes] = field(default_factory=list)


class Peers:
    """Connections opened by this broker, by address."""

    def __init__(
        self, next_link: Callable[[], int], credentials: Callable[[], Credentials | None] = lambda: None
    ) -> None:
        """Begin without connections.

        Args:
            next_link: returns the id for a new outgoing connection.
            credentials: returns those of the user that signs requests; None: they are not signed.
        """
        self._next_link = next_link
        self._credentials = credentials
        self._by_address: dict[str, _Peer] = {}
        self._by_link: dict[int, _Peer] = {}
        self._waiting: dict[tuple[int, int], tuple[OnAnswer, int]] = {}
        self._opaque = 0
        self.local_address = ""
        """Local "ip:port" of the connection opened last: this broker's address in the network."""

    def call(self, address: str, command: Command, timeout_ms: int, on_answer: OnAnswer, turn: Turn, now: Now) -> None:
        """Send a request; connect first if there is no connection."""
        if len(self._waiting) >= WAITING_MAX:
            on_answer(None, now)
            return
        peer = self._peer(address, turn)
        self._opaque = self._opaque % 0x7FFFFFFF + 1
        command.opaque = self._opaque
        self._waiting[peer.link, command.opaque] = (on_answer, now.mono_ms + timeout_ms)
        self._write(peer, self._encoded(command), turn)

    def send_oneway(self, address: str, command: Command, turn: Turn) -> None:
        """Send a one-way request."""
        command.flag |= FLAG_ONEWAY
        self._write(self._peer(address, turn), self._encoded(command), turn)

    def _encoded(self, command: Command) -> bytes:
        credentials = self._credentials()
        if credentials is not None and PROOF not in command.fields:
            command.fields = signed(command.fields, command.body, credentials)
        return encode_command(command)

    def _write(self, peer: _Peer, frame: bytes, turn: Turn) -> None:
        if peer.is_open:
            turn.send(peer.link, frame)
        else:
            peer.queued.append(frame)

    def _peer(self, address: str, turn: Turn) -> _Peer:
        peer = self._by_address.get(address)
        if peer is None:
            peer = _Peer(self._next_link(), address)
            self._by_address[address] = peer
            self._by_link[peer.link] = peer
            turn.connects.append(Connect(peer.link, LinkKind.PEER, address))
        return peer

    def owns(self, link: int) -> bool:
        """Return whether a connection was opened here."""
        return link in self._by_link

    def opened(self, link: int, local: str, turn: Turn) -> None:
        """Send the queued requests on a connection that is now open."""
        peer = self._by_link[link]
        peer.is_open = True
        self.local_address = local or self.local_address
        if peer.queued:
            turn.send(link, *peer.queued)
            peer.queued.clear()

    def closed(self, link: int, now: Now) -> str:
        """Remove a closed connection and end its requests without a response; return its address."""
        peer = self._by_link.pop(link)
        del self._by_address[peer.address]
        for key in [key for key in self._waiting if key[0] == link]:
            self._waiting.pop(key)[0](None, now)
        return peer.address

    def drop(self, address: str, turn: Turn) -> None:
        """Close the connection to an address, if there is one."""
        peer = self._by_address.get(address)
        if peer is not None:
            turn.closes.append((peer.link, "no longer needed"))

    def received(self, link: int, data: bytes, turn: Turn, now: Now) -> None:
        """Handle bytes from a peer: responses. Requests are not expected on these connections, and ignored."""
        peer = self._by_link[link]
        for frame in peer.decoder.feed(data):
            try:
                command = decode_command(frame)
            except ProtocolError as error:
                turn.closes.append((link, str(error)))
                return
            waiting = self._waiting.pop((link, command.opaque), None) if command.is_response else None
            if waiting is not None:
                waiting[0](command, now)
        if peer.decoder.error is not None:
            turn.closes.append((link, str(peer.decoder.error)))

    def expire(self, turn: Turn, now: Now) -> None:
        """End requests whose timeout has passed, and close their connections, since the peer may be dead."""
        if not self._waiting:
            return
        late = [key for key, (_, due_ms) in self._waiting.items() if due_ms <= now.mono_ms]
        for key in late:
            waiting = self._waiting.pop(key, None)
            if waiting is not None:
                waiting[0](None, now)
            turn.closes.append((key[0], "no answer in time"))

    def deadline_ms(self) -> int | None:
        """Return the earliest timeout, monotonic ms; None if no request waits."""
        return min([due_ms for _, due_ms in self._waiting.values()]) if self._waiting else None
