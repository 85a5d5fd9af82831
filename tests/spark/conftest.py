"""One local Spark session for all tests of a process: starting one takes seconds."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tandemq.spark.session import open_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two cores, its warehouse and scratch files in a temporary directory."""
    root: Path = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.sql.warehouse.dir": str(root / "warehouse"),
        "spark.local.dir": str(root / "local"),
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "768m",
    }
    os.environ["PYTHONWARNINGS"] = "default"  # of Spark's own Python processes; ours are errors in this one only
    session, _ = open_session("tests", master="local[2]", settings=settings)
    yield session
    session.stop()
