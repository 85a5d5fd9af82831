"""Consumer groups: lag, clients, offsets and their reset with a preview, create, delete."""

from starlette.responses import Response

from tandemq.client.admin.groups import ResetTarget
from tandemq.client.admin.queries import FAR_FUTURE_MS
from tandemq.console.operations import consumers as operations
from tandemq.console.pages.topics import confirmation
from tandemq.console.services import NotFound, wall_ms
from tandemq.console.visit import Visit
from tandemq.console.web.forms import Fields
from tandemq.console.web.render import segment
from tandemq.console.web.translation import Phrase
from tandemq.errors import ConfigError, LocalError, NoRoute
from tandemq.model.message import MessageQueue
from tandemq.model.topic import RETRY_PREFIX, topic_name_error

ROWS = 100


async def show_all(visit: Visit) -> Response:
    """List the groups that lag most first."""
    wanted = visit.query.text("q").lower()
    rows = [row for row in await visit.console.tables.groups() if wanted in row.name.lower()]
    position = min(visit.query.integer("at", 0), max(0, len(rows) - 1))
    shown = rows[position : position + ROWS]
    tables = visit.console.tables
    return visit.page(
        "consumers.html",
        rows=shown,
        samples={row.name: tables.history.lags_of(row.name) for row in shown},
        dead=await tables.dead_letters(row.name for row in shown),
        q=visit.query.text("q"),
        at=position,
        total=len(rows),
        size=ROWS,
    )


async def show(visit: Visit) -> Response:
    """Show a group: lag of each queue, clients, subscriptions."""
    group, console = visit.group(), visit.console
    progress = await console.tables.progress(group)
    if progress is None:
        raise NotFound(f"no broker knows the group {group}")
    try:
        connections = await console.admin.connections(group)
    except NoRoute:  # no member has ever joined it
        connections = None
    return visit.page(
        "consumer.html",
        group=group,
        progress=progress,
        connections=connections,
        points=console.tables.history.of_group(group),
        dead=(await console.tables.dead_letters([group])).get(group),
        config=await console.tables.config(group),
        now_ms=wall_ms(),
        topics=sorted({queue.topic for queue in progress if not queue.topic.startswith(RETRY_PREFIX)}),
    )


async def create(visit: Visit) -> Response:
    """Create a group with default settings but the number of retries."""
    group = visit.form.text("group")
    retries = visit.form.integer("retries", 16, high=operations.RETRIES_MAX)
    await operations.create_group(visit.console, visit.actor, group, retries)
    return visit.to(f"/consumers/{segment(group)}")


async def delete_form(visit: Visit) -> Response:
    """Show the loss that a deletion would cause."""
    group = visit.group()
    progress = await visit.console.tables.progress(group)
    facts = [
        Phrase(
            "{count} messages are not consumed",
            {"count": sum(queue_progress.lag for queue_progress in (progress or {}).values())},
        ),
        Phrase("Its offsets, retry topic and dead letters are deleted too."),
    ]
    return confirmation(visit, "Delete the consumer group {name}", group, facts, f"/consumers/{segment(group)}/delete")


async def delete(visit: Visit) -> Response:
    """Delete a group with its offsets, retry topic and dead letters."""
    group = visit.group()
    visit.require_typed(group)
    await operations.delete_group(visit.console, visit.actor, group)
    return visit.to("/consumers")


# Offsets.


def target_of(fields: Fields) -> ResetTarget:
    """Return where to move to: "earliest", "latest", an offset, or a time; of one queue or of all.

    Raises:
        ConfigError: a field is missing or invalid.
    """
    topic, to = fields.text("topic"), fields.text("to")
    if (fault := topic_name_error(topic)) is not None:
        raise ConfigError(fault)
    queue = None
    if fields.text("queue"):
        queue = MessageQueue(topic, fields.text("broker"), fields.integer("queue", high=(1 << 31) - 1))
    if to == "earliest":
        return ResetTarget(time_ms=0, queue=queue)
    if to == "latest":
        return ResetTarget(time_ms=1 << 52, queue=queue)
    if to == "offset":
        return ResetTarget(offset=fields.integer("offset"), queue=queue)
    if to == "time":
        time_ms = fields.time_ms("time")
        if time_ms is None or time_ms > FAR_FUTURE_MS:
            raise ConfigError("time: give a time")
        return ResetTarget(time_ms=time_ms, queue=queue)
    raise ConfigError("to: choose earliest, latest, offset or time")


async def offsets_form(visit: Visit) -> Response:
    """Show the form; once it is filled in, also the messages that it would skip or deliver again."""
    group, query, why, status = visit.group(), visit.query, "", 200
    progress = await visit.console.tables.progress(group)
    plan: list[operations.PlannedOffset] | None = None
    if query.has("to"):
        try:
            plan = await operations.plan_reset(visit.console, group, query.text("topic"), target_of(query))
        except (ConfigError, LocalError, NoRoute) as error:
            why, status = str(error), 400
    names = ("topic", "to", "offset", "time", "broker", "queue")
    brokers = sorted({queue.broker_name for queue in progress or {}})
    topics = sorted({queue.topic for queue in progress or {}})
    values = {name: query.text(name) for name in names}
    return visit.page(
        "offsets.html", status, group=group, topics=topics, brokers=brokers, plan=plan, values=values, why=why
    )


async def reset(visit: Visit) -> Response:
    """Move the group, after its name was typed."""
    group, form = visit.group(), visit.form
    visit.require_typed(group)
    target = target_of(form)
    await operations.reset_offsets(visit.console, visit.actor, group, form.text("topic"), target)
    return visit.to(f"/consumers/{segment(group)}")
