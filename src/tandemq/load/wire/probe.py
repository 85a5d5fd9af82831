"""Single requests to a broker over a blocking socket: whether it is up, how much it holds, where its log begins."""

from __future__ import annotations

import json
import random
import socket
import time

from tandemq.load.wire.frames import PullFrames, SendFrames, SendShape
from tandemq.load.wire.headers import request_frame
from tandemq.load.wire.records import log_offset, record_size
from tandemq.load.wire.responses import LoadError, ParsedResponse
from tandemq.load.wire.sockets import ask, connect, exchange, parse_address

_UPDATE_AND_CREATE_TOPIC = 17
_GET_BROKER_RUNTIME_INFO = 28
_GET_MAX_OFFSET = 30
_GET_TOPIC_STATS_INFO = 202
_TRY_EVERY_S = 0.005
_QUEUES_BY_SENDING = 8
_CREATE_S = 30.0


def send_one(sock: socket.socket, shape: SendShape) -> ParsedResponse:
    """Send one message (or one batch) and return the response."""
    wall_ms = time.time_ns() // 1_000_000
    frames = SendFrames(shape, identity=random.getrandbits(32), wall_ms=wall_ms, frames=1)
    return exchange(sock, bytes(frames.take(1, wall_ms)))


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


def wait_for_port(address: str, deadline_s: float = 60.0) -> float:
    """Wait until a server accepts connections there; return the seconds it took.

    Raises:
        LoadError: none did within `deadline_s`.
    """
    started = time.perf_counter()
    host_and_port = parse_address(address)
    while time.perf_counter() - started < deadline_s:
        try:
            socket.create_connection(host_and_port, 1.0).close()
        except OSError:
            time.sleep(_TRY_EVERY_S)
        else:
            return time.perf_counter() - started
    raise LoadError(f"no server listens on {address} after {deadline_s:.0f} s")


def first_acknowledgement(address: str, shape: SendShape, deadline_s: float = 60.0) -> float:
    """Send until one message is acknowledged with SUCCESS; return the seconds from the call to that response.

    Raises:
        LoadError: none was within `deadline_s`; the text names the last attempt's error.
    """
    started = time.perf_counter()
    last = "no attempt"
    while time.perf_counter() - started < deadline_s:
        try:
            with connect(address, 1.0) as sock:
                response = send_one(sock, shape)
        except LoadError as error:
            last = str(error)
        else:
            if response.code == 0:
                return time.perf_counter() - started
            last = f"code {response.code}: {response.remark}"
        time.sleep(_TRY_EVERY_S)
    raise LoadError(f"no acknowledgement from {address} within {deadline_s:.0f} s; last: {last}")


def runtime_info(sock: socket.socket) -> dict[str, str]:
    """Return the broker's runtime table (GET_BROKER_RUNTIME_INFO), for example `commitLogMaxOffset`."""
    response = ask(sock, _GET_BROKER_RUNTIME_INFO, {})
    if response.code != 0:
        raise LoadError(f"runtime info was refused with code {response.code}: {response.remark}")
    table = json.loads(response.body)["table"]
    return {str(name): str(value) for name, value in table.items()}


def log_end(sock: socket.socket) -> int:
    """Return the end of the broker's commit log."""
    return int(runtime_info(sock)["commitLogMaxOffset"])


def max_offset(sock: socket.socket, topic: str, queue_id: int) -> int:
    """Return the end of one queue (GET_MAX_OFFSET)."""
    response = ask(sock, _GET_MAX_OFFSET, {"topic": topic, "queueId": queue_id, "committed": "true"})
    value = response.field("offset")
    if response.code != 0 or value is None:
        raise LoadError(f"the end of queue {queue_id} was refused with code {response.code}: {response.remark}")
    return int(value)


def first_record_end(address: str, topic: str, queue_count: int) -> int:
    """Return the log offset right after the earliest message of a topic: a record boundary other than zero.

    A classic slave that reports zero gets the last file only; one that reports a boundary gets all that follows.
    """
    frames = PullFrames(topic, max_messages=1)
    ends: list[int] = []
    with connect(address) as sock:
        for queue_id in range(queue_count):
            response = exchange(sock, frames.frame(queue_id, 0, queue_id))
            if response.code == 0:
                ends.append(log_offset(response.body, 0) + record_size(response.body, 0))
    if not ends:
        raise LoadError(f"topic {topic} has no messages")
    return min(ends)


__all__ = [
    "create_topic",
    "create_topic_frame",
    "create_topics",
    "first_acknowledgement",
    "first_record_end",
    "log_end",
    "max_offset",
    "runtime_info",
    "send_one",
    "wait_for_port",
]
