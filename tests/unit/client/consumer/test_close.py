"""The end of a push consumer without sockets: what is committed, sent back, and left to the next member."""

import pytest

from tandemq.client.core.settings import ConsumerOptions, MessageModel, ProducerOptions
from tandemq.client.producer.machine import ProducerCore
from tandemq.errors import OutcomeUnknown
from tandemq.model.codes import RequestCode
from tandemq.model.message import Message
from tests.unit.client.consumer.test_push_machine import consumer_in, one_broker, take
from tests.unit.client.world import Broker, Health, World

OFFSET = ("billing", "T", 0)


def filled(count: int, reconsume_times: int = 0) -> tuple[World, Broker]:
    world, broker = one_broker()
    for n in range(count):
        broker.store("T", 0, b"%d" % n, reconsume_times)
    return world, broker


def close(world: World) -> None:
    closing = world.node.close(world.now)
    world.until(lambda: closing.done, 30_000)
    closing.result()


def test_stopped_consumer_pulls_and_delivers_nothing_and_takes_acknowledgements() -> None:
    world, broker = filled(10)
    consumer = consumer_in(world)
    deliveries = take(world, consumer, 4)
    consumer.stop(world.now)
    pulls = len(broker.of(RequestCode.PULL_MESSAGE))
    broker.store("T", 0, b"later")
    for delivery in deliveries:
        consumer.ack(delivery, world.now)
    world.run(30_000)
    assert consumer.next_delivery() is None
    assert broker.offsets[OFFSET] == 4
    assert len(broker.of(RequestCode.PULL_MESSAGE)) == pulls
    close(world)
    assert not broker.sent_back
    assert broker.clients["billing"] == set()


def test_stopped_consumer_stays_a_member_and_takes_no_new_queue_over() -> None:
    world, broker = one_broker(queues=2)
    broker.clients["billing"] = {"client-0"}
    consumer = consumer_in(world)
    world.until(lambda: len(consumer.rebalance_service.active()) == 1)
    consumer.stop(world.now)
    broker.clients["billing"].discard("client-0")
    broker.requests.clear()
    world.run(65_000)
    assert len(broker.of(RequestCode.HEART_BEAT)) >= 2
    assert "client-1" in broker.clients["billing"]
    assert len(consumer.rebalance_service.queues()) == 1


def test_only_what_was_overtaken_is_sent_back_at_close() -> None:
    """Offsets 1 and 3 were delivered and not ended; those from 5 on were not delivered."""
    world, broker = filled(10)
    consumer = consumer_in(world)
    deliveries = take(world, consumer, 5)
    for n in (0, 2, 4):
        consumer.ack(deliveries[n], world.now)
    returned: list[int] = []
    consumer.on_returned = lambda delivery: returned.append(delivery.message.queue_offset)
    close(world)
    assert returned == [1, 3]
    assert [(int(c.fields["offset"]), c.fields["delayLevel"]) for c in broker.sent_back] == [(1000, "1"), (3000, "1")]
    assert broker.offsets[OFFSET] == 5


def test_message_behind_all_acknowledged_ones_is_left_to_the_next_member() -> None:
    world, broker = filled(3)
    consumer = consumer_in(world)
    first, _, _ = take(world, consumer, 3)
    consumer.ack(first, world.now)
    close(world)
    assert not broker.sent_back
    assert broker.offsets[OFFSET] == 1


def test_overtaken_message_that_cannot_be_sent_back_is_not_committed() -> None:
    world, broker = filled(3)
    broker.handlers[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda command: command.answer(1, remark="no")
    broker.handlers[RequestCode.SEND_MESSAGE_V2] = lambda command: command.answer(1, remark="no")
    consumer = consumer_in(world)
    _, second, _ = take(world, consumer, 3)
    consumer.ack(second, world.now)
    close(world)
    assert broker.offsets.get(OFFSET, 0) == 0


def test_overtaken_message_at_its_last_attempt_is_not_made_a_dead_letter() -> None:
    world, broker = filled(2, reconsume_times=3)
    consumer = consumer_in(world, max_reconsume_times=3)
    _, second = take(world, consumer, 2)
    consumer.ack(second, world.now)
    close(world)
    assert not broker.sent_back
    assert broker.offsets.get(OFFSET, 0) == 0


@pytest.mark.parametrize("options", [{"orderly": True}, {"model": MessageModel.BROADCASTING}])
def test_orderly_and_broadcasting_consumers_send_nothing_back_at_close(options: dict[str, object]) -> None:
    world, broker = filled(3)
    consumer = consumer_in(world, "*", **options)
    (first,) = take(world, consumer, 1)
    if not options.get("orderly"):
        first = take(world, consumer, 1)[0]
    consumer.ack(first, world.now)
    close(world)
    assert not broker.sent_back
    assert not broker.locks
    assert broker.offsets.get(OFFSET, 0) == (1 if options.get("orderly") else 0)


def test_orderly_consumer_keeps_its_lock_while_it_is_stopped_and_delivers_nothing() -> None:
    world, broker = filled(3)
    consumer = consumer_in(world, orderly=True)
    (first,) = take(world, consumer, 1)
    consumer.stop(world.now)
    broker.requests.clear()
    world.run(45_000)
    assert broker.of(RequestCode.LOCK_BATCH_MQ)
    assert broker.locks
    consumer.ack(first, world.now)
    world.run(100)
    assert consumer.next_delivery() is None
    close(world)
    assert broker.offsets[OFFSET] == 1
    assert not broker.locks


def test_orderly_message_that_fails_while_the_consumer_is_stopped_is_left_to_the_next_member() -> None:
    world, broker = filled(2)
    consumer = consumer_in(world, orderly=True)
    (first,) = take(world, consumer, 1)
    consumer.stop(world.now)
    consumer.retry(first, world.now)
    world.run(5_000)
    assert consumer.next_delivery() is None
    close(world)
    assert broker.offsets.get(OFFSET, 0) == 0


def test_close_waits_for_a_message_that_is_being_sent_back_and_sends_it_once() -> None:
    world, broker = filled(2)
    consumer = consumer_in(world)
    first, second = take(world, consumer, 2)
    consumer.ack(second, world.now)
    consumer.retry(first, world.now)
    close(world)
    assert len(broker.sent_back) == 1
    assert broker.offsets[OFFSET] == 2


def test_message_of_the_retry_topic_that_was_overtaken_keeps_its_topic() -> None:
    world, broker = one_broker()
    consumer = consumer_in(world)
    world.until(lambda: broker.held)
    world.topics["%RETRY%billing"] = (1, ["a"])
    for n in range(2):
        broker.store("%RETRY%billing", 0, b"%d" % n, reconsume_times=1, RETRY_TOPIC="T")
    _, second = take(world, consumer, 2, 60_000)
    consumer.ack(second, world.now)
    close(world)
    assert [command.fields["originTopic"] for command in broker.sent_back] == ["T"]
    assert broker.offsets["billing", "%RETRY%billing", 0] == 2


def test_close_ends_although_the_broker_is_silent() -> None:
    world, broker = filled(3)
    consumer = consumer_in(world)
    _, second, _ = take(world, consumer, 3)
    consumer.ack(second, world.now)
    broker.health = Health.SILENT
    close(world)


def sender(world: World, **options: int) -> ProducerCore:
    return world.node.producer(ProducerOptions(group="p", **options))  # type: ignore[arg-type]


def test_flush_waits_for_the_sends_before_it_and_for_no_later_ones() -> None:
    world, broker = one_broker()
    producer = sender(world)
    first = producer.send(Message("T", b"0"), world.now)
    world.until(lambda: first.done)
    broker.health = Health.SILENT
    before = producer.send(Message("T", b"1"), world.now)
    flushed, again = producer.flush(world.now), producer.flush(world.now)
    world.run(100)
    assert not flushed.done and not again.done
    later = producer.send(Message("T", b"2"), world.now)
    broker.refuse()
    world.run(200)
    broker.recover()
    world.until(lambda: flushed.done and again.done, 30_000)
    assert before.done and before.error is None
    world.until(lambda: later.done, 30_000)
    assert producer.flush(world.now).done


def test_flush_ends_when_a_send_fails() -> None:
    world, broker = one_broker()
    producer = sender(world, retries=0)
    first = producer.send(Message("T", b"0"), world.now)
    world.until(lambda: first.done)
    broker.health = Health.SILENT
    failing = producer.send(Message("T", b"1"), world.now)
    flushed = producer.flush(world.now)
    world.until(lambda: flushed.done)
    assert isinstance(failing.error, OutcomeUnknown)
    assert flushed.error is None


def test_limits_of_consumers_have_the_same_default() -> None:
    assert ConsumerOptions(group="g").close_wait_s == ProducerOptions(group="g").close_wait_s == 30
