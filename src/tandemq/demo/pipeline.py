"""Last part of the demo: run the brokers' logs through the data pipeline, and compute the same figures from them.

    logs of the masters ── archive ──► lake ── valid, of the topic, once per unique key ──► gold: figures per tag
    logs of master and slave ── audit ──► the records in which replicas differ

The cluster is stopped by then: the pipeline reads only files. The gold table is a Delta table written by Spark and read
back, independent of the consumer's figures. Needs the extra `spark`.
"""

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import StringType, StructField, StructType
from pyspark.sql.window import Window

from tandemq.demo.narration import Narration
from tandemq.spark.jobs.archive import Archive, ArchiveOptions
from tandemq.spark.jobs.audit import audit
from tandemq.spark.lake.delta import DeltaLake
from tandemq.spark.runtime.errors import translate_errors
from tandemq.spark.runtime.java import find_java
from tandemq.spark.runtime.session import SETTINGS, open_session
from tandemq.spark.runtime.versions import check_version

UNIQUE_KEY = r"(?:^|\x02)UNIQ_KEY\x01([^\x02]*)"
_SHORT_RUN = {
    # In a short run less JIT compilation is faster.
    "spark.driver.extraJavaOptions": f"{SETTINGS['spark.driver.extraJavaOptions']} -XX:TieredStopAtLevel=1",
    "spark.sql.shuffle.partitions": "2",
}


@dataclass(frozen=True, slots=True)
class PipelineJob:
    """Input and output of the pipeline."""

    stores: Mapping[str, tuple[Path, Path]]
    """By broker group: the master's store directory and its slave's."""
    topic: str
    value_column: str
    directory: Path


@dataclass(frozen=True, slots=True)
class Gold:
    """One row of the gold table. `mean` is None without values."""

    messages: int
    values: int
    mean: float | None


@dataclass(slots=True)
class PipelineResult:
    """Result of the pipeline. `faults`: the checks that failed."""

    java: str = ""
    log_bytes: int = 0
    rows: int = 0
    """Records in the lake, of all topics."""
    lake_bytes: int = 0
    audited_bytes: int = 0
    """Bytes of one replica of each group."""
    divergences: dict[str, dict[str, int]] = field(default_factory=dict)
    """By broker group: records that are different, corrupt, missing, extra, removed."""
    gold: dict[str, Gold] = field(default_factory=dict)
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the values for `--json`."""
        return asdict(self)


def check_spark() -> None:
    """Check for PySpark and Java before anything starts.

    Raises:
        ConfigError: PySpark is too old, or there is no Java.
    """
    check_version("the data pipeline")
    find_java()


def run(wanted: PipelineJob, narration: Narration) -> PipelineResult:
    """Archive and audit the logs, and write the gold table.

    Raises:
        TandemError: the log cannot be read, the lake cannot be written, or Spark fails.
    """
    with translate_errors():
        return _run(wanted, narration)


def _run(wanted: PipelineJob, narration: Narration) -> PipelineResult:
    began = time.monotonic()
    found = PipelineResult()
    spark, is_ours = _session(wanted.directory, found)
    try:
        narration.step(f"the pipeline: Spark {spark.version} on Java {found.java}")
        _archive(spark, wanted, found)
        narration.step(
            f"archived the logs of {len(wanted.stores)} masters, {found.log_bytes / 1e6:,.0f} MB, into a Delta table: "
            f"{found.rows:,} records, {found.lake_bytes / 1e6:,.0f} MB"
        )
        _audit(spark, wanted, found)
        narration.step(f"audited the logs of masters and slaves, {found.audited_bytes / 1e6:,.0f} MB of each side")
        _make_gold(spark, wanted, found)
        narration.step(f"gold table, from the lake: {sum(row.messages for row in found.gold.values()):,} messages")
    finally:
        if is_ours:
            spark.stop()
    found.seconds = round(time.monotonic() - began, 1)
    return found


def _session(directory: Path, found: PipelineResult) -> tuple[SparkSession, bool]:
    """Return a session, and whether it was started here."""
    scratch = directory / "spark"
    scratch.mkdir()
    settings = _SHORT_RUN | {"spark.local.dir": str(scratch), "spark.sql.warehouse.dir": str(scratch / "warehouse")}
    with _errors_into(directory / "spark.log"):
        spark, java = open_session("tandemq demo", settings=settings)
    found.java = f"{java.version} from {java.origin}" if java is not None else "of a session that was already running"
    return spark, java is not None


@contextmanager
def _errors_into(path: Path) -> Iterator[None]:
    """Redirect standard error, child processes included, to a file, because the JVM prints messages at its start."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _archive(spark: SparkSession, wanted: PipelineJob, found: PipelineResult) -> None:
    lake = wanted.directory / "lake"
    for broker_name, (store, _) in wanted.stores.items():
        done = Archive(ArchiveOptions(store=store, lake=lake, broker_name=broker_name)).run(spark)
        found.log_bytes += done.end - done.start
        found.rows += done.rows
        found.lake_bytes += done.bytes
        if done.damaged:
            found.faults.append(f"{broker_name}: {done.damaged} records of the master's log are damaged")


def _audit(spark: SparkSession, wanted: PipelineJob, found: PipelineResult) -> None:
    for broker_name, replicas in wanted.stores.items():
        compared = audit(spark, *replicas)
        found.audited_bytes += compared.end - compared.start
        found.divergences[broker_name] = compared.counts
        if compared.diverges_at is not None:
            kinds = ", ".join(f"{count} {kind}" for kind, count in compared.counts.items() if count)
            found.faults.append(f"audit: {broker_name} diverges at log offset {compared.diverges_at}: {kinds}")
        if compared.first_end != compared.second_end:
            found.faults.append(
                f"audit: the logs of {broker_name} end at {compared.first_end} and {compared.second_end}"
            )


def _make_gold(spark: SparkSession, wanted: PipelineJob, found: PipelineResult) -> None:
    """Write the gold table, and read it back."""
    lake = spark.read.parquet(*DeltaLake(wanted.directory / "lake").data_files())
    body = StructType([StructField(wanted.value_column, StringType())])
    number = fn.from_json(fn.col("body").cast("string"), body).getField(wanted.value_column).try_cast("double")
    key = fn.regexp_extract("properties", UNIQUE_KEY, 1)
    first = Window.partitionBy("key").orderBy("brokerName", "commitLogOffset")
    silver = (
        lake.where(fn.col("verdict").isNull() & (fn.col("topic") == wanted.topic))
        .select("tags", "brokerName", "commitLogOffset", number.alias("value"), key.alias("key"))
        .withColumn("copy", fn.row_number().over(first))
        .where("copy = 1")
    )
    gold = silver.groupBy("tags").agg(
        fn.count("*").alias("messages"), fn.count("value").alias("values"), fn.avg("value").alias("mean")
    )
    place = str(wanted.directory / "gold")
    write_deltalake(place, gold.toArrow())
    for row in spark.read.parquet(*DeltaTable(place).file_uris()).collect():
        found.gold[row["tags"]] = Gold(row["messages"], row["values"], row["mean"])
