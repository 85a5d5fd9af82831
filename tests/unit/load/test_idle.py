"""Idle connections."""

from __future__ import annotations

from tandemq.load import IdleOptions, idle
from tests.unit.load.fake_broker import FakeBroker, running


def test_connections_are_open_at_the_same_time_after_one_request_each() -> None:
    seen: list[int] = []
    with running(FakeBroker(keep_requests=True)) as broker:
        options = IdleOptions(broker.address, 50, seconds=0.0, topic="t")
        result = idle(options, when_open=lambda: seen.append(len(broker.requests)))
    assert seen == [50]
    assert (result.connections, result.alive_at_end) == (50, 50)
