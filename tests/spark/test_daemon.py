"""Imports of Spark's daemon of Python workers."""

import subprocess
import sys

import pytest

from tandemq.spark.runtime.daemon import SOURCES, TASKS

PROGRAM = """
import sys
from tandemq.spark.runtime.daemon import import_modules
import_modules(sys.argv[1])
print(*sys.modules)
"""


@pytest.mark.system
@pytest.mark.parametrize(
    ("worker_module", "has_pandas"), [(TASKS, True), ("pyspark.sql.worker.create_data_source", False), ("none", False)]
)
def test_daemon_imports_what_its_workers_need(worker_module: str, *, has_pandas: bool) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, worker_module], capture_output=True, text=True, check=True)
    modules = done.stdout.split()
    assert {SOURCES, "tandemq.spark.sources.cluster.outgoing"} <= set(modules)
    assert ("pandas" in modules) is has_pandas
    assert worker_module == "none" or worker_module in modules
