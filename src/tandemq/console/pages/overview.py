"""The first page: the cluster as a picture, live."""

import time
from collections.abc import AsyncIterator

import anyio
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from tandemq.console.cluster.history import Point
from tandemq.console.cluster.watch import ClusterView
from tandemq.console.services import wall_ms
from tandemq.console.visit import Visit
from tandemq.console.web.translation import Phrase
from tandemq.groupdb.publications import publications, publishers

CHECK_S = 10.0
"""How often a stream checks that its session has not ended."""
WARNINGS_S = 5.0


async def show(visit: Visit) -> Response:
    """Show the cluster."""
    view = await visit.console.watch.view()
    points = visit.console.tables.history.of_cluster()
    return visit.page("overview.html", view=view, warnings=await warnings(visit), points=points, latest=_latest(visit))


def _latest(visit: Visit) -> Point | None:
    """Return the last sample of the cluster."""
    return next(iter(visit.console.tables.history.of_cluster()[-1:]), None)


async def warnings(visit: Visit) -> list[Phrase]:
    """Return the problems of publishing group configurations."""
    database, run = visit.console.database, visit.console.run
    groups = await run(database.groups)
    if not groups:
        return []
    found = []
    refused = {
        (publication.cluster, publication.broker_name): publication for publication in await run(publications, database)
    }
    for group in groups:
        refusal = refused.get((group.cluster, group.broker_name))
        if not group.is_applied and refusal is not None and refusal.outcome == "refused":
            found.append(
                Phrase(
                    "{group}: the configuration was refused: {why}", {"group": group.broker_name, "why": refusal.reason}
                )
            )
        elif not group.is_applied:
            found.append(Phrase("{group}: the configuration is not applied yet", {"group": group.broker_name}))
    if not await run(publishers, database, wall_ms()):
        found.append(Phrase("No publisher runs: changes of group configurations reach no broker"))
    return found


async def live(visit: Visit) -> Response:
    """Stream the picture: an event per second, as long as the session lasts."""
    return StreamingResponse(_events(visit), media_type="text/event-stream")


async def _events(visit: Visit) -> AsyncIterator[str]:
    console = visit.console
    name = visit.user.name if visit.user is not None else ""
    async with console.stream(name) as is_open:
        if not is_open:
            yield event("", name="over")
            return
        checked = warned = time.monotonic()
        texts = await warnings(visit)
        async for view in console.watch.follow():
            if console.ending.is_set():
                return
            if time.monotonic() - checked > CHECK_S:
                checked = time.monotonic()
                visit.user = await console.run(console.accounts.user_of, visit.session_id, wall_ms())
                if visit.user is None:
                    yield event("", name="over")
                    return
            if time.monotonic() - warned > WARNINGS_S:
                warned = time.monotonic()
                texts = await warnings(visit)
            yield event(picture(visit, view, texts))


def picture(visit: Visit, view: ClusterView, texts: list[Phrase]) -> str:
    """Return the picture as HTML."""
    return visit.text("cluster_part.html", view=view, warnings=texts, latest=_latest(visit))


def event(data: str, name: str = "") -> str:
    """Return a server-sent event."""
    head = f"event: {name}\n" if name else ""
    return head + "".join(f"data: {line}\n" for line in data.splitlines() or [""]) + "\n"


async def healthy(visit: Visit) -> Response:
    """Answer that the process runs."""
    await anyio.lowlevel.checkpoint()
    return PlainTextResponse("ok\n" if not visit.console.ending.is_set() else "ends\n")
