"""Timed messages after crashes and failovers: each is delivered once, whatever part of the log another master has."""

import logging
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from lab.sim.world.disk import PowerLoss, SimDisk
from tandemq.boundary import Now
from tandemq.broker.features.timers import damaged, loading, records
from tandemq.broker.features.timers.service import TimedMessages
from tandemq.broker.features.timers.timer_check import PATH, TimerCheck, check_of_java
from tandemq.codec.record.record import decode_messages
from tandemq.engine import NAME, python
from tandemq.errors import DiskFailed
from tandemq.model.codes import ResponseCode
from tandemq.model.message import StoredMessage
from tandemq.model.topic import TIMER_DONE_TOPIC, TIMER_TOPIC
from tandemq.storage.consume_queue import ConsumeQueue
from tandemq.storage.store import Store
from tests.spec import spec
from tests.unit.broker.features.timers.test_timed_messages import bodies, delivered, ready, timed, waiting
from tests.unit.broker.harness import Harness

OK = ResponseCode.SUCCESS
SECOND = 1_000
SEGMENT = 1 << 20


def whole_log(broker: Harness) -> list[StoredMessage]:
    log = broker.node.store.log
    return decode_messages(log.read(0, log.written_end))


def with_log(disk: SimDisk, raw: bytes) -> SimDisk:
    """Put a log on a disk, as another master has it that got it by replication."""
    file = disk.open("commitlog/00000000000000000000", create=True)
    file.truncate(SEGMENT)
    file.pwrite(raw, 0)
    file.datasync()
    return disk


def expected_of(messages: list[StoredMessage]) -> set[bytes]:
    """Return the bodies that have to be delivered, by a log: all but those that a delete request names."""
    deleted = {
        (message.properties["TIMER_DEL_UNIQKEY"], message.properties["TIMER_OUT_MS"])
        for message in messages
        if "TIMER_DEL_UNIQKEY" in message.properties
    }
    return {
        message.body
        for message in messages
        if message.topic == TIMER_TOPIC
        and "TIMER_DEL_UNIQKEY" not in message.properties
        and (f"TopicA+{message.unique_key}", message.properties["TIMER_OUT_MS"]) not in deleted
    }


def busy(disk: SimDisk) -> Harness:
    """Return a broker with messages of all kinds: delivered, deleted, stored again, waiting."""
    random = Random(7)
    broker = ready(disk, segment_bytes=SEGMENT, timer_roll_window=9)
    for number in range(60):
        key = f"K{number}"
        seconds = random.randrange(1, 30)
        timed(broker, b"%d" % number, UNIQ_KEY=key, TIMER_DELAY_SEC=str(seconds))
        if number % 6 == 0:
            timed(broker, b"-", UNIQ_KEY=key, TIMER_DELAY_SEC=str(seconds), TIMER_DEL_UNIQKEY=f"TopicA+{key}")
        broker.pass_time(random.choice((0, 100, 300)))
    broker.pass_time(12_000)
    return broker


def test_master_that_has_any_part_of_the_log_delivers_each_message_once() -> None:
    """Also the part between a message and the done record that names it."""
    broker = busy(SimDisk(Random(1)))
    log = broker.node.store.log
    raw, messages = log.read(0, log.written_end), whole_log(broker)
    assert {message.topic for message in messages} == {TIMER_TOPIC, TIMER_DONE_TOPIC, "TopicA"}
    ends = [message.log_offset + message.size for message in messages]
    for end in ends[len(ends) // 4 :: 6]:
        disk = with_log(SimDisk(Random(2)), raw[:end])
        after = Harness(disk, broker.config, now=Now(1_000, broker.now.wall_ms + 500))
        after.pass_time(32_000)
        counted = Counter(bodies(after))
        part = [message for message in messages if message.log_offset < end]
        assert set(counted) == expected_of(part) | {m.body for m in part if m.topic == "TopicA"}, end
        assert set(counted.values()) == {1}, (end, counted)
        assert waiting(after) == 0


@spec("S01")
@pytest.mark.parametrize("seed", range(8))
def test_each_acknowledged_message_comes_once_after_kills_and_power_losses(seed: int) -> None:
    """Messages are acknowledged when they are on the device; copies may be lost with it, and come again then."""
    random = Random(seed)
    disk = SimDisk(random)
    broker = ready(disk, segment_bytes=SEGMENT, timer_roll_window=random.choice((4, 100)), flush_type="SYNC_FLUSH")
    acknowledged: set[bytes] = set()
    number = 0
    for _ in range(5):
        disk.stop_at(random.randrange(1, 120), ("pwrite", "datasync", "truncate", "replace"))
        try:
            for _ in range(30):
                body, number = b"%d" % number, number + 1
                delay = str(random.randrange(1, 9_000))
                if timed(broker, body, UNIQ_KEY=body.decode(), TIMER_DELAY_MS=delay).code == OK:
                    acknowledged.add(body)
                broker.pass_time(random.choice((0, 50, 400)))
        except PowerLoss:
            pass
        disk.on_call = None
        disk.crash() if random.random() < 0.5 else disk.kill()
        broker = Harness(disk, broker.config, now=Now(1_000, broker.now.wall_ms + random.randrange(5_000)))
        broker.pass_time(random.randrange(3_000))
    broker.pass_time(12_000)
    counted = Counter(bodies(broker))
    assert set(counted.values()) == {1}
    assert acknowledged <= set(counted)
    for message in delivered(broker):
        (origin,) = [one for one in whole_log(broker) if one.log_offset == message.prepared_offset - 1]
        assert message.store_ms >= int(origin.properties["TIMER_OUT_MS"]) + 1_000
    assert waiting(broker) == 0


def test_done_records_that_are_damaged_repeat_nothing() -> None:
    broker = busy(SimDisk(Random(1)))
    log = broker.node.store.log
    raw, messages = bytearray(log.read(0, log.written_end)), whole_log(broker)
    records = [message for message in messages if message.topic == TIMER_DONE_TOPIC]
    for message in records[-3:-1]:
        raw[message.log_offset + 95] ^= 1
    after = Harness(with_log(SimDisk(Random(2)), bytes(raw)), broker.config, now=Now(1_000, broker.now.wall_ms))
    after.pass_time(32_000)
    assert set(Counter(bodies(after)).values()) == {1}
    assert set(bodies(after)) == expected_of(messages)


@spec("S03")
def test_damaged_message_waits_for_its_repair_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broker = ready(tmp_path)
    for number in range(4):
        timed(broker, b"%d" % number, TIMER_DELAY_SEC=str(5 + number // 2))
    first = delivered(broker, TIMER_TOPIC, 0)[0]
    end = first.log_offset + first.size
    damage = broker.node.kernel.damages.add(first.log_offset, end, "a test", broker.now.wall_ms)
    assert damage is not None
    with caplog.at_level(logging.ERROR):
        broker.pass_time(9_000)
    assert bodies(broker) == [b"1", b"2", b"3"]
    assert caplog.text.count(f"log offset {first.log_offset} waits for its repair") == 1
    assert broker.node.features.find(TimedMessages).keeps_log_from() == first.log_offset
    broker.node.kernel.damages.shrink(damage, end, "slave 1", broker.now.wall_ms)
    broker.pass_time(200)
    assert bodies(broker) == [b"1", b"2", b"3", b"0"]
    broker = broker.restart(clean=False)
    broker.pass_time(3_000)
    assert len(bodies(broker)) == 4


def test_message_that_is_lost_in_damage_is_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broker = ready(tmp_path)
    for number in range(4):
        timed(broker, b"message %d" % number, TIMER_DELAY_SEC="5")
    broker.pass_time(2_000)
    second = delivered(broker, TIMER_TOPIC, 0)[1]
    segment = next((tmp_path / "commitlog").iterdir())
    with segment.open("r+b") as file:
        file.seek(second.log_offset + 88)
        file.write(b"MESSAGE")
    with caplog.at_level(logging.ERROR):
        broker = broker.restart(clean=False)
        broker.pass_time(70_000)
    assert bodies(broker) == [b"message 0", b"message 2", b"message 3"]
    assert f"log offset {second.log_offset} is lost in damage" in caplog.text
    assert (
        waiting(broker),
        broker.node.features.find(TimedMessages).metrics.as_json()["timingCount"]["TopicA"]["count"],
    ) == (0, 0)


# Stores of Java brokers, and Java masters.


def as_java(broker: Harness, check: TimerCheck) -> None:
    """Write the file as a Java broker does: without our mark."""
    broker.disk.replace(PATH, check.encode().ljust(4_096, b"\0"))


def test_file_of_a_java_broker_says_what_was_delivered() -> None:
    broker = ready(SimDisk(Random(1)), segment_bytes=SEGMENT)
    for number in range(6):
        timed(broker, b"%d" % number, UNIQ_KEY=f"K{number}", TIMER_DELAY_SEC="5" if number < 3 else "200")
    raw = broker.node.store.log.read(0, broker.node.store.log.written_end)
    after = Harness(with_log(SimDisk(Random(1)), raw), broker.config, now=Now(1_000, broker.now.wall_ms + 120_000))
    after.send("TopicB")  # the log goes on until now
    as_java(after, TimerCheck(after.now.wall_ms, 0, 6, 6))
    after.pass_time(2_000)
    assert bodies(after) == []
    assert check_of_java(after.disk) is None  # it has our mark now
    again = after.restart(clean=False)
    again.pass_time(90_000)
    assert sorted(bodies(again)) == [b"3", b"4", b"5"]


@pytest.mark.parametrize("has_file", [True, False])
def test_copies_of_a_java_broker_are_known_by_their_keys(tmp_path: Path, has_file: bool) -> None:
    """Its file may be ahead of what was replicated, or on the Java master of a slave of ours."""
    broker = ready(tmp_path, segment_bytes=SEGMENT)
    for number in range(4):
        timed(broker, b"%d" % number, UNIQ_KEY=f"K{number}", TIMER_DELAY_SEC="5")
    out = delivered(broker, TIMER_TOPIC, 0)[0].properties["TIMER_OUT_MS"]
    for number in range(2):
        broker.send(
            "TopicA",
            b"%d" % number,
            queue_id=1,
            UNIQ_KEY=f"K{number}",
            TIMER_DELAY_SEC="5",
            TIMER_OUT_MS=out,
            TIMER_DEQUEUE_MS=str(int(out) + 1_020),
            REAL_TOPIC="TopicA",
            REAL_QID="1",
        )
    broker.node.close()
    broker.disk.remove(PATH)
    if has_file:
        as_java(broker, TimerCheck(broker.now.wall_ms, 0, 4, 4))
    after = Harness(tmp_path, broker.config, now=Now(1_000, broker.now.wall_ms))
    after.pass_time(8_000)
    assert sorted(bodies(after)) == [b"0", b"1", b"2", b"3"]
    after = after.restart(clean=False)
    after.pass_time(8_000)
    assert len(bodies(after)) == 4


@pytest.mark.parametrize("is_compiled", [True, False])
def test_reading_ends_while_messages_come_as_fast_as_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_compiled: bool
) -> None:
    if not is_compiled:
        monkeypatch.setattr(records, "timer_heads", python.timer_heads)
    first = ready(tmp_path)
    for number in range(20):
        timed(first, b"%d" % number, UNIQ_KEY=f"K{number}", TIMER_DELAY_SEC="60")
    timed(first, b"soon", UNIQ_KEY="S", TIMER_DELAY_SEC="30")
    monkeypatch.setattr(loading, "SLICE_RECORDS", 3)
    broker = Harness(first.disk, first.config, now=Now(SECOND, first.now.wall_ms))
    out = str(broker.now.wall_ms + 60_000)
    sent = 0
    while broker.node.features.find(TimedMessages).table is None:
        for _ in range(4):
            timed(broker, b"new%d" % sent, UNIQ_KEY=f"N{sent}", TIMER_DELIVER_MS=out)
            sent += 1
        timed(broker, b"-", UNIQ_KEY="D", TIMER_DELIVER_MS=out, TIMER_DEL_UNIQKEY="TopicA+K3")
        assert sent < 200
        broker.pass_time(5)
    assert sent >= 8
    assert waiting(broker) == 21 + sent + sent // 4
    assert broker.node.features.find(TimedMessages).metrics.by_topic()["TopicA"] <= 21 + sent
    for seconds, count in ((35, 1), (40, 20 + sent)):
        broker.pass_time(seconds * SECOND)
        assert len(bodies(broker)) == count
    assert Counter(bodies(broker)) == Counter(
        [b"soon", *(b"%d" % number for number in range(20) if number != 3), *(b"new%d" % n for n in range(sent))]
    )


def test_index_row_of_the_engine_is_what_the_code_in_python_reads(tmp_path: Path) -> None:
    broker = busy(SimDisk(Random(1)))
    timers = broker.node.store.queues[TIMER_TOPIC, 0]
    broker.node.store.commit()
    rows = list(records.read_rows(broker.node.store, 0, timers.read(0, timers.max_offset)))
    heads = [records.read_head(broker.node.store, timers, at) for at in range(timers.max_offset)]
    assert len(rows) == len(heads) > 60
    assert [head for head, row in zip(heads, rows, strict=True) if row is not None and head != row] == []
    assert NAME == "python" or None not in rows
    assert {(head.is_delete, head.is_rolled) for head in heads if head} == {
        (False, False),
        (True, False),
        (False, True),
    }


@spec("S02")
@pytest.mark.parametrize(("fails_ms", "expected"), [(5_000, [b"b"]), (90_000, [b"a", b"b"])])
def test_recall_that_cannot_be_read_for_a_while_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_ms: int, expected: list[bytes]
) -> None:
    broker = ready(tmp_path)
    out_ms = broker.now.wall_ms + 5_000
    for key in "ab":
        timed(broker, key.encode(), UNIQ_KEY=key, TIMER_DELIVER_MS=str(out_ms))
    timed(broker, b"-", UNIQ_KEY="D", TIMER_DELIVER_MS=str(out_ms), TIMER_DEL_UNIQKEY="TopicA+a")
    until_ms = broker.now.wall_ms + 6_000 + fails_ms
    read_timed = records.read_timed

    def failing(store: Store, queue: ConsumeQueue, queue_offset: int) -> records.TimedMessage:
        if queue_offset == 2 and broker.now.wall_ms < until_ms:
            raise DiskFailed("a simulated fault")
        return read_timed(store, queue, queue_offset)

    monkeypatch.setattr(damaged, "read_timed", failing)
    broker.pass_time(6_000 + min(fails_ms, 50_000) - 200)
    assert bodies(broker) == []
    broker.pass_time(30_000)
    assert bodies(broker) == expected
