"""Messages that the engine gathers from memory are those that the reader selects and reads."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemq.broker.pull.message_reader import MessageReader
from tandemq.broker.state.damage_table import Damages
from tandemq.storage.log import range_reader
from tandemq.storage.store import Store, StoreConfig
from tests.unit.storage.harness import new_disk, put, start

CONFIG = StoreConfig(1 << 20, 20_000, True, 16, 64, (1000,), "boot-1")


def filled(sizes: list[int], topics: int) -> Store:
    """A store of whole blocks of the log, most of them read before, and of a last write that is in memory."""
    store = start(new_disk(), CONFIG)
    number = 0
    while store.log.end < 2 * range_reader.BLOCK_BYTES + 10_000:
        put(store, number, topic=f"T{number % topics}", size=sizes[number % len(sizes)])
        number += 1
        if number % 50 == 0:
            store.commit()
    store.commit()
    return store


Read = list[tuple[bytes, int, int]]
"""Bytes of each response, its number of messages, and the next queue offset."""


def read_all(store: Store, codes: set[int] | None, most: int, bytes_max: int, limit: int) -> Read:
    reader = MessageReader(store.log, Damages())
    found: Read = []
    for queue in store.queues.values():
        offset = 0
        while offset < queue.max_offset:
            messages = reader.read(queue, offset, codes, most=most, bytes_max=bytes_max, limit=limit)
            found.append((b"".join(messages.buffers), messages.number, messages.next_offset))
            assert messages.size == len(found[-1][0])
            if messages.next_offset == offset:
                break
            offset = messages.next_offset
    return found


@given(
    st.lists(st.integers(0, 3000), min_size=1, max_size=5),
    st.integers(1, 4),
    st.integers(1, 40),
    st.integers(100, 40_000),
    st.booleans(),
    st.integers(0, 600_000),
)
@settings(max_examples=25)
def test_gathered_messages_are_those_that_are_read_one_by_one(
    sizes: list[int], topics: int, most: int, bytes_max: int, filters: bool, limit: int
) -> None:
    store = filled(sizes, topics)
    codes = {entry.tags_code for entry in (store.queues["T0", 0].entry(at) for at in range(2))} if filters else None
    gathered = [read_all(store, codes, most, bytes_max, limit) for _ in range(3)][-1]  # by now blocks are cached
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(range_reader, "gather_messages", lambda *_: None)
        assert gathered == read_all(store, codes, most, bytes_max, limit)


def test_cached_messages_are_gathered_without_a_read() -> None:
    store = filled([700], 2)
    read_all(store, None, 32, 1 << 20, 1 << 60)
    before = store.log.reader.bytes_read
    assert read_all(store, None, 32, 1 << 20, 1 << 60)
    assert store.log.reader.bytes_read - before < range_reader.BLOCK_BYTES, "only what no whole block holds"
