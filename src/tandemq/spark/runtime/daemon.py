"""Spark's daemon of Python workers on this machine: it has imported what they need, and says nothing at their end.

A worker is a fork of the daemon, so that each of them saves 1.5 s of imports. Spark's own daemon forks first because
imported libraries may have threads; these have none that a fork needs.

The JVM closes its connections to idle workers as it stops, and PySpark shows the BrokenPipeError of each.

Not for clusters, whose machines may lack this package. Source: PySpark's `daemon`, run by `spark.python.daemon.module`.
"""

import gc
import socket
import sys
from contextlib import suppress
from importlib import import_module

from pyspark import daemon

SOURCES = "tandemq.spark.sources.formats"
TASKS = "pyspark.worker"
"""Module of the workers that run tasks. Those that plan and commit have daemons of their own."""
_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Run tasks as PySpark's worker does, until the JVM closes the connection; returns the exit code."""
    try:
        return int(_worker(sock, authenticated))
    except BrokenPipeError:
        return 1


def import_modules(worker_module: str) -> None:
    """Import what a worker needs. One whose imports fail reports that itself."""
    for name in (worker_module, SOURCES, *(["pandas"] if worker_module == TASKS else [])):  # Arrow imports pandas.
        with suppress(ImportError):
            import_module(name)
    gc.freeze()


if __name__ == "__main__":
    import_modules(sys.argv[1])
    daemon.worker = worker
    daemon.manager()
