"""Storing of messages in the log: reasons to refuse them, their responses, and messages of the broker itself.

`sends.processor.SendPath` uses it for the messages of producers.
"""

import logging
from collections.abc import Iterable, Mapping
from random import Random
from types import MappingProxyType
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from tandemq.boundary import Now, Turn
from tandemq.broker.kernel.connection import pack_host
from tandemq.broker.kernel.context import CurrentConfig
from tandemq.broker.kernel.dead_letters import DeadLetters
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.messages.refused import SendRefused, check_room
from tandemq.broker.kernel.messages.system_properties import delay_level
from tandemq.broker.kernel.messages.timed_message import add_timer_properties
from tandemq.broker.kernel.serving import Serving
from tandemq.broker.state.topics import Topic, Topics, internal_topic
from tandemq.config.settings import BrokerConfig
from tandemq.engine import TIMED_BYTES_MAX, Ack, RecordChanges, TakenSends, TimedSend
from tandemq.metrics import Histogram
from tandemq.model.codes import ResponseCode
from tandemq.model.message import (
    MSG_REGION,
    REAL_TOPIC,
    TIMER_DELETE,
    TIMER_NAMES,
    TRACE_ON,
    encode_properties,
)
from tandemq.model.topic import SCHEDULE_TOPIC, TIMER_TOPIC, Permission
from tandemq.refusals import Refusals
from tandemq.storage.consume_queue import ConsumeQueue
from tandemq.storage.log.commit_log import AppendMessageResult
from tandemq.storage.store import Store

log = logging.getLogger(__name__)
_WRITE = int(Permission.WRITE)
_NO_LIMIT = 1 << 40
_NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})
ROLE = "role"
"""Key of the refusal that `Serving.sends` contains."""


def trace_fields(config: BrokerConfig) -> dict[str, str]:
    """Return the fields of send responses, and properties of messages, that control the traces of clients."""
    return {MSG_REGION: config.region, TRACE_ON: "true" if config.trace_on else "false"}


class StoredHalf(NamedTuple):
    """A half message appended in this turn."""

    queue_offset: int
    log_offset: int
    topic: str
    """Topic of the message after the commit."""
    size: int
    """Bytes of its record."""


class PendingAtTime(Protocol):
    """Numbers of timed messages that wait for delivery."""

    def __len__(self) -> int:
        """Return the number of all of them."""

    def count_at(self, out_ms: int) -> int:
        """Return the number of those with a delivery time, ms."""


class Puts(Feature):
    """Stores messages, holds the responses to a turn's sends, and the reasons to refuse sends."""

    def __init__(self, current: CurrentConfig, store: Store, topics: Topics, random: Random, store_host: bytes) -> None:
        """Accept messages. `store_host`: this broker's advertised address, as records contain it."""
        self._current = current
        self.store = store
        self.topics = topics
        self.random = random
        self.store_host = store_host
        self.acks: list[Ack] = []
        """Responses to this turn's sends, in the order of the log; see `take_acks`."""
        self._refusals: dict[str, tuple[ResponseCode, str]] = {}
        self.refusal: tuple[ResponseCode, str] | None = None
        """Code and remark with which all sends are refused at present, those of the oldest reason; None: accepted."""
        self.count = 0
        """Number of messages accepted since the start."""
        self.bytes = 0
        """Total size of their bodies."""
        self.dead_letters = DeadLetters()
        self._without_topic = Refusals()
        """Delayed, timed and transactional messages whose topic does not exist at delivery, counted by topic."""
        self._halves: list[StoredHalf] = []
        """Half messages of this turn; the transaction service takes them after the commit."""
        self.half_refusal: str | None = None
        """Why half messages are refused at present; None: they are accepted."""
        self._timed: list[TimedSend] = []
        """Timed messages of this turn; the timer service takes them after the commit."""
        self._pending_timed: PendingAtTime | None = None
        """Numbers of timed messages that wait for delivery; None: not known."""
        self.put_times = Histogram()
        """Send times since the last `take_put_times`, ms."""
        self.failures = 0
        """Number of messages that could not be written; none of them was acknowledged."""

    @property
    def config(self) -> BrokerConfig:
        """The settings in force."""
        return self._current.config

    def later_topic(self, name: str, kind: str, now: Now) -> Topic:
        """Return the topic of a message that was accepted earlier: a delayed or timed one, or one of a transaction.

        A topic that does not exist is not created. The message is stored in its queue, which is in no route until the
        topic exists, as after a takeover by a broker that has not copied a new topic yet.
        """
        topic = self.topics.get(name)
        if topic is not None:
            return topic
        times = self._without_topic.note(name, now.mono_ms)
        if times:
            log.warning(
                "%s: topic=%.255s does not exist: messages=%d are stored in its queues, where consumers find them only "
                "if it is created again",
                kind,
                name,
                times,
            )
        return Topic(internal_topic(name, 1))

    def put_internal(self, queue: ConsumeQueue, body: bytes, properties: bytes, now: Now) -> AppendMessageResult:
        """Append a message of the broker itself: born host and born time are those of the broker."""
        return self.store.put(
            queue,
            body=body,
            properties=properties,
            flag=0,
            sys_flag=0,
            born_ms=now.wall_ms,
            born_host=self.store_host,
            store_ms=now.wall_ms,
            store_host=self.store_host,
            reconsume_times=0,
        )

    def put_again(
        self,
        queue: ConsumeQueue,
        record: bytes,
        now: Now,
        *,
        sys_flag: int,
        change: Mapping[str, str] = _NO_PROPERTIES,
        drop: Iterable[str] = (),
        defaults: Mapping[str, str] = _NO_PROPERTIES,
        store_host: bytes | None = None,
        reconsume_times: int | None = None,
        prepared_offset: int = 0,
    ) -> AppendMessageResult:
        """Append a copy of a record to a queue.

        Args:
            queue: queue of the copy.
            record: bytes of the record; its checksums are verified.
            now: its calendar time becomes the copy's store time.
            sys_flag: flags of the copy; the IPv6 bits are taken from its hosts.
            change: properties that are set, over those of the record.
            drop: names of properties that are removed, unless `change` sets them.
            defaults: properties that are added if the record has none of their name.
            store_host: as records contain it; None: the record's.
            reconsume_times: reconsume times of the copy; None: the record's.
            prepared_offset: states the record that the copy was made from, in the field of this name; 0: none.

        Raises:
            ProtocolError: the bytes are not a record, or it is damaged.
            RecordTooLarge: the copy does not fit into a record.
            DiskFailed: the log accepts no more writes.
        """
        changes = RecordChanges(
            sys_flag,
            tuple([name.encode() for name in (*drop, *change)]),
            tuple([(name.encode(), value.encode()) for name, value in defaults.items()]),
            encode_properties(change).encode(),
            store_host,
            reconsume_times,
            prepared_offset,
        )
        return self.store.put_copy(queue, record, changes, now.wall_ms)

    def take_acks(self) -> list[Ack]:
        """Return the responses to this turn's sends so far, and clear them."""
        acks, self.acks = self.acks, []
        return acks

    def drop_link(self, link: int) -> None:
        """Discard the responses for a connection that is closed because of an error."""
        self.acks = [ack for ack in self.acks if ack[0] != link]

    def take_halves(self) -> list[StoredHalf]:
        """Return the half messages of this turn, and clear them."""
        halves, self._halves = self._halves, []
        return halves

    def take_timed(self) -> list[TimedSend]:
        """Return the timed messages of this turn, and clear them."""
        timed, self._timed = self._timed, []
        return timed

    def refuse_halves(self, why: str | None) -> None:
        """Refuse half messages for a reason from now on; None: accept them."""
        self.half_refusal = why

    def know_timers(self, pending: PendingAtTime | None) -> None:
        """Set where the numbers of waiting timed messages are read; None: they are not known."""
        self._pending_timed = pending

    def count_message(self, body_bytes: int) -> None:
        """Count an accepted message."""
        self.count += 1
        self.bytes += body_bytes

    def note_batch(self, sends: TakenSends) -> None:
        """Register the sends that the engine has encoded, once their records are appended."""
        self.acks += sends.acks
        if sends.timed:
            self._timed += sends.timed
        self._halves += map(StoredHalf._make, sends.halves)
        self.count += sends.messages
        self.bytes += sends.body_bytes

    def note_failed(self, messages: int) -> None:
        """Count messages that could not be written."""
        self.failures += messages

    def take_put_times(self) -> Histogram:
        """Return the send times since the last call, ms."""
        taken, self.put_times = self.put_times, Histogram()
        return taken

    def own_topic(self, name: str, wall_ms: int, *, queue_nums: int = 1) -> Topic:
        """Return a retry or dead letter topic, created if it does not exist, with at least so many queues.

        Raises:
            SendRefused: the limit of topics is reached.
        """
        topic = self.topics.create_internal(name, queue_nums, wall_ms)
        if topic is None:
            full = self.topics.full([internal_topic(name, queue_nums)], is_own=True)
            raise SendRefused(ResponseCode.SYSTEM_ERROR, f"topic[{name}] cannot be created: {full}")
        if topic.config.write_queue_nums < queue_nums:
            grown = replace(topic.config, write_queue_nums=queue_nums, read_queue_nums=queue_nums)
            topic = topic if self.topics.full([grown], is_own=True) else self.topics.put(grown, wall_ms)
        return topic

    def as_timed(
        self, topic: Topic, queue_id: int, properties: dict[str, str], out_ms: int, wall_ms: int
    ) -> tuple[Topic, int]:
        """Return topic and queue id where a timed message waits; its properties get its time, topic and queue.

        Raises:
            SendRefused: too many timed messages wait, or the properties that delivery adds would not fit.
        """
        name = topic.config.topic_name
        refused = self.timed_refusal(out_ms, self.random)
        if refused is not None:
            raise SendRefused(ResponseCode.SYSTEM_ERROR, refused)
        add_timer_properties(properties, out_ms, name, queue_id)
        check_room(properties, TIMED_BYTES_MAX, "a timed message")
        return self.own_topic(TIMER_TOPIC, wall_ms), 0

    def redirect_delayed(self, topic: Topic, queue_id: int, properties: dict[str, str]) -> tuple[Topic, int]:
        """Return topic and queue id where a message is stored first: its own, or those of its delay level.

        For a delay level, the properties get the topic and queue that the message is delivered to.
        """
        level = delay_level(properties)
        delay_topic = self.topics.get(SCHEDULE_TOPIC)
        if not level or delay_topic is None or not self.store.config.delays_ms:
            return topic, queue_id
        for timer in TIMER_NAMES:
            properties.pop(timer, None)
        level = min(level, len(self.store.config.delays_ms))
        properties["DELAY"] = str(level)
        properties["REAL_TOPIC"] = topic.config.topic_name
        properties["REAL_QID"] = str(queue_id)
        return delay_topic, level - 1

    def note_half(self, stored: AppendMessageResult, topic: str) -> None:
        """Register an appended half message. `topic`: of the message after the commit."""
        self._halves.append(StoredHalf(stored.queue_offset, stored.log_offset, topic, stored.size))

    def note_timed(self, stored: AppendMessageResult, properties: Mapping[str, str], out_ms: int) -> None:
        """Register an appended timed message."""
        is_delete = TIMER_DELETE in properties
        self._timed.append((stored.queue_offset, out_ms, properties[REAL_TOPIC], is_delete))

    def timers_room(self) -> int:
        """Return how many more timed messages `timersMax` allows."""
        pending = self._pending_timed
        return _NO_LIMIT if pending is None else self.config.timers_max - len(pending) - len(self._timed)

    def timed_refusal(self, out_ms: int, random: Random) -> str | None:
        """Return why a timed message is refused at present; None if it is accepted.

        Between the limit per delivery time and twice the limit, the probability of a refusal grows from 0 to 1.

        Source: RocketMQ TimerMessageStore.isReject.
        """
        pending = self._pending_timed
        if pending is None:
            return None
        if len(pending) + len(self._timed) >= self.config.timers_max:
            return f"timer message is under flow control, {len(pending)} wait, timersMax allows no more"
        limit = self.config.timer_congest_max
        count = pending.count_at(out_ms)
        if count > limit and (count >= 2 * limit or random.random() * limit < count - limit):
            return (
                f"timer message is under flow control, {count} wait for this time, timerCongestNumEachSlot is {limit}"
            )
        return None

    def listening(self, address: str, _ha_address: str, _now: Now) -> None:
        """See `Feature`."""
        self.store_host = pack_host(address)

    def refuse(self, reason: str, remark: str, code: ResponseCode = ResponseCode.SERVICE_NOT_AVAILABLE) -> None:
        """Refuse all sends for a reason, such as "disk full", until `admit` withdraws that reason."""
        self._refusals[reason] = (code, remark)
        self.refusal = next(iter(self._refusals.values()))

    def admit(self, reason: str) -> None:
        """Withdraw a reason to refuse sends; no effect if there is none of this name."""
        self._refusals.pop(reason, None)
        self.refusal = next(iter(self._refusals.values()), None)

    def on_serving_change(self, _before: Serving, serving: Serving, _turn: Turn, _now: Now) -> None:
        """Refuse or accept sends as the role requires."""
        if serving.sends is None:
            self.admit(ROLE)
        else:
            self.refuse(ROLE, serving.sends.remark, serving.sends.code)

    def refusal_but_for(self, reason: str) -> tuple[ResponseCode, str] | None:
        """Return the oldest refusal for another reason than this one; None if there is none."""
        return next((refusal for other, refusal in self._refusals.items() if other != reason), None)

    @property
    def admits_ordinary(self) -> bool:
        """Whether sends are accepted at present, and the broker's permission includes writing."""
        return self.refusal is None and self.config.permission & _WRITE != 0
