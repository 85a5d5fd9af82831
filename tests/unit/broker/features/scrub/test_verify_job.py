"""Results of the scrubber's jobs: valid records, damage and its end, unreadable bytes."""

from random import Random
from typing import Any

import pytest

from lab.sim.world.disk import SimDisk
from tandemq.boundary import JobDone
from tandemq.broker.features.scrub.scrubber import Scrubber
from tandemq.broker.features.scrub.verify_job import (
    CheckWork,
    Context,
    LogReader,
    ServeWork,
    SettleWork,
    Wanted,
    WeighWork,
)
from tandemq.errors import DiskFailed
from tandemq.model.codes import RequestCode, ResponseCode
from tests.spec import spec
from tests.unit.broker.harness import Harness, run_job

SEGMENT = 32 * 1024
NOTHING = Context(0, 0)


def filled(**changes: Any) -> Harness:
    broker = Harness(SimDisk(Random(1)), **changes)
    for number in range(100):
        broker.send("TopicA", bytes([number]) * 900)
    return broker


def check(broker: Harness, position: int = 0, size: int = 1 << 20, *, near: bool = False) -> Any:
    log = broker.node.store.log
    return CheckWork(broker.disk, SEGMENT, position, log.written_end, size, log.truncations, near).run()


def places(broker: Harness) -> list[tuple[int, int]]:
    queue = broker.node.store.queues["TopicA", 0]
    return [queue.entry(number)[:2] for number in range(queue.max_offset)]


def path_of(log_offset: int) -> tuple[str, int]:
    start = log_offset - log_offset % SEGMENT
    return f"commitlog/{start:020d}", log_offset - start


def test_steps_cover_the_whole_log_and_return_the_expected_entries() -> None:
    broker = filled()
    log = broker.node.store.log
    for size in (1, 500, 5_000, 1 << 20):
        position = records = 0
        packed = b""
        while position < log.written_end:
            found = check(broker, position, size)
            assert (found.start, found.fault) == (position, "")
            assert found.end > position
            position, records = found.end, records + found.records
            packed += b"".join(entries.packed for entries in found.entries)
        assert (position, records) == (log.written_end, 100)
        queue = broker.node.store.queues["TopicA", 0]
        assert packed == b"".join(queue.read(number, 1) for number in range(100))


@spec("T19")
@pytest.mark.parametrize("number", [0, 40, 99])
@pytest.mark.parametrize("within", [0, 1, 5, 30, 500])
def test_every_flipped_bit_ends_the_valid_part_at_its_record(number: int, within: int) -> None:
    broker = filled()
    at, size = places(broker)[number]
    path, position = path_of(at + within)
    assert isinstance(broker.disk, SimDisk)
    broker.disk.flip(path, position, 6)
    file = at - at % SEGMENT
    found = check(broker, file)
    assert found.fault
    assert (found.end, found.resumes) == (at, at + size)
    assert check(broker, found.resumes).fault == "" if found.resumes < broker.node.store.log.written_end else True
    near = check(broker, at + within, near=True)
    assert near.end == at


@pytest.mark.parametrize("times", [1, -1])
def test_unreadable_bytes_are_damage_unless_they_can_be_read_the_next_time(times: int) -> None:
    broker = filled()
    assert isinstance(broker.disk, SimDisk)
    broker.disk.fail("pread", times=times, prefix=f"commitlog/{SEGMENT:020d}")
    assert check(broker).fault == ""
    found = check(broker, SEGMENT)
    if times > 0:
        assert found.fault == ""
        return
    assert "cannot be read" in found.fault
    assert (found.end, found.resumes) == (SEGMENT, 2 * SEGMENT)


def test_a_missing_file_is_reported_as_missing() -> None:
    broker = filled()
    with pytest.raises(DiskFailed):
        CheckWork(broker.disk, SEGMENT, 100 * SEGMENT, 101 * SEGMENT, 1000, 0).run()


def test_random_responses_are_never_accepted() -> None:
    """Accepted responses of a replica consist of whole records at their log offsets within the range."""
    broker, dice = filled(), Random(7)
    log = broker.node.store.log
    at, size = places(broker)[20]
    good = log.read_raw(at, size)
    assert isinstance(broker.disk, SimDisk)
    broker.disk.flip(*path_of(at + 40), 3)
    wanted = Wanted(at, at + size, 0, 0)

    def weigh(data: bytes) -> Any:
        return WeighWork(broker.disk, SEGMENT, wanted, data, NOTHING, NOTHING, 0).run()

    assert weigh(good).data == good
    for _ in range(2_000):
        data = bytearray(good)
        for _ in range(dice.randint(1, 3)):
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        if dice.random() < 0.2:
            del data[dice.randrange(len(data)) :]
        if bytes(data) != good:
            found = weigh(bytes(data))
            assert (found.data, bool(found.reason)) == (b"", True), bytes(data)


def test_valid_bytes_are_never_overwritten_with_those_of_a_replica() -> None:
    broker = filled()
    at, size = places(broker)[20]
    found = WeighWork(
        broker.disk, SEGMENT, Wanted(at, at + size, 0, 0), broker.node.store.log.read_raw(at, size), NOTHING, NOTHING, 0
    ).run()
    assert (found.data, found.end, found.reason) == (b"", at + size, "")


def test_a_replica_reports_that_its_own_bytes_are_damaged_or_of_another_history() -> None:
    broker = filled()
    log = broker.node.store.log
    at, size = places(broker)[20]

    def serve(start: int, end: int) -> Any:
        return ServeWork(broker.disk, SEGMENT, Wanted(start, end, 9, 9), 0, log.written_end, 1 << 20, 1 << 20).run()

    assert serve(at, at + size).data == log.read_raw(at, size)
    assert serve(at, at + 2 * size).data == log.read_raw(at, 2 * size)
    assert (serve(at, at + size - 1).data, serve(at + 1, at + size).data) == (b"", b"")
    assert isinstance(broker.disk, SimDisk)
    broker.disk.flip(*path_of(at + 100), 3)
    assert "damaged" in serve(at, at + size).fault


@spec("T20")
def test_repair_that_cannot_be_synced_ends_as_any_failed_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = filled()
    reasons: list[str] = []
    monkeypatch.setattr(broker.node.role, "report", lambda report, _now: reasons.append(report.why))
    repairs = broker.node.features.find(Scrubber).repairs
    at, size = places(broker)[20]
    data = broker.node.store.log.read_raw(at, size)
    file = broker.node.store.log.overwrite(data, at)
    assert isinstance(broker.disk, SimDisk)
    broker.disk.fail("datasync", prefix="commitlog/", times=-1)
    work = SettleWork(broker.disk, SEGMENT, at, data, file)
    jobs = broker.node.kernel.turn.out.jobs
    repairs._start("sync repair", work)
    done = run_job(jobs.pop())
    assert isinstance(done, JobDone)
    assert isinstance(done.error, DiskFailed)
    repairs._attempt, repairs._weighed = object(), object()  # type: ignore[assignment]
    broker.turn([], [done])
    assert broker.send("TopicA").code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert len(reasons) == 1


@spec("T20")
def test_no_message_is_acknowledged_after_a_failed_sync_and_the_group_is_notified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = filled(flush_type="SYNC_FLUSH")
    reasons: list[str] = []
    monkeypatch.setattr(broker.node.role, "report", lambda report, _now: reasons.append(report.why))
    assert isinstance(broker.disk, SimDisk)
    broker.disk.fail("datasync", prefix="commitlog/")
    assert broker.send("TopicA").code == ResponseCode.SERVICE_NOT_AVAILABLE
    for _ in range(3):
        assert broker.send("TopicA").code == ResponseCode.SERVICE_NOT_AVAILABLE
        broker.pass_time(1_000)
    assert len(reasons) == 1
    assert broker.ask(RequestCode.TANDEM_SCRUB, {"begin": True}).code == ResponseCode.SUCCESS


def test_reader_returns_zeroes_for_unreadable_pages_only() -> None:
    broker = filled()
    assert isinstance(broker.disk, SimDisk)
    whole = LogReader(broker.disk, SEGMENT)(0, 20_000)
    broker.disk.fail("pread", 1, times=2, prefix="commitlog/")
    found = LogReader(broker.disk, SEGMENT)(100, 19_900)
    assert len(found) == 19_900
    assert (found[: 4096 - 100], found[4096 - 100 :]) == (bytes(4096 - 100), whole[4096:])
