"""Duplicates recognised by topic and unique key, without sockets."""

import gc

import pytest

from tandemq.client.consumer.deduplication import IDENTITY_MAX, HandledKeys, message_identity
from tandemq.client.consumer.delivery import Delivery
from tandemq.client.consumer.push_machine import PushConsumerCore
from tandemq.client.core.settings import ConsumeFrom, ConsumerOptions
from tandemq.errors import ConfigError
from tandemq.model.codes import RequestCode
from tandemq.model.message import MessageQueue
from tests.spec import spec
from tests.unit.client.world import Broker, World


def world_of(queues: int = 2, window: int = 100, **options: object) -> tuple[World, Broker, PushConsumerCore]:
    world = World()
    broker = world.broker("a")
    world.topic("T", queues)
    settings = {"group": "g", "consume_from": ConsumeFrom.FIRST, "duplicate_window": window, **options}
    consumer = world.node.push_consumer(ConsumerOptions(**settings), world.now)  # type: ignore[arg-type]
    consumer.subscribe("T", "*", world.now)
    return world, broker, consumer


def take(world: World, consumer: PushConsumerCore) -> Delivery:
    found: list[Delivery] = []

    def one() -> bool:
        delivery = consumer.next_delivery()
        found.extend([delivery] if delivery is not None else [])
        return bool(found)

    world.until(one)
    return found[0]


def put(broker: Broker, queue_id: int, body: bytes, key: str, reconsume_times: int = 0) -> int:
    return broker.store("T", queue_id, body, reconsume_times, UNIQ_KEY=key)


def none_for(world: World, consumer: PushConsumerCore, period_ms: int) -> bool:
    world.run(period_ms)
    return consumer.next_delivery() is None


@spec("F37")
def test_duplicate_in_another_queue_is_acknowledged_and_counted() -> None:
    world, broker, consumer = world_of()
    put(broker, 0, b"first", "K1")
    consumer.ack(take(world, consumer), world.now)
    put(broker, 1, b"again", "K1")
    put(broker, 0, b"other", "K2")
    delivery = take(world, consumer)
    assert delivery.message.body == b"other"
    consumer.ack(delivery, world.now)
    assert none_for(world, consumer, 11_000)
    assert (broker.offsets["g", "T", 0], broker.offsets["g", "T", 1]) == (2, 1)
    assert consumer.duplicates_skipped == 1


@spec("F37")
def test_redelivered_offset_is_skipped_after_the_queue_was_assigned_again() -> None:
    world, broker, consumer = world_of(queues=1)
    put(broker, 0, b"first", "K1")
    consumer.ack(take(world, consumer), world.now)
    broker.clients["g"].add("client-0")
    broker.ask(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, oneway=True, consumerGroup="g")
    world.until(lambda: not [queue for queue in consumer.rebalance_service.queues() if queue.topic == "T"])
    world.run(100)
    broker.offsets["g", "T", 0] = 0  # its commit was lost
    broker.clients["g"].discard("client-0")
    broker.ask(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, oneway=True, consumerGroup="g")
    assert none_for(world, consumer, 5_000)
    assert none_for(world, consumer, 6_000)
    assert (broker.offsets["g", "T", 0], consumer.duplicates_skipped) == (1, 1)


def test_message_that_was_sent_back_is_delivered_again() -> None:
    world, broker, consumer = world_of()
    put(broker, 0, b"first", "K1")
    delivery = take(world, consumer)
    ticket = consumer.retry(delivery, world.now, 1)
    world.until(lambda: ticket.done)
    put(broker, 1, b"copy", "K1", reconsume_times=1)
    copy = take(world, consumer)
    assert copy.message.body == b"copy"
    consumer.ack(copy, world.now)
    put(broker, 0, b"copy of the copy", "K1")
    assert none_for(world, consumer, 1_000)
    assert consumer.duplicates_skipped == 1


def test_duplicate_of_a_message_in_its_handler_waits_for_the_end() -> None:
    world, broker, consumer = world_of()
    put(broker, 0, b"first", "K1")
    first = take(world, consumer)
    put(broker, 1, b"second", "K1")
    put(broker, 1, b"third", "K2")
    assert take(world, consumer).message.body == b"third"
    assert none_for(world, consumer, 5_000)
    consumer.ack(first, world.now)
    assert none_for(world, consumer, 5_000)
    assert consumer.duplicates_skipped == 1


def test_duplicate_is_delivered_when_the_handler_of_the_first_fails() -> None:
    world, broker, consumer = world_of()
    put(broker, 0, b"first", "K1")
    first = take(world, consumer)
    put(broker, 1, b"second", "K1")
    assert none_for(world, consumer, 1_000)
    consumer.retry(first, world.now, 1)
    assert take(world, consumer).message.body == b"second"
    assert consumer.duplicates_skipped == 0


def test_duplicate_waits_a_minute_at_most() -> None:
    world, broker, consumer = world_of()
    put(broker, 0, b"first", "K1")
    first = take(world, consumer)
    put(broker, 1, b"second", "K1")
    assert none_for(world, consumer, 1_000)
    assert none_for(world, consumer, 57_000)
    world.run(4_000)
    second = take(world, consumer)
    assert second.message.body == b"second"
    consumer.ack(first, world.now)
    consumer.ack(second, world.now)
    put(broker, 1, b"third", "K1")
    assert none_for(world, consumer, 1_000)
    assert consumer.duplicates_skipped == 1


def test_delivery_that_the_application_lost_holds_up_no_later_duplicate() -> None:
    world, broker, consumer = world_of()
    put(broker, 0, b"first", "K1")
    take(world, consumer)
    gc.collect()
    put(broker, 1, b"second", "K1")
    assert take(world, consumer).message.body == b"second"


def test_window_is_bounded_per_queue_and_a_busy_queue_leaves_the_others_alone() -> None:
    world, broker, consumer = world_of(window=3)
    put(broker, 1, b"quiet", "Q")
    consumer.ack(take(world, consumer), world.now)
    for n in range(4):
        put(broker, 0, b"%d" % n, f"K{n}")
        consumer.ack(take(world, consumer), world.now)
    put(broker, 1, b"quiet again", "Q")
    put(broker, 0, b"3 again", "K3")
    put(broker, 0, b"0 again", "K0")
    assert take(world, consumer).message.body == b"0 again"
    assert consumer.duplicates_skipped == 2


def test_total_of_all_queues_is_bounded() -> None:
    keys = HandledKeys(per_queue=10, total=12)
    for n in range(100):
        keys.add(MessageQueue("T", "a", n % 7), f"T:{n}")
        assert len(keys) <= 12
    assert "T:99" in keys and "T:0" not in keys


def test_message_without_unique_key_is_never_skipped() -> None:
    world, broker, consumer = world_of()
    for queue_id in (0, 1):
        broker.store("T", queue_id, b"same")
        consumer.ack(take(world, consumer), world.now)
    assert consumer.duplicates_skipped == 0


def test_operators_reset_delivers_handled_messages_again() -> None:
    world, broker, consumer = world_of(queues=1)
    for n in range(3):
        put(broker, 0, b"%d" % n, f"K{n}")
        consumer.ack(take(world, consumer), world.now)
    consumer.reset_offsets({MessageQueue("T", "a", 0): 1}, world.now)
    assert [take(world, consumer).message.body for _ in range(2)] == [b"1", b"2"]
    put(broker, 0, b"0 again", "K0")
    assert none_for(world, consumer, 1_000)
    assert consumer.duplicates_skipped == 1


def test_orderly_queue_continues_after_a_skipped_duplicate() -> None:
    world, broker, consumer = world_of(queues=1, orderly=True)
    for body, key in ((b"0", "K0"), (b"0 again", "K0"), (b"1", "K1")):
        put(broker, 0, body, key)
    consumer.ack(take(world, consumer), world.now)
    delivery = take(world, consumer)
    assert delivery.message.body == b"1"
    consumer.ack(delivery, world.now)
    world.until(lambda: broker.offsets.get(("g", "T", 0)) == 3)


def test_without_the_option_duplicates_are_delivered() -> None:
    world, broker, consumer = world_of(window=0)
    for queue_id in (0, 1):
        put(broker, queue_id, b"same", "K1")
        consumer.ack(take(world, consumer), world.now)
    assert consumer.duplicates_skipped == 0


def test_identity_of_a_long_or_unusual_key_is_short_and_printable() -> None:
    world, broker, consumer = world_of(queues=1)
    for key in ("K" * 5_000, "K\0", "\u00fc"):
        put(broker, 0, b"x", key)
    found = [message_identity(take(world, consumer).message) for _ in range(3)]
    assert all(one.startswith("T:#") and len(one) <= IDENTITY_MAX and one.isprintable() for one in found)
    assert len(set(found)) == 3


def test_invalid_window_is_refused() -> None:
    for window, total in ((-1, 10), (20, 10)):
        with pytest.raises(ConfigError, match="window of duplicates"):
            ConsumerOptions(group="g", duplicate_window=window, duplicate_window_total=total)
