"""Memory of a process under unauthenticated peers, which begin many requests or take no responses."""

import contextlib
import json
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemq.codec.ha import SlaveHello, encode_hello
from tandemq.codec.remoting.frame import encode_command
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tests.blackbox.pair import Start
from tests.blackbox.programs import WAIT_S, Caller, memory_kib, wait_until
from tests.request_fields import pull_fields

STRANGERS = 40
BEGUN = ((1 << 24) - 4).to_bytes(4, "big") + bytes(15 << 20)
"""Most of a request of 16 MiB."""
BOUND_KIB = 64 << 10
SLACK_KIB = 80 << 10
"""What one turn takes in (64 MiB), and what else a busy process needs."""


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Its process and port."""
    command = [
        sys.executable,
        "-m",
        "tandemq",
        "namesrv",
        "--port",
        "0",
        "--json",
        "--while-stdin",
        "--set",
        f"kvConfigPath={tmp_path}",
        "--set",
        "bindAddress=127.0.0.1",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], WAIT_S)
        told = json.loads(process.stdout.readline()) if readable else {}
        yield process.pid, int(told["address"].rpartition(":")[2])
        process.kill()


def besiege(pid: int, port: int) -> tuple[int, int]:
    """Begin a request on each of many connections: how many of them were closed, and the most memory seen, in KiB."""
    closed = most = 0
    with contextlib.ExitStack() as peers:
        socks = []
        for _ in range(STRANGERS):
            sock = peers.enter_context(socket.create_connection(("127.0.0.1", port), WAIT_S))
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


PULLS = 200
"""Of each connection: 256 KiB each, more than a broker has under way on one."""


def test_answers_that_many_connections_do_not_take_cost_a_broker_bounded_memory(start: Start) -> None:
    broker = start("broker", untakenAnswersMax=BOUND_KIB << 10, mappedFileSizeCommitLog=64 << 20)
    pid = broker.process.pid
    with Caller(broker.port) as other, contextlib.ExitStack() as peers:
        for number in range(20):
            assert other.send(bytes([number]) * 60_000) == ResponseCode.SUCCESS
        before, most, socks = memory_kib(pid), 0, []
        for _ in range(STRANGERS):
            sock = peers.enter_context(_small_window(broker.port))
            sock.sendall(b"".join(_pull(opaque) for opaque in range(PULLS)))
            socks.append(sock)
            assert other.read_all()[-1] == bytes([19]) * 60_000
            most = max(most, memory_kib(pid))
        wait_until(lambda: "untakenAnswersMax" in broker.log_text(), "a connection that takes nothing is closed")
        assert 0 < len(_closed(socks)) < STRANGERS
        assert most - before < BOUND_KIB + SLACK_KIB
        assert other.send(b"after") == ResponseCode.SUCCESS
    assert broker.log_text().count("untakenAnswersMax") == 1, "once per address and minute"


def test_reader_that_is_slow_is_not_closed_for_those_that_do_not_read(start: Start) -> None:
    broker = start("broker", untakenAnswersMax=BOUND_KIB << 10, mappedFileSizeCommitLog=64 << 20)
    with Caller(broker.port) as other, contextlib.ExitStack() as peers:
        for number in range(20):
            assert other.send(bytes([number]) * 60_000) == ResponseCode.SUCCESS
        slow = peers.enter_context(socket.create_connection(("127.0.0.1", broker.port), WAIT_S))
        slow.sendall(b"".join(_pull(opaque) for opaque in range(4_000)))
        socks = []
        for _ in range(STRANGERS):
            sock = peers.enter_context(_small_window(broker.port))
            sock.sendall(b"".join(_pull(opaque) for opaque in range(PULLS)))
            socks.append(sock)
            for _ in range(50):
                assert slow.recv(1 << 16), "it is closed"
        wait_until(lambda: "untakenAnswersMax" in broker.log_text(), "a connection that takes nothing is closed")
        assert len(_closed(socks)) > 0
        assert slow.recv(1 << 16), "it is closed"


def test_log_that_many_slaves_do_not_take_costs_a_master_bounded_memory(start: Start) -> None:
    """4 MiB of it are bounded for each; together they are bounded, too."""
    master = start(
        "master", untakenAnswersMax=BOUND_KIB << 10, mappedFileSizeCommitLog=64 << 20, haHousekeepingInterval=60_000
    )
    pid = master.process.pid
    with Caller(master.port) as other, contextlib.ExitStack() as peers:
        opaques = [other.begin_send(bytes(60_000)) for _ in range(800)]
        assert {other.receive().code for _ in opaques} == {ResponseCode.SUCCESS}
        before, most, socks = memory_kib(pid), 0, []
        for number in range(STRANGERS):
            sock = peers.enter_context(_small_window(master.ha_port))
            hello = SlaveHello("DefaultCluster", "broker-a", number + 1, number, 0, 0, 64 << 20)
            sock.sendall(encode_hello(hello))
            socks.append(sock)
            assert other.send(b"served meanwhile") == ResponseCode.SUCCESS
            most = max(most, memory_kib(pid))
        wait_until(lambda: "untakenAnswersMax" in master.log_text(), "a slave that takes nothing is closed")
        assert 0 < len(_closed(socks)) < STRANGERS
        assert most - before < BOUND_KIB + SLACK_KIB
        assert other.send(b"after") == ResponseCode.SUCCESS


def test_tables_asked_for_at_once_on_many_connections_cost_a_broker_bounded_memory(start: Start) -> None:
    broker = start("broker")
    pid = broker.process.pid
    with Caller(broker.port) as other, contextlib.ExitStack() as peers:
        opaques = [other.begin_send(b"", topic=f"Topic{number}-{'x' * 80}") for number in range(1_000)]
        assert {other.receive().code for _ in opaques} == {ResponseCode.SUCCESS}
        before, most = memory_kib(pid), 0
        for _ in range(4):
            sock = peers.enter_context(_small_window(broker.port))
            sock.sendall(encode_command(Command(RequestCode.GET_ALL_TOPIC_CONFIG, 1)) * 2_500)
            assert other.send(b"served meanwhile") == ResponseCode.SUCCESS
            most = max(most, memory_kib(pid))
        assert most - before < SLACK_KIB, "one connection alone asked for 700 MiB"
    with Caller(broker.port) as patient:
        opaques = [patient.begin_request(RequestCode.GET_ALL_TOPIC_CONFIG) for _ in range(300)]
        codes = {patient.receive().code for _ in opaques}
        assert ResponseCode.SUCCESS in codes
        assert codes <= {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}


def _small_window(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(WAIT_S)
    sock.connect(("127.0.0.1", port))
    return sock


def _pull(opaque: int) -> bytes:
    fields = {name: str(value) for name, value in pull_fields().items()}
    return encode_command(Command(RequestCode.PULL_MESSAGE, opaque, fields=fields))


def _closed(socks: list[socket.socket]) -> list[int]:
    """Those closed by the other side, whatever they have not read yet."""
    poll = select.poll()
    for sock in socks:
        poll.register(sock, select.POLLRDHUP)
    return [descriptor for descriptor, _ in poll.poll(0)]
