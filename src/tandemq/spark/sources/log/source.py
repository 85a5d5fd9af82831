"""`format("rocketmq-log")`: messages from commit log files, batch and streaming. No broker is needed.

    driver     where does the log begin and end? ─► ranges         offset of a stream: {"broker-a": {"offset", "epoch"}}
    tasks      range ─► windows ─► Arrow batches ─► Spark          or Parquet files, and only their names to Spark

A stream follows a directory that grows. Its offsets say which generation of the log they belong to: a range that was
written anew after a failover is noticed, never mixed in. Spark notes where a micro-batch ends and not where the first
one begins: if the options do not say that either, it ends there, empty, so that a restart begins nowhere else.

Source: docs/guides/pipeline.md, "The log as a source".
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from tandemq.errors import ConfigError, OffsetGone, StoreDamaged
from tandemq.spark.runtime.versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
    arrow_schema,
    begin_of,
    suited,
)
from tandemq.spark.runtime.worker import keep_modules
from tandemq.spark.sources.log.files import LogFileReader, LogFiles, find_record, log_end, open_log
from tandemq.spark.sources.log.options import EARLIEST, LATEST, LogOptions, Place, parse_place, place_json, read_options
from tandemq.spark.sources.log.ranges import BatchMaker, LogRange, Reading, Rows, lost_text, planned_rows, split
from tandemq.spark.sources.log.tail import is_boundary
from tandemq.spark.sources.schema import KAFKA_SOURCES, check_columns, message_schema

log = logging.getLogger(__name__)
CLOSING_BYTES = 64
"""Before the log's end: if they change, it is not that end any more."""

FILES = StructType(
    [
        StructField("file", StringType()),
        StructField("rows", LongType()),
        StructField("bytes", LongType()),
        StructField("start", LongType()),
        StructField("end", LongType()),
        StructField("stats", StringType()),
        StructField("damaged", IntegerType()),
    ]
)
"""With `writeTo`: what a task says of each file it wrote."""


class LogPartition(InputPartition):
    """Ranges that one task reads."""

    def __init__(self, ranges: Sequence[LogRange]) -> None:
        """In the log's order."""
        super().__init__(tuple(ranges))


class RocketMQLogDataSource(DataSource):
    """Register it with `spark.dataSource.register(RocketMQLogDataSource)`, then read `format("rocketmq-log")`."""

    @classmethod
    def name(cls) -> str:
        """What `format` takes."""
        return "rocketmq-log"

    def schema(self) -> StructType:
        """The columns, by the options."""
        return _offered(read_options(self.options))

    def reader(self, schema: StructType) -> "LogBatchReader":
        """A batch query."""
        return LogBatchReader(read_options(self.options, streams=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """A streaming query."""
        return suited(LogStreamReader(read_options(self.options, streams=True), schema))


def _offered(options: LogOptions) -> StructType:
    if options.write_to is not None:
        return FILES
    return message_schema(kafka=options.kafka, map_properties=options.maps_properties, details=options.details)


class _Query:
    """What batch and stream have in common: where to begin, and what a task does."""

    def __init__(self, options: LogOptions, schema: StructType) -> None:
        """Judge the columns asked for."""
        offered = (
            FILES
            if options.write_to is not None
            else message_schema(kafka=options.kafka, map_properties=options.maps_properties, details=not options.kafka)
        )
        self._names = check_columns(schema, offered, "rocketmq-log")
        self._options = options
        self._schema = schema

    def _open(self) -> LogFiles:
        return open_log(self._options.path, self._options.broker_name)

    def _start(self, files: LogFiles, end: int) -> int:
        """Where a query begins by its options.

        Raises:
            ConfigError: the log ends before that.
        """
        if self._options.start > end:
            raise ConfigError(
                f"startingOffsets is {self._options.start}, and the log in {self._options.path} ends at {end}",
                hint="log offsets are bytes; latest is where the log ends now",
            )
        return self._resolve(files, self._options.start, end)

    def _resolve(self, files: LogFiles, wanted: int, end: int) -> int:
        """A log offset for an option: a record boundary, with a record or damage behind it."""
        if wanted in (EARLIEST, LATEST):
            return files.start if wanted == EARLIEST else end
        if wanted < files.start:
            self._lost(f"log offset {wanted} is gone; the log begins at {files.start}")
            return files.start
        if wanted >= end:
            return end
        with LogFileReader(files) as read:
            found = wanted if is_boundary(read, wanted) else find_record(read, wanted, end)
        return end if found is None else found

    def _lost(self, what: str) -> None:
        if self._options.fails_on_loss:
            raise OffsetGone(f"{self._options.path}: {what}", hint="set failOnDataLoss to false to go on without")
        log.warning("rocketmq-log: %s: %s; going on without", self._options.path, what)

    def _lost_range(self, start: int, end: int, why: str) -> None:
        self._lost(lost_text(start, end, why))

    def _read(self, partition: InputPartition | None) -> Iterator[Any]:
        if partition is not None and partition.value:
            yield from self._batches(partition.value)
            keep_modules()

    def _batches(self, ranges: Sequence[LogRange]) -> Iterator[Any]:
        files = self._open()
        if self._options.write_to is not None:
            from tandemq.spark.lake.parquet_writer import write_ranges  # noqa: PLC0415  # only where files are written

            yield write_ranges(files, self._options, ranges, self._lost_range)
            return
        columns = _message_columns(self._names) if self._options.kafka else self._names
        reading = Reading(
            tuple(columns),
            checks=self._options.checks,
            inflates=self._options.inflates,
            keeps_damage="verdict" in columns,
            fails_on_damage=self._options.fails_on_loss,
            maps_properties=self._options.maps_properties and "properties" in columns,
        )
        maker = BatchMaker(files, arrow_schema(self._schema))
        for rows in planned_rows(files, reading, ranges, self._lost_range):
            yield maker.batch(_as_kafka(rows, self._names) if self._options.kafka else rows)


def _message_columns(names: Sequence[str]) -> list[str]:
    """The columns that Kafka's are made of."""
    return [KAFKA_SOURCES[name] for name in names if name in KAFKA_SOURCES]


def _as_kafka(rows: Rows, names: Sequence[str]) -> Rows:
    count = len(rows.offsets)
    columns = {name: rows.columns[KAFKA_SOURCES[name]] for name in names if name in KAFKA_SOURCES}
    if "key" in columns:
        key = columns["key"]
        columns["key"] = (
            [None if one is None else one.encode() for one in key] if isinstance(key, list) else key.cast("binary")
        )
    if "timestampType" in names:
        columns["timestampType"] = [0] * count
    return Rows(columns, rows.offsets, rows.verdicts)


class LogBatchReader(_Query, DataSourceReader):
    """A batch query: what the log holds when it is planned."""

    def partitions(self) -> list[InputPartition]:
        """One task per range."""
        files = self._open()
        with LogFileReader(files) as read:
            end = log_end(read)
        start = self._start(files, end)
        if self._options.end > end:
            self._lost(f"endingOffsets is {self._options.end}, and the log ends at {end}")
        stop = self._resolve(files, self._options.end, end)
        return [LogPartition([one]) for one in split(files, start, stop, self._options.range_bytes)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one task, as Arrow batches."""
        return self._read(partition)


class LogStreamReader(_Query, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query: what the log holds, then what is written to it."""

    def __init__(self, options: LogOptions, schema: StructType) -> None:
        """Nothing is opened yet."""
        super().__init__(options, schema)
        self._end: int | None = None
        self._closing = b""
        self._shorter: int | None = None
        self._target: int | None = None
        self._is_beginning = False

    def _look(self) -> tuple[LogFiles, int]:
        files = self._open()
        with LogFileReader(files) as read:
            # A log that lost its tail is looked at anew.
            known = self._end if self._end is not None and _before(read, self._end) == self._closing else None
            self._end = log_end(read, known)
            self._closing = _before(read, self._end)
        return files, self._end

    def initialOffset(self) -> dict[str, dict[str, int]]:  # noqa: N802  # Spark's name
        """Where a query without a checkpoint begins."""
        files, end = self._look()
        self._is_beginning = self._options.start in (EARLIEST, LATEST)
        return self._place(files, self._start(files, end))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """`maxBytesPerTrigger`, else everything."""
        return ReadMaxBytes(self._options.bytes_max) if self._options.bytes_max is not None else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """The log ends, for this query, where it ends now."""
        self._target = self._look()[1]

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, dict[str, int]]:  # noqa: N802
        """Where the next micro-batch ends: a record boundary; the first one where it begins.

        Raises:
            StoreDamaged: the log ends before `start`.
        """
        if self._is_beginning:
            self._is_beginning = False
            return start
        files, end = self._look()
        begin = parse_place(start, files.broker_name).log_offset
        if end < begin and end != self._shorter:
            self._rewritten(f"the log ends at {end}, but was read up to {begin} already")
            self._shorter = end
        end = end if self._target is None else min(end, self._target)
        if end < begin:
            return start
        if isinstance(limit, ReadMaxBytes) and end - begin > limit.max_bytes:
            with LogFileReader(files) as read:
                end = find_record(read, max(begin, files.start) + limit.max_bytes, end) or end
        return self._place(files, end)

    def reportLatestOffset(self) -> dict[str, dict[str, int]]:  # noqa: N802  # Spark's name
        """The log's end, for the query's progress."""
        return self._place(*self._look())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """One task per range; a small micro-batch is one task.

        Raises:
            StoreDamaged: the log was written anew before `start`.
            OffsetGone: retention has taken bytes behind `start`.
        """
        self._is_beginning = False  # a first batch that is done again
        files = self._open()
        begin, stop = parse_place(begin_of(start, end), files.broker_name), parse_place(end, files.broker_name)
        at = begin.log_offset
        if at > files.start and files.epoch_at(at - 1) != begin.epoch:
            self._rewritten(
                f"what lies before log offset {at} was of generation {begin.epoch}, and is now of "
                f"generation {files.epoch_at(at - 1)}"
            )
        if at < files.start:
            self._lost(f"log offsets [{at}, {files.start}) are gone")
            at = files.start
        if stop.log_offset > files.capacity_end:
            self._rewritten(f"log offsets [{files.capacity_end}, {stop.log_offset}) were there and are no more")
        ranges = split(files, at, min(stop.log_offset, files.capacity_end), self._options.range_bytes)
        if sum(one.end - one.start for one in ranges) <= self._options.range_bytes:
            return [LogPartition(ranges)] if ranges else []
        return [LogPartition([one]) for one in ranges]

    def _rewritten(self, what: str) -> None:
        if self._options.fails_on_loss:
            raise StoreDamaged(
                f"{self._options.path}: {what}: the log was written anew after a failover",
                hint="what was read of it may be of no message any more; set failOnDataLoss to false to go on",
            )
        log.warning("rocketmq-log: %s: %s; going on", self._options.path, what)

    def _place(self, files: LogFiles, log_offset: int) -> dict[str, dict[str, int]]:
        epoch = files.epoch_at(log_offset - 1) if log_offset > files.start else 0
        return place_json(files.broker_name, Place(log_offset, epoch))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one task, as Arrow batches."""
        return self._read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to let go of."""


def _before(read: LogFileReader, end: int) -> bytes:
    """The last bytes before an offset, of the file that they lie in."""
    size = min(CLOSING_BYTES, (end - 1) % read.files.segment_bytes + 1) if end else 0
    return read(end - size, size) if size else b""
