"""Dead letters of a consumer group: list, send again, export.

A dead letter is sent again to the group's retry topic, so that only this group gets it, not the other groups of the
original topic. One request sends at most `SENT_MAX`, at the rate of the console's settings, and reports each outcome.
"""

import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import anyio
from starlette.responses import Response, StreamingResponse

from tandemq.console.cluster.messages import FoundMessage, copy_of
from tandemq.console.services import Console
from tandemq.console.visit import NotFound, Visit
from tandemq.errors import ConfigError, InvalidMessage, LocalError, NoRoute, TandemError
from tandemq.model.message import MessageQueue
from tandemq.model.topic import dead_letter_topic, retry_topic

SHOWN_MAX = 100
SENT_MAX = 500
PART = 32


@dataclass(frozen=True, slots=True)
class ResentLetter:
    """Outcome of one dead letter that was sent again."""

    letter: FoundMessage
    place: str
    """Where the copy is; "" if it was not sent."""
    why: str = ""


async def show(visit: Visit) -> Response:
    """List the newest dead letters."""
    group = visit.group()
    try:
        found = await visit.console.finder.newest(dead_letter_topic(group), SHOWN_MAX)
    except NoRoute:
        found = []
    return visit.page(
        "dead_letters.html", group=group, found=found, most=SHOWN_MAX, resent=None, left=0, sent_max=SENT_MAX
    )


async def resend(visit: Visit) -> Response:
    """Send chosen dead letters again, or all from a start on."""
    group, console = visit.group(), visit.console
    config = (await console.admin.groups()).get(group)
    if config is not None and config.retry_max_times <= 0:
        raise LocalError("this group has no retries: a copy in its retry topic would be a dead letter again at once")
    topic = dead_letter_topic(group)
    if visit.form.text("what") == "all":
        visit.require_typed(group)
        letters = [one async for one in _letters(console, topic)]
    else:
        letters = [await _chosen(console, topic, place) for place in visit.form.all("place")[:SHOWN_MAX]]
    if not letters:
        raise ConfigError("choose at least one message")
    left, letters = max(0, len(letters) - SENT_MAX), letters[:SENT_MAX]
    places = [f"{one.broker}/{one.message.queue_id}@{one.message.queue_offset}" for one in letters]
    async with console.audited(visit.actor, "dead_letters.resend", group, before=json.dumps(places)):
        resent = await _send(console, letters, retry_topic(group))
        if all(one.why for one in resent):
            raise LocalError(f"no message was sent: {resent[0].why}")
    return visit.page(
        "dead_letters.html", group=group, found=[], most=SHOWN_MAX, resent=resent, left=left, sent_max=SENT_MAX
    )


async def _chosen(console: Console, topic: str, place: str) -> FoundMessage:
    broker, _, rest = place.partition("/")
    queue_id, _, offset = rest.partition("@")
    if not (queue_id.isdecimal() and offset.isdecimal() and len(queue_id) < 10 and len(offset) < 19):
        raise ConfigError("place: choose messages of the list")
    route = await console.admin.topic_route(topic)
    if broker not in route.brokers:
        raise NotFound("the topic has no such queue")
    found = await console.finder.at(MessageQueue(topic, broker, int(queue_id)), int(offset))
    if found is None:
        raise NotFound(f"there is no dead letter at {place[:100]}")
    return found


async def _send(console: Console, letters: list[FoundMessage], topic: str) -> list[ResentLetter]:
    producer, resent = await console.producer(), []
    pause = 1 / console.settings.resend_per_s
    for letter in letters:
        begun = time.monotonic()
        try:
            result = await producer.send(copy_of(letter.message, topic))
            place = f"{result.queue.broker_name}/{result.queue.queue_id}@{result.queue_offset}"
            resent.append(ResentLetter(letter, place))
        except (TandemError, InvalidMessage) as error:
            resent.append(ResentLetter(letter, "", str(error)))
        await anyio.sleep(max(0.0, pause - (time.monotonic() - begun)))
    return resent


async def _letters(console: Console, topic: str) -> AsyncIterator[FoundMessage]:
    """Yield all dead letters, queue by queue, oldest first."""
    route = await console.admin.topic_route(topic)
    for queue in sorted(route.subscribe_queues()):
        bounds = await console.admin.bounds(queue)
        at = bounds.first
        while at < bounds.end:
            some = await console.admin.messages_from(queue, at, PART)
            for one in some:
                yield FoundMessage(queue.broker_name, one)
            if not some:
                break
            at = some[-1].queue_offset + 1


async def export(visit: Visit) -> Response:
    """Return all dead letters as lines of JSON."""
    if not visit.sees_bodies:
        raise NotFound("this console shows bodies to operators only")
    topic = dead_letter_topic(visit.group())
    await visit.console.admin.topic_route(topic)
    return StreamingResponse(
        _lines(visit.console, topic),
        media_type="application/x-ndjson",
        headers={"content-disposition": 'attachment; filename="dead-letters.jsonl"'},
    )


async def _lines(console: Console, topic: str) -> AsyncIterator[str]:
    async for one in _letters(console, topic):
        message = one.message
        try:
            body = {"body": message.body.decode()}
        except UnicodeDecodeError:
            body = {"bodyHex": message.body.hex()}
        yield (
            json.dumps(
                {
                    "broker": one.broker,
                    "queue": message.queue_id,
                    "offset": message.queue_offset,
                    "stored": message.store_ms,
                    "id": message.unique_key,
                    "properties": message.properties,
                    **body,
                },
                ensure_ascii=False,
            )
            + "\n"
        )
