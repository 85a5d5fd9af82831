"""What should be there: every message sent, every answer heard, every message delivered.

Producers and consumers write it, checkers read it. A message is what a producer wants to have stored; an attempt is one
request for it on the wire. Several attempts carry the same unique key.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from tandemq.model.codes import ResponseCode


@dataclass(slots=True, eq=False)
class SentMessage:
    """A message a producer made. `rejections`: how often its consumer will give it back."""

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


STORED = frozenset(
    {
        int(ResponseCode.SUCCESS),
        int(ResponseCode.FLUSH_DISK_TIMEOUT),
        int(ResponseCode.FLUSH_SLAVE_TIMEOUT),
        int(ResponseCode.SLAVE_NOT_AVAILABLE),
    }
)
"""Codes that say the message is stored."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One request on the wire, for one message or a batch. `code` is the answer's, None if there was none."""

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
    """Of the broker that was asked, where that matters."""

    @property
    def is_stored(self) -> bool:
        """Whether the answer says that the message is stored."""
        return self.code in STORED


@dataclass(slots=True, eq=False)
class Given:
    """A message as a consumer got it."""

    consumer_group: str
    broker: str
    group: str
    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    key: str
    at_us: int


class Shadow:
    """All of it."""

    def __init__(self) -> None:
        """Nothing was sent."""
        self.messages: dict[str, SentMessage] = {}
        self.attempts: list[Attempt] = []
        self.given: list[Given] = []
        self.given_keys: dict[str, dict[str, int]] = {}
        """Consumer group to unique key to the number of deliveries."""
        self.commits: dict[tuple[str, str, int, str], dict[int, int]] = {}
        """(group of brokers, topic, queue id, consumer group) to offsets asked to be committed, and when last."""
        self.finished: dict[str, set[str]] = {}
        """Consumer group to unique keys a consumer was done with."""
        self.duplicates = 0
        self.on_given: Callable[[Given], None] = lambda _: None
        self.on_stored: Callable[[Attempt], None] = lambda _: None
        self.has_rot: Callable[[str], bool] = lambda _address: False
        """Whether bits were turned in a broker's log at rest: until its scrubber comes by, clients must find them."""

    def want(self, message: SentMessage) -> None:
        """A producer made a message."""
        self.messages[message.key] = message

    def send(self, attempt: Attempt) -> None:
        """A producer sends."""
        self.attempts.append(attempt)
        for message in attempt.messages:
            message.attempts.append(attempt)

    def hear(self, attempt: Attempt, code: int, fields: dict[str, str], now_us: int) -> None:
        """A producer heard an answer."""
        attempt.code, attempt.answered_us = code, now_us
        if attempt.is_stored:
            attempt.queue_offset = int(fields["queueOffset"])
            attempt.log_offsets = [int(text[-16:], 16) for text in fields["msgId"].split(",")]
            self.on_stored(attempt)

    def give(self, given: Given) -> None:
        """A consumer got a message."""
        self.given.append(given)
        self.on_given(given)
        counts = self.given_keys.setdefault(given.consumer_group, {})
        counts[given.key] = counts.get(given.key, 0) + 1

    def committed(self, group: str, topic: str, queue_id: int, consumer_group: str, offset: int, now_us: int) -> None:
        """A consumer asks for an offset to be remembered."""
        self.commits.setdefault((group, topic, queue_id, consumer_group), {})[offset] = now_us
