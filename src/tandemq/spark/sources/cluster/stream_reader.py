"""Reader of streaming queries on a cluster: polls, offsets of micro-batches, queues and topics that disappear.

A streaming query looks up topics, queues and broker groups at every trigger. A new queue is added to its offsets at the
queue's first message and is read from the next micro-batch on, so that a repeated batch reads the same messages. For
the same reason the first micro-batch is empty, unless the options give all offsets: Spark records the end of each
batch, but not the start of the first one.

Source: docs/guides/pipeline.md, "Offsets"; Spark's Kafka source for conventions.
"""

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tandemq.errors import TandemError
from tandemq.model.message import MessageQueue
from tandemq.spark.runtime.versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    batch_start,
)
from tandemq.spark.runtime.worker_errors import shows_one_line
from tandemq.spark.sources.cluster import resolve
from tandemq.spark.sources.cluster.backlog import BROKERS, LAG, MESSAGES, broker_backlog, find_backlog
from tandemq.spark.sources.cluster.epochs import Epochs, find_epochs
from tandemq.spark.sources.cluster.identity import Identity, TopicPart, find_others, find_witnesses, part_of
from tandemq.spark.sources.cluster.layout import KeptLayout, MissingQueues, find_layout, poll_layout
from tandemq.spark.sources.cluster.limits import QueueEnd, find_ends, find_limits, find_starts
from tandemq.spark.sources.cluster.members import QueueLayout
from tandemq.spark.sources.cluster.offsets import Position, RecentPosition, read_gone, read_position, write_gone
from tandemq.spark.sources.cluster.options import SourceOptions
from tandemq.spark.sources.cluster.plan import limit_rows, make_ranges
from tandemq.spark.sources.cluster.query import SourceQuery, queue_name

log = logging.getLogger(__name__)
IDENTITY_S = 60
"""Interval at which a stream checks that topics are still the ones that it has read, and notes a newer message."""
REPORTED_QUEUES_MAX = 10_000
"""Of more queues, a report has the ends of topics that are behind: Spark keeps a hundred reports."""
_NONE = {MESSAGES: 0}


class _ClusterState(NamedTuple):
    """Queues, their ends, and the log epochs by broker name, at one time."""

    layout: QueueLayout
    ends: dict[MessageQueue, QueueEnd]
    epochs: dict[str, Epochs]
    missing: MissingQueues


@shows_one_line
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a streaming query, which continues at the offsets of its checkpoint."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Validate the columns; no request is sent yet."""
        self._reader = SourceQuery(options, schema)
        self._target: dict[MessageQueue, int] | None = None
        self._recent = RecentPosition()
        self._latest: dict[str, Any] | None = None
        self._checked: Position | None = None
        self._committed: Position | None = None
        self._layout: QueueLayout | None = None
        self._found: KeptLayout | None = None
        self._epochs: dict[str, Epochs] = {}
        self._identity_s: float | None = None
        """When the identity of the topics was checked; None: not since the start."""
        self._present: Collection[MessageQueue] | None = None
        """Queues that the last poll found; None: there was none."""
        self._unknown: set[str] = set()
        """Topics that the last poll did not find."""
        self._is_registered = False
        self._is_beginning = False
        self._batch_s = time.monotonic()

    # Offsets.

    def _poll(self, known: Collection[MessageQueue] = ()) -> _ClusterState:
        """Query the cluster. `known`: queues of the query so far; topics may have been deleted, brokers be down."""
        query, options = self._reader, self._reader.options
        before, self._found = self._found, None  # it is found again if this poll fails
        found, missing = query.run(lambda routes: poll_layout(routes, options, known, before))
        layout = found.layout
        for why in set(missing.away.values()):
            log.warning("%s: the query goes on without it", why)
        ends = query.run(lambda _routes: find_ends(layout, options.read_from))
        epochs = query.run(lambda _routes: find_epochs(layout, options.read_from))
        query.connect_ms = None
        self._present = ends.keys()
        self._found = found
        return _ClusterState(layout, ends, epochs, missing)

    def _note_unknown(self, layout: QueueLayout) -> None:
        for topic in set(layout.unknown) - self._unknown:
            log.warning("no name server knows the topic %r: it is read when it exists", topic)
        self._unknown = set(layout.unknown)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return the start offset of a query without a checkpoint."""
        query, options = self._reader, self._reader.options
        layout = query.run(lambda routes: find_layout(routes, options))
        resolve.check_named(layout, options.starting, "startingOffsets")
        starting = options.starting
        epochs = query.run(lambda _routes: find_epochs(layout, options.read_from))
        query.check_bound(starting, "startingOffsets", layout, epochs)
        limits = query.run(lambda _routes: find_limits(layout, options.read_from, [starting]))
        offsets = query.run(
            lambda routes: resolve.find_position(routes, layout, limits, starting, options, is_start=True)
        )
        named = starting.epochs if isinstance(starting, Position) else {}
        position = Position(offsets, {name: named.get(name) or number for name, number in _numbers(epochs).items()})
        query.connect_ms = None
        self._committed = position
        self._is_beginning = not isinstance(options.starting, Position) or options.starting.offsets != position.offsets
        return position.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Return `maxOffsetsPerTrigger` as a limit, else none."""
        most = self._reader.options.offsets_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Stop this query at the present ends of the queues."""
        self._target = {queue: end.offset for queue, end in self._poll().ends.items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return the end of the next micro-batch; `start` if there is nothing to read. Offsets before `start` are
        done."""
        if self._is_beginning:
            self._is_beginning = False
            return start
        before, identity, gone = self._recent.read(start), Identity.of(start), read_gone(start)
        now = self._poll(before.offsets)
        self._note_unknown(now.layout)
        is_due = self._is_identity_due(before, gone, now)
        others = self._check_identity(before, gone, identity, now) if is_due else set()
        gone = _without(gone, others)
        self._reader.check_history(before, now.layout, now.epochs)
        self._commit_offsets(before)
        kept = self._kept(before, now, others)
        ends = self._ends_of(kept, now.ends, others)
        if isinstance(limit, ReadMaxRows):
            ends = limit_rows(kept, ends, limit.max_rows)
        starts = self._starts_of_new(now, kept, gone)
        count = sum(max(0, offset - kept[queue]) for queue, offset in ends.items())
        has_news = bool(others) or len(kept) < len(before.offsets)
        if not has_news and self._is_too_little(count):
            if self._is_too_little(count + sum(max(0, now.ends[queue].offset - low) for queue, low in starts.items())):
                self._note_latest(now, {**kept, **starts})
                return start
            ends = kept
        offsets = ends | starts
        if others:
            offsets |= self._restarted(before, now, others)
        self._note_latest(now, offsets)
        after = Position(offsets, _checked_epochs(before, now.ends, now.epochs))
        if others or offsets != before.offsets:
            self._batch_s = time.monotonic()
            identity = self._identify(before, identity, now, offsets, others, renews=is_due)
        self._checked, self._layout, self._epochs = after, now.layout, now.epochs
        gone |= _without({queue: offset for queue, offset in before.offsets.items() if queue not in kept}, others)
        return self._recent.write(after) | identity.to_json() | write_gone(gone, offsets)

    # Identity of topics.

    def _is_identity_due(self, before: Position, gone: Collection[MessageQueue], now: _ClusterState) -> bool:
        """Return whether the identity of the topics is to be checked: after the start, now and then, when a queue is
        shorter than before or gone, as it is when its topic has been deleted, and when one that was gone is back."""
        if self._identity_s is None or time.monotonic() - self._identity_s >= IDENTITY_S:
            return True
        return any(queue in now.ends for queue in gone) or any(
            queue not in now.ends or now.ends[queue].offset < offset for queue, offset in before.offsets.items()
        )

    def _check_identity(
        self, position: Position, gone: Mapping[MessageQueue, int], identity: Identity, now: _ClusterState
    ) -> set[TopicPart]:
        """Return the topics of broker groups that are not the ones that were read. They are reported as loss, except
        those of which all queues were gone: that loss was accepted.

        Raises:
            ConfigError: the position is of another cluster.
        """
        identity.check_clusters(now.layout)
        if position.offsets and not any(queue in now.ends for queue in position.offsets):
            self._reader.report_loss(
                "no queue of the checkpoint exists: it is of another cluster, or all its topics were deleted, or the "
                f"query selects other topics{_unknown(now.layout.unknown)}"
            )
        read_from = self._reader.options.read_from
        others = self._reader.run(
            lambda _routes: find_others(now.layout, now.ends, now.epochs, identity, position, gone, read_from)
        )
        parts = {part_of(queue) for queue in position.offsets}
        for other in others:
            what = f"{other.topic} on {other.broker_name} is not the topic that was read"
            if (other.topic, other.broker_name) in parts:
                self._reader.report_loss(
                    f"{what}: it was deleted and created again, or its log truncated, or the checkpoint is of another "
                    f"cluster: {other.why}"
                )
            else:
                log.warning("%s, and was gone: it is read from its start: %s", what, other.why)
        self._identity_s = time.monotonic()
        return {(other.topic, other.broker_name) for other in others}

    def _restarted(
        self, before: Position, now: _ClusterState, others: Collection[TopicPart]
    ) -> dict[MessageQueue, int]:
        """Return the start offsets of the queues of topics that were replaced since the query read them."""
        queues = tuple(queue for queue in before.offsets if part_of(queue) in others and queue in now.ends)
        return self._find_starts(now, queues)

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
        witnesses = {part: witness for part, witness in identity.witnesses.items() if part not in others}
        renewed: dict[TopicPart, MessageQueue] = {}
        for queue, offset in offsets.items():
            part = part_of(queue)
            if offset > before.offsets.get(queue, offset) and (renews or part not in witnesses):
                renewed.setdefault(part, queue)
        read_from = self._reader.options.read_from
        ends = {queue: offsets[queue] for queue in renewed.values()}
        found = self._reader.run(lambda _routes: find_witnesses(now.layout, ends, read_from))
        names = {queue.broker_name for queue in offsets}
        clusters = {name: cluster for name, cluster in now.layout.clusters.items() if name in names}
        return Identity({**identity.clusters, **clusters}, {**witnesses, **found})

    # Ends of queues.

    def _kept(self, before: Position, now: _ClusterState, others: Collection[TopicPart]) -> dict[MessageQueue, int]:
        """Return the offsets of the queues that still exist; queues that are gone are reported as loss."""
        kept = dict(before.offsets)
        for queue, why in now.missing.gone.items():
            if part_of(queue) not in others:
                self._reader.report_loss(f"{queue_name(queue)} {why}")
            del kept[queue]
        return kept

    def _ends_of(
        self, kept: Mapping[MessageQueue, int], ends: Mapping[MessageQueue, QueueEnd], others: Collection[TopicPart]
    ) -> dict[MessageQueue, int]:
        """Return the end of each queue read so far; one that is away, or of another topic, keeps its offset."""
        found = dict(kept)
        for queue, offset in kept.items():
            end = ends.get(queue)
            if end is None or (end.offset == offset and self._target is None) or part_of(queue) in others:
                continue
            found[queue] = self._end_of(queue, offset, end)
        return found

    def _starts_of_new(
        self,
        now: _ClusterState,
        known: Collection[MessageQueue],
        gone: Mapping[MessageQueue, int],
    ) -> dict[MessageQueue, int]:
        """Return the start of each new queue. It is recorded in the checkpoint before any message of it is read.

        Args:
            gone: offsets of queues that were gone, without those of replaced topics: one that is back continues there.
        """
        queues = [queue for queue in now.ends if queue not in known and self._is_wanted(queue)]
        back = {
            queue: gone[queue]
            for queue in queues
            if queue in gone and (gone[queue] <= now.ends[queue].offset or not now.ends[queue].is_final)
        }
        new = tuple(queue for queue in queues if queue not in back)
        return back | self._find_starts(now, new)

    def _find_starts(self, now: _ClusterState, queues: tuple[MessageQueue, ...]) -> dict[MessageQueue, int]:
        if not queues:
            return {}
        layout, read_from = QueueLayout(queues, now.layout.members), self._reader.options.read_from
        return self._reader.run(lambda _routes: find_starts(layout, read_from))

    def _end_of(self, queue: MessageQueue, start: int, end: QueueEnd) -> int:
        """Return the offset up to which to read a queue that has been read up to `start`."""
        if end.offset < start and end.is_final:
            self._reader.report_loss(f"{queue_name(queue)} ends at {end.offset}, but was read up to {start} already")
            return end.offset
        # A queue of the checkpoint that was away when the query began is read up to the end that it has now.
        target = end.offset if self._target is None else min(end.offset, self._target.setdefault(queue, end.offset))
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
        """Keep the result of `reportLatestOffset`. `reached`: the end of the micro-batch."""
        read_from = self._reader.options.read_from
        backlog = self._reader.run(lambda _routes: find_backlog(now.layout, now.ends, reached, read_from))
        ends = {queue: end.offset for queue, end in now.ends.items()}
        if len(ends) > REPORTED_QUEUES_MAX:
            ends = {queue: offset for queue, offset in ends.items() if backlog.get(queue.topic, _NONE)[MESSAGES]}
        latest = Position(ends, _numbers(now.epochs))
        self._latest = latest.to_json() | {LAG: backlog, BROKERS: broker_backlog(now.ends, reached, now.epochs)}

    # Reading.

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the tasks of a micro-batch; the same two offsets always give the same rows."""
        self._is_beginning = False  # a first batch is repeated
        before, after = read_position(batch_start(start, end)), read_position(end)
        ranges = make_ranges(before.offsets, after.offsets)
        if not ranges:
            return []
        layout, epochs = self._layout, self._epochs
        gone: dict[MessageQueue, str] = {}
        if after != self._checked or layout is None:
            # A batch repeated after a restart.
            now = self._poll(after.offsets)
            layout, epochs = now.layout, now.epochs
            others = self._check_identity(after, read_gone(end), Identity.of(end), now)
            self._reader.check_history(after, layout, epochs)
            ranges = [queue_range for queue_range in ranges if part_of(queue_range.queue) not in others]
            gone = dict(now.missing.gone)
        gone |= {
            queue_range.queue: "is gone: its brokers left"
            for queue_range in ranges
            if queue_range.queue.broker_name not in layout.members
        }
        for queue_range in ranges:
            if queue_range.queue in gone:
                self._reader.report_loss(
                    f"{queue_name(queue_range.queue)} {gone[queue_range.queue]}, "
                    f"with offsets {queue_range.start} to {queue_range.end - 1}"
                )
        return self._reader.tasks(
            [queue_range for queue_range in ranges if queue_range.queue not in gone], layout, epochs
        )

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """Yield the messages of a task, as `SourceQuery.read_task`."""
        yield from self._reader.read_task(partition)

    # Commits of a consumer group.

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the end of a completed micro-batch. Spark calls this late, and not for the last batch; `latestOffset`
        commits too."""
        self._commit_offsets(read_position(end))

    def _commit_offsets(self, position: Position) -> None:
        """Commit the query's offsets under the option `commitGroup`, except those of queues that are gone or away. An
        error does not stop the query."""
        group, present = self._reader.options.commit_group, self._present
        offsets = {queue: offset for queue, offset in position.offsets.items() if present is None or queue in present}
        before, self._committed = self._committed, Position(offsets)
        done = before.offsets if before is not None else {}
        changed = {queue: offset for queue, offset in offsets.items() if done.get(queue) != offset}
        if group is None or not changed:
            return
        try:
            if not self._is_registered:
                self._reader.run(lambda routes: resolve.register_group(routes, group, Position(offsets)))
                self._is_registered = True
            self._reader.run(lambda routes: resolve.commit_offsets(routes, group, Position(changed)))
        except TandemError as error:
            self._committed = before
            log.warning("offsets of the group %s are not committed: %s", group, error)

    def __getstate__(self) -> dict[str, Any]:
        """Serialize for tasks, without the state of the planner."""
        state = "_latest", "_checked", "_committed", "_present", "_target", "_layout", "_found", "_epochs"
        return self.__dict__ | dict.fromkeys(state)


def _without(offsets: Mapping[MessageQueue, int], parts: Collection[TopicPart]) -> dict[MessageQueue, int]:
    return {queue: offset for queue, offset in offsets.items() if part_of(queue) not in parts}


def _unknown(topics: Sequence[str]) -> str:
    more = f" and {len(topics) - 1} more" if len(topics) > 1 else ""
    return f"; no name server knows the topic {topics[0]!r}{more}" if topics else ""


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
