"""Single requests to a broker over a blocking socket: topics, the end of a queue."""

from __future__ import annotations

import socket

from tandemq.load.wire.frames import SendShape
from tandemq.load.wire.headers import request_frame
from tandemq.load.wire.responses import LoadError
from tandemq.load.wire.sockets import ask, connect, exchange

_UPDATE_AND_CREATE_TOPIC = 17
_GET_MAX_OFFSET = 30
_GET_TOPIC_STATS_INFO = 202
_QUEUES_BY_SENDING = 8
_CREATE_S = 30.0


def create_topic(sock: socket.socket, topic: str, queue_count: int) -> None:
    """Create a topic, or change its number of queues (UPDATE_AND_CREATE_TOPIC).

    Raises:
        LoadError: the broker refuses it.
    """
    response = exchange(sock, create_topic_frame(topic, queue_count))
    if response.code != 0:
        raise LoadError(f"topic {topic} was refused with code {response.code}: {response.remark}")


def create_topic_frame(topic: str, queue_count: int) -> bytes:
    """Return the request that creates a topic."""
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": queue_count,
        "writeQueueNums": queue_count,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
    }
    return request_frame(_UPDATE_AND_CREATE_TOPIC, 1, fields)


def create_topics(address: str, shape: SendShape) -> None:
    """Create the topics of a run that sends cannot create: a broker limits the queues of those."""
    if shape.topics == 1 and shape.queue_count <= _QUEUES_BY_SENDING:
        return
    with connect(address, _CREATE_S) as sock:
        for name in shape.topic_names():
            if not _has_queues(sock, name, shape.queue_count):
                create_topic(sock, name, shape.queue_count)


def _has_queues(sock: socket.socket, topic: str, queue_count: int) -> bool:
    response = ask(sock, _GET_TOPIC_STATS_INFO, {"topic": topic})
    return response.code == 0 and b'"queueId":%d' % (queue_count - 1) in response.body


def max_offset(sock: socket.socket, topic: str, queue_id: int) -> int:
    """Return the end of one queue (GET_MAX_OFFSET)."""
    response = ask(sock, _GET_MAX_OFFSET, {"topic": topic, "queueId": queue_id, "committed": "true"})
    value = response.field("offset")
    if response.code != 0 or value is None:
        raise LoadError(f"the end of queue {queue_id} was refused with code {response.code}: {response.remark}")
    return int(value)


__all__ = [
    "create_topic",
    "create_topic_frame",
    "create_topics",
    "max_offset",
]
