"""Damage in a record whose body contains the bytes of another record with the right log offset."""

import pytest

from tandemq.codec.record.record import HEAD_V4, Record, encode_record, parse_record
from tandemq.storage.log.commit_log import AppendMessageResult
from tandemq.storage.log.scan import damaged_record
from tandemq.storage.store import Store
from tests.unit.storage.harness import HOST, NOW_MS, fill, new_disk, queue_entries, reopen, start
from tests.unit.storage.test_scan import SEGMENT, build_log, reader_of

FIRST = "commitlog/" + "0" * 20
VICTIM = ("T0", 0)


def record_at_place(log_offset: int, body: bytes = b"forged", topic: bytes = b"T0") -> bytes:
    return encode_record(
        topic=topic,
        queue_id=0,
        queue_offset=0,
        log_offset=log_offset,
        body=body,
        properties=b"",
        flag=0,
        sys_flag=0,
        born_ms=NOW_MS,
        born_host=HOST,
        store_ms=NOW_MS,
        store_host=HOST,
    )


def forged_body(log_offset: int) -> bytes:
    """Return the body of a record at a log offset: two forged records behind each other, and a filler."""
    first = record_at_place(log_offset + HEAD_V4.size)
    return first + record_at_place(log_offset + HEAD_V4.size + len(first)) + b"filler" * 5


def put_evil(store: Store, body: bytes) -> AppendMessageResult:
    """Store a message of topic `Evil`."""
    return store.put(
        store.queue("Evil", 0),
        body=body,
        properties=b"",
        flag=0,
        sys_flag=0,
        born_ms=NOW_MS,
        born_host=HOST,
        store_ms=NOW_MS,
        store_host=HOST,
        reconsume_times=0,
    )


def put_forged(store: Store) -> Record:
    """Store a message of topic `Evil` with forged records of the victim's queue in its body."""
    stored = put_evil(store, forged_body(store.log.end))
    store.commit()
    data = store.record_at(stored.log_offset)
    assert data is not None
    assert store.record_at(stored.log_offset + HEAD_V4.size) is not None
    record = parse_record(data, 0, len(data))
    assert isinstance(record, Record)
    return record


def body_end_of(data: bytearray, position: int) -> int | None:
    found = damaged_record(reader_of(bytes(data)), position, SEGMENT)
    return position + found.body_end if found is not None else None


def test_a_damaged_header_never_claims_the_next_record() -> None:
    """The lengths of a damaged header may be the damage."""
    good, starts = build_log([3_000, 2_000, *[100] * 40])
    told = 0
    for bit in range(8 * HEAD_V4.size):
        data = bytearray(good)
        data[starts[1] + bit // 8] ^= 1 << bit % 8
        end = body_end_of(data, starts[1])
        assert end is None or end < starts[2], bit
        told += end is not None
    assert told > 400, "most of a header's bits do not matter"


@pytest.mark.parametrize("wiped", [1, 4, 8, 36, 84, 88, 512])
def test_a_lost_header_claims_nothing_that_follows(wiped: int) -> None:
    good, starts = build_log([3_000, 2_000, *[100] * 40])
    for filler in (b"\0", b"\xff", b"\x01"):
        data = bytearray(good)
        data[starts[1] : starts[1] + wiped] = filler * wiped
        end = body_end_of(data, starts[1])
        assert end is None or end < starts[2]


def test_a_header_cannot_claim_more_than_its_file() -> None:
    head = bytearray(record_at_place(0, b"b" * 100))
    head[:4], head[84:88] = (SEGMENT + 1).to_bytes(4), (SEGMENT - 200).to_bytes(4)
    assert body_end_of(head, 0) is None
    head[:4] = SEGMENT.to_bytes(4)
    assert body_end_of(head, 0) == SEGMENT - 200 + HEAD_V4.size
    assert body_end_of(bytearray(80), 0) is body_end_of(bytearray(), 0) is None


@pytest.mark.parametrize("at", ["magic", "body CRC", "forged", "filler", "topic", "properties", "CRC"])
def test_recovery_enters_no_record_of_a_damaged_body(at: str) -> None:
    disk = new_disk()
    store = start(disk)
    fill(store, 3)
    damaged = put_forged(store)
    fill(store, 2, first=3)
    before = queue_entries(store)
    assert VICTIM in before
    where = {
        "magic": 5,
        "body CRC": 9,
        "forged": HEAD_V4.size + 40,
        "filler": damaged.body_end - 5,
        "topic": damaged.body_end + 2,
        "properties": damaged.body_end + 6,
        "CRC": damaged.size - 3,
    }
    disk.flip(FIRST, damaged.log_offset + where[at], 2)
    for name in ("tandemq.marks", "checkpoint", *[name for name in disk.paths() if name.startswith("consumequeue/")]):
        disk.remove(name)
    store, _ = reopen(disk)
    assert [(one.start, one.end) for one in store.damaged] == [(damaged.log_offset, damaged.log_offset + damaged.size)]
    del before["Evil", 0]
    assert {key: entries for key, entries in queue_entries(store).items() if entries} == before


def test_torn_write_leaves_no_record_of_its_body() -> None:
    """A process that is killed in a write may have written the forged records whole and their own record in part."""
    disk = new_disk()
    store = start(disk)
    fill(store, 3)
    before = queue_entries(store)
    torn = put_forged(store)
    image = disk.read(FIRST)
    assert image is not None
    for cut in (torn.body_end - 1, torn.body_end, torn.size - 1):
        disk = new_disk()
        disk.replace(FIRST, image[: torn.log_offset + cut].ljust(len(image), b"\0"))
        disk.replace("abort", b"")
        store = start(disk)
        assert (store.damaged, store.log.end) == ([], torn.log_offset)
        assert {key: entries for key, entries in queue_entries(store).items() if entries} == before


def test_a_forged_record_does_not_claim_the_messages_behind_its_own() -> None:
    """Behind a record whose header is lost, one found in its body may be followed by a header that claims the log."""
    disk = new_disk()
    store = start(disk)
    fill(store, 1)
    place = store.log.end
    forged = record_at_place(place + HEAD_V4.size)
    claim = bytearray(record_at_place(place + HEAD_V4.size + len(forged), b"x"))
    claim[:4], claim[84:88] = (2_100).to_bytes(4), (2_000).to_bytes(4)
    put_evil(store, forged + bytes(claim))
    end = store.log.end
    fill(store, 5, first=1)
    kept = [entry for entries in queue_entries(store).values() for entry in entries if entry[0] >= end]
    disk.flip(FIRST, place + 30, 2)
    disk.flip(FIRST, place + 85, 2)
    for name in ("tandemq.marks", "checkpoint", *[name for name in disk.paths() if name.startswith("consumequeue/")]):
        disk.remove(name)
    store, _ = reopen(disk)
    found = {entry[0] for entries in queue_entries(store).values() for entry in entries}
    assert {entry[0] for entry in kept} <= found
