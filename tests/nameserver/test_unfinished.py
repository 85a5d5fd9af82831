"""Requests that are begun and not ended: bounded together, and by their age."""

from pathlib import Path

import pytest

from tandemq.config import NameServerConfig
from tests.nameserver.driver import Driver

BROKER, CLIENT = 1, 2


def test_frames_begun_on_many_links_are_bounded_together(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = Driver(tmp_path, NameServerConfig(frame_bytes_max=200_000, unfinished_bytes_max=1_000_000))
    begun = (200_000 - 4).to_bytes(4, "big") + bytes(99_996)
    closed = []
    server.open(BROKER)
    for link in range(10, 60):
        server.open(link)
        closed += [number for number, _ in server.raw(link, begun)[1].closes]
    assert closed == list(range(10, 10 + len(closed))), "the oldest first"
    assert 40 <= len(closed) < 50
    assert server.node.link_count == 51 - len(closed)
    assert sum("unfinishedFramesMax" in record.message for record in caplog.records) == 1, "once per address and minute"
    server.register(BROKER)
    assert server.route(BROKER, "TopicA") is not None


def test_frame_that_does_not_end_closes_its_link_though_bytes_still_come(tmp_path: Path) -> None:
    server = Driver(tmp_path)
    server.open(BROKER)
    server.open(CLIENT)
    server.raw(CLIENT, (5_000).to_bytes(4, "big") + bytes(4))
    for _ in range(4):
        closes = server.pass_time(30_000).closes
        assert closes == []
        server.raw(CLIENT, b"x")
        server.call(BROKER, 999)
    assert server.pass_time(6_000).closes == [(CLIENT, "frame not ended")]
