"""Logging of connections that the broker closes."""

from pathlib import Path

import pytest

from tests.unit.broker.harness import Harness


def test_flood_of_closed_connections_is_logged_once_a_minute_per_address(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    broker = Harness(tmp_path)

    def flood(count: int, first: int, host: str) -> None:
        for link in range(first, first + count):
            broker.open(link, peer=f"{host}:{10_000 + link}")
            broker.turn([(link, b"\xff" * 8)])
            assert link in dict(broker.closes)
            broker.close(link)

    flood(50, 100, "10.1.1.1")
    flood(1, 200, "10.1.1.2")
    lines = [record.getMessage() for record in caplog.records if "closed times=" in record.getMessage()]
    assert len(lines) == 2
    broker.pass_time(61_000)
    flood(1, 300, "10.1.1.1")
    lines = [record.getMessage() for record in caplog.records if "peer=10.1.1.1" in record.getMessage()]
    assert "times=50 " in lines[-1]
