"""One local Spark session for all tests of a process: starting one takes seconds."""

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tandemq.spark.runtime.session import open_session
from tests.spark.s3 import S3, s3_server
from tests.spark.short import SHORT
from tests.spark.streams import Stream

SECONDS_MAX = 900
"""Timeout of a test: the first one of a kind starts Python workers and compiles, on a machine that may be busy."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set a longer timeout for every test in this directory."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(SECONDS_MAX))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two cores, its warehouse and scratch files in a temporary directory."""
    root: Path = tmp_path_factory.mktemp("spark")
    settings = SHORT | {
        "spark.sql.warehouse.dir": str(root / "warehouse"),
        "spark.local.dir": str(root / "local"),
        "spark.driver.memory": "768m",
    }
    os.environ["PYTHONWARNINGS"] = "default"  # for Spark's Python processes; warnings are errors in this process only
    os.environ["PYSPARK_PYTHON"] = str(_make_launcher(root / "python"))
    session, _ = open_session("tests", master="local[2]", settings=settings)
    yield session
    session.stop()


def _make_launcher(path: Path) -> Path:
    """Write a script that starts Python without Spark's PYTHONPATH.

    That path names archives, whose modules are compiled at each start: 0.2 s. The same modules are installed.
    """
    path.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec {shlex.quote(sys.executable)} "$@"\n')
    path.chmod(0o755)
    return path


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """An S3 server in a process of its own; each test has lakes of its own."""
    with s3_server() as server:
        yield server


@pytest.fixture
def stream(spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path) -> Stream:
    """A query on the cluster that the test requests: a pair, else a single broker."""
    name = "tandemq_pair" if "tandemq_pair" in request.fixturenames else "tandemq_broker"
    return Stream(spark, request.getfixturevalue(name), tmp_path / "query")
