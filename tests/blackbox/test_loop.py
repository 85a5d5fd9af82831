"""The server loop with real sockets: nothing slow runs on it, and one link's trouble is its own."""

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tandemq.codec.frame import encode_command
from tandemq.config import tiny
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.real.disk import RealFile
from tandemq.run.broker import BrokerProcess
from tests.blackbox.programs import Caller, wait_until
from tests.spec import spec


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    config = replace(tiny(), store_path=str(tmp_path / "store"), flush_type="SYNC_FLUSH", disk_full_ratio=1.0)
    process = BrokerProcess(config)
    process.open()
    thread = threading.Thread(target=process.run)
    thread.start()
    yield process
    process.stop()
    thread.join()
    process.close()


@spec("V11", "W11")
def test_hanging_fsync_delays_who_waits_for_it_and_nobody_else(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()
    began = threading.Event()
    sync = RealFile.datasync

    def hang(self: RealFile) -> None:
        began.set()
        assert may_end.wait(30)
        sync(self)

    with Caller(broker.port) as sender, Caller(broker.port) as other:
        assert sender.send(b"before") == ResponseCode.SUCCESS
        monkeypatch.setattr(RealFile, "datasync", hang)
        opaque = sender.tell_send(b"waits")
        assert began.wait(30)
        for _ in range(200):
            asked = other.ask(RequestCode.GET_MAX_OFFSET, {"topic": "TopicA", "queueId": 0})
            assert asked.code == ResponseCode.SUCCESS
        assert other.read_all()[-1] == b"waits"
        may_end.set()
        answer = sender.next_answer()
        assert (answer.opaque, answer.code) == (opaque, ResponseCode.SUCCESS)


def test_client_that_asks_and_never_reads_costs_bounded_memory_and_nobody_else(broker: BrokerProcess) -> None:
    with Caller(broker.port) as other:
        for number in range(20):
            assert other.send(bytes([number]) * 8_000) == ResponseCode.SUCCESS
        greedy = socket.create_connection(("127.0.0.1", broker.port), 20)
        greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        fields = {
            "consumerGroup": "g", "topic": "TopicA", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
            "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
        }  # fmt: skip
        request = encode_command(Command(RequestCode.PULL_MESSAGE, 1, fields=fields))
        greedy.setblocking(False)
        sent, stuck = 0, 0
        while stuck < 50 and sent < 8 << 20:
            try:
                sent += greedy.send(request * 50)
                stuck = 0
            except BlockingIOError:
                stuck += 1
                assert other.send(b"still served") == ResponseCode.SUCCESS
            except ConnectionError:
                break
        greedy.close()
        assert other.send(b"after") == ResponseCode.SUCCESS


def test_loop_goes_on_when_a_peer_resets_in_the_middle(broker: BrokerProcess) -> None:
    with Caller(broker.port) as other:
        for _ in range(50):
            sock = socket.create_connection(("127.0.0.1", broker.port), 20)
            sock.sendall(b"\0\0\1\0")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            sock.close()
        assert other.send(b"x") == ResponseCode.SUCCESS
        wait_until(lambda: len(broker.node.links) == 1, "the links are gone")
