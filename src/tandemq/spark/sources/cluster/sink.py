"""Sink of `format("rocketmq")`: rows become messages.

    rows of a task ─► encoded column by column (`outgoing`) ─┬─► `parcels` ─► `RowSender`: at most `maxInFlight`
                  └─► messages, if a row needs a closer look ┘                  in flight, acknowledged or retried

Delivery is at least once: a repeated task, micro-batch or query sends the same messages again. Each has the same unique
key again, made of (query, batch, partition, row), so that consumers can drop duplicates. This requires that a
repeated batch has its rows in the same order; the sources of this package guarantee that.

Source: docs/guides/pipeline.md, "The cluster as a sink"; Spark's Kafka sink for conventions.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructType

from tandemq.client.admin.cluster import cluster_info, topic_names, topic_route
from tandemq.client.core.operations import Invoke, Steps, ask_all, request
from tandemq.client.core.routes import MASTER_ID, Routes
from tandemq.errors import ConfigError, LocalError, NoRoute, NotConnected
from tandemq.model.codes import RequestCode
from tandemq.spark.runtime.client_pool import CONNECT_MS, cluster_client
from tandemq.spark.runtime.versions import DataSourceStreamArrowWriter
from tandemq.spark.runtime.worker import freeze_modules
from tandemq.spark.runtime.worker_errors import shows_one_line
from tandemq.spark.sources.cluster.options import SinkOptions
from tandemq.spark.sources.cluster.outgoing import (
    slices,
    unique_keys,
)
from tandemq.spark.sources.cluster.parcels import make_parcels
from tandemq.spark.sources.cluster.queue_choice import QueueBy
from tandemq.spark.sources.cluster.row_messages import COLUMNS
from tandemq.spark.sources.cluster.row_sender import RowSender
from tandemq.spark.sources.schema import HEADERS, HEADERS_TYPE, did_you_mean

log = logging.getLogger(__name__)
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties in which Spark passes the query and the micro-batch to a task of a streaming query."""


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """Result of a task. `unsafe`: messages stored without the flush or the replica that the cluster is configured
    for."""

    count: int
    unsafe: int


def check_sink_schema(schema: StructType, options: SinkOptions) -> None:
    """Validate the columns before a job starts.

    Raises:
        ConfigError: there is no body or no topic, or a column has an unsupported type.
    """
    kinds = {("body" if field.name == "value" else field.name): field.dataType for field in schema}
    if "body" not in kinds:
        near = next(
            (did_you_mean(name, ["body", "value"]) for name in kinds if did_you_mean(name, ["body", "value"])), ""
        )
        raise ConfigError("there is no column body (or value) to send", hint=near or f"there are {', '.join(kinds)}")
    if options.topic is None and "topic" not in kinds:
        raise ConfigError("neither option nor column gives a topic", hint="give the option topic, or a column topic")
    for name, (allowed, _) in COLUMNS.items():
        is_used = name != "partition" or options.queue_by is QueueBy.PARTITION
        if name in kinds and is_used and not isinstance(kinds[name], allowed):
            names = " or ".join(kind.typeName() for kind in allowed)
            raise ConfigError(f"column {name} is {kinds[name].simpleString()}", hint=f"it must be {names}")
    if options.queue_by is QueueBy.PARTITION and "partition" not in kinds:
        raise ConfigError("queueBy=partition needs a column partition", hint=f"there are {', '.join(kinds)}")
    properties = kinds.get("properties")
    if isinstance(properties, MapType) and not _has_texts(properties):
        raise ConfigError(f"column properties is {properties.simpleString()}", hint="a map must be map<string,string>")
    headers = kinds.get(HEADERS)
    if headers is not None and options.headers and not _are_headers(headers):
        raise ConfigError(
            f"column {HEADERS} is {headers.simpleString()}",
            hint=f"it must be {HEADERS_TYPE.simpleString()}, or give includeHeaders=false",
        )


def _has_texts(kind: MapType) -> bool:
    return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)


def _are_headers(kind: DataType) -> bool:
    element = kind.elementType if isinstance(kind, ArrayType) else None
    fields = {field.name: field.dataType for field in element} if isinstance(element, StructType) else {}
    return (
        fields.keys() == {"key", "value"}
        and isinstance(fields["key"], StringType)
        and isinstance(fields["value"], BinaryType | StringType)
    )


class _Writer:
    """Common part of batch and streaming writers; serialized to tasks."""

    def __init__(self, options: SinkOptions, schema: StructType, connect_ms: int | None = None) -> None:
        check_sink_schema(schema, options)
        self._options = options
        # Fail before the first task if the cluster is not reachable.
        client = cluster_client(options.name_servers, options.tls, options.signer)
        # A broker that is away for a moment must not end a stream, so that only a batch write asks for one.
        topic = options.topic if connect_ms is not None else None
        client.run(lambda routes: check_reachable(routes, topic), options.timeout_ms, connect_ms=connect_ms)

    def write_batches(self, batches: Iterator[Any], query: str, batch: str) -> Written:
        """Send all rows of a task; returns when every message is acknowledged.

        Raises:
            LocalError, RecordTooLarge: a row cannot be sent; names the row.
            TandemError: a message was not acknowledged in time.
        """
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        sender = RowSender(self._options)
        row = 0
        try:
            for arrow in batches:
                for some in slices(arrow):
                    keys = unique_keys(query, batch, partition, row, some.num_rows)
                    sender.send(make_parcels(some, self._options, keys, row, sender.queues))
                    row += some.num_rows
            sender.flush()
            return Written(row, sender.unsafe)
        finally:
            sender.close()
            freeze_modules()


@shows_one_line
class BatchWriter(DataSourceArrowWriter):
    """Writer for `df.write`."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        """Validate the columns, and check that the cluster is reachable."""
        self._writer = _Writer(options, schema, CONNECT_MS)
        self._id = options.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[Any]) -> Written:
        """Send the rows of a task, as `_Writer.write_batches`."""
        return self._writer.write_batches(iterator, self._id, "")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log the result when all tasks have completed."""
        _log_unsafe("the write", messages)


@shows_one_line
class StreamWriter(DataSourceStreamArrowWriter):
    """Writer for `df.writeStream`."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        """Validate the columns, and check that the cluster is reachable."""
        self._writer = _Writer(options, schema)

    def write(self, iterator: Iterator[Any]) -> Written:
        """Send the rows of a task, as `_Writer.write_batches`."""
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_ID) if context is not None else None
        batch = context.getLocalProperty(BATCH_ID) if context is not None else None
        if query is None or batch is None:
            raise LocalError("Spark passes neither query nor micro-batch to its tasks")
        return self._writer.write_batches(iterator, query, batch)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Log the result when all tasks of a micro-batch have completed."""
        _log_unsafe(f"batch {batchId}", messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Log the result of a failed micro-batch: messages already sent stay, and are sent again with the same keys."""
        _log_unsafe(f"failed batch {batchId}", messages)


def _log_unsafe(what: str, messages: list[WriterCommitMessage | None]) -> None:
    written = [message for message in messages if isinstance(message, Written)]
    unsafe = sum(message.unsafe for message in written)
    if unsafe:
        log.warning(
            "%s: %d of %d messages are stored without the configured flush or replica",
            what,
            unsafe,
            sum(message.count for message in written),
        )


def check_reachable(routes: Routes, topic: str | None) -> Steps[None]:
    """Check that the cluster can be reached: its name server and, if the topic exists, one of its masters.

    Raises:
        NetworkError: it cannot, or the topic has no broker because no broker is registered.
    """
    if topic is None:
        yield from topic_names(routes)
        return
    try:
        queues = (yield from topic_route(routes, topic)).subscribe_queues()
    except NoRoute:  # it may be created by the first message
        if (yield from cluster_info(routes)).brokers:
            return
        raise NotConnected(f"no broker is registered at the name server, so that none stores {topic}") from None
    masters = {address: queue for queue in queues if (address := routes.members(queue.broker_name).get(MASTER_ID))}
    code = RequestCode.GET_MAX_OFFSET
    answers = yield from ask_all(
        [Invoke(address, request(code, topic=topic, queueId=queue.queue_id)) for address, queue in masters.items()]
    )
    errors = [answer for answer in answers if isinstance(answer, NotConnected)]
    if errors and len(errors) == len(masters):
        raise NotConnected(f"no master of the topic {topic} can be reached: {errors[0].args[0]}")
