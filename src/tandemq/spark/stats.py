"""Statistics of a log or a lake: per minute and topic, per queue, per consumer group.

Latency is from the producer's clock to the broker's: the log knows no consumer's clock. Lag of a group is what its
topics' queues hold beyond the offsets it committed, as the store's table of offsets says.

Source: docs/pipeline.md, "Statistics".
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from tandemq.codec.fastjson import loads
from tandemq.errors import ConfigError
from tandemq.spark.lake import DeltaLake
from tandemq.spark.logsource import RocketMQLogDataSource

COLUMNS = (
    "topic string, queueId int, queueOffset long, bornTimestamp timestamp, storeTimestamp timestamp, size int, "
    "reconsumeTimes int, verdict string"
)
QUANTILES = (0.5, 0.9, 0.99)
ACCURACY = 1000
RETRY, DEAD = "%RETRY%", "%DLQ%"


@dataclass(slots=True)
class Stats:
    """Rows as dictionaries."""

    minutes: list[dict[str, Any]] = field(default_factory=list)
    """minute (ms since 1970), topic, messages, bytes, retried, p50_ms, p90_ms, p99_ms"""
    topics: list[dict[str, Any]] = field(default_factory=list)
    """topic, queues, messages, bytes, retried, p50_ms, p90_ms, p99_ms, first, last (ms since 1970)"""
    groups: list[dict[str, Any]] = field(default_factory=list)
    """group, topic, committed, end, lag, retries, dead: messages"""
    damaged: int = 0


def source_frame(spark: SparkSession, source: Path) -> DataFrame:
    """The messages of a store directory, or of a lake.

    Raises:
        ConfigError: the lake has no files yet.
    """
    if (source / "_delta_log").is_dir():
        files = DeltaLake(source).data_files()
        if not files:
            raise ConfigError(f"{source} holds no messages yet", hint="tandemq spark archive fills it")
        return spark.read.parquet(*files).selectExpr(*(column.split()[0] for column in COLUMNS.split(", ")))
    spark.dataSource.register(RocketMQLogDataSource)
    return spark.read.format("rocketmq-log").schema(COLUMNS).load(str(source))


def gather(spark: SparkSession, source: Path, *, minutes: bool = True) -> Stats:
    """The statistics of a store directory or a lake; groups only of a store. Raises as reading does."""
    frame = source_frame(spark, source).persist()
    try:
        sound = frame.where("verdict IS NULL").withColumn(
            "latency", (fn.col("storeTimestamp").cast("double") - fn.col("bornTimestamp").cast("double")) * 1000
        )
        found = Stats(damaged=frame.where("verdict IS NOT NULL").count())
        found.topics = _rows(_measured(sound.groupBy("topic"), per_topic=True).orderBy("topic"))
        if minutes:
            minute = (fn.floor(fn.unix_millis("storeTimestamp") / 60_000) * 60_000).alias("minute")
            found.minutes = _rows(_measured(sound.groupBy(minute, "topic")).orderBy("minute", "topic"))
        ends = {
            (row.topic, row.queueId): row.end
            for row in sound.groupBy("topic", "queueId").agg((fn.max("queueOffset") + 1).alias("end")).collect()
        }
    finally:
        frame.unpersist()
    found.groups = _groups(source, ends)
    return found


def _measured(grouped: Any, *, per_topic: bool = False) -> DataFrame:
    quantiles = fn.percentile_approx("latency", [*QUANTILES], ACCURACY)
    measures = [
        fn.count("*").alias("messages"), fn.sum("size").alias("bytes"),
        fn.count_if(fn.col("reconsumeTimes") > 0).alias("retried"), quantiles.alias("quantiles"),
    ]  # fmt: skip
    if per_topic:
        measures += [
            fn.count_distinct("queueId").alias("queues"),
            fn.unix_millis(fn.min("storeTimestamp")).alias("first"),
            fn.unix_millis(fn.max("storeTimestamp")).alias("last"),
        ]
    frame: DataFrame = grouped.agg(*measures)
    return frame


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    rows = []
    for row in frame.collect():
        values = row.asDict()
        quantiles = values.pop("quantiles") or [None] * len(QUANTILES)
        for share, value in zip(QUANTILES, quantiles, strict=True):
            values[f"p{round(100 * share)}_ms"] = None if value is None else round(value, 1)
        rows.append(values)
    return rows


def _groups(source: Path, ends: dict[tuple[str, int], int]) -> list[dict[str, Any]]:
    """Lag by group and topic, from the table of offsets beside the log; queues without messages have none."""
    path = source / "config" / "consumerOffset.json"
    if not path.is_file():
        return []
    table = loads(path.read_bytes()).get("offsetTable") or {}
    rows = []
    for name, offsets in sorted(table.items()):
        topic, _, group = name.partition("@")
        if topic.startswith((RETRY, DEAD)):
            continue
        committed = {int(queue): int(offset) for queue, offset in offsets.items()}
        queues = [(queue, end) for (of, queue), end in ends.items() if of == topic]
        rows.append({
            "group": group, "topic": topic, "committed": sum(committed.values()), "end": sum(end for _, end in queues),
            "lag": sum(max(0, end - committed.get(queue, 0)) for queue, end in queues),
            "retries": sum(end for (of, _), end in ends.items() if of == f"{RETRY}{group}"),
            "dead": sum(end for (of, _), end in ends.items() if of == f"{DEAD}{group}"),
        })  # fmt: skip
    return rows
