"""Pops of static topics: of a broker's own queues, wherever the logical queues are led."""

from pathlib import Path

import pytest

from lab.sim.workload.static_topic_requests import segment
from tandemq.model.codes import RequestCode, ResponseCode
from tests.spec import spec
from tests.unit.broker.features.pop.consumer import Taken, pop_fields, taken_from
from tests.unit.broker.features.static_topics.test_static_topics import BLOCK, move
from tests.unit.broker.features.static_topics.wired import WiredBrokers

TOPIC, GROUP = "Static", "popg"
EARLY = segment(0, "a", 1, 0)
MOVED = [segment(0, "a", 1, 0), segment(1, "b", 2, BLOCK)]


@pytest.fixture
def brokers(tmp_path: Path) -> WiredBrokers:
    """Two brokers whose pops are answered; logical queue 0 is queue 1 of a, logical queue 1 is queue 0 of b."""
    wired = WiredBrokers(tmp_path, "a", "b")
    wired.create(TOPIC, {0: [EARLY], 1: [segment(0, "b", 0, 0)]})
    wired.pass_time(2_000)
    return wired


def pop(brokers: WiredBrokers, name: str, **changes: object) -> list[Taken]:
    answer = brokers.ask(name, RequestCode.POP_MESSAGE, pop_fields(topic=TOPIC, **changes))
    if answer.code == ResponseCode.POLLING_TIMEOUT:
        return []
    return taken_from(answer, topic=TOPIC, broker=brokers[name].config.broker_name)


def ack(brokers: WiredBrokers, name: str, taken: Taken) -> int:
    return brokers.ask(name, RequestCode.ACK_MESSAGE, taken.fields).code


@spec("L09")
def test_pops_get_every_message_once_before_during_and_after_a_move(brokers: WiredBrokers) -> None:
    for body in (b"0", b"1", b"2"):
        assert brokers.send("a", TOPIC, 0, body).code == ResponseCode.SUCCESS
    acked, late, lost = (pop(brokers, "a", maxMsgNums=1)[0] for _ in range(3))
    assert [acked.body, late.body, lost.body] == [b"0", b"1", b"2"]
    assert ack(brokers, "a", acked) == ResponseCode.SUCCESS
    assert brokers.send("a", TOPIC, 0, b"3").code == ResponseCode.SUCCESS

    move(brokers, 0, MOVED, epoch=2000)
    assert brokers.send("b", TOPIC, 0, b"4").code == ResponseCode.SUCCESS
    assert ack(brokers, "a", late) == ResponseCode.SUCCESS
    (left,), (new,) = pop(brokers, "a"), pop(brokers, "b")
    assert [left.body, new.body, new.handle.queue_id] == [b"3", b"4", 2]
    assert [ack(brokers, "a", left), ack(brokers, "b", new)] == [0, 0]

    brokers.pass_time(14_000)
    (again,) = pop(brokers, "a")
    assert (again.body, again.message.reconsume_times) == (b"2", 1)
    assert ack(brokers, "a", again) == ResponseCode.SUCCESS
    brokers.pass_time(14_000)
    assert pop(brokers, "a") == pop(brokers, "b") == []


@spec("L09")
def test_group_that_popped_goes_on_with_pulls_at_the_logical_offset(brokers: WiredBrokers) -> None:
    for body in (b"0", b"1", b"2"):
        brokers.send("a", TOPIC, 0, body)
    assert len(pop(brokers, "a", maxMsgNums=2)) == 2
    assert brokers.offset("a", RequestCode.QUERY_CONSUMER_OFFSET, TOPIC, 0, consumerGroup=GROUP) == 2
    move(brokers, 0, MOVED, epoch=2000)
    brokers.send("b", TOPIC, 0, b"3")
    assert len(pop(brokers, "b")) == 1
    assert brokers.offset("b", RequestCode.QUERY_CONSUMER_OFFSET, TOPIC, 0, consumerGroup=GROUP) == BLOCK + 1
