"""What a reader copies to the registry, how often and how much, and what a master takes from there."""

import zlib
from pathlib import Path
from random import Random

import pytest

from tandemq.boundary import Now
from tandemq.broker.roles.copied_offsets import PER_INTERVAL, TABLE_BYTES_MAX, ReaderOffsets, decode
from tandemq.broker.state.consumer_offsets import RESETS, ConsumerOffsets
from tandemq.coordination.member.copied_offsets import COPY_MS
from tandemq.coordination.registry.records import CopiedOffsets, GroupMode, GroupState, Mode
from tandemq.errors import StoreDamaged
from tests.spec import spec
from tests.unit.broker.roles.registry_group import RegistryGroup

NORMAL = GroupState(1, 0, (0, 1), GroupMode.NORMAL, 0)
READING = GroupState(1, 0, (0, 1), GroupMode.SLAVE_CONSUME, 1, reading_since=7)
READER = 1


@pytest.fixture
def offsets(tmp_path: Path) -> ConsumerOffsets:
    group = RegistryGroup(tmp_path, Mode.SLAVE_CONSUME)
    return group.brokers[1].node.offsets


def begin_reading(offsets: ConsumerOffsets) -> ReaderOffsets:
    """The slave has followed its master, and reads now."""
    reader = ReaderOffsets(offsets)
    reader.follow(NORMAL, READER)
    reader.follow(READING, READER)
    return reader


@spec("F42")
def test_only_what_is_committed_at_the_reader_is_copied_once_a_second(offsets: ConsumerOffsets) -> None:
    offsets.commit("TopicA", "group", 0, 5)
    reader = begin_reading(offsets)
    assert reader.next_copy(Now(1_000, 0)) is None, "nothing was committed here"
    offsets.commit("TopicA", "group", 1, 8)
    table = reader.next_copy(Now(1_000, 0))
    assert table is not None and decode(table)["offsetTable"] == {"TopicA@group": {"1": 8}}
    offsets.commit("TopicA", "group", 1, 9)
    assert reader.next_copy(Now(1_000 + COPY_MS - 1, 0)) is None
    again = reader.next_copy(Now(1_000 + COPY_MS, 0))
    assert again is not None and decode(again)["offsetTable"] == {"TopicA@group": {"1": 9}}
    assert reader.next_copy(Now(10_000, 0)) is None, "nothing was committed since"
    reader.follow(NORMAL, READER)
    offsets.commit("TopicA", "group", 1, 10)
    assert reader.next_copy(Now(20_000, 0)) is None, "it is not the reader any more"


@spec("F42")
def test_reader_that_was_restarted_copies_all_that_it_has(offsets: ConsumerOffsets) -> None:
    offsets.commit("TopicA", "group", 0, 5)
    reader = ReaderOffsets(offsets)
    reader.follow(None, READER)
    reader.follow(READING, READER)
    table = reader.next_copy(Now(0, 0))
    assert table is not None and decode(table)["offsetTable"] == {"TopicA@group": {"0": 5}}


@spec("F42", "M07")
def test_offset_that_was_reset_at_the_reader_takes_precedence(offsets: ConsumerOffsets, tmp_path: Path) -> None:
    master = RegistryGroup(tmp_path / "other", Mode.SLAVE_CONSUME).brokers[0].node.offsets
    master.commit("TopicA", "group", 0, 50)
    offsets.commit("TopicA", "group", 0, 50)
    reader = begin_reading(offsets)
    offsets.reset("TopicA", "group", 0, 10)
    table = reader.next_copy(Now(0, 0))
    assert table is not None and decode(table)[RESETS] == {"TopicA@group": {"0": 1}}
    master.merge_positions(decode(table))
    assert master.get("TopicA", "group", 0) == 10


@spec("F42")
def test_copy_is_bounded_in_size_and_time_and_has_what_was_committed_last(
    offsets: ConsumerOffsets, caplog: pytest.LogCaptureFixture
) -> None:
    reader = begin_reading(offsets)
    random = Random(1)
    count = 6 * PER_INTERVAL
    for number in range(count):
        offsets.commit(f"Topic-{random.getrandbits(60):x}", "group", number % 4, random.getrandbits(40))
    offsets.commit("TopicA", "group", 0, 5)
    table = reader.next_copy(Now(0, 0))
    assert table is not None and len(table) <= TABLE_BYTES_MAX
    found = decode(table)["offsetTable"]
    assert found["TopicA@group"] == {"0": 5} and 1_000 < len(found) < count
    assert "the registry has room for" in caplog.text
    offsets.commit("TopicA", "group", 0, 6)
    assert reader.next_copy(Now(6 * COPY_MS, 0)) is None
    assert reader.next_copy(Now(7 * COPY_MS, 0)) is not None
    assert caplog.text.count("the registry has room for") == 1


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"no table", id="not compressed"),
        pytest.param(zlib.compress(b"{}")[:-5], id="cut"),
        pytest.param(zlib.compress(b"[1]"), id="not an object"),
        pytest.param(zlib.compress(b"{" * 100), id="not JSON"),
        pytest.param(zlib.compress(b" " * (64 << 20)), id="expands to 64 MiB"),
    ],
)
@spec("F42")
def test_damaged_copy_is_named_and_does_not_keep_the_master_from_serving(
    table: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(StoreDamaged, match="copied offsets"):
        decode(table)
    group = RegistryGroup(tmp_path, Mode.SLAVE_CONSUME)
    master = group.brokers[0]
    copied = CopiedOffsets(1, 7, table)
    master.failover._handover.merge(copied, master.failover.member, master.now)
    assert "messages read at broker 1 are delivered again: copied offsets" in caplog.text
    assert master.failover.member._copies._merged == copied
