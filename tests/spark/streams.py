"""A streaming query of the cluster source in tests."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tandemq.run.children import ChildCluster
from tandemq.run.local import LocalCluster


class Stream:
    """A query with a checkpoint and what it gave so far: a Parquet file per micro-batch, replaced if it comes again."""

    def __init__(self, spark: SparkSession, cluster: LocalCluster | ChildCluster, directory: Path) -> None:
        self._spark = spark
        self._names = cluster.name_servers
        self._directory = directory
        self.batches: dict[int, list[int]] = {}
        self.on_batch: Callable[[int], None] = lambda _batch: None

    def start(self, *, once: bool, **options: Any) -> StreamingQuery:
        given: dict[str, Any] = {"nameServer": self._names, "startingOffsets": "earliest", "timeoutMs": 8_000} | options
        if "subscribePattern" not in given:
            given.setdefault("subscribe", "Orders")
        source = self._spark.readStream.format("rocketmq").options(**given).load()
        writer = source.writeStream.foreachBatch(self._keep)
        writer = writer.option("checkpointLocation", str(self._directory / "checkpoint"))
        return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime="0 seconds")).start()

    def drain(self, **options: Any) -> list[int]:
        """Read all that is there, in as many batches as it takes; returns everything so far."""
        query = self.start(once=True, **options)
        query.awaitTermination()
        return self.rows

    def _keep(self, frame: DataFrame, batch: int) -> None:
        self.on_batch(batch)
        rows = [int(row.body) for row in frame.select("body").collect()]
        if rows or batch in self.batches:
            self.batches[batch] = rows

    @property
    def rows(self) -> list[int]:
        return sorted(row for rows in self.batches.values() for row in rows)

    def offsets(self) -> dict[str, Any]:
        """The newest line of the offset log."""
        files = [path for path in (self._directory / "checkpoint" / "offsets").iterdir() if path.name.isdigit()]
        last = max(files, key=lambda path: int(path.name))
        found: dict[str, Any] = json.loads(last.read_text().splitlines()[-1])
        return found
