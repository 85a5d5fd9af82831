"""`format("rocketmq")`: messages of a cluster as rows, and rows as messages, over the remoting protocol.

    options ─► layout (queues, members) ─► positions ─► ranges ─► tasks ─► reader ─► decode ─► Arrow batches
    batch: startingOffsets to endingOffsets, narrowed by filters            streaming: from offset log to offset log

A streaming query looks for topics, queues and broker groups at every trigger; a new queue enters its offsets at the
queue's first message, and is read from the next micro-batch on, so that a batch done again reads the same messages. For
the same reason the first micro-batch is empty, unless the options name all offsets: Spark notes where batches end, and
not where the first one begins.

Source: docs/guides/pipeline.md; Spark's Kafka source for conventions.
"""

import logging
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tandemq.errors import ConfigError, OffsetGone, TandemError
from tandemq.model.message import MessageQueue
from tandemq.model.topic import SCHEDULE_TOPIC
from tandemq.spark.runtime.client_pool import Story, T, asker_of
from tandemq.spark.runtime.versions import (
    BEGIN,
    Filter,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    begin_of,
    suited,
)
from tandemq.spark.runtime.worker import keep_modules
from tandemq.spark.sources.cluster import resolve
from tandemq.spark.sources.cluster.decode import Decoder
from tandemq.spark.sources.cluster.offsets import Position, read_offsets
from tandemq.spark.sources.cluster.options import (
    Bound,
    Moment,
    SourceOptions,
    column_options,
    sink_options,
    source_options,
)
from tandemq.spark.sources.cluster.plan import QueueRange, limit_rows, make_ranges, make_tasks
from tandemq.spark.sources.cluster.reader import ReadHow, read_ranges
from tandemq.spark.sources.cluster.resolve import End, Epochs, QueueLayout
from tandemq.spark.sources.cluster.sink import BatchWriter, StreamWriter
from tandemq.spark.sources.pushdown import Narrowing
from tandemq.spark.sources.schema import check_columns, message_schema

log = logging.getLogger(__name__)


class RocketMQDataSource(DataSource):
    """The format, for `spark.dataSource.register`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """As Spark hands them over."""
        self.options = options

    @classmethod
    def name(cls) -> str:
        """What `format` says."""
        return "rocketmq"

    def schema(self) -> StructType:
        """The columns, where the query names none."""
        kafka, map_properties, details = column_options(self.options)
        return message_schema(kafka=kafka, map_properties=map_properties, details=details)

    def reader(self, schema: StructType) -> "BatchReader":
        """For `spark.read`."""
        options = source_options(self.options, streaming=False)
        return (NarrowedReader if options.pushes_down else BatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """For `spark.readStream`."""
        return suited(StreamReader(source_options(self.options, streaming=True), schema))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """For `df.write`."""
        if overwrite:
            raise ConfigError("messages cannot be overwritten", hint='write with mode("append")')
        return BatchWriter(sink_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802  # Spark's name
        """For `df.writeStream`."""
        if overwrite:
            raise ConfigError("messages cannot be overwritten", hint='write with outputMode("append")')
        return StreamWriter(sink_options(self.options), schema)


class Task(InputPartition):
    """The ranges one task reads, and where; and the generations of the logs they lie in, by broker group."""

    def __init__(
        self, ranges: Sequence[QueueRange], members: dict[str, dict[int, str]], epochs: dict[str, Epochs]
    ) -> None:
        """Travels to the task."""
        self.ranges = tuple(ranges)
        self.members = members
        self.epochs = epochs


class _Reader:
    """What batch and streaming share."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        offered = message_schema(kafka=options.kafka, map_properties=options.map_properties, details=True)
        check_columns(schema, offered, 'format("rocketmq")')
        self.decoder = Decoder(schema, kafka=options.kafka, inflates=options.inflates)
        self.how = ReadHow(
            name_servers=options.name_servers,
            read_from=options.read_from,
            fail_on_data_loss=options.fail_on_data_loss,
            expression=options.expression,
            expression_type=options.expression_type,
            tags=options.tags,
            pull_messages=options.pull_messages,
            timeout_ms=options.timeout_ms,
        )

    def tell(self, story: Story[T]) -> T:
        """The outcome of a story, within the time that the options allow."""
        return asker_of(self.options.name_servers).tell(story, self.options.timeout_ms)

    def lost(self, what: str) -> None:
        """Messages are gone: fail, or say so and go on.

        Raises:
            OffsetGone: loss is not accepted.
        """
        if self.options.fail_on_data_loss:
            raise OffsetGone(what, hint="failOnDataLoss=false goes on without them")
        log.warning("%s: passed over", what)

    def check_history(self, position: Position, layout: QueueLayout, epochs: Mapping[str, Epochs]) -> None:
        """Notice a log that was cut and written anew before a position."""
        if all(position.epoch(name) in (0, table.epoch) for name, table in epochs.items()):
            return
        read_from, queues = self.options.read_from, set(layout.queues)
        there = Position({queue: at for queue, at in position.offsets.items() if queue in queues}, position.epochs)
        for queue in self.tell(lambda _routes: resolve.find_rewritten(layout, there, epochs, read_from)):
            self.lost(
                f"{_name(queue)}: messages before offset {position.offsets[queue]} were read in epoch "
                f"{position.epoch(queue.broker_name)} and are others since epoch {epochs[queue.broker_name].epoch}"
            )

    def check_bound(self, bound: Bound, option: str, layout: QueueLayout, epochs: Mapping[str, Epochs]) -> None:
        """Notice offsets given for a generation of a log that is not there, or that was written anew since."""
        if not isinstance(bound, Position):
            return
        for name, table in epochs.items():
            if table.is_final and bound.epoch(name) > table.epoch:
                self.lost(f"{option} names epoch {bound.epoch(name)} of {name}, whose last one is {table.epoch}")
        self.check_history(bound, layout, epochs)

    def tasks(self, ranges: Sequence[QueueRange], layout: QueueLayout, epochs: Mapping[str, Epochs]) -> list[Task]:
        """Ranges shared out."""
        tasks = []
        for share in make_tasks(ranges, self.options.partitions_min):
            names = {one.queue.broker_name for one in share}
            members = {name: dict(layout.members[name]) for name in names}
            tasks.append(Task(share, members, {name: epochs.get(name, Epochs()) for name in names}))
        return tasks

    def read_task(self, partition: InputPartition | None) -> Iterator[Any]:
        """Arrow batches of a task's messages; Spark has a task without any where a query reads nothing."""
        if not isinstance(partition, Task):
            return
        asker = asker_of(self.how.name_servers)
        for pulled in read_ranges(asker, self.how, partition.ranges, partition.members):
            yield self.decoder.batch(pulled, partition.epochs[pulled.range.queue.broker_name])
        keep_modules()


class BatchReader(DataSourceReader):
    """Reads what lies between two positions, once."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Nothing is asked of the cluster yet."""
        self._reader = _Reader(options, schema)
        self._narrowing = Narrowing()

    def partitions(self) -> Sequence[InputPartition]:
        """Ask the cluster, and plan."""
        reader, options, narrowing = self._reader, self._reader.options, self._narrowing
        layout = reader.tell(lambda routes: resolve.find_layout(routes, options))
        resolve.check_named(layout, options.starting, "startingOffsets")
        resolve.check_named(layout, options.ending, "endingOffsets")
        layout = narrowing.layout(layout)
        read_from = options.read_from
        epochs = reader.tell(lambda _routes: resolve.find_epochs(layout, read_from))
        reader.check_bound(options.starting, "startingOffsets", layout, epochs)
        reader.check_bound(options.ending, "endingOffsets", layout, epochs)
        start = reader.tell(
            lambda routes: resolve.find_position(routes, layout, options.starting, read_from, "startingOffsets")
        )
        end = reader.tell(
            lambda routes: resolve.find_position(routes, layout, options.ending, read_from, "endingOffsets")
        )
        lows, highs = dict(start.offsets), dict(end.offsets)
        ends = reader.tell(lambda _routes: resolve.find_ends(layout, read_from))
        for queue, offset in highs.items():
            if offset > ends[queue].offset and ends[queue].is_final:
                reader.lost(f"endingOffsets says {offset} of {_name(queue)}, which ends at {ends[queue].offset}")
                highs[queue] = ends[queue].offset
            self._check_order(queue, lows[queue], highs[queue], is_final=ends[queue].is_final)
        if narrowing.is_by_time:
            lows, highs = reader.tell(lambda routes: narrowing.offsets_by_time(routes, layout, lows, highs, read_from))
        lows, highs = narrowing.offsets(lows, highs)
        return reader.tasks(make_ranges(lows, highs), layout, epochs)

    def _check_order(self, queue: MessageQueue, start: int, end: int, *, is_final: bool) -> None:
        """Notice an offset that is behind the end of its queue, or before its start. Moments may well be, and a start
        behind the end of slaves: they lag, or it will be."""
        options = self._reader.options
        if start > end and not isinstance(options.starting, Moment) and not isinstance(options.ending, Moment):
            if isinstance(options.starting, Position) and options.starting.offsets.get(queue) == start:
                what = f"startingOffsets says {start} of {_name(queue)}, which ends at {end}"
                if is_final:
                    self._reader.lost(what)
                else:
                    log.warning("%s on slaves: nothing of it is read", what)
            else:
                self._reader.lost(f"endingOffsets says {end} of {_name(queue)}, which begins at {start}")

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """See `_Reader.read_task`."""
        yield from self._reader.read_task(partition)


class NarrowedReader(BatchReader):
    """Reads no more than the conditions of its query need.

    Spark keeps it for the next query on the same DataFrame, and does not ask it again if that has no conditions: rows
    are missing then. So only who asks for it gets it.
    """

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802  # Spark's name
        """Take what helps to read less. Spark applies all of them itself as well: what is read may be more."""
        reader, options = self._reader, self._reader.options
        self._narrowing = Narrowing.of(filters, kafka=options.kafka)
        # Here and not in `partitions`: Spark copies for tasks what there is before it plans. On the topic of delayed
        # messages brokers know times instead of tags.
        if options.expression_type == "TAG" and SCHEDULE_TOPIC not in {*options.topics, *options.assigned}:
            reader.how = self._narrowing.tags_of(reader.how)
        return filters


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on from where the offset log says."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Nothing is asked of the cluster yet."""
        self._reader = _Reader(options, schema)
        self._target: dict[MessageQueue, int] | None = None
        self._latest: Position | None = None
        self._checked: Position | None = None
        self._told: Position | None = None
        self._layout: QueueLayout | None = None
        self._epochs: dict[str, Epochs] = {}
        self._is_introduced = False
        self._is_beginning = False
        self._batch_s = time.monotonic()

    # How far the cluster is.

    def _look(self, known: Sequence[str] = ()) -> tuple[QueueLayout, dict[MessageQueue, End], dict[str, Epochs]]:
        options = self._reader.options
        layout = self._reader.tell(lambda routes: resolve.find_layout(routes, options, known=known))
        ends = self._reader.tell(lambda _routes: resolve.find_ends(layout, options.read_from))
        return layout, ends, self._reader.tell(lambda _routes: resolve.find_epochs(layout, options.read_from))

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Where a query without a checkpoint begins."""
        reader, options = self._reader, self._reader.options
        layout = reader.tell(lambda routes: resolve.find_layout(routes, options))
        resolve.check_named(layout, options.starting, "startingOffsets")
        read_from = options.read_from
        epochs = reader.tell(lambda _routes: resolve.find_epochs(layout, read_from))
        reader.check_bound(options.starting, "startingOffsets", layout, epochs)
        position = reader.tell(
            lambda routes: resolve.find_position(routes, layout, options.starting, read_from, "startingOffsets")
        )
        self._told = position
        self._is_beginning = not isinstance(options.starting, Position) or options.starting.offsets != position.offsets
        return position.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """maxOffsetsPerTrigger."""
        most = self._reader.options.offsets_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Remember how far queues go now: the query ends there."""
        layout, ends, _ = self._look()
        lows = self._reader.tell(lambda _routes: resolve.find_starts(layout, self._reader.options.read_from))
        self._target = {queue: max(end.offset, lows[queue]) for queue, end in ends.items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Where the next micro-batch ends, `start` if there is none. What is before `start` is done."""
        if self._is_beginning:
            self._is_beginning = False
            return start
        before = _position(start)
        layout, ends, epochs = self._look([queue.topic for queue in before.offsets])
        self._latest = Position({queue: end.offset for queue, end in ends.items()}, _numbers(epochs))
        self._reader.check_history(before, layout, epochs)
        self._tell_group(before)
        offsets: dict[MessageQueue, int] = {}
        for queue, offset in before.offsets.items():
            if queue not in ends:
                self._reader.lost(f"{_name(queue)} is gone: its topic was deleted or made smaller, or its brokers left")
                offsets[queue] = offset
            else:
                offsets[queue] = self._end_of(queue, offset, ends[queue])
        if isinstance(limit, ReadMaxRows):
            offsets = limit_rows(before.offsets, offsets, limit.max_rows)
        # Where new queues begin, on record before any of them is read.
        new = QueueLayout(
            tuple(queue for queue in ends if queue not in offsets and self._is_wanted(queue)), layout.members
        )
        read_from = self._reader.options.read_from
        starts = self._reader.tell(lambda _routes: resolve.find_starts(new, read_from)) if new.queues else {}
        count = sum(max(0, offset - before.offsets[queue]) for queue, offset in offsets.items())
        if self._is_too_little(count):
            if self._is_too_little(count + sum(max(0, ends[queue].offset - low) for queue, low in starts.items())):
                return start
            offsets = dict(before.offsets)
        offsets |= starts
        after = Position(offsets, _checked_epochs(before, ends, epochs))
        if offsets != before.offsets:
            self._batch_s = time.monotonic()
        self._checked, self._layout, self._epochs = after, layout, epochs
        return after.to_json()

    def _end_of(self, queue: MessageQueue, start: int, end: End) -> int:
        """How far a queue is read that was read up to `start`."""
        if end.offset < start and end.is_final:
            self._reader.lost(f"{_name(queue)} ends at {end.offset}, but was read up to {start} already")
            return end.offset
        target = end.offset if self._target is None else min(end.offset, self._target.get(queue, start))
        return max(start, target)

    def _is_wanted(self, queue: MessageQueue) -> bool:
        return self._target is None or queue in self._target

    def _is_too_little(self, count: int) -> bool:
        """Whether minOffsetsPerTrigger makes the query wait. A query that reads what is there now never waits."""
        options = self._reader.options
        if options.offsets_min is None or self._target is not None:
            return False
        return count < options.offsets_min and time.monotonic() - self._batch_s < options.trigger_delay_ms / 1000

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  # Spark's name
        """How far queues go, for a query's progress."""
        return None if self._latest is None else self._latest.to_json()

    # Reading.

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a micro-batch, the same for the same two offsets."""
        self._is_beginning = False  # a first batch that is done again
        before, after = _position(begin_of(start, end)), _position(end)
        ranges = make_ranges(before.offsets, after.offsets)
        if not ranges:
            return []
        known = [queue.topic for queue in after.offsets]
        layout, epochs = self._layout, self._epochs
        if after != self._checked or layout is None:
            # A batch done again, after a restart.
            layout, _, epochs = self._look(known)
            self._reader.check_history(after, layout, epochs)
        gone = [one for one in ranges if one.queue.broker_name not in layout.members]
        for one in gone:
            self._reader.lost(f"{_name(one.queue)}, offsets {one.start} to {one.end - 1}: the broker group is gone")
        return self._reader.tasks([one for one in ranges if one not in gone], layout, epochs)

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """See `_Reader.read_task`."""
        yield from self._reader.read_task(partition)

    # Telling a consumer group.

    def commit(self, end: dict[str, Any]) -> None:
        """A micro-batch is done. Spark says so late, and not of the last one; `latestOffset` knows as well."""
        self._tell_group(_position(end))

    def _tell_group(self, position: Position) -> None:
        """Tell the group how far the query is. That it cannot be told now does not stop the query."""
        group = self._reader.options.commit_group
        before, self._told = self._told, position
        if group is None or (before is not None and before.offsets == position.offsets):
            return
        try:
            if not self._is_introduced:
                self._reader.tell(lambda routes: resolve.introduce(routes, group, position))
                self._is_introduced = True
            self._reader.tell(lambda routes: resolve.commit(routes, group, position))
        except TandemError as error:
            self._told = before
            log.warning("offsets of the group %s are not told: %s", group, error)

    def __getstate__(self) -> dict[str, Any]:
        """Tasks read; what the planner remembers stays with it."""
        return self.__dict__ | dict.fromkeys(("_latest", "_checked", "_told", "_target", "_layout", "_epochs"))


def _position(tree: Mapping[str, Any]) -> Position:
    offsets = {topic: brokers for topic, brokers in tree.items() if topic != BEGIN}
    return read_offsets(offsets, "the checkpoint") if offsets else Position({})


def _checked_epochs(before: Position, ends: Mapping[MessageQueue, End], epochs: Mapping[str, Epochs]) -> dict[str, int]:
    """The generations that a position checked against those of the logs belongs to. Slaves that lag behind it show
    neither the latest one nor what lies before the position in it: that group keeps its own."""
    found = dict(before.epochs)
    lagging = {
        queue.broker_name
        for queue, offset in before.offsets.items()
        if queue in ends and not ends[queue].is_final and ends[queue].offset < offset
    }
    for name, table in epochs.items():
        if name not in lagging and table.epoch > before.epoch(name):
            found[name] = table.epoch
    return found


def _numbers(epochs: dict[str, Epochs]) -> dict[str, int]:
    return {name: table.epoch for name, table in epochs.items() if table.epoch}


def _name(queue: MessageQueue) -> str:
    return f"{queue.topic} {queue.broker_name} queue {queue.queue_id}"
