"""Lag and volume of streaming queries on `format("rocketmq")`, from Spark's progress reports.

    StreamReader.reportLatestOffset ─► progress.sources[i].latestOffset: ends of queues, and the backlog under "/lag"
    progress ─► query_report ─► QueryReport ─► ProgressListener: a log line per topic, or a function of yours

Spark fills `progress.sources[i].metrics` for sources in Java only. The lag is behind the end of the micro-batch when it
was planned, as in Spark's Kafka source. Bytes are counted by Spark itself: `with_volume` adds observed metrics.

Source: docs/guides/pipeline.md, "Progress of a stream"; Spark's StreamingQueryProgress.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from tandemq.errors import ConfigError
from tandemq.spark.sources.cluster.backlog import ANSWER_MS, BROKERS, LAG, MESSAGES, SECONDS

log = logging.getLogger(__name__)
VOLUME = "rocketmq"
"""Name of the observed metrics of `with_volume`."""


@dataclass(frozen=True, slots=True)
class TopicProgress:
    """Progress of one topic at the end of a micro-batch."""

    topic: str
    offsets: int
    """Offsets of the micro-batch: its messages, and those that a filter leaves out."""
    lag: int
    """Offsets behind its end that existed when it was planned."""
    lag_seconds: float | None
    """Age of the first of them, by the driver's clock; 0 if there is none, None if brokers did not return it."""


@dataclass(frozen=True, slots=True)
class BrokerProgress:
    """Progress at one broker group at the end of a micro-batch."""

    broker: str
    lag: int
    """Offsets behind its end that existed when it was planned."""
    answer_ms: int | None
    """Milliseconds in which the group's members answered the planner; None if none did."""


@dataclass(frozen=True, slots=True)
class QueryReport:
    """Progress of a query at the end of a micro-batch."""

    query: str
    """Its name, else its id."""
    batch: int
    topics: tuple[TopicProgress, ...]
    brokers: tuple[BrokerProgress, ...] = ()
    volume: Mapping[str, Any] = field(default_factory=dict)
    """Observed metrics of `with_volume`, by name; empty without it."""

    @property
    def lag(self) -> int:
        """Offsets behind the end of the micro-batch, in all topics."""
        return sum(topic.lag for topic in self.topics)

    @property
    def lag_seconds(self) -> float | None:
        """Age of the oldest message behind the end of the micro-batch; None if a topic's is unknown."""
        ages = [topic.lag_seconds for topic in self.topics]
        known = [age for age in ages if age is not None]
        return max(known, default=0.0) if len(known) == len(ages) else None


def query_report(progress: StreamingQueryProgress) -> QueryReport | None:
    """Return the report of a micro-batch; None if no source of the query is `format("rocketmq")`, or none has reported.

    Args:
        progress: `event.progress` of a listener, or `query.lastProgress`.
    """
    topics: dict[str, list[TopicProgress]] = {}
    brokers: dict[str, BrokerProgress] = {}
    for source in progress.sources:
        start, end, latest = (_tree(text) for text in (source.startOffset, source.endOffset, source.latestOffset))
        if LAG not in latest:
            continue
        for topic, behind in latest[LAG].items():
            offsets = _total(end.get(topic)) - _total(start.get(topic))
            topic_progress = TopicProgress(topic, max(0, offsets), int(behind[MESSAGES]), behind[SECONDS])
            topics.setdefault(topic, []).append(topic_progress)
        for name, figures in latest.get(BROKERS, {}).items():
            found = BrokerProgress(name, int(figures[MESSAGES]), figures[ANSWER_MS])
            brokers[name] = max(brokers.get(name, found), found, key=lambda one: one.lag)
    if not topics:
        return None
    volume = progress.observedMetrics.get(VOLUME)
    return QueryReport(
        progress.name or str(progress.id),
        progress.batchId,
        tuple(_joined(of_topic) for _, of_topic in sorted(topics.items())),
        tuple(brokers[name] for name in sorted(brokers)),
        volume.asDict() if volume is not None else {},
    )


def _tree(text: str | None) -> dict[str, Any]:
    try:
        tree = json.loads(text or "{}")
    except json.JSONDecodeError:  # another source, whose offset is not JSON
        return {}
    return tree if isinstance(tree, dict) else {}


def _total(brokers: Any) -> int:
    return sum(offset for queues in (brokers or {}).values() for name, offset in queues.items() if name.isdigit())


def _joined(found: list[TopicProgress]) -> TopicProgress:
    """Return the progress of a topic that several sources of a query read: the one that is furthest behind."""
    return max(found, key=lambda progress: progress.lag)


def with_volume(rows: DataFrame) -> DataFrame:
    """Return the same rows, counted by Spark as observed metrics: messages, bytes, and the time of the newest message.

    Args:
        rows: of `format("rocketmq")`, with the column body, or value with `schema=kafka`.
    Raises:
        ConfigError: there is no such column.
    """
    body = next((name for name in ("body", "value") if name in rows.columns), None)
    if body is None:
        raise ConfigError("there is no column body (or value) to count", hint="count before columns are selected")
    metrics = [F.count(F.lit(1)).alias("messages"), F.coalesce(F.sum(F.octet_length(body)), F.lit(0)).alias("bytes")]
    time = next((name for name in ("storeTimestamp", "timestamp") if name in rows.columns), None)
    if time is not None:
        metrics.append(F.max(time).alias("newest"))
    return rows.observe(VOLUME, *metrics)


class ProgressListener(StreamingQueryListener):
    """Listener for `spark.streams.addListener` that reports each micro-batch of queries on `format("rocketmq")`."""

    def __init__(self, report: Callable[[QueryReport], None] | None = None) -> None:
        """Create a listener.

        Args:
            report: called after each micro-batch, in a thread of Spark; by default a line per topic is logged.
        """
        self._report = report or log_report

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  # Spark's name
        """Ignore the start of a query."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802  # Spark's name
        """Report a micro-batch."""
        found = query_report(event.progress)
        if found is not None:
            self._report(found)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802  # Spark's name
        """Ignore a trigger without data."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802  # Spark's name
        """Ignore the end of a query."""


def log_report(report: QueryReport) -> None:
    """Log a line per topic, and per broker group."""
    for broker in report.brokers:
        log.info(
            "query=%s batch=%d broker=%s lag=%d answer_ms=%s",
            report.query,
            report.batch,
            broker.broker,
            broker.lag,
            "none" if broker.answer_ms is None else broker.answer_ms,
        )
    for topic_progress in report.topics:
        seconds = "unknown" if topic_progress.lag_seconds is None else f"{topic_progress.lag_seconds:.1f}"
        log.info(
            "query=%s batch=%d topic=%s offsets=%d lag=%d lag_seconds=%s",
            report.query,
            report.batch,
            topic_progress.topic,
            topic_progress.offsets,
            topic_progress.lag,
            seconds,
        )
