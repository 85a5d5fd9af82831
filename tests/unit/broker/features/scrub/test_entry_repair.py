"""Damaged queue entries: found by a pass over the log or reported by a reader, and rebuilt from the log."""

import logging
from collections.abc import Callable
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lab.sim.world.disk import SimDisk
from tandemq.boundary import Job
from tandemq.broker.features.delay.service import DelayedMessages
from tandemq.broker.features.scrub import entry_repair
from tandemq.broker.features.scrub.scrubber import SEARCH_STEP_BYTES, Scrubber
from tandemq.broker.features.scrub.verify_job import CheckWork, SyncWork
from tandemq.codec.record.entries import QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.topic import SCHEDULE_TOPIC
from tandemq.storage.consume_queue import ConsumeQueue, Entry
from tests.samples import every
from tests.spec import spec
from tests.unit.broker.ha.group import Group
from tests.unit.broker.harness import START_WALL_MS, Harness, messages_in, run_job

COUNT = 120
WRONG = 70
FILE_BYTES = 20 * 50
Damage = Callable[[Harness, Entry], Entry]


def work_of(job: Job) -> object:
    """Return whose method a job runs."""
    return getattr(job.run, "__self__", None)


def filled(count: int = COUNT, **changes: Any) -> Harness:
    """Return a broker whose queue TopicA/0 has three files; every second message is in another queue."""
    broker = Harness(SimDisk(Random(1)), **changes)
    for number in range(count):
        broker.send("TopicA", bytes([number % 250]) * 100, TAGS=f"t{number % 3}")
        broker.send("TopicA", b"other", queue_id=1)
    broker.pass_time(3_000)
    return broker


def queue_of(broker: Harness, topic: str = "TopicA", queue_id: int = 0) -> ConsumeQueue:
    return broker.node.store.queues[topic, queue_id]


def all_of(queue: ConsumeQueue) -> bytes:
    return queue.read(queue.min_offset, queue.max_offset - queue.min_offset)


def overwrite(queue: ConsumeQueue, queue_offset: int, packed: bytes) -> None:
    """Overwrite entries, also on the device."""
    for file in queue.rewrite(queue_offset, packed):
        file.datasync()


def on_device(broker: Harness, queue: ConsumeQueue, first: int, count: int = 1) -> bytes:
    """Return entries of a queue as they would be after a power loss."""
    assert isinstance(broker.disk, SimDisk)
    return b"".join(
        broker.disk.peek(
            f"consumequeue/{queue.topic}/{queue.queue_id}/{at - at % FILE_BYTES:020d}",
            QUEUE_ENTRY_BYTES,
            at % FILE_BYTES,
            safe=True,
        )
        for at in range(first * QUEUE_ENTRY_BYTES, (first + count) * QUEUE_ENTRY_BYTES, QUEUE_ENTRY_BYTES)
    )


def rebuilt(broker: Harness) -> int:
    found = broker.json(RequestCode.TANDEM_SCRUB)["corrected"]
    assert isinstance(found, int)
    return found


def zeroed(_broker: Harness, _right: Entry) -> Entry:
    return Entry(0, 0, 0)


def negative_size(_broker: Harness, right: Entry) -> Entry:
    return right._replace(size=right.size - (1 << 31))


def size_too_large(_broker: Harness, right: Entry) -> Entry:
    return right._replace(size=right.size ^ 1 << 30)


def size_too_small(_broker: Harness, right: Entry) -> Entry:
    return right._replace(size=right.size - 1)


def high_bit(_broker: Harness, right: Entry) -> Entry:
    return right._replace(log_offset=right.log_offset ^ 1 << 62)


def sign_bit(_broker: Harness, right: Entry) -> Entry:
    return right._replace(log_offset=right.log_offset - (1 << 63))


def low_bit(_broker: Harness, right: Entry) -> Entry:
    return right._replace(log_offset=right.log_offset ^ 1)


def another_message(broker: Harness, _right: Entry) -> Entry:
    return queue_of(broker).entry(WRONG + 3)


def message_of_another_queue(broker: Harness, _right: Entry) -> Entry:
    return queue_of(broker, queue_id=1).entry(WRONG)


def another_tag(_broker: Harness, right: Entry) -> Entry:
    return right._replace(tags_code=right.tags_code ^ -(1 << 63))


DAMAGES = (
    zeroed,
    negative_size,
    size_too_large,
    size_too_small,
    high_bit,
    sign_bit,
    low_bit,
    another_message,
    message_of_another_queue,
    another_tag,
)


@spec("T19")
@pytest.mark.parametrize(("damage", "number"), every(2, product(DAMAGES, [0, WRONG, COUNT - 1])))
def test_a_pass_rebuilds_a_damaged_entry_on_the_device_too(
    damage: Damage, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    broker = filled()
    queue = queue_of(broker)
    before, wrong = all_of(queue), damage(broker, queue.entry(number))
    overwrite(queue, number, QUEUE_ENTRY.pack(*wrong))
    broker.ask(RequestCode.TANDEM_SCRUB, {"begin": "true"})
    broker.pass_time(5_000)
    assert all_of(queue) == before
    assert on_device(broker, queue, number) == queue.read(number, 1)
    assert rebuilt(broker) == 1
    [said] = [record.getMessage() for record in caplog.records if "rebuilt from the log" in record.getMessage()]
    assert f"topic=TopicA queue=0 offset={number} was {tuple(wrong)}" in said
    assert f"as {tuple(queue.entry(number))}" in said


@pytest.mark.parametrize(("damage", "number"), every(2, product(DAMAGES, [0, WRONG, COUNT - 1])))
def test_a_reported_entry_is_rebuilt_at_once_without_a_pass(
    damage: Damage, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    broker = filled(scrub_bytes_per_second=0)
    queue = queue_of(broker)
    before = all_of(queue)
    overwrite(queue, number, QUEUE_ENTRY.pack(*damage(broker, queue.entry(number))))
    for _ in range(3):
        assert broker.node.features.find(Scrubber).suspect_entry(queue, number, "a pull met it")
    broker.pass_time(100)
    assert all_of(queue) == before
    assert on_device(broker, queue, number) == queue.read(number, 1)
    assert (rebuilt(broker), broker.node.features.find(Scrubber).entries.waiting) == (1, 0)
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
    answer = broker.pull("TopicA", number)
    assert answer is not None
    assert messages_in(answer)[0].body == bytes([number]) * 100


def read_all(broker: Harness, offset: int) -> tuple[list[int], int]:
    """Pull repeatedly, also after refusals; return the queue offsets of the messages and the number of refusals."""
    topic, found, refusals = "TopicA", list[int](), 0
    end = queue_of(broker).max_offset
    while offset < end:
        answer = broker.pull(topic, offset)
        assert answer is not None
        if answer.code == ResponseCode.SYSTEM_ERROR:
            refusals += 1
            assert refusals < 10, answer.remark
            broker.pass_time(1_000)
            continue
        if answer.code == ResponseCode.SUCCESS:
            found += [message.queue_offset for message in messages_in(answer)]
        assert int(answer.fields["nextBeginOffset"]) > offset
        offset = int(answer.fields["nextBeginOffset"])
    return found, refusals


@pytest.mark.parametrize(
    ("damage", "number"),
    every(2, product([damage for damage in DAMAGES if damage is not another_tag], [0, WRONG, COUNT - 1])),
)
def test_consumers_get_every_message_for_any_damage_of_an_entry(damage: Damage, number: int) -> None:
    """The pull reports the entry to the scrubber, and waits until it is rebuilt; there is no pass."""
    broker = filled(scrub_bytes_per_second=0)
    queue = queue_of(broker)
    overwrite(queue, number, QUEUE_ENTRY.pack(*damage(broker, queue.entry(number))))
    start = number - number % 40
    found, refusals = read_all(broker, start)
    assert found == list(range(start, COUNT))
    assert (refusals, rebuilt(broker)) == (int(start == number), 1)


@pytest.mark.parametrize("damage", [zeroed, high_bit, negative_size, low_bit])
def test_only_an_entry_without_a_record_in_the_log_is_skipped(damage: Damage, caplog: pytest.LogCaptureFixture) -> None:
    broker = filled(scrub_bytes_per_second=0)
    queue = queue_of(broker)
    right = queue.entry(WRONG)
    broker.disk.open(f"commitlog/{right.log_offset - right.log_offset % 32_768:020d}").pwrite(
        (9).to_bytes(4, "big"), right.log_offset % 32_768 + 12
    )  # the record is of another queue now
    overwrite(queue, WRONG, QUEUE_ENTRY.pack(*damage(broker, right)))
    found, refusals = read_all(broker, 0)
    assert found == [number for number in range(COUNT) if number != WRONG]
    assert read_all(broker, WRONG) == (list(range(WRONG + 1, COUNT)), 0)
    assert refusals == 0
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert any(f"topic=TopicA queue=0 offset={WRONG} stays wrong" in one for one in said)


@pytest.mark.parametrize("side", ["master", "slave"])
def test_masters_and_slaves_rebuild_entries(tmp_path: Path, side: str) -> None:
    group = Group(tmp_path, role="SYNC_MASTER")
    group.send_many(COUNT, 100)
    group.pass_time(3_000)
    member = getattr(group, side)
    queue = queue_of(member)
    before = all_of(queue)
    overwrite(queue, 10, bytes(20 * 60))
    member.node.features.find(Scrubber).suspect_entry(queue, 30, "a test says so")
    group.pass_time(2_000)
    assert all_of(queue) == before
    assert rebuilt(member) == 60


def test_one_search_rebuilds_all_entries_around_a_suspect() -> None:
    broker = filled(250)
    queue = queue_of(broker)
    before = all_of(queue)
    overwrite(queue, 0, bytes(len(before)))
    broker.run_jobs = False
    for number in range(250):
        assert broker.node.features.find(Scrubber).suspect_entry(queue, number, "a pull met it")
    steps = steps_of(broker)
    assert all_of(queue) == before
    assert on_device(broker, queue, 0, 250) == before
    files = len(broker.node.store.log.segment_starts)
    assert len(steps) <= 2 * files, "fewer than one per suspect"
    assert (rebuilt(broker), broker.node.features.find(Scrubber).entries.waiting) == (250, 0)


def steps_of(broker: Harness) -> list[CheckWork]:
    """Run the broker until it has no suspect left; return the steps of its searches."""
    done: list[Any] = []
    while (
        broker.jobs
        or broker.node.features.find(Scrubber).entries.waiting
        or broker.node.features.find(Scrubber).entries.has_files
    ):
        broker.pass_time(1)
        while broker.jobs:
            done.append(broker.jobs.pop(0))
            broker.turn([], [run_job(done[-1])])
    works = [work_of(job) for job in done]
    return [work for work in works if isinstance(work, CheckWork) and work.searches]


def test_a_far_search_reads_the_log_between_the_neighbours_in_bounded_steps() -> None:
    broker = filled(8, segment_bytes=4 << 20)
    queue = queue_of(broker)
    for _ in range(300):
        broker.send("TopicA", bytes(5_000), queue_id=1)
    broker.send("TopicA", b"far away")
    for _ in range(300):
        broker.send("TopicA", bytes(5_000), queue_id=1)
    broker.send("TopicA", b"the last")
    broker.pass_time(3_000)
    before, (_, middle, last) = all_of(queue), (queue.entry(number) for number in (7, 8, 9))
    overwrite(queue, 8, bytes(20))
    broker.run_jobs = False
    began = broker.now.mono_ms
    broker.node.features.find(Scrubber).suspect_entry(queue, 8, "a pull met it")
    steps = steps_of(broker)
    assert all_of(queue) == before
    assert all(step.size == SEARCH_STEP_BYTES for step in steps)
    assert steps[0].position == queue.entry(7).log_end
    assert steps[-1].position <= middle.log_offset < last.log_offset
    assert len(steps) <= (middle.log_end - steps[0].position) // SEARCH_STEP_BYTES + 2
    assert 50 <= broker.now.mono_ms - began <= 200, "16 MiB a second"


def test_valid_and_missing_entries_are_not_changed() -> None:
    broker = filled()
    queue = queue_of(broker)
    before = all_of(queue)
    scrubber = broker.node.features.find(Scrubber)
    assert scrubber.suspect_entry(queue, 5, "a pull says so")
    assert not scrubber.suspect_entry(queue, COUNT, "it is not there")
    assert not scrubber.suspect_entry(queue, -1, "it is not there")
    broker.pass_time(1_000)
    assert (all_of(queue), rebuilt(broker), scrubber.entries.waiting) == (before, 0, 0)


def test_suspects_are_bounded_and_logged_a_few_at_a_time(caplog: pytest.LogCaptureFixture) -> None:
    broker = filled(entry_repair.SUSPECTS_MAX // 50)
    queue = queue_of(broker)
    count = queue.max_offset
    most, entry_repair.SUSPECTS_MAX = entry_repair.SUSPECTS_MAX, 50
    try:
        accepted = [
            broker.node.features.find(Scrubber).suspect_entry(queue, number, "a test says so")
            for number in range(count)
        ]
    finally:
        entry_repair.SUSPECTS_MAX = most
    assert accepted == [True] * count, "a message whose search must wait is not lost"
    assert broker.node.features.find(Scrubber).entries.waiting == 50
    assert len([record for record in caplog.records if "a test says so" in record.getMessage()]) == 20
    broker.pass_time(1_000)
    assert broker.node.features.find(Scrubber).entries.waiting == 0
    broker.pass_time(180_000)
    assert any("30 more lines about queue entries" in record.getMessage() for record in caplog.records)


def test_an_entry_of_a_damaged_record_waits_for_its_repair(caplog: pytest.LogCaptureFixture) -> None:
    broker = filled()
    queue, scrubber = queue_of(broker), broker.node.features.find(Scrubber)
    right = queue.entry(WRONG)
    assert isinstance(broker.disk, SimDisk)
    path = f"commitlog/{right.log_offset - right.log_offset % 32_768:020d}"
    broker.disk.flip(path, right.log_offset % 32_768 + 90)
    overwrite(queue, WRONG, bytes(20))
    assert scrubber.suspect_entry(queue, WRONG, "a pull met it")
    broker.pass_time(1_000)
    assert queue.entry(WRONG) == (0, 0, 0)
    assert [(one.start, one.end) for one in broker.node.kernel.damages.ranges] == [(right.log_offset, right.log_end)]
    assert any("stays wrong: its record is damaged" in record.getMessage() for record in caplog.records)
    assert not scrubber.suspect_entry(queue, WRONG, "again"), "the log is not read again for it"
    broker.disk.flip(path, right.log_offset % 32_768 + 90)
    broker.pass_time(entry_repair.RETRY_MS + 120_000)
    assert scrubber.suspect_entry(queue, WRONG, "later")
    broker.pass_time(1_000)
    assert queue.entry(WRONG) == right


def test_entries_of_deleted_log_files_are_not_changed() -> None:
    broker = filled(400)
    queue = queue_of(broker)
    broker.node.store.drop_first_segment()
    first = queue.min_offset
    assert first > 60
    gone = first - 1
    packed = bytes(20)
    broker.ask(RequestCode.TANDEM_SCRUB, {"begin": "true"})
    assert not broker.node.features.find(Scrubber).suspect_entry(queue, gone, "its record was deleted")
    overwrite(queue, first, packed)
    right = Entry(*QUEUE_ENTRY.unpack(queue.read(first + 1, 1)))
    assert broker.node.features.find(Scrubber).suspect_entry(queue, first, "a pull met it")
    broker.pass_time(2_000)
    assert queue.entry(first).log_end <= right.log_offset
    assert queue.entry(first).size > 0
    assert rebuilt(broker) == 1


def test_retention_during_a_search_restarts_it() -> None:
    broker = filled(400)
    queue = queue_of(broker)
    right = all_of(queue)
    overwrite(queue, 0, bytes(len(right)))
    broker.run_jobs = False
    broker.node.features.find(Scrubber).suspect_entry(queue, 399, "a pull met it")
    broker.pass_time(0)
    broker.turn()
    [job] = broker.jobs
    work = work_of(job)
    assert isinstance(work, CheckWork)
    broker.node.store.log.drop_first_segment()
    assert work.position < broker.node.store.log.start
    steps_of(broker)
    assert queue.entry(399) == Entry(*QUEUE_ENTRY.unpack(right[-20:]))


def test_waiting_entries_of_a_dropped_queue_are_removed() -> None:
    broker = filled()
    queue = queue_of(broker)
    overwrite(queue, WRONG, bytes(20))
    broker.node.features.find(Scrubber).suspect_entry(queue, WRONG, "a pull met it")
    broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "TopicA"})
    broker.pass_time(1_000)
    assert broker.node.features.find(Scrubber).entries.waiting == 0
    assert ("TopicA", 0) not in broker.node.store.queues


def test_a_damaged_entry_in_memory_is_rebuilt_there() -> None:
    broker = filled()
    queue = queue_of(broker)
    broker.send("TopicA", b"in memory only")
    assert queue.max_offset > queue.tail_start
    before = all_of(queue)
    queue.rewrite(COUNT - 1, bytes(40))
    broker.node.features.find(Scrubber).suspect_entry(queue, COUNT, "a test says so")
    broker.pass_time(10)
    assert all_of(queue) == before
    broker.pass_time(3_000)
    assert on_device(broker, queue, COUNT - 1) == before[-40:-20]


@pytest.mark.parametrize("count", [1, 3, 80])
@pytest.mark.parametrize("number", [0, -1])
@pytest.mark.parametrize("by", ["pass", "suspect"])
def test_of_a_topic_created_again_the_newer_message_is_entered(count: int, number: int, by: str) -> None:
    """The log has two records for each queue offset; those of the deleted topic must not come back."""
    broker = filled(80)
    broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "TopicA"})
    for one in range(count):
        broker.send("TopicA", bytes([one]) * 100)
    broker.pass_time(3_000)
    queue = queue_of(broker)
    right = all_of(queue)
    overwrite(queue, number % count, bytes(20))
    if by == "pass":
        broker.ask(RequestCode.TANDEM_SCRUB, {"begin": "true"})
    else:
        broker.node.features.find(Scrubber).suspect_entry(queue, number % count, "a pull met it")
    broker.pass_time(5_000)
    assert all_of(queue) == right


@pytest.mark.parametrize("damage", [zeroed, negative_size, high_bit, sign_bit, size_too_small])
def test_a_delayed_message_whose_entry_is_damaged_is_delivered_in_time(damage: Damage) -> None:
    broker = filled(5)
    for number in range(10):
        broker.send("Late", bytes([number]) * 100, DELAY="2")
    broker.pass_time(2_000)
    queue = queue_of(broker, SCHEDULE_TOPIC, 1)
    overwrite(queue, 4, QUEUE_ENTRY.pack(*damage(broker, queue.entry(4))))
    broker.pass_time(2_000)
    answer = broker.pull("Late")
    assert answer is None or not answer.body, "no message is early"
    broker.pass_time(3_000)
    answer = broker.pull("Late")
    assert answer is not None
    assert [message.body[:1] for message in messages_in(answer)] == [bytes([number]) for number in range(10)]


def test_the_position_of_a_pass_is_saved_only_behind_entries_on_the_device() -> None:
    broker = filled()
    queue = queue_of(broker)
    overwrite(queue, WRONG, bytes(20))
    broker.run_jobs = False
    broker.ask(RequestCode.TANDEM_SCRUB, {"begin": "true"})
    scrubber = broker.node.features.find(Scrubber)
    while not any(isinstance(work_of(job), SyncWork) for job in broker.jobs):
        jobs, broker.jobs = broker.jobs, []
        for job in jobs:
            broker.turn([], [run_job(job)])
        broker.pass_time(20)
    assert scrubber.as_json()["position"] <= queue.entry(WRONG).log_offset
    steps_of(broker)
    assert scrubber.as_json()["position"] > queue.entry(WRONG).log_offset


@pytest.mark.parametrize(("damage", "number"), every(3, product(DAMAGES, [0, 1, 4, 8])))
def test_no_request_fails_or_is_wrong_because_of_a_damaged_entry(damage: Damage, number: int) -> None:
    """Messages one second apart; times, offsets by time and counters come from the entries that are right."""
    broker = Harness(SimDisk(Random(1)))
    for one in range(COUNT):
        broker.send("TopicA", bytes([one]), TAGS="a")
        broker.send("TopicA", b"other", queue_id=1)
        broker.pass_time(1_000)
    broker.pass_time(3_000)
    queue = queue_of(broker)
    overwrite(queue, number, QUEUE_ENTRY.pack(*damage(broker, queue.entry(number))))
    place = {"topic": "TopicA", "queueId": 0}

    def at(second: int, **fields: object) -> int:
        answer = broker.ask(
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, place | {"timestamp": START_WALL_MS + second * 1_000} | fields
        )
        return int(answer.fields["offset"])

    for second in range(12):
        if second != number or damage is another_tag:
            assert at(second) == second
            upper = at(second, boundaryType="UPPER")
            assert upper == second or (second, upper) == (number - 1, number), "its store time is unknown"
    broker.commit(number + 1)
    broker.json(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "TopicA"})
    broker.json(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "group"})
    broker.json(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "TopicA", "group": "group"})
    broker.json(RequestCode.QUERY_CONSUME_QUEUE, place | {"index": 0, "count": 10})
    earliest = int(broker.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, place).fields["timestamp"])
    assert earliest == START_WALL_MS or (number == 0 and earliest == 0)
    young = {"consumerGroup": "another", "setZeroIfNotFound": "true"}
    assert broker.ask(RequestCode.QUERY_CONSUMER_OFFSET, place | young).fields["offset"] == "0"
    assert broker.ask(RequestCode.GET_MAX_OFFSET, place).fields["offset"] == str(COUNT)
    assert broker.ask(RequestCode.GET_MIN_OFFSET, place).fields["offset"] == "0"
    assert not broker.closes


@pytest.mark.parametrize("damage", DAMAGES)
def test_retention_keeps_the_log_of_delayed_messages_with_damaged_entries(damage: Damage) -> None:
    broker = filled()
    for number in range(10):
        broker.send("Late", bytes([number]) * 100, DELAY="9")
    broker.pass_time(2_000)
    queue = queue_of(broker, SCHEDULE_TOPIC, 8)
    needed = broker.node.features.find(DelayedMessages).keeps_log_from()
    overwrite(queue, 0, QUEUE_ENTRY.pack(*damage(broker, queue.entry(0))))
    found = broker.node.features.find(DelayedMessages).keeps_log_from()
    assert found is not None and needed is not None
    assert found <= needed
