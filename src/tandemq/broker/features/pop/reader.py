"""What a pop takes: which queues it reads in which order, and the checkpoints of the messages.

Source: docs/reference/pop.md; RocketMQ PopMessageProcessor.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

from tandemq.boundary import Buffer, Now, Turn
from tandemq.broker.features.pop.in_flight import InFlight
from tandemq.broker.features.pop.orders import Orders
from tandemq.broker.features.pop.records import PopCheckpoint, Popped
from tandemq.broker.features.pop.revive_queue import ReviveQueues
from tandemq.broker.features.pop.waiting import WaitingRequest
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.messages.refused import SendRefused
from tandemq.broker.kernel.pulls import Messages, Pulls
from tandemq.broker.state.message_type import is_prioritized
from tandemq.codec.record.record import unpack_head
from tandemq.engine import RecordChanges, copy_record, waiting_messages
from tandemq.errors import OffsetGone, ProtocolError, RecordTooLarge, StoreError
from tandemq.model.attributes import priority_factor
from tandemq.model.codes import ResponseCode
from tandemq.model.pop import ANY_QUEUE, POP_CK, Handle, PoppedQueue, TopicKind, order_count_info, pop_retry_topic
from tandemq.not_cached import NotCached
from tandemq.refusals import Refusals
from tandemq.storage.consume_queue import ConsumeQueue

log = logging.getLogger(__name__)
READS_MAX = 8
"""Number of queues that are read from the device at the same time for one request."""
EMPTY_READS_MAX = 4
"""How often a queue is read on in one request when none of the messages examined matches."""
_HANDLE_NAME = f"{POP_CK}\x01".encode()
_size_offset = Struct(">i16xq").unpack_from


@dataclass(slots=True)
class FoundMessages:
    """What a pop takes."""

    most: int
    """Maximum number of messages."""
    queues: list[PoppedQueue] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    count: int = 0
    rest: int = 0
    """Number of messages left for the group."""
    attempts: list[str] = field(default_factory=list)
    """Of an ordered pop: how often its messages were handed out before, by queue."""


class _Waiting(NamedTuple):
    """What waits in a topic for a group."""

    kind: TopicKind
    queues: Mapping[int, ConsumeQueue]
    messages: Mapping[int, int]
    """Number of messages behind the group's offset, by queue id; only queues with any."""


class PopReader:
    """Reads queues for pops."""

    def __init__(
        self,
        kernel: Kernel,
        queues: ReviveQueues,
        orders: Orders,
        in_flight: InFlight,
        try_again: Callable[[str], None],
    ) -> None:
        """`queues`: the revive topic; `try_again`: has the requests that wait for a topic tried again."""
        self._try_again = try_again
        self._failed = Refusals()
        """Reads that failed, by topic."""
        self._queues = queues
        self._orders = orders
        self._in_flight = in_flight
        self._store = kernel.store
        self._topics = kernel.topics
        self._groups = kernel.groups
        self._offsets = kernel.offsets
        self._current = kernel.current
        self._random = kernel.random
        self._memory_bytes = kernel.machine.memory_bytes
        self._pulls = kernel.features.find(Pulls)

    def committed(self) -> None:
        """Move the offsets behind what was taken, now that its checkpoints are in the log."""
        self._offsets.commit_staged()

    def failed(self) -> None:
        """Leave the offsets where they were: the checkpoints are not in the log."""
        self._offsets.staged.clear()
        self._in_flight.forget()

    def read(self, request: WaitingRequest, revive_queue: int | None, most: int, now: Now) -> FoundMessages:
        """Take messages for a request, at most `most`, with checkpoints in a queue of the revive topic; None: look at
        them only."""
        found = FoundMessages(most)
        chance = self._random.randrange(100)
        retry = self._retry_waiting(request, chance)
        topic = self._waiting(TopicKind.NORMAL, request.topic, request.group)
        found.rest = sum(retry.messages.values()) + sum(topic.messages.values())
        order: Iterable[tuple[TopicKind, ConsumeQueue, int]] = self._in_order(request, retry, topic, chance)
        if request.reads:  # these first, or each try would begin to read further queues
            before, request.reads = request.reads, {}
            order = sorted(order, key=lambda place: place[1] not in before)
        for kind, queue, waiting in order:
            if found.count >= most or len(request.reads) >= READS_MAX:
                break
            found.rest -= waiting
            try:
                self._read_queue(request, kind, queue, revive_queue, found, now)
            except SendRefused as refused:
                log.warning("pop: group=%s topic=%s: no checkpoint: %s", request.group, queue.topic, refused.remark)
                break
            except StoreError as error:
                self._log_failure(queue.topic, error, now)
        return found

    def _log_failure(self, topic: str, error: StoreError, now: Now) -> None:
        times = self._failed.note(topic, now.mono_ms)
        if times:
            log.error("pop: topic=%s cannot be read, times=%d: %s", topic, times, error)

    def go_on(self, topic: str, error: StoreError | None, now: Now) -> None:
        """Have requests tried again whose messages were read from the device."""
        if error is None:
            self._try_again(topic)
        else:
            self._log_failure(topic, error, now)

    def _retry_waiting(self, request: WaitingRequest, chance: int) -> _Waiting:
        """Return what waits in a retry topic of a request; if there may be both kinds of them, in one by chance."""
        config = self._current.config
        kind = TopicKind.RETRY_V2 if config.retry_topic_v2 else TopicKind.RETRY_V1
        if kind is TopicKind.RETRY_V2 and config.pops_retry_topic_v1 and chance % 2 == 0:
            kind = TopicKind.RETRY_V1
        if request.order:
            return _Waiting(kind, {}, {})
        return self._waiting(kind, pop_retry_topic(request.group, request.topic, kind), request.group)

    def _waiting(self, kind: TopicKind, name: str, group: str) -> _Waiting:
        """Return the queues of a topic with messages behind the offsets of a group."""
        topic = self._topics.get(name)
        if topic is None:
            return _Waiting(kind, {}, {})
        number, queues = topic.config.read_queue_nums, topic.queues
        if len(queues) < number:
            self._topics.open_queues(topic)
        offsets = self._offsets.view(name, group)
        if (staged := self._offsets.staged.get((name, group))) is not None:
            offsets = {**offsets, **staged}
        return _Waiting(kind, queues, waiting_messages(queues, offsets, number))

    def _in_order(
        self, request: WaitingRequest, retry: _Waiting, found: _Waiting, chance: int
    ) -> Iterator[tuple[TopicKind, ConsumeQueue, int]]:
        """Yield the queues that a request reads, in this order: type of their topic, queue, number of messages.

        `chance`: a random number from 0 to 99.
        """
        config = self._current.config
        topic = self._topics.get(request.topic)
        retries, queues = sorted(retry.messages), sorted(found.messages)
        if request.queue_id != ANY_QUEUE:
            queues = [request.queue_id] if request.queue_id in found.messages else []
        elif topic is not None:
            at = bisect_left(queues, chance * topic.config.read_queue_nums // 100)
            queues = queues[at:] + queues[:at]
        parts = [(retry, retries), (found, queues)]
        if topic is not None and is_prioritized(topic.config) and self._prefers(request, chance):
            # What came back is older than what is new.
            order = sorted({*retries, *queues}, reverse=config.priority_ascends)
            parts = [(part, [number]) for number in order for part in (retry, found) if number in part.messages]
        elif chance >= config.pop_from_retry_percent:
            parts.reverse()
        for part, numbers in parts:
            for number in numbers:
                yield part.kind, part.queues[number], part.messages[number]

    def _prefers(self, request: WaitingRequest, chance: int) -> bool:
        """Whether a pop prefers the highest priority. `chance`: a random number from 0 to 99."""
        if request.queue_id != ANY_QUEUE:
            return False
        group = self._groups.table.get(request.group)
        return not request.order and chance < priority_factor(group.attributes if group is not None else {})

    def _read_queue(
        self,
        request: WaitingRequest,
        kind: TopicKind,
        queue: ConsumeQueue,
        revive_queue: int | None,
        found: FoundMessages,
        now: Now,
    ) -> None:
        try:
            end = self._pulls.visible_end(queue, may_wait=False)
        except NotCached as missing:
            self._read_later(request, kind, queue, queue.max_offset, missing, found)
            return
        offset = self._offset(request, kind, queue, end)
        place = queue.topic, request.group, queue.queue_id
        if offset >= end or (request.order and self._orders.is_blocked(place, offset, request.attempt_id, now.wall_ms)):
            return
        try:
            messages = self._examine(queue, offset, end, request, found.most - found.count)
        except NotCached as missing:
            self._read_later(request, kind, queue, end, missing, found)
            return
        if revive_queue is None:
            found.buffers += messages.buffers
            found.rest += messages.number
        elif messages.number:
            self._take(request, kind, queue, messages, revive_queue, found, now)
        found.count += messages.number
        found.rest += max(0, end - messages.next_offset)
        if revive_queue is not None and not (request.order and messages.number):
            self._move(queue, request.group, messages.next_offset)

    def _read_later(
        self,
        request: WaitingRequest,
        kind: TopicKind,
        queue: ConsumeQueue,
        end: int,
        missing: NotCached,
        found: FoundMessages,
    ) -> None:
        """Have what a request lacks of a queue read from the device; the messages before `end` are left for it."""
        found.rest += max(0, end - self._offset(request, kind, queue, end))
        self._pulls.read_later(missing, request.link, _TryAgain(self, request.topic))
        request.reads[queue] = None

    def _examine(self, queue: ConsumeQueue, offset: int, end: int, request: WaitingRequest, most: int) -> Messages:
        """Read messages from an offset on, several times if those examined do not match."""
        messages = Messages((), 0, 0, max(offset, queue.min_offset))
        for _ in range(EMPTY_READS_MAX):
            start = messages.next_offset
            try:
                messages = self._pulls.read(queue, start, request.selector, most)
            except OffsetGone:
                queue.correct_min(self._store.log.start)
                messages = messages._replace(next_offset=max(start + 1, queue.min_offset))
            if messages.number or not start < messages.next_offset < end:
                break
        return messages

    def _take(
        self,
        request: WaitingRequest,
        kind: TopicKind,
        queue: ConsumeQueue,
        messages: Messages,
        revive_queue: int,
        found: FoundMessages,
        now: Now,
    ) -> None:
        """Append the checkpoint of messages, and add them to the answer.

        Raises:
            SendRefused: there is no room for the checkpoint.
        """
        group, queue_id = request.group, queue.queue_id
        if not self._offsets.has_room(queue.topic, group, queue_id):
            raise SendRefused(ResponseCode.SYSTEM_BUSY, "the offsets of all groups take too much memory")
        offsets = _offsets_in(messages.buffers)
        if kind is TopicKind.NORMAL:
            messages = messages._replace(buffers=_without_handles(messages.buffers, queue.topic))
        if request.order:
            self._take_ordered(request, queue, messages, offsets, found, now)
            return
        broker = self._current.config.broker_name
        popped = Popped(queue.topic, queue_id, group, offsets[0], now.wall_ms, broker)
        checkpoint = PopCheckpoint(popped, request.invisible_ms, tuple(offsets))
        self._queues.put_checkpoint(checkpoint, revive_queue, now)
        self._in_flight.add(popped, offsets, checkpoint.revive_ms)
        taken = PoppedQueue(kind, queue_id, offsets[0], offsets)
        found.queues.append(taken)
        is_retry = kind is not TopicKind.NORMAL
        found.buffers += self._as_popped(messages, request, taken, revive_queue, now) if is_retry else messages.buffers
        self._pulls.note_sent(request.link, messages)
        self._pulls.counters.note(queue.topic, group, queue_id, messages.number, messages.size, messages.next_offset)

    def _take_ordered(
        self,
        request: WaitingRequest,
        queue: ConsumeQueue,
        messages: Messages,
        offsets: list[int],
        found: FoundMessages,
        now: Now,
    ) -> None:
        """Note the batch of an ordered pop, and add it to the answer; the group's offset stays where it begins."""
        place = queue.topic, request.group, queue.queue_id
        batch = self._orders.popped(place, offsets, request.attempt_id, request.invisible_ms, now)
        found.attempts.append(order_count_info(TopicKind.NORMAL, queue.queue_id, offsets, batch.attempts))
        found.queues.append(PoppedQueue(TopicKind.NORMAL, queue.queue_id, offsets[0], offsets))
        found.buffers += messages.buffers
        self._move(queue, request.group, offsets[0])
        self._pulls.note_sent(request.link, messages)
        self._pulls.counters.note(*place, messages.number, messages.size, messages.next_offset)

    def _move(self, queue: ConsumeQueue, group: str, offset: int) -> None:
        self._offsets.stage(queue.topic, group, queue.queue_id, offset)

    def _offset(self, request: WaitingRequest, kind: TopicKind, queue: ConsumeQueue, end: int) -> int:
        """Return the queue offset at which a group reads on."""
        place = queue.topic, request.group, queue.queue_id
        staged = self._offsets.staged.get(place[:2], {}).get(queue.queue_id)
        offset = self._offsets.get(*place) if staged is None else staged
        if offset is not None:
            return offset
        if not request.starts_at_end or kind is not TopicKind.NORMAL or self._is_in_memory(queue):
            return queue.min_offset
        return max(0, end - 1)

    def _is_in_memory(self, queue: ConsumeQueue) -> bool:
        """Whether nothing of a queue was deleted, and its first message is probably in memory."""
        if queue.min_offset > 0:
            return False
        far = self._memory_bytes * self._current.config.memory_ratio_max // 100
        return self._store.log.written_end - (queue.plausible_offset(0) or 0) <= far

    def _as_popped(
        self, messages: Messages, request: WaitingRequest, taken: PoppedQueue, revive_queue: int, now: Now
    ) -> Iterator[bytes]:
        """Yield messages of a retry topic as messages of the topic, with their handles."""
        broker, topic = self._current.config.broker_name, request.topic.encode()
        for data in _records_in(messages.buffers):
            head = unpack_head(data, 0)
            handle = Handle(
                taken.start_offset,
                now.wall_ms,
                request.invisible_ms,
                revive_queue,
                taken.kind,
                broker,
                taken.queue_id,
                head.queue_offset,
            )
            try:
                yield _with_handle(data, topic, f"{POP_CK}\x01{handle}\x02".encode())
            except (ProtocolError, RecordTooLarge) as error:
                log.error("pop: the message at log offset %d cannot be sent: %s", head.log_offset, error)


@dataclass(frozen=True, slots=True)
class _TryAgain:
    """Has the requests for a topic tried again once a read has ended; the same for all of them."""

    reader: PopReader
    topic: str

    def __call__(self, error: StoreError | None, _turn: Turn, now: Now) -> None:
        """See `kernel.pulls.Resume`."""
        self.reader.go_on(self.topic, error, now)


def _with_handle(data: bytes, topic: bytes, handle: bytes) -> bytes:
    """Return a copy of a message in a topic, whose handle is replaced.

    Raises:
        ProtocolError: it is damaged.
        RecordTooLarge: its properties are too large.
    """
    head = unpack_head(data, 0)
    changes = RecordChanges(head.sys_flag, (POP_CK.encode(),), (), handle, None, None, head.prepared_offset)
    return copy_record(
        data, changes, topic, head.queue_id, head.queue_offset, head.store_ms, _same(head.log_offset)
    ).data


def _without_handles(buffers: Sequence[Buffer], topic: str) -> list[bytes]:
    """Return messages of a topic without the handles that came with them: a client makes no handle for a message that
    has one, and a consumer that sends a popped message on sends its old handle along."""
    pieces = [bytes(piece) for piece in buffers]
    if not any(_HANDLE_NAME in piece for piece in pieces):
        return pieces
    found: list[bytes] = []
    for data in _records_in(pieces):
        try:
            found.append(_with_handle(data, topic.encode(), b"") if _HANDLE_NAME in data else data)
        except ProtocolError as error:
            log.error("pop: a message of %s keeps a handle of an earlier pop: %s", topic, error)
            found.append(data)
    return found


def _same(log_offset: int) -> Callable[[int], int]:
    """Return what gives a copy, of any size, the log offset of its original."""
    return lambda _size: log_offset


def _records_in(buffers: Sequence[Buffer]) -> Iterator[bytes]:
    for piece in buffers:
        data, start = bytes(piece), 0
        while start < len(data):
            size, _ = _size_offset(data, start)
            yield data[start : start + size]
            start += size


def _offsets_in(buffers: Sequence[Buffer]) -> list[int]:
    """Return the queue offsets of records."""
    found: list[int] = []
    for data in buffers:
        start = 0
        while start < len(data):
            size, offset = _size_offset(data, start)
            found.append(offset)
            start += size
    return found
