"""Statistics of a log or a lake: per minute and topic, per queue, per consumer group.

    ranges of the log, or files of the lake ─► per range: counts by (topic, minute, latency), ends of queues
                                           ─► added up on the driver; quantiles are derived from the counts

Counts can be added, quantiles cannot; therefore an interrupted run resumes with the ranges that are missing. Latency is
the time from the producer's clock to the broker's; the log has no times of consumers. It is counted in milliseconds,
above one second to three digits. The lag of a group is the number of messages after its committed offsets in the
store's offset table.

Source: docs/guides/pipeline.md, "Statistics".
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from tandemq.errors import ConfigError
from tandemq.spark.jobs.saved_config import offsets_of_files
from tandemq.spark.jobs.tasks import (
    LOST,
    ProgressCallback,
    RangeJob,
    Result,
    gaps_lost,
    merge_losses,
    no_progress,
    read_range,
    run_tasks,
)
from tandemq.spark.lake.delta import Lake
from tandemq.spark.lake.files import LakeFile, lake_files, open_parquet
from tandemq.spark.lake.formats import is_lake, open_lake
from tandemq.spark.runtime.location import Location, Place, locate
from tandemq.spark.sources.log.files import LogFiles, open_log
from tandemq.spark.sources.log.gaps import Gap, log_bounds
from tandemq.spark.sources.log.ranges import RANGE_BYTES, REMOVED, BatchBuilder, DecodeOptions, LogRange, split

QUANTILES = (0.5, 0.9, 0.99)
MINUTE_MS = 60_000
EXACT_MS = 1_000
RETRY, DEAD = "%RETRY%", "%DLQ%"
_TIME = pa.timestamp("us", tz="UTC")
COLUMNS = pa.schema(
    {
        "topic": pa.string(),
        "brokerName": pa.string(),
        "queueId": pa.int32(),
        "queueOffset": pa.int64(),
        "bornTimestamp": _TIME,
        "storeTimestamp": _TIME,
        "size": pa.int32(),
        "reconsumeTimes": pa.int32(),
        "verdict": pa.string(),
    }
)


@dataclass(slots=True)
class LogStatistics:
    """Result of the statistics; rows are dictionaries."""

    minutes: list[dict[str, Any]] = field(default_factory=list)
    """minute (ms since 1970), topic, messages, bytes, retried, p50_ms, p90_ms, p99_ms"""
    topics: list[dict[str, Any]] = field(default_factory=list)
    """topic, queues, messages, bytes, retried, p50_ms, p90_ms, p99_ms, first, last (ms since 1970)"""
    groups: list[dict[str, Any]] = field(default_factory=list)
    """group, topic, committed, end, lag, retries, dead: messages"""
    damaged: int = 0
    lost: list[Result] = field(default_factory=list)
    """start, end, why: log offsets of missing files, or gone when they were counted."""


def gather(
    spark: SparkSession,
    source: Place,
    *,
    minutes: bool = True,
    range_bytes: int = RANGE_BYTES,
    state: Path | None = None,
    progress: ProgressCallback = no_progress,
) -> LogStatistics:
    """Compute the statistics of a lake, a store directory or a directory of log files, also at a URL; groups only for a
    log with the offset table of its store.

    Args:
        state: file that keeps the counts; an interrupted run resumes from it.
    Raises:
        ConfigError: the lake has no files yet. Also as `open_log`, `run_tasks` and `read_range`.
    """
    place = locate(source, "the source")
    has_groups = not is_lake(place)
    gaps: list[Gap] = []
    if not has_groups:
        lake = open_lake(place)
        pieces = _lake_files(lake)
        names = hashlib.sha256("\n".join(piece.path for piece in pieces).encode()).hexdigest()
        of_files = RangeJob(f"statistics {place} {names[:16]}", partial(count_file, lake.location))
        results = run_tasks(spark, pieces, of_files, state=state, progress=progress)
    else:
        files = open_log(place)
        end, gaps = log_bounds(files)
        ranges = split(files, files.start, end, range_bytes)
        of_ranges: RangeJob[LogRange] = RangeJob(
            f"statistics {files.directory} {range_bytes}", partial(count_range, files)
        )
        results = run_tasks(spark, ranges, of_ranges, state=state, progress=progress)
    lost = merge_losses([*results, gaps_lost(gaps)])
    found = LogStatistics(damaged=sum(result["damaged"] for result in results), lost=lost)
    ends = _ends(results)
    _measure(found, results, ends, minutes=minutes)
    found.groups = _groups(place, ends) if has_groups else []
    return found


def _lake_files(lake: Lake) -> list[LakeFile]:
    found = lake_files(lake.sizes())
    if not found:
        raise ConfigError(f"{lake.location} holds no messages yet", hint="tandemq spark archive fills it")
    return found


# Counting, in a worker.


def count_range(files: LogFiles, wanted: LogRange) -> Result:
    """Count one range of a log."""
    maker = BatchBuilder(files, COLUMNS)
    lost: list[Result] = []
    reading = DecodeOptions(tuple(COLUMNS.names), inflates=False, keeps_damage=True)
    return _count(maker.batch(rows) for rows in read_range(files, reading, wanted, lost)) | {LOST: lost}


def count_file(lake: Location, wanted: LakeFile) -> Result:
    """Count one file of a lake."""
    with open_parquet(lake, lake.name_of(wanted.path)) as found:
        return _count(batch.cast(COLUMNS) for batch in found.iter_batches(columns=COLUMNS.names))


def _count(batches: Iterator[Any]) -> Result:
    """Aggregate batches to cells (topic, minute, latency, messages, bytes, retried), queues (topic, broker name, queue
    id, end) and topics (topic, first, last)."""
    damaged = 0
    parts = []
    for batch in batches:
        verdict = batch.column("verdict")
        sound = pc.is_null(verdict)
        damaged += pc.sum(pc.not_equal(verdict, REMOVED)).as_py() or 0
        parts.append(_measures(batch.filter(sound)))
    if not parts:
        return {"damaged": damaged, "cells": [], "queues": [], "topics": []}
    table = pa.Table.from_batches(parts)
    cells = table.group_by(["topic", "minute", "latency"]).aggregate(
        [([], "count_all"), ("size", "sum"), ("retried", "sum")]
    )
    queues = table.group_by(["topic", "brokerName", "queueId"]).aggregate([("queueOffset", "max")])
    topics = table.group_by(["topic"]).aggregate([("stored", "min"), ("stored", "max")])
    lasts = _rows(queues, "topic", "brokerName", "queueId", "queueOffset_max")
    return {
        "damaged": damaged,
        "cells": _rows(cells, "topic", "minute", "latency", "count_all", "size_sum", "retried_sum"),
        "queues": [[*queue, last + 1] for *queue, last in lasts],
        "topics": _rows(topics, "topic", "stored_min", "stored_max"),
    }


def _measures(batch: Any) -> Any:
    stored = pc.divide(batch.column("storeTimestamp").cast(pa.int64()), 1000)
    born = pc.divide(batch.column("bornTimestamp").cast(pa.int64()), 1000)
    latency = rounded_ms(pc.subtract(stored, born).to_numpy(zero_copy_only=False).astype(np.int64))
    minute = stored.to_numpy(zero_copy_only=False).astype(np.int64) // MINUTE_MS * MINUTE_MS
    retried = pc.greater(batch.column("reconsumeTimes"), 0).cast(pa.int32())
    columns = {
        **{name: batch.column(name) for name in ("topic", "brokerName", "queueId", "queueOffset", "size")},
        "stored": stored,
        "minute": pa.array(minute),
        "latency": pa.array(latency),
        "retried": retried,
    }
    return pa.RecordBatch.from_arrays([*columns.values()], [*columns])


def rounded_ms(latency: Any) -> Any:
    """Round milliseconds (int64 array) above one second to three digits, to have few distinct values."""
    size = np.abs(latency)
    digits = np.floor(np.log10(np.maximum(size, 1))).astype(np.int64) - 2
    unit = 10 ** np.maximum(digits, 0)
    return np.where(size < EXACT_MS, latency, np.sign(latency) * (size // unit * unit))


def _rows(table: Any, *names: str) -> list[list[Any]]:
    return [list(row) for row in zip(*(table.column(name).to_pylist() for name in names), strict=True)]


# Aggregation, on the driver.


_Ends = dict[tuple[str, str, int], int]
"""End offset by (topic, broker name, queue id)."""


def _ends(results: Sequence[Result]) -> _Ends:
    ends: _Ends = {}
    for result in results:
        for topic, broker_name, queue, end in result["queues"]:
            ends[topic, broker_name, queue] = max(end, ends.get((topic, broker_name, queue), 0))
    return ends


@dataclass(slots=True)
class _Sum:
    """Sums of one topic, or of one minute of a topic."""

    messages: int = 0
    bytes: int = 0
    retried: int = 0
    latencies: Counter[int] = field(default_factory=Counter)

    def add(self, latency: int, messages: int, size: int, retried: int) -> None:
        self.messages += messages
        self.bytes += size
        self.retried += retried
        self.latencies[latency] += messages

    def row(self) -> dict[str, Any]:
        return {"messages": self.messages, "bytes": self.bytes, "retried": self.retried} | {
            f"p{round(100 * share)}_ms": float(self._quantile(share)) for share in QUANTILES
        }

    def _quantile(self, share: float) -> int:
        """Return the smallest latency that a share of the messages does not exceed."""
        left = share * self.messages
        for latency in sorted(self.latencies):
            left -= self.latencies[latency]
            if left <= 0:
                return latency
        raise AssertionError("a sum has at least one message")


def _measure(found: LogStatistics, results: Sequence[Result], ends: _Ends, *, minutes: bool) -> None:
    per_topic: dict[str, _Sum] = {}
    per_minute: dict[tuple[int, str], _Sum] = {}
    spans: dict[str, tuple[int, int]] = {}
    for result in results:
        for topic, minute, *cell in result["cells"]:
            per_topic.setdefault(topic, _Sum()).add(*cell)
            if minutes:
                per_minute.setdefault((minute, topic), _Sum()).add(*cell)
        for topic, first, last in result["topics"]:
            known = spans.get(topic, (first, last))
            spans[topic] = min(first, known[0]), max(last, known[1])
    queues = Counter(topic for topic, _, _ in ends)
    found.topics = [
        {"topic": topic, "queues": queues[topic]}
        | per_topic[topic].row()
        | dict(zip(("first", "last"), spans[topic], strict=True))
        for topic in sorted(per_topic)
    ]
    found.minutes = [
        {"minute": start_minute, "topic": topic} | figures.row()
        for (start_minute, topic), figures in sorted(per_minute.items())
    ]


def _groups(source: Location, ends: _Ends) -> list[dict[str, Any]]:
    """Compute the lag by group and topic from the store's offsets; queues without messages have none."""
    rows = []
    for name, committed in sorted(offsets_of_files(source).items()):
        topic, _, group = name.partition("@")
        if topic.startswith((RETRY, DEAD)):
            continue
        queues = [(queue, end) for (of, _, queue), end in ends.items() if of == topic]
        rows.append(
            {
                "group": group,
                "topic": topic,
                "committed": sum(committed.values()),
                "end": sum(end for _, end in queues),
                "lag": sum(max(0, end - committed.get(queue, 0)) for queue, end in queues),
                "retries": sum(end for (of, _, _), end in ends.items() if of == f"{RETRY}{group}"),
                "dead": sum(end for (of, _, _), end in ends.items() if of == f"{DEAD}{group}"),
            }
        )
    return rows
