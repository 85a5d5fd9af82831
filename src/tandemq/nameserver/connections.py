"""Open connections of the name server: partial frames, idle times, and the memory that responses take.

Limits: `connections_max` connections; per connection one partial frame, `unfinished_bytes_max` for all of them;
64 MiB of responses in a turn, beyond which requests are answered SYSTEM_BUSY; and the same amount of responses that a
peer has not read: then its connection is closed.

Owner: the name server's node. Does not know: sockets, the clock, what requests mean.
"""

import logging
from collections.abc import Callable

from tandemq.boundary import Buffer, Opened, Outbox, Turn
from tandemq.codec.remoting.frame import FrameDecoder, decode_command, encode_command
from tandemq.codec.remoting.partial_frames import EvictedFrame, PartialFrames
from tandemq.codec.remoting.response_budget import ResponseBudget
from tandemq.errors import ProtocolError
from tandemq.model.command import Command
from tandemq.nameserver.running_config import RunningConfig
from tandemq.refusals import Refusals

BACKLOG_BYTES_MAX = 64 << 20
_log = logging.getLogger(__name__)


class _Connection:
    """An open connection: its partial frame, the time of its last bytes, the response bytes of this turn."""

    __slots__ = ("decoder", "last_seen_ms", "peer", "sent_bytes")

    def __init__(self, peer: str, decoder: FrameDecoder, now_ms: int) -> None:
        self.peer = peer
        self.decoder = decoder
        self.last_seen_ms = now_ms
        self.sent_bytes = 0


class ConnectionTable:
    """All open connections, by number."""

    def __init__(self, config: RunningConfig, outbox: Outbox | None) -> None:
        """No connection is open. `outbox` knows the bytes that peers have not read; None: only a turn is bounded."""
        self._config = config
        self._outbox = outbox
        self._connections: dict[int, _Connection] = {}
        self._partial_frames = PartialFrames()
        self._response_budget = ResponseBudget()
        self._logged_partial_frames = Refusals()
        self._logged_closes = Refusals()

    def __len__(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    def __contains__(self, link: int) -> bool:
        return link in self._connections

    def host(self, link: int) -> str:
        """The peer's host."""
        return self._connections[link].peer.rpartition(":")[0]

    def peer(self, link: int) -> str:
        """The peer's address, "ip:port"."""
        return self._connections[link].peer

    # Turns.

    def begin_turn(self, now_ms: int) -> None:
        """Renew the response budget."""
        self._partial_frames.now_ms = now_ms
        self._response_budget.begin_turn()

    def end_turn(self, turn: Turn) -> None:
        """Reset the byte counts of responses: the outbox has them, and counts them from now on."""
        for link in turn.sends:
            connection = self._connections.get(link)
            if connection is not None:
                connection.sent_bytes = 0

    # Opening and closing.

    def open(self, event: Opened, now_ms: int) -> str | None:
        """Add a connection; return why it is refused, None if it is not."""
        config = self._config.present
        if len(self._connections) >= config.connections_max:
            return f"{len(self._connections)} connections are open, more are not allowed"
        decoder = FrameDecoder(config.frame_bytes_max, self._partial_frames, event.link)
        self._connections[event.link] = _Connection(event.peer, decoder, now_ms)
        return None

    def remove(self, link: int) -> bool:
        """Remove a connection; False if it is not there."""
        if self._connections.pop(link, None) is None:
            return False
        self._partial_frames.drop(link)
        return True

    def log_close(self, link: int, reason: str) -> None:
        """Log that a connection is closed: one line per address and minute."""
        times = self._logged_closes.note(self.host(link), self._partial_frames.now_ms)
        if times:
            _log.warning("connection closed peer=%s times=%d reason=%s", self.peer(link), times, reason)

    def idle(self, now_ms: int) -> list[int]:
        """Connections on which nothing arrived for the configured time."""
        since_ms = now_ms - self._config.present.connection_idle_ms
        return [number for number, connection in self._connections.items() if connection.last_seen_ms < since_ms]

    def over_partial_budget(self) -> list[int]:
        """Connections to close because all partial frames together exceed their budget; logged."""
        frames = list(self._partial_frames.surplus(self._config.present.unfinished_bytes_max))
        for frame in frames:
            self._log_partial_frame(frame, "partial frames of all connections exceed unfinishedFramesMax")
        return [frame.link for frame in frames]

    def with_overdue_frame(self) -> list[int]:
        """Connections to close because a frame was begun and not completed in time; logged."""
        idle_ms = self._config.present.connection_idle_ms
        frames = list(self._partial_frames.overdue(idle_ms))
        for frame in frames:
            self._log_partial_frame(frame, f"not completed within {idle_ms} ms")
        return [frame.link for frame in frames]

    def _log_partial_frame(self, frame: EvictedFrame, why: str) -> None:
        times = self._logged_partial_frames.note(self.host(frame.link), self._partial_frames.now_ms)
        if times:
            _log.warning(
                "connection closed peer=%s times=%d reason=%d bytes of a frame begun %d ms ago: %s",
                self.peer(frame.link),
                times,
                frame.size,
                frame.age_ms,
                why,
            )

    # Requests and responses.

    def receive(
        self, link: int, data: bytes, now_ms: int, answer: Callable[[Command], None], is_over: Callable[[], bool]
    ) -> bytes:
        """Have the requests answered that are complete with these bytes; return what is left when the time is over.

        Raises:
            ProtocolError: the bytes are malformed; raised after the requests before them.
        """
        connection = self._connections.get(link)
        if connection is None:
            return b""
        connection.last_seen_ms = now_ms
        decoder = connection.decoder
        data = decoder.join(data)
        position = 0
        while (frame := decoder.split(data, position)) is not None:
            position = decoder.position
            request = decode_command(frame)
            if not request.is_response:
                answer(request)
            if position < len(data) and is_over():
                return data[position:]
        if decoder.error is not None:
            raise decoder.error
        return b""

    def busy(self, link: int) -> str | None:
        """Why no further response is built for a connection in this turn; None if there is room."""
        return self._response_budget.refusal(link)

    def respond(self, link: int, response: Command, turn: Turn) -> None:
        """Send a response.

        Raises:
            ProtocolError: the peer does not read its responses.
        """
        connection = self._connections[link]
        data: Buffer = encode_command(response)
        connection.sent_bytes += len(data)
        self._response_budget.note(link, len(data))
        waiting = connection.sent_bytes + (self._outbox.backlog(link) if self._outbox is not None else 0)
        if waiting > BACKLOG_BYTES_MAX:
            raise ProtocolError(f"{waiting} bytes of responses wait for this peer, which does not read them")
        turn.send(link, data)
