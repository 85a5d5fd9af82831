"""Dead letters of a consumer group: read one after the other, and sent again.

A dead letter is sent again to the group's retry topic, so that only this group gets it, not the other groups of the
original topic. One request sends at most `SENT_MAX`, and `SENT_BYTES_MAX` of bodies, at the rate of the console's
settings, and reports each outcome.
"""

import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import anyio

from tandemq.console.cluster.messages import FoundMessage, copy_of
from tandemq.console.services import Console, NotFound
from tandemq.errors import ConfigError, InvalidMessage, LocalError, TandemError
from tandemq.groupdb.audit import Actor
from tandemq.model.message import MessageQueue
from tandemq.model.topic import dead_letter_topic, retry_topic

SENT_MAX = 500
SENT_BYTES_MAX = 64 << 20
"""Maximum size of the bodies that one request sends again, or one letter; further letters stay for the next request."""
PART = 32


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a dead letter; as text "broker-a/0@17"."""

    broker: str
    queue_id: int
    offset: int

    @property
    def text(self) -> str:
        """Its text."""
        return f"{self.broker}/{self.queue_id}@{self.offset}"


@dataclass(frozen=True, slots=True)
class ResentLetter:
    """Outcome of one dead letter that was sent again."""

    letter: FoundMessage
    place: str
    """Where the copy is; "" if it was not sent."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Resent:
    """Outcomes of one request, and how many letters it has left out."""

    letters: list[ResentLetter]
    left: int


def place_of(letter: FoundMessage) -> Place:
    """Return the place of a message."""
    return Place(letter.broker, letter.message.queue_id, letter.message.queue_offset)


def parse_place(text: str) -> Place:
    """Return a place from its text. Raises ConfigError if it is none."""
    broker, _, rest = text.partition("/")
    queue_id, _, offset = rest.partition("@")
    numbers = (queue_id, offset)
    if not broker or not all(number.isascii() and number.isdecimal() for number in numbers):
        raise ConfigError("place: choose messages of the list")
    if len(queue_id) > 9 or len(offset) > 18:
        raise ConfigError("place: choose messages of the list")
    return Place(broker, int(queue_id), int(offset))


async def letters(console: Console, group: str, after: Place | None = None) -> AsyncIterator[FoundMessage]:
    """Yield the dead letters of a group, queue by queue, oldest first.

    Args:
        after: begin behind this one.

    Raises:
        NoRoute: the group has no dead letters.
    """
    topic = dead_letter_topic(group)
    route = await console.admin.topic_route(topic)
    for queue in sorted(route.subscribe_queues()):
        place = (queue.broker_name, queue.queue_id)
        if after is not None and place < (after.broker, after.queue_id):
            continue
        bounds = await console.admin.bounds(queue)
        offset = bounds.first
        if after is not None and place == (after.broker, after.queue_id):
            offset = max(offset, after.offset + 1)
        while offset < bounds.end:
            some = await console.admin.messages_from(queue, offset, PART)
            for message in some:
                yield FoundMessage(queue.broker_name, message)
            if not some:
                break
            offset = some[-1].queue_offset + 1


async def resend(console: Console, by: Actor, group: str, places: Sequence[str] | None) -> Resent:
    """Send dead letters again: those at the places, or without places all from the oldest on.

    Raises:
        ConfigError: no letter is chosen.
        LocalError: the group has no retries, or no letter was sent.
        NotFound: there is no letter at a place.
    """
    config = (await console.admin.groups()).get(group)
    if config is not None and config.retry_max_times <= 0:
        raise LocalError("this group has no retries: a copy in its retry topic would be a dead letter again at once")
    found: list[FoundMessage] = []
    left = size = 0
    async for letter in letters(console, group) if places is None else _chosen_ones(console, group, places):
        size += len(letter.message.body)
        if len(found) < SENT_MAX and (size <= SENT_BYTES_MAX or not found):
            found.append(letter)
        else:
            size, left = SENT_BYTES_MAX + 1, left + 1
    if not found:
        raise ConfigError("choose at least one message")
    texts = [place_of(letter).text for letter in found]
    async with console.audited(by, "dead_letters.resend", group, before=json.dumps(texts)):
        resent = await _send(console, found, retry_topic(group))
        if all(outcome.why for outcome in resent):
            raise LocalError(f"no message was sent: {resent[0].why}")
    return Resent(resent, left)


async def _chosen_ones(console: Console, group: str, places: Sequence[str]) -> AsyncIterator[FoundMessage]:
    for text in places:
        yield await _chosen(console, dead_letter_topic(group), text)


async def _chosen(console: Console, topic: str, text: str) -> FoundMessage:
    place = parse_place(text)
    route = await console.admin.topic_route(topic)
    if place.broker not in route.brokers:
        raise NotFound("the topic has no such queue")
    found = await console.finder.at(MessageQueue(topic, place.broker, place.queue_id), place.offset)
    if found is None:
        raise NotFound(f"there is no dead letter at {text[:100]}")
    return found


async def _send(console: Console, found: list[FoundMessage], topic: str) -> list[ResentLetter]:
    producer, resent = await console.producer(), []
    pause = 1 / console.settings.resend_per_s
    for letter in found:
        begun = time.monotonic()
        try:
            result = await producer.send(copy_of(letter.message, topic))
            place = f"{result.queue.broker_name}/{result.queue.queue_id}@{result.queue_offset}"
            resent.append(ResentLetter(letter, place))
        except (TandemError, InvalidMessage) as error:
            resent.append(ResentLetter(letter, "", str(error)))
        await anyio.sleep(max(0.0, pause - (time.monotonic() - begun)))
    return resent
