"""Spark's daemon of Python workers on this machine: it has imported what they need.

A worker is a fork of the daemon, so that each of them saves 1.5 s of imports. Spark's own daemon forks first because
imported libraries may have threads; these have none that a fork needs.

Not for clusters, whose machines may lack this package. Source: PySpark's `daemon`, run by `spark.python.daemon.module`.
"""

import gc
import sys
from contextlib import suppress
from importlib import import_module

from pyspark import daemon

from tandemq.spark.runtime.worker_errors import quiet

SOURCES = "tandemq.spark.sources.formats"
TASKS = "pyspark.worker"
"""Module of the workers that run tasks. Those that plan and commit have daemons of their own."""


def import_modules(worker_module: str) -> None:
    """Import what a worker needs. One whose imports fail reports that itself."""
    for name in (worker_module, SOURCES, *(["pandas"] if worker_module == TASKS else [])):  # Arrow imports pandas.
        with suppress(ImportError):
            import_module(name)
    gc.freeze()


if __name__ == "__main__":
    import_modules(sys.argv[1])
    vars(daemon)["worker"] = quiet(daemon.worker)
    daemon.manager()
