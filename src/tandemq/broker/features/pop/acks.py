"""Acknowledgements of popped messages, and changes of the time at which they come back.

Those of one turn for the messages of one pop become one record. A request is answered with success once its record is
in the log. Source: docs/reference/pop.md; RocketMQ AckMessageProcessor, ChangeInvisibleTimeProcessor.
"""

from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import NamedTuple

import msgspec

from tandemq.boundary import Now
from tandemq.broker.features.pop.in_flight import InFlight
from tandemq.broker.features.pop.orders import Orders
from tandemq.broker.features.pop.records import Acknowledged, PopCheckpoint, Popped
from tandemq.broker.features.pop.revive_queue import ReviveQueues
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.housekeeping import Housekeeping
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.messages.refused import SendRefused
from tandemq.broker.kernel.pop_acks import PopAcks
from tandemq.broker.kernel.response import recode
from tandemq.broker.kernel.serving import Right
from tandemq.codec.remoting.bodies import decode_body
from tandemq.codec.remoting.frame import encode_command
from tandemq.codec.remoting.pops import AckEntry, BatchAckBody, acked_offsets
from tandemq.codec.remoting.requests import AckFields, is_true, read_fields
from tandemq.engine import AckEngine, SigningUser
from tandemq.errors import ProtocolError
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.pop import MESSAGES_MAX, ORDERED_QUEUE, TopicKind, parse_handle, pop_retry_topic, popped_topic

ENTRIES_MAX = 4_096
"""Maximum number of entries of a request with acknowledgements of several pops."""


class _Taken(NamedTuple):
    """Acknowledgements of one turn go to one record for each of these."""

    popped: Popped
    revive_ms: int
    revive_queue: int


class _AdmittedPop(NamedTuple):
    """What the handles of a pop stand for, and which offsets they may have."""

    low: int
    high: int
    offsets: dict[int, None]
    """Those acknowledged in this turn."""


class Acks(Feature, PopAcks):
    """Take acknowledgements, and changes of invisible times."""

    def __init__(
        self,
        kernel: Kernel,
        queues: ReviveQueues,
        orders: Orders,
        in_flight: InFlight,
        wake: Callable[[Iterable[str]], None],
    ) -> None:
        """Begin.

        Args:
            kernel: of the broker.
            queues: the revive topic.
            orders: batches of ordered pops.
            in_flight: messages of groups with a limit.
            wake: has the requests that wait for topics tried again.
        """
        self._queues = queues
        self._orders = orders
        self._in_flight = in_flight
        self._wake = wake
        self._offsets = kernel.offsets
        self._puts = kernel.puts
        self._store = kernel.store
        self._topics = kernel.topics
        self._turn = kernel.turn
        self._current = kernel.current
        self._taken: dict[_Taken, dict[int, None]] = {}
        """Acknowledged offsets of this turn."""
        self._engine = AckEngine(self._admit)
        self._now_ms = 0
        """Calendar time of the acknowledgements that the engine takes."""
        self._responses = kernel.features.find(Housekeeping).responses
        self._answers: list[tuple[int, bytes | Command]] = []
        """Acknowledgements of this turn, in order: connection, and request or prepared responses."""
        self.acked = 0
        """Acknowledged messages since the start."""

    def requests(self) -> dict[Code, Request]:
        """See `Feature`."""
        return {
            Code.ACK_MESSAGE: Request(self._on_ack, Right.WRITE, is_copied=True),
            Code.BATCH_ACK_MESSAGE: Request(self._on_batch, Right.WRITE, is_copied=True),
            Code.CHANGE_MESSAGE_INVISIBLETIME: Request(self._on_change, Right.WRITE),
        }

    # Many at once.

    def take_ordinary(self, link: Link, data: bytes, position: int, now: Now, sender: SigningUser | None = None) -> int:
        """See `PopAcks`."""
        if self._turn.serving.refusal(Right.WRITE) is not None or self._puts.refusal is not None:
            return position
        if self._responses.refusal(link.number) is not None:
            return position
        self._now_ms = now.wall_ms
        position, answers = self._engine.take(data, position, sender)
        if answers:
            self._answers.append((link.number, answers))
        return position

    def _admit(self, topic: str, group: str, queue_id: int, place: str) -> _AdmittedPop | None:
        """Return what the first seven parts of a handle stand for; None if its requests have to be decoded."""
        found, queue = self._topics.get(topic), self._store.queues.get((topic, queue_id))
        if found is None or queue is None or queue_id >= found.config.read_queue_nums:
            return None
        if self._in_flight.counts(group):
            return None
        try:
            handle = parse_handle(f"{place} {place.partition(' ')[0]}")
            if handle.revive_queue == ORDERED_QUEUE or handle.broker != self._current.config.broker_name:
                return None
            popped = Popped(topic, queue_id, group, handle.start_offset, handle.pop_ms, handle.broker)
            taken = self._known(popped, handle.revive_ms, handle.revive_queue, self._now_ms)
        except ProtocolError:
            return None
        low = max(queue.min_offset, handle.start_offset)
        return _AdmittedPop(low, queue.max_offset, self._taken.setdefault(taken, {}))

    # Requests.

    def _on_ack(self, link: Link, command: Command, now: Now) -> Command | None:
        fields = read_fields(AckFields, command.fields)
        refused = self._refusal(command)
        if refused is not None:
            return refused
        taken = self._checked(fields, now)
        problem = self._problem(fields.topic, fields.queue_id, fields.offset, is_last_allowed=True)
        if problem is not None:
            return command.answer(problem[0], remark=problem[1])
        if taken.revive_queue == ORDERED_QUEUE:
            return self._end_ordered(command, taken.popped, fields.offset)
        self._take(taken, fields.offset)
        self._answers.append((link.number, command))
        return None

    def _end_ordered(self, command: Command, popped: Popped, offset: int) -> Command:
        """Acknowledge a message of an ordered pop: the group's offset moves behind those acknowledged in order."""
        place = popped.topic, popped.group, popped.queue_id
        batch, committed = self._orders.table.get(place), self._offsets.get(*place)
        if batch is None or batch.pop_ms != popped.pop_ms or batch.next_offset() != committed:
            # It was handed out again meanwhile, or an operator has set the offset.
            return command.answer(ResponseCode.SUCCESS)
        if offset not in batch.offsets:
            return command.answer(ResponseCode.MESSAGE_ILLEGAL, remark=f"the offset {offset} is not in the batch")
        batch = self._orders.acknowledged(place, offset)
        self.acked += 1
        self._offsets.commit(*place, batch.next_offset())
        if not batch.blocks_until():
            self._wake([popped.topic])
        return command.answer(ResponseCode.SUCCESS)

    def _on_batch(self, link: Link, command: Command, now: Now) -> Command | None:
        body = decode_body(command.body, BatchAckBody, "batch acknowledgement") if command.body else BatchAckBody()
        if not body.acks:
            return command.answer(ResponseCode.NO_MESSAGE, remark="the batch has no acknowledgements")
        refused = self._refusal(command)
        if refused is not None:
            return refused
        if len(body.acks) > ENTRIES_MAX:
            raise ProtocolError(f"{len(body.acks)} entries, at most {ENTRIES_MAX} are allowed in a batch")
        entries = [(self._of_entry(entry, now), acked_offsets(entry)) for entry in body.acks]
        is_recorded = False
        for taken, offsets in entries:
            if taken.revive_queue == ORDERED_QUEUE:
                for offset in offsets:
                    self._end_ordered(command, taken.popped, offset)
                continue
            is_recorded = True
            queue = self._store.queues.get((taken.popped.topic, taken.popped.queue_id))
            for offset in offsets:
                if queue is not None and queue.min_offset <= offset <= queue.max_offset:
                    self._take(taken, offset)
        if not is_recorded:
            return command.answer(ResponseCode.SUCCESS)
        self._answers.append((link.number, command))
        return None

    def _on_change(self, link: Link, command: Command, now: Now) -> Command | None:
        fields = read_fields(AckFields, command.fields)
        refused = self._refusal(command)
        if refused is not None:
            return refused
        taken = self._checked(fields, now)
        self._check_time(fields.invisible_time)
        problem = self._problem(fields.topic, fields.queue_id, fields.offset, is_last_allowed=False)
        if problem is not None:
            return command.answer(problem[0], remark=problem[1])
        if taken.revive_queue == ORDERED_QUEUE:
            return self._change_ordered(command, taken.popped, fields, now)
        popped = taken.popped._replace(start_offset=fields.offset, pop_ms=now.wall_ms)
        is_suspended = is_true(fields.suspend)
        checkpoint = PopCheckpoint(popped, fields.invisible_time, (fields.offset,), is_suspended=is_suspended)
        try:
            self._queues.put_checkpoint(checkpoint, taken.revive_queue, now)
        except SendRefused as error:
            return command.answer(error.code, remark=error.remark)
        self._in_flight.add(popped, checkpoint.offsets, checkpoint.revive_ms)
        self._take(taken, fields.offset)
        answer = {
            "popTime": str(now.wall_ms),
            "invisibleTime": str(fields.invisible_time),
            "reviveQid": str(taken.revive_queue),
        }
        self._answers.append((link.number, msgspec.structs.replace(command, fields=answer)))
        return None

    def _change_ordered(self, command: Command, popped: Popped, fields: AckFields, now: Now) -> Command:
        place = popped.topic, popped.group, popped.queue_id
        batch = self._orders.table.get(place)
        changed_ms = 0
        if batch is not None and batch.pop_ms == popped.pop_ms and fields.offset in batch.offsets:
            self._orders.changed_time(place, fields.offset, now.wall_ms + fields.invisible_time)
            changed_ms = now.wall_ms + fields.invisible_time - popped.pop_ms
        answer = {
            "popTime": str(popped.pop_ms if changed_ms else 0),
            "invisibleTime": str(changed_ms),
            "reviveQid": str(ORDERED_QUEUE),
        }
        return command.answer(ResponseCode.SUCCESS, fields=answer)

    def _refusal(self, command: Command) -> Command | None:
        refusal = self._puts.refusal
        return None if refusal is None else command.answer(refusal[0], remark=refusal[1])

    def _checked(self, fields: AckFields, now: Now) -> _Taken:
        """Return what a handle names.

        Raises:
            ProtocolError: it is none of this broker.
        """
        handle = parse_handle(fields.extra_info)
        broker = self._current.config.broker_name
        if handle.broker != broker:
            raise ProtocolError(f"the handle is one of broker {handle.broker[:64]!r}, this is {broker}")
        popped = Popped(
            fields.topic, fields.queue_id, fields.consumer_group, handle.start_offset, handle.pop_ms, handle.broker
        )
        return self._known(popped, handle.revive_ms, handle.revive_queue, now.wall_ms)

    def _of_entry(self, entry: AckEntry, now: Now) -> _Taken:
        try:
            kind = TopicKind(int(entry.r))
        except ValueError as error:
            raise ProtocolError(f"r={entry.r[:32]!r}: 0, 1 or 2 is expected") from error
        topic = pop_retry_topic(entry.c, entry.t, kind)
        popped = Popped(topic, entry.q, entry.c, entry.so, entry.pt, self._current.config.broker_name)
        return self._known(popped, entry.pt + entry.it, entry.rq, now.wall_ms)

    def _known(self, popped: Popped, revive_ms: int, revive_queue: int, wall_ms: int) -> _Taken:
        """Check the numbers of a handle.

        Raises:
            ProtocolError: no broker makes such a handle.
        """
        if not 0 <= revive_queue < self._queues.count and revive_queue != ORDERED_QUEUE:
            raise ProtocolError(f"the handle names queue {revive_queue} of {self._queues.name}, which does not exist")
        if revive_ms - wall_ms > self._current.config.timer_delay_max_s * 1000:
            raise ProtocolError(f"the handle's time is {revive_ms}, further away than timerMaxDelaySec allows")
        return _Taken(popped, revive_ms, revive_queue)

    def _check_time(self, invisible_ms: int) -> None:
        if not 0 <= invisible_ms <= self._current.config.timer_delay_max_s * 1000:
            raise ProtocolError(
                f"invisibleTime={invisible_ms}: 0 to {self._current.config.timer_delay_max_s * 1000} ms are allowed"
            )

    def _problem(
        self, topic: str, queue_id: int, offset: int, *, is_last_allowed: bool
    ) -> tuple[ResponseCode, str] | None:
        """Return code and remark if there is no such message; None if there is."""
        found = self._topics.get(topic)
        if found is None:
            return ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic[:255]}] not exist, apply first please!"
        if not 0 <= queue_id < found.config.read_queue_nums:
            return ResponseCode.MESSAGE_ILLEGAL, f"queueId[{queue_id}] is illegal, topic:[{topic}]"
        queue = self._store.queues.get((topic, queue_id))
        start, end = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        if not start <= offset < end + is_last_allowed:
            return ResponseCode.NO_MESSAGE, f"the offset {offset} is outside the queue: {start} to {end}"
        return None

    def _take(self, taken: _Taken, offset: int) -> None:
        self._taken.setdefault(taken, {})[offset] = None
        if self._in_flight.remove(taken.popped, offset):
            self._wake([popped_topic(taken.popped.topic, taken.popped.group)])

    # A turn.

    def before_commit(self, now: Now) -> None:
        """Append the acknowledgements of this turn, and prepare their responses."""
        if not self._answers and not self._taken:
            return
        failure: SendRefused | None = None
        for taken, offsets in self._taken.items():
            listed = list(offsets)
            for start in range(0, len(listed), MESSAGES_MAX):
                try:
                    acked = Acknowledged(taken.popped, listed[start : start + MESSAGES_MAX])
                    self._queues.put_ack(acked, taken.revive_ms, taken.revive_queue, now)
                    self.acked += len(acked.offsets)
                except SendRefused as refused:
                    failure = refused
        waits, end = self._turn.serving.is_elect, self._store.log.end
        for number, data in self._answered(failure):
            self._puts.acks.append((number, data, end, waits, 0))
        self._taken.clear()
        self._answers.clear()
        self._engine.forget()

    def _answered(self, failure: SendRefused | None) -> list[tuple[int, bytes]]:
        """Return the responses of this turn by connection, on each in the order of the requests."""
        answered: list[tuple[int, bytes]] = []
        for link, answer in self._answers:
            if isinstance(answer, bytes):
                if failure is not None:
                    answer = recode(answer, ResponseCode.SYSTEM_BUSY, remark=failure.remark)
                answered.append((link, answer))
            elif not answer.is_oneway:
                answered.append((link, encode_command(_answer(answer, failure))))
        return sorted(answered, key=itemgetter(0))

    def link_closed(self, link: int, _turn: object, _now: Now) -> None:
        """See `Feature`."""
        self._answers = [(other, answer) for other, answer in self._answers if other != link]


def _answer(command: Command, failure: SendRefused | None) -> Command:
    if failure is not None:
        return command.answer(ResponseCode.SYSTEM_BUSY, remark=failure.remark)
    is_change = command.code == Code.CHANGE_MESSAGE_INVISIBLETIME
    return command.answer(ResponseCode.SUCCESS, fields=command.fields if is_change else None)
