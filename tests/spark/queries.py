"""A streaming query on the cluster source without Spark: its reader, called as Spark calls it, and a checkpoint."""

import json
from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition

from tandemq.spark.runtime.client_pool import close_clients
from tandemq.spark.sources.cluster.options import source_options
from tandemq.spark.sources.cluster.stream_reader import StreamReader
from tandemq.spark.sources.schema import message_schema


class Query:
    """Planner and tasks of a query in this process; `rows` are the numbers in the bodies that were read."""

    def __init__(self, name_servers: str, **options: Any) -> None:
        self._given = {"nameServer": name_servers, "startingOffsets": "earliest", "timeoutMs": "30000"} | options
        if not {"subscribePattern", "assign"} & options.keys():
            self._given.setdefault("subscribe", "Orders")
        self.rows: list[int] = []
        self.offset: dict[str, Any] | None = None
        """Of the last micro-batch that was completed, as in a checkpoint."""
        self._planned: dict[str, Any] | None = None
        self.restart(closes=False)

    def restart(self, *, closes: bool = True, available_now: bool = False, **options: Any) -> None:
        """Continue in another process, with other options.

        Args:
            closes: no other query uses this process's connections.
            available_now: with that trigger.
        """
        if closes:
            close_clients()
        self._given |= {name: str(value) for name, value in options.items()}
        self._reader = StreamReader(source_options(self._given, streaming=True), message_schema())
        if available_now:
            self._reader.prepareForTriggerAvailableNow()

    def plan(self) -> Sequence[InputPartition]:
        """Record and plan the next micro-batch; a batch that was recorded and not completed is repeated."""
        if self.offset is None:
            self.offset = _recorded(self._reader.initialOffset())
        if self._planned is None:
            self._planned = _recorded(self._reader.latestOffset(self.offset, self._reader.getDefaultReadLimit()))
        return self._reader.partitions(self.offset, self._planned)

    def read(self, tasks: Sequence[InputPartition]) -> int:
        """Read and complete the planned micro-batch; returns the number of rows."""
        rows = [int(body) for task in tasks for batch in self._reader.read(task) for body in batch["body"].to_pylist()]
        self.rows += rows
        self.offset, self._planned = self._planned, None
        return len(rows)

    def step(self) -> int:
        """Plan and read one micro-batch."""
        return self.read(self.plan())

    def drain(self) -> list[int]:
        """Run micro-batches until three in a row have no rows: the first, and the start of a queue, have none."""
        empty = 0
        while empty < 3:
            empty = 0 if self.step() else empty + 1
        return sorted(self.rows)


def _recorded(offset: dict[str, Any]) -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads(json.dumps(offset))
    return recorded
