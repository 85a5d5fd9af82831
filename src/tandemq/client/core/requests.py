"""Requests about queues and consumer offsets, pulls of tools, and the JSON form of a queue.

Source: docs/reference/requests.md, "offsets", "PULL_MESSAGE"; RocketMQ MessageQueue, QueryConsumerOffsetRequestHeader.
"""

from typing import Any

from tandemq.client.core.operations import request
from tandemq.codec.remoting.bodies import integer
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue

TOOLS_GROUP = "TOOLS_CONSUMER"
"""Group of pulls that belong to no consumer."""
_SUSPEND, _SUBSCRIPTION = 2, 4
"""Bits of a pull's sysFlag: the broker may hold it, its header has an expression."""


def queue_to_json(queue: MessageQueue) -> dict[str, Any]:
    """Return a queue as the JSON object of request bodies."""
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def queue_from_json(item: dict[str, Any]) -> MessageQueue:
    """Return the queue that a JSON object describes.

    Raises:
        KeyError, ProtocolError: a field is missing or is not of its type.
    """
    return MessageQueue(str(item["topic"]), str(item["brokerName"]), integer(item.get("queueId"), "queueId"))


def query_offset_request(group: str, queue: MessageQueue) -> Command:
    """Return the request for a group's committed offset of a queue.

    A broker that may not serve refuses it with NO_PERMISSION, so that it also serves as the availability check.
    """
    return request(
        RequestCode.QUERY_CONSUMER_OFFSET,
        consumerGroup=group,
        topic=queue.topic,
        queueId=queue.queue_id,
        bname=queue.broker_name,
    )


def update_offset_request(group: str, queue: MessageQueue, offset: int) -> Command:
    """Return the request that commits a group's offset of a queue."""
    return request(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        consumerGroup=group,
        topic=queue.topic,
        queueId=queue.queue_id,
        commitOffset=offset,
        bname=queue.broker_name,
    )


def pull_request(
    queue: MessageQueue,
    offset: int,
    count: int,
    *,
    group: str = TOOLS_GROUP,
    expression: str = "*",
    kind: str = "TAG",
    code: RequestCode = RequestCode.PULL_MESSAGE,
    held_ms: int = 0,
    bulk: bool = False,
) -> Command:
    """Return a pull that belongs to no subscription of its group and commits nothing.

    Args:
        group: consumer group that it names.
        expression, kind: which messages.
        code: TANDEM_REPLICA_PULL for members that serve no consumers.
        held_ms: how long the broker may hold it if there is no message; 0: it is answered at once.
        bulk: whether a broker of TandemQ may return more messages than its consumers get at once; others ignore it.
    """
    return request(
        code,
        consumerGroup=group,
        topic=queue.topic,
        queueId=queue.queue_id,
        queueOffset=offset,
        maxMsgNums=count,
        sysFlag=_SUBSCRIPTION | (_SUSPEND if held_ms else 0),
        commitOffset=0,
        suspendTimeoutMillis=held_ms,
        subscription=expression,
        subVersion=0,
        expressionType=kind,
        bname=queue.broker_name,
        bulk="true" if bulk else None,
    )
