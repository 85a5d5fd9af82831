"""Topics that were deleted: no walk of the log brings their messages back."""

from itertools import count
from random import Random

import pytest

from lab.sim.world.disk import PowerLoss, SimDisk
from tandemq.errors import DiskFailed
from tandemq.storage import recovery
from tandemq.storage.quarantine import quarantine_tail
from tandemq.storage.store import Store
from tests.spec import spec
from tests.unit.storage.harness import CONFIG, HOST, NOW_MS, OTHER_BOOT, body_of, put, reopen, start


def _bodies(store: Store, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    queue = store.queues.get((topic, queue_id))
    found = []
    for queue_offset in range(queue.min_offset, queue.max_offset) if queue is not None else ():
        record = store.record_of(queue, queue_offset) if queue is not None else None
        assert record is not None
        found.append(record[1][record[0].body_start : record[0].body_end])
    return found


def _with_a_deleted_topic(disk: SimDisk) -> Store:
    """Messages 0 to 4 of T, which is deleted, then 10 to 12 of T again, and others of Other throughout."""
    store = start(disk)
    for number in range(5):
        put(store, number)
        put(store, 100 + number, topic="Other")
    store.commit()
    store.delete_topic("T", NOW_MS)
    for number in range(10, 13):
        put(store, number)
    put(store, 105, topic="Other")
    store.commit()
    return store


def _check(store: Store) -> None:
    assert _bodies(store) == [body_of(number, 20) for number in (10, 11, 12)]
    assert _bodies(store, "Other") == [body_of(number, 20) for number in range(100, 106)]


@spec("T21")
@pytest.mark.parametrize("lost", ["index", "consumequeue", "consumequeue/T", "consumequeue/Other", "tandemq.marks"])
@pytest.mark.parametrize("clean", [True, False])
def test_lost_files_are_rebuilt_without_the_messages_of_a_deleted_topic(lost: str, *, clean: bool) -> None:
    disk = SimDisk(Random(1))
    store = _with_a_deleted_topic(disk)
    _check(store)
    if clean:
        store.close()
    else:
        store.flush_queues()
    disk.remove(lost)
    _check(reopen(disk)[0])


@spec("T21")
def test_topic_that_was_deleted_last_stays_empty_after_a_walk() -> None:
    disk = SimDisk(Random(1))
    store = start(disk)
    for number in range(5):
        put(store, number)
    store.commit()
    store.delete_topic("T", NOW_MS)
    store.commit()
    store.close()
    disk.remove("index")
    disk.remove("consumequeue")
    assert not _bodies(reopen(disk)[0])


@spec("T21")
@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_replica_deletes_the_topic_where_the_log_says_so(piece: int) -> None:
    """`piece`: records that the replica gets at a time, so that a deletion is alone, or between others of its batch."""
    store = _with_a_deleted_topic(SimDisk(Random(1)))
    data = store.log.read(0, store.log.written_end)
    ends, at = [], 0
    while at < len(data):
        at += int.from_bytes(data[at : at + 4])
        ends.append(at)
    replica = start(SimDisk(Random(2)))
    dropped: list[str] = []
    replica.watch_drops(dropped.append)
    begin = 0
    for end in [*ends[piece - 1 :: piece], ends[-1]]:
        if end > begin:
            replica.append_copy(data[begin:end])
            replica.commit()
        begin = end
    _check(replica)
    assert dropped == ["T"]


def test_several_batches_of_one_turn_follow_a_deletion() -> None:
    store = _with_a_deleted_topic(SimDisk(Random(1)))
    data = store.log.read(0, store.log.written_end)
    replica = start(SimDisk(Random(2)))
    begin = 0
    while begin < len(data):
        end = begin + int.from_bytes(data[begin : begin + 4])
        replica.append_copy(data[begin:end])
        begin = end
    replica.commit()
    _check(replica)


def test_deletion_that_names_no_topic_is_ignored() -> None:
    store = start(SimDisk(Random(1)))
    put(store, 1)
    store.commit()
    store.delete_topic("../T", NOW_MS)
    store.commit()
    data = store.log.read(0, store.log.written_end)
    replica = start(SimDisk(Random(2)))
    replica.append_copy(data)
    replica.commit()
    assert _bodies(replica) == [body_of(1, 20)]


def test_store_without_keys_is_not_walked_after_a_clean_stop() -> None:
    disk = SimDisk(Random(1))
    store = start(disk)
    for number in range(5):
        store.put(
            store.queue("T", 0),
            body=body_of(number, 20),
            properties=b"",
            flag=0,
            sys_flag=0,
            born_ms=NOW_MS,
            born_host=HOST,
            store_ms=NOW_MS,
            store_host=HOST,
            reconsume_times=0,
        )
    store.commit()
    store.close()
    store, recovered = recovery.open_store(disk, CONFIG)
    assert recovered.checked_from == recovered.log_end == store.log.end
    assert recovered.records == 0
    put(store, 9)
    store.commit()
    store.close()
    disk.remove("index")
    assert recovery.open_store(disk, CONFIG)[1].checked_from == 0, "an index with keys is lost"


@spec("T21")
@pytest.mark.parametrize("recreated", [False, True])
def test_deletion_that_is_truncated_is_undone(*, recreated: bool) -> None:
    store = start(SimDisk(Random(1)))
    for number in range(5):
        put(store, number)
        put(store, 100 + number, topic="Other")
    store.commit()
    store.flush_queues()
    end = store.log.written_end
    store.delete_topic("T", NOW_MS)
    if recreated:
        put(store, 10)
    put(store, 105, topic="Other")
    store.commit()
    quarantine_tail(store, end)
    assert _bodies(store) == [body_of(number, 20) for number in range(5)]
    assert _bodies(store, "Other") == [body_of(number, 20) for number in range(100, 105)]
    assert put(store, 11).queue_offset == 5
    store.commit()
    assert _bodies(store)[5:] == [body_of(11, 20)]


def _with_two_topics(disk: SimDisk) -> Store:
    """Five messages of T and of Other, on the device."""
    store = start(disk)
    for number in range(5):
        put(store, number)
        put(store, 100 + number, topic="Other")
    store.commit()
    store.flush()
    store.flush_queues()
    for path in store.take_unsynced(store.marks.synced):
        disk.open(path).datasync()
    store.synced_up_to(store.log.written_end)
    store.sync_marks()
    return store


@spec("T21")
def test_deletion_that_is_not_written_changes_nothing() -> None:
    disk = SimDisk(Random(1))
    store = _with_two_topics(disk)
    disk.fail("pwrite", prefix="commitlog/")
    with pytest.raises(DiskFailed):
        store.delete_topic("T", NOW_MS)
    disk.heal()
    assert _bodies(store) == [body_of(number, 20) for number in range(5)]
    assert _bodies(reopen(disk)[0]) == [body_of(number, 20) for number in range(5)]


@spec("T21")
def test_power_loss_after_a_deletion_keeps_the_record_and_no_queue_or_all_queues() -> None:
    outcomes = set()
    for seed in range(40):
        disk = SimDisk(Random(seed))
        store = _with_two_topics(disk)
        end = store.log.end
        store.delete_topic("T", NOW_MS)
        disk.crash()
        store, _ = recovery.open_store(disk, OTHER_BOOT)
        outcomes.add((store.log.end > end, len(_bodies(store))))
        assert len(_bodies(store, "Other")) == 5
    assert outcomes == {(True, 0), (False, 5)}


@spec("T21")
def test_deletion_on_the_device_needs_no_rebuild() -> None:
    disk = SimDisk(Random(1))
    store = _with_two_topics(disk)
    for number in range(20, 23):
        put(store, number, topic="Third")
    store.commit()
    store.delete_topic("T", NOW_MS)
    assert reopen(disk)[1].checked_from == 0, "the record may be lost"
    store = _with_two_topics(disk := SimDisk(Random(1)))
    put(store, 20)
    store.commit()
    store.delete_topic("T", NOW_MS)
    put(store, 105, topic="Other")
    store.commit()
    store.flush()
    store.flush_queues()
    store, recovered = reopen(disk)
    assert recovered.checked_from == store.log.end
    assert _bodies(store) == []


@spec("T21")
def test_dropped_topic_does_not_end_the_rebuild_that_a_deletion_asks_for() -> None:
    disk = SimDisk(Random(1))
    store = _with_two_topics(disk)
    store.delete_topic("T", NOW_MS)
    store.drop_topic("Other")
    assert reopen(disk)[1].checked_from == 0


@spec("T21")
def test_truncated_deletion_is_undone_when_a_crash_interrupts_the_truncation() -> None:
    for nth in count(1):
        disk = SimDisk(Random(nth))
        store = _with_two_topics(disk)
        end = store.log.end
        store.delete_topic("T", NOW_MS)
        store.flush()
        store.flush_queues()
        disk.stop_at(nth)
        try:
            quarantine_tail(store, end)
        except PowerLoss:
            store, _ = reopen(disk)
            if store.log.end > end:
                quarantine_tail(store, end)
        else:
            return
        assert len(_bodies(store)) == 5, nth
        assert put(store, 9).queue_offset == 5, nth


def _with_many_queues(disk: SimDisk) -> Store:
    store = start(disk)
    for queue_id in range(40):
        put(store, queue_id, queue_id=queue_id)
    put(store, 100, topic="Other")
    store.commit()
    store.flush()
    store.flush_queues()
    return store


@spec("T21")
def test_files_of_many_queues_are_deleted_some_at_a_time() -> None:
    disk = SimDisk(Random(1))
    store = _with_many_queues(disk)
    store.delete_topic("T", NOW_MS)
    assert not store.queues_of("T")
    assert len(disk.list("consumequeue/T")) == 40
    put(store, 50, queue_id=39)
    store.commit()
    store.flush()
    for left in range(37, 0, -2):
        assert not store.flush_some_queues(2)
        assert len(disk.list("consumequeue/T")) - 1 in (left, left - 1)
    while not store.flush_some_queues(2):
        pass
    assert disk.list("consumequeue/T") == ["39"]
    assert _bodies(store, queue_id=39) == [body_of(50, 20)]
    store.delete_topic("T", NOW_MS)
    assert "T" not in disk.list("consumequeue")


@spec("T21")
@pytest.mark.parametrize("parts", range(0, 24, 4))
def test_crash_while_files_are_deleted_brings_no_queue_back(parts: int) -> None:
    disk = SimDisk(Random(1))
    store = _with_many_queues(disk)
    store.delete_topic("T", NOW_MS)
    put(store, 50, queue_id=3)
    store.commit()
    store.flush()
    for _ in range(parts):
        store.flush_some_queues(2)
    store, _ = reopen(disk)
    assert _bodies(store, queue_id=3) == [body_of(50, 20)]
    assert _bodies(store, "Other") == [body_of(100, 20)]
    assert [queue.queue_id for queue in store.queues_of("T") if queue.max_offset > queue.min_offset] == [3]
    store.close()
    assert reopen(disk)[1].checked_from == store.log.end
