"""Stores of Java brokers: they can be opened and read, and their derived files are rebuilt byte by byte."""

import json
from pathlib import Path
from typing import Any

import pytest

from tandemq.codec.record.record import decode_message
from tandemq.config.settings import parse_delay_levels
from tandemq.real.disk import RealDisk
from tandemq.storage.json_tables import TableFile
from tandemq.storage.recovery import open_store
from tandemq.storage.store import Store, StoreConfig
from tests.golden import GOLDEN, unpack
from tests.spec import spec

STORES = sorted(path.name.removesuffix(".tar.gz") for path in GOLDEN.glob("store-*.tar.gz"))
DELAYS = tuple(parse_delay_levels("1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"))


class Golden:
    """A store written by a Java broker, and its content as listed by Java."""

    def __init__(self, name: str, path: Path) -> None:
        unpack(name, path)
        self.root = path / "store"
        self.expected: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
        sizes = self.expected["configuration"]
        self.config = StoreConfig(
            sizes["mappedFileSizeCommitLog"],
            sizes["mappedFileSizeConsumeQueue"],
            True,
            sizes["maxHashSlotNum"],
            sizes["maxIndexNum"],
            DELAYS,
            "boot",
        )

    def open(self) -> Store:
        store, recovered = open_store(RealDisk(self.root), self.config)
        assert recovered.clean == (self.expected["broker"]["end"] == "SIGTERM")
        return store

    def files(self, directory: str) -> dict[str, bytes]:
        root = self.root / directory
        return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.fixture(params=STORES)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Golden:
    return Golden(request.param, tmp_path)


def check_messages(store: Store, expected: dict[str, Any]) -> None:
    for message in expected["messages"]:
        queue = store.queues[message["topic"], message["queueId"]]
        entry = queue.entry(message["queueOffset"])
        assert entry.log_offset == message["commitLogOffset"]
        assert entry.size == message["storeSize"]
        data = store.record_at(entry.log_offset, entry.size)
        assert data is not None
        found = decode_message(data, 0, len(data))
        assert found.body.decode() == message["body"]
        assert found.properties == message["properties"]
        assert (found.flag, found.sys_flag, found.born_ms, found.store_ms) == (
            message["flag"],
            message["sysFlag"],
            message["bornTimestamp"],
            message["storeTimestamp"],
        )


def check_keys(store: Store, expected: dict[str, Any]) -> None:
    assert store.index is not None
    for name, offsets in expected["keys"].items():
        topic, key = name.split("#", 1)
        assert store.index.find(topic, key, 0, 1 << 62, 64) == offsets


def test_java_store_opens_with_the_same_messages_offsets_and_keys(golden: Golden) -> None:
    store = golden.open()
    assert not store.damaged
    check_messages(store, golden.expected)
    for queue in golden.expected["queues"]:
        ours = store.queue(queue["topic"], queue["queueId"])
        assert (ours.min_offset, ours.max_offset) == (queue["min"], queue["max"])
    check_keys(store, golden.expected)
    store.close()


@spec("V14", "T14")
def test_queue_files_rebuilt_from_javas_log_equal_javas_byte_by_byte(golden: Golden) -> None:
    before = golden.files("consumequeue")
    disk = RealDisk(golden.root)
    for path in ("consumequeue", "checkpoint"):
        disk.remove(path)
    store = golden.open()
    check_messages(store, golden.expected)
    store.close()
    assert golden.files("consumequeue") == before


def test_index_rebuilt_from_javas_log_equals_javas(golden: Golden) -> None:
    (before,) = golden.files("index").values()
    disk = RealDisk(golden.root)
    for path in ("index", "checkpoint", "consumequeue"):
        disk.remove(path)
    store = golden.open()
    check_keys(store, golden.expected)
    store.close()
    (after,) = golden.files("index").values()
    twice = named_twice(store, golden.expected)
    assert len(twice) == (8 if "5.3.3" in golden.expected["broker"]["version"] else 0)
    entries_at = 40 + 4 * golden.config.index_slots
    for place in range(entries_at, len(before), 20):
        if int.from_bytes(before[place + 4 : place + 12]) not in twice:
            assert after[place : place + 16] == before[place : place + 16], "hash, offset, time"
    if not twice:
        assert after == before, "chains, slots and header too"


def named_twice(store: Store, expected: dict[str, Any]) -> set[int]:
    """Return the offsets of records with two unique keys, as in batches of 5.3: Java indexes the last, we the first."""
    found = set()
    for message in expected["messages"]:
        if read_record(store, message).count(b"UNIQ_KEY\x01") > 1:
            found.add(message["commitLogOffset"])
    return found


def read_record(store: Store, message: dict[str, Any]) -> bytes:
    """Return the bytes of a message's record, read from its file."""
    start, within = divmod(message["commitLogOffset"], store.config.segment_bytes)
    raw = store.disk.read(f"commitlog/{start * store.config.segment_bytes:020d}")
    assert raw is not None
    return raw[within : within + message["storeSize"]]


def test_java_store_can_be_continued(golden: Golden) -> None:
    store = golden.open()
    last = golden.expected["messages"][-1]
    queue = store.queues[last["topic"], last["queueId"]]
    number = queue.max_offset
    host = b"\x7f\0\0\1\0\0\x2a\x9f"
    queue_offset, log_offset, _ = store.put(
        queue,
        body=b"ours",
        properties=b"KEYS\x01ours\x02",
        flag=0,
        sys_flag=0,
        born_ms=1,
        born_host=host,
        store_ms=2,
        store_host=host,
        reconsume_times=0,
    )
    store.commit()
    assert queue_offset == number
    assert log_offset > last["commitLogOffset"]
    store.close()
    store = open_store(RealDisk(golden.root), golden.config)[0]
    check_messages(store, golden.expected)
    assert queue.entry(number).log_offset == log_offset


def test_java_tables_are_read(golden: Golden) -> None:
    disk = RealDisk(golden.root)
    offsets = TableFile("consumerOffset.json").load(disk)["offsetTable"]
    for queue in golden.expected["queues"]:
        if queue.get("stored"):
            stored = offsets[f"{queue['topic']}@{golden.expected['group']}"]
            assert stored[str(queue["queueId"])] == queue["stored"]
    assert "GoldenOrders" in TableFile("topics.json").load(disk)["topicConfigTable"]
