"""Messages read for a pull match its topic, queue and offset, however queue entries are damaged."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemq.broker.features.pulls.message_reader import MessageReader
from tandemq.broker.kernel.pulls import Messages
from tandemq.broker.state.damage_table import Damages
from tandemq.codec.record.entries import HOLE_SIZE_MAX, QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from tandemq.codec.record.record import encode_host, parse_record
from tandemq.storage.consume_queue import ConsumeQueue
from tandemq.storage.store import Store
from tests.unit.broker.harness import Harness, messages_in
from tests.unit.storage.harness import CONFIG, HOST, NOW_MS, new_disk, put, start

NO_LIMIT = 1 << 62


def read(store: Store, queue: ConsumeQueue, offset: int = 0, **named: object) -> Messages:
    reader = MessageReader(store.log, Damages())
    found = reader.read(queue, offset, None, **({"most": 32, "bytes_max": 1 << 20, "limit": NO_LIMIT} | named))  # type: ignore[arg-type]
    assert sum(map(len, found.buffers)) == found.size
    return found


def places(found: Messages) -> Iterator[tuple[bytes, int, int]]:
    """Yield topic, queue id and queue offset of each message."""
    data = b"".join(found.buffers)
    start = 0
    while start < len(data):
        record = parse_record(data, start, len(data))
        assert not isinstance(record, str), record
        yield record.topic, record.queue_id, record.queue_offset
        start += record.size


def interleaved_store(topics: int = 3, count: int = 40) -> Store:
    """Return a store with messages of the same size, which alternate between topics and differ only in the topic."""
    store = start(new_disk())
    for number in range(count):
        for topic in range(topics):
            put(store, number, topic=f"T{topic}")
    store.commit()
    store.flush_queues()
    return store


def overwrite(store: Store, queue: ConsumeQueue, queue_offset: int, entry: bytes) -> None:
    """Overwrite a queue entry on the disk."""
    per_file = CONFIG.queue_file_bytes
    position = queue_offset * QUEUE_ENTRY_BYTES
    path = f"consumequeue/{queue.topic}/{queue.queue_id}/{position - position % per_file:020d}"
    store.disk.open(path).pwrite(entry, position % per_file)


def damaged(entry: tuple[int, int, int], other: tuple[int, int, int], bit: int) -> bytes:
    """Return an entry with a flipped bit; for -1 the other entry, for -2 zeroes."""
    if bit < 0:
        return QUEUE_ENTRY.pack(*other) if bit == -1 else bytes(QUEUE_ENTRY_BYTES)
    raw = bytearray(QUEUE_ENTRY.pack(*entry))
    raw[bit // 8] ^= 0x80 >> bit % 8
    return bytes(raw)


@given(st.integers(-2, 95), st.integers(0, 39), st.integers(0, 39), st.integers(0, 2))
@settings(max_examples=150, deadline=None)
def test_damaged_entry_stops_a_pull_and_no_valid_message_is_skipped(
    bit: int, damaged_offset: int, other_offset: int, other_topic: int
) -> None:
    """A flipped bit of log offset or size; the entry of another message, perhaps at the same offset; or zeroes."""
    store = interleaved_store()
    queue, other = store.queue("T0", 0), store.queue(f"T{other_topic}", 0)
    if bit == -1 and (other_topic, other_offset) == (0, damaged_offset):
        return
    overwrite(store, queue, damaged_offset, damaged(queue.entry(damaged_offset), other.entry(other_offset), bit))
    offset, seen = 0, []
    while offset < 40:
        found = read(store, queue, offset, most=7)
        seen += list(places(found))
        assert found.number or found.mismatch
        if found.mismatch is not None:
            assert (found.mismatch.queue_offset, found.next_offset) == (damaged_offset, damaged_offset)
            offset = damaged_offset + 1
        else:
            offset = found.next_offset
    assert seen == [(b"T0", 0, number) for number in range(40) if number != damaged_offset]


def test_placeholder_entries_are_skipped() -> None:
    store = interleaved_store()
    queue = store.queue("T1", 0)
    overwrite(store, queue, 3, QUEUE_ENTRY.pack(queue.entry(3).log_offset, HOLE_SIZE_MAX, 0))
    found = read(store, queue)
    assert found.mismatch is None
    assert [offset for _, _, offset in places(found)] == [0, 1, 2, *range(4, 32)]


@pytest.mark.parametrize("queues", [1, 3])
def test_one_pull_reads_entries_of_several_files_and_of_memory(queues: int) -> None:
    store = start(new_disk())
    for number in range(45 * queues):
        put(store, number, queue_id=number % queues)
        store.commit()
        if number == 33 * queues:
            store.flush_queues()
    found = read(store, store.queue("T", 0), most=32, offset=5)
    assert [offset for _, _, offset in places(found)] == list(range(5, 37))
    queue = store.queue("T", 0)
    assert queue.dirty
    assert len(queue.read(30, 10)) == 10 * QUEUE_ENTRY_BYTES
    assert [offset for _, _, offset in places(read(store, queue, 30))] == list(range(30, 45))


def test_records_of_every_layout_are_distinguished_from_others() -> None:
    """IPv6 hosts shift the body; the length of a long topic takes two bytes."""
    store = start(new_disk())
    ipv6_host = encode_host(bytes(15) + b"\1", 10911)
    for topic in ("T", "L" * 127, "M" * 128, "N" * 200):
        for born in (HOST, ipv6_host):
            for host in (HOST, ipv6_host):
                store.put(
                    store.queue(topic, 0),
                    body=b"x" * 30,
                    properties=b"",
                    flag=0,
                    sys_flag=0,
                    born_ms=NOW_MS,
                    born_host=born,
                    store_ms=NOW_MS,
                    store_host=host,
                    reconsume_times=0,
                )
        store.commit()
    for topic in ("T", "L" * 127, "M" * 128, "N" * 200):
        found = read(store, store.queue(topic, 0))
        assert found.mismatch is None
        assert list(places(found)) == [(topic.encode(), 0, number) for number in range(4)]


@given(st.integers(0, 1000), st.integers(1, 9), st.integers(100, 3000))
@settings(max_examples=60, deadline=None)
def test_messages_equal_those_of_reading_entry_by_entry(seed: int, most: int, bytes_max: int) -> None:
    """Random messages in several queues, read with random limits of messages, bytes and log offset."""
    random = Random(seed)
    store = start(new_disk())
    for number in range(120):
        queue_id = random.randrange(3) if random.random() < 0.4 else number // 10 % 3
        put(store, number, queue_id=queue_id, size=random.randrange(1, 300))
        if random.random() < 0.2:
            store.commit()
    store.commit()
    if seed % 2:
        store.flush_queues()
    codes = None if seed % 3 else frozenset({store.queue("T", 0).entry(0).tags_code})
    limit = random.choice((NO_LIMIT, store.log.written_end * 2 // 3))
    for queue_id in range(3):
        queue = store.queue("T", queue_id)
        offset = queue.min_offset
        while offset < queue.max_offset:
            found = MessageReader(store.log, Damages()).read(
                queue, offset, codes, most=most, bytes_max=bytes_max, limit=limit
            )
            expected: list[int] = []
            total = 0
            next_offset = offset
            for log_offset, size, code in store.entries(queue, offset, most if codes is None else 800):
                if log_offset >= limit:
                    break
                if codes is None or code in codes:
                    if expected and (len(expected) == most or total + size > bytes_max):
                        break
                    expected.append(next_offset)
                    total += size
                next_offset += 1
            assert [place for _, _, place in places(found)] == expected
            assert (found.next_offset, found.number, found.mismatch) == (next_offset, len(expected), None)
            if next_offset == offset:
                break
            offset = next_offset


def test_pull_continues_from_files_into_memory(tmp_path: Path) -> None:
    """The entries of 20 messages are written, those of 10 are in memory: one pull returns 30 messages."""
    broker = Harness(tmp_path)
    for _ in range(20):
        broker.send("TopicA")
    broker.node.store.flush_queues()
    for _ in range(10):
        broker.send("TopicA")
    answer = broker.pull("TopicA")
    assert answer is not None
    assert len(messages_in(answer)) == 30
