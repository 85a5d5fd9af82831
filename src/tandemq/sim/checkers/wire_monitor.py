"""Watches what a client says and hears on its links, frame by frame, and believes nothing the client says of itself.

    said    sends: attempts, each message recognised by its body and held to one unique key    I2 I3
            offsets told, and who was asked for which queue when
    heard   answers to sends: what the shadow knows of them; answers to pulls: whole, right, in order    I10 I4

A mistake of the client cannot hide one of a broker, nor the other way round.
"""

import re
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

from tandemq.boundary import Closed, Event, Opened, Turn
from tandemq.codec.record.record import decode_batch
from tandemq.codec.remoting.frame import FrameDecoder, RawFrame, decode_command
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.model.message import UNIQ_KEY, WAIT, decode_properties
from tandemq.model.topic import RETRY_PREFIX
from tandemq.sim.checkers.deliveries import records_in
from tandemq.sim.checkers.model import Attempt, SentMessage, Shadow
from tandemq.sim.world.world import Violation, World

_CODE = re.compile(rb'"code":(\d+)')
_OPAQUE = re.compile(rb'"opaque":(\d+)')

Member = tuple[str, int]
"""A broker: the name of its group, and its number there."""
Queue = tuple[str, str, int]
"""Group of brokers, topic, queue id."""


class ObservedPull(NamedTuple):
    """A pull that waits for its answer."""

    topic: str
    queue_id: int
    queue_offset: int


class Asked(NamedTuple):
    """A request that waits for its answer, and what it asks for if the witness keeps that."""

    command: Command
    sent_us: int
    what: Attempt | ObservedPull | None


class _Line:
    """One link to a broker."""

    __slots__ = ("address", "heard", "link", "member", "waiting")

    def __init__(self, link: int, address: str, member: Member) -> None:
        self.link = link
        self.address = address
        self.member = member
        self.heard = FrameDecoder()
        self.waiting: dict[int, Asked] = {}


class Witness:
    """What one client did."""

    def __init__(self, world: World, shadow: Shadow, name: str, members: dict[str, Member]) -> None:
        """`members`: brokers by address."""
        self._world = world
        self._shadow = shadow
        self._name = name
        self._members = members
        self._lines: dict[int, _Line] = {}
        self._lives = 0
        self.open_links: dict[str, int] = {}
        """Brokers with an open link."""
        self.lost: list[str] = []
        """Brokers whose link broke or was given up, until somebody takes them from here."""
        self.asked: dict[Queue, int] = {}
        """Which member was asked last for messages of a queue."""
        self.gave: dict[tuple[str, str, int, int], str] = {}
        """Group of brokers, topic, queue id and queue offset to the broker that gave this message last."""
        self.by_body: Callable[[bytes], SentMessage | None] = lambda _: None
        self.on_attempt: Callable[[Attempt], None] = lambda _: None
        self.on_commit: Callable[[Queue, int], None] = lambda _queue, _offset: None
        self.on_answer: Callable[[str, Command, int, Command], None] | None = None
        """Address, request, when it was sent (µs), answer."""

    def begin_anew(self) -> None:
        """The client is another process now."""
        self._lives += 1
        self._lines.clear()
        self.open_links.clear()
        self.lost.clear()
        self.asked.clear()
        self.gave.clear()

    # What the client hears.

    def heard(self, received: Sequence[tuple[int, bytes]], events: Sequence[Event]) -> None:
        """What arrives with a turn, before the client sees it."""
        for event in events:
            if isinstance(event, Opened) and event.link in self._lines:
                self.open_links[self._lines[event.link].address] = event.link
        for link, data in received:
            line = self._lines.get(link)
            if line is not None:
                self._heard(line, data)
        for event in events:
            if isinstance(event, Closed):
                self._gone(event.link)

    def _heard(self, line: _Line, data: bytes) -> None:
        for frame in line.heard.feed(data):
            found = _OPAQUE.search(frame[1])
            asked = line.waiting.pop(int(found[1]), None) if found is not None and b'"flag":1,' in frame[1] else None
            if asked is not None:
                self._answered(line, asked, frame)
        assert line.heard.error is None, f"{line.address} answered with no frame: {line.heard.error}"

    def _answered(self, line: _Line, asked: Asked, frame: RawFrame) -> None:
        if self.on_answer is not None:
            self.on_answer(line.address, asked.command, asked.sent_us, decode_command(frame))
        if isinstance(asked.what, Attempt):
            command = decode_command(frame)
            self._world.fold("ack", asked.what.number, command.code)
            self._shadow.hear(asked.what, command.code, command.fields, self._world.now_us)
        elif asked.what is not None and not self._shadow.has_rot(line.address):  # I2 tells whether the client looked.
            for _, queue_offset in records_in(frame[2], line.address, self._name, *asked.what):
                self.gave[line.member[0], asked.what.topic, asked.what.queue_id, queue_offset] = line.address

    def _gone(self, link: int) -> None:
        line = self._lines.pop(link, None)
        if line is not None and self.open_links.get(line.address) == link:
            del self.open_links[line.address]
            self.lost.append(line.address)

    # What it says.

    def said(self, turn: Turn) -> None:
        """What leaves with a turn."""
        for wish in turn.connects:
            member = self._members.get(wish.address)
            if member is not None:
                self._lines[wish.link] = _Line(wish.link, wish.address, member)
        for link, frames in turn.sends.items():
            line = self._lines.get(link)
            for frame in frames if line is not None else ():
                found = _CODE.search(frame)
                assert found is not None and line is not None, "every frame has a code"
                note = self._notes.get(int(found[1]))
                if note is not None:
                    note(self, line, decode_command(FrameDecoder().feed(bytes(frame))[0]))
        for link, _ in turn.closes:
            self._gone(link)

    def _sent(self, line: _Line, command: Command) -> None:
        fields = command.fields
        if fields["b"].startswith(RETRY_PREFIX):
            return  # Given back by a consumer that could not reach the master: judged when all is over.
        outer = decode_properties(fields["i"])
        parts = [(command.body, outer)]
        if fields["m"] == "true":
            parts = [(part.body, decode_properties(part.properties.decode())) for part in decode_batch(command.body)]
        messages = [self._recognised(body, properties[UNIQ_KEY]) for body, properties in parts]
        attempt = Attempt(
            len(self._shadow.attempts),
            messages,
            line.member[0],
            int(fields["e"]),
            self._world.now_us,
            (f"{self._name}#{self._lives}", line.link),
        )
        attempt.address = line.address
        attempt.waits = outer.get(WAIT) != "false" and not command.is_oneway
        self._shadow.send(attempt)
        self._waits(line, command, attempt)
        self.on_attempt(attempt)

    def _recognised(self, body: bytes, key: str) -> SentMessage:
        wanted = self.by_body(body)
        if wanted is None:
            raise Violation("I2", f"{self._name} sends what nobody asked it to send: {body[:40]!r}")
        if not wanted.key:
            wanted.key = key
            self._shadow.want(wanted)
        elif wanted.key != key:
            raise Violation("I3", f"{self._name} sends {wanted.key} again as {key}")
        return wanted

    def _pulls(self, line: _Line, command: Command) -> None:
        fields = command.fields
        topic, queue_id = fields["topic"], int(fields["queueId"])
        self._waits(line, command, ObservedPull(topic, queue_id, int(fields["queueOffset"])))
        self.asked[line.member[0], topic, queue_id] = line.member[1]

    def _commits(self, line: _Line, command: Command) -> None:
        fields = command.fields
        queue = (line.member[0], fields["topic"], int(fields["queueId"]))
        offset = int(fields["commitOffset"])
        self._shadow.committed(*queue, fields["consumerGroup"], offset, self._world.now_us)
        self._waits(line, command)
        self.on_commit(queue, offset)

    def _waits(self, line: _Line, command: Command, what: Attempt | ObservedPull | None = None) -> None:
        if not command.is_oneway:
            line.waiting[command.opaque] = Asked(command, self._world.now_us, what)

    _notes: ClassVar[dict[int, Callable[..., None]]] = {
        int(RequestCode.SEND_MESSAGE_V2): _sent,
        int(RequestCode.SEND_BATCH_MESSAGE): _sent,
        int(RequestCode.PULL_MESSAGE): _pulls,
        int(RequestCode.UPDATE_CONSUMER_OFFSET): _commits,
        int(RequestCode.CONSUMER_SEND_MSG_BACK): _waits,
    }
