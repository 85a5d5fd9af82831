"""Sink of `format("rocketmq")`: rows become messages.

    rows of a task ─► encoded column by column (`outgoing`) ─┬─► requests ─► at most `maxInFlight` messages in flight
                  └─► messages, if a row needs a closer look ┘                ─► acknowledged, or retried

Delivery is at least once: a repeated task, micro-batch or query sends the same messages again. Each has the same unique
key again, a hash of (query, batch, partition, row), so that consumers can drop duplicates. This requires that a
repeated batch has its rows in the same order; the sources of this package guarantee that.

Source: docs/guides/pipeline.md, "The cluster as a sink"; Spark's Kafka sink for conventions.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructType

from tandemq.client.admin.cluster import cluster_info, topic_names, topic_route
from tandemq.client.aio.loop_thread import LoopThread
from tandemq.client.aio.producer import Producer
from tandemq.client.core.calls import Ticket
from tandemq.client.core.operations import Invoke, Steps, ask_all, request
from tandemq.client.core.routes import MASTER_ID, Routes
from tandemq.errors import ConfigError, InvalidMessage, LocalError, NoRoute, NotConnected, StoreError, TandemError
from tandemq.model.codes import RequestCode
from tandemq.model.message import DELAY, KEY_SEPARATOR, KEYS, REAL_TOPIC, TAGS, Message, SendStatus, decode_properties
from tandemq.model.replies import MSG_TYPE
from tandemq.model.topic import RETRY_PREFIX
from tandemq.spark.runtime.client_pool import CONNECT_MS, cluster_client
from tandemq.spark.runtime.versions import DataSourceStreamArrowWriter
from tandemq.spark.runtime.worker import freeze_modules
from tandemq.spark.sources.cluster.options import SinkOptions
from tandemq.spark.sources.cluster.outgoing import (
    BATCH_BYTES,
    BATCH_MESSAGES,
    COMPRESS_ABOVE_BYTES,
    DELAYS,
    KEY_CHARACTERS,
    EncodedRequest,
    encode,
    slices,
    unique_keys,
)
from tandemq.spark.sources.schema import HEADERS, HEADERS_TYPE, SYSTEM_PROPERTIES, did_you_mean

log = logging.getLogger(__name__)
RETRY_PAUSE_S = 0.2
LEVEL, TIME = re.compile(r"[0-9]{1,10}"), re.compile(r"[+-]?[0-9]{1,19}")
LEVELS_END, TIMES_END = 1 << 31, 1 << 63
"""Delay levels and times that brokers read."""
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
    "properties": (
        (StringType, MapType),
        "properties, as stored or as a map; system properties are dropped, but for those of a delay",
    ),
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
        sender = _Sender(self._options)
        row = 0
        try:
            for arrow in batches:
                for some in slices(arrow):
                    keys = unique_keys(query, batch, partition, row, some.num_rows)
                    sender.send(make_parcels(some, self._options, keys, row))
                    row += some.num_rows
            sender.flush()
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
        values: by column of COLUMNS; a property that is NULL counts as absent.
        row: its number in its partition, for messages.
    Raises:
        LocalError: it has no body or topic, a value that no broker accepts, or a header that cannot be a property;
            names the row.
    """
    body, target = values["body"], options.topic or values.get("topic")
    if body is None or not target:
        raise LocalError(f"row {row} of its partition has no {'body' if body is None else 'topic'}")
    given = values.get("properties") or {}
    texts = decode_properties(given) if isinstance(given, str) else dict(given)
    properties = {name: value for name, value in texts.items() if value is not None}
    if options.headers:
        properties |= _properties(values.get(HEADERS) or (), row)
    key = values.get("key")
    keys = key.decode() if isinstance(key, bytes) else key if key is not None else properties.get(KEYS, "")
    tags = values.get("tags")
    delays = requested_delay(properties)
    level = delays.pop(DELAY, "0")
    try:
        if not (LEVEL.fullmatch(level) and int(level) < LEVELS_END):
            raise InvalidMessage(f"the property {DELAY} is {level[:64]!r}, no level", hint="it is a number, from 1 on")
        for name, value in delays.items():
            if not (TIME.fullmatch(value) and abs(int(value)) < TIMES_END):
                raise InvalidMessage(f"the property {name} is {value[:64]!r}, no time", hint="it is a whole number")
        return Message(
            target,
            body.encode() if isinstance(body, str) else body,
            tags if tags is not None else properties.get(TAGS, ""),
            [word for word in keys.split(KEY_SEPARATOR) if word],
            {name: value for name, value in properties.items() if name in delays or name not in SYSTEM_PROPERTIES},
            int(level),
        )
    except InvalidMessage as error:
        raise InvalidMessage(f"row {row} of its partition: {error.args[0]}", hint=error.hint) from None


def requested_delay(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties by which a row asks for a delayed delivery. Those of a stored message do not: it was
    delivered, or it waits in a system topic, which REAL_TOPIC shows."""
    return {} if REAL_TOPIC in properties else {name: properties[name] for name in DELAYS if name in properties}


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
    masters = {address: queue for queue in queues if (address := routes.members(queue.broker_name).get(MASTER_ID))}
    code = RequestCode.GET_MAX_OFFSET
    answers = yield from ask_all(
        [Invoke(address, request(code, topic=topic, queueId=queue.queue_id)) for address, queue in masters.items()]
    )
    errors = [answer for answer in answers if isinstance(answer, NotConnected)]
    if errors and len(errors) == len(masters):
        raise NotConnected(f"no master of the topic {topic} can be reached: {errors[0].args[0]}")


def make_batches(messages: Sequence[Keyed], messages_max: int = BATCH_MESSAGES) -> Iterator[list[Keyed]]:
    """Divide messages into those that one request sends: of one topic, in their order, within `messages_max` and
    `BATCH_BYTES`. Messages that a batch cannot hold, or that are compressed have their own request."""
    held: dict[str, list[Keyed]] = {}
    sizes: dict[str, int] = {}
    for keyed in messages:
        message, _ = keyed
        topic, size = message.topic, len(message.body)
        if (
            not message.is_batchable
            or size >= COMPRESS_ABOVE_BYTES
            or MSG_TYPE in message.properties
            or topic.startswith(RETRY_PREFIX)
        ):
            yield [keyed]
            continue
        batch = held.setdefault(topic, [])
        if len(batch) >= messages_max or (batch and sizes[topic] + size > BATCH_BYTES):
            yield batch
            batch = held[topic] = []
        sizes[topic] = size + (sizes[topic] if batch else 0)
        batch.append(keyed)
    yield from held.values()


class Parcel(Protocol):
    """Messages that are sent, acknowledged and retried together."""

    @property
    def count(self) -> int:
        """Number of messages."""

    @property
    def first(self) -> tuple[str, str]:
        """Topic and unique key of the first one."""

    def begin(self, producer: Producer) -> list[Ticket[Any]]:
        """Start to send them."""

    def singles(self) -> list[Parcel]:
        """Return a parcel for each message."""


@dataclass(frozen=True, slots=True)
class MessageParcel:
    """Messages that the producer has yet to validate."""

    messages: Sequence[Keyed]

    @property
    def count(self) -> int:
        """Number of messages."""
        return len(self.messages)

    @property
    def first(self) -> tuple[str, str]:
        """Topic and unique key of the first one."""
        message, key = self.messages[0]
        return message.topic, key

    def begin(self, producer: Producer) -> list[Ticket[Any]]:
        """Start to send them.

        Raises:
            LocalError, RecordTooLarge: one of them is invalid; none is sent.
        """
        if len(self.messages) == 1:
            [(message, key)] = self.messages
            return [producer.begin(message, unique_key=key)]
        messages, keys = [message for message, _ in self.messages], [key for _, key in self.messages]
        return list(producer.begin_batch(messages, unique_keys=keys))

    def singles(self) -> list[Parcel]:
        """Return a parcel for each message."""
        return [MessageParcel([message]) for message in self.messages]


@dataclass(frozen=True, slots=True)
class EncodedParcel:
    """Messages that are encoded."""

    encoded: EncodedRequest

    @property
    def count(self) -> int:
        """Number of messages."""
        return len(self.encoded.numbers)

    @property
    def first(self) -> tuple[str, str]:
        """Topic and unique key of the first one."""
        request = self.encoded.request
        return request.topic, request.unique_keys[0]

    def begin(self, producer: Producer) -> list[Ticket[Any]]:
        """Start to send them."""
        return [producer.begin_encoded(self.encoded.request)]

    def singles(self) -> list[Parcel]:
        """Return a parcel for each message."""
        rows = self.encoded.rows
        return [EncodedParcel(EncodedRequest(rows.single(row), rows, (row,))) for row in self.encoded.numbers]


def make_parcels(some: Any, options: SinkOptions, keys: str, row: int) -> list[Parcel]:
    """Return the parcels that send the rows of a slice of an Arrow batch.

    Args:
        keys: unique keys of the rows, see `unique_keys`.
        row: number of the first row in its partition.
    Raises:
        LocalError, TypeError: a row cannot be sent; names the row.
    """
    encoded = encode(some, options, keys)
    if encoded is not None:
        return [EncodedParcel(encoded_request) for encoded_request in encoded]
    messages: list[Keyed] = []
    for number, values in enumerate(_rows(some)):
        key = values.get("uniqueKey") or keys[number * KEY_CHARACTERS : (number + 1) * KEY_CHARACTERS]
        messages.append((make_message(values, options, row + number), key))
    return [MessageParcel(batch) for batch in make_batches(messages, min(BATCH_MESSAGES, options.in_flight_max))]


Failure = tuple[Parcel, TandemError]


class _Sender:
    """A producer that sends parcels while the next ones are made."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._producer = Producer(
            options.name_servers,
            group=options.group,
            tls=options.tls or False,
            credentials=options.signer.credentials(),
        )
        self._thread = LoopThread()
        self._thread.call(self._producer.start())
        self._sending: Future[None] | None = None
        self.unsafe = 0

    def send(self, parcels: Sequence[Parcel]) -> None:
        """Wait until the parcels of the last call are acknowledged, then begin to send; raises as `flush`."""
        self.flush()
        self._sending = self._thread.begin(self._send(parcels))

    def flush(self) -> None:
        """Wait until everything is acknowledged.

        Raises:
            TandemError: messages were not acknowledged in time, or refused; names the first one.
        """
        sending, self._sending = self._sending, None
        if sending is not None:
            sending.result()

    async def _send(self, parcels: Sequence[Parcel]) -> None:
        running: dict[asyncio.Task[list[Failure]], int] = {}
        failed: list[Failure] = []
        for parcel in parcels:
            while running and sum(running.values()) + parcel.count > self._options.in_flight_max:
                await _finish_one(running, failed)
            if failed:
                break
            running[asyncio.create_task(self._deliver(parcel))] = parcel.count
        while running:
            await _finish_one(running, failed)
        if failed:
            first, error = next((failure for failure in failed if not failure[1].retriable), failed[0])
            topic, key = first.first
            raise type(error)(
                f"{sum(part.count for part, _ in failed)} messages are not acknowledged, the first to {topic} "
                f"with key {key}: {error}"
            ) from error

    async def _deliver(self, parcel: Parcel) -> list[Failure]:
        """Send a parcel until it is acknowledged; returns the parts that are refused or not acknowledged in time."""
        until = time.monotonic() + self._options.timeout_ms / 1000
        waiting = [parcel]
        while True:
            outcomes = await asyncio.gather(*map(self._attempt, waiting))
            failed = [failure for outcome in outcomes for failure in outcome]
            if not all(error.retriable for _, error in failed) or not failed or time.monotonic() >= until:
                return failed
            waiting = [part for part, _ in failed]
            await asyncio.sleep(RETRY_PAUSE_S)

    async def _attempt(self, parcel: Parcel) -> list[Failure]:
        """Send a parcel once; returns the parts that are not acknowledged, with their errors.

        Errors are returned and not raised, so that the other messages are awaited.
        """
        try:
            results = [await _settled(ticket) for ticket in parcel.begin(self._producer)]
        except TandemError as error:
            if error.retriable or parcel.count == 1:
                return [(parcel, error)]
            # Nothing is stored: sent one by one, the message that is refused is named.
            outcomes = await asyncio.gather(*map(self._attempt, parcel.singles()))
            return [failed for outcome in outcomes for failed in outcome]
        statuses = [result.status for found in results for result in (found if isinstance(found, list) else [found])]
        unsafe = [number for number, status in enumerate(statuses) if status is not SendStatus.SEND_OK]
        if not unsafe:
            return []
        if not self._options.require_send_ok:
            self.unsafe += len(unsafe)
            return []
        parts = [parcel] if len(unsafe) == parcel.count else [parcel.singles()[number] for number in unsafe]
        status = statuses[unsafe[0]].value
        return [(part, _Unsafe(f"{status}, and requireSendOk is set")) for part in parts]

    def close(self) -> None:
        """Close the producer and stop its thread."""
        self._thread.call(self._producer.close())
        self._thread.stop()


async def _finish_one(running: dict[asyncio.Task[list[Failure]], int], failed: list[Failure]) -> None:
    """Wait until a parcel or more are delivered, or have failed."""
    done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        del running[task]
        failed += task.result()


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
