"""Explicit registration of the formats with a session, and a check that the Python of its workers can run them.

    local master        formats run in this process's Python, unless PYSPARK_PYTHON names another
    cluster, Connect    a small job returns the versions of Python and tandemq that workers have

Spark also finds the formats by itself, in the Python that PYSPARK_PYTHON names when its JVM starts (`python3` of the
path without it). Registration does not depend on that.

Source: docs/guides/pipeline-clusters.md.
"""

import os
import re
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from tandemq.errors import ConfigError
from tandemq.spark.runtime.causes import parse_error
from tandemq.spark.sources.cluster.lag import RocketMqLag
from tandemq.spark.sources.cluster.source import RocketMQDataSource
from tandemq.spark.sources.log.source import RocketMQLogDataSource, source_with_storage
from tandemq.spark.sources.topic_tables import add_tables

FORMATS = (RocketMQDataSource, RocketMQLogDataSource, RocketMqLag)
PYTHON = "PYSPARK_PYTHON"
PYTHON_SETTING = "spark.pyspark.python"
PROBED_ROWS = 64
"""Rows of the check; Spark divides them among the cores it has at that moment."""


def register(
    spark: SparkSession,
    *,
    check: bool = True,
    storage: Mapping[str, str] | None = None,
    tables: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """Register the formats rocketmq, rocketmq-log and rocketmq-lag with a session, classic or Spark Connect.

    Args:
        check: whether to run a small job on a cluster's workers, or the Connect server's, that imports this package.
            It reaches the executors that exist at the moment. Local masters need none.
        storage: storage options for URLs in `path` and `writeTo` of rocketmq-log, as deltalake names them; they are no
            options of queries, which Spark shows. Those of the environment are added.
        tables: tables to create, unless they exist: options of `format("rocketmq")` by name, see `topic_tables`.
    Raises:
        ConfigError: workers have no such Python, cannot import this package, or have another version of it; a table is
            not possible.
    """
    is_local = _is_classic(spark) and _choose_python(spark)
    for source in FORMATS:
        is_log = source is RocketMQLogDataSource
        spark.dataSource.register(source_with_storage(storage, storage) if is_log else source)
    if check and not is_local:
        check_workers(spark)
    add_tables(spark, tables or {})


def check_workers(spark: SparkSession) -> None:
    """Run a small job that imports this package in workers, and compare their versions with this one.

    Raises:
        ConfigError: workers have no such Python, cannot import this package, or have another version of it.
        TandemError: the job failed for another reason.
    """
    # Shipped as a reference, so that workers import this module; without Arrow, which they may lack.
    probe = udf(worker_version, "string", useArrow=False)
    try:
        found = {str(row[0]) for row in spark.range(PROBED_ROWS).select(probe("id")).collect()}
    except _query_errors() as error:
        raise parse_error(str(error)) from error
    ours = installed_version()
    others = found - {ours}
    if others:
        raise ConfigError(
            f"Spark's workers have tandemq {', '.join(sorted(others))}, this is {ours}",
            hint="install the same version on all machines of the cluster",
        )


def _query_errors() -> tuple[type[Exception], ...]:
    """Return the types of errors of a query; clients of Spark Connect have no py4j."""
    try:
        from py4j.protocol import Py4JError  # noqa: PLC0415  # missing in pyspark-client
    except ImportError:
        return (PySparkException,)
    return PySparkException, Py4JError


def worker_version(_row: int) -> str:
    """Return the version of this package in a worker."""
    return installed_version()


def installed_version() -> str:
    """Return the version of this package, "unknown" if only its modules are there, as in an archive of them."""
    try:
        return version("tandemq")
    except PackageNotFoundError:
        return "unknown"


def _is_classic(spark: SparkSession) -> bool:
    """Return whether a session has a JVM of its own. The classes of Connect need packages that a classic one lacks."""
    return "connect" not in type(spark).__module__


def _choose_python(spark: SparkSession) -> bool:
    """Choose the Python that runs the formats, unless PYSPARK_PYTHON does; returns whether the master is local."""
    context = spark.sparkContext
    configured = context.getConf().get(PYTHON_SETTING)
    is_local = re.fullmatch(r"local(\[.*\])?", str(context.master)) is not None
    if not os.environ.get(PYTHON):
        if configured:
            context.pythonExec = configured
        elif is_local:
            context.pythonExec = sys.executable
    return is_local
