"""Requests of Kafka consumers and their responses, in the versions that this server offers.

All versions but one are those without tagged fields, which every consumer since Kafka 0.11 can use; of ApiVersions
there is one with them, because consumers ask in it first.

Source: Kafka's protocol guide and message schemas (ApiVersions, Metadata, ListOffsets, Fetch, Produce,
FindCoordinator).
"""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple, TypeVar

from tandemq.kafka.wire import WireReader, WireWriter

Q = TypeVar("Q")
READER_NODE = 1
"""Id of this server, the only broker that consumers see."""


class Api(IntEnum):
    """Requests that are answered."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    FIND_COORDINATOR = 10
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    SASL_AUTHENTICATE = 36


VERSIONS = {
    Api.PRODUCE: (3, 3),
    Api.FETCH: (4, 11),
    Api.LIST_OFFSETS: (1, 5),
    Api.METADATA: (0, 8),
    Api.FIND_COORDINATOR: (0, 2),
    Api.API_VERSIONS: (0, 3),
}
"""Lowest and highest version of each.

librdkafka fetches batches only from brokers that offer Produce, too: sends are refused with an error. It must name a
group, and waits for the coordinator without an error: it gets one that takes no members.
"""
SASL_VERSIONS = {Api.SASL_HANDSHAKE: (1, 1), Api.SASL_AUTHENTICATE: (0, 1)}
"""The same of those that sign in."""
Versions = Mapping[Api, tuple[int, int]]
TAGGED_API_VERSIONS = 3
"""Version of ApiVersions from which on it has tagged fields."""


class KafkaError(IntEnum):
    """Error codes of responses."""

    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER = 6
    TOPIC_AUTHORIZATION_FAILED = 29
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    SASL_AUTHENTICATION_FAILED = 58
    FETCH_SESSION_ID_NOT_FOUND = 70


class RequestHeader(NamedTuple):
    """What precedes each request."""

    api: int
    version: int
    correlation_id: int
    client: str


class TopicPartition(NamedTuple):
    """A partition as consumers name it."""

    topic: str
    number: int


class OffsetQuestion(NamedTuple):
    """One partition of ListOffsets. `timestamp`: milliseconds since 1970, or LATEST, EARLIEST."""

    partition: TopicPartition
    timestamp: int


LATEST, EARLIEST = -1, -2


class OffsetAnswer(NamedTuple):
    """Its response; -1 if there is no such offset or time."""

    partition: TopicPartition
    error: KafkaError
    timestamp: int
    offset: int


class ProduceAnswer(NamedTuple):
    """The response to a send, for one partition."""

    partition: TopicPartition
    error: KafkaError


class FetchPart(NamedTuple):
    """One partition of a fetch."""

    partition: TopicPartition
    offset: int
    bytes_max: int


class FetchRequest(NamedTuple):
    """A fetch: how long to wait for how many bytes, and what of. `session`: 0, as this server has none."""

    wait_ms: int
    bytes_min: int
    bytes_max: int
    parts: Sequence[FetchPart]
    session: int = 0


class FetchAnswer(NamedTuple):
    """The response for one partition: its end and start, -1 if they are not known, and a batch or none."""

    partition: TopicPartition
    error: KafkaError
    end: int
    start: int
    batch: bytes


class PartitionState(NamedTuple):
    """A partition in Metadata. `is_served`: whether its queue can be read now."""

    number: int
    is_served: bool


class TopicMetadata(NamedTuple):
    """A topic in Metadata."""

    name: str
    error: KafkaError
    partitions: Sequence[PartitionState]


def read_header(reader: WireReader) -> RequestHeader:
    """Read the header of a request.

    Raises:
        ProtocolError: the request ends within it.
    """
    return RequestHeader(reader.int16(), reader.int16(), reader.int32(), reader.string() or "")


def write_versions(version: int, served: Versions) -> WireWriter:
    """Return the response to ApiVersions. A `version` that is not known is answered as version 0, with an error."""
    writer = WireWriter()
    low, high = served[Api.API_VERSIONS]
    is_known = low <= version <= high
    writer.int16(KafkaError.NONE if is_known else KafkaError.UNSUPPORTED_VERSION)
    is_tagged = is_known and version >= TAGGED_API_VERSIONS
    if is_tagged:
        writer.int8(len(served) + 1)
    else:
        writer.int32(len(served))
    for api, (first, last) in served.items():
        writer.int16(api)
        writer.int16(first)
        writer.int16(last)
        if is_tagged:
            writer.int8(0)
    if is_known and version >= 1:
        writer.int32(0)
    if is_tagged:
        writer.int8(0)
    return writer


def read_mechanism(reader: WireReader) -> str:
    """Read SaslHandshake: the mechanism that the consumer wants.

    Raises:
        ProtocolError: the request is malformed.
    """
    return reader.string() or ""


def write_handshake(mechanism: str, error: KafkaError) -> WireWriter:
    """Return the response to SaslHandshake. `mechanism`: the one that is served."""
    writer = WireWriter()
    writer.int16(error)
    writer.int32(1)
    writer.string(mechanism)
    return writer


def read_token(reader: WireReader) -> bytes:
    """Read SaslAuthenticate: the token of the mechanism.

    Raises:
        ProtocolError: the request is malformed.
    """
    return reader.sized()


def write_authenticated(version: int, error: KafkaError, reason: str | None) -> WireWriter:
    """Return the response to SaslAuthenticate. `reason`: of the error."""
    writer = WireWriter()
    writer.int16(error)
    writer.string(reason)
    writer.sized(b"")
    if version >= 1:
        writer.int64(0)  # it does not end
    return writer


def read_metadata(reader: WireReader, version: int) -> list[str] | None:
    """Read the topics of Metadata; None: all.

    Raises:
        ProtocolError: the request is malformed.
    """
    topics = reader.array(lambda: reader.string() or "")
    if version == 0 and not topics:
        return None
    return topics


def write_metadata(version: int, address: tuple[str, int], cluster: str, topics: Sequence[TopicMetadata]) -> WireWriter:
    """Return the response to Metadata. `address`: host and port of this server for consumers."""
    writer = WireWriter()
    if version >= 3:
        writer.int32(0)
    writer.int32(1)
    writer.int32(READER_NODE)
    writer.string(address[0])
    writer.int32(address[1])
    if version >= 1:
        writer.string(None)
    if version >= 2:
        writer.string(cluster)
    if version >= 1:
        writer.int32(READER_NODE)
    writer.int32(len(topics))
    for topic in topics:
        _write_topic(writer, version, topic)
    if version >= 8:
        writer.int32(_NO_OPERATIONS)
    return writer


_NO_OPERATIONS = -(1 << 31)
"""Authorized operations, if they are not given."""
_NO_NODE = -1


def _write_topic(writer: WireWriter, version: int, topic: TopicMetadata) -> None:
    writer.int16(topic.error)
    writer.string(topic.name)
    if version >= 1:
        writer.int8(0)
    writer.int32(len(topic.partitions))
    for partition in topic.partitions:
        writer.int16(KafkaError.NONE if partition.is_served else KafkaError.LEADER_NOT_AVAILABLE)
        writer.int32(partition.number)
        writer.int32(READER_NODE if partition.is_served else _NO_NODE)
        if version >= 7:
            writer.int32(-1)
        for _ in ("replicas", "in sync"):
            writer.int32(1)
            writer.int32(READER_NODE)
        if version >= 5:
            writer.int32(0 if partition.is_served else 1)
            if not partition.is_served:
                writer.int32(READER_NODE)
    if version >= 8:
        writer.int32(_NO_OPERATIONS)


def read_offsets(reader: WireReader, version: int) -> list[OffsetQuestion]:
    """Read ListOffsets.

    Raises:
        ProtocolError: the request is malformed.
    """
    reader.int32()
    if version >= 2:
        reader.int8()

    def partition(topic: str) -> OffsetQuestion:
        number = reader.int32()
        if version >= 4:
            reader.int32()
        return OffsetQuestion(TopicPartition(topic, number), reader.int64())

    return _of_topics(reader, partition)


def _of_topics(reader: WireReader, partition: Callable[[str], Q]) -> list[Q]:
    """Read an array of topics, each an array of partitions, which a function reads."""

    def topic() -> list[Q]:
        name = reader.string() or ""
        return reader.array(lambda: partition(name)) or []

    return [found for of_topic in reader.array(topic) or [] for found in of_topic]


def write_offsets(version: int, answers: Sequence[OffsetAnswer]) -> WireWriter:
    """Return the response to ListOffsets."""
    writer = WireWriter()
    if version >= 2:
        writer.int32(0)
    for topic, of_topic in _by_topic(writer, answers):
        writer.string(topic)
        writer.int32(len(of_topic))
        for answer in of_topic:
            writer.int32(answer.partition.number)
            writer.int16(answer.error)
            writer.int64(answer.timestamp)
            writer.int64(answer.offset)
            if version >= 4:
                writer.int32(-1)
    return writer


def write_coordinator(version: int, address: tuple[str, int]) -> WireWriter:
    """Return the response to FindCoordinator, which names this server."""
    writer = WireWriter()
    if version >= 1:
        writer.int32(0)
    writer.int16(KafkaError.NONE)
    if version >= 1:
        writer.string(None)
    writer.int32(READER_NODE)
    writer.string(address[0])
    writer.int32(address[1])
    return writer


def read_produce(reader: WireReader) -> tuple[int, list[TopicPartition]]:
    """Read Produce, without its messages: how many brokers must have stored them, and the partitions.

    Raises:
        ProtocolError: the request is malformed.
    """
    reader.string()
    acks = reader.int16()
    reader.int32()

    def partition(topic: str) -> TopicPartition:
        number = reader.int32()
        reader.sized()
        return TopicPartition(topic, number)

    return acks, _of_topics(reader, partition)


def write_produce(answers: Sequence[ProduceAnswer]) -> WireWriter:
    """Return the response to Produce, whose messages were not stored."""
    writer = WireWriter()
    for topic, of_topic in _by_topic(writer, answers):
        writer.string(topic)
        writer.int32(len(of_topic))
        for answer in of_topic:
            writer.int32(answer.partition.number)
            writer.int16(answer.error)
            writer.int64(-1)
            writer.int64(-1)
    writer.int32(0)
    return writer


def read_fetch(reader: WireReader, version: int) -> FetchRequest:
    """Read Fetch.

    Raises:
        ProtocolError: the request is malformed.
    """
    reader.int32()
    wait_ms, bytes_min, bytes_max = reader.int32(), reader.int32(), reader.int32()
    reader.int8()
    session = reader.int32() if version >= 7 else 0
    if version >= 7:
        reader.int32()

    def partition(topic: str) -> FetchPart:
        number = reader.int32()
        if version >= 9:
            reader.int32()
        offset = reader.int64()
        if version >= 5:
            reader.int64()
        return FetchPart(TopicPartition(topic, number), offset, reader.int32())

    return FetchRequest(wait_ms, bytes_min, bytes_max, _of_topics(reader, partition), session)


def write_fetch(version: int, answers: Sequence[FetchAnswer], error: KafkaError = KafkaError.NONE) -> WireWriter:
    """Return the response to Fetch. There are no sessions: each fetch names all its partitions."""
    writer = WireWriter()
    writer.int32(0)
    if version >= 7:
        writer.int16(error)
        writer.int32(0)
    for topic, of_topic in _by_topic(writer, answers):
        writer.string(topic)
        writer.int32(len(of_topic))
        for answer in of_topic:
            writer.int32(answer.partition.number)
            writer.int16(answer.error)
            writer.int64(answer.end)
            writer.int64(answer.end)
            if version >= 5:
                writer.int64(answer.start)
            writer.int32(-1)
            if version >= 11:
                writer.int32(-1)
            writer.sized(answer.batch)
    return writer


A = TypeVar("A", OffsetAnswer, FetchAnswer, ProduceAnswer)


def _by_topic(writer: WireWriter, answers: Sequence[A]) -> list[tuple[str, list[A]]]:
    """Group answers by topic, and write the number of topics."""
    found: dict[str, list[A]] = {}
    for answer in answers:
        found.setdefault(answer.partition.topic, []).append(answer)
    writer.int32(len(found))
    return list(found.items())
