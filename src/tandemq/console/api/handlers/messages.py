"""Messages: found by key, id, time or place; one with its body and its trace; sent again."""

from tandemq.console.api.handlers.topics import sent
from tandemq.console.api.operation import ApiCall
from tandemq.console.api.requests import IdQuery, KeyQuery, MessagePath, OffsetQuery, QueuePath, TimeQuery, TopicPath
from tandemq.console.api.responses import (
    MessageItem,
    MessageList,
    MessagePage,
    MessageState,
    SendOutcome,
    TraceItem,
    TraceState,
)
from tandemq.console.cluster.messages import FoundMessage
from tandemq.console.operations import messages
from tandemq.console.services import NotFound
from tandemq.model.message import MessageQueue


def _items(call: ApiCall, found: list[FoundMessage]) -> list[MessageItem]:
    return [
        MessageItem(
            topic=located.message.topic,
            broker=located.broker,
            queue=located.message.queue_id,
            offset=located.message.queue_offset,
            stored=located.message.store_ms,
            size=located.message.size,
            unique_key=located.message.unique_key,
            tag=located.message.tags if call.sees_bodies else None,
            keys=located.message.keys if call.sees_bodies else None,
        )
        for located in found
    ]


async def find_messages(call: ApiCall, query: KeyQuery) -> MessageList:
    """The messages of a topic with a key, or with a unique key."""
    found = await call.console.finder.by_key(
        query.topic, query.key, unique=query.unique, begin_ms=query.begin, end_ms=query.end
    )
    return MessageList(items=_items(call, found))


async def find_message(call: ApiCall, query: IdQuery) -> MessageList:
    """The message with an offset message id, whose address must be that of a broker of this cluster."""
    view = await call.console.watch.view()
    return MessageList(items=_items(call, await call.console.finder.by_id(query.id, view.addresses())))


async def find_stored(call: ApiCall, path: TopicPath, query: TimeQuery) -> MessageList:
    """The first messages of a topic that were stored within a time."""
    return MessageList(items=_items(call, await call.console.finder.by_time(path.topic, query.begin, query.end)))


async def list_messages(call: ApiCall, path: QueuePath, query: OffsetQuery) -> MessagePage:
    """The messages of a queue from an offset on."""
    queue = await _queue(call, path)
    found = (await call.console.finder.by_offset(queue, int(query.cursor or 0)))[: query.limit]
    following = found[-1].message.queue_offset + 1 if found else 0
    bounds = await call.console.admin.bounds(queue)
    return MessagePage(items=_items(call, found), next=str(following) if found and following < bounds.end else None)


async def _queue(call: ApiCall, path: QueuePath) -> MessageQueue:
    route = await call.console.admin.topic_route(path.topic)
    queue = MessageQueue(path.topic, path.broker, path.queue)
    if queue not in route.subscribe_queues():
        raise NotFound("the topic has no such queue")
    return queue


async def _found(call: ApiCall, path: MessagePath) -> FoundMessage:
    return await messages.message_at(call.console, MessageQueue(path.topic, path.broker, path.queue), path.offset)


async def get_message(call: ApiCall, path: MessagePath) -> MessageState:
    """A message with its body and properties."""
    found = await _found(call, path)
    message = found.message
    try:
        body, encoded = message.body.decode(), None
    except UnicodeDecodeError:
        body, encoded = None, message.body
    return MessageState(
        topic=message.topic,
        broker=found.broker,
        queue=message.queue_id,
        offset=message.queue_offset,
        log_offset=message.log_offset,
        size=message.size,
        stored=message.store_ms,
        store_host=message.store_host,
        born=message.born_ms,
        born_host=message.born_host,
        unique_key=message.unique_key,
        offset_message_id=message.offset_message_id,
        reconsume_times=message.reconsume_times,
        properties=message.properties if call.sees_bodies else None,
        body=body if call.sees_bodies else None,
        body_base64=encoded if call.sees_bodies else None,
        fault=message.fault,
        consumed=await call.console.tables.consumers_of(found.queue, message.queue_offset),
    )


async def get_trace(call: ApiCall, path: MessagePath) -> TraceState:
    """What producers and consumers reported about a message; needs the trace topic, and clients with tracing on."""
    found = await messages.trace_of(call.console, await _found(call, path))
    return TraceState(
        events=[
            TraceItem(
                event=step.event.value,
                time=step.time_ms,
                group=step.group,
                client=step.client,
                broker=step.broker,
                cost_ms=step.cost_ms,
                success=step.success,
                outcome=step.outcome,
                retry_times=step.retry_times,
            )
            for trace in found.traces
            for step in trace.steps
        ],
        is_cut=found.is_cut,
        unreadable=found.unreadable,
    )


async def resend_message(call: ApiCall, path: MessagePath) -> SendOutcome:
    """Send a copy of a message to its topic; every group of the topic receives it."""
    return sent(await messages.send_copy(call.console, call.actor, await _found(call, path)))
