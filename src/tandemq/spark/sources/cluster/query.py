"""Common part of batch and streaming readers of a cluster: client, checks of positions, tasks.

Source: docs/guides/pipeline.md, "The cluster as a source".
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from tandemq.errors import OffsetGone
from tandemq.model.message import MessageQueue
from tandemq.spark.runtime.client_pool import CONNECT_MS, Operation, T, cluster_client
from tandemq.spark.runtime.worker import freeze_modules
from tandemq.spark.sources.cluster.decode import Decoder, merge
from tandemq.spark.sources.cluster.epochs import Epochs, find_rewritten
from tandemq.spark.sources.cluster.members import QueueLayout
from tandemq.spark.sources.cluster.offsets import Position
from tandemq.spark.sources.cluster.options import Bound, SourceOptions
from tandemq.spark.sources.cluster.plan import QueueRange, make_tasks
from tandemq.spark.sources.cluster.reader import PullSettings, read_ranges
from tandemq.spark.sources.schema import check_columns, message_schema

log = logging.getLogger(__name__)


class QueuePartition(InputPartition):
    """Ranges that one task reads, with members and log epochs of their broker groups."""

    def __init__(
        self, ranges: Sequence[QueueRange], members: dict[str, dict[int, str]], epochs: dict[str, Epochs]
    ) -> None:
        """`members`, `epochs`: by broker name."""
        self.ranges = tuple(ranges)
        self.members = members
        self.epochs = epochs


class SourceQuery:
    """Options of a query, its client, and its tasks."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Validate the columns; no request is sent yet."""
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
            signer=options.signer,
            group=options.group,
            takes_entries=self.decoder.takes_entries,
            takes_heads=self.decoder.takes_heads,
        )
        self.connect_ms: int | None = CONNECT_MS
        """Timeout while no connection can be opened; None for that of the options, once a stream has begun."""

    def run(self, operation: Operation[T]) -> T:
        """Run a client operation with the timeout of the options."""
        options = self.options
        client = cluster_client(options.name_servers, options.tls, options.signer)
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
        existing = Position(
            {queue: offset for queue, offset in position.offsets.items() if queue in queues}, position.epochs
        )
        for queue in self.run(lambda _routes: find_rewritten(layout, existing, epochs, read_from)):
            self.report_loss(
                f"{queue_name(queue)}: messages before offset {position.offsets[queue]} were read in epoch "
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
        options = self.options
        for share in make_tasks(ranges, len(layout.queues), options.partitions_min, options.records_max):
            names = {queue_range.queue.broker_name for queue_range in share}
            members = {name: dict(layout.members[name]) for name in names}
            tasks.append(QueuePartition(share, members, {name: epochs.get(name, Epochs()) for name in names}))
        return tasks

    def read_task(self, partition: InputPartition | None) -> Iterator[Any]:
        """Yield the messages of a task as Arrow batches; none for the empty task of a query that reads nothing."""
        if not isinstance(partition, QueuePartition):
            return
        client = cluster_client(self.how.name_servers, self.how.tls, self.how.signer)
        for pulled in merge(read_ranges(client, self.how, partition.ranges, partition.members)):
            yield from self.decoder.batches(pulled, partition.epochs[pulled.range.queue.broker_name])
        freeze_modules()


def queue_name(queue: MessageQueue) -> str:
    """Return the description of a queue for messages."""
    return f"{queue.topic} {queue.broker_name} queue {queue.queue_id}"
