"""Dead letters of a consumer group: list, send again, export."""

import json
from collections.abc import AsyncIterator

from starlette.responses import Response, StreamingResponse

from tandemq.console.operations import dead_letters as operations
from tandemq.console.services import Console, NotFound
from tandemq.console.visit import Visit
from tandemq.errors import NoRoute
from tandemq.model.topic import dead_letter_topic

SHOWN_MAX = 100


async def show(visit: Visit) -> Response:
    """List the newest dead letters."""
    group = visit.group()
    try:
        found = await visit.console.finder.newest(dead_letter_topic(group), SHOWN_MAX)
    except NoRoute:
        found = []
    return visit.page(
        "dead_letters.html",
        group=group,
        found=found,
        most=SHOWN_MAX,
        chosen=visit.query.text("choose") == "all",
        total=(await visit.console.tables.dead_letters([group])).get(group),
        resent=None,
        left=0,
        sent_max=operations.SENT_MAX,
    )


async def resend(visit: Visit) -> Response:
    """Send chosen dead letters again, or all from the oldest on, after the group's name was typed."""
    group, places = visit.group(), None
    if visit.form.text("what") == "all":
        visit.require_typed(group)
    else:
        places = visit.form.all("place")[:SHOWN_MAX]
    resent = await operations.resend(visit.console, visit.actor, group, places)
    return visit.page(
        "dead_letters.html",
        group=group,
        found=[],
        most=SHOWN_MAX,
        chosen=False,
        total=None,
        resent=resent.letters,
        left=resent.left,
        sent_max=operations.SENT_MAX,
    )


async def export(visit: Visit) -> Response:
    """Return all dead letters as lines of JSON."""
    if not visit.sees_bodies:
        raise NotFound("this console shows bodies to operators only")
    group = visit.group()
    await visit.console.admin.topic_route(dead_letter_topic(group))
    return StreamingResponse(
        _lines(visit.console, group),
        media_type="application/x-ndjson",
        headers={"content-disposition": 'attachment; filename="dead-letters.jsonl"'},
    )


async def _lines(console: Console, group: str) -> AsyncIterator[str]:
    async for letter in operations.letters(console, group):
        message = letter.message
        try:
            body = {"body": message.body.decode()}
        except UnicodeDecodeError:
            body = {"bodyHex": message.body.hex()}
        yield (
            json.dumps(
                {
                    "broker": letter.broker,
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
