from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tandemq.boundary import Now, Turn
from tandemq.broker.features.delay import service
from tandemq.broker.kernel import moves
from tandemq.errors import DiskFailed
from tandemq.storage.consume_queue import ConsumeQueue
from tests.unit.broker.harness import Harness, messages_in


def test_message_is_delivered_when_it_is_due_and_not_at_the_next_look(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.create_topic("T")
    broker.pass_time(1_500)
    for step in range(60):
        broker.send("T", b"%d" % step, DELAY="1")
        broker.pass_time(37)
    queue = broker.node.store.queues["T", 0]
    broker.pass_time(2_000)
    assert queue.max_offset == 60
    delayed = broker.node.store.queues["SCHEDULE_TOPIC_XXXX", 0]
    late = [broker.node.store.stored_ms(queue, at) - delayed.entry(at).tags_code for at in range(60)]
    assert min(late) >= 0
    assert max(late) <= service.NEAR_MS


def test_broker_does_not_look_more_often_while_a_message_waits_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    deliver = service.DelayedMessages.deliver

    def look(self: service.DelayedMessages, now: Now) -> None:
        looks.append(now.mono_ms)
        deliver(self, now)

    monkeypatch.setattr(service.DelayedMessages, "deliver", look)
    broker = Harness(tmp_path)
    broker.create_topic("T")
    broker.send("T", DELAY="5")  # a minute
    broker.pass_time(10_000)
    assert len(looks) == 10_000 // service.SCAN_MS - 9, "from one second on"


def test_deliveries_of_a_turn_end_with_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may wait for the device, and leases and clients wait with it."""
    monkeypatch.setattr(moves, "READ_BYTES_MAX", 1)  # a read for each message
    broker = Harness(tmp_path)
    broker.create_topic("T")
    for level, number in ((1, 30), (2, 5)):
        for at in range(number):
            broker.send("T", b"%d" % at, DELAY=str(level), queue_id=level)
    store = broker.node.store
    broker.outbox.look_us = service.DELIVERY_US // 4
    found = {1: [0], 2: [0]}

    def note() -> None:
        for level, ends in found.items():
            queue = store.queues.get(("T", level))
            ends.append(0 if queue is None else queue.max_offset)

    turn = broker.turn

    def noted(*given: Any) -> Turn:
        done = turn(*given)
        note()
        return done

    monkeypatch.setattr(broker, "turn", noted)
    broker.now.wall_ms += 5_000  # both levels are due
    broker.pass_time(3_000)
    steps = {level: [after - before for before, after in pairwise(ends)] for level, ends in found.items()}
    assert (sum(steps[1]), sum(steps[2])) == (30, 5)
    assert max(steps[1]) <= 5
    assert found[2].index(5) < found[1].index(30), "no level waits for the end of another"


def test_queue_that_cannot_be_opened_delays_its_messages_and_leaves_others_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Harness(tmp_path)
    for topic in ("T", "U"):
        broker.create_topic(topic)
    broker.send("T", b"before")
    for body, topic in ((b"1", "T"), (b"2", "U"), (b"3", "T")):
        broker.send(topic, body, DELAY="1")
    store, fails = broker.node.store, True
    open_queue = store.queue

    def fail(topic: str, queue_id: int) -> ConsumeQueue:
        if fails and topic == "U":
            raise DiskFailed("too many open files")
        return open_queue(topic, queue_id)

    monkeypatch.setattr(store, "queue", fail)
    broker.pass_time(3_000)
    broker.send("T", b"after")
    fails = False
    broker.pass_time(3_000)
    answers = {topic: broker.pull(topic) for topic in ("T", "U")}
    bodies = {topic: [one.body for one in messages_in(answer)] for topic, answer in answers.items() if answer}
    assert bodies["U"] == [b"2"]
    assert sorted(bodies["T"]) == [b"1", b"3", b"after", b"before"]
    assert bodies["T"][:2] == [b"before", b"1"]
