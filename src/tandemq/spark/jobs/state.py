"""Time travel: the messages of a topic as they were at a moment, and the latest message of each key.

    lake at a version, or log ─► sound messages of the topic, stored within a span
        ├► all of them
        └► per key the last one: the compacted view

The last message of a key is the one stored last, among broker groups by the brokers' clocks. A last message with an
empty body deletes its key, as in RocketMQ's compaction topics. Only positions are shuffled; bodies are read once.

Source: docs/guides/dataset.md, "Time travel".
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tandemq.errors import ConfigError
from tandemq.spark.jobs.messages import LakeMessages, LogMessages, Messages, open_messages
from tandemq.spark.jobs.moments import ALWAYS, TimeSpan
from tandemq.spark.runtime.location import Place

PLACE = ("storeTimestamp", "brokerName", "commitLogOffset")


def topic_state(
    spark: SparkSession,
    source: Place | Messages,
    topics: Sequence[str],
    *,
    span: TimeSpan = ALWAYS,
    version: int | None = None,
    latest_by_key: bool = False,
) -> DataFrame:
    """Return the messages of topics that were stored within a span, with all columns of a lake but `verdict`.

    Args:
        source: directory of a lake, a store or archived log files, or their URL; or what `open_messages` returned.
        version: version of a lake's table; by default the newest.
        latest_by_key: only the last message of each key, by topic; messages without a key are left out.
    Raises:
        ConfigError: there is neither a lake nor a log, or no such version.
        LocalError: files of that version were deleted by vacuum, or by a removal; or the storage refuses access or does
            not respond.
        OffsetGone: bytes of a log are missing.
    """
    if not topics:
        raise ConfigError("no topic is given", hint="name one or several")
    opened = source if isinstance(source, LakeMessages | LogMessages) else open_messages(source, version=version)
    if opened.rows(spark) is None:
        raise ConfigError(f"{opened.location} holds no messages{'' if version is None else f' in version {version}'}")

    def sound(columns: Sequence[str] | None = None) -> DataFrame:
        rows = opened.rows(spark, columns)
        assert rows is not None, "there are messages"
        rows = rows.where("verdict IS NULL").drop("verdict")
        return rows.where(F.col("topic").isin(*topics)).where(span.condition())

    rows = sound()
    if not latest_by_key:
        return rows
    placed = sound(["topic", "key", *PLACE, "verdict"]).where("key IS NOT NULL")
    latest = placed.groupBy("topic", "key").agg(F.max(F.struct(*PLACE)).alias("last"))
    places = latest.select("last.brokerName", "last.commitLogOffset")
    return rows.join(places, ["brokerName", "commitLogOffset"], "left_semi").where("octet_length(body) > 0")
