"""Monitor of a client's connections, frame by frame, independent of what the client reports.

    sent       send requests: attempts, each message identified by its body and bound to one unique key    I2 I3
               commits, and which member was asked for which queue
    received   send responses, matched with the expected state; pull responses: complete, valid, in order    I10 I4

A mistake of the client cannot hide one of a broker, nor the other way round.
"""

import re
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

from lab.sim.checkers.deliveries import records_in
from lab.sim.checkers.model import Attempt, BrokerQueue, BrokerRef, ExpectedState, QueuePlace, SentMessage
from lab.sim.world.world import Violation, World
from tandemq.boundary import Closed, Event, Opened, Turn
from tandemq.codec.record.record import decode_batch
from tandemq.codec.remoting.frame import FrameDecoder, RawFrame, decode_command
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.model.message import UNIQ_KEY, WAIT, decode_properties
from tandemq.model.topic import RETRY_PREFIX
from tandemq.model.transactions import TransactionState

_CODE = re.compile(rb'"code":(\d+)')
_OPAQUE = re.compile(rb'"opaque":(\d+)')


class ObservedPull(NamedTuple):
    """A pull that has no response yet."""

    topic: str
    queue_id: int
    queue_offset: int


class ObservedCommit(NamedTuple):
    """A request to commit a transaction that has no response yet."""

    attempt: Attempt


class Asked(NamedTuple):
    """A request that has no response yet, and its details if the monitor keeps them."""

    command: Command
    sent_us: int
    what: Attempt | ObservedPull | ObservedCommit | None


class _BrokerConnection:
    """A connection to a broker."""

    __slots__ = ("address", "decoder", "link", "member", "waiting")

    def __init__(self, link: int, address: str, member: BrokerRef) -> None:
        self.link = link
        self.address = address
        self.member = member
        self.decoder = FrameDecoder()
        self.waiting: dict[int, Asked] = {}


class WireMonitor:
    """The connections of one client."""

    def __init__(self, world: World, expected: ExpectedState, name: str, members: dict[str, BrokerRef]) -> None:
        """`members`: brokers by address."""
        self._world = world
        self._expected = expected
        self._name = name
        self._members = members
        self._connections: dict[int, _BrokerConnection] = {}
        self._lives = 0
        self.open_links: dict[str, int] = {}
        """Address of each connected broker to the connection's id."""
        self.lost: list[str] = []
        """Brokers whose connection was lost or closed; the owner empties the list."""
        self.asked: dict[BrokerQueue, int] = {}
        """Queue to the id of the member asked last for its messages."""
        self.read_from: dict[QueuePlace, str] = {}
        """The broker that delivered the message at a place last."""
        self.by_body: Callable[[bytes], SentMessage | None] = lambda _: None
        self.on_attempt: Callable[[Attempt], None] = lambda _: None
        self.on_commit: Callable[[BrokerQueue, int, str], None] = lambda _queue, _offset, _address: None
        self.on_answer: Callable[[str, Command, int, Command], None] | None = None
        """Called with the address, the request, its time in µs, and the response."""

    def restarted(self) -> None:
        """Forget all connections: the client runs in another process now."""
        self._lives += 1
        self._connections.clear()
        self.open_links.clear()
        self.lost.clear()
        self.asked.clear()
        self.read_from.clear()

    # Received.

    def received(self, received: Sequence[tuple[int, bytes]], events: Sequence[Event]) -> None:
        """Process the bytes that arrive with a turn, before the client sees them."""
        for event in events:
            if isinstance(event, Opened) and event.link in self._connections:
                self.open_links[self._connections[event.link].address] = event.link
        for link, data in received:
            connection = self._connections.get(link)
            if connection is not None:
                self._received(connection, data)
        for event in events:
            if isinstance(event, Closed):
                self._closed(event.link)

    def _received(self, connection: _BrokerConnection, data: bytes) -> None:
        for frame in connection.decoder.feed(data):
            found = _OPAQUE.search(frame[1])
            asked = (
                connection.waiting.pop(int(found[1]), None) if found is not None and b'"flag":1,' in frame[1] else None
            )
            if asked is not None:
                self._answered(connection, asked, frame)
        assert connection.decoder.error is None, (
            f"{connection.address} answered with no frame: {connection.decoder.error}"
        )

    def _answered(self, connection: _BrokerConnection, asked: Asked, frame: RawFrame) -> None:
        if self.on_answer is not None:
            self.on_answer(connection.address, asked.command, asked.sent_us, decode_command(frame))
        if isinstance(asked.what, Attempt):
            command = decode_command(frame)
            self._world.fold("ack", asked.what.number, command.code)
            self._expected.record_response(asked.what, command.code, command.fields, self._world.now_us)
        elif isinstance(asked.what, ObservedCommit):
            code = decode_command(frame).code
            self._world.fold("commit", asked.what.attempt.messages[0].key, code)
            self._expected.record_commit_response(asked.what.attempt, code, self._world.now_us)
        elif asked.what is not None and not self._expected.has_bit_rot(
            connection.address
        ):  # I2 shows whether the client checked it.
            for _, queue_offset in records_in(frame[2], connection.address, self._name, *asked.what):
                place = QueuePlace(connection.member.group, asked.what.topic, asked.what.queue_id, queue_offset)
                self.read_from[place] = connection.address

    def _closed(self, link: int) -> None:
        connection = self._connections.pop(link, None)
        if connection is not None and self.open_links.get(connection.address) == link:
            del self.open_links[connection.address]
            self.lost.append(connection.address)

    # Sent.

    def sent(self, turn: Turn) -> None:
        """Process the bytes that a turn sends."""
        for request in turn.connects:
            member = self._members.get(request.address)
            if member is not None:
                self._connections[request.link] = _BrokerConnection(request.link, request.address, member)
        for link, frames in turn.sends.items():
            connection = self._connections.get(link)
            for frame in frames if connection is not None else ():
                found = _CODE.search(frame)
                assert found is not None and connection is not None, "every frame has a code"
                handler = self._handlers.get(int(found[1]))
                if handler is not None:
                    handler(self, connection, decode_command(FrameDecoder().feed(bytes(frame))[0]))
        for link, _ in turn.closes:
            self._closed(link)

    def _sent(self, connection: _BrokerConnection, command: Command) -> None:
        fields = command.fields
        if fields["b"].startswith(RETRY_PREFIX):
            return  # Sent back by a consumer that could not reach the master: checked at the end of the run.
        outer = decode_properties(fields["i"])
        parts = [(command.body, outer)]
        if fields["m"] == "true":
            parts = [(part.body, decode_properties(part.properties.decode())) for part in decode_batch(command.body)]
        messages = [self._recognised(body, properties[UNIQ_KEY]) for body, properties in parts]
        attempt = Attempt(
            len(self._expected.attempts),
            messages,
            connection.member.group,
            int(fields["e"]),
            self._world.now_us,
            (f"{self._name}#{self._lives}", connection.link),
        )
        attempt.address = connection.address
        attempt.waits = outer.get(WAIT) != "false" and not command.is_oneway
        self._expected.record_attempt(attempt)
        self._await_response(connection, command, attempt)
        self.on_attempt(attempt)

    def _replied(self, _connection: _BrokerConnection, command: Command) -> None:
        """Record a reply, so that a log may hold it. It has no attempts: its response says whether it was passed on."""
        key = decode_properties(command.fields["i"])[UNIQ_KEY]
        self._expected.record_message(SentMessage(key, self._name, "", command.body, "", ""))

    def _recognised(self, body: bytes, key: str) -> SentMessage:
        wanted = self.by_body(body)
        if wanted is None:
            raise Violation("I2", f"{self._name} sends a message that the application did not send: {body[:40]!r}")
        if not wanted.key:
            wanted.key = key
            self._expected.record_message(wanted)
        elif wanted.key != key:
            raise Violation("I3", f"{self._name} sends {wanted.key} again as {key}")
        return wanted

    def _pulls(self, connection: _BrokerConnection, command: Command) -> None:
        fields = command.fields
        topic, queue_id = fields["topic"], int(fields["queueId"])
        self._await_response(connection, command, ObservedPull(topic, queue_id, int(fields["queueOffset"])))
        self.asked[BrokerQueue(connection.member.group, topic, queue_id)] = connection.member.broker_id

    def _commits(self, connection: _BrokerConnection, command: Command) -> None:
        fields = command.fields
        queue = BrokerQueue(connection.member.group, fields["topic"], int(fields["queueId"]))
        offset = int(fields["commitOffset"])
        self._expected.record_commit(*queue, fields["consumerGroup"], offset, self._world.now_us)
        self._await_response(connection, command)
        self.on_commit(queue, offset, connection.address)

    def _ends(self, connection: _BrokerConnection, command: Command) -> None:
        """Record a request to end a transaction; other ends than commits promise nothing that could be checked."""
        fields, link = command.fields, (f"{self._name}#{self._lives}", connection.link)
        observed = None
        if int(fields["commitOrRollback"]) == TransactionState.COMMIT and not command.is_oneway:
            message = self._expected.messages[fields["msgId"]]
            group, address = connection.member.group, connection.address
            observed = ObservedCommit(Attempt(-1, [message], group, 0, self._world.now_us, link, address=address))
        self._await_response(connection, command, observed)

    def _await_response(
        self,
        connection: _BrokerConnection,
        command: Command,
        what: Attempt | ObservedPull | ObservedCommit | None = None,
    ) -> None:
        if not command.is_oneway:
            connection.waiting[command.opaque] = Asked(command, self._world.now_us, what)

    _handlers: ClassVar[dict[int, Callable[..., None]]] = {
        int(RequestCode.SEND_MESSAGE_V2): _sent,
        int(RequestCode.SEND_BATCH_MESSAGE): _sent,
        int(RequestCode.SEND_REPLY_MESSAGE_V2): _replied,
        int(RequestCode.END_TRANSACTION): _ends,
        int(RequestCode.PULL_MESSAGE): _pulls,
        int(RequestCode.UPDATE_CONSUMER_OFFSET): _commits,
        int(RequestCode.CONSUMER_SEND_MSG_BACK): _await_response,
    }
