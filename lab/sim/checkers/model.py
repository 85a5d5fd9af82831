"""Expected state of a run: messages sent, responses received, messages delivered.

Producers and consumers write it, checkers read it. A message is what a producer wants to have stored; an attempt is one
request for it on the wire. Several attempts carry the same unique key.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tandemq.model.codes import ResponseCode
from tandemq.model.topic import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from tandemq.model.transactions import TransactionState

TOPICS = ("Orders", "Late")
"""Topics of the workload; the second gets messages later."""
CYCLE_PREFIX = "Cycle-"
"""Prefix of topics that are created and deleted."""
POP_GROUP = "GP"
"""The consumer group that pops."""
STATIC_TOPIC = "Static"
"""The static topic, in seeds that have one."""


class BrokerRef(NamedTuple):
    """A broker: its group and its id there."""

    group: str
    broker_id: int


class BrokerQueue(NamedTuple):
    """A queue of a broker group."""

    group: str
    topic: str
    queue_id: int


class QueuePlace(NamedTuple):
    """The place of a message in a queue of a broker group."""

    group: str
    topic: str
    queue_id: int
    queue_offset: int


@dataclass(slots=True, eq=False)
class SentMessage:
    """A message that a producer made. `rejections`: how often its consumer sends it back.

    `is_half`: whether it is sent in a transaction; `outcome`: what its producer decided, None if it has not yet, and
    `decided_us`: when.
    `timer_ms`: delay of a timed message, 0 of others.
    """

    key: str
    producer: str
    topic: str
    body: bytes
    tag: str
    keys: str
    delay_level: int = 0
    rejections: int = 0
    made_us: int = 0
    attempts: list["Attempt"] = field(default_factory=list)
    is_half: bool = False
    outcome: TransactionState | None = None
    decided_us: int = 0
    timer_ms: int = 0

    @property
    def is_late(self) -> bool:
        """Return whether the message is delayed: stored in a system topic first, and in its own topic at its time."""
        return self.delay_level > 0 or self.timer_ms > 0

    def decide(self, outcome: TransactionState, now_us: int) -> None:
        """Record what its producer decides."""
        self.outcome, self.decided_us = outcome, now_us

    def is_stored_in(self, group: str) -> bool:
        """Return whether a broker group has reported the message as stored."""
        return any(attempt.is_stored and attempt.group == group for attempt in self.attempts)

    @property
    def first_topic(self) -> str:
        """Return the topic in which the message is stored when it is sent."""
        if self.is_half:
            return HALF_TOPIC
        if self.timer_ms:
            return TIMER_TOPIC
        return SCHEDULE_TOPIC if self.delay_level else self.topic

    def first_queue(self, queue_id: int) -> int:
        """Return the queue of `first_topic` in which a message sent to a queue of its own topic is stored."""
        if self.timer_ms or self.is_half:
            return 0
        return self.delay_level - 1 if self.delay_level else queue_id


STORED = frozenset(
    {
        int(ResponseCode.SUCCESS),
        int(ResponseCode.FLUSH_DISK_TIMEOUT),
        int(ResponseCode.FLUSH_SLAVE_TIMEOUT),
        int(ResponseCode.SLAVE_NOT_AVAILABLE),
    }
)
"""Response codes that mean the message is stored."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One send request, for a message or a batch. `code`: the response code, None without a response."""

    number: int
    messages: list[SentMessage]
    group: str
    queue_id: int
    sent_us: int
    link: tuple[str, int] = ("", 0)
    waits: bool = True
    code: int | None = None
    answered_us: int = 0
    queue_offset: int = -1
    log_offsets: list[int] = field(default_factory=list)
    address: str = ""
    """Address of the broker, where it matters."""

    @property
    def is_stored(self) -> bool:
        """Return whether the response says that the message is stored."""
        return self.code in STORED

    @property
    def is_logical(self) -> bool:
        """Return whether the queue and the offset are those of a logical queue."""
        return self.messages[0].topic == STATIC_TOPIC


@dataclass(slots=True, eq=False)
class DeliveredMessage:
    """A message as a consumer received it."""

    consumer_group: str
    broker: str
    group: str
    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    key: str
    at_us: int


class Recall(NamedTuple):
    """A recall that a broker confirmed."""

    group: str
    key: str
    out_ms: int
    """TIMER_OUT_MS of the message."""
    sent_us: int
    confirmed_us: int = 0


class OffsetEvent(NamedTuple):
    """A consumer commits an offset, requests the committed one, or receives it.

    `number`: of the request; `what`: "commit", "committed", "asked" or "reported".
    """

    at_us: int
    number: int
    what: str
    process: str
    consumer_group: str
    queue: BrokerQueue
    offset: int = 0


class ExpectedState:
    """The expected state of one run."""

    def __init__(self) -> None:
        self.messages: dict[str, SentMessage] = {}
        self.attempts: list[Attempt] = []
        self.given: list[DeliveredMessage] = []
        self.delivered_keys: dict[str, dict[str, int]] = {}
        """Consumer group to unique key to the number of deliveries."""
        self.commits: dict[tuple[str, str, int, str], dict[int, int]] = {}
        """(broker group, topic, queue id, consumer group) to committed offsets, each with its last commit's time."""
        self.offset_events: list[OffsetEvent] = []
        """Commits, and requests for offsets, of consumers that send frames."""
        self.finished: dict[str, set[str]] = {}
        """Consumer group to the unique keys that a consumer has finished."""
        self.confirmed_commits: list[Attempt] = []
        """Requests to commit a transaction that a broker confirmed."""
        self.recall_requests: dict[str, int] = {}
        """Unique key of a message whose recall was requested to the time of that."""
        self.recalls: list[Recall] = []
        """Recalls that a broker confirmed."""
        self.deletions: dict[tuple[str, str], int] = {}
        """(broker group, topic) that is deleted, and may not come back, to the time of the response."""
        self.duplicates = 0
        self.on_delivery: Callable[[DeliveredMessage], None] = lambda _: None
        self.on_shown: Callable[[str, int], None] = lambda _address, _log_offset: None
        """Called when a broker has shown that there is a record, without the record."""
        self.on_stored: Callable[[Attempt], None] = lambda _: None
        self.on_committed: Callable[[Attempt], None] = lambda _: None
        self.has_bit_rot: Callable[[str], bool] = lambda _address: False
        """Return whether a broker's log has flipped bits at rest. Clients must detect them until the scrubber does."""

    def record_message(self, message: SentMessage) -> None:
        """Record a message that a producer made."""
        self.messages[message.key] = message

    def record_attempt(self, attempt: Attempt) -> None:
        """Record a send request."""
        self.attempts.append(attempt)
        for message in attempt.messages:
            message.attempts.append(attempt)

    def record_response(self, attempt: Attempt, code: int, fields: dict[str, str], now_us: int) -> None:
        """Record a response to a send request."""
        attempt.code, attempt.answered_us = code, now_us
        if attempt.is_stored:
            attempt.queue_offset = int(fields["queueOffset"])
            attempt.log_offsets = [int(text[-16:], 16) for text in fields["msgId"].split(",")]
            self.on_stored(attempt)

    def record_commit_response(self, attempt: Attempt, code: int, now_us: int) -> None:
        """Record a response to a request to commit a transaction."""
        attempt.code, attempt.answered_us = code, now_us
        if code == ResponseCode.SUCCESS:
            self.confirmed_commits.append(attempt)
            self.on_committed(attempt)

    def record_delivery(self, given: DeliveredMessage) -> None:
        """Record a delivery to a consumer."""
        self.given.append(given)
        self.on_delivery(given)
        counts = self.delivered_keys.setdefault(given.consumer_group, {})
        counts[given.key] = counts.get(given.key, 0) + 1

    def record_commit(
        self, group: str, topic: str, queue_id: int, consumer_group: str, offset: int, now_us: int
    ) -> None:
        """Record that a consumer commits an offset."""
        self.commits.setdefault((group, topic, queue_id, consumer_group), {})[offset] = now_us
