"""Replay: sends the messages of a lake to a topic again, or writes its log as the store of a fresh slave. A log that is
in no lake can be sent too.

    lake ─► rows ─► sink ─► topic          sound messages only, each with its original unique key
    lake ─► rows ─► segments ─► store      every byte of the log, so that a new replica starts with all of it

A segment file gets its name only when it is complete and synced. A progress file in the store records the parameters of
the replay, the log offset up to which each segment holds the log, and the checksums of the tables in `config/`: the
same command again writes the segments that are missing, and those of which the lake has more by now. A replay to a
topic records the log offset up to which the lake has been sent, by broker group, if it is given a progress file. New
rows of a lake have larger log offsets, and log offsets survive the compaction of files.

Source: docs/guides/pipeline.md, "Replay"; docs/internals/storage.md, "files".
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tandemq.codec.record.record import inflate
from tandemq.errors import ConfigError, StoreDamaged
from tandemq.model.message import SysFlag
from tandemq.model.topic import DLQ_PREFIX, FORBIDDEN_FOR_SENDING, RETRY_PREFIX, SYSTEM_TOPICS
from tandemq.real.disk import RealDisk, sync_names
from tandemq.spark.jobs.messages import is_log, open_messages
from tandemq.spark.jobs.moments import ALWAYS, TimeSpan
from tandemq.spark.jobs.pace import Rate, paced
from tandemq.spark.jobs.restored_config import ConfigWriter, RestoredConfig, queues_of
from tandemq.spark.jobs.saved_config import SavedConfig, kept_config
from tandemq.spark.jobs.tasks import LOST, Result, gaps_lost
from tandemq.spark.lake.formats import open_lake
from tandemq.spark.lake.records import COLUMNS, blank_bytes, fill_segment
from tandemq.spark.lake.rows import read_files
from tandemq.spark.runtime.local_paths import local_path
from tandemq.spark.runtime.location import Place, locate
from tandemq.spark.sources.cluster.options import sink_options
from tandemq.spark.sources.cluster.sink import BatchWriter
from tandemq.spark.sources.cluster.source import RocketMQDataSource
from tandemq.spark.sources.records import BATCH_INFLATED_BYTES
from tandemq.storage.log.epochs import save_epochs

SEGMENT_BYTES = 1 << 30
PIECE_BYTES = 256 << 20
"""Maximum bytes of log sent between two updates of the progress file."""
PIECE_BYTES_MIN = 1 << 16
PIECE_S = 15.0
"""With a rate: target time between two updates of the progress file."""
SYSTEM_PREFIX = "rmq_sys_"
NAME_DIGITS = 20
STORE_NOTE = "replay.json"
PARTIAL = "replay-"
"""Prefix of the files that tasks write; a complete one is moved into the log."""
UNIQUE_KEY = r"nullif(regexp_extract(properties, '(?:^|\\x02)UNIQ_KEY\\x01([^\\x02]*)', 1), '')"
PLACE_KEY = "upper(md5(concat_ws(' ', brokerName, commitLogOffset, unix_millis(storeTimestamp))))"
"""Unique key for a message that has none; the same at every replay."""
UNLIMITED = Rate()
SPAN_COLUMNS = ("topic", "brokerName", "commitLogOffset", "storeTimestamp", "verdict", "size")
_RESULT = "rows bigint"
ReplayProgress = Callable[["ReplayResult"], None]


@dataclass(slots=True)
class ReplayResult:
    """Progress and result of a replay. `done`, `total`: bytes of log (to topics), or segments (to a store)."""

    rows: int = 0
    bytes: int = 0
    """Bytes of bodies and properties that were sent."""
    done: int = 0
    total: int = 0
    skipped: int = 0
    """Bytes or segments that an earlier run has completed."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Number of messages of excluded topics, by topic."""
    log_start: int | None = None
    log_end: int | None = None
    epochs: list[tuple[int, int]] = field(default_factory=list)
    config: RestoredConfig | None = None
    """Configuration of the store."""
    lost: list[Result] = field(default_factory=list)
    """start, end, why: log offsets that a log misses."""


# Replay to a topic.


def replay_to_topic(
    spark: SparkSession,
    source: Place,
    options: Mapping[str, str],
    *,
    where: str | None = None,
    span: TimeSpan = ALWAYS,
    rate: Rate = UNLIMITED,
    also: Sequence[str] = (),
    broker_name: str | None = None,
    allows_loss: bool = False,
    noted: Path | None = None,
    progress: ReplayProgress = lambda _done: None,
) -> ReplayResult:
    """Send the sound messages of a lake or a log, one piece of the log at a time.

    System topics are excluded and counted: their messages (delayed messages, half messages of transactions) appear
    again in their real topics, and brokers reject messages to most system topics. If all messages go to one topic,
    retry and dead-letter topics are excluded too, because their messages were in another topic before.

    Args:
        source: directory of a lake, a store or archived log files, or their URL.
        options: options of the sink; without `topic` each message goes to the topic it was in.
        where: SQL condition on the lake's columns that selects rows.
        span: times at which the messages to send were stored.
        rate: maximum rate of all tasks together. Pieces are smaller then.
        also: topics to send although they would be excluded.
        broker_name: of the messages of a log: part of the unique keys of those without one, and of the progress.
        allows_loss: whether missing bytes of a log are left out.
        noted: progress file, with which an interrupted replay resumes.
    Raises:
        ConfigError: there is neither a lake nor a log, the progress file is of another replay, or brokers reject
            messages to a topic of `also`.
        OffsetGone: bytes of a log are missing, and `allows_loss` is not set.
        StoreError: the progress file cannot be written; raised before anything is sent, or later.
    """
    refused = sorted(FORBIDDEN_FOR_SENDING & set(also)) if "topic" not in options else []
    if refused:
        raise ConfigError(
            f"brokers accept no messages for {refused[0]}", hint="send its messages to a topic of your own"
        )
    messages = open_messages(source, broker_name=broker_name, allows_loss=allows_loss)
    spark.dataSource.register(RocketMQDataSource)
    note = _ProgressFile(
        noted,
        {
            "lake": messages.location.url,
            "nameServer": options.get("nameServer"),
            "topic": options.get("topic"),
            "also": sorted(also),
            "where": where,
            "from": span.start_ms,
            "to": span.end_ms,
        },
    )
    sent = note.read()
    for position in sent.values():
        messages.check_has(position)
    excluded = _is_excluded(also, is_one_topic="topic" in options)
    wanted = F.col("verdict").isNull() & (F.expr(where) if where is not None else F.expr("true"))
    columns = SPAN_COLUMNS if where is None else None
    done, pieces = _plan_pieces(_spans(messages.rows(spark, columns), span, wanted & ~excluded), sent, rate)
    done.lost = gaps_lost(messages.lost)[LOST]
    note.write(sent)
    send = _Sending(options, rate, spark.sparkContext.defaultParallelism)
    for piece in pieces:
        rows = messages.rows_within(spark, piece.start, piece.end)
        if rows is not None:
            chosen = rows.where(piece.condition()).where(span.condition()).where(wanted)
            count, bytes_ = send(chosen.where(~excluded))
            done.rows += count
            done.bytes += bytes_
            for found in chosen.where(excluded).groupBy("topic").count().collect():
                done.left_out[found["topic"]] = done.left_out.get(found["topic"], 0) + found["count"]
        sent[piece.broker_name] = piece.end
        note.write(sent)
        done.done += piece.end - piece.start
        progress(done)
    return done


@dataclass(frozen=True, slots=True)
class _Piece:
    """Log offsets [start, end) of a broker group."""

    broker_name: str
    start: int
    end: int

    def condition(self) -> Column:
        """Return the condition for rows in this piece."""
        log_offset = F.col("commitLogOffset")
        return (F.col("brokerName") == self.broker_name) & (log_offset >= self.start) & (log_offset < self.end)


class _Span(NamedTuple):
    """Log offsets [start, end) of a broker group in a lake, and number and size of the messages to send."""

    start: int
    end: int
    messages: int
    bytes: int

    def piece_bytes(self, rate: Rate) -> int:
        """Return the bytes of log of a piece: with a rate as many as take PIECE_S, if the messages are spread
        evenly."""
        seconds = rate.seconds(self.messages, self.bytes)
        if not seconds:
            return PIECE_BYTES
        return max(PIECE_BYTES_MIN, min(PIECE_BYTES, int((self.end - self.start) * PIECE_S / seconds)))


def _plan_pieces(spans: Mapping[str, _Span], sent: Mapping[str, int], rate: Rate) -> tuple[ReplayResult, list[_Piece]]:
    """Split the part that is not yet sent into pieces; the result counts the part that is sent."""
    done = ReplayResult()
    pieces: list[_Piece] = []
    for name, span in spans.items():
        begin = max(span.start, min(span.end, sent.get(name, span.start)))
        done.total += span.end - span.start
        done.skipped += begin - span.start
        step = span.piece_bytes(rate)
        pieces += [_Piece(name, start, min(span.end, start + step)) for start in range(begin, span.end, step)]
    done.done = done.skipped
    return done, pieces


def _spans(rows: DataFrame | None, span: TimeSpan, chosen: Column) -> dict[str, _Span]:
    """Return, by broker group, the log offsets of the messages of a time span, and the volume to send."""
    if rows is None:
        return {}
    log_offset, size = F.col("commitLogOffset"), F.when(chosen, F.col("size"))
    groups = rows.where(span.condition()).groupBy("brokerName")
    found = groups.agg(
        F.min(log_offset).alias("low"),
        F.max(log_offset).alias("high"),
        F.count(size).alias("messages"),
        F.sum(size).alias("bytes"),
    )
    return {
        row["brokerName"]: _Span(row["low"], row["high"] + 1, row["messages"], row["bytes"] or 0)
        for row in found.orderBy("brokerName").collect()
    }


def _is_excluded(also: Sequence[str], *, is_one_topic: bool) -> Column:
    topic = F.col("topic")
    found = topic.isin(*SYSTEM_TOPICS) | F.lower(topic).startswith(SYSTEM_PREFIX)
    if is_one_topic:
        found = found | topic.startswith(RETRY_PREFIX) | topic.startswith(DLQ_PREFIX)
    return found & ~topic.isin(*also)


class _ProgressFile:
    """Progress file: parameters of a replay, and the log offset reached by broker group, or by segment with the
    checksums of `ConfigWriter`."""

    def __init__(self, path: Path | None, replay: Mapping[str, Any]) -> None:
        """`replay`: parameters of the replay. `path`: None for no file."""
        self._path = path if path is None else local_path(path, "the note")
        self._replay = dict(replay)

    def read(self) -> dict[str, int]:
        """Return log offsets by name; empty if there is no file yet.

        Raises:
            ConfigError: the file is malformed, or belongs to another replay.
        """
        if self._path is None or not self._path.exists():
            return {}
        try:
            tree = json.loads(self._path.read_text(encoding="utf-8"))
            replay, done = dict(tree["replay"]), {str(name): int(end) for name, end in tree["done"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{self._path} is not the note of a replay", hint="give another file") from error
        for name, value in self._replay.items():
            if replay.get(name) != value:
                raise ConfigError(
                    f"{self._path} is the note of another replay: its {name} is {json.dumps(replay.get(name))}, "
                    f"not {json.dumps(value)}",
                    hint="give another file, or repeat the command that created this one",
                )
        return done

    def write(self, done: Mapping[str, int]) -> None:
        """Replace and sync the file."""
        if self._path is not None:
            disk = RealDisk(self._path.absolute().parent, setting="the note")
            disk.replace(self._path.name, json.dumps({"replay": self._replay, "done": dict(done)}).encode())


class _Sending:
    """Sends rows to a cluster, in the order of their queues."""

    def __init__(self, options: Mapping[str, str], rate: Rate, tasks_max: int) -> None:
        """`options`: of the sink. `tasks_max`: number of tasks that run at the same time."""
        self._options = options
        self._rate = rate
        self._tasks_max = tasks_max

    def __call__(self, rows: DataFrame) -> tuple[int, int]:
        """Send rows; returns the number of messages, and of bytes in bodies and properties."""
        wanted = rows.selectExpr(
            "brokerName",
            "commitLogOffset",
            "queueId",
            "topic",
            "key",
            "tags",
            "properties",
            "body",
            "sysFlag",
            f"coalesce({UNIQUE_KEY}, {PLACE_KEY}) AS uniqueKey",
        )
        queue = ("brokerName", "topic", "queueId")
        parts = (
            wanted.repartition(self._rate.tasks(self._tasks_max), *queue) if self._rate else wanted.repartition(*queue)
        )
        ordered = parts.sortWithinPartitions("brokerName", "commitLogOffset")
        plain = ordered.mapInArrow(_inflated, ordered.schema).cache()
        try:
            return self._send(plain)
        finally:
            plain.unpersist()

    def _send(self, plain: DataFrame) -> tuple[int, int]:
        size = F.octet_length("body") + F.octet_length("properties")
        by_task = plain.groupBy(F.spark_partition_id().alias("task")).agg(
            F.count("*").alias("messages"), F.sum(size).cast("long").alias("bytes")
        )
        tasks = {row["task"]: (row["messages"], row["bytes"]) for row in by_task.collect()}
        messages, bytes_ = (sum(amounts) for amounts in zip(*tasks.values(), strict=True)) if tasks else (0, 0)
        if not messages:
            return 0, 0
        if not self._rate:
            plain.write.format("rocketmq").options(**self._options).mode("append").save()
            return messages, bytes_
        shares = {
            task: self._rate.share(count / messages, part / max(bytes_, 1)) for task, (count, part) in tasks.items()
        }
        writer = BatchWriter(sink_options(self._options), plain.schema)
        plain.mapInArrow(_PacedTask(writer, shares), _RESULT).collect()
        return messages, bytes_


class _PacedTask:
    """Sends the rows of one task at its share of the rate; serialized to tasks."""

    def __init__(self, writer: BatchWriter, shares: Mapping[int, Rate]) -> None:
        """`shares`: rate by partition."""
        self._writer = writer
        self._shares = shares

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None, "runs in a task"
        rate = self._shares.get(context.partitionId())
        if rate is not None:
            done = self._writer.write(paced(batches, rate))
            yield pa.RecordBatch.from_pydict({"rows": [done.count]}, schema=pa.schema({"rows": pa.int64()}))


def _inflated(batches: Iterator[Any]) -> Iterator[Any]:
    """Decompress bodies; a lake keeps them as stored. A batch becomes several if they are large together."""
    for batch in batches:
        flags = batch.column("sysFlag").to_pylist()
        if not any(flag & SysFlag.COMPRESSED for flag in flags):
            yield batch
            continue
        stored, bodies, size = batch.column("body"), list[bytes](), 0
        start = 0
        for row, flag in enumerate(flags):
            body = stored[row].as_py()
            plain = inflate(body, flag) if flag & SysFlag.COMPRESSED else body
            size += len(plain)
            if bodies and size > BATCH_INFLATED_BYTES:
                yield _with_bodies(batch.slice(start, len(bodies)), bodies)
                start, bodies, size = row, [], len(plain)
            bodies.append(plain)
        yield _with_bodies(batch.slice(start), bodies)


def _with_bodies(batch: Any, bodies: list[bytes]) -> Any:
    index = batch.schema.get_field_index("body")
    return batch.set_column(index, batch.schema.field(index), pa.array(bodies, type=batch.schema.field(index).type))


# Replay to the store of a fresh slave.


def replay_to_store(
    spark: SparkSession,
    lake: Place,
    broker_name: str,
    store: Path,
    *,
    segment_bytes: int = SEGMENT_BYTES,
    epochs: Sequence[tuple[int, int]] | None = None,
    config: SavedConfig | None = None,
    progress: ReplayProgress = lambda _done: None,
) -> ReplayResult:
    """Write the log of a broker group, so that a slave that starts on it copies only later records.

    Args:
        store: store directory of the slave: empty, or left by a replay of the same lake and group, which may have
            grown.
        segment_bytes: size of a log file, as configured at the group's brokers.
        epochs: epochs of the group's log from its master; by default those of the rows.
        config: configuration of a member of the group; by default the one kept in the lake, if any.
    Raises:
        ConfigError: the store is in use or of another replay, or the lake has no messages of the group; or it is a log.
        StoreDamaged: records are missing in the lake, or duplicated; no incomplete file is left.
    """
    if is_log(locate(lake, "the lake")):
        raise ConfigError(
            f"{lake} is a log already, not a lake", hint="tandemq spark rebuild --allow-loss makes a store of it"
        )
    table = open_lake(lake)
    store = local_path(store, "the store").absolute()
    note = _ProgressFile(
        store / STORE_NOTE,
        {
            "lake": table.location.url,
            "table": table.identity(),
            "brokerName": broker_name,
            "segmentBytes": segment_bytes,
        },
    )
    ends = note.read()
    _check_fresh(store)
    files = table.data_files()
    if not files:
        raise ConfigError(f"{lake} holds no messages yet", hint="tandemq spark archive fills it")
    rows = read_files(spark, table, files).where(F.col("brokerName") == broker_name)
    plan = _plan(rows, segment_bytes, broker_name)
    directory = store / "commitlog"
    directory.mkdir(parents=True, exist_ok=True)
    missing = _missing_segments(directory, plan, ends, segment_bytes)
    note.write(ends)
    done = ReplayResult(total=len(plan), skipped=len(plan) - len(missing), done=len(plan) - len(missing))
    done.log_start, done.log_end = plan[0].start, plan[-1].end
    for segment in missing:
        chosen = rows.where(
            (F.col("commitLogOffset") >= segment.start) & (F.col("commitLogOffset") < segment.start + segment_bytes)
        )
        done.rows += _write_segment(chosen, directory, segment, segment_bytes)
        ends[segment.name] = segment.end
        note.write(ends)
        done.done += 1
        progress(done)
    for partial in store.glob(f"{PARTIAL}*"):  # of tasks that were killed
        partial.unlink(missing_ok=True)
    done.epochs = list(epochs) if epochs is not None else _epochs_of(rows)
    if done.epochs:
        save_epochs(RealDisk(store), done.epochs)
    saved = config or kept_config(table.location, broker_name, done.log_end)
    writer = ConfigWriter(store, queues_of(rows), ends, lambda: note.write(ends))
    done.config = writer.write(saved, done.log_end)
    return done


@dataclass(frozen=True, slots=True)
class _Segment:
    """A file of the log. `end`: log offset up to which it holds the log; the end of the file unless it is the last
    one."""

    start: int
    end: int
    is_last: bool

    @property
    def name(self) -> str:
        """Name of the file."""
        return f"{self.start:0{NAME_DIGITS}d}"


def _missing_segments(
    directory: Path, plan: Sequence[_Segment], ends: Mapping[str, int], segment_bytes: int
) -> list[_Segment]:
    """Return the segments that are missing or incomplete in the directory of the log.

    Raises:
        ConfigError: the directory contains a file that is not part of the plan.
    """
    sizes = {path.name: path.stat().st_size for path in directory.iterdir()}
    unknown = sorted(sizes.keys() - {segment.name for segment in plan})
    if unknown:
        raise ConfigError(
            f"{directory} contains {unknown[0]}, of which the lake has no records", hint="give an empty directory"
        )
    return [
        segment for segment in plan if (sizes.get(segment.name), ends.get(segment.name)) != (segment_bytes, segment.end)
    ]


def _plan(rows: DataFrame, segment_bytes: int, broker_name: str) -> list[_Segment]:
    """Plan the segments from the first whole one to the last one; each has records.

    Raises:
        ConfigError: the lake has no messages of the group.
        StoreDamaged: records are missing.
    """
    which = F.floor(F.col("commitLogOffset") / F.lit(segment_bytes)).alias("segment")
    spans = rows.groupBy(which).agg(
        F.min("commitLogOffset").alias("start"), F.max(F.col("commitLogOffset") + F.col("size")).alias("end")
    )
    found = {int(row["segment"]): (int(row["start"]), int(row["end"])) for row in spans.collect()}
    if not found:
        raise ConfigError(f"the lake has no messages of the broker group {broker_name!r}", hint="see --broker-name")
    first, last = min(found), max(found)
    if found[first][0] != first * segment_bytes and first + 1 in found:
        first += 1  # retention has deleted the beginning of the first file
    plan = []
    for number in range(first, last + 1):
        start = number * segment_bytes
        begin, end = found.get(number, (start + segment_bytes, 0))
        if begin != start:
            raise StoreDamaged(f"the lake has no records at log offsets {start} to {begin - 1}")
        plan.append(_Segment(start, end if number == last else start + segment_bytes, is_last=number == last))
    _check_queue_offsets(rows)
    return plan


def _check_queue_offsets(rows: DataFrame) -> None:
    """Check that queue offsets have no gap, unless the lake has damage, whose queue offsets are unknown."""
    if rows.where("verdict IS NOT NULL").limit(1).count():
        return
    queue = rows.groupBy("topic", "queueId").agg(
        F.min("queueOffset").alias("low"), F.max("queueOffset").alias("high"), F.count("*").alias("rows")
    )
    wrong = queue.where("high - low + 1 <> rows").first()
    if wrong is not None:
        raise StoreDamaged(
            f"of {wrong['topic']} queue {wrong['queueId']}, offsets {wrong['low']} to {wrong['high']}, "
            f"the lake holds {wrong['rows']} messages",
            hint="archive the missing messages first",
        )


def _check_fresh(store: Path) -> None:
    """Refuse a store directory with files that do not come from a replay."""
    used = [name for name in ("abort", "checkpoint", "consumequeue", "index", "lock") if (store / name).exists()]
    if used:
        raise ConfigError(f"{store} is a store in use: it contains {', '.join(used)}", hint="give an empty directory")
    if (store / "commitlog").is_dir() and not (store / STORE_NOTE).exists():
        raise ConfigError(f"{store} contains a log that does not come from a replay", hint="give an empty directory")


def _write_segment(rows: DataFrame, directory: Path, segment: _Segment, segment_bytes: int) -> int:
    """Write one segment in one task, from its rows in log order. Returns the number of rows."""
    millis = [F.unix_millis(F.col(name)).alias(name) for name in ("bornTimestamp", "storeTimestamp")]
    others = [name for name in COLUMNS if name not in ("bornTimestamp", "storeTimestamp")]
    ordered = rows.select(*others, *millis).repartitionByRange(1, "commitLogOffset")
    ordered = ordered.sortWithinPartitions("commitLogOffset")

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        found = (row for batch in batches for row in batch.to_pylist())
        yield _write_file(found, directory, segment, segment_bytes)

    (result,) = ordered.mapInArrow(write, _RESULT).collect()
    return int(result["rows"])


def _write_file(rows: Iterator[Mapping[str, Any]], directory: Path, segment: _Segment, segment_bytes: int) -> Any:
    fresh = directory.parent / f"{PARTIAL}{segment.name}-{uuid4().hex[:12]}"
    count = end = 0
    try:
        with fresh.open("wb") as file:
            for position, record in fill_segment(rows, segment.start, segment_bytes):
                assert position == end, "records are contiguous"
                file.write(record)
                end = position + len(record)
                count += 1
            if not segment.is_last:
                file.write(blank_bytes(segment_bytes - end))
            file.truncate(segment_bytes)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(directory / segment.name)
        sync_names(directory)
    finally:
        fresh.unlink(missing_ok=True)
    return pa.RecordBatch.from_pydict({"rows": [count]}, schema=pa.schema({"rows": pa.int64()}))


def _epochs_of(rows: DataFrame) -> list[tuple[int, int]]:
    """Return the epochs of the rows as (epoch, first log offset)."""
    found = rows.where("epoch > 0").groupBy("epoch").agg(F.min("commitLogOffset").alias("start")).collect()
    return sorted((int(row["epoch"]), int(row["start"])) for row in found)
