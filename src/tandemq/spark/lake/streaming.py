"""Common parts of streaming queries that fill a lake: access to their checkpoint, their end, maintenance of the lake.

    checkpoint/metadata           {"id": …}         identity of the checkpoint
    checkpoint/offsets/<batch>    … its last line   end offset of the source in a micro-batch

Source: docs/guides/pipeline.md, "The lake"; Spark's OffsetSeqLog, StreamMetadata.
"""

import json
import logging
import threading
import time
from collections.abc import Callable
from itertools import chain, count
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from tandemq.errors import ConfigError, LocalError, StoreLocked
from tandemq.spark.lake.delta import VACUUM_HOURS, Lake
from tandemq.spark.runtime.location import Location, Place, locate
from tandemq.spark.runtime.stopping import wait_for

log = logging.getLogger(__name__)
COMPACT_EVERY = 100
"""Number of commits between two compactions."""
VACUUM_EVERY_S = 86_400
"""Interval of vacuums; the first one follows the first compaction."""
_starting = threading.Lock()
"""Held from the choice of a query's name until the query has it."""


def checkpoint_place(given: Place) -> Location:
    """Return the location of a checkpoint. Spark reads and writes it through its own file systems, of which it brings
    those for local directories and HDFS.

    Raises:
        ConfigError: it is in an object store.
    """
    found = locate(given, "the checkpoint")
    if found.scheme not in (None, "hdfs"):
        raise ConfigError(
            f"the checkpoint {found}: Spark keeps no checkpoints in object stores", hint="give a local directory"
        )
    return found


def checkpoint_id(checkpoint: Location) -> str:
    """Return the id of a checkpoint. One created again at the same path has another id; Spark numbers its batches from
    0."""
    with checkpoint.open_input("metadata") as file:
        found = json.loads(file.read())["id"]
    assert isinstance(found, str), "Spark writes a string"
    return found


def planned_end(checkpoint: Location, batch: int) -> Any:
    """Return the end offset of a micro-batch, as the source gave it to Spark; for queries of one source."""
    with checkpoint.open_input(f"offsets/{batch}") as file:
        return json.loads(file.read().splitlines()[-1])


def start_query(
    rows: DataFrame, commit: Callable[[DataFrame, int], None], checkpoint: Location, *, name: str, every: str
) -> StreamingQuery:
    """Start a query that passes each micro-batch to `commit`.

    Args:
        name: of the query, in Spark's UI and progress reports; with a number behind it while another query of the
            session has the name, which Spark would refuse.
        every: trigger interval; "" for trigger availableNow.
    """
    writer = rows.writeStream.foreachBatch(commit).option("checkpointLocation", checkpoint.url)
    writer = writer.trigger(processingTime=every) if every else writer.trigger(availableNow=True)
    with _starting:
        active = {query.name for query in rows.sparkSession.streams.active}
        names = chain([name], (f"{name} ({number})" for number in count(2)))
        return writer.queryName(next(candidate for candidate in names if candidate not in active)).start()


def run_to_end(
    query: StreamingQuery, commit_error: Callable[[], LocalError | None], stop: threading.Event | None = None
) -> None:
    """Wait until a query ends or the wait is interrupted, then stop it.

    Args:
        commit_error: returns the error of a refused commit, None if there is none.
        stop: ends the query between two micro-batches when it is set (`runtime.stopping`).
    Raises:
        LocalError: a commit was refused. StreamingQueryException: any other error of the query.
    """
    try:
        wait_for([query], stop or threading.Event())
    except KeyboardInterrupt:
        query.stop()
        raise
    except StreamingQueryException as error:
        refused = commit_error()
        if refused is not None:
            raise refused from error
        raise
    refused = commit_error()  # when a signal came at the same time
    if refused is not None:
        raise refused


class LakeMaintenance:
    """Maintenance of a lake that is filled continuously: compactions, and a vacuum once a day."""

    def __init__(self, lake: Lake, compact_every: int = COMPACT_EVERY, vacuum_hours: int = VACUUM_HOURS) -> None:
        """`vacuum_hours`: minimum age of files to delete since they left the table; 0: no vacuum."""
        self._lake = lake
        self._every = compact_every
        self._hours = vacuum_hours
        self._commits = 0
        self._vacuum_s = time.monotonic()

    def committed(self) -> None:
        """Count a commit, and run maintenance if it is due."""
        self._commits += 1
        if self._commits % self._every:
            return
        try:
            self._lake.compact()
            if self._hours and time.monotonic() >= self._vacuum_s:
                deleted = self._lake.vacuum(self._hours)
                self._vacuum_s = time.monotonic() + VACUUM_EVERY_S
                log.info("lake: deleted %d files that are not part of the table", len(deleted))
        except StoreLocked as error:
            log.warning("lake: not compacted now: %s", error)
