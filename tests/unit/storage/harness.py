"""Small stores for tests: write, kill the process, cut the power, reopen, compare."""

from collections.abc import Iterator
from random import Random

from lab.sim.world.disk import SimDisk
from tandemq.boundary import Disk
from tandemq.codec.record.record import Record, encode_host, parse_record
from tandemq.model.message import SysFlag
from tandemq.storage.log.commit_log import AppendMessageResult
from tandemq.storage.recovery import Recovered, open_store
from tandemq.storage.store import Store, StoreConfig

HOST = encode_host(b"\x7f\0\0\1", 10911)
NOW_MS = 1_700_000_000_000
CONFIG = StoreConfig(4096, 200, True, 16, 64, (1000, 5000), "boot-1")
"""Commit log files of 4 KiB, queue files of 10 entries, index files of 63 keys."""
OTHER_BOOT = StoreConfig(4096, 200, True, 16, 64, (1000, 5000), "boot-2")


def start(disk: Disk, config: StoreConfig = CONFIG) -> Store:
    """Open the store."""
    return open_store(disk, config)[0]


def reopen(disk: SimDisk, config: StoreConfig = CONFIG) -> tuple[Store, Recovered]:
    """Reopen the store after the process was killed, with a working disk."""
    disk.heal()
    disk.kill()
    return open_store(disk, config)


def put(
    store: Store,
    number: int,
    *,
    topic: str = "T",
    queue_id: int = 0,
    size: int = 20,
    sys_flag: int = 0,
    host: bytes = HOST,
) -> AppendMessageResult:
    """Put one message whose body, tag and keys contain its number."""
    if len(host) > len(HOST):
        sys_flag |= SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
    properties = f"TAGS\x01t{number % 3}\x02KEYS\x01k{number} all\x02UNIQ_KEY\x01u{number:08d}\x02".encode()
    return store.put(
        store.queue(topic, queue_id),
        body=body_of(number, size),
        properties=properties,
        flag=number,
        sys_flag=sys_flag,
        born_ms=NOW_MS + number,
        born_host=host,
        store_ms=NOW_MS + number * 10,
        store_host=host,
        reconsume_times=0,
    )


def body_of(number: int, size: int) -> bytes:
    """Return a body of `size` bytes that repeats its number."""
    return (b"%d." % number * (size // 2 + 1))[:size]


def fill(store: Store, count: int, *, first: int = 0, per_turn: int = 1, size: int = 20, topics: int = 1) -> None:
    """Put `count` messages, a few per turn, over some topics with two queues each."""
    for number in range(first, first + count):
        put(store, number, topic=f"T{number % topics}", queue_id=number // topics % 2, size=size)
        if (number + 1) % per_turn == 0:
            store.commit()
    store.commit()


def records(store: Store) -> Iterator[Record]:
    """Yield all records of the log, without blanks."""
    offset, segment = store.log.start, store.config.segment_bytes
    while offset < store.log.written_end:
        data = store.log.read_raw(offset, segment)
        if data[4:8] == bytes.fromhex("CBD43194"):
            offset += segment - offset % segment
            continue
        record = parse_record(data, 0, len(data))
        assert not isinstance(record, str), f"{record} at {offset} of {store.log.written_end}"
        assert record.log_offset == offset
        yield record
        offset += record.size


def flags(store: Store) -> list[int]:
    """Return the numbers of all messages in the log."""
    found = []
    for record in records(store):
        data = store.record_at(record.log_offset, record.size)
        assert data is not None
        found.append(int.from_bytes(data[16:20]))
    return found


def queue_entries(store: Store) -> dict[tuple[str, int], list[tuple[int, int, int]]]:
    """Return all entries of all queues that have any, from their min offsets."""
    found = {}
    for key, queue in store.queues.items():
        if queue.max_offset > queue.min_offset:
            entries = [tuple(queue.entry(n)) for n in range(queue.min_offset, queue.max_offset)]
            found[key] = entries
    return found  # type: ignore[return-value]  # an Entry is such a tuple


def expected_entries(store: Store) -> dict[tuple[str, int], list[tuple[int, int, int]]]:
    """Return the entries that the queues must have according to the log."""
    found: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    for record in records(store):
        entries = found.setdefault((record.topic.decode(), record.queue_id), [])
        assert record.queue_offset == len(entries), "queue offsets in the log have no holes"
        entries.append((record.log_offset, record.size, store.entry_code(record.topic.decode(), record.properties, 0)))
    return found


def index_finds(store: Store, numbers: list[int]) -> bool:
    """Whether each message is found by its unique key and its own key."""
    assert store.index is not None
    places = {}
    for record in records(store):
        data = store.record_at(record.log_offset, record.size)
        assert data is not None
        places[int.from_bytes(data[16:20])] = (record.topic.decode(), record.log_offset)
    for number in numbers:
        topic, offset = places[number]
        for key in (f"u{number:08d}", f"k{number}"):
            if offset not in store.index.find(topic, key, 0, 1 << 62, 64):
                return False
    return True


def derived(disk: SimDisk) -> dict[str, bytes | None]:
    """Return the content of all queue files."""
    return {path: disk.read(path) for path in disk.paths() if path.startswith("consumequeue/")}


def check(store: Store) -> list[int]:
    """Check that log, queues and index agree, and return the numbers of the messages."""
    held = flags(store)
    assert queue_entries(store) == expected_entries(store)
    for queue in store.queues.values():
        assert queue.next_offset == queue.max_offset
    assert index_finds(store, held), "a message is not found by its keys"
    return held


def new_disk(seed: int = 1) -> SimDisk:
    """An empty disk."""
    return SimDisk(Random(seed))
