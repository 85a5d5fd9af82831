"""Explicit registration of the formats."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tandemq.errors import ConfigError
from tandemq.spark import register
from tandemq.spark.sources import formats
from tests.spark.logs import LogWriter

FIRST_READ = """
import sys
from pyspark.sql import SparkSession
from tandemq.spark import register

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)
print(spark.read.format("rocketmq-log").load(sys.argv[1]).count())
"""


@pytest.mark.slow
def test_first_read_needs_no_activated_environment(tmp_path: Path) -> None:
    """The Python of the path has nothing of ours; only the program itself runs in the environment."""
    writer = LogWriter(tmp_path / "broker-a")
    writer.write_many(30)
    program, python = tmp_path / "first.py", tmp_path / "bin" / "python3"
    program.write_text(FIRST_READ)
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {Path(sys.executable).resolve()} -S "$@"\n')
    python.chmod(0o755)
    environ = {name: value for name, value in os.environ.items() if name not in ("PYSPARK_PYTHON", "VIRTUAL_ENV")}
    environ |= {"PATH": f"{python.parent}:/usr/bin:/bin", "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONWARNINGS": "default"}
    ended = subprocess.run(
        [sys.executable, program, writer.store], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert ended.stdout.split() == ["30"], ended.stderr


def test_registered_formats_run_and_may_be_registered_again(spark: SparkSession, tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "broker-a")
    writer.write_many(10)
    for _ in range(2):
        register(spark)
        assert spark.read.format("rocketmq-log").load(str(writer.store)).count() == 10
    assert spark.read.format("rocketmq-lag").load().collect() == []
    assert spark.read.format("rocketmq").load().columns[:3] == ["key", "body", "topic"]


def test_check_of_workers_compares_versions(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    formats.check_workers(spark)
    monkeypatch.setattr(formats, "installed_version", lambda: "9.9")
    with pytest.raises(ConfigError, match=r"workers have tandemq 0\.1\.0, this is 9\.9"):
        formats.check_workers(spark)


def test_check_of_workers_names_a_missing_python(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/nowhere/python")
    with pytest.raises(ConfigError, match=r"cannot start the Python /nowhere/python \(set PYSPARK_PYTHON"):
        formats.check_workers(spark)
