"""State of a broker or name server, over a blocking connection: whether it is up, its routes, the size of its log."""

from __future__ import annotations

import json
import random
import time

from bench.records import log_offset, record_size
from tandemq.client.connection import BlockingConnection
from tandemq.client.core.operations import request
from tandemq.errors import NetworkError, NotConnected
from tandemq.load import LoadError, SendShape
from tandemq.load.wire.frames import PullFrames, SendFrames
from tandemq.load.wire.probe import accepted
from tandemq.load.wire.sockets import connect
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command

_TRY_EVERY_S = 0.005


def has_route(name_server: BlockingConnection, topic: str) -> bool:
    """Return whether a name server has a route of a topic."""
    answer = name_server.request(request(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic))
    return answer.code == ResponseCode.SUCCESS


def wait_for_port(address: str, deadline_s: float = 60.0) -> float:
    """Wait until a server accepts connections there; return the seconds it took.

    Raises:
        LoadError: none did within `deadline_s`.
    """
    started = time.perf_counter()
    while time.perf_counter() - started < deadline_s:
        try:
            BlockingConnection(address, seconds=1.0).close()
        except NotConnected:
            time.sleep(_TRY_EVERY_S)
        else:
            return time.perf_counter() - started
    raise LoadError(f"no server listens on {address} after {deadline_s:.0f} s")


def send_one(broker: BlockingConnection, shape: SendShape) -> Command:
    """Send one message (or one batch) and return the response."""
    wall_ms = time.time_ns() // 1_000_000
    frames = SendFrames(shape, identity=random.getrandbits(32), wall_ms=wall_ms, frames=1)
    broker.write(frames.take(1, wall_ms))
    return broker.receive()


def first_acknowledgement(address: str, shape: SendShape, deadline_s: float = 60.0) -> float:
    """Send until one message is acknowledged with SUCCESS; return the seconds from the call to that response.

    Raises:
        LoadError: none was within `deadline_s`; the text names the last attempt's error.
    """
    started = time.perf_counter()
    last = "no attempt"
    while time.perf_counter() - started < deadline_s:
        try:
            with connect(address, 1.0) as broker:
                response = send_one(broker, shape)
        except NetworkError as error:
            last = str(error)
        else:
            if response.code == 0:
                return time.perf_counter() - started
            last = f"code {response.code}: {response.remark}"
        time.sleep(_TRY_EVERY_S)
    raise LoadError(f"no acknowledgement from {address} within {deadline_s:.0f} s; last: {last}")


def runtime_info(broker: BlockingConnection) -> dict[str, str]:
    """Return the broker's runtime table (GET_BROKER_RUNTIME_INFO), for example `commitLogMaxOffset`."""
    response = accepted(broker, Command(RequestCode.GET_BROKER_RUNTIME_INFO), "runtime info")
    return {str(name): str(value) for name, value in json.loads(response.body)["table"].items()}


def log_end(broker: BlockingConnection) -> int:
    """Return the end of the broker's commit log."""
    return int(runtime_info(broker)["commitLogMaxOffset"])


def first_record_end(address: str, topic: str, queue_count: int) -> int:
    """Return the log offset right after the earliest message of a topic: a record boundary other than zero.

    A classic slave that reports zero gets the last file only; one that reports a boundary gets all that follows.
    """
    frames = PullFrames(topic, max_messages=1)
    ends: list[int] = []
    with connect(address) as broker:
        for queue_id in range(queue_count):
            broker.write(frames.frame(queue_id, 0, queue_id))
            response = broker.receive()
            if response.code == 0:
                ends.append(log_offset(response.body, 0) + record_size(response.body, 0))
    if not ends:
        raise LoadError(f"topic {topic} has no messages")
    return min(ends)
