"""Storing of messages in the log: reasons to refuse them, responses, and messages of the broker itself.

`send.processor.SendPath` takes the messages of producers on top of it.
"""

import logging
from collections.abc import Iterable, Mapping
from random import Random
from types import MappingProxyType
from typing import NamedTuple, Protocol

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
_NOTHING: Mapping[str, str] = MappingProxyType({})
ROLE = "role"
"""The reason to refuse messages that `Serving.sends` gives."""


def trace_fields(config: BrokerConfig) -> dict[str, str]:
    """Return the fields by which responses to sends and stored messages tell clients about traces."""
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
    """How many timed messages wait."""

    def __len__(self) -> int:
        """Return the number of timed messages that wait."""

    def count_at(self, out_ms: int) -> int:
        """Return the number of timed messages that wait for one delivery time."""


class Puts(Feature):
    """The messages of a turn that are stored, and the reasons to refuse messages."""

    def __init__(self, current: CurrentConfig, store: Store, topics: Topics, random: Random, store_host: bytes) -> None:
        """Begin to accept messages. `store_host`: this broker's advertised address in the form of records."""
        self._current = current
        self.store = store
        self.topics = topics
        self.random = random
        self.store_host = store_host
        self.acks: list[Ack] = []
        """Responses to this turn's sends, in the order of the log; see `take_acks`."""
        self._refusals: dict[str, tuple[ResponseCode, str]] = {}
        self.refusal: tuple[ResponseCode, str] | None = None
        """Code and remark with which all sends are refused at present, the oldest of several; None: accepted."""
        self.count = 0
        """Messages accepted since the start."""
        self.bytes = 0
        """Bytes of their bodies."""
        self.dead_letters = DeadLetters()
        self._without_topic = Refusals()
        """Messages delivered later whose topics do not exist, by topic."""
        self._halves: list[StoredHalf] = []
        """Half messages of this turn; the owner takes them with the commit."""
        self.half_refusal: str | None = None
        """Why half messages are refused at present; None: accepted."""
        self._timed: list[TimedSend] = []
        """Timed messages of this turn; the owner takes them with the commit."""
        self._pending_timed: PendingAtTime | None = None
        """The timed messages that wait; None: not known."""
        self.put_times = Histogram()
        """Send times since the last `take_put_times`, ms."""
        self.failures = 0
        """Messages that could not be written; none of them was acknowledged."""

    @property
    def config(self) -> BrokerConfig:
        """The settings in force."""
        return self._current.config

    def later_topic(self, name: str, kind: str, now: Now) -> Topic:
        """Return the topic of a message that was accepted earlier: a delayed or timed one, or one of a transaction.

        A topic that does not exist is not created again. The message is stored in its queue, which no route names: it
        is there once the topic exists, as after a takeover by a broker that has not copied a new topic yet.
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
        """Append a record that the broker makes for itself and its replicas: born here, now."""
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
        change: Mapping[str, str] = _NOTHING,
        drop: Iterable[str] = (),
        defaults: Mapping[str, str] = _NOTHING,
        store_host: bytes | None = None,
        reconsume_times: int | None = None,
        prepared_offset: int = 0,
    ) -> AppendMessageResult:
        """Append a copy of a record to a queue.

        Args:
            queue: where it goes.
            record: verified here.
            now: the time.
            sys_flag: of the copy; the bits of the hosts' sizes do not count.
            change: properties with other values.
            drop: names of properties that the copy lacks, unless `change` has them.
            defaults: properties that the copy gets if the record has none of the name.
            store_host: in the form of records; None: that of the record.
            reconsume_times: None: those of the record.
            prepared_offset: of the copy.

        Raises:
            ProtocolError: it is no record, or damaged.
            RecordTooLarge: the copy does not fit into a record.
            DiskFailed: the log takes no more.
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
        """Return the responses to this turn's sends so far, and forget them."""
        acks, self.acks = self.acks, []
        return acks

    def drop_link(self, link: int) -> None:
        """Forget the responses for a connection that is closed because of an error."""
        self.acks = [ack for ack in self.acks if ack[0] != link]

    def take_halves(self) -> list[StoredHalf]:
        """Return the half messages of this turn, and forget them."""
        halves, self._halves = self._halves, []
        return halves

    def take_timed(self) -> list[TimedSend]:
        """Return the timed messages of this turn, and forget them."""
        timed, self._timed = self._timed, []
        return timed

    def refuse_halves(self, why: str | None) -> None:
        """Refuse half messages from now on; None: accept them."""
        self.half_refusal = why

    def know_timers(self, pending: PendingAtTime | None) -> None:
        """Set the timed messages that wait; None: they are not known."""
        self._pending_timed = pending

    def count_message(self, body_bytes: int) -> None:
        """Count an accepted message."""
        self.count += 1
        self.bytes += body_bytes

    def note_batch(self, sends: TakenSends) -> None:
        """Note the sends that the engine has taken, once their records are appended."""
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

    def own_topic(self, name: str, wall_ms: int) -> Topic:
        """Return a retry or dead letter topic, created if it does not exist.

        Raises:
            SendRefused: the limit of topics is reached.
        """
        topic = self.topics.create_internal(name, 1, wall_ms)
        if topic is None:
            full = self.topics.full([internal_topic(name, 1)], is_own=True)
            raise SendRefused(ResponseCode.SYSTEM_ERROR, f"topic[{name}] cannot be created: {full}")
        return topic

    def as_timed(
        self, topic: Topic, queue_id: int, properties: dict[str, str], out_ms: int, wall_ms: int
    ) -> tuple[Topic, int]:
        """Return where a timed message is stored; its properties get its time, and the topic and queue of the message.

        Raises:
            SendRefused: too many messages wait, or its properties leave no room for those that its delivery adds.
        """
        name = topic.config.topic_name
        refused = self.timed_refusal(out_ms, self.random)
        if refused is not None:
            raise SendRefused(ResponseCode.SYSTEM_ERROR, refused)
        add_timer_properties(properties, out_ms, name, queue_id)
        check_room(properties, TIMED_BYTES_MAX, "a timed message")
        return self.own_topic(TIMER_TOPIC, wall_ms), 0

    def redirect_delayed(self, topic: Topic, queue_id: int, properties: dict[str, str]) -> tuple[Topic, int]:
        """Return where a message is stored first: its own queue, or the queue of its delay level.

        In the second case the properties get the topic and queue that the message is delivered to later.
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
        """Note a half message that was appended, for a message to a topic."""
        self._halves.append(StoredHalf(stored.queue_offset, stored.log_offset, topic, stored.size))

    def note_timed(self, stored: AppendMessageResult, properties: Mapping[str, str], out_ms: int) -> None:
        """Note a timed message that was appended."""
        is_delete = TIMER_DELETE in properties
        self._timed.append((stored.queue_offset, out_ms, properties[REAL_TOPIC], is_delete))

    def timers_room(self) -> int:
        """Return how many more timed messages `timersMax` allows."""
        pending = self._pending_timed
        return _NO_LIMIT if pending is None else self.config.timers_max - len(pending) - len(self._timed)

    def timed_refusal(self, out_ms: int, random: Random) -> str | None:
        """Return why a timed message is refused at present; None if it is accepted.

        Between once and twice the limit of a time, messages are refused more and more often.

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
        """Withdraw a reason to refuse; no effect if it was not given."""
        self._refusals.pop(reason, None)
        self.refusal = next(iter(self._refusals.values()), None)

    def on_serving_change(self, _before: Serving, serving: Serving, _turn: Turn, _now: Now) -> None:
        """Refuse or accept messages as the role says."""
        if serving.sends is None:
            self.admit(ROLE)
        else:
            self.refuse(ROLE, serving.sends.remark, serving.sends.code)

    def refusal_but_for(self, reason: str) -> tuple[ResponseCode, str] | None:
        """Return why sends are refused, if there is another reason than this one."""
        return next((refusal for given, refusal in self._refusals.items() if given != reason), None)

    @property
    def admits_ordinary(self) -> bool:
        """Whether ordinary messages are accepted at present."""
        return self.refusal is None and self.config.permission & _WRITE != 0
