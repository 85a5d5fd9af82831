"""Messages: one at its place, its trace, and a copy sent again."""

from tandemq.client.admin.traces import FoundTraces
from tandemq.console.cluster.messages import FoundMessage, copy_of
from tandemq.console.services import Console, NotFound
from tandemq.groupdb.audit import Actor
from tandemq.model.message import MessageQueue, SendResult


async def message_at(console: Console, queue: MessageQueue, offset: int) -> FoundMessage:
    """Return the message at an offset of a queue.

    Raises:
        NotFound: the topic has no such queue, or the queue no such message.
        NoRoute: there is no such topic.
    """
    route = await console.admin.topic_route(queue.topic)
    if queue.broker_name not in route.brokers or offset >= 1 << 63 or queue.queue_id >= 1 << 31:
        raise NotFound("the topic has no such queue")
    found = await console.finder.at(queue, offset)
    if found is None:
        raise NotFound(f"there is no message at offset {offset}: it was deleted, or does not exist yet")
    return found


async def trace_of(console: Console, found: FoundMessage) -> FoundTraces:
    """Return the trace that clients have reported of a message.

    Raises:
        NoRoute: the cluster has no trace topic.
    """
    key = found.message.unique_key or found.message.offset_message_id
    return await console.admin.message_traces(key)


async def send_copy(console: Console, by: Actor, found: FoundMessage) -> SendResult:
    """Send a copy of a message to its topic, with an entry in the audit log.

    Raises:
        InvalidMessage: no broker would accept the copy.
        LocalError: the message cannot be sent again.
        TandemError: the send failed.
    """
    message = found.message
    place = f"{message.topic}/{found.broker}/{message.queue_id}@{message.queue_offset}"
    copy = copy_of(message)
    async with console.audited(by, "message.resend", place):
        return await (await console.producer()).send(copy)
