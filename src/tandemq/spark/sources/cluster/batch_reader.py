"""Reader of batch queries on a cluster: layout and limits of the queues, start and end, filters, tasks.

Source: docs/guides/pipeline.md, "Offsets", "Filters".
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tandemq.model.message import MessageQueue
from tandemq.model.topic import SCHEDULE_TOPIC
from tandemq.spark.runtime.versions import Filter
from tandemq.spark.runtime.worker_errors import shows_one_line
from tandemq.spark.sources.cluster import resolve
from tandemq.spark.sources.cluster.epochs import find_epochs
from tandemq.spark.sources.cluster.layout import find_layout
from tandemq.spark.sources.cluster.limits import QueueLimits, find_limits
from tandemq.spark.sources.cluster.members import QueueLayout
from tandemq.spark.sources.cluster.offsets import Position
from tandemq.spark.sources.cluster.options import SourceOptions, StoreTime, StoreTimes
from tandemq.spark.sources.cluster.plan import make_ranges
from tandemq.spark.sources.cluster.pushdown import OffsetBounds, PushedFilters
from tandemq.spark.sources.cluster.query import SourceQuery, queue_name

log = logging.getLogger(__name__)


@shows_one_line
class BatchReader(DataSourceReader):
    """Reader of a batch query: the messages between two positions."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Validate the columns; no request is sent yet."""
        self._reader = SourceQuery(options, schema)
        self._filters = PushedFilters()

    def partitions(self) -> Sequence[InputPartition]:
        """Resolve the options on the cluster, and plan tasks."""
        query, options, filters = self._reader, self._reader.options, self._filters
        layout = query.run(lambda routes: find_layout(routes, options))
        resolve.check_named(layout, options.starting, "startingOffsets")
        resolve.check_named(layout, options.ending, "endingOffsets")
        layout = filters.layout(layout)
        read_from = options.read_from
        epochs = query.run(lambda _routes: find_epochs(layout, read_from))
        query.check_bound(options.starting, "startingOffsets", layout, epochs)
        query.check_bound(options.ending, "endingOffsets", layout, epochs)
        given = options.starting, options.ending
        limits = query.run(lambda _routes: find_limits(layout, read_from, given))
        bounds = self._resolve_bounds(layout, limits)
        if filters.is_by_time:
            bounds = query.run(lambda routes: filters.by_time(routes, layout, *bounds, read_from))
        bounds = filters.by_offset(*bounds)
        return query.tasks(make_ranges(bounds.starts, bounds.ends), layout, epochs)

    def _resolve_bounds(self, layout: QueueLayout, limits: QueueLimits) -> OffsetBounds:
        """Resolve the start and end of each queue; an offset beyond the queue is reported as loss."""
        query, options = self._reader, self._reader.options
        lows = query.run(
            lambda routes: resolve.find_position(routes, layout, limits, options.starting, options, is_start=True)
        )
        highs = query.run(
            lambda routes: resolve.find_position(routes, layout, limits, options.ending, options, is_start=False)
        )
        ends = limits.ends
        for queue, offset in list(highs.items()):
            if offset > ends[queue].offset and ends[queue].is_final:
                query.report_loss(
                    f"endingOffsets says {offset} of {queue_name(queue)}, which ends at {ends[queue].offset}"
                )
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
                what = f"startingOffsets says {start} of {queue_name(queue)}, which ends at {end}"
                if is_final:
                    self._reader.report_loss(what)
                else:
                    log.warning("%s on slaves: no message of it is read", what)
            else:
                self._reader.report_loss(f"endingOffsets says {end} of {queue_name(queue)}, which begins at {start}")

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """Yield the messages of a task, as `SourceQuery.read_task`."""
        yield from self._reader.read_task(partition)


@shows_one_line
class FilteredBatchReader(BatchReader):
    """Batch reader with filter pushdown, used only if the option `pushDown` is set.

    Spark keeps this reader for the next query on the same DataFrame, and does not call `pushFilters` again if that
    query has no filters; rows would be missing then. Pushdown is therefore off by default.
    """

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802  # Spark's name
        """Use filters that reduce what is read. Returns all of them, so that Spark applies them again."""
        query, options = self._reader, self._reader.options
        self._filters = PushedFilters.of(filters, kafka=options.kafka)
        # Here and not in `partitions`: Spark serializes the reader for tasks before it plans. On the topic of delayed
        # messages brokers index delivery times instead of tags.
        if options.expression_type == "TAG" and SCHEDULE_TOPIC not in {*options.topics, *options.assigned}:
            query.how = self._filters.tags_of(query.how)
        return filters
