"""Errors of this package in Spark's processes of Python: shown as one line, without the traceback that PySpark adds.

A query that fails shows the text of the error in the process that plans it or runs a task of it. Our errors say what
is wrong and what to do; where in the code they were raised helps nobody. Other errors keep their traceback.

Source: docs/guides/pipeline.md; PySpark's `handle_worker_exception`.
"""

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from tandemq.errors import TandemError

HIDE = "SPARK_HIDE_TRACEBACK"
T = TypeVar("T")


def shows_one_line(kind: type[T]) -> type[T]:
    """Show our errors in the public methods of a source, reader or writer as one line; a decorator."""
    for name, member in list(vars(kind).items()):
        if callable(member) and not isinstance(member, type) and not name.startswith("_"):
            setattr(kind, name, _wrapped(member))
    return kind


def _wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def called(*args: Any, **named: Any) -> Any:
        _end_quietly()
        with _one_line():
            found = method(*args, **named)
        return _iterated(found) if isinstance(found, Iterator) else found

    return called


def _iterated(values: Iterator[T]) -> Iterator[T]:
    with _one_line():
        yield from values


def quiet(worker: Callable[[Any, bool], Any]) -> Callable[[Any, bool], int]:
    """Return `pyspark.daemon.worker` without the BrokenPipeError of a connection that the JVM closes as it stops."""

    @functools.wraps(worker)
    def run(sock: Any, authenticated: bool) -> int:
        try:
            return int(worker(sock, authenticated))
        except BrokenPipeError:
            return 1

    return run


def _end_quietly() -> None:
    """Have a process that Spark's own daemon forked end without a traceback. Those that plan come from no other one."""
    main = sys.modules["__main__"]
    worker = getattr(main, "worker", None)
    if worker is not None and _is_worker() and not hasattr(worker, "__wrapped__"):
        vars(main)["worker"] = quiet(worker)  # the daemon calls it for the next request


@contextmanager
def _one_line() -> Iterator[None]:
    try:
        yield
    except TandemError:
        if _is_worker():
            os.environ[HIDE] = "1"  # read when PySpark reports the error; the process ends then
        raise


def _is_worker() -> bool:
    """Return whether this process was started by Spark: as its daemon, a worker, or to plan a query."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith(("pyspark.", "tandemq.spark.runtime."))
