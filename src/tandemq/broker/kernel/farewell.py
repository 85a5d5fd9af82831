"""The last moment of a broker that stops: clients that understand GO_AWAY get it, and use another broker.

    stop ──► held pulls answered GO_AWAY ──► each further request answered GO_AWAY ──► all clients told ──► closed

Nothing is stored or served any more. The connection of a client that does not understand GO_AWAY is closed when its
next request arrives, as if the broker had stopped already.
Source: docs/reference/compatibility.md, "Further differences"; RocketMQ NettyRemotingAbstract (5.3.2 and newer).
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from tandemq.boundary import Turn
from tandemq.broker.kernel.connection import Link
from tandemq.codec.remoting.frame import decode_command, encode_command
from tandemq.errors import ProtocolError
from tandemq.model.codes import ResponseCode
from tandemq.model.command import FLAG_RESPONSE, GO_AWAY_REMARK, Command

STOPPING = "the broker is stopping"


class HeldPull(Protocol):
    """A pull that waits for messages."""

    opaque: int
    binary: bool


class Farewell:
    """Answers of a broker after its last turn."""

    def __init__(self, links: dict[int, Link], held: Callable[[int], Iterable[HeldPull]], turn: Turn) -> None:
        """Answer the held pulls of clients that understand it.

        Args:
            links: the connections of clients, by number.
            held: returns the held pulls of a connection.
            turn: takes the answers.
        """
        self._links = links
        self._waiting = {number for number, link in links.items() if link.takes_go_away}
        """Connections of clients that understand GO_AWAY and have not got it."""
        self.answers = 0
        """Number of requests answered with GO_AWAY."""
        for number in tuple(self._waiting):
            for pull in held(number):
                answer = Command(ResponseCode.GO_AWAY, pull.opaque, FLAG_RESPONSE, GO_AWAY_REMARK, binary=pull.binary)
                self._send(number, answer, turn)

    @property
    def is_over(self) -> bool:
        """Whether every client that understands GO_AWAY has got it."""
        return not self._waiting

    def receive(self, number: int, data: bytes, turn: Turn) -> None:
        """Answer the requests of a client."""
        link = self._links.get(number)
        if link is None:
            return
        try:
            commands = [decode_command(frame) for frame in link.decoder.feed(data)]
        except ProtocolError as error:
            turn.closes.append((number, str(error)))
            return
        if link.decoder.error is not None:
            turn.closes.append((number, str(link.decoder.error)))
        for command in commands:
            if command.is_response or command.is_oneway:
                continue
            if not command.takes_go_away:
                turn.closes.append((number, STOPPING))
                return
            self._send(number, command.go_away(), turn)

    def _send(self, number: int, answer: Command, turn: Turn) -> None:
        turn.send(number, encode_command(answer))
        self._waiting.discard(number)
        self.answers += 1

    def closed(self, number: int) -> None:
        """Forget a connection."""
        self._links.pop(number, None)
        self._waiting.discard(number)
