"""The session runs, including Python workers."""

import subprocess
import sys

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from tandemq.errors import ConfigError
from tandemq.spark.runtime.session import SETTINGS, open_session


def test_session_has_our_settings_and_runs_python(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    twice = udf(lambda number: 2 * number, "long")
    assert [row[0] for row in spark.range(3).select(twice("id")).collect()] == [0, 2, 4]


def test_second_session_joins_the_first(spark: SparkSession) -> None:
    again, java = open_session("other")
    assert again is spark
    assert java is None
    assert SETTINGS


def test_malformed_master_is_named_before_a_jvm_starts() -> None:
    for master in ("nonsense", "local[", "spark:/host:7077"):
        with pytest.raises(ConfigError, match="Spark knows no master"):
            open_session(master=master)


def test_package_imports_its_formats_on_first_use() -> None:
    code = """
import sys, tandemq.spark
assert "pyspark" not in sys.modules
from tandemq.spark import RocketMQDataSource, RocketMQLogDataSource
assert RocketMQDataSource.name() == "rocketmq"
assert RocketMQLogDataSource.name() == "rocketmq-log"
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    with pytest.raises(ImportError, match="NoSuchSource"):
        exec("from tandemq.spark import NoSuchSource")
