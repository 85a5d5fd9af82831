"""Spark's daemon of Python workers on this machine, which says nothing when a session ends.

The JVM closes its connections to idle workers as it stops, and PySpark shows the BrokenPipeError of each. Not for
clusters, whose machines may lack this package.

Source: PySpark's `daemon`, run by `spark.python.daemon.module`.
"""

import socket

from pyspark import daemon

_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Run tasks as PySpark's worker does, until the JVM closes the connection; returns the exit code."""
    try:
        return int(_worker(sock, authenticated))
    except BrokenPipeError:
        return 1


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
