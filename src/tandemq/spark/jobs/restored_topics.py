"""Topics of a log that `spark.jobs.replay` restores: their names and numbers of queues, from the rows of the lake.

A lake has neither the configuration of topics nor the offsets of groups. A slave copies both from its master; a broker
that starts alone on the restored log serves the topics in this table, and consumers begin where their settings say.

Source: docs/guides/pipeline.md, "Replay"; docs/internals/storage.md, "topics.json".
"""

from collections.abc import Callable
from pathlib import Path
from zlib import crc32

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tandemq.broker.state.topics import FILE, parse_topics
from tandemq.model.topic import SYSTEM_TOPICS, TopicConfig, topic_name_error
from tandemq.real.disk import RealDisk
from tandemq.storage.json_tables import DataVersion, encode_table

NEXT = f"{FILE}.next"
"""Key of the checksum of a table that is about to be written; `FILE` has that of the table before."""


def restore_topics(rows: DataFrame, store: Path, noted: dict[str, int], note: Callable[[], None]) -> list[str]:
    """Write the topics of sound rows into the table of a store, with a queue for each queue id up to the greatest one.
    A table that a broker or an operator has made or changed is left as it is.

    Args:
        noted: progress of the replay; it gets the checksum of the table, by which the next run knows its own.
        note: writes the progress; called before the table is written.
    Returns:
        The names of the topics that are written.
    """
    disk = RealDisk(store)
    data = disk.read(FILE.path)
    if data is None:
        data = disk.read(FILE.backup)
    before = 0 if data is None else crc32(data)
    if data is not None and before not in (noted.get(FILE.name), noted.get(NEXT)):
        return []
    sound = rows.where("verdict IS NULL AND queueId >= 0").groupBy("topic")
    queues = {row["topic"]: row["last"] + 1 for row in sound.agg(F.max("queueId").alias("last")).collect()}
    found = {name: TopicConfig(name, count, count) for name, count in sorted(queues.items()) if _is_restored(name)}
    known = {topic.topic_name: topic for topic in parse_topics(FILE.load(disk))} | found
    table = encode_table({"dataVersion": DataVersion().as_json(), "topicConfigTable": known})
    # Whether the run dies before or after the table is written, the next one knows it.
    noted |= {FILE.name: before, NEXT: crc32(table)}
    note()
    FILE.write(disk, table)
    return list(found)


def _is_restored(name: str) -> bool:
    """Return whether a topic is not one that each broker makes for itself."""
    return name not in SYSTEM_TOPICS and not name.startswith("rmq_sys_") and topic_name_error(name) is None
