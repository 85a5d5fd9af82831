"""A Spark session with the settings the pipeline needs, on the Java that `spark.runtime.java` finds.

Source: docs/guides/pipeline.md, "Settings".
"""

import logging
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkConf
from pyspark.sql import SparkSession

from tandemq.errors import ConfigError
from tandemq.spark.runtime.java import Java, find_java
from tandemq.spark.runtime.versions import CHECKPOINTS

log = logging.getLogger(__name__)
MASTER = "local[*]"
GATEWAY = "PYSPARK_GATEWAY_PORT"
"""Environment variable that `spark-submit` sets for the program it starts."""
MASTERS = re.compile(r"local(\[.+\])?|local-cluster\[.+\]|spark://.+|k8s://.+|yarn")

SETTINGS = {
    # Off by default in Spark; a reader that implements filter pushdown (`pushDown`) fails without it.
    "spark.sql.python.filterPushdown.enabled": "true",
    # Between the JVM and Python workers: 20 % faster than TCP with bodies of 1 KiB, and 45 ms less per small batch.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}",
    "spark.driver.memory": "1g",
}
"""Settings of every session; settings of the caller take precedence."""

LOCAL_SETTINGS = {
    "spark.python.daemon.module": "tandemq.spark.runtime.daemon",
    # Writes a checkpoint on a local disk in a third of the time.
    "spark.sql.streaming.checkpointFileManagerClass": f"{CHECKPOINTS}.FileSystemBasedCheckpointFileManager",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
}
"""Additional settings if Spark runs on this machine."""


def open_session(
    app_name: str = "tandemq", *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> tuple[SparkSession, Java | None]:
    """Start a session, or return the one that runs in this process.

    Args:
        master: Spark's `spark.master`: local[N], or a cluster's address. None: that of `spark-submit` if it started
            this process, else local[*].
        settings: Spark settings by name; they take precedence over the defaults. `spark.pyspark.python` takes
            precedence over the environment variable PYSPARK_PYTHON, which defaults to the running Python.
    Returns:
        The session, and the Java it was started on: None if the session was running already.
    Raises:
        ConfigError: there is no Java of version 17 or newer, or `master` is malformed.
    """
    submitted = _submitted_settings()
    master = master or submitted.get("spark.master", MASTER)
    if not MASTERS.fullmatch(master):
        raise ConfigError(
            f"Spark knows no master {master!r}", hint="local[2], spark://host:port, k8s://https://host:port or yarn"
        )
    running = SparkSession.getActiveSession()
    if running is not None:
        return running, None
    java = find_java()
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it logs every command
    os.environ["JAVA_HOME"] = str(java.home)
    python = (settings or {}).get("spark.pyspark.python") or submitted.get("spark.pyspark.python")
    if python:  # Spark itself reads it only in spark-submit, and not for the formats
        os.environ["PYSPARK_PYTHON"] = python
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    defaults = SETTINGS | (LOCAL_SETTINGS if master.startswith("local") else {})
    wanted = {name: value for name, value in defaults.items() if name not in submitted} | dict(settings or {})
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in wanted.items():
        builder = builder.config(name, value)
    return builder.getOrCreate(), java


def stop_session(session: SparkSession) -> None:
    """Stop a session, also if its JVM has ended already."""
    try:
        session.stop()
    except (Py4JError, OSError) as error:
        log.debug("the session was not stopped: %s", error)


def _submitted_settings() -> dict[str, str]:
    """Return the settings given to `spark-submit`, if it started this process; they precede the defaults."""
    if GATEWAY not in os.environ:
        return {}
    return dict(SparkConf().getAll())
