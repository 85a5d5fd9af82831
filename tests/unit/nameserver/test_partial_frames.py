"""Limits of partial frames (total size and age) and of the responses of one turn."""

from pathlib import Path

import pytest

from tandemq.codec.remoting.frame import encode_command
from tandemq.config.settings import NameServerConfig
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tests.unit.nameserver.driver import Driver

BROKER, CLIENT = 1, 2


def test_partial_frames_on_many_connections_are_bounded_together(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = Driver(tmp_path, NameServerConfig(frame_bytes_max=200_000, unfinished_bytes_max=1_000_000))
    begun = (200_000 - 4).to_bytes(4, "big") + bytes(99_996)
    closed = []
    server.open(BROKER)
    for link in range(10, 60):
        server.open(link)
        closed += [number for number, _ in server.raw(link, begun)[1].closes]
    assert closed == list(range(10, 10 + len(closed))), "the oldest first"
    assert 40 <= len(closed) < 50
    assert len(server.node._connections) == 51 - len(closed)
    assert sum("unfinishedFramesMax" in record.message for record in caplog.records) == 1, "once per address and minute"
    server.register(BROKER)
    assert server.route(BROKER, "TopicA") is not None


def test_overdue_partial_frame_closes_its_connection_although_bytes_still_arrive(tmp_path: Path) -> None:
    server = Driver(tmp_path)
    server.open(BROKER)
    server.open(CLIENT)
    server.raw(CLIENT, (5_000).to_bytes(4, "big") + bytes(4))
    for _ in range(4):
        closes = server.pass_time(30_000).closes
        assert closes == []
        server.raw(CLIENT, b"x")
        server.call(BROKER, 999)
    assert server.pass_time(6_000).closes == [(CLIENT, "frame not completed")]


def test_responses_of_one_turn_are_bounded(tmp_path: Path) -> None:
    server = Driver(tmp_path)
    server.open(BROKER)
    server.open(CLIENT)
    for number in range(50):
        server.call(BROKER, RequestCode.PUT_KV_CONFIG, namespace="many", key=f"key{number}", value="x" * 20_000)
    ask = encode_command(Command(RequestCode.GET_KVLIST_BY_NAMESPACE, 1, fields={"namespace": "many"}))
    answers, turn = server.raw(CLIENT, ask * 100)
    assert not turn.closes
    codes = [answer.code for answer in answers]
    assert len(codes) == 100
    assert set(codes) == {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}
    assert sum(len(answer.body) for answer in answers) < 16 << 20
    assert server.raw(CLIENT, ask)[0][0].code == ResponseCode.SUCCESS, "the next turn has room"
