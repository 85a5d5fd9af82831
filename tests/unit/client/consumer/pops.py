"""The pops of a broker in `world`, which keeps what is invisible to the one group that pops.

world, pops = popped_world()
pops.store(b"1")
consumer = consumer_in(world)
"""

from dataclasses import dataclass, field

import msgspec

from tandemq.client.consumer.pop.pop_delivery import PopDelivery
from tandemq.client.consumer.pop_machine import PopConsumerCore
from tandemq.client.core.settings import PopOptions
from tandemq.codec.record.record import encode_record
from tandemq.codec.remoting.pops import BatchAckBody, acked_offsets
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode as Answered
from tandemq.model.command import Command
from tandemq.model.message import encode_properties
from tandemq.model.pop import ORDERED_QUEUE, Handle, parse_handle
from tests.unit.client.world import HOST, WALL_MS, Broker, Health, World


@dataclass
class Popable:
    """A message of queue 0."""

    offset: int
    body: bytes
    tag: str
    sys_flag: int = 0
    visible_ms: int = 0
    attempts: int = 0
    handle: Handle | None = None
    """The one that counts."""
    is_acked: bool = False


@dataclass
class Pops:
    """Handlers of a broker; `log` has what ends messages: (kind, body, or bodies)."""

    world: World
    broker: Broker
    messages: list[Popable] = field(default_factory=list)
    held: list[tuple[int, Command]] = field(default_factory=list)
    takes_batches: bool = True
    is_holding: bool = True
    refusal: int = 0
    """Code of the response to each request about popped messages; 0: they are carried out."""
    queries: list[Command] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.broker.handlers |= {
            Code.POP_MESSAGE: self.pop,
            Code.ACK_MESSAGE: self.ack,
            Code.CHANGE_MESSAGE_INVISIBLETIME: self.change,
            Code.BATCH_ACK_MESSAGE: self.batch,
        }

    def store(self, *bodies: bytes, tag: str = "", sys_flag: int = 0) -> None:
        """Store messages, and answer a held pop."""
        for body in bodies:
            self.messages.append(Popable(len(self.messages), body, tag, sys_flag))
        self.wake()

    def wake(self) -> None:
        """Try the held pops again."""
        waiting, self.held = self.held, []
        for link, command in waiting:
            answer = self._found(command)
            if answer is None:
                self.held.append((link, command))
            elif link in self.broker.links:
                self.broker.say(link, answer)

    def pop(self, command: Command) -> Command | None:
        self.queries.append(command)
        if self.refusal:
            return command.answer(self.refusal, remark="not now", fields=_zeros())
        answer = self._found(command)
        if answer is None and self.is_holding:
            link = next((link for link, at in self.broker.links.items() if at is self.world.decoder), 0)
            self.held.append((link, command))
            return None
        return answer or command.answer(Answered.POLLING_TIMEOUT, fields=_zeros())

    def _found(self, command: Command) -> Command | None:
        fields, now_ms = command.fields, self.world.now.wall_ms
        is_ordered = fields["order"] == "true"
        pending = [m for m in self.messages if not m.is_acked]
        if is_ordered and any(m.visible_ms > now_ms for m in pending):
            return None
        found = [m for m in pending if m.visible_ms <= now_ms][: int(fields["maxMsgNums"])]
        if not found:
            return None
        revive = ORDERED_QUEUE if is_ordered else 3
        handle = Handle(found[0].offset, now_ms, int(fields["invisibleTime"]), revive, 0, self.broker.group.name, 0, 0)  # type: ignore[arg-type]
        counts = ";".join(f"0 qo0%{m.offset} {m.attempts}" for m in found if is_ordered and m.attempts)
        body = b""
        for message in found:
            message.handle = handle._replace(offset=message.offset)
            message.visible_ms = now_ms + handle.invisible_ms
            body += record_of(fields["topic"], message, 0 if is_ordered else message.attempts)
            message.attempts += 1
        answer = {
            "popTime": str(now_ms),
            "invisibleTime": fields["invisibleTime"],
            "reviveQid": str(revive),
            "startOffsetInfo": f"0 0 {found[0].offset}",
            "orderCountInfo": counts,
        }
        return command.answer(0, fields=answer, body=body)

    def of(self, text: str) -> Popable | None:
        """Return the message of a handle that counts."""
        given = parse_handle(text)
        return next((m for m in self.messages if m.handle == given), None)

    def ack(self, command: Command) -> Command | None:
        if self.refusal:
            return command.answer(self.refusal, remark="not now")
        message = self.of(command.fields["extraInfo"])
        if message is not None:
            message.is_acked = True
        return command.answer(0)

    def batch(self, command: Command) -> Command | None:
        if self.refusal or not self.takes_batches:
            return command.answer(self.refusal or Answered.REQUEST_CODE_NOT_SUPPORTED)
        for entry in msgspec.json.decode(command.body, type=BatchAckBody).acks:
            for offset in acked_offsets(entry):
                message = self.messages[offset]
                assert message.handle is not None
                if (message.handle.pop_ms, message.handle.start_offset) == (entry.pt, entry.so):
                    message.is_acked = True
        return command.answer(0)

    def change(self, command: Command) -> Command | None:
        if self.refusal:
            return command.answer(self.refusal, remark="not now")
        message = self.of(command.fields["extraInfo"])
        if message is None or message.handle is None:
            return command.answer(Answered.NO_MESSAGE)
        now_ms, invisible_ms = self.world.now.wall_ms, int(command.fields["invisibleTime"])
        message.visible_ms = now_ms + invisible_ms
        if message.handle.revive_queue == ORDERED_QUEUE:
            pop_ms, invisible_ms = message.handle.pop_ms, message.visible_ms - message.handle.pop_ms
        else:
            pop_ms = now_ms
        message.handle = message.handle._replace(start_offset=message.offset, pop_ms=pop_ms, invisible_ms=invisible_ms)
        fields = {
            "popTime": str(pop_ms),
            "invisibleTime": str(invisible_ms),
            "reviveQid": str(message.handle.revive_queue),
        }
        return command.answer(0, fields=fields)

    @property
    def acked(self) -> list[bytes]:
        return [m.body for m in self.messages if m.is_acked]

    def visible_in_ms(self, body: bytes) -> int:
        """Return when a message comes back, from now."""
        return next(m.visible_ms for m in self.messages if m.body == body) - self.world.now.wall_ms


def _zeros() -> dict[str, str]:
    return {"popTime": "0", "invisibleTime": "0", "reviveQid": "0"}


def record_of(topic: str, message: Popable, reconsume_times: int) -> bytes:
    return encode_record(
        topic=topic.encode(),
        queue_id=0,
        queue_offset=message.offset,
        log_offset=message.offset * 1_000,
        body=message.body,
        properties=encode_properties({"TAGS": message.tag} if message.tag else {}).encode(),
        flag=0,
        sys_flag=message.sys_flag,
        born_ms=WALL_MS,
        born_host=HOST,
        store_ms=WALL_MS,
        store_host=HOST,
        reconsume_times=reconsume_times,
    )


def popped_world(name: str = "a") -> tuple[World, Pops]:
    """Return a world with one broker that has the topic T."""
    world = World()
    broker = world.broker(name)
    world.topic("T")
    return world, Pops(world, broker)


def consumer_in(world: World, expression: str = "*", **options: object) -> PopConsumerCore:
    consumer = world.node.pop_consumer(PopOptions(group="g", **options))  # type: ignore[arg-type]
    consumer.subscribe("T", expression, world.now)
    return consumer


def take(world: World, consumer: PopConsumerCore, count: int = 1, within_ms: int = 10_000) -> list[PopDelivery]:
    """Let time pass until so many messages were taken."""
    found: list[PopDelivery] = []

    def enough() -> bool:
        while len(found) < count and (delivery := consumer.next_delivery(world.now)) is not None:
            found.append(delivery)
        return len(found) >= count

    world.until(enough, within_ms)
    return found


__all__ = ["Health", "Pops", "consumer_in", "popped_world", "take"]
