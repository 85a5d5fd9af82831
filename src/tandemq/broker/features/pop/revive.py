"""Messages that come back because they were not acknowledged in time.

    checkpoint due ──► read from the revive topic ──┐
    acknowledgements due ───────────────────────────┴─► all of them read? ──► unacknowledged messages stored again

A checkpoint is decided on once every timed message that was due before its messages come back is delivered, so that no
acknowledgement is missed. What comes back is stored in the group's retry topic, or among its dead letters, together
with an acknowledgement: a broker that reads the revive topic again after a failure finds the messages done with.

Source: docs/reference/pop.md; RocketMQ PopReviveService.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tandemq.boundary import Now
from tandemq.broker.features.pop.records import Acknowledged, PopCheckpoint, Popped, read_record
from tandemq.broker.features.pop.revive_queue import ReviveQueues
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.log_queue import DamagedEntries, LogQueue, LogReading
from tandemq.broker.kernel.messages.refused import SendRefused
from tandemq.broker.kernel.timers import MessageTimers
from tandemq.broker.state.damage_table import LOST, WAITS
from tandemq.broker.state.message_type import is_prioritized
from tandemq.broker.state.topics import Topic
from tandemq.codec.record.record import Record, decode_message, property_value, unpack_head
from tandemq.errors import ProtocolError, RecordTooLarge, StoreError
from tandemq.model.java_types import INT32_MAX
from tandemq.model.message import REAL_TOPIC, TAGS, TIMER_DELIVER_MS, TIMER_OUT
from tandemq.model.pop import (
    FIRST_POP_TIME,
    REVIVE_GROUP,
    TopicKind,
    kind_of,
    pop_retry_topic,
    popped_topic,
)
from tandemq.model.topic import TIMER_TOPIC, dead_letter_topic
from tandemq.storage.consume_queue import ConsumeQueue
from tandemq.storage.store import Store

log = logging.getLogger(__name__)
A_REVIVAL = "a message that comes back"
RECORDS_PER_RUN = 2_000
"""Maximum number of records of the revive topic that a run reads."""
MESSAGES_PER_RUN = 256
"""Maximum number of messages that come back in a run."""
BYTES_PER_RUN = 4 << 20
"""Bytes of their records."""
RECENT_MS = 20_000
"""The checkpoints of this time before the newest record are read at the start: offsets are saved more often."""
SLICE_RECORDS = 500
TIME_DIGITS_MAX = 18


class RecentCheckpoints(LogReading):
    """How far the pops of the last time before this broker became master have read."""

    def __init__(self, store: Store, name: str, broker: str) -> None:
        """`name`: the revive topic; `broker`: name of this broker."""
        super().__init__(store)
        self._name = name
        self._broker = broker
        self.next_offsets: dict[tuple[str, str, int], int] = {}
        """Queue offset behind the last popped message, by topic, group and queue id."""

    def _load(self) -> Iterator[None]:
        store = self._store
        queues = store.queues_of(self._name)
        if (timers := store.queues.get((TIMER_TOPIC, 0))) is not None:
            queues.append(timers)
        for queue in queues:
            start = store.offset_by_time(queue, store.last_store_ms - RECENT_MS)
            for at in range(start, queue.max_offset):
                found = store.record_of(queue, at)
                if found is not None:
                    self._note(*found)
                if at % SLICE_RECORDS == 0:
                    yield

    def _note(self, record: Record, data: bytes) -> None:
        name = self._name.encode()
        if record.topic != name and property_value(record.properties, REAL_TOPIC.encode()) != name:
            return
        tag = (property_value(record.properties, TAGS.encode()) or b"").decode("utf-8", "replace")
        try:
            found = read_record(tag, data[record.body_start : record.body_end], self._broker)
        except ProtocolError:
            return
        if isinstance(found, PopCheckpoint) and found.offsets:
            popped = found.popped
            place = popped.topic, popped.group, popped.queue_id
            self.next_offsets[place] = max(self.next_offsets.get(place, 0), found.offsets[-1] + 1)


@dataclass(slots=True)
class _Pending:
    """A checkpoint that was read, and is not decided on yet."""

    checkpoint: PopCheckpoint
    queue_offset: int
    """In the revive topic."""
    acked: int
    is_over: bool = False
    """Whether this turn decides on it; it counts from the commit on."""


@dataclass(slots=True)
class _Early:
    """Acknowledgements that were read before their checkpoint, whose own record could not be delivered in its turn."""

    offsets: set[int]
    due_ms: int
    """When they were due: after their checkpoint."""
    queue_offset: int
    """In the revive topic, of the first one."""


@dataclass(slots=True)
class _QueueState:
    """What is known of one queue of the revive topic."""

    next_offset: int
    """Queue offset of the next record to read."""
    pending: dict[Popped, _Pending] = field(default_factory=dict)
    """In the order of their records."""
    early: dict[Popped, _Early] = field(default_factory=dict)
    """Acknowledgements without a checkpoint: late ones, too, until it is known that no checkpoint follows."""
    unread_since_ms: int | None = None
    """Since when (monotonic) the next record does not verify."""


class ReviveLag(NamedTuple):
    """How far a queue of the revive topic is behind."""

    records: int
    """Records that are not done with."""
    late_ms: int
    """How long the first message that has to come back is late."""


class Revival(LogQueue[RecentCheckpoints]):
    """Bring back messages that were not acknowledged, on a master."""

    def __init__(self, kernel: Kernel, queues: ReviveQueues) -> None:
        """Begin. `queues`: the revive topic."""
        super().__init__(kernel)
        self._queues = queues
        self._topics = kernel.topics
        self._groups = kernel.groups
        self._offsets = kernel.offsets
        self._current = kernel.current
        self._timers = kernel.features.find(MessageTimers)
        self._damaged = DamagedEntries(kernel, A_REVIVAL)
        self._states: dict[int, _QueueState] | None = None
        self._messages_left = 0
        self._bytes_left = 0
        self.revived: Counter[tuple[str, str]] = Counter()
        """Messages that came back since the start, by topic and group; without dead letters."""
        self.dead_lettered = 0
        """Messages that became dead letters instead."""
        self._this_turn: list[tuple[str, str]] = []
        """Topic and group of the messages that come back in this turn."""
        self._has_run = False
        """Whether this turn has looked at checkpoints."""
        self._notify: Callable[[str, str], None] = lambda _topic, _group: None

    def notify_with(self, notify: Callable[[str, str], None]) -> None:
        """Call `notify` with topic and group when messages come back."""
        self._notify = notify

    # Role.

    @property
    def is_loaded(self) -> bool:
        """Whether it is known how far pops have read."""
        return self._states is not None and self._mastership.is_current()

    @property
    def _is_loaded(self) -> bool:
        return self._states is not None

    def _begin_reading(self) -> RecentCheckpoints:
        return RecentCheckpoints(self._store, self._queues.name, self._current.config.broker_name)

    def _adopt_reading(self, reading: RecentCheckpoints, _now: Now) -> None:
        self._states = {}
        for (topic, group, queue_id), offset in reading.next_offsets.items():
            before = self._offsets.get(topic, group, queue_id)
            if (before is None or before < offset) and self._offsets.has_room(topic, group, queue_id):
                self._offsets.commit(topic, group, queue_id, offset)

    def _forget(self) -> None:
        self._states = None
        self._this_turn.clear()

    def lags(self, now: Now) -> dict[int, ReviveLag]:
        """Return how far each queue of the revive topic is behind."""
        found: dict[int, ReviveLag] = {}
        for queue_id, state in (self._states or {}).items():
            queue = self._store.queues.get((self._queues.name, queue_id))
            done = self._offsets.get(self._queues.name, REVIVE_GROUP, queue_id)
            first = next(iter(state.pending.values()), None)
            late_ms = 0 if first is None else max(0, now.wall_ms - first.checkpoint.revive_ms)
            records = 0 if queue is None else queue.max_offset - max(queue.min_offset, -1 if done is None else done + 1)
            found[queue_id] = ReviveLag(max(0, records), late_ms)
        return found

    # A run.

    def _act(self, now: Now) -> None:
        assert self._states is not None, "loaded"
        self._has_run = True
        passed_ms = self._timers.passed_ms
        self._messages_left, self._bytes_left = MESSAGES_PER_RUN, BYTES_PER_RUN
        records_left = RECORDS_PER_RUN
        for queue_id in range(self._queues.count):
            queue = self._store.queues.get((self._queues.name, queue_id))
            if queue is None:
                continue
            state = self._states.get(queue_id)
            if state is None:
                done = self._offsets.get(self._queues.name, REVIVE_GROUP, queue_id)
                start = queue.min_offset if done is None else max(done + 1, queue.min_offset)
                state = self._states[queue_id] = _QueueState(start)
            try:
                records_left = self._read(queue, state, records_left, now)
                if state.next_offset >= queue.max_offset:
                    self._revive_due(queue_id, state, passed_ms, now)
                    for popped in [popped for popped, early in state.early.items() if early.due_ms <= passed_ms]:
                        del state.early[popped]
                else:
                    self._is_behind = self._is_behind or records_left <= 0
            except SendRefused as refused:
                log.warning("pop: messages come back later: %s", refused.remark)
            except StoreError as error:  # what was appended before stays in this turn
                log.error("pop: messages come back later: %s", error)

    def _read(self, queue: ConsumeQueue, state: _QueueState, most: int, now: Now) -> int:
        """Read records of a queue; return how many more this run may read."""
        state.next_offset = max(state.next_offset, queue.min_offset)
        while most > 0 and state.next_offset < queue.max_offset:
            if not self._read_one(queue, state, now):
                break
            state.next_offset += 1
            most -= 1
        return most

    def _read_one(self, queue: ConsumeQueue, state: _QueueState, now: Now) -> bool:
        """Read the next record; return whether it needs no more waiting."""
        at = state.next_offset
        log_offset, size, _ = queue.entry(at)
        fate = self._damaged.fate_of(queue, at, log_offset, size)
        if fate == WAITS:
            return False
        if fate == LOST:
            log.error("pop: the record at log offset %d is lost in damage: its messages may not come back", log_offset)
            return True
        found = self._store.record_of(queue, at)
        try:
            if found is None:
                raise ProtocolError("no record of this queue where its entry says")
            message = decode_message(found[1], 0, len(found[1]), inflates=False)
        except ProtocolError as error:
            since_ms = state.unread_since_ms
            if self._damaged.is_given_up(queue, at, log_offset, str(error), since_ms, now):
                log.error("pop: the record at log offset %d is ignored: %s", log_offset, error)
                state.unread_since_ms = None
                return True
            state.unread_since_ms = now.mono_ms if since_ms is None else since_ms
            return False
        state.unread_since_ms = None
        try:
            record = read_record(message.properties.get(TAGS, ""), message.body, self._current.config.broker_name)
        except ProtocolError as error:
            log.error("pop: the record at log offset %d is ignored: %s", log_offset, error)
            return True
        if isinstance(record, PopCheckpoint):
            pending = state.pending.setdefault(record.popped, _Pending(record, at, record.acked))
            early = state.early.pop(record.popped, None)
            if early is not None:
                _mark(pending, early.offsets)
        elif isinstance(record, Acknowledged):
            _acknowledge(state, record, _due_ms(message.properties), at)
        return True

    def _revive_due(self, queue_id: int, state: _QueueState, passed_ms: int, now: Now) -> None:
        for pending in state.pending.values():
            if self._messages_left <= 0 or self._bytes_left <= 0:
                self._is_behind = True
                return
            if not pending.is_over and pending.checkpoint.revive_ms <= passed_ms:
                pending.is_over = self._revive(pending, queue_id, now)

    def _revive(self, pending: _Pending, queue_id: int, now: Now) -> bool:
        """Store the messages of a checkpoint again that are not acknowledged; return whether all of them are over."""
        checkpoint = pending.checkpoint
        popped = checkpoint.popped
        left = [offset for bit, offset in enumerate(checkpoint.offsets) if not pending.acked >> bit & 1]
        queue = self._store.queues.get((popped.topic, popped.queue_id))
        if not left or queue is None or self._groups.table.get(popped.group) is None:
            return True
        over: list[int] = []
        try:
            for offset in left:
                if queue.min_offset <= offset < queue.max_offset:
                    found = self._store.record_of(queue, offset)
                    if found is None and self._waits(queue, offset):
                        break
                    if found is not None:
                        self._put(checkpoint, *found, now)
                over.append(offset)
        finally:  # an error at one message leaves those before it in this turn
            if over:
                self._queues.put_revived(Acknowledged(popped, over), queue_id, now)
                _mark(pending, over)
        return len(over) == len(left)

    def _waits(self, queue: ConsumeQueue, offset: int) -> bool:
        """Whether a damaged message may be repaired."""
        log_offset, size, _ = queue.entry(offset)
        if self._damaged.fate_of(queue, offset, log_offset, size) == WAITS:
            return True
        log.error("pop: the message at log offset %d cannot be read, and does not come back", log_offset)
        return False

    def _put(self, checkpoint: PopCheckpoint, record: Record, data: bytes, now: Now) -> None:
        """Append a message that comes back.

        Raises:
            SendRefused: there is no room for the topic.
            StoreError: the log takes no more.
        """
        popped, is_suspended = checkpoint.popped, checkpoint.is_suspended
        times = unpack_head(data, 0).reconsume_times
        group = self._groups.table[popped.group]
        is_dead = times >= group.retry_max_times and not is_suspended
        if is_dead:
            topic, queue_id = self._puts.own_topic(dead_letter_topic(popped.group), now.wall_ms), 0
        else:
            topic, queue_id = self._retry_place(popped, now)
        try:
            _, log_offset, size = self._puts.put_again(
                self._topics.queue(topic, queue_id),
                data,
                now,
                sys_flag=record.sys_flag,
                defaults={} if times else {FIRST_POP_TIME: str(popped.pop_ms)},
                store_host=self._puts.store_host,
                reconsume_times=times if is_suspended else min(times + 1, INT32_MAX),
            )
        except (ProtocolError, RecordTooLarge) as error:
            log.error("pop: the message at log offset %d cannot come back: %s", record.log_offset, error)
            return
        self._messages_left -= 1
        self._bytes_left -= size
        origin = popped_topic(popped.topic, popped.group)
        if is_dead:
            self.dead_lettered += 1
            message = decode_message(data, 0, len(data), inflates=False)
            self._puts.dead_letters.note(popped.group, origin, message.properties, times, log_offset, now.mono_ms)
        else:
            self._this_turn.append((origin, popped.group))
            self._notify(origin, popped.group)

    def _retry_place(self, popped: Popped, now: Now) -> tuple[Topic, int]:
        """Return where a message comes back: of a topic with priorities, to the queue of its priority.

        Raises:
            SendRefused: there is no room for the topic.
        """
        name, origin = self._retry_topic(popped), self._topics.get(popped_topic(popped.topic, popped.group))
        if origin is None or not is_prioritized(origin.config):
            return self._puts.own_topic(name, now.wall_ms), 0
        topic = self._puts.own_topic(name, now.wall_ms, queue_nums=max(1, origin.config.write_queue_nums))
        return topic, min(popped.queue_id, topic.config.write_queue_nums - 1)

    def _retry_topic(self, popped: Popped) -> str:
        if kind_of(popped.topic) is not TopicKind.NORMAL:
            return popped.topic
        kind = TopicKind.RETRY_V2 if self._current.config.retry_topic_v2 else TopicKind.RETRY_V1
        return pop_retry_topic(popped.group, popped.topic, kind)

    # A turn.

    def committed(self, _now: Now) -> None:
        """Count what came back in this turn, and move the progress behind what is decided on."""
        if not self._has_run:
            return
        self.revived.update(self._this_turn)
        self._this_turn.clear()
        self._has_run = False
        for queue_id, state in (self._states or {}).items():
            for popped in [popped for popped, pending in state.pending.items() if pending.is_over]:
                del state.pending[popped]
            open_offsets = [early.queue_offset for early in state.early.values()]
            if (first := next(iter(state.pending.values()), None)) is not None:
                open_offsets.append(first.queue_offset)
            done = min(open_offsets, default=state.next_offset) - 1
            if done >= 0 and done != self._offsets.get(self._queues.name, REVIVE_GROUP, queue_id):
                self._offsets.commit(self._queues.name, REVIVE_GROUP, queue_id, done)

    def failed(self) -> None:
        """Read the revive topic again: what came back in this turn is not in the log."""
        if self._has_run and self._states is not None:
            self._states = {}
        self._this_turn.clear()
        self._has_run = False


def _acknowledge(state: _QueueState, acked: Acknowledged, due_ms: int, queue_offset: int) -> None:
    pending = state.pending.get(acked.popped)
    if pending is not None:
        _mark(pending, acked.offsets)
        return
    early = state.early.setdefault(acked.popped, _Early(set(), due_ms, queue_offset))
    early.offsets.update(acked.offsets)
    early.due_ms = max(early.due_ms, due_ms)


def _due_ms(properties: Mapping[str, str]) -> int:
    """Return when a record was due, by what we and Java brokers leave of it in the delivered record; 0 if unknown."""
    texts = [properties.get(name, "") for name in (TIMER_DELIVER_MS, TIMER_OUT)]
    return max([int(text) for text in texts if text.isdecimal() and len(text) <= TIME_DIGITS_MAX], default=0)


def _mark(pending: _Pending, offsets: Collection[int]) -> None:
    for bit, offset in enumerate(pending.checkpoint.offsets):
        if offset in offsets:
            pending.acked |= 1 << bit
