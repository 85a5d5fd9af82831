"""Pulls whose messages the page cache lacks: read by a job, answered then."""

import logging
from random import Random
from typing import Any

import pytest

from lab.sim.world.disk import SimDisk, SimFile
from tandemq.boundary import READS_AT_ONCE, Job, JobDone
from tandemq.broker.features.pulls import device_reads, processor
from tandemq.broker.features.pulls.device_reads import JOB, LATE_MS
from tandemq.broker.features.pulls.pull_request import PullRequest
from tandemq.broker.features.pulls.slave_reads import SlaveReads
from tandemq.errors import DiskFailed
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.storage.log import range_reader
from tests.request_fields import pull_fields
from tests.serving import let
from tests.spec import spec
from tests.unit.broker.features.pop.consumer import GROUP, TOPIC, pop_fields, taken_from
from tests.unit.broker.harness import CLIENT, START_WALL_MS, Harness, messages_in, run_job

TAG = {"TAGS": "a"}


class Uncached:
    """A broker whose disk the page cache has nothing of, until `cached`."""

    def __init__(self, number: int = 40, *, flushes: bool = True, open_files_max: int = 8192, **changes: Any) -> None:
        self.disk = SimDisk(Random(1))
        self.disk.open_files_max = open_files_max
        self.broker = Harness(self.disk, **changes)
        for at in range(number):
            assert self.broker.send("TopicA", b"%03d" % at, TAGS="a" if at % 10 else "b").code == ResponseCode.SUCCESS
        if flushes:
            self.broker.node.store.flush_queues()
        self.forget()

    def forget(self) -> None:
        """Have neither the broker nor the page cache keep what was written."""
        store = self.broker.node.store
        store.log.recent.restart(store.log.end)
        self.disk.uncached = 1.0
        self.broker.run_jobs = False

    def pull(self, link: int = CLIENT, **wanted: Any) -> int:
        """Send a pull, which must not be answered yet; return its opaque."""
        before = len(self.broker.inbox[link])
        assert self.broker.pull("TopicA", link=link, **wanted) is None
        assert len(self.broker.inbox[link]) == before
        return self.broker._opaque

    def run_others(self) -> None:
        """Run all jobs but reads."""
        while others := [job for job in self.broker.jobs if job.name != JOB]:
            self.broker.jobs = [job for job in self.broker.jobs if job.name == JOB]
            for job in others:
                self.broker.turn([], [run_job(job)])

    def reads(self) -> list[Job]:
        """Remove the reads that were started since the last call, and return them."""
        found = [job for job in self.broker.jobs if job.name == JOB]
        self.broker.jobs = [job for job in self.broker.jobs if job.name != JOB]
        assert all(job.is_read for job in found)
        return found

    def run_reads(self) -> int:
        """Run all reads, and those that follow; return their number. Afterwards the page cache has everything."""
        count = 0
        while reads := self.reads():
            self.disk.uncached = 0.0
            for read in reads:
                self.broker.turn([], [run_job(read)])
                count += 1
        return count

    def answer(self, opaque: int, link: int = CLIENT) -> Command:
        answer = self.broker.answer_to(opaque, link=link)
        assert answer is not None, "not answered"
        return answer


@spec("R10")
@pytest.mark.parametrize("expression", ["*", "a", "a || b"])
def test_pull_of_uncached_messages_is_answered_after_the_read(expression: str) -> None:
    broker = Uncached()
    opaque = broker.pull(expression=expression)
    assert broker.broker.send("TopicA", queue_id=1).code == ResponseCode.SUCCESS, "the loop is free"
    assert broker.run_reads() == 1
    answer = broker.answer(opaque)
    assert answer.code == ResponseCode.SUCCESS
    expected = [b"%03d" % at for at in range(40) if expression != "a" or at % 10]
    assert [message.body for message in messages_in(answer)] == expected[:32]


def test_pulls_of_the_same_messages_share_a_read() -> None:
    broker = Uncached(flushes=False)
    broker.broker.open(2)
    first, second = broker.pull(group="one"), broker.pull(2, group="two")
    assert broker.run_reads() == 1
    assert [broker.answer(first).code, broker.answer(second, 2).code] == [ResponseCode.SUCCESS] * 2


def test_entries_and_records_are_read_ahead_of_a_pull() -> None:
    """One read has all that a pull of scattered messages needs."""
    broker = Uncached(0)
    broker.disk.uncached = 0.0
    broker.broker.run_jobs = True
    for at in range(30):
        broker.broker.send("TopicA", b"%03d" % at)
        broker.broker.send("TopicB", bytes(60_000))
    broker.forget()
    opaque = broker.pull()
    assert broker.run_reads() == 1
    assert len(messages_in(broker.answer(opaque))) == 30


def test_connections_take_turns() -> None:
    """A connection with many pulls does not delay the one pull of another."""
    broker = Uncached(60, flushes=False)
    broker.broker.open(2)
    many = [broker.pull(queue_offset=at) for at in range(50)]
    one = broker.pull(2, queue_offset=55)
    for _ in range(3):
        reads = broker.reads()
        assert len(reads) <= READS_AT_ONCE
        for read in reads:
            broker.broker.turn([], [run_job(read)])
    assert broker.answer(one, 2).code == ResponseCode.SUCCESS
    answered = [opaque for opaque in many if broker.broker.answer_to(opaque) is not None]
    assert len(answered) < 12
    broker.run_reads()
    assert len(messages_in(broker.answer(many[-1]))) == 11


def test_pulls_are_refused_while_all_threads_hang() -> None:
    broker = Uncached(60, flushes=False)
    waiting = [broker.pull(queue_offset=at) for at in range(10)]
    hung = broker.reads()
    assert len(hung) == READS_AT_ONCE
    broker.broker.pass_time(LATE_MS)
    assert {broker.answer(opaque).code for opaque in waiting} == {ResponseCode.SYSTEM_ERROR}
    assert broker.reads() == []
    refused = broker.broker.pull("TopicA", 20)
    assert refused is not None
    assert refused.code == ResponseCode.SYSTEM_ERROR
    broker.broker.turn([], [run_job(hung[0])])
    opaque = broker.pull(queue_offset=20)
    broker.run_reads()
    assert len(messages_in(broker.answer(opaque))) == 32


def test_messages_that_are_missing_again_are_read_at_once() -> None:
    broker = Uncached()
    opaque = broker.pull()
    while reads := broker.reads():
        for read in reads:
            broker.broker.turn([], [run_job(read)])  # the page cache keeps nothing of it
    assert len(messages_in(broker.answer(opaque))) == 32
    broker.broker.pass_time(device_reads.REPEATED_MS)
    broker.pull()
    assert len(broker.reads()) == 1, "a while later it is read by a job again"


@spec("R10")
def test_device_that_does_not_return_ends_only_the_pulls_that_need_it(caplog: pytest.LogCaptureFixture) -> None:
    broker = Uncached(flushes=False, queue_flush_interval_ms=60_000)
    opaques = [broker.pull() for _ in range(3)]
    (hung,) = broker.reads()
    with caplog.at_level(logging.WARNING):
        broker.broker.pass_time(LATE_MS - 1)
        assert all(broker.broker.answer_to(opaque) is None for opaque in opaques)
        broker.broker.pass_time(1)
        for opaque in opaques:
            answer = broker.answer(opaque)
            assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "the store failed")
        refused = broker.broker.pull("TopicA")
        assert refused is not None
        assert refused.code == ResponseCode.SYSTEM_ERROR, "at once"
    named = [record.message for record in caplog.records if "the device has not returned for 10 s" in record.message]
    assert len(named) == 2, "the read, and the topic, once each"
    assert "requests=3" in named[0]
    assert "file=commitlog/" in named[0]
    assert broker.broker.send("TopicA", queue_id=1).code == ResponseCode.SUCCESS
    with caplog.at_level(logging.WARNING):
        broker.broker.turn([], [run_job(hung)])
    assert "the device returned after 10.0 s" in caplog.text
    broker.disk.uncached = 0.0
    found = broker.broker.pull("TopicA")
    assert found is not None
    assert len(messages_in(found)) == 32


def test_failing_device_is_an_error_of_the_pull() -> None:
    broker = Uncached()
    opaque = broker.pull()
    (read,) = broker.reads()
    broker.broker.turn([], [JobDone(read, error=DiskFailed("the device failed"))])
    assert broker.answer(opaque).code == ResponseCode.SYSTEM_ERROR
    broker.pull()
    assert len(broker.reads()) == 1, "the next pull tries again"


def test_mistake_in_a_read_ends_the_broker() -> None:
    broker = Uncached()
    broker.pull()
    (read,) = broker.reads()
    with pytest.raises(ZeroDivisionError):
        broker.broker.turn([], [JobDone(read, error=ZeroDivisionError())])


def test_pull_of_a_closed_connection_is_dropped() -> None:
    broker = Uncached()
    broker.broker.open(2)
    broker.pull(2)
    broker.broker.close(2)
    assert broker.run_reads() == 1
    assert broker.broker.inbox[2] == []


def test_reads_that_only_closed_connections_need_do_not_begin() -> None:
    broker = Uncached(60, flushes=False)
    broker.broker.open(2)
    for at in range(50):
        broker.pull(2, queue_offset=at)
    shared = broker.pull(queue_offset=49)
    broker.broker.close(2)
    assert broker.run_reads() == READS_AT_ONCE + 1
    assert len(messages_in(broker.answer(shared))) == 11


def test_pull_of_a_topic_that_was_deleted_meanwhile_is_answered() -> None:
    broker = Uncached()
    opaque = broker.pull()
    deletion = broker.broker.send_request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "TopicA"})
    assert broker.run_reads() == 1
    broker.run_others()
    assert broker.answer(deletion).code == ResponseCode.SUCCESS
    answer = broker.answer(opaque)
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "0")


def test_read_that_follows_a_slow_one_has_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Uncached()
    opaque = broker.pull()
    (entries,) = broker.reads()

    def pread_cached(file: SimFile, size: int, position: int) -> bytes | None:
        return None if file.path.startswith("commitlog/") else file.pread(size, position)

    monkeypatch.setattr(SimFile, "pread_cached", pread_cached)
    broker.broker._move(broker.broker.now.mono_ms + LATE_MS - 1)  # without a turn
    broker.broker.turn([], [run_job(entries)])
    (records,) = broker.reads()
    broker.broker.pass_time(1)
    broker.broker.turn([], [run_job(records)])
    assert broker.answer(opaque).code == ResponseCode.SUCCESS


def test_slave_that_helps_sends_a_pull_to_the_master_if_its_messages_are_deleted_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[PullRequest] = []

    class Helped(PullRequest):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self.is_helped = self.is_replica = True
            made.append(self)

    monkeypatch.setattr(processor, "PullRequest", Helped)
    monkeypatch.setattr(SlaveReads, "helps", property(lambda _: True))
    broker = Uncached(flushes=False)
    opaque = broker.pull()
    made[0].queue.min_offset = 5
    broker.run_reads()
    answer = broker.answer(opaque)
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert (answer.fields["suggestWhichBrokerId"], answer.fields["nextBeginOffset"]) == ("0", "0")


def test_number_of_waiting_pulls_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_reads, "WAITING_PER_LINK_MAX", 2)
    broker = Uncached()
    broker.broker.open(2)
    opaques = [broker.pull(), broker.pull()]
    refused = broker.broker.pull("TopicA", 5)
    assert refused is not None
    assert (refused.code, refused.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "5")
    other = broker.pull(2)
    monkeypatch.setattr(device_reads, "WAITING_MAX", 3)
    broker.broker.open(3)
    assert broker.broker.pull("TopicA", link=3) is not None
    broker.run_reads()
    assert {broker.answer(opaque).code for opaque in opaques} == {ResponseCode.SUCCESS}
    assert broker.answer(other, 2).code == ResponseCode.SUCCESS
    assert broker.broker.pull("TopicA") is not None, "nobody waits any more"


def test_number_of_reads_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_reads, "READS_MAX", 0)
    refused = Uncached().broker.pull("TopicA")
    assert refused is not None
    assert refused.code == ResponseCode.PULL_RETRY_IMMEDIATELY


def test_reads_keep_few_files_open() -> None:
    broker = Uncached(20, open_files_max=10)
    opaques = [broker.pull(queue_offset=at) for at in range(5)]
    refused = broker.broker.pull("TopicA", 5)
    assert refused is not None
    assert refused.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    broker.run_reads()
    assert {broker.answer(opaque).code for opaque in opaques} == {ResponseCode.SUCCESS}


def test_filter_returns_what_it_found_before_the_first_uncached_message() -> None:
    broker = Uncached(0, property_filter_enable=True)
    broker.disk.uncached = 0.0
    broker.broker.run_jobs = True
    for at in range(40):
        broker.broker.send("TopicA", b"%03d" % at, a=str(at % 2))
    broker.forget()
    found: list[bytes] = []
    offset = 0
    while offset < 40:
        broker.disk.uncached = 1.0
        opaque = broker.pull(queue_offset=offset, expression="a = 1", kind="SQL92")
        broker.run_reads()
        answer = broker.answer(opaque)
        found += [message.body for message in messages_in(answer)] if answer.code == ResponseCode.SUCCESS else []
        offset = int(answer.fields["nextBeginOffset"])
        broker.broker.pass_time(device_reads.REPEATED_MS)
    assert found == [b"%03d" % at for at in range(1, 40, 2)]


@pytest.mark.parametrize("by_engine", [True, False])
def test_filter_returns_the_messages_of_files_before_the_one_that_is_not_cached(
    monkeypatch: pytest.MonkeyPatch, *, by_engine: bool
) -> None:
    if not by_engine:
        monkeypatch.setattr(range_reader, "select_messages", lambda *_: None)
    broker = Uncached(0, property_filter_enable=True, segment_bytes=16_384)
    broker.disk.uncached = 0.0
    broker.broker.run_jobs = True
    for at in range(30):
        broker.broker.send("TopicA", b"%03d" % at + bytes(1_000), a=str(at % 2))
    broker.forget()
    broker.disk.uncached = 0.0
    monkeypatch.setattr(broker.disk, "lacks", lambda path, *_: path == f"commitlog/{16_384:020}")
    found = broker.broker.pull("TopicA", expression="a = 1", kind="SQL92")
    assert found is not None
    bodies = [message.body[:3] for message in messages_in(found)]
    after = int(found.fields["nextBeginOffset"])
    assert 0 < after == broker.broker.node.store.queues["TopicA", 0].first_at_or_after(16_384, 0, 30)
    assert bodies == [b"%03d" % at for at in range(1, after, 2)]


def test_filter_whose_missing_range_is_in_no_entry_waits_for_the_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "select_messages", lambda *_: None)
    monkeypatch.setattr(range_reader.RangeReader, "entries_before", lambda _self, _missing, entries: entries)
    broker = Uncached(0, property_filter_enable=True)
    broker.disk.uncached = 0.0
    broker.broker.run_jobs = True
    broker.broker.send("TopicA", a="1")
    broker.forget()
    opaque = broker.pull(expression="a = 1", kind="SQL92")
    assert broker.run_reads() == 1
    assert broker.answer(opaque).code == ResponseCode.SUCCESS


# Pops.


def popped() -> Uncached:
    """Return a broker with messages for pops."""
    broker = Uncached(0)
    broker.disk.uncached = 0.0
    broker.broker.run_jobs = True
    broker.broker.create_topic(TOPIC)
    broker.broker.pass_time(2_000)
    for at in range(8):
        broker.broker.send(TOPIC, b"%03d" % at, queue_id=at % 4)
    broker.broker.node.store.flush_queues()
    broker.forget()
    return broker


@pytest.mark.parametrize("poll_ms", [0, 5_000])
def test_pop_of_uncached_messages_waits_for_the_read(poll_ms: int) -> None:
    broker = popped()
    opaque = broker.broker.send_request(RequestCode.POP_MESSAGE, pop_fields(maxMsgNums=32, pollTime=poll_ms))
    assert broker.broker.answer_to(opaque) is None
    assert broker.run_reads() > 0
    broker.run_others()
    answer = broker.answer(opaque)
    assert answer.code == ResponseCode.SUCCESS
    assert sorted(message.message.body for message in taken_from(answer)) == [b"%03d" % at for at in range(8)]


def test_peek_of_uncached_messages_waits_for_the_read() -> None:
    broker = popped()
    fields = {"topic": TOPIC, "consumerGroup": GROUP, "queueId": -1, "maxMsgNums": 8}
    opaque = broker.broker.send_request(RequestCode.PEEK_MESSAGE, fields)
    assert broker.broker.answer_to(opaque) is None
    broker.run_reads()
    broker.run_others()
    answer = broker.answer(opaque)
    assert len(messages_in(answer)) == 8


@pytest.fixture
def blocking(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the files that the loop has read without regard to the page cache."""
    paths: list[str] = []
    pread = SimFile.pread

    def noted(file: SimFile, size: int, position: int) -> bytes:
        paths.append(file.path)
        return pread(file, size, position)

    monkeypatch.setattr(SimFile, "pread", noted)
    return paths


@pytest.mark.parametrize("expression", ["*", "a"])
def test_pull_does_not_wait_for_the_entries_that_say_what_may_be_shown(blocking: list[str], expression: str) -> None:
    broker = Uncached()
    end = broker.broker.node.store.log.written_end
    assert broker.broker.send("TopicA", b"not shown yet", queue_id=1).code == ResponseCode.SUCCESS
    let(broker.broker.node, visible_end=end)
    broker.forget()
    blocking.clear()
    opaque = broker.pull(expression=expression)
    assert blocking == []
    broker.run_reads()
    assert len(messages_in(broker.answer(opaque))) == 32


def test_pop_does_not_wait_for_the_entries_that_say_what_may_be_shown(blocking: list[str]) -> None:
    broker = popped()
    end = broker.broker.node.store.log.written_end
    assert broker.broker.send(TOPIC, b"not shown yet").code == ResponseCode.SUCCESS
    let(broker.broker.node, visible_end=end)
    broker.forget()
    blocking.clear()
    opaque = broker.broker.send_request(RequestCode.POP_MESSAGE, pop_fields())
    assert blocking == []
    broker.run_reads()
    let(broker.broker.node, visible_end=1 << 62)
    broker.run_others()
    assert len(taken_from(broker.answer(opaque))) == 8


@pytest.mark.parametrize("code", [RequestCode.POP_MESSAGE, RequestCode.PEEK_MESSAGE])
def test_pop_that_must_not_wait_ends_with_a_read_that_finds_nothing(code: RequestCode) -> None:
    broker = popped()
    opaque = broker.broker.send_request(code, pop_fields(exp="other"))
    assert broker.broker.answer_to(opaque) is None
    for queue_id in range(4):
        if code == RequestCode.PEEK_MESSAGE:  # it has no filter: the other consumer is faster
            broker.broker.commit(2, topic=TOPIC, queue_id=queue_id, group=GROUP)
    broker.run_reads()
    broker.run_others()
    empty = ResponseCode.POLLING_TIMEOUT if code == RequestCode.POP_MESSAGE else ResponseCode.PULL_NOT_FOUND
    assert broker.answer(opaque).code == empty


def test_pop_of_many_uncached_queues_reads_few_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Uncached(0)
    broker.disk.uncached = 0.0
    broker.broker.run_jobs = True
    broker.broker.create_topic(TOPIC, 100)
    broker.broker.pass_time(2_000)
    for at in range(100):
        broker.broker.send(TOPIC, b"%03d" % at, queue_id=at)
    broker.broker.node.store.flush_queues()
    broker.forget()
    cached: set[tuple[str, int]] = set()

    def pread_cached(file: SimFile, size: int, position: int) -> bytes | None:
        return file.pread(size, position) if (file.path, position) in cached else None

    monkeypatch.setattr(SimFile, "pread_cached", pread_cached)
    opaque = broker.broker.send_request(RequestCode.POP_MESSAGE, pop_fields(maxMsgNums=1, pollTime=15_000))
    count, waiting = 0, []
    while (answer := broker.broker.answer_to(opaque)) is None:
        waiting += broker.reads()
        read = waiting.pop(0)
        ranges = read.run.args[0]  # type: ignore[attr-defined]
        cached |= {(found.file.path, found.position) for found in ranges}
        broker.broker.turn([], [run_job(read)])
        broker.run_others()
        count += 1
    assert len(taken_from(answer)) == 1
    assert count <= 16, "the entries and records of eight queues"


def test_pops_that_are_tried_again_do_not_wait_more_than_once_for_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_reads, "WAITING_PER_LINK_MAX", 5)
    broker = popped()
    fields = pop_fields(maxMsgNums=32, pollTime=15_000)
    pop, _ = (broker.broker.send_request(RequestCode.POP_MESSAGE, fields) for _ in range(2))
    for at in range(20):
        broker.broker.send(TOPIC, b"more", queue_id=at % 4)  # each one has the pops tried again
        broker.run_others()
    pull = broker.broker.send_request(RequestCode.PULL_MESSAGE, pull_fields(topic=TOPIC, queueOffset=1))
    assert broker.broker.answer_to(pull) is None, "there is a place left for it"
    broker.run_reads()
    broker.run_others()
    assert broker.answer(pull).code == ResponseCode.SUCCESS
    assert broker.answer(pop).code == ResponseCode.SUCCESS


def test_pop_and_peek_end_without_messages_if_the_device_does_not_return() -> None:
    broker = popped()
    fields = {"topic": TOPIC, "consumerGroup": GROUP, "queueId": -1, "maxMsgNums": 8}
    peek = broker.broker.send_request(RequestCode.PEEK_MESSAGE, fields)
    pop = broker.broker.send_request(RequestCode.POP_MESSAGE, pop_fields(maxMsgNums=32))
    broker.broker.pass_time(LATE_MS)
    broker.run_others()
    peeked, answer = broker.answer(peek), broker.answer(pop)
    assert (peeked.code, answer.code) == (ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_TIMEOUT)
    again = broker.broker.send_request(RequestCode.POP_MESSAGE, pop_fields(maxMsgNums=32))
    assert broker.answer(again).code == ResponseCode.POLLING_TIMEOUT, "at once: the reads are known to hang"


QUERIES: list[tuple[RequestCode, dict[str, object]]] = [
    (
        RequestCode.QUERY_MESSAGE,
        {"topic": "TopicA", "key": "k7", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 1 << 60},
    ),
    (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": 0}),
    (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"topic": "TopicA", "queueId": 0, "timestamp": START_WALL_MS + 700}),
    (RequestCode.GET_EARLIEST_MSG_STORETIME, {"topic": "TopicA", "queueId": 0}),
    (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "TopicA"}),
    (RequestCode.QUERY_CONSUME_QUEUE, {"topic": "TopicA", "queueId": 0, "index": 3, "count": 9}),
]


class Queried(Uncached):
    """A broker with messages of different times that have keys, whose index has been written."""

    def __init__(self) -> None:
        super().__init__(0)
        self.disk.uncached = 0.0
        self.broker.run_jobs = True
        for at in range(20):
            self.broker.send("TopicA", b"%03d" % at, KEYS=f"k{at}")
            self.broker.pass_time(100)
        self.broker.pass_time(2_000)
        self.forget()


@pytest.mark.parametrize(("code", "fields"), QUERIES)
def test_query_of_uncached_messages_is_answered_after_the_reads(code: RequestCode, fields: dict[str, object]) -> None:
    broker = Queried()
    opaque = broker.broker.send_request(code, fields)
    assert broker.broker.answer_to(opaque) is None
    assert broker.broker.send("TopicA", queue_id=1).code == ResponseCode.SUCCESS, "the loop is free"
    assert broker.run_reads() >= 1
    later = broker.answer(opaque)
    at_once = broker.broker.ask(code, fields)
    assert (later.code, later.fields) == (ResponseCode.SUCCESS, at_once.fields)
    if code != RequestCode.GET_TOPIC_STATS_INFO:
        assert later.body == at_once.body


def test_query_whose_bytes_are_missing_again_waits_for_the_device() -> None:
    broker = Queried()
    opaque = broker.broker.send_request(*QUERIES[0])
    while reads := broker.reads():
        for read in reads:
            broker.broker.turn([], [run_job(read)])  # the page cache keeps nothing of it
    assert b"007" in broker.answer(opaque).body


def test_query_fails_if_the_device_does_not_return() -> None:
    broker = Queried()
    opaque = broker.broker.send_request(*QUERIES[0])
    (hung,) = broker.reads()
    broker.broker.pass_time(LATE_MS)
    answer = broker.answer(opaque)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "the device has not returned for 10 s" in (answer.remark or "")
    again = broker.broker.ask(*QUERIES[0])
    assert again.code == ResponseCode.SYSTEM_ERROR, "at once"
    broker.broker.turn([], [run_job(hung)])
    broker.disk.uncached = 0.0
    assert broker.broker.ask(*QUERIES[0]).code == ResponseCode.SUCCESS


def test_query_of_a_connection_that_closed_is_dropped_and_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_reads, "WAITING_PER_LINK_MAX", 2)
    broker = Queried()
    broker.broker.open(2)
    for _ in range(2):
        broker.broker.send_request(*QUERIES[1], link=2)
    assert broker.broker.ask(*QUERIES[1], link=2).code == ResponseCode.SYSTEM_BUSY
    opaque = broker.broker.send_request(*QUERIES[1])
    broker.broker.close(2)
    broker.run_reads()
    assert broker.answer(opaque).code == ResponseCode.SUCCESS
    assert not broker.broker.node.faults
