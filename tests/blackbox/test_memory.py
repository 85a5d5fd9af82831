"""What strangers can make a real process hold: begun requests on many connections, and none of them ended."""

import contextlib
import json
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemq.model.codes import ResponseCode
from tests.blackbox.pair import Start
from tests.blackbox.programs import WAIT_S, Caller, memory_kib

STRANGERS = 40
BEGUN = ((1 << 24) - 4).to_bytes(4, "big") + bytes(15 << 20)
"""Most of a request of 16 MiB."""
BOUND_KIB = 64 << 10
SLACK_KIB = 80 << 10
"""What one turn takes in (64 MiB), and what else a busy process needs."""


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Its process and port."""
    command = [sys.executable, "-m", "tandemq", "namesrv", "--port", "0", "--json", "--while-stdin",
               "--set", f"kvConfigPath={tmp_path}", "--set", "bindAddress=127.0.0.1"]  # fmt: skip
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], WAIT_S)
        told = json.loads(process.stdout.readline()) if readable else {}
        yield process.pid, int(told["address"].rpartition(":")[2])
        process.kill()


def besiege(pid: int, port: int) -> tuple[int, int]:
    """Begin a request on each of many connections: how many of them were closed, and the most memory seen, in KiB."""
    closed = most = 0
    with contextlib.ExitStack() as strangers:
        socks = []
        for _ in range(STRANGERS):
            sock = strangers.enter_context(socket.create_connection(("127.0.0.1", port), WAIT_S))
            socks.append(sock)
            with contextlib.suppress(ConnectionError):
                sock.sendall(BEGUN)
            most = max(most, memory_kib(pid))
        ready = select.select(socks, [], [], 0)[0]
        for sock in ready:
            with contextlib.suppress(ConnectionError):
                assert sock.recv(1) == b""
            closed += 1
    return closed, most


def test_requests_begun_on_many_connections_cost_a_broker_bounded_memory(start: Start) -> None:
    broker = start("broker", unfinishedFramesMax=BOUND_KIB << 10)
    with Caller(broker.port) as other:
        assert other.send(b"before") == ResponseCode.SUCCESS
        before = broker.memory_kib()
        closed, most = besiege(broker.process.pid, broker.port)
        assert STRANGERS - BOUND_KIB // (15 << 10) <= closed < STRANGERS
        assert most - before < BOUND_KIB + SLACK_KIB
        assert other.send(b"after") == ResponseCode.SUCCESS
        assert other.read_all() == [b"before", b"after"]
    assert broker.log_text().count("unfinishedFramesMax") == 1, "once per address and minute"


def test_requests_begun_on_many_connections_cost_a_name_server_bounded_memory(name_server: tuple[int, int]) -> None:
    pid, port = name_server
    before = memory_kib(pid)
    closed, most = besiege(pid, port)
    assert STRANGERS - BOUND_KIB // (15 << 10) <= closed < STRANGERS
    assert most - before < BOUND_KIB + SLACK_KIB
    with Caller(port) as other:
        assert other.ask(105, {"topic": "Nothing"}).code == ResponseCode.TOPIC_NOT_EXIST
