"""The page that follows a topic: its newest messages, updated while it is open."""

import time
from collections.abc import AsyncIterator
from typing import Any

import anyio
from starlette.responses import Response, StreamingResponse

from tandemq.console.cluster.messages import FoundMessage, shown_body
from tandemq.console.pages.overview import event
from tandemq.console.services import NotFound, wall_ms
from tandemq.console.visit import Visit
from tandemq.errors import TandemError

SHOWN_MAX = 20
TICK_S = 1.0
SECONDS_MAX = 600
BODY_CHARACTERS = 160
"""Number of characters of a body that the table shows."""


async def show(visit: Visit) -> Response:
    """Respond with the page and the newest messages."""
    return visit.page("tail.html", **await _values(visit))


async def _values(visit: Visit) -> dict[str, Any]:
    if not visit.sees_bodies:
        raise NotFound("this console shows bodies to operators only")
    topic, tag = visit.topic(), visit.query.text("tag")[:127]
    found = await visit.console.finder.newest(topic, SHOWN_MAX)
    shown = [located for located in found if tag in ("", located.message.tags)]
    return {"topic": topic, "tag": tag, "found": shown, "most": SHOWN_MAX, "brief": _brief}


def _brief(located: FoundMessage) -> str:
    return " ".join(shown_body(located.message).text[:BODY_CHARACTERS].split())


async def live(visit: Visit) -> Response:
    """Stream the newest messages, as they change, for at most ten minutes."""
    if not visit.sees_bodies:
        raise NotFound("this console shows bodies to operators only")
    return StreamingResponse(_events(visit), media_type="text/event-stream")


async def _events(visit: Visit) -> AsyncIterator[str]:
    console, start_s, previous = visit.console, time.monotonic(), ""
    async with console.stream(visit.actor.name) as is_open:
        while is_open and time.monotonic() - start_s < SECONDS_MAX and not console.ending.is_set():
            visit.user = await console.run(console.accounts.user_of, visit.session_id, wall_ms())
            if visit.user is None or not visit.sees_bodies:
                break
            try:
                text = visit.text("tail_part.html", **await _values(visit))
            except TandemError:  # no broker responds at present
                text = previous
            if text != previous:
                previous = text
                yield event(text)
            with anyio.move_on_after(TICK_S):
                await console.ending.wait()
        yield event("", name="over")
