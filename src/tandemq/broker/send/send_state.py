"""What both ways of sends share: settings, collaborators, reasons to refuse, and responses.

`SendPath` is this state with both ways on top of it.
"""

import logging
from collections.abc import Mapping
from random import Random
from typing import NamedTuple, Protocol

from tandemq.boundary import Now, Turn
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.serving import Serving
from tandemq.broker.send.dead_letters import DeadLetters
from tandemq.broker.state.topics import Topic, Topics, internal_topic
from tandemq.config.settings import BrokerConfig
from tandemq.engine import Ack, EndedHalf, TimedSend
from tandemq.model.codes import ResponseCode
from tandemq.model.message import CLUSTER, MSG_REGION, REAL_TOPIC, TIMER_DELETE, TRACE_ON
from tandemq.model.topic import Permission
from tandemq.refusals import Refusals
from tandemq.storage.log.commit_log import AppendMessageResult
from tandemq.storage.store import Store

log = logging.getLogger(__name__)
_WRITE = int(Permission.WRITE)
_NO_LIMIT = 1 << 40
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


class OpenHalves(Protocol):
    """The open transactions, for the engine."""

    def may_end(self) -> bool:
        """Whether transactions may be ended now."""

    def ended_by_engine(self, ends: list[EndedHalf], wall_ms: int) -> None:
        """Take the ends of transactions whose messages are appended."""


class PendingAtTime(Protocol):
    """How many timed messages wait."""

    def __len__(self) -> int:
        """Return the number of all."""

    def at(self, out_ms: int) -> int:
        """Return the number of those of one time."""


class SendState(Feature):
    """State shared by both ways of sends."""

    def __init__(self, config: BrokerConfig, store: Store, topics: Topics, store_host: bytes) -> None:
        """Take the collaborators; `store_host` is this broker's advertised address in the form of records."""
        self.store = store
        self.topics = topics
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
        self.open_halves: OpenHalves | None = None
        """The open transactions; None: not known."""
        self._timed: list[TimedSend] = []
        """Timed messages of this turn; the owner takes them with the commit."""
        self._pending_timed: PendingAtTime | None = None
        """The timed messages that wait; None: not known."""
        self.config = config
        self.stores_region = False
        """Whether messages are stored with the properties that clients need for their traces."""
        self.common_properties = {CLUSTER: config.cluster}
        """Properties that this broker sets in every message."""

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
        count = pending.at(out_ms)
        if count > limit and (count >= 2 * limit or random.random() * limit < count - limit):
            return (
                f"timer message is under flow control, {count} wait for this time, timerCongestNumEachSlot is {limit}"
            )
        return None

    def set_store_host(self, store_host: bytes) -> None:
        """Set this broker's advertised address, in the form of records, once it is known."""
        self.store_host = store_host

    def adopt_config(self, config: BrokerConfig) -> None:
        """Take the settings, at the start and when they change."""
        self.config = config

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
