"""Many idle connections, each after one small request, to measure what a connection costs a server."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from tandemq.client.core.operations import request
from tandemq.load.results.report import IdleResult, OnProgress, Ticker
from tandemq.load.wire.responses import LoadError
from tandemq.load.wire.sockets import connect
from tandemq.model.codes import RequestCode
from tandemq.real.descriptors import raise_limit

_FILES_BESIDE = 64


@dataclass(frozen=True, slots=True)
class IdleOptions:
    """Options of an idle run."""

    address: str
    connections: int = 10_000
    seconds: float = 5.0  # How long they stay open once all are open.
    topic: str = ""  # If set, each connection asks once for the end of queue 0 of this topic.


def idle(
    options: IdleOptions, on_progress: OnProgress | None = None, when_open: Callable[[], None] | None = None
) -> IdleResult:
    """Open the connections, call `when_open`, keep them open for the given time, and return how many are still alive.

    Raises:
        LoadError: this process may not open that many.
        NetworkError: a connection is refused, or a request is not answered.
    """
    allowed = raise_limit(options.connections + _FILES_BESIDE)
    if allowed < options.connections + _FILES_BESIDE:
        raise LoadError(f"the limit of open files is {allowed}; raise it (ulimit -n) above {options.connections}")
    ticker = Ticker(on_progress)
    started = time.perf_counter()
    with contextlib.ExitStack() as stack:
        sockets: list[socket.socket] = []
        for _ in range(options.connections):
            server = stack.enter_context(connect(options.address, 30.0))
            if options.topic:
                server.request(request(RequestCode.GET_MAX_OFFSET, topic=options.topic, queueId=0, committed=True))
            sockets.append(server.socket)
            now = time.perf_counter()
            if ticker.due(now):
                ticker.report("connect", len(sockets), now)
        connect_seconds = time.perf_counter() - started
        if when_open is not None:
            when_open()
        time.sleep(options.seconds)
        return IdleResult(len(sockets), round(connect_seconds, 2), sum(map(_alive, sockets)))


def _alive(sock: socket.socket) -> bool:
    """Return whether the server has kept the connection: nothing to read, or at least no end of the stream."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    if not poll.poll(0):
        return True
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except OSError:
        return False
