"""Progress of streaming queries in files, one per query, for the console and other programs.

    with_progress_files(spark, "/data/shop/progress")      before the queries are started

    progress/<query>.json      {"query": "gold_minutes", "id": …, "state": "running", "batch": 12, "rows": 300, …}

A file is replaced after each micro-batch, so that a reader sees all of it or none. If the driver is killed, the last
micro-batch remains, with the state `running`: the time says how old it is. A file that cannot be written is logged
and harms no query. Source: docs/guides/pipeline-project.md, "In the console"; Spark's StreamingQueryProgress.
"""

import json
import logging
import os
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from tandemq.spark.runtime.local_paths import local_path

log = logging.getLogger(__name__)
HISTORY = 60
"""Number of micro-batches whose rows are kept."""
REASON_CHARACTERS_MAX = 1_000
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


class ProgressFiles(StreamingQueryListener):
    """Listener that writes the files."""

    def __init__(self, directory: str | Path) -> None:
        """Create the directory if needed.

        Raises:
            ConfigError: the path is not local. OSError: the directory cannot be created.
        """
        self._directory = local_path(directory, "the progress of queries")
        self._directory.mkdir(parents=True, exist_ok=True)
        self._queries: dict[str, dict[str, Any]] = {}
        """Content of the progress file of each run."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Begin a file."""
        known: dict[str, Any] = {
            "query": event.name or str(event.id),
            "id": str(event.id),
            "state": "running",
            "history": [],
        }
        self._queries[str(event.runId)] = known
        self._write(known)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Add a micro-batch."""
        known = self._queries.get(str(event.progress.runId))
        if known is not None:
            add_progress(known, json.loads(event.progress.json))
            self._write(known)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Leave the file unchanged after a trigger without data."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """End the file."""
        known = self._queries.pop(str(event.runId), None)
        if known is not None:
            known["state"] = "ended" if event.exception is None else "failed"
            known["error"] = _first_lines(event.exception or "")
            self._write(known)

    def _write(self, known: Mapping[str, Any]) -> None:
        path = self._directory / f"{_UNSAFE.sub('_', str(known['query']))}.json"
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            partial.write_text(json.dumps(known) + "\n", encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            log.warning("progress of query %s: %s cannot be written: %s", known["query"], path, error)


def with_progress_files(spark: SparkSession, directory: str | Path) -> None:
    """Write the progress of all queries of a session that are started from now on. Raises as `ProgressFiles`."""
    spark.streams.addListener(ProgressFiles(directory))


def add_progress(known: dict[str, Any], progress: Mapping[str, Any]) -> None:
    """Add a micro-batch, as Spark reports it, to the state of its query."""
    rows = int(progress["numInputRows"])
    watermark = progress.get("eventTime", {}).get("watermark")
    known["history"] = [*known["history"], rows][-HISTORY:]
    known |= {
        "batch": progress["batchId"],
        "atMs": _ms(progress["timestamp"]),
        "durationMs": progress.get("durationMs", {}).get("triggerExecution", 0),
        "rows": rows,
        "rowsPerSecond": progress.get("processedRowsPerSecond") or 0.0,
        "watermarkMs": None if watermark is None else max(0, _ms(watermark)),
        "stateRows": sum(operator.get("numRowsTotal", 0) for operator in progress.get("stateOperators", ())),
        "stateBytes": sum(operator.get("memoryUsedBytes", 0) for operator in progress.get("stateOperators", ())),
        "lateRows": known.get("lateRows", 0)
        + sum(operator.get("numRowsDroppedByWatermark", 0) for operator in progress.get("stateOperators", ())),
        "behind": messages_behind(progress.get("sources", ())),
    }


def messages_behind(sources: Any) -> int | None:
    """Return the messages that the topics have and a query has not read; None if no source of it is a cluster."""
    found = None
    for source in sources:
        end, latest = (_parsed(source.get(name)) for name in ("endOffset", "latestOffset"))
        for topic, brokers in latest.items():
            for broker, queues in brokers.items() if isinstance(brokers, dict) else ():
                if not topic.startswith("/") and isinstance(queues, dict):
                    read = end.get(topic, {}).get(broker, {})
                    found = (found or 0) + sum(
                        max(0, offset - read.get(queue, 0)) for queue, offset in queues.items() if queue.isdigit()
                    )
    return found


def _parsed(offsets: Any) -> dict[str, Any]:
    if isinstance(offsets, str):
        try:
            offsets = json.loads(offsets)
        except ValueError:
            return {}
    return offsets if isinstance(offsets, dict) else {}


def _ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def _first_lines(error: str) -> str:
    """Return the reason without JVM stack traces."""
    lines = [line for line in error.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    return " ".join(lines[:3])[:REASON_CHARACTERS_MAX]
