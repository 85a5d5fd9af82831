"""Find a message, look at it, send it again."""

from markupsafe import Markup
from starlette.responses import Response

from tandemq.client.admin.queries import FAR_FUTURE_MS
from tandemq.client.admin.traces import MessageTrace, TraceStep
from tandemq.console.cluster.messages import FoundMessage, shown_body
from tandemq.console.operations import messages as operations
from tandemq.console.pages.topics import suggested_topics
from tandemq.console.services import NotFound
from tandemq.console.visit import Visit
from tandemq.console.web.render import segment
from tandemq.console.web.translation import translate
from tandemq.console.web.words import word_of
from tandemq.errors import ConfigError, InvalidMessage, LocalError, NoRoute
from tandemq.model.message import MessageQueue
from tandemq.model.topic import topic_name_error

BAR_WIDTH = 160


async def find(visit: Visit) -> Response:
    """Show the search form and the messages found."""
    query, found, why, status = visit.query, [], "", 200
    searched = query.has("search")
    if searched:
        try:
            found = await search(visit)
        except (ConfigError, LocalError, NoRoute) as error:
            why, status = str(error), 400
    names = ("topic", "key", "broker", "queue", "offset", "begin", "end")
    values = {name: query.text(name) for name in names}
    view = await visit.console.watch.view()
    return visit.page(
        "messages.html",
        status,
        by=query.text("by", "key"),
        searched=searched,
        found=found,
        why=why,
        topics=await suggested_topics(visit.console),
        brokers=[group.name for group in view.groups],
        **values,
    )


async def search(visit: Visit) -> list[FoundMessage]:
    """Return the messages that the fields of the address describe.

    Raises:
        ConfigError: a field is missing or invalid.
        TandemError: the brokers do not answer, or refuse.
    """
    query, finder = visit.query, visit.console.finder
    by, topic, key = query.text("by", "key"), query.text("topic"), query.text("key")
    if by == "id":
        view = await visit.console.watch.view()
        return await finder.by_id(key, view.addresses())
    if (fault := topic_name_error(topic)) is not None:
        raise ConfigError(fault)
    begin, end = query.time_ms("begin") or 0, query.time_ms("end") or FAR_FUTURE_MS
    if by == "time":
        return await finder.by_time(topic, begin, end)
    if by == "offset":
        queue = MessageQueue(topic, query.text("broker"), query.integer("queue", high=(1 << 31) - 1))
        return await finder.by_offset(queue, query.integer("offset"))
    if not key:
        raise ConfigError("give a key")
    return await finder.by_key(topic, key, unique=by == "unique", begin_ms=begin, end_ms=end)


async def _found(visit: Visit) -> FoundMessage:
    return await operations.message_at(visit.console, visit.queue(), int(visit.part("offset")))


async def show(visit: Visit) -> Response:
    """Show a message."""
    found = await _found(visit)
    message = found.message
    return visit.page(
        "message.html",
        stored=found,
        link=message_path(found),
        body=shown_body(message) if visit.sees_bodies else None,
        groups=await visit.console.tables.consumers_of(found.queue, message.queue_offset),
        sent=visit.query.text("sent")[:200],
    )


async def trace(visit: Visit) -> Response:
    """Show the trace that clients have reported of a message."""
    found = await _found(visit)
    try:
        traces = await operations.trace_of(visit.console, found)
    except NoRoute:  # no broker has the trace topic
        traces = None
    return visit.page("trace.html", stored=found, link=message_path(found), found=traces, bar=trace_bar)


def trace_bar(message_trace: MessageTrace, step: TraceStep) -> Markup:
    """Return a step as a bar of its message's time, as SVG; the start of a bar is when the step began."""
    begin = message_trace.steps[0].time_ms
    end = max(each.time_ms + (each.cost_ms or 0) for each in message_trace.steps)
    scale = BAR_WIDTH / max(1, end - begin)
    left = min(BAR_WIDTH - 2, (step.time_ms - begin) * scale)
    width = max(2.0, min(BAR_WIDTH - left, (step.cost_ms or 0) * scale))
    return Markup(
        '<svg class="bar {level}" aria-hidden="true" viewBox="0 0 {all} 12" width="{all}" height="12">'
        '<rect x="{left:.1f}" y="1" width="{width:.1f}" height="10"/></svg>'
    ).format(all=BAR_WIDTH, left=left, width=width, level={True: "ok", False: "bad", None: "warning"}[step.success])


def message_path(found: FoundMessage) -> str:
    """Return the address of a message's page."""
    message = found.message
    return f"/messages/{segment(message.topic)}/{segment(found.broker)}/{message.queue_id}/{message.queue_offset}"


async def body(visit: Visit) -> Response:
    """Return the body as a file."""
    if not visit.sees_bodies:
        raise NotFound("this console shows bodies to operators only")
    found = await _found(visit)
    name = f'attachment; filename="message-{found.message.queue_id}-{found.message.queue_offset}.bin"'
    return Response(found.message.body, headers={"content-disposition": name}, media_type="application/octet-stream")


async def resend(visit: Visit) -> Response:
    """Send a copy of a message."""
    found = await _found(visit)
    try:
        result = await operations.send_copy(visit.console, visit.actor, found)
    except InvalidMessage as error:
        reason = translate(visit.language, "This message cannot be sent again")
        raise LocalError(f"{reason}: {error}") from error
    status = translate(visit.language, word_of(result.status.value))
    place = f"{result.queue.broker_name}/{result.queue.queue_id}@{result.queue_offset}, {status}"
    return visit.to(f"{message_path(found)}?sent={segment(place)}")
