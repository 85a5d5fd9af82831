"""`format("rocketmq")`: messages of a cluster as rows, and rows as messages, over the remoting protocol.

    options ─► layout (queues, members) ─► positions ─► ranges ─► tasks ─► reader ─► decode ─► Arrow batches
    batch: startingOffsets to endingOffsets, narrowed by filters            streaming: from offset log to offset log

A streaming query looks up topics, queues and broker groups at every trigger. A new queue is added to its offsets at the
queue's first message and is read from the next micro-batch on, so that a repeated batch reads the same messages. For
the same reason the first micro-batch is empty, unless the options give all offsets: Spark records the end of each
batch, but not the start of the first one.

Source: docs/guides/pipeline.md; Spark's Kafka source for conventions.
"""

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tandemq.errors import ConfigError, OffsetGone, TandemError
from tandemq.model.message import MessageQueue
from tandemq.model.topic import SCHEDULE_TOPIC
from tandemq.spark.runtime.client_pool import CONNECT_MS, Operation, T, cluster_client
from tandemq.spark.runtime.versions import (
    Filter,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    adapt_reader,
    batch_start,
)
from tandemq.spark.runtime.worker import freeze_modules
from tandemq.spark.sources.cluster import resolve
from tandemq.spark.sources.cluster.backlog import LAG, find_backlog
from tandemq.spark.sources.cluster.decode import Decoder, merge
from tandemq.spark.sources.cluster.identity import Identity, TopicPart, find_others, find_witnesses
from tandemq.spark.sources.cluster.offsets import RESERVED, Position, read_offsets
from tandemq.spark.sources.cluster.options import (
    Bound,
    SourceOptions,
    StoreTime,
    StoreTimes,
    column_options,
    sink_options,
    source_options,
)
from tandemq.spark.sources.cluster.plan import QueueRange, limit_rows, make_ranges, make_tasks
from tandemq.spark.sources.cluster.pushdown import OffsetBounds, PushedFilters
from tandemq.spark.sources.cluster.reader import PullSettings, read_ranges
from tandemq.spark.sources.cluster.resolve import Epochs, QueueEnd, QueueLayout
from tandemq.spark.sources.cluster.sink import BatchWriter, StreamWriter
from tandemq.spark.sources.schema import check_columns, message_schema

log = logging.getLogger(__name__)
IDENTITY_S = 60
"""Interval at which a stream checks that topics are still the ones that it has read, and notes a newer message."""


class RocketMQDataSource(DataSource):
    """The data source, for `spark.dataSource.register`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Keep the options that Spark passes; readers and writers validate them."""
        self.options = options

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "rocketmq"

    def schema(self) -> StructType:
        """Return the default columns."""
        columns = column_options(self.options)
        return message_schema(
            kafka=columns.kafka,
            map_properties=columns.map_properties,
            details=columns.details,
            headers=columns.headers,
        )

    def reader(self, schema: StructType) -> "BatchReader":
        """Return the reader for `spark.read`."""
        options = source_options(self.options, streaming=False)
        return (FilteredBatchReader if options.pushes_down else BatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """Return the reader for `spark.readStream`."""
        return adapt_reader(StreamReader(source_options(self.options, streaming=True), schema))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer for `df.write`."""
        if overwrite:
            raise ConfigError("messages cannot be overwritten", hint='write with mode("append")')
        return BatchWriter(sink_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802  # Spark's name
        """Return the writer for `df.writeStream`."""
        if overwrite:
            raise ConfigError("messages cannot be overwritten", hint='write with outputMode("append")')
        return StreamWriter(sink_options(self.options), schema)


class QueuePartition(InputPartition):
    """Ranges that one task reads, with members and log epochs of their broker groups."""

    def __init__(
        self, ranges: Sequence[QueueRange], members: dict[str, dict[int, str]], epochs: dict[str, Epochs]
    ) -> None:
        """`members`, `epochs`: by broker name."""
        self.ranges = tuple(ranges)
        self.members = members
        self.epochs = epochs


class _Reader:
    """Common part of batch and streaming readers."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        offered = message_schema(kafka=options.kafka, map_properties=options.map_properties, details=True, headers=True)
        check_columns(schema, offered, 'format("rocketmq")')
        self.decoder = Decoder(schema, kafka=options.kafka, inflates=options.inflates)
        self.how = PullSettings(
            name_servers=options.name_servers,
            read_from=options.read_from,
            fail_on_data_loss=options.fail_on_data_loss,
            expression=options.expression,
            expression_type=options.expression_type,
            tags=options.tags,
            pull_messages=options.pull_messages,
            timeout_ms=options.timeout_ms,
            tls=options.tls,
            group=options.group,
        )
        self.connect_ms: int | None = CONNECT_MS
        """Timeout while no connection can be opened; None for that of the options, once a stream has begun."""

    def run(self, operation: Operation[T]) -> T:
        """Run a client operation with the timeout of the options."""
        options = self.options
        client = cluster_client(options.name_servers, options.tls)
        return client.run(operation, options.timeout_ms, connect_ms=self.connect_ms)

    def report_loss(self, what: str) -> None:
        """Fail because messages are gone, or log a warning if loss is accepted.

        Raises:
            OffsetGone: loss is not accepted.
        """
        if self.options.fail_on_data_loss:
            raise OffsetGone(what, hint="failOnDataLoss=false continues without them")
        log.warning("%s: skipped", what)

    def check_history(self, position: Position, layout: QueueLayout, epochs: Mapping[str, Epochs]) -> None:
        """Report a log that was truncated and rewritten before a position."""
        if all(position.epoch(name) in (0, table.epoch) for name, table in epochs.items()):
            return
        read_from, queues = self.options.read_from, set(layout.queues)
        existing = Position({queue: at for queue, at in position.offsets.items() if queue in queues}, position.epochs)
        for queue in self.run(lambda _routes: resolve.find_rewritten(layout, existing, epochs, read_from)):
            self.report_loss(
                f"{_name(queue)}: messages before offset {position.offsets[queue]} were read in epoch "
                f"{position.epoch(queue.broker_name)} and have been rewritten since "
                f"(now epoch {epochs[queue.broker_name].epoch})"
            )

    def check_bound(self, bound: Bound, option: str, layout: QueueLayout, epochs: Mapping[str, Epochs]) -> None:
        """Report offsets given for an epoch that the log does not have, or that has been rewritten since."""
        if not isinstance(bound, Position):
            return
        for name, table in epochs.items():
            if table.is_final and bound.epoch(name) > table.epoch:
                self.report_loss(
                    f"{option} names epoch {bound.epoch(name)} of {name}, whose last epoch is {table.epoch}"
                )
        self.check_history(bound, layout, epochs)

    def tasks(
        self, ranges: Sequence[QueueRange], layout: QueueLayout, epochs: Mapping[str, Epochs]
    ) -> list[QueuePartition]:
        """Distribute ranges over tasks."""
        tasks = []
        for share in make_tasks(ranges, self.options.partitions_min, self.options.records_max):
            names = {one.queue.broker_name for one in share}
            members = {name: dict(layout.members[name]) for name in names}
            tasks.append(QueuePartition(share, members, {name: epochs.get(name, Epochs()) for name in names}))
        return tasks

    def read_task(self, partition: InputPartition | None) -> Iterator[Any]:
        """Yield the messages of a task as Arrow batches; none for the empty task of a query that reads nothing."""
        if not isinstance(partition, QueuePartition):
            return
        client = cluster_client(self.how.name_servers, self.how.tls)
        for pulled in merge(read_ranges(client, self.how, partition.ranges, partition.members)):
            yield from self.decoder.batches(pulled, partition.epochs[pulled.range.queue.broker_name])
        freeze_modules()


class BatchReader(DataSourceReader):
    """Reader of a batch query: the messages between two positions."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Validate the columns; no request is sent yet."""
        self._reader = _Reader(options, schema)
        self._filters = PushedFilters()

    def partitions(self) -> Sequence[InputPartition]:
        """Resolve the options on the cluster, and plan tasks."""
        reader, options, filters = self._reader, self._reader.options, self._filters
        layout = reader.run(lambda routes: resolve.find_layout(routes, options))
        resolve.check_named(layout, options.starting, "startingOffsets")
        resolve.check_named(layout, options.ending, "endingOffsets")
        layout = filters.layout(layout)
        read_from = options.read_from
        epochs = reader.run(lambda _routes: resolve.find_epochs(layout, read_from))
        reader.check_bound(options.starting, "startingOffsets", layout, epochs)
        reader.check_bound(options.ending, "endingOffsets", layout, epochs)
        bounds = self._resolve_bounds(layout)
        if filters.is_by_time:
            bounds = reader.run(lambda routes: filters.by_time(routes, layout, *bounds, read_from))
        bounds = filters.by_offset(*bounds)
        return reader.tasks(make_ranges(bounds.starts, bounds.ends), layout, epochs)

    def _resolve_bounds(self, layout: QueueLayout) -> OffsetBounds:
        """Resolve the start and end of each queue; an offset beyond the queue is reported as loss."""
        reader, options, read_from = self._reader, self._reader.options, self._reader.options.read_from
        start = reader.run(lambda routes: resolve.find_start(routes, layout, options))
        end = reader.run(
            lambda routes: resolve.find_position(routes, layout, options.ending, read_from, "endingOffsets")
        )
        lows, highs = dict(start.offsets), dict(end.offsets)
        ends = reader.run(lambda _routes: resolve.find_ends(layout, read_from))
        for queue, offset in highs.items():
            if offset > ends[queue].offset and ends[queue].is_final:
                reader.report_loss(f"endingOffsets says {offset} of {_name(queue)}, which ends at {ends[queue].offset}")
                highs[queue] = ends[queue].offset
            self._check_order(queue, lows[queue], highs[queue], is_final=ends[queue].is_final)
        return OffsetBounds(lows, highs)

    def _check_order(self, queue: MessageQueue, start: int, end: int, *, is_final: bool) -> None:
        """Report an offset after the end of its queue, or before its start. Timestamps may lie there, and so may a
        start after the end of slaves, which lag."""
        options = self._reader.options
        times = StoreTime, StoreTimes
        if start > end and not isinstance(options.starting, times) and not isinstance(options.ending, times):
            if isinstance(options.starting, Position) and options.starting.offsets.get(queue) == start:
                what = f"startingOffsets says {start} of {_name(queue)}, which ends at {end}"
                if is_final:
                    self._reader.report_loss(what)
                else:
                    log.warning("%s on slaves: no message of it is read", what)
            else:
                self._reader.report_loss(f"endingOffsets says {end} of {_name(queue)}, which begins at {start}")

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """Yield the messages of a task, as `_Reader.read_task`."""
        yield from self._reader.read_task(partition)


class FilteredBatchReader(BatchReader):
    """Batch reader with filter pushdown, used only if the option `pushDown` is set.

    Spark keeps this reader for the next query on the same DataFrame, and does not call `pushFilters` again if that
    query has no filters; rows would be missing then. Pushdown is therefore off by default.
    """

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802  # Spark's name
        """Use filters that reduce what is read. Returns all of them, so that Spark applies them again."""
        reader, options = self._reader, self._reader.options
        self._filters = PushedFilters.of(filters, kafka=options.kafka)
        # Here and not in `partitions`: Spark serializes the reader for tasks before it plans. On the topic of delayed
        # messages brokers index delivery times instead of tags.
        if options.expression_type == "TAG" and SCHEDULE_TOPIC not in {*options.topics, *options.assigned}:
            reader.how = self._filters.tags_of(reader.how)
        return filters


class _ClusterState(NamedTuple):
    """Queues, their ends, and the log epochs by broker name, at one time."""

    layout: QueueLayout
    ends: dict[MessageQueue, QueueEnd]
    epochs: dict[str, Epochs]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a streaming query, which continues at the offsets of its checkpoint."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Validate the columns; no request is sent yet."""
        self._reader = _Reader(options, schema)
        self._target: dict[MessageQueue, int] | None = None
        self._latest: dict[str, Any] | None = None
        self._checked: Position | None = None
        self._committed: Position | None = None
        self._layout: QueueLayout | None = None
        self._epochs: dict[str, Epochs] = {}
        self._identity_s: float | None = None
        """When the identity of the topics was checked; None: not since the start."""
        self._is_registered = False
        self._is_beginning = False
        self._batch_s = time.monotonic()

    # Offsets.

    def _poll(self, known: Iterable[MessageQueue] = ()) -> _ClusterState:
        """Query the cluster. `known`: queues of the query so far; topics may have been deleted, brokers be down."""
        reader, options = self._reader, self._reader.options
        queues = tuple(known)
        topics = [queue.topic for queue in queues]
        expected = {queue.broker_name for queue in queues} if options.fail_on_data_loss else set()
        layout = reader.run(lambda routes: resolve.find_layout(routes, options, known=topics, expected=expected))
        ends = reader.run(lambda _routes: resolve.find_ends(layout, options.read_from))
        epochs = reader.run(lambda _routes: resolve.find_epochs(layout, options.read_from))
        reader.connect_ms = None
        return _ClusterState(layout, ends, epochs)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return the start offset of a query without a checkpoint."""
        reader, options = self._reader, self._reader.options
        layout = reader.run(lambda routes: resolve.find_layout(routes, options))
        resolve.check_named(layout, options.starting, "startingOffsets")
        read_from = options.read_from
        epochs = reader.run(lambda _routes: resolve.find_epochs(layout, read_from))
        reader.check_bound(options.starting, "startingOffsets", layout, epochs)
        position = reader.run(lambda routes: resolve.find_start(routes, layout, options))
        reader.connect_ms = None
        self._committed = position
        self._is_beginning = not isinstance(options.starting, Position) or options.starting.offsets != position.offsets
        return position.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Return `maxOffsetsPerTrigger` as a limit, else none."""
        most = self._reader.options.offsets_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Stop this query at the present ends of the queues."""
        now = self._poll()
        lows = self._reader.run(lambda _routes: resolve.find_starts(now.layout, self._reader.options.read_from))
        self._target = {queue: max(end.offset, lows[queue]) for queue, end in now.ends.items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return the end of the next micro-batch; `start` if there is nothing to read. Offsets before `start` are
        done."""
        if self._is_beginning:
            self._is_beginning = False
            return start
        before, identity = _position(start), Identity.of(start)
        now = self._poll(before.offsets)
        is_due = self._is_identity_due(before, now)
        others = self._check_identity(before, identity, now) if is_due else set()
        self._reader.check_history(before, now.layout, now.epochs)
        self._commit_offsets(before)
        offsets = self._ends_of(before, now.ends, others)
        if isinstance(limit, ReadMaxRows):
            offsets = limit_rows(before.offsets, offsets, limit.max_rows)
        starts = self._starts_of_new(now, offsets)
        count = sum(max(0, offset - before.offsets[queue]) for queue, offset in offsets.items())
        if not others and self._is_too_little(count):
            if self._is_too_little(count + sum(max(0, now.ends[queue].offset - low) for queue, low in starts.items())):
                self._note_latest(now, {**before.offsets, **starts})
                return start
            offsets = dict(before.offsets)
        offsets |= starts
        if others:
            offsets |= self._restarted(before, now, others)
        self._note_latest(now, offsets)
        after = Position(offsets, _checked_epochs(before, now.ends, now.epochs))
        if offsets != before.offsets:
            self._batch_s = time.monotonic()
            identity = self._identify(before, identity, now, offsets, others, renews=is_due)
        self._checked, self._layout, self._epochs = after, now.layout, now.epochs
        return after.to_json() | identity.to_json()

    # Identity of topics.

    def _is_identity_due(self, before: Position, now: _ClusterState) -> bool:
        """Return whether the identity of the topics is to be checked: after the start, now and then, and when a queue
        is shorter than before or gone, as it is when its topic has been deleted."""
        if self._identity_s is None or time.monotonic() - self._identity_s >= IDENTITY_S:
            return True
        return any(queue not in now.ends or now.ends[queue].offset < at for queue, at in before.offsets.items())

    def _check_identity(self, position: Position, identity: Identity, now: _ClusterState) -> set[TopicPart]:
        """Return the topics of broker groups that are not the ones that were read, which are reported as loss.

        Raises:
            ConfigError: the position is of another cluster.
        """
        identity.check_clusters(now.layout)
        if position.offsets and not any(queue in now.ends for queue in position.offsets):
            self._reader.report_loss(
                "no queue of the checkpoint exists: it is of another cluster, or all its topics were deleted"
            )
        read_from = self._reader.options.read_from
        others = self._reader.run(
            lambda _routes: find_others(now.layout, now.ends, now.epochs, identity, position.epochs, read_from)
        )
        for one in others:
            self._reader.report_loss(
                f"{one.topic} on {one.broker_name} is not the topic that was read: it was deleted and created again, "
                f"or its log truncated, or the checkpoint is of another cluster: {one.why}"
            )
        self._identity_s = time.monotonic()
        return {(one.topic, one.broker_name) for one in others}

    def _restarted(
        self, before: Position, now: _ClusterState, others: Collection[TopicPart]
    ) -> dict[MessageQueue, int]:
        """Return the starts of the queues of topics that are not the ones that were read: nothing of them was read."""
        queues = tuple(
            queue for queue in before.offsets if (queue.topic, queue.broker_name) in others and queue in now.ends
        )
        new, read_from = QueueLayout(queues, now.layout.members), self._reader.options.read_from
        return self._reader.run(lambda _routes: resolve.find_starts(new, read_from))

    def _identify(
        self,
        before: Position,
        identity: Identity,
        now: _ClusterState,
        offsets: Mapping[MessageQueue, int],
        others: Collection[TopicPart],
        *,
        renews: bool,
    ) -> Identity:
        """Return the identity of a new position: witnesses where there is none yet, or newer ones of all topics."""
        witnesses = {part: one for part, one in identity.witnesses.items() if part not in others}
        last: dict[TopicPart, MessageQueue] = {}
        for queue, offset in offsets.items():
            part = queue.topic, queue.broker_name
            if offset > before.offsets.get(queue, offset) and (renews or part not in witnesses):
                last.setdefault(part, queue)
        read_from = self._reader.options.read_from
        ends = {queue: offsets[queue] for queue in last.values()}
        found = self._reader.run(lambda _routes: find_witnesses(now.layout, ends, read_from))
        names = {queue.broker_name for queue in offsets}
        clusters = {name: cluster for name, cluster in now.layout.clusters.items() if name in names}
        return Identity({**identity.clusters, **clusters}, {**witnesses, **found})

    # Ends of queues.

    def _ends_of(
        self, before: Position, ends: Mapping[MessageQueue, QueueEnd], others: Collection[TopicPart]
    ) -> dict[MessageQueue, int]:
        """Return the end of each queue read so far; a queue that is gone keeps its offset and is reported as loss."""
        offsets: dict[MessageQueue, int] = {}
        for queue, offset in before.offsets.items():
            if (queue.topic, queue.broker_name) in others:
                offsets[queue] = offset
            elif queue not in ends:
                self._reader.report_loss(
                    f"{_name(queue)} is gone: its topic was deleted or has fewer queues, or its brokers left"
                )
                offsets[queue] = offset
            else:
                offsets[queue] = self._end_of(queue, offset, ends[queue])
        return offsets

    def _starts_of_new(self, now: _ClusterState, known: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Return the start of each new queue. It is recorded in the checkpoint before any message of it is read."""
        queues = tuple(queue for queue in now.ends if queue not in known and self._is_wanted(queue))
        if not queues:
            return {}
        new, read_from = QueueLayout(queues, now.layout.members), self._reader.options.read_from
        return self._reader.run(lambda _routes: resolve.find_starts(new, read_from))

    def _end_of(self, queue: MessageQueue, start: int, end: QueueEnd) -> int:
        """Return the offset up to which to read a queue that has been read up to `start`."""
        if end.offset < start and end.is_final:
            self._reader.report_loss(f"{_name(queue)} ends at {end.offset}, but was read up to {start} already")
            return end.offset
        target = end.offset if self._target is None else min(end.offset, self._target.get(queue, start))
        return max(start, target)

    def _is_wanted(self, queue: MessageQueue) -> bool:
        return self._target is None or queue in self._target

    def _is_too_little(self, count: int) -> bool:
        """Return whether minOffsetsPerTrigger delays the batch. A query with trigger availableNow is never delayed."""
        options = self._reader.options
        if options.offsets_min is None or self._target is not None:
            return False
        return count < options.offsets_min and time.monotonic() - self._batch_s < options.trigger_delay_ms / 1000

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  # Spark's name
        """Return the ends of the queues and the backlog by topic, for the query's progress report."""
        return self._latest

    def _note_latest(self, now: _ClusterState, reached: Mapping[MessageQueue, int]) -> None:
        """Keep what `reportLatestOffset` returns. `reached`: the end of the micro-batch."""
        read_from = self._reader.options.read_from
        backlog = self._reader.run(lambda _routes: find_backlog(now.layout, now.ends, reached, read_from))
        latest = Position({queue: end.offset for queue, end in now.ends.items()}, _numbers(now.epochs))
        self._latest = latest.to_json() | {LAG: backlog}

    # Reading.

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the tasks of a micro-batch; the same two offsets always give the same rows."""
        self._is_beginning = False  # a first batch is repeated
        before, after = _position(batch_start(start, end)), _position(end)
        ranges = make_ranges(before.offsets, after.offsets)
        if not ranges:
            return []
        layout, epochs = self._layout, self._epochs
        if after != self._checked or layout is None:
            # A batch repeated after a restart.
            now = self._poll(after.offsets)
            layout, epochs = now.layout, now.epochs
            others = self._check_identity(after, Identity.of(end), now)
            self._reader.check_history(after, layout, epochs)
            ranges = [one for one in ranges if (one.queue.topic, one.queue.broker_name) not in others]
        gone = [one for one in ranges if one.queue.broker_name not in layout.members]
        for one in gone:
            self._reader.report_loss(
                f"{_name(one.queue)}, offsets {one.start} to {one.end - 1}: the broker group is gone"
            )
        return self._reader.tasks([one for one in ranges if one not in gone], layout, epochs)

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """Yield the messages of a task, as `_Reader.read_task`."""
        yield from self._reader.read_task(partition)

    # Commits of a consumer group.

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the end of a completed micro-batch. Spark calls this late, and not for the last batch; `latestOffset`
        commits too."""
        self._commit_offsets(_position(end))

    def _commit_offsets(self, position: Position) -> None:
        """Commit the query's offsets under the option `commitGroup`. An error does not stop the query."""
        group = self._reader.options.commit_group
        before, self._committed = self._committed, position
        if group is None or (before is not None and before.offsets == position.offsets):
            return
        try:
            if not self._is_registered:
                self._reader.run(lambda routes: resolve.register_group(routes, group, position))
                self._is_registered = True
            self._reader.run(lambda routes: resolve.commit_offsets(routes, group, position))
        except TandemError as error:
            self._committed = before
            log.warning("offsets of the group %s are not committed: %s", group, error)

    def __getstate__(self) -> dict[str, Any]:
        """Serialize for tasks, without the state of the planner."""
        return self.__dict__ | dict.fromkeys(("_latest", "_checked", "_committed", "_target", "_layout", "_epochs"))


def _position(tree: Mapping[str, Any]) -> Position:
    offsets = {topic: brokers for topic, brokers in tree.items() if not topic.startswith(RESERVED)}
    return read_offsets(offsets, "the checkpoint") if offsets else Position({})


def _checked_epochs(
    before: Position, ends: Mapping[MessageQueue, QueueEnd], epochs: Mapping[str, Epochs]
) -> dict[str, int]:
    """Return the epochs of a position after its history has been checked. Slaves that lag behind the position have
    neither the latest epoch nor the messages before the position; their group keeps its epoch."""
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
