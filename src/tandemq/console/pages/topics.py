"""Topics: list, one topic, create, change, delete, send a message to it."""

import json

from starlette.responses import Response

from tandemq.console.cluster.topics_and_groups import kind_of
from tandemq.console.visit import NotFound, Visit
from tandemq.console.web.render import segment
from tandemq.console.web.translation import Phrase
from tandemq.errors import ConfigError, InvalidMessage
from tandemq.model.message import Message
from tandemq.model.topic import topic_name_error

ROWS = 100
NEWEST = 20
QUEUES_MAX = 1_024
PERMISSIONS = (("6", "read and write"), ("4", "read"), ("2", "write"))


async def show_all(visit: Visit) -> Response:
    """List topics: by kind and text, in parts of `ROWS`."""
    wanted, kind = visit.query.text("q").lower(), visit.query.text("kind")
    rows = [
        row
        for row in await visit.console.tables.topics()
        if wanted in row.name.lower() and kind in ("", row.kind) and (kind or row.kind != "system")
    ]
    at = min(visit.query.integer("at", 0), max(0, len(rows) - 1))
    return visit.page(
        "topics.html", rows=rows[at : at + ROWS], q=visit.query.text("q"), kind=kind, at=at, total=len(rows), size=ROWS
    )


async def show(visit: Visit) -> Response:
    """Show a topic."""
    topic, console = visit.topic(), visit.console
    stats = await console.admin.topic_stats(topic)
    groups = {name: await console.tables.progress(name) for name in await console.admin.topic_groups(topic)}
    lags = {
        name: sum(one.lag for queue, one in (queues or {}).items() if queue.topic == topic)
        for name, queues in groups.items()
    }
    newest = await console.finder.newest(topic, NEWEST) if visit.sees_bodies else []
    return visit.page(
        "topic.html",
        topic=topic,
        kind=kind_of(topic),
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
        if (fault := topic_name_error(topic)) is not None:
            raise ConfigError(fault)
        if await visit.console.tables.topic(topic):
            raise ConfigError(f"topic {topic} exists already")
        await _store(visit, topic, "topic.create")
    except ConfigError as error:
        values = {name: form.text(name) for name in ("topic", "queues", "perm")}
        return visit.page("topic_new.html", 400, values=values, why=str(error))
    return visit.to(f"/topics/{segment(topic)}")


async def change(visit: Visit) -> Response:
    """Change queues and permission of a topic on all masters."""
    topic = visit.topic()
    if not await visit.console.tables.topic(topic):
        raise NotFound("there is no such topic")
    await _store(visit, topic, "topic.change")
    return visit.to(f"/topics/{segment(topic)}")


async def _store(visit: Visit, topic: str, action: str) -> None:
    form, console = visit.form, visit.console
    queues = form.integer("queues", 8, low=1, high=QUEUES_MAX)
    perm = form.integer("perm", 6)
    if str(perm) not in dict(PERMISSIONS):
        raise ConfigError("perm: choose one of the permissions")
    before = {name: [one.write_queue_nums, one.perm] for name, one in (await console.tables.topic(topic)).items()}
    after = json.dumps({"queues": queues, "perm": perm, "order": form.has("order")})
    text = json.dumps(before) if before else ""
    async with console.audited(visit.actor, action, topic, before=text, after=after):
        await console.admin.create_topic(topic, queues=queues, perm=perm, order=form.has("order"))
    console.tables.forget()


async def delete_form(visit: Visit) -> Response:
    """Show what a deletion would lose."""
    topic = visit.topic()
    stats = await visit.console.admin.topic_stats(topic)
    count = sum(one.max_offset - one.min_offset for one in stats.values())
    groups = await visit.console.admin.topic_groups(topic)
    facts = [
        Phrase("{count} messages are lost", {"count": count}),
        Phrase("Groups that read it: {groups}", {"groups": ", ".join(groups) or "–"}),
    ]
    return confirmation(visit, "Delete the topic {name}", topic, facts, f"/topics/{segment(topic)}/delete")


def confirmation(visit: Visit, title: str, name: str, facts: list[Phrase], action: str, status: int = 200) -> Response:
    """Show what an action would do, and ask to type the name."""
    return visit.page("confirm.html", status, title=title, name=name, facts=facts, action=action, clean=False)


async def delete(visit: Visit) -> Response:
    """Delete a topic."""
    topic, console = visit.topic(), visit.console
    visit.require_typed(topic)
    async with console.audited(visit.actor, "topic.delete", topic):
        await console.admin.delete_topic(topic)
    console.tables.forget()
    return visit.to("/topics")


async def send(visit: Visit) -> Response:
    """Send a test message."""
    topic, console, form = visit.topic(), visit.console, visit.form
    properties: dict[str, str] = {}
    for line in form.raw("properties").splitlines():
        name, equals, value = line.partition("=")
        if line.strip():
            if not equals:
                raise ConfigError("properties: one NAME=VALUE per line is expected")
            properties[name.strip()] = value.strip()
    try:
        message = Message(
            topic,
            form.raw("body").encode(),
            tags=form.text("tag"),
            keys=form.text("keys").split(),
            properties=properties,
            delay_level=form.integer("delay", 0, high=18),
        )
    except InvalidMessage as error:
        raise ConfigError(str(error)) from error
    async with console.audited(visit.actor, "message.send", topic, after=f"{len(message.body)} bytes"):
        result = await (await console.producer()).send(message)
    if message.is_delayed:
        return visit.to(f"/topics/{segment(topic)}")
    queue = result.queue
    return visit.to(f"/messages/{segment(topic)}/{segment(queue.broker_name)}/{queue.queue_id}/{result.queue_offset}")
