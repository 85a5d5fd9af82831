"""A driver with Delta's own library for Spark: reads lakes with it, and writes tables for our jobs.

    python -m tests.spark.on_delta JARS STORE DIRECTORY

The store is a log of topics T0 and T1 that an archive has not seen. Each line of output is one result, as JSON.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from tandemq.errors import TandemError
from tandemq.spark.jobs.archive import Archive, ArchiveOptions
from tandemq.spark.jobs.removal import remove_from_lake
from tandemq.spark.jobs.replay import replay_to_store
from tandemq.spark.jobs.retention import expire
from tandemq.spark.jobs.selection import Selection
from tandemq.spark.jobs.state import topic_state
from tandemq.spark.jobs.stats import gather
from tandemq.spark.lake.delta import DeltaLake
from tandemq.spark.lake.upsert import QUERY_ID, Upsert
from tandemq.spark.runtime.session import open_session
from tests.spark.logs import BORN_MS, SEGMENT_BYTES
from tests.spark.short import SHORT

SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.driver.memory": "768m",
}
BROKER = "broker-a"
SLAVE = "slave"


def report(what: str, **facts: object) -> None:
    """Print one line of JSON."""
    print(json.dumps({"what": what} | facts), flush=True)


def rows_of(table: Any, *key: str) -> list[dict[str, Any]]:
    """Return rows in the order of a key."""
    rows: list[dict[str, Any]] = table.to_pylist()
    return sorted(rows, key=lambda row: tuple(row[name] for name in key))


def in_files(paths: list[str]) -> list[dict[str, Any]]:
    """Return the rows of some data files."""
    return rows_of(pa.concat_tables([pq.read_table(path) for path in paths]), "commitLogOffset")


def refusal(job: Callable[[], object]) -> str:
    """Return the error of a job that refuses its table, with what it says to do; "" if it does not."""
    try:
        job()
    except TandemError as error:
        return str(error)
    return ""


class Driver:
    """The session, and the checks."""

    def __init__(self, session: SparkSession, store: Path, work: Path) -> None:
        self.session = session
        self.store = store
        self.work = work

    def read(self, path: Path, **options: int) -> Any:
        """Return the rows that Delta's library reads, as an Arrow table."""
        return self.session.read.format("delta").options(**options).load(str(path)).toArrow()

    def archive(self, lake: Path) -> None:
        """Archive the log, as it is now."""
        Archive(ArchiveOptions(store=self.store, lake=lake, broker_name=BROKER, bytes_max=60_000)).run(self.session)

    def read_ours(self, lake: Path) -> None:
        """Compare each version of a lake, and an upserted table, with their files."""
        self.archive(lake)
        ours = DeltaLake(lake)
        archived = len(ours.data_files())
        ours.compact()
        expire(self.session, lake, BORN_MS + 1_000)
        ours = DeltaLake(lake)
        newest = DeltaTable(str(lake)).version()
        same = [
            rows_of(self.read(lake, versionAsOf=version), "commitLogOffset") == in_files(ours.data_files_of(version))
            for version in range(newest - 2, newest + 1)
        ]
        found = rows_of(self.read(lake), "commitLogOffset")
        report("lake", files=archived, same=same, newest=found == in_files(ours.data_files()), rows=len(found))
        gold = self.work / "gold"
        rows = self.session.readStream.format("rocketmq-log").option("startingOffsets", "0").load(str(self.store))
        writer = rows.select("topic", "queueId", "queueOffset").writeStream.option(
            "checkpointLocation", str(self.work / "checkpoint")
        )
        key = ["topic", "queueId"]
        upsert = writer.foreachBatch(Upsert(gold, key, latest="queueOffset"))
        upsert.trigger(availableNow=True).start().awaitTermination()
        wanted = rows_of(pa.table(DeltaTable(str(gold)).to_pyarrow_table()), *key)
        report("upserted", same=rows_of(self.read(gold), *key) == wanted, rows=len(wanted))

    def read_theirs(self, lake: Path, theirs: Path) -> None:
        """Run our jobs with a table that Delta's library has written."""
        first = DeltaTable(str(lake)).version() - 2
        rows = self.session.read.format("delta").option("versionAsOf", first).load(str(lake))
        rows.repartition(3).write.format("delta").save(str(theirs))
        counted = {one["topic"]: one["messages"] for one in gather(self.session, theirs).topics}
        replay_to_store(self.session, theirs, BROKER, self.work / SLAVE, segment_bytes=SEGMENT_BYTES)
        compacted = DeltaLake(theirs).compact()
        deleted = len(DeltaLake(theirs).vacuum(0))
        after = len(rows_of(self.read(theirs), "commitLogOffset"))
        report("theirs", counted=counted, compacted=compacted, deleted=deleted, after=after)

    def refuse(self, theirs: Path) -> None:
        """Report how jobs refuse tables with deletion vectors and with mapped columns, and what lets them go on."""
        held = DeltaLake(theirs)
        name = f"delta.`{theirs}`"
        self.session.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
        self.session.sql(f"DELETE FROM {name} WHERE topic = 'T0' AND queueOffset < 10")
        vectors = DeltaTable(str(theirs)).deletion_vectors()
        report("vectors", files=sum(batch.num_rows for batch in pa.table(vectors).to_batches()))
        report("refused", errors=[*self.refusals(theirs), refusal(held.data_files), refusal(held.compact)])
        self.session.sql(f"REORG TABLE {name} APPLY (PURGE)")
        left = {one["topic"]: one["messages"] for one in gather(self.session, theirs).topics}
        report("purged", left=left, compacted=DeltaLake(theirs).compact()["filesAdded"], held=len(held.data_files()))
        mapped = self.work / "mapped"
        rows = self.session.read.format("delta").load(str(theirs))
        rows.write.format("delta").option("delta.columnMapping.mode", "name").save(str(mapped))
        report("mapped", errors=self.refusals(mapped))
        parted = self.work / "parted"
        rows.write.format("delta").partitionBy("topic", "queueId").save(str(parted))
        report("partitioned", errors=self.refusals(parted))
        groups = self.work / "groups"
        keys = rows.select("topic", "queueId").distinct().repartition(1)
        keys.write.format("delta").partitionBy("topic").save(str(groups))
        renamed = self.work / "renamed"
        keys.write.format("delta").option("delta.columnMapping.mode", "name").save(str(renamed))
        for table in (groups, renamed):
            self.upsert(table, rows.selectExpr("'T9' AS topic", "max(queueId) AS queueId"))
            found = rows_of(self.read(table), "topic", "queueId")
            report(f"upserted {table.name}", topics=[row["topic"] for row in found], last=found[-1]["queueId"])

    def upsert(self, table: Path, rows: DataFrame) -> None:
        """Merge rows into a table, as in `foreachBatch`."""
        self.session.sparkContext.setLocalProperty(QUERY_ID, "query")
        Upsert(table, ["topic", "queueId"])(rows, 0)

    def refusals(self, lake: Path) -> list[str]:
        """Return the errors of all kinds of jobs."""
        jobs: list[Callable[[], object]] = [
            lambda: gather(self.session, lake),
            lambda: replay_to_store(self.session, lake, BROKER, self.work / "none"),
            lambda: DeltaLake(lake).compact(),
            lambda: DeltaLake(lake).vacuum(0),
            lambda: self.archive(lake),
            lambda: expire(self.session, lake, BORN_MS + 2_000),
            lambda: topic_state(self.session, lake, ["T0"]),
            lambda: remove_from_lake(self.session, lake, Selection(keys=("k1",))),
        ]
        return [refusal(job) for job in jobs]


def main(jars: str, store: str, directory: str) -> None:
    """Run all checks."""
    settings = SHORT | SETTINGS | {"spark.jars": jars}
    session, _ = open_session("delta", master="local[2]", settings=settings)
    work = Path(directory)
    driver = Driver(session, Path(store), work)
    driver.read_ours(work / "lake")
    driver.read_theirs(work / "lake", work / "theirs")
    driver.refuse(work / "theirs")
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
