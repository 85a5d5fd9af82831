"""Many idle connections, each after one small request: `python -m bench.idle_load ADDRESS`, a process of its own."""

from __future__ import annotations

import argparse
import contextlib
import select
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.loads import say_open
from tandemq.client.core.operations import request
from tandemq.load.process import add_options, run_parsed
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


@dataclass(frozen=True, slots=True)
class IdleResult:
    """Connections that were opened and kept open."""

    connections: int
    connect_seconds: float
    alive_at_end: int


def idle(options: IdleOptions, when_open: Callable[[], None]) -> IdleResult:
    """Open the connections, call `when_open`, keep them open for the given time, and return how many are still alive.

    Raises:
        LoadError: this process may not open that many.
        NetworkError: a connection is refused, or a request is not answered.
    """
    allowed = raise_limit(options.connections + _FILES_BESIDE)
    if allowed < options.connections + _FILES_BESIDE:
        raise LoadError(f"the limit of open files is {allowed}; raise it (ulimit -n) above {options.connections}")
    started = time.perf_counter()
    with contextlib.ExitStack() as stack:
        sockets: list[socket.socket] = []
        for _ in range(options.connections):
            server = stack.enter_context(connect(options.address, 30.0))
            if options.topic:
                server.request(request(RequestCode.GET_MAX_OFFSET, topic=options.topic, queueId=0, committed=True))
            sockets.append(server.socket)
        connect_seconds = time.perf_counter() - started
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.idle_load", description=__doc__)
    add_options(parser, connections=10_000, seconds=5.0, topic="")
    parser.set_defaults(run=_run)
    return parser


def _run(args: argparse.Namespace, _: object) -> IdleResult:
    return idle(IdleOptions(args.address, args.connections, args.seconds, args.topic), say_open)


if __name__ == "__main__":
    sys.exit(run_parsed(_parser().parse_args()))
