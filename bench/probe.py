"""State of a broker, over a blocking socket: whether it is up and takes messages, its size, the start of its log."""

from __future__ import annotations

import json
import random
import socket
import time

from bench.records import log_offset, record_size
from tandemq.load import LoadError, SendShape
from tandemq.load.wire.frames import PullFrames, SendFrames
from tandemq.load.wire.responses import ParsedResponse
from tandemq.load.wire.sockets import ask, connect, exchange, parse_address

_GET_BROKER_RUNTIME_INFO = 28
_TRY_EVERY_S = 0.005


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


def send_one(sock: socket.socket, shape: SendShape) -> ParsedResponse:
    """Send one message (or one batch) and return the response."""
    wall_ms = time.time_ns() // 1_000_000
    frames = SendFrames(shape, identity=random.getrandbits(32), wall_ms=wall_ms, frames=1)
    return exchange(sock, bytes(frames.take(1, wall_ms)))


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
