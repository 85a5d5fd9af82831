"""Drivers of streaming queries that end by a signal, with queries that are objects of the test."""

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from tandemq.spark.runtime.stopping import stop_signals, wait_for


class Query:
    """A query that runs until it is stopped, fails or ends."""

    def __init__(self, *, busy: int = 0, on_wait: Callable[[], None] = lambda: None) -> None:
        """`busy`: number of looks at its status at which a micro-batch runs; `on_wait`: what happens meanwhile."""
        self.isActive = True
        self.error: Exception | None = None
        self.busy = busy
        self.stopped_within_batch: bool | None = None
        self.on_wait = on_wait

    def awaitTermination(self, timeout: float | None = None) -> bool:
        self.on_wait()
        if self.error is not None:
            raise self.error
        return not self.isActive

    def exception(self) -> Exception | None:
        return self.error

    @property
    def status(self) -> dict[str, Any]:
        self.busy -= 1
        return {"isTriggerActive": self.busy >= 0}

    def stop(self) -> None:
        self.stopped_within_batch = self.isActive and self.busy >= 0
        self.isActive = False


def wait(queries: list[Query], stop: threading.Event, **options: float) -> None:
    wait_for(queries, stop, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_queries_are_stopped_after_their_micro_batches_when_a_signal_comes(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stop_signals() as stop:
        queries = [Query(on_wait=lambda: os.kill(os.getpid(), number)), Query(busy=3)]
        wait(queries, stop)
        assert stop.is_set()
        assert signal.getsignal(number) is before, "a second signal has its former effect"
    assert [query.stopped_within_batch for query in queries] == [False, False]
    assert queries[1].busy < 0
    assert signal.getsignal(number) is before


def test_micro_batch_that_does_not_end_in_time_is_interrupted() -> None:
    stop = threading.Event()
    stop.set()
    query = Query(busy=1_000_000)
    wait([query], stop, batch_s=0.05)
    assert query.stopped_within_batch


def test_failed_query_ends_the_others_with_its_error() -> None:
    others = [Query(busy=5), Query()]
    failed = Query()

    def fail() -> None:
        failed.isActive, failed.error = False, ValueError("of the query")

    others[0].on_wait = fail
    with pytest.raises(ValueError, match="of the query"):
        wait([*others, failed], threading.Event())
    assert [query.isActive for query in others] == [False, False]


def test_wait_ends_with_the_last_query_and_without_spark() -> None:
    one, two = Query(), Query()
    one.on_wait, two.on_wait = one.stop, two.stop
    wait([one, two], threading.Event())
    stop = threading.Event()
    stop.set()

    class Gone(Query):
        @property
        def status(self) -> dict[str, Any]:
            raise Py4JNetworkError("the JVM has ended")

    wait([Gone()], stop)
