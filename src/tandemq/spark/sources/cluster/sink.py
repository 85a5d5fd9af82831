"""Sink of `format("rocketmq")`: rows become messages.

    rows of a task ─► messages, each with a unique key ─► batches ─► at most `maxInFlight` in flight ─► acknowledged,
                                                                                                        or retried

Delivery is at least once: a repeated task, micro-batch or query sends the same messages again. Each has the same unique
key again, a hash of (query, batch, partition, row), so that consumers can drop duplicates. This requires that a
repeated batch has its rows in the same order; the sources of this package guarantee that.

Source: docs/guides/pipeline.md, "The cluster as a sink"; Spark's Kafka sink for conventions.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeVar

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructType

from tandemq.client.admin.cluster import cluster_info, topic_names, topic_route
from tandemq.client.aio.producer import Producer
from tandemq.client.blocking import LoopThread
from tandemq.client.core.calls import Ticket
from tandemq.client.core.operations import Invoke, Steps, ask_all, request
from tandemq.client.core.routes import MASTER_ID, Routes
from tandemq.client.core.settings import ProducerOptions
from tandemq.errors import ConfigError, LocalError, NoRoute, NotConnected, StoreError, TandemError
from tandemq.model.codes import RequestCode
from tandemq.model.message import KEY_SEPARATOR, KEYS, TAGS, Message, SendResult, SendStatus, decode_properties
from tandemq.model.replies import MSG_TYPE
from tandemq.model.topic import RETRY_PREFIX
from tandemq.spark.runtime.client_pool import CONNECT_MS, cluster_client
from tandemq.spark.runtime.versions import DataSourceStreamArrowWriter
from tandemq.spark.runtime.worker import freeze_modules
from tandemq.spark.sources.cluster.options import SinkOptions
from tandemq.spark.sources.schema import HEADERS, HEADERS_TYPE, SYSTEM_PROPERTIES, did_you_mean

log = logging.getLogger(__name__)
RETRY_PAUSE_S = 0.2
BATCH_MESSAGES = 128
BATCH_BYTES = 256 << 10
"""Limits of a request. All its messages go to one queue, so that larger ones would fill queues unevenly."""
COMPRESS_ABOVE_BYTES = ProducerOptions(group="spark").compress_above_bytes
Keyed = tuple[Message, str]
"""A message and its unique key."""
T = TypeVar("T")
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties in which Spark passes the query and the micro-batch to a task of a streaming query."""

COLUMNS: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "body": ((BinaryType, StringType), "message body; `value` is an alias"),
    "topic": ((StringType,), "topic; the option `topic` takes precedence"),
    "key": ((StringType, BinaryType), "keys, separated by spaces"),
    "tags": ((StringType,), "tag"),
    "properties": ((StringType, MapType), "properties, as stored or as a map; system properties are dropped"),
    HEADERS: ((ArrayType,), "properties as an array of key and value, as in Spark's Kafka source"),
    "uniqueKey": ((StringType,), "unique key, if the message has one already"),
}
"""Columns that the sink uses, with types and meaning; other columns are ignored."""


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """Result of a task. `unsafe`: messages stored without the flush or the replica that the cluster is configured
    for."""

    count: int
    unsafe: int


def unique_key(query: str, batch: str, partition: int, row: int) -> str:
    """Return the unique key of a row, 32 hexadecimal digits; equal arguments give equal keys."""
    text = "\x00".join((query, batch, str(partition), str(row)))
    return blake2b(text.encode(), digest_size=16).hexdigest().upper()


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
        if name in kinds and not isinstance(kinds[name], allowed):
            names = " or ".join(kind.typeName() for kind in allowed)
            raise ConfigError(f"column {name} is {kinds[name].simpleString()}", hint=f"it must be {names}")
    headers = kinds.get(HEADERS)
    if headers is not None and options.headers and not _are_headers(headers):
        raise ConfigError(
            f"column {HEADERS} is {headers.simpleString()}",
            hint=f"it must be {HEADERS_TYPE.simpleString()}, or give includeHeaders=false",
        )


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
        client = cluster_client(options.name_servers, options.tls)
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
        sender = _Sender(self._options)
        row = 0
        try:
            for arrow in batches:
                messages: list[Keyed] = []
                for values in _rows(arrow):
                    key = values.get("uniqueKey") or unique_key(query, batch, partition, row)
                    messages.append((make_message(values, self._options, row), key))
                    row += 1
                sender.send(messages)
            return Written(row, sender.unsafe)
        finally:
            sender.close()
            freeze_modules()


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


def _rows(batch: Any) -> Iterator[dict[str, Any]]:
    names = ["body" if name == "value" else name for name in batch.schema.names]
    columns = {name: column.to_pylist() for name, column in zip(names, batch.columns, strict=True) if name in COLUMNS}
    for row in range(batch.num_rows):
        yield {name: values[row] for name, values in columns.items()}


def make_message(values: Mapping[str, Any], options: SinkOptions, row: int) -> Message:
    """Return the message of a row.

    Args:
        values: by column of COLUMNS.
        row: its number in its partition, for messages.
    Raises:
        LocalError: it has no body or topic, or a header that cannot be a property.
    """
    body, target = values["body"], options.topic or values.get("topic")
    if body is None or not target:
        raise LocalError(f"row {row} of its partition has no {'body' if body is None else 'topic'}")
    given = values.get("properties") or {}
    properties = decode_properties(given) if isinstance(given, str) else dict(given)
    if options.headers:
        properties |= _properties(values.get(HEADERS) or (), row)
    key = values.get("key")
    keys = key.decode() if isinstance(key, bytes) else key if key is not None else properties.get(KEYS, "")
    tags = values.get("tags")
    return Message(
        target,
        body.encode() if isinstance(body, str) else body,
        tags if tags is not None else properties.get(TAGS, ""),
        [word for word in keys.split(KEY_SEPARATOR) if word],
        {name: value for name, value in properties.items() if name not in SYSTEM_PROPERTIES},
    )


def _properties(headers: Iterable[Mapping[str, Any]], row: int) -> dict[str, str]:
    """Return the properties that the headers of a row become.

    Raises:
        LocalError: a header cannot be a property; names it.
    """
    found: dict[str, str] = {}
    for header in headers:
        name, value = header["key"], header["value"]
        try:
            text = value.decode() if isinstance(value, bytes) else value
        except UnicodeDecodeError:
            text = None
        if name is None or text is None:
            raise LocalError(f"row {row} of its partition: the value of header {name!r} is not UTF-8 text")
        if name in found:
            raise LocalError(f"row {row} of its partition has header {name!r} twice", hint="a property has one value")
        found[name] = text
    return found


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
    masters = {at: queue for queue in queues if (at := routes.members(queue.broker_name).get(MASTER_ID))}
    code = RequestCode.GET_MAX_OFFSET
    answers = yield from ask_all(
        [Invoke(at, request(code, topic=topic, queueId=queue.queue_id)) for at, queue in masters.items()]
    )
    errors = [one for one in answers if isinstance(one, NotConnected)]
    if errors and len(errors) == len(masters):
        raise NotConnected(f"no master of the topic {topic} can be reached: {errors[0].args[0]}")


def make_batches(messages: Sequence[Keyed]) -> Iterator[list[Keyed]]:
    """Divide messages into those that one request sends: of one topic, in their order, within `BATCH_MESSAGES` and
    `BATCH_BYTES`. Messages that a batch cannot hold, or that are compressed alone, have a request of their own."""
    held: dict[str, list[Keyed]] = {}
    sizes: dict[str, int] = {}
    for one in messages:
        message, _ = one
        topic, size = message.topic, len(message.body)
        if size >= COMPRESS_ABOVE_BYTES or MSG_TYPE in message.properties or topic.startswith(RETRY_PREFIX):
            yield [one]
            continue
        batch = held.setdefault(topic, [])
        if len(batch) >= BATCH_MESSAGES or (batch and sizes[topic] + size > BATCH_BYTES):
            yield batch
            batch = held[topic] = []
        sizes[topic] = size + (sizes[topic] if batch else 0)
        batch.append(one)
    yield from held.values()


class _Sender:
    """A producer that sends lists of messages and waits for all acknowledgements."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._producer = Producer(options.name_servers, group=options.group, tls=options.tls or False)
        self._thread = LoopThread()
        self._thread.call(self._producer.start())
        self.unsafe = 0

    def send(self, messages: list[Keyed]) -> None:
        """Send messages; returns when all are acknowledged."""
        step = self._options.in_flight_max
        for at in range(0, len(messages), step):
            self._thread.call(self._send(messages[at : at + step]))

    async def _send(self, waiting: list[Keyed]) -> None:
        until = time.monotonic() + self._options.timeout_ms / 1000
        while True:
            batches = list(make_batches(waiting))
            outcomes = await asyncio.gather(*(self._attempt(batch) for batch in batches))
            failed = [one for outcome in outcomes for one in outcome]
            if not failed:
                return
            (message, key), error = failed[0]
            if not error.retriable or time.monotonic() >= until:
                raise type(error)(
                    f"{len(failed)} messages are not acknowledged, the first to {message.topic} with key {key}: {error}"
                ) from error
            waiting = [one for one, _ in failed]
            await asyncio.sleep(RETRY_PAUSE_S)

    async def _attempt(self, batch: list[Keyed]) -> list[tuple[Keyed, TandemError]]:
        """Send some messages in one request; returns those that are not acknowledged, with the error.

        Errors are returned and not raised, so that the other messages are awaited.
        """
        try:
            results = await self._results(batch)
        except TandemError as error:
            if error.retriable or len(batch) == 1:
                return [(one, error) for one in batch]
            # Nothing is stored: sent one by one, the message that is refused is named.
            outcomes = await asyncio.gather(*(self._attempt([one]) for one in batch))
            return [failed for outcome in outcomes for failed in outcome]
        failures: list[tuple[Keyed, TandemError]] = []
        for one, result in zip(batch, results, strict=True):
            if result.status is SendStatus.SEND_OK:
                continue
            if self._options.require_send_ok:
                failures.append((one, _Unsafe(f"{result.status.value}, and requireSendOk is set")))
            else:
                self.unsafe += 1
        return failures

    async def _results(self, batch: list[Keyed]) -> list[SendResult]:
        if len(batch) == 1:
            [(message, key)] = batch
            return [await _settled(self._producer.begin(message, unique_key=key))]
        tickets = self._producer.begin_batch([message for message, _ in batch], unique_keys=[key for _, key in batch])
        results = await asyncio.gather(*map(_settled, tickets))
        return [result for some in results for result in some]

    def close(self) -> None:
        """Close the producer and stop its thread."""
        self._thread.call(self._producer.close())
        self._thread.stop()


class _Unsafe(StoreError):
    """The message is stored, but without the configured flush or replica."""

    retriable = True


async def _settled(ticket: Ticket[T]) -> T:
    """Wait for the result of a ticket."""
    if not ticket.done:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ticket.then(lambda _ticket: None if future.done() else future.set_result(None))
        await future
    return ticket.result()
