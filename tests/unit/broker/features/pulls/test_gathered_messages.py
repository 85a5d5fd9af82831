"""Messages that the engine gathers from memory and files are those that the reader selects and reads."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemq.boundary import Disk
from tandemq.broker.features.pulls.message_reader import MessageReader
from tandemq.broker.filter.parser import SqlFilter, compile_filter
from tandemq.broker.state.damage_table import Damages
from tandemq.engine import NAME, FilterProgram, LogSources, select_messages
from tandemq.errors import DiskFailed, OffsetGone
from tandemq.real.disk import RealDisk
from tandemq.storage.log import range_reader
from tandemq.storage.log.range_reader import RangeReader
from tandemq.storage.store import Store, StoreConfig
from tests.unit.storage.harness import HOST, new_disk, put, start

FILE_BYTES = 300_000
"""Not a multiple of the blocks that the reader caches."""
HOST_V6 = bytes(range(20))


def filled(
    sizes: list[int], topics: int, file_bytes: int = FILE_BYTES, disk: Disk | None = None, host: bytes = HOST
) -> Store:
    """A store of two files and more, of which only the last write is in memory."""
    store = start(disk or new_disk(), StoreConfig(file_bytes, 20_000, True, 16, 64, (1000,), "boot-1"))
    number = 0
    while store.log.end < 2 * range_reader.BLOCK_BYTES + 10_000:
        put(store, number, topic=f"T{number % topics}", size=sizes[number % len(sizes)], host=host)
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
    st.sampled_from([None, 0, 30]),
    st.integers(0, 600_000),
)
@settings(max_examples=25)
def test_gathered_messages_are_those_that_are_read_one_by_one(
    sizes: list[int], topics: int, most: int, bytes_max: int, others: int | None, limit: int
) -> None:
    store = filled(sizes, topics)
    codes = None
    if others is not None:
        codes = {entry.tags_code for entry in (store.queues["T0", 0].entry(at) for at in range(2))} | set(range(others))
    gathered = [read_all(store, codes, most, bytes_max, limit) for _ in range(3)]  # from files, then from blocks
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(range_reader, "gather_messages", lambda *_: None)
        expected = read_all(store, codes, most, bytes_max, limit)
    assert gathered == [expected] * 3


def test_cached_messages_are_gathered_without_a_read() -> None:
    store = filled([700], 2, 1 << 20)
    read_all(store, None, 32, 1 << 20, 1 << 60)
    before = store.log.reader.bytes_read
    assert read_all(store, None, 32, 1 << 20, 1 << 60)
    assert store.log.reader.bytes_read - before < range_reader.BLOCK_BYTES, "only what no whole block holds"


def test_engine_reads_what_is_not_in_memory() -> None:
    """No record is left to the general path, also if it continues in a block that is not cached."""
    store = filled([700, 3000], 3)
    expected = read_all(store, None, 32, 1 << 20, 1 << 60)
    store.log.reader.forget()
    store.log.recent.restart(store.log.end)
    with pytest.MonkeyPatch.context() as patch:
        if NAME == "compiled":
            patch.setattr(RangeReader, "read", None)
        assert read_all(store, None, 32, 1 << 20, 1 << 60) == expected


@pytest.mark.parametrize("topics", [1, 7, 200])
def test_few_bytes_are_read_beyond_those_returned(topics: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "CREDIT_MAX", range_reader.BLOCK_BYTES)
    store = filled([600], topics)
    store.log.recent.restart(store.log.end)
    store.log.reader._credit = range_reader.BLOCK_BYTES
    reader = store.log.reader
    for queue in store.queues.values():
        MessageReader(store.log, Damages()).read(queue, 0, None, most=32, bytes_max=1 << 20, limit=1 << 60)
        assert reader.bytes_read <= 2 * reader.bytes_answered + range_reader.BLOCK_BYTES


def test_deleted_records_are_reported() -> None:
    store = filled([700], 1)
    store.log.recent.restart(store.log.end)
    store.log.drop_first_segment()
    queue = store.queues["T0", 0]
    with pytest.raises(OffsetGone):
        MessageReader(store.log, Damages()).read(queue, 0, None, most=32, bytes_max=1 << 20, limit=1 << 60)


@pytest.mark.parametrize("topics", [1, 4, 40, 400])
def test_engine_reads_real_files_itself(topics: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that lie apart are read from the page cache without a call of Python, and are the same."""
    store = filled([700, 3000], topics, disk=RealDisk(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(range_reader, "gather_messages", lambda *_: None)
        expected = read_all(store, None, 8, 1 << 20, 1 << 60)
    reader = store.log.reader
    reader.forget()
    store.log.recent.restart(store.log.end)
    sources = LogSources(reader._blocks, range_reader.BLOCK_BYTES, FILE_BYTES, reader._load)
    monkeypatch.setattr(reader, "_sources", sources)
    calls: list[int] = []
    read_exactly = reader._read_exactly

    def counted(at: int, size: int) -> bytes:
        calls.append(at)
        return read_exactly(at, size)

    monkeypatch.setattr(reader, "_read_exactly", counted)
    assert read_all(store, None, 8, 1 << 20, 1 << 60) == expected
    if NAME == "compiled" and topics > 4:
        assert len(calls) < 20, "a read for each file, and for blocks"
        assert sources.bytes_read > 100_000
    assert reader.bytes_read <= 2 * reader.bytes_answered + range_reader.CREDIT_MAX


def matching(store: Store, sql: SqlFilter) -> Read:
    """Read all queues through a filter."""
    reader, found = MessageReader(store.log, Damages()), []
    for queue in store.queues.values():
        offset = 0
        while offset < queue.max_offset:
            messages = reader.read_matching(queue, offset, sql, most=8, bytes_max=1 << 20, limit=1 << 60)
            found.append((b"".join(messages.buffers), messages.number, messages.next_offset))
            assert messages.next_offset > offset
            offset = messages.next_offset
    return found


@pytest.mark.parametrize("host", [HOST, HOST_V6])
@pytest.mark.parametrize("sizes", [[30_000, 4_100, 9_000], [30_000, 100, 4_100, 9_000, 3_900]])
@pytest.mark.parametrize("topics", [1, 4, 40])
def test_filter_reads_no_bodies_of_large_messages_that_do_not_match(
    topics: int, sizes: list[int], host: bytes, tmp_path: Path
) -> None:
    store = filled(sizes, topics, disk=RealDisk(tmp_path), host=host)
    sql = compile_filter("TAGS = 't1' AND KEYS NOT CONTAINS '3'")
    assert isinstance(sql, SqlFilter)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MessageReader, "_select_matching", lambda *_: None)
        expected = matching(store, sql)
    reader = store.log.reader
    reader.forget()
    store.log.recent.restart(store.log.end)
    before = reader.bytes_read
    found = matching(store, sql)
    assert b"".join(data for data, _, _ in found) == b"".join(data for data, _, _ in expected)
    if NAME == "compiled" and min(sizes) > 4_000:
        answered = sum(len(data) for data, _, _ in found)
        assert reader.bytes_read - before < answered + store.log.end // 4


def test_large_message_that_does_not_fit_its_entry_is_left_to_the_general_path(tmp_path: Path) -> None:
    store = filled([20_000], 1, disk=RealDisk(tmp_path))
    store.log.recent.restart(store.log.end)
    sql = compile_filter("TAGS = 't9'")
    assert isinstance(sql, SqlFilter)
    reader, queue = store.log.reader, store.queues["T0", 0]
    limits: dict[str, Any] = {
        "most": 8,
        "bytes_max": 1 << 20,
        "examined_max": 1 << 20,
        "cost_max": 1 << 20,
        "limit": 1 << 60,
    }
    entries = queue.read(0, 3)
    assert reader.select(entries, 0, 0, b"T0", sql.program, **limits) or NAME != "compiled"
    for queue_offset, queue_id, topic in ((1, 0, b"T0"), (0, 1, b"T0"), (0, 0, b"T1")):
        assert reader.select(entries, queue_offset, queue_id, topic, sql.program, **limits) is None
    path = min((tmp_path / "commitlog").iterdir())
    for at in (4, 84, queue.entry(0).size - 3):  # magic, size of the body, properties
        data = bytearray(path.read_bytes())
        data[at] ^= 0xFF
        reader.forget()
        kept = path.read_bytes()
        path.write_bytes(data)
        assert reader.select(entries, 0, 0, b"T0", sql.program, **limits) is None or at > 1_000
        path.write_bytes(kept)


def test_engine_reads_no_file_that_was_deleted_or_closed(tmp_path: Path) -> None:
    store = filled([700], 40, disk=RealDisk(tmp_path))
    store.log.recent.restart(store.log.end)
    read_all(store, None, 8, 1 << 20, 1 << 60)
    store.log.drop_first_segment()
    queue, reader = store.queues["T0", 0], MessageReader(store.log, Damages())
    with pytest.raises(OffsetGone):
        reader.read(queue, 0, None, most=8, bytes_max=1 << 20, limit=1 << 60)
    last = queue.max_offset - 1
    assert reader.read(queue, last, None, most=8, bytes_max=1 << 20, limit=1 << 60).number == 1
    store.log.close()
    (tmp_path / "commitlog").rename(tmp_path / "gone")
    with pytest.raises(DiskFailed):
        reader.read(queue, last, None, most=8, bytes_max=1 << 20, limit=1 << 60)


def test_filtered_pull_ends_early_if_it_waits_for_the_device() -> None:
    """Files that the page cache does not hold: here one that cannot be read at all."""
    if NAME != "compiled":
        return
    store = filled([700], 40)
    queue = store.queues["T0", 0]
    entries = queue.read(0, 800)
    found = compile_filter("a IS NULL")
    assert isinstance(found, SqlFilter)
    program: FilterProgram = found.program
    unreadable, other = os.pipe()
    loads: list[int] = []

    def load(start: int, end: int, _run_end: int, _wants_block: bool) -> bytes:
        loads.append(start)
        return store.log.read(start, end - start)

    sources = LogSources({}, range_reader.BLOCK_BYTES, 1 << 40, load)
    sources.add_file(0, unreadable)
    log = store.log
    limits = 800, 1 << 20, 1 << 20, 1 << 30, 1 << 60, log.written_end, log.written_end, bytearray()
    selected = select_messages(entries, 0, 0, b"T0", program, *limits, sources)
    os.close(unreadable)
    os.close(other)
    assert selected is not None
    waits_max = 32
    assert selected.messages == selected.next_offset == len(loads) == min(waits_max, len(entries) // 20)
