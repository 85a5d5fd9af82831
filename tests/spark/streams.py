"""A streaming query of the cluster source or the log source, for tests."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tandemq.run.children import ChildCluster
from tandemq.run.local import LocalCluster
from tests.blackbox.programs import wait_until


class Stream:
    """A query with a checkpoint and its output: a Parquet file per micro-batch, replaced if the batch is repeated."""

    format = "rocketmq"
    number = "body"
    """Expression for the number of a message."""

    def __init__(self, spark: SparkSession, cluster: LocalCluster | ChildCluster | str, directory: Path) -> None:
        names = cluster if isinstance(cluster, str) else cluster.name_servers
        self._spark = spark
        self._given = {"nameServer": names, "subscribe": "Orders", "startingOffsets": "earliest", "timeoutMs": "8000"}
        self._directory = directory
        self.batches: dict[int, list[int]] = {}
        self.on_batch: Callable[[int], None] = lambda _batch: None

    def start(self, *, once: bool, **options: Any) -> StreamingQuery:
        given: dict[str, Any] = self._given | options
        if "subscribePattern" in given:
            given.pop("subscribe")
        source = self._spark.readStream.format(self.format).options(**given).load()
        writer = source.writeStream.foreachBatch(self._keep)
        writer = writer.option("checkpointLocation", str(self._directory / "checkpoint"))
        return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime="0 seconds")).start()

    def drain(self, **options: Any) -> list[int]:
        """Read everything available, in several batches if needed; returns all numbers read so far."""
        query = self.start(once=True, **options)
        query.awaitTermination()
        return self.rows

    def run_until(self, done: Callable[[], bool], **options: Any) -> str:
        """Run the query until a condition holds, or until it fails; returns the error text."""
        query = self.start(once=False, **options)
        wait_until(lambda: done() or not query.isActive, "the condition holds or the query has ended", seconds=600)
        query.stop()
        return str(query.exception() or "")

    def _keep(self, frame: DataFrame, batch: int) -> None:
        self.on_batch(batch)
        rows = [int(row.number) for row in frame.selectExpr(f"{self.number} as number").collect()]
        if rows or batch in self.batches:
            self.batches[batch] = rows

    @property
    def rows(self) -> list[int]:
        return sorted(row for rows in self.batches.values() for row in rows)

    def offsets(self) -> dict[str, Any]:
        """Return the newest entry of the offset log."""
        files = [path for path in (self._directory / "checkpoint" / "offsets").iterdir() if path.name.isdigit()]
        last = max(files, key=lambda path: int(path.name))
        found: dict[str, Any] = json.loads(last.read_text().splitlines()[-1])
        return found


class LogStream(Stream):
    """The same for a log written by `LogWriter`."""

    format = "rocketmq-log"
    number = "substring(key, 2)"

    def __init__(self, spark: SparkSession, store: Path, directory: Path) -> None:
        super().__init__(spark, "", directory)
        self._given = {"path": str(store)}
