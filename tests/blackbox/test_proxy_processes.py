"""`tandemq proxy --processes`: processes that share a port, and the one that is started again."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from tandemq.proxy.protocol.health_pb2 import HealthCheckRequest, HealthCheckResponse
from tests.blackbox.programs import wait_until

pytestmark = pytest.mark.timeout(120)
PROCESSES = 2


def _children(parent: int) -> set[int]:
    return set(map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split()))


def _is_serving(port: int) -> bool:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        check: Any = channel.unary_unary(
            "/grpc.health.v1.Health/Check", HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString
        )
        return bool(check(HealthCheckRequest(), timeout=60).status == HealthCheckResponse.SERVING)


def _free_port() -> int:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _start(port: int) -> "subprocess.Popen[str]":
    """Start a proxy with several processes, whose standard output has a line once it is ready."""
    words = ["proxy", "-n", "127.0.0.1:1", "-p", str(port), "--processes", str(PROCESSES)]
    command = [sys.executable, "-m", "tandemq", *words, "--set", "bindAddress=127.0.0.1"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_killed_process_is_started_again_and_all_end_at_sigterm() -> None:
    port = _free_port()
    with _start(port) as group:
        try:
            assert group.stdout is not None and str(port) in group.stdout.readline()
            first = _children(group.pid)
            assert len(first) == PROCESSES
            assert _is_serving(port)
            os.kill(min(first), signal.SIGKILL)
            wait_until(lambda: len(_children(group.pid) - {min(first)}) == PROCESSES, "a new process")
            assert _is_serving(port)
            group.terminate()
            assert group.wait(60) == 0
        finally:
            group.kill()


def test_processes_end_when_the_one_that_watches_them_is_killed() -> None:
    """Otherwise they would go on to serve at the port, beside those of the next start."""
    port = _free_port()
    with _start(port) as group:
        assert group.stdout is not None and str(port) in group.stdout.readline()
        children = _children(group.pid)
        group.kill()
        group.wait()

    def is_closed() -> bool:
        with closing(socket.socket()) as client:
            return client.connect_ex(("127.0.0.1", port)) != 0

    try:
        wait_until(is_closed, "an end of all processes", seconds=60)
    finally:
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
