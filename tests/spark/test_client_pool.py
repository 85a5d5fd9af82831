"""The time limit of an operation grows with its responses."""

from concurrent.futures import Future
from typing import Any

import pytest

from tandemq.errors import NetworkError, NotConnected
from tandemq.spark.runtime import client_pool
from tandemq.spark.runtime.client_pool import RESPONSE_MS, close_clients, cluster_client


class Clock:
    """A clock that a fake future moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Slow(Future[Any]):
    """An operation that gets a response every `step_s`, and ends or fails after `count` of them."""

    def __init__(self, client: Any, clock: Clock, step_s: float, count: int, error: Exception | None = None) -> None:
        super().__init__()
        self._left, self._client, self._clock, self._step_s, self._error = count, client, clock, step_s, error

    def result(self, timeout: float | None = None) -> Any:
        assert timeout is not None
        until = self._clock.now + timeout
        while self._left:
            if self._clock.now + self._step_s > until:
                self._clock.now = until
                raise TimeoutError
            self._clock.now += self._step_s
            self._client._shell.node.remoting.response_count += 1
            self._left -= 1
        if self._error is not None:
            raise self._error
        return "done"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(client_pool, "time", clock)
    return clock


def run(monkeypatch: pytest.MonkeyPatch, clock: Clock, *given: Any, connect_ms: int | None = None) -> float:
    """Run operations as `Slow` says, with a timeout of 1 s; returns how long it takes."""
    client = cluster_client("127.0.0.1:1")
    start = clock.now
    try:
        monkeypatch.setattr(client, "start", lambda _operation: Slow(client, clock, *given))
        operation: Any = None
        assert client.run(operation, 1_000, connect_ms=connect_ms) == "done"
    finally:
        close_clients()
    return clock.now - start


STEP_S = RESPONSE_MS / 1000


def test_operation_with_many_responses_gets_the_time_for_them(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    assert run(monkeypatch, clock, 0.8 * STEP_S, 10_000) >= 0.8 * STEP_S * 10_000
    with pytest.raises(NetworkError, match="no answer within 1000 ms: a request is still in flight"):
        run(monkeypatch, clock, 2 * STEP_S, 10_000)


def test_responses_of_attempts_that_fail_do_not_add_up(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    start = clock.now
    with pytest.raises(NetworkError, match="no answer within 1000 ms: lost"):
        run(monkeypatch, clock, 0.8 * STEP_S, 50, NetworkError("lost"))
    assert clock.now - start < 1 + 2 * 50 * STEP_S


def test_connection_that_is_lost_in_a_long_operation_may_be_opened_again(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    start = clock.now
    with pytest.raises(NotConnected, match="no connection within 200 ms: lost"):
        run(monkeypatch, clock, 0.8 * STEP_S, 100, NotConnected("lost"), connect_ms=200)
    assert clock.now - start >= 2 * 0.8 * STEP_S * 100
    start = clock.now
    with pytest.raises(NotConnected, match="no connection within 200 ms: refused"):
        run(monkeypatch, clock, STEP_S, 0, NotConnected("refused"), connect_ms=200)
    assert clock.now - start < 1
