"""`format("rocketmq-log")`: messages from commit log files, batch and streaming. No broker is needed.

    driver     start and end of the log ─► ranges                  stream offset: {"broker-a": {"offset", "epoch"}}
    tasks      range ─► windows ─► Arrow batches ─► Spark          or Parquet files, and only their names to Spark

A stream follows a growing directory. Its offsets carry the epoch of the log, so that a range rewritten after a failover
is detected and never mixed in. Spark records the end of each micro-batch, but not the start of the first one. If the
options do not give that start, the first micro-batch is empty and ends there, so that a restart begins at the same
offset.

Source: docs/guides/pipeline.md, "The log as a source".
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

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
    adapt_reader,
    arrow_schema,
    batch_start,
)
from tandemq.spark.runtime.worker import freeze_modules
from tandemq.spark.runtime.worker_errors import shows_one_line
from tandemq.spark.sources.log.files import LogFileReader, LogFiles, find_record, log_end, open_log
from tandemq.spark.sources.log.gaps import Gap, gaps_before, gaps_behind, gaps_between, stored_end
from tandemq.spark.sources.log.options import (
    EARLIEST,
    LATEST,
    LogOptions,
    LogPosition,
    parse_position,
    position_json,
    read_options,
)
from tandemq.spark.sources.log.ranges import (
    BatchBuilder,
    DecodeOptions,
    LogRange,
    Rows,
    describe_loss,
    read_planned,
    split,
)
from tandemq.spark.sources.log.tail import is_boundary
from tandemq.spark.sources.schema import KAFKA_SOURCES, check_columns, message_schema

log = logging.getLogger(__name__)
TAIL_BYTES = 64
"""Bytes before the log's end, compared at each poll: if they change, the cached end is invalid."""
SETTLED_S = 10
"""Age of the last change of files at a URL, from which on another listing without a change means that the end of the
log is the same: storages give times in whole seconds. The zeros behind the end are not read again then."""

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
"""Columns with `writeTo`: one row per file that a task wrote."""


class LogPartition(InputPartition):
    """Ranges that one task reads, in log order."""

    def __init__(self, ranges: Sequence[LogRange]) -> None:
        """`ranges`: in log order."""
        super().__init__(tuple(ranges))


@shows_one_line
class RocketMQLogDataSource(DataSource):
    """Register it with `spark.dataSource.register(RocketMQLogDataSource)`, then read `format("rocketmq-log")`."""

    storage: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    """Storage options of `path` and `writeTo`; not options of the query, which Spark shows."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "rocketmq-log"

    def schema(self) -> StructType:
        """Return the columns, as the options define them."""
        return _offered(self._read_options())

    def reader(self, schema: StructType) -> "LogBatchReader":
        """Return the reader of a batch query."""
        return LogBatchReader(self._read_options(streams=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """Return the reader of a streaming query."""
        return adapt_reader(lambda: LogStreamReader(self._read_options(streams=True), schema))

    def _read_options(self, *, streams: bool | None = None) -> LogOptions:
        return read_options(self.options, streams=streams, storage=self.storage)


def source_with_storage(
    path: Mapping[str, str] | None = None, write_to: Mapping[str, str] | None = None
) -> type[RocketMQLogDataSource]:
    """Return a source with storage options for its locations at URLs: they are part of the class, which Spark copies to
    its Python processes and shows nowhere."""
    given = {name: dict(options) for name, options in (("path", path), ("writeTo", write_to)) if options}

    class StoredLogDataSource(RocketMQLogDataSource):
        storage: ClassVar[Mapping[str, Mapping[str, str]]] = given

    return StoredLogDataSource if given else RocketMQLogDataSource


def _offered(options: LogOptions) -> StructType:
    if options.write_to is not None:
        return FILES
    return message_schema(kafka=options.kafka, map_properties=options.maps_properties, details=options.details)


class _Query:
    """Base of batch and stream readers: the start offset, and the work of a task."""

    def __init__(self, options: LogOptions, schema: StructType) -> None:
        """Validate the requested columns."""
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
        """Return the start offset that the options give.

        Raises:
            ConfigError: the log ends before it.
        """
        if self._options.start > end:
            raise ConfigError(
                f"startingOffsets is {self._options.start}, and the log in {self._options.path} ends at {end}",
                hint="log offsets are bytes; latest is the present end of the log",
            )
        return self._resolve(files, self._options.start, end)

    def _resolve(self, files: LogFiles, wanted: int, end: int) -> int:
        """Resolve an offset option to a record boundary at or after it."""
        if wanted == EARLIEST:
            for gap in gaps_before(files):
                self._lost_range(*gap)
            return files.start
        if wanted == LATEST:
            return end
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
            raise OffsetGone(
                f"{self._options.path}: {what}", hint="set failOnDataLoss to false to continue without them"
            )
        log.warning("rocketmq-log: %s: %s; continuing without", self._options.path, what)

    def _lost_range(self, start: int, end: int, why: str) -> None:
        self._lost(describe_loss(start, end, why))

    def _read(self, partition: InputPartition | None) -> Iterator[Any]:
        if partition is not None and partition.value:
            yield from self._batches(partition.value)
            freeze_modules()

    def _batches(self, ranges: Sequence[LogRange]) -> Iterator[Any]:
        files = self._open()
        if self._options.write_to is not None:
            from tandemq.spark.sources.log.parquet_writer import write_ranges  # noqa: PLC0415  # needed only with writeTo

            yield write_ranges(files, self._options, ranges, self._lost_range)
            return
        columns = _message_columns(self._names) if self._options.kafka else self._names
        reading = DecodeOptions(
            tuple(columns),
            checks=self._options.checks,
            inflates=self._options.inflates,
            keeps_damage="verdict" in columns,
            fails_on_damage=self._options.fails_on_loss,
            maps_properties=self._options.maps_properties and "properties" in columns,
        )
        maker = BatchBuilder(files, arrow_schema(self._schema))
        for rows in read_planned(files, reading, ranges, self._lost_range):
            yield maker.batch(_as_kafka(rows, self._names) if self._options.kafka else rows)


def _message_columns(names: Sequence[str]) -> list[str]:
    """Return the columns of MESSAGE from which Kafka's columns are built."""
    return [KAFKA_SOURCES[name] for name in names if name in KAFKA_SOURCES]


def _as_kafka(rows: Rows, names: Sequence[str]) -> Rows:
    count = len(rows.offsets)
    columns = {name: rows.columns[KAFKA_SOURCES[name]] for name in names if name in KAFKA_SOURCES}
    if "key" in columns:
        key = columns["key"]
        columns["key"] = (
            [None if text is None else text.encode() for text in key] if isinstance(key, list) else key.cast("binary")
        )
    if "timestampType" in names:
        columns["timestampType"] = [0] * count
    return Rows(columns, rows.offsets, rows.verdicts)


@shows_one_line
class LogBatchReader(_Query, DataSourceReader):
    """Reader of a batch query: the log as it is when the query is planned."""

    def partitions(self) -> list[InputPartition]:
        """Plan one task per range."""
        files = self._open()
        stored = stored_end(files)
        with LogFileReader(files) as read:
            end = log_end(read)
            behind = list(gaps_behind(read, end, stored)) if self._options.end == LATEST else []
        start = self._start(files, end)
        if self._options.end > end:
            self._lost(f"endingOffsets is {self._options.end}, and the log ends at {end}")
        stop = self._resolve(files, self._options.end, end)
        for gap in (*gaps_between(files, start, stop), *behind):
            self._lost_range(*gap)
        return [LogPartition([piece]) for piece in split(files, start, stop, self._options.range_bytes)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of one task as Arrow batches."""
        return self._read(partition)


@shows_one_line
class LogStreamReader(_Query, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a streaming query: the existing log, then the appended records."""

    def __init__(self, options: LogOptions, schema: StructType) -> None:
        """Validate the columns; no file is opened yet."""
        super().__init__(options, schema)
        self._end: int | None = None
        self._polled: LogFiles | None = None
        self._tail = b""
        self._behind: list[Gap] = []
        """Bytes missing at the end of the log at the last poll."""
        self._reported: list[Gap] = []
        self._reported_end: int | None = None
        self._target: int | None = None
        self._is_beginning = False

    def _poll(self) -> tuple[LogFiles, int]:
        files = self._open()
        if self._end is not None and files == self._polled and time.time() - files.changed_s > SETTLED_S:
            return files, self._end
        self._polled = None if files.location.is_local else files
        stored = stored_end(files)
        with LogFileReader(files) as read:
            # The cached end is dropped if the log was truncated or rewritten there.
            known = self._end if self._end is not None and _before(read, self._end) == self._tail else None
            self._end = log_end(read, known)
            self._tail = _before(read, self._end)
            self._behind = list(gaps_behind(read, self._end, stored))
        return files, self._end

    def initialOffset(self) -> dict[str, dict[str, int]]:  # noqa: N802  # Spark's name
        """Return the start offset of a query without a checkpoint."""
        files, end = self._poll()
        self._is_beginning = self._options.start in (EARLIEST, LATEST)
        return self._offset_json(files, self._start(files, end))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Return `maxBytesPerTrigger` as a limit, else none."""
        return ReadMaxBytes(self._options.bytes_max) if self._options.bytes_max is not None else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Stop this query at the present end of the log."""
        self._target = self._poll()[1]

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, dict[str, int]]:  # noqa: N802
        """Return the end of the next micro-batch, a record boundary; the first micro-batch ends at its start.

        Raises:
            StoreDamaged: the log ends before `start`.
            OffsetGone: the end of the log is missing.
        """
        if self._is_beginning:
            self._is_beginning = False
            return start
        files, end = self._poll()
        if self._behind != self._reported:
            for gap in self._behind:
                self._lost_range(*gap)
            self._reported = self._behind
        begin = parse_position(start, files.broker_name).log_offset
        if end < begin and end != self._reported_end:
            self._report_rewritten(f"the log ends at {end}, but was read up to {begin} already")
            self._reported_end = end
        end = end if self._target is None else min(end, self._target)
        if end < begin:
            return start
        if isinstance(limit, ReadMaxBytes) and end - begin > limit.max_bytes:
            with LogFileReader(files) as read:
                end = find_record(read, max(begin, files.start) + limit.max_bytes, end) or end
        return self._offset_json(files, end)

    def reportLatestOffset(self) -> dict[str, dict[str, int]]:  # noqa: N802  # Spark's name
        """Return the end of the log, for the query's progress report."""
        return self._offset_json(*self._poll())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan one task per range; a small micro-batch is one task.

        Raises:
            StoreDamaged: the log was rewritten before `start`.
            OffsetGone: retention has deleted bytes after `start`.
        """
        self._is_beginning = False  # a first batch is repeated
        files = self._open()
        begin, stop = parse_position(batch_start(start, end), files.broker_name), parse_position(end, files.broker_name)
        log_offset = begin.log_offset
        if log_offset > files.start and files.epoch_at(log_offset - 1) != begin.epoch:
            self._report_rewritten(
                f"the bytes before log offset {log_offset} belonged to epoch {begin.epoch}, and now belong to "
                f"epoch {files.epoch_at(log_offset - 1)}"
            )
        if log_offset < files.start:
            self._lost(f"log offsets [{log_offset}, {files.start}) are gone")
            log_offset = files.start
        if stop.log_offset > files.capacity_end:
            self._report_rewritten(f"log offsets [{files.capacity_end}, {stop.log_offset}) no longer exist")
        end_at = min(stop.log_offset, files.capacity_end)
        for gap in gaps_between(files, log_offset, end_at):
            self._lost_range(*gap)
        ranges = split(files, log_offset, end_at, self._options.range_bytes)
        if sum(piece.end - piece.start for piece in ranges) <= self._options.range_bytes:
            return [LogPartition(ranges)] if ranges else []
        return [LogPartition([piece]) for piece in ranges]

    def _report_rewritten(self, what: str) -> None:
        if self._options.fails_on_loss:
            raise StoreDamaged(
                f"{self._options.path}: {what}: the log was rewritten after a failover",
                hint="rows already read may belong to messages that no longer exist; "
                "set failOnDataLoss to false to continue",
            )
        log.warning("rocketmq-log: %s: %s; continuing", self._options.path, what)

    def _offset_json(self, files: LogFiles, log_offset: int) -> dict[str, dict[str, int]]:
        epoch = files.epoch_at(log_offset - 1) if log_offset > files.start else 0
        return position_json(files.broker_name, LogPosition(log_offset, epoch))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of one task as Arrow batches."""
        return self._read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: no resources are held per micro-batch."""


def _before(read: LogFileReader, end: int) -> bytes:
    """Return the last bytes before an offset, within one file."""
    size = min(TAIL_BYTES, (end - 1) % read.files.segment_bytes + 1) if end else 0
    return read(end - size, size) if size else b""
