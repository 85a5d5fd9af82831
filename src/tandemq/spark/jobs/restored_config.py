"""Configuration of a store that a job makes from an archived log: `config/` of the broker that had the log.

    topics           those of the saved configuration, and those that only the log has: a queue for each queue id
    groups           as saved
    offsets          as saved, at most the end of each queue
    delay progress   as saved, at most the end of each queue; none if it is newer than the log: it may count messages as
                     delivered that the log does not have, so delayed messages of the log are delivered again

A table that a broker or an operator has made or changed in the store is left as it is. A slave copies all from its
master; a broker that starts alone on the store serves with these tables.

Source: docs/guides/pipeline.md, "Replay", "Rebuild"; docs/internals/storage.md, "config files".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tandemq.broker.features.delay.progress import progress_as_json, progress_in
from tandemq.broker.features.delay.service import FILE as DELAYS
from tandemq.broker.state.consumer_offsets import FILE as OFFSETS
from tandemq.broker.state.consumer_offsets import RESETS, SEPARATOR, parse_offsets
from tandemq.broker.state.groups import FILE as GROUPS
from tandemq.broker.state.groups import parse_groups
from tandemq.broker.state.queue_mappings import FILE as MAPPINGS
from tandemq.broker.state.topics import FILE as TOPICS
from tandemq.broker.state.topics import parse_topics
from tandemq.model.topic import SCHEDULE_TOPIC, SYSTEM_TOPICS, TopicConfig, topic_name_error
from tandemq.real.disk import RealDisk
from tandemq.spark.jobs.saved_config import SavedConfig
from tandemq.spark.sources.log.ranges import REMOVED
from tandemq.storage.json_tables import DataVersion, TableFile, encode_table


class RestoredQueue(NamedTuple):
    """End of a queue in a log."""

    offset: int
    """Queue offset behind its last message."""
    log_offset: int
    """Log offset of that message."""


Queues = Mapping[tuple[str, int], RestoredQueue]
"""Queues of a log by topic and queue id."""


@dataclass(slots=True)
class RestoredConfig:
    """Result: what was written."""

    made_ms: int | None = None
    """Time of the saved configuration; None: there is none, only topics were made from the log."""
    origin: str | None = None
    topics: list[str] | None = None
    """Names; None: the store has a table of other origin."""
    groups: int = 0
    offsets: int = 0
    """Number of offsets, by group, topic and queue."""
    clamped: int = 0
    """Number of offsets that were behind the end of their queue."""
    has_delays: bool = False

    def facts(self) -> dict[str, Any]:
        """Return the result as JSON, without topics."""
        return {
            "made": self.made_ms,
            "from": self.origin,
            "groups": self.groups,
            "offsets": self.offsets,
            "clamped": self.clamped,
            "delayProgress": self.has_delays,
        }


def queues_of(rows: DataFrame) -> dict[tuple[str, int], RestoredQueue]:
    """Return the queues of the sound and of the removed rows of a lake."""
    sound = rows.where((F.col("verdict").isNull() | (F.col("verdict") == REMOVED)) & (F.col("queueId") >= 0))
    ends = sound.groupBy("topic", "queueId").agg(
        F.max("queueOffset").alias("offset"), F.max("commitLogOffset").alias("log")
    )
    return {(row["topic"], row["queueId"]): RestoredQueue(row["offset"] + 1, row["log"]) for row in ends.collect()}


class ConfigWriter:
    """Writes the tables of one store."""

    def __init__(
        self, store: Path, queues: Queues, noted: dict[str, int] | None = None, note: Callable[[], None] = lambda: None
    ) -> None:
        """Begin.

        Args:
            store: directory of the store.
            queues: queues of its log.
            noted: progress of a job that is repeated; it gets the checksums of the tables, by which the next run knows
                its own.
            note: writes the progress; called before a table is written.
        """
        self._disk = RealDisk(store)
        self._queues = queues
        self._noted: dict[str, int] = {} if noted is None else noted
        self._note = note

    def write(self, saved: SavedConfig | None, log_end: int) -> RestoredConfig:
        """Write the tables of a saved configuration, and the topics that only the log has.

        Args:
            log_end: end of the log in the store.
        """
        done = RestoredConfig()
        tables = {} if saved is None else saved.tables
        made = self._log_topics(tables.get(TOPICS.name), None if saved is None else saved.log_end)
        known = {topic.topic_name: topic for topic in parse_topics(tables.get(TOPICS.name, {}))}
        if self._put(TOPICS, self._topics(tables.get(TOPICS.name), known | made)):
            done.topics = sorted(known | made)
        if saved is None:
            return done
        done.made_ms, done.origin = saved.made_ms, saved.origin
        if MAPPINGS.name in tables:
            self._put(MAPPINGS, tables[MAPPINGS.name])
        if GROUPS.name in tables and self._put(GROUPS, tables[GROUPS.name]):
            done.groups = len(parse_groups(tables[GROUPS.name]))
        if OFFSETS.name in tables:
            content, count, clamped = self._offsets(tables[OFFSETS.name])
            if self._put(OFFSETS, content):
                done.offsets, done.clamped = count, clamped
        if DELAYS.name in tables and (saved.log_end or 0) <= log_end:
            done.has_delays = self._put(DELAYS, self._delays(tables[DELAYS.name]))
        return done

    def _log_topics(self, table: dict[str, Any] | None, saved_end: int | None) -> dict[str, TopicConfig]:
        """Return the topics that only the log has. One without a record behind the end of the log of a saved table had
        been deleted when the table was read."""
        found: dict[str, RestoredQueue] = {}
        for (name, queue_id), end in self._queues.items():
            before = found.get(name, RestoredQueue(0, 0))
            found[name] = RestoredQueue(max(before.offset, queue_id + 1), max(before.log_offset, end.log_offset))
        return {
            name: TopicConfig(name, last.offset, last.offset)
            for name, last in sorted(found.items())
            if _is_restored(name) and (table is None or saved_end is None or last.log_offset >= saved_end)
        }

    def _topics(self, table: dict[str, Any] | None, topics: Mapping[str, TopicConfig]) -> dict[str, Any]:
        """Return the content of the table: that of the saved one, or of the one that an earlier run made, and more."""
        if table is not None:
            return table | {"topicConfigTable": dict(topics)}
        known = {topic.topic_name: topic for topic in parse_topics(TOPICS.load(self._disk))} if self._is_own() else {}
        return {"dataVersion": DataVersion().as_json(), "topicConfigTable": known | dict(topics)}

    def _is_own(self) -> bool:
        return self._known(TOPICS) is not None

    def _offsets(self, table: dict[str, Any]) -> tuple[dict[str, Any], int, int]:
        """Return the content of the table, the number of offsets, and of those that were reduced."""
        count = clamped = 0
        limited: dict[str, dict[int, int]] = {}
        for key, queues in parse_offsets(table).items():
            topic = key.rpartition(SEPARATOR)[0]
            for queue_id, offset in queues.items():
                end = self._queues.get((topic, queue_id), RestoredQueue(0, 0)).offset
                limited.setdefault(key, {})[queue_id] = min(offset, end)
                count += 1
                clamped += offset > end
        content: dict[str, Any] = {name: table[name] for name in ("dataVersion", RESETS) if name in table}
        return content | {"offsetTable": limited}, count, clamped

    def _delays(self, table: dict[str, Any]) -> dict[str, Any]:
        """Return the content of the table."""
        limited = {
            level: progress.cut(self._queues.get((SCHEDULE_TOPIC, level - 1), RestoredQueue(0, 0)).offset)
            for level, progress in progress_in(table).items()
        }
        return {name: table[name] for name in ("dataVersion",) if name in table} | progress_as_json(limited)

    def _known(self, file: TableFile) -> int | None:
        """Return the checksum of a table in the store, 0 if there is none; None if this job has not made it."""
        data = self._disk.read(file.path)
        if data is None:
            data = self._disk.read(file.backup)
        before = 0 if data is None else crc32(data)
        own = (self._noted.get(file.name), self._noted.get(next_of(file)))
        return before if data is None or before in own else None

    def _put(self, file: TableFile, content: dict[str, Any]) -> bool:
        """Write a table; False if the store has one of other origin."""
        before = self._known(file)
        if before is None:
            return False
        data = encode_table(content)
        # Whether the run dies before or after the table is written, the next one knows it.
        self._noted |= {file.name: before, next_of(file): crc32(data)}
        self._note()
        file.write(self._disk, data)
        return True


def next_of(file: TableFile) -> str:
    """Return the key of the checksum of a table that is about to be written; its name has that of the table before."""
    return f"{file.name}.next"


def _is_restored(name: str) -> bool:
    """Return whether a topic is not one that each broker makes for itself."""
    return name not in SYSTEM_TOPICS and not name.startswith("rmq_sys_") and topic_name_error(name) is None
