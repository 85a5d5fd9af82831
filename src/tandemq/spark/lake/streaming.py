"""What streaming queries that fill a lake have in common: what their checkpoint says, their end, the care of the lake.

    checkpoint/metadata           {"id": …}         tells it from one made anew in its place
    checkpoint/offsets/<batch>    … its last line   where the source's part of a micro-batch ends

Source: docs/guides/pipeline.md, "The lake"; Spark's OffsetSeqLog, StreamMetadata.
"""

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from tandemq.errors import LocalError, StoreLocked
from tandemq.spark.lake.delta import VACUUM_HOURS, Lake

log = logging.getLogger(__name__)
POLL_S = 1
COMPACT_EVERY = 100
"""Commits between two compactions."""
VACUUM_EVERY_S = 86_400
"""Between two sweeps; the first one comes with the first compaction."""


def checkpoint_id(checkpoint: Path) -> str:
    """What tells a checkpoint from one made anew in its place: Spark numbers batches from 0 in each."""
    found = json.loads((checkpoint / "metadata").read_text(encoding="utf-8"))["id"]
    assert isinstance(found, str), "Spark writes a text"
    return found


def planned_end(checkpoint: Path, batch: int) -> Any:
    """Where a micro-batch of one source ends, as the source told Spark."""
    return json.loads((checkpoint / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()[-1])


def start_query(
    rows: DataFrame, commit: Callable[[DataFrame, int], None], checkpoint: Path, *, every: str
) -> StreamingQuery:
    """Start a query that gives each micro-batch to `commit`: one `every` so often, or, if that is "", all there is."""
    writer = rows.writeStream.foreachBatch(commit).option("checkpointLocation", str(checkpoint))
    return (writer.trigger(processingTime=every) if every else writer.trigger(availableNow=True)).start()


def run_to_end(query: StreamingQuery, trouble: Callable[[], LocalError | None]) -> None:
    """Wait until a query has ended, or until an interruption, and stop it.

    Args:
        trouble: why a commit was refused, if one was.
    Raises:
        LocalError: a commit was refused. StreamingQueryException: something else went wrong.
    """
    try:
        while not query.awaitTermination(POLL_S):
            pass
    except Exception as error:
        refused = trouble()
        if refused is not None:
            raise refused from error
        raise
    finally:
        query.stop()


class Care:
    """Compacts a lake that is filled all the time, and sweeps up once a day."""

    def __init__(self, lake: Lake, compact_every: int = COMPACT_EVERY, vacuum_hours: int = VACUUM_HOURS) -> None:
        """`vacuum_hours`: files that have not been part of the lake for so long are deleted; 0: none is."""
        self._lake = lake
        self._every = compact_every
        self._hours = vacuum_hours
        self._commits = 0
        self._vacuum_s = time.monotonic()

    def committed(self) -> None:
        """One more commit."""
        self._commits += 1
        if self._commits % self._every:
            return
        try:
            self._lake.compact()
            if self._hours and time.monotonic() >= self._vacuum_s:
                deleted = self._lake.vacuum(self._hours)
                self._vacuum_s = time.monotonic() + VACUUM_EVERY_S
                log.info("lake: deleted %d files that are no part of it", len(deleted))
        except StoreLocked as error:
            log.warning("lake: not compacted now: %s", error)
