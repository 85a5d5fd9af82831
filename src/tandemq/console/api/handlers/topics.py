"""Topics: list, one topic, create, change, delete, send a message."""

from base64 import b64decode

from tandemq.console.api.handlers.parts import part_of
from tandemq.console.api.operation import ApiCall
from tandemq.console.api.requests import ConfirmQuery, MessageOrder, NewTopic, TopicPath, TopicQuery, TopicSettings
from tandemq.console.api.responses import QueueState, SendOutcome, TopicItem, TopicPage, TopicState
from tandemq.console.operations import topics
from tandemq.errors import ConfigError
from tandemq.model.message import Message, SendResult


async def list_topics(call: ApiCall, query: TopicQuery) -> TopicPage:
    """The topics by name; up to 15 seconds old."""
    wanted, kind = query.q.lower(), query.kind
    rows = [
        row
        for row in await call.console.tables.topics()
        if wanted in row.name.lower() and kind in ("", row.kind) and (kind or row.kind != "system")
    ]
    found, following = part_of(rows, lambda row: row.name, query.cursor, query.limit)
    items = [
        TopicItem(
            name=row.name,
            kind=row.kind,
            brokers=list(row.brokers),
            read_queues=row.read_queues,
            write_queues=row.write_queues,
            perm=row.perm,
            order=row.order,
        )
        for row in found
    ]
    return TopicPage(items=items, next=following)


async def get_topic(call: ApiCall, path: TopicPath) -> TopicState:
    """A topic with its queues, and the lag of the groups that read it."""
    topic, console = path.topic, call.console
    stats = await console.admin.topic_stats(topic)
    groups = await console.tables.progress_of(await console.admin.topic_groups(topic))
    return TopicState(
        name=topic,
        kind=await console.tables.kind(topic),
        brokers=sorted({queue.broker_name for queue in stats}),
        queues=[
            QueueState(
                broker=queue.broker_name,
                queue=queue.queue_id,
                first=bounds.min_offset,
                end=bounds.max_offset,
                last_stored=max(0, bounds.last_ms),
            )
            for queue, bounds in sorted(stats.items())
        ],
        lags={
            name: sum(progress.lag for queue, progress in (queues or {}).items() if queue.topic == topic)
            for name, queues in groups.items()
        },
    )


async def create_topic(call: ApiCall, body: NewTopic) -> TopicSettings:
    """Create a topic on all masters."""
    await topics.create_topic(call.console, call.actor, body.name, queues=body.queues, perm=body.perm, order=body.order)
    return TopicSettings(queues=body.queues, perm=body.perm, order=body.order)


async def change_topic(call: ApiCall, path: TopicPath, body: TopicSettings) -> TopicSettings:
    """Change queues and permission of a topic on all masters."""
    await topics.change_topic(
        call.console, call.actor, path.topic, queues=body.queues, perm=body.perm, order=body.order
    )
    return body


async def delete_topic(call: ApiCall, path: TopicPath, query: ConfirmQuery) -> None:
    """Delete a topic and its messages."""
    call.require(query.confirm, path.topic)
    await topics.delete_topic(call.console, call.actor, path.topic)


async def send_message(call: ApiCall, path: TopicPath, body: MessageOrder) -> SendOutcome:
    """Send a message."""
    if body.body and body.body_base64 is not None:
        raise ConfigError("give body or bodyBase64, not both")
    message = Message(
        path.topic,
        body.body.encode() if body.body_base64 is None else b64decode(body.body_base64),
        tags=body.tag,
        keys=body.keys,
        properties=dict(body.properties),
        delay_level=body.delay_level,
    )
    return sent(await topics.send_message(call.console, call.actor, message))


def sent(result: SendResult) -> SendOutcome:
    """Return the outcome of a send."""
    return SendOutcome(
        topic=result.queue.topic,
        broker=result.queue.broker_name,
        queue=result.queue.queue_id,
        offset=result.queue_offset,
        status=result.status.value,
        unique_key=result.unique_key,
        offset_message_id=result.offset_message_id,
    )
