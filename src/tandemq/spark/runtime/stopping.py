"""End of a driver of streaming queries by a signal: between micro-batches, and without stack traces.

    with stop_signals() as stop:                      after the session was opened
        queries = [… .start(), … .start()]
        wait_for(queries, stop)                       until all have ended, one has failed, or SIGINT or SIGTERM came

Spark's own handler of SIGINT sends a request to the JVM from within the signal handler, which fails and prints stack
traces if the main thread waits for an answer, as it does almost always; SIGTERM ends Python before the JVM. A query
killed like that loses nothing, but ends within a micro-batch. A second signal ends the driver at once.

Source: docs/guides/pipeline-project.md, "Stop and continue".
"""

import logging
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from tandemq.spark.runtime.causes import parse_error

log = logging.getLogger(__name__)
SIGNALS = (signal.SIGINT, signal.SIGTERM)
POLL_S = 1
"""Interval at which queries are looked at."""
PAUSE_S = 0.1
BATCH_S = 30.0
"""Time that micro-batches have to end after a signal; later they are interrupted, and repeated by the next run."""


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Yield an event that the first SIGINT or SIGTERM sets; the second one has its former effect.

    Call it in the main thread, after the session was opened: Spark sets a handler of its own there. Errors of Spark
    after the signal end the body with a warning: a service's processes get the signal together with the JVM.
    """
    event = threading.Event()
    former = {number: signal.getsignal(number) for number in SIGNALS}

    def restore() -> None:
        for number, handler in former.items():
            signal.signal(number, handler)

    def stop(_number: int, _frame: FrameType | None) -> None:
        event.set()
        restore()

    for number in SIGNALS:
        signal.signal(number, stop)
    try:
        with _ended_by(event):
            yield event
    finally:
        restore()


@contextmanager
def _ended_by(stop: threading.Event) -> Iterator[None]:
    """Log errors of Spark that follow a signal: it has ended the JVM too, or a program that a query runs."""
    try:
        yield
    except (PySparkException, Py4JError, OSError) as error:
        if not stop.is_set():
            raise
        log.warning("Spark ended before its queries were stopped: %s", parse_error(str(error)))


def wait_for(queries: Sequence[StreamingQuery], stop: threading.Event, *, batch_s: float = BATCH_S) -> None:
    """Wait until all queries have ended or one has failed, or stop them when the event is set.

    Args:
        batch_s: maximum time for micro-batches that run when the event is set.
    Raises:
        StreamingQueryException: a query failed; the others are stopped.
    """
    with _ended_by(stop):
        _wait_for(queries, stop)
        if stop.is_set():
            _stop(queries, batch_s)


def _wait_for(queries: Sequence[StreamingQuery], stop: threading.Event) -> None:
    waiting = list(queries)
    while waiting and not stop.is_set():
        if waiting[0].awaitTermination(POLL_S):  # returns at once when it ends, and raises its error
            del waiting[0]
        for query in waiting:
            if not query.isActive and query.exception() is not None:
                _stop(queries, 0)
                query.awaitTermination()


def _stop(queries: Sequence[StreamingQuery], batch_s: float) -> None:
    """Stop queries, each between two micro-batches if the present one ends in time."""
    until = time.monotonic() + batch_s
    for query in queries:
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < until:
            time.sleep(PAUSE_S)
        query.stop()
