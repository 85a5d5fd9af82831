"""Time travel: the messages of a topic as they were at a moment, and the latest message of each key.

    lake at a version ─► sound messages of the topic, stored within a span ─► all of them
                                                                           └► per key the last one: the compacted view

The last message of a key is the one stored last, among broker groups by the brokers' clocks. A last message with an
empty body deletes its key, as in RocketMQ's compaction topics. Only positions are shuffled; bodies are read once.

Source: docs/guides/dataset.md, "Time travel".
"""

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tandemq.errors import ConfigError
from tandemq.spark.jobs.moments import ALWAYS, TimeSpan
from tandemq.spark.lake.delta import DeltaLake

PLACE = ("storeTimestamp", "brokerName", "commitLogOffset")


def topic_state(
    spark: SparkSession,
    lake: Path,
    topics: Sequence[str],
    *,
    span: TimeSpan = ALWAYS,
    version: int | None = None,
    latest_by_key: bool = False,
) -> DataFrame:
    """Return the messages of topics that were stored within a span, with all columns of the lake but `verdict`.

    Args:
        version: version of the lake's table; by default the newest.
        latest_by_key: only the last message of each key, by topic; messages without a key are left out.
    Raises:
        ConfigError: there is no lake, or no such version.
        LocalError: files of that version were deleted by vacuum, or by a removal.
    """
    if not topics:
        raise ConfigError("no topic is given", hint="name one or several")
    table = DeltaLake(lake)
    files = table.data_files() if version is None else table.data_files_of(version)
    if not files:
        raise ConfigError(f"{lake} holds no messages{'' if version is None else f' in version {version}'}")
    rows = spark.read.parquet(*files).where("verdict IS NULL").drop("verdict")
    rows = rows.where(F.col("topic").isin(*topics)).where(span.condition())
    if not latest_by_key:
        return rows
    last = rows.where("key IS NOT NULL").groupBy("topic", "key").agg(F.max(F.struct(*PLACE)).alias("last"))
    places = last.select("last.brokerName", "last.commitLogOffset")
    return rows.join(places, ["brokerName", "commitLogOffset"], "left_semi").where("octet_length(body) > 0")
