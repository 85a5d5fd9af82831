"""Requests of any bytes, and requests of each version."""

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from tandemq.errors import ProtocolError
from tandemq.kafka.requests import (
    VERSIONS,
    Api,
    FetchPart,
    FetchRequest,
    KafkaError,
    OffsetQuestion,
    PartitionState,
    TopicMetadata,
    TopicPartition,
    read_fetch,
    read_header,
    read_metadata,
    read_offsets,
    write_metadata,
)
from tandemq.kafka.wire import WireReader, WireWriter
from tests.spec import spec

PLACE = TopicPartition("Orders", 3)


@spec("P45")
@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused(data: bytes) -> None:
    for read, api in ((read_metadata, Api.METADATA), (read_offsets, Api.LIST_OFFSETS), (read_fetch, Api.FETCH)):
        for version in range(VERSIONS[api][0], VERSIONS[api][1] + 1):
            with suppress(ProtocolError):
                read(WireReader(data), version)
    with suppress(ProtocolError):
        read_header(WireReader(data))


@spec("P43")
def test_each_version_of_a_fetch_is_read() -> None:
    for version in range(4, 12):
        writer = WireWriter()
        for value in (-1, 500, 1, 1 << 20):
            writer.int32(value)
        writer.int8(1)
        if version >= 7:
            writer.int32(0)
            writer.int32(-1)
        writer.int32(1)
        writer.string("Orders")
        writer.int32(1)
        writer.int32(3)
        if version >= 9:
            writer.int32(-1)
        writer.int64(42)
        if version >= 5:
            writer.int64(-1)
        writer.int32(1_000)
        expected = FetchRequest(500, 1, 1 << 20, [FetchPart(PLACE, 42, 1_000)])
        assert read_fetch(WireReader(bytes(writer.data)), version) == expected


@spec("P43")
def test_each_version_of_a_question_for_offsets_is_read() -> None:
    for version in range(1, 6):
        writer = WireWriter()
        writer.int32(-1)
        if version >= 2:
            writer.int8(0)
        writer.int32(1)
        writer.string("Orders")
        writer.int32(1)
        writer.int32(3)
        if version >= 4:
            writer.int32(-1)
        writer.int64(-2)
        assert read_offsets(WireReader(bytes(writer.data)), version) == [OffsetQuestion(PLACE, -2)]


@spec("P43")
def test_metadata_of_all_topics_is_null_or_in_the_first_version_empty() -> None:
    empty, null = b"\0" * 4, b"\xff" * 4
    assert read_metadata(WireReader(empty), 0) is None
    for version in range(1, 9):
        assert read_metadata(WireReader(null), version) is None
        assert read_metadata(WireReader(empty), version) == []


def test_partition_that_is_not_served_has_no_leader() -> None:
    """Consumers go on with the others, and ask again: one that is said to have a leader keeps some from all of it."""
    states = [PartitionState(0, is_served=True), PartitionState(1, is_served=False)]
    topic = TopicMetadata("Orders", KafkaError.NONE, states)
    reader = WireReader(bytes(write_metadata(0, ("localhost", 9092), "c", [topic]).data))
    assert (reader.int32(), reader.int32(), reader.string(), reader.int32()) == (1, 1, "localhost", 9092)
    assert (reader.int32(), reader.int16(), reader.string(), reader.int32()) == (1, 0, "Orders", 2)
    found = []
    for _ in states:
        found.append((reader.int16(), reader.int32(), reader.int32()))
        assert [reader.int32() for _ in range(4)] == [1, 1, 1, 1]
    assert found == [(KafkaError.NONE, 0, 1), (KafkaError.LEADER_NOT_AVAILABLE, 1, -1)]
