"""Single requests to a broker over a blocking connection: topics, the end of a queue."""

from __future__ import annotations

from tandemq.client.connection import BlockingConnection
from tandemq.client.core.operations import request
from tandemq.load.wire.frames import SendShape
from tandemq.load.wire.responses import LoadError
from tandemq.load.wire.sockets import connect
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command

_QUEUES_BY_SENDING = 8
_CREATE_S = 30.0


def create_topic(broker: BlockingConnection, topic: str, queue_count: int) -> None:
    """Create a topic, or change its number of queues (UPDATE_AND_CREATE_TOPIC).

    Raises:
        LoadError: the broker refuses it.
    """
    accepted(broker, create_topic_request(topic, queue_count), f"topic {topic}")


def create_topic_request(topic: str, queue_count: int) -> Command:
    """Return the request that creates a topic."""
    return request(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        topic=topic,
        defaultTopic="TBW102",
        readQueueNums=queue_count,
        writeQueueNums=queue_count,
        perm=6,
        topicFilterType="SINGLE_TAG",
        topicSysFlag=0,
        order=False,
    )


def create_topics(address: str, shape: SendShape) -> None:
    """Create the topics of a run, unless it has one topic with so few queues that the first send creates it."""
    if shape.topics == 1 and shape.queue_count <= _QUEUES_BY_SENDING:
        return
    with connect(address, _CREATE_S) as broker:
        for name in shape.topic_names():
            if not _has_queues(broker, name, shape.queue_count):
                create_topic(broker, name, shape.queue_count)


def _has_queues(broker: BlockingConnection, topic: str, queue_count: int) -> bool:
    response = broker.request(request(RequestCode.GET_TOPIC_STATS_INFO, topic=topic))
    return response.code == ResponseCode.SUCCESS and b'"queueId":%d' % (queue_count - 1) in response.body


def accepted(broker: BlockingConnection, command: Command, what: str) -> Command:
    """Send a request and return the response.

    Raises:
        LoadError: the broker refuses it.
    """
    response = broker.request(command)
    if response.code != ResponseCode.SUCCESS:
        raise LoadError(f"{what} was refused with code {response.code}: {response.remark}")
    return response


def max_offset(broker: BlockingConnection, topic: str, queue_id: int) -> int:
    """Return the end of one queue (GET_MAX_OFFSET)."""
    command = request(RequestCode.GET_MAX_OFFSET, topic=topic, queueId=queue_id, committed=True)
    return int(accepted(broker, command, f"the end of queue {queue_id}").fields["offset"])
