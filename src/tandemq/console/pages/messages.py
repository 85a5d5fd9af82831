"""Find a message, look at it, send it again."""

from starlette.responses import Response

from tandemq.client.admin.queries import FAR_FUTURE_MS
from tandemq.console.cluster.messages import FoundMessage, shown_body
from tandemq.console.operations import messages as operations
from tandemq.console.services import NotFound
from tandemq.console.visit import Visit
from tandemq.console.web.render import segment
from tandemq.console.web.translation import translate
from tandemq.errors import ConfigError, InvalidMessage, LocalError, NoRoute, TandemError
from tandemq.model.message import MessageQueue
from tandemq.model.topic import TRACE_TOPIC, topic_name_error

TRACES_MAX = 20


async def find(visit: Visit) -> Response:
    """Show the form, and what it finds."""
    query, found, why, status = visit.query, [], "", 200
    searched = query.has("search")
    if searched:
        try:
            found = await search(visit)
        except (ConfigError, LocalError, NoRoute) as error:
            why, status = str(error), 400
    names = ("topic", "key", "broker", "queue", "offset", "begin", "end")
    values = {name: query.text(name) for name in names}
    return visit.page(
        "messages.html", status, by=query.text("by", "key"), searched=searched, found=found, why=why, **values
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
        one=found,
        link=message_path(found),
        body=shown_body(message) if visit.sees_bodies else None,
        groups=await visit.console.tables.consumers_of(found.queue, message.queue_offset),
        traces=await _traces(visit, message.unique_key) if visit.sees_bodies else [],
        sent=visit.query.text("sent")[:200],
    )


async def _traces(visit: Visit, unique_key: str) -> list[list[object]]:
    """Return the records of the trace topic about a message, if there is such a topic."""
    if not unique_key or not await visit.console.tables.topic(TRACE_TOPIC):
        return []
    try:
        found = await visit.console.admin.messages_by_key(TRACE_TOPIC, unique_key, count_max=TRACES_MAX)
    except TandemError:
        return []
    return [[one.store_ms, shown_body(one).text[:1_000]] for one in found]


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
    place = f"{result.queue.broker_name}/{result.queue.queue_id}@{result.queue_offset}, {result.status.value}"
    return visit.to(f"{message_path(found)}?sent={segment(place)}")
