"""Idle connections."""

from __future__ import annotations

import pytest

from bench.idle_load import IdleOptions, idle
from bench.loads import LoadFailed, idle_connections
from tests.unit.load.fake_broker import FakeBroker, running


def test_connections_are_open_at_the_same_time_after_one_request_each() -> None:
    seen: list[int] = []
    with running(FakeBroker(keep_requests=True)) as broker:
        options = IdleOptions(broker.address, 50, seconds=0.0, topic="t")
        result = idle(options, when_open=lambda: seen.append(len(broker.requests)))
    assert seen == [50]
    assert (result.connections, result.alive_at_end) == (50, 50)


@pytest.mark.system
def test_connections_of_a_process_are_open_while_the_body_runs() -> None:
    with running(FakeBroker(keep_requests=True)) as broker, idle_connections(broker.address, 20, "t"):
        assert len(broker.requests) == 20


@pytest.mark.system
def test_process_that_cannot_connect_is_an_error_with_its_reason() -> None:
    with (
        pytest.raises(LoadFailed, match=r"no process answers at 127\.0\.0\.1:1"),
        idle_connections("127.0.0.1:1", 1, ""),
    ):
        pass
