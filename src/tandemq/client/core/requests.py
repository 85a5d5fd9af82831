"""Requests about queues and consumer offsets, and the JSON form of a queue.

Source: docs/reference/requests.md, "offsets"; RocketMQ MessageQueue, QueryConsumerOffsetRequestHeader.
"""

from typing import Any

from tandemq.client.core.operations import request
from tandemq.codec.remoting.bodies import integer
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue


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
