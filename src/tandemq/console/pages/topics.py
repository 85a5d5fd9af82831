"""Topics: list, one topic, create, change, delete, send a message to it."""

from collections.abc import Iterable
from typing import TypedDict

from starlette.responses import Response

from tandemq.console.cluster.topics_and_groups import NORMAL
from tandemq.console.operations import topics as operations
from tandemq.console.services import Console
from tandemq.console.visit import Visit
from tandemq.console.web.render import segment
from tandemq.console.web.translation import Phrase
from tandemq.errors import ConfigError, InvalidMessage, TandemError
from tandemq.model.message import Message

ROWS = 100
NEWEST = 20
SUGGESTED_BYTES_MAX = 30_000
OPTION_BYTES = 40
"""Maximum size of the names that a form suggests, and that of the markup of each."""


class TopicFormFields(TypedDict):
    """Fields of the form."""

    queues: int
    perm: int
    order: bool


async def show_all(visit: Visit) -> Response:
    """List topics by text, in parts of `ROWS`: those of users, or all."""
    wanted, shows_all = visit.query.text("q").lower(), visit.query.has("all")
    found = [row for row in await visit.console.tables.topics() if wanted in row.name.lower()]
    rows = [row for row in found if shows_all or row.kind == NORMAL]
    position = min(visit.query.integer("at", 0), max(0, len(rows) - 1))
    return visit.page(
        "topics.html",
        rows=rows[position : position + ROWS],
        q=visit.query.text("q"),
        shows_all=shows_all,
        hidden=len(found) - len(rows),
        at=position,
        total=len(rows),
        size=ROWS,
    )


async def suggested_topics(console: Console) -> list[str]:
    """Return names of users' topics for a form; as many as a page may have, none while no broker answers."""
    try:
        return suggestible(row.name for row in await console.tables.topics() if row.kind == NORMAL)
    except TandemError:
        return []


def suggestible(names: Iterable[str]) -> list[str]:
    """Return the first names, as many as a page may have."""
    found: list[str] = []
    left = SUGGESTED_BYTES_MAX
    for name in names:
        left -= len(name) + OPTION_BYTES
        if left < 0:
            break
        found.append(name)
    return found


async def show(visit: Visit) -> Response:
    """Show a topic."""
    topic, console = visit.topic(), visit.console
    stats = await console.admin.topic_stats(topic)
    groups = await console.tables.progress_of(await console.admin.topic_groups(topic))
    lags = {
        name: sum(progress.lag for queue, progress in (queues or {}).items() if queue.topic == topic)
        for name, queues in groups.items()
    }
    if not groups:
        console.tables.follow(topic)
    newest = await console.finder.newest(topic, NEWEST) if visit.sees_bodies else []
    return visit.page(
        "topic.html",
        topic=topic,
        kind=await console.tables.kind(topic),
        points=console.tables.history.of_topic(topic),
        stats=stats,
        configs=await console.tables.topic(topic),
        lags=lags,
        found=newest,
    )


async def new_form(visit: Visit) -> Response:
    """Show the form for a new topic."""
    return visit.page("topic_new.html", values={"topic": "", "queues": "8", "perm": "6"}, why="")


async def create(visit: Visit) -> Response:
    """Create a topic on all masters."""
    form = visit.form
    topic = form.text("topic")
    try:
        await operations.create_topic(visit.console, visit.actor, topic, **_settings(visit))
    except ConfigError as error:
        values = {name: form.text(name) for name in ("topic", "queues", "perm")}
        return visit.page("topic_new.html", 400, values=values, why=str(error))
    return visit.to(f"/topics/{segment(topic)}")


async def change(visit: Visit) -> Response:
    """Change queues and permission of a topic on all masters."""
    topic = visit.topic()
    await operations.change_topic(visit.console, visit.actor, topic, **_settings(visit))
    return visit.to(f"/topics/{segment(topic)}")


def _settings(visit: Visit) -> TopicFormFields:
    form = visit.form
    queues = form.integer("queues", 8, low=1, high=operations.QUEUES_MAX)
    perm = form.integer("perm", 6)
    if perm not in operations.PERMISSIONS:
        raise ConfigError("perm: choose one of the permissions")
    return {"queues": queues, "perm": perm, "order": form.has("order")}


async def delete_form(visit: Visit) -> Response:
    """Show the loss that a deletion would cause."""
    topic = visit.topic()
    stats = await visit.console.admin.topic_stats(topic)
    count = sum(bounds.max_offset - bounds.min_offset for bounds in stats.values())
    groups = await visit.console.admin.topic_groups(topic)
    facts = [
        Phrase("{count} messages are lost", {"count": count}),
        Phrase("Groups that read it: {groups}", {"groups": ", ".join(groups) or "–"}),
    ]
    return confirmation(visit, "Delete the topic {name}", topic, facts, f"/topics/{segment(topic)}/delete")


def confirmation(visit: Visit, title: str, name: str, facts: list[Phrase], action: str, status: int = 200) -> Response:
    """Show the effect of an action, and ask to type the name."""
    return visit.page("confirm.html", status, title=title, name=name, facts=facts, action=action, clean=False)


async def delete(visit: Visit) -> Response:
    """Delete a topic."""
    topic = visit.topic()
    visit.require_typed(topic)
    await operations.delete_topic(visit.console, visit.actor, topic)
    return visit.to("/topics")


async def send(visit: Visit) -> Response:
    """Send a test message."""
    topic, form = visit.topic(), visit.form
    properties: dict[str, str] = {}
    for line in form.lines("properties").split("\n"):
        name, equals, value = line.partition("=")
        if line.strip():
            if not equals:
                raise ConfigError("properties: one NAME=VALUE per line is expected")
            properties[name.strip()] = value.strip()
    try:
        message = Message(
            topic,
            form.lines("body").encode(),
            tags=form.text("tag"),
            keys=form.text("keys").split(),
            properties=properties,
            delay_level=form.integer("delay", 0, high=18),
        )
    except InvalidMessage as error:
        raise ConfigError(str(error)) from error
    result = await operations.send_message(visit.console, visit.actor, message)
    if message.is_delayed:
        return visit.to(f"/topics/{segment(topic)}")
    queue = result.queue
    return visit.to(f"/messages/{segment(topic)}/{segment(queue.broker_name)}/{queue.queue_id}/{result.queue_offset}")
