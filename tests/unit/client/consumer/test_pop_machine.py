"""The pop consumer without sockets."""

import zlib

import pytest

from tandemq.client.consumer.pop_machine import RETURN_MS, PopConsumerCore
from tandemq.client.core.settings import ConsumeFrom, PopOptions
from tandemq.errors import ConfigError, LocalError, NetworkError, RemoteError
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.message import SysFlag
from tests.unit.client.consumer.pops import Pops, consumer_in, popped_world, take
from tests.unit.client.world import Health, World


def bodies_of(world: World, consumer: PopConsumerCore, count: int, within_ms: int = 10_000) -> list[bytes]:
    return [delivery.message.body for delivery in take(world, consumer, count, within_ms)]


def test_messages_are_taken_and_acknowledged_and_do_not_come_back() -> None:
    world, pops = popped_world()
    pops.store(b"1", b"2")
    consumer = consumer_in(world)
    for delivery in take(world, consumer, 2):
        ticket = consumer.ack(delivery, world.now)
        world.until(lambda ticket=ticket: ticket.done)  # type: ignore[misc]
    assert pops.acked == [b"1", b"2"]
    world.run(70_000, 1_000)
    assert consumer.next_delivery(world.now) is None


def test_message_that_arrives_during_a_long_poll_is_delivered_at_once() -> None:
    world, pops = popped_world()
    consumer = consumer_in(world)
    world.until(lambda: pops.held)
    pops.store(b"now")
    assert world.until(lambda: consumer.next_delivery(world.now) is not None) == 0


def test_pop_asks_for_any_queue_by_the_options() -> None:
    world, pops = popped_world()
    consumer_in(world, "a || b", batch=7, invisible_s=30, consume_from=ConsumeFrom.FIRST, long_poll_ms=9_000)
    world.until(lambda: pops.held)
    fields = pops.queries[0].fields
    wanted = {"queueId": "-1", "maxMsgNums": "7", "invisibleTime": "30000", "initMode": "0", "pollTime": "9000"}
    assert fields.items() >= (wanted | {"exp": "a || b", "expType": "TAG", "order": "false"}).items()


def test_acknowledgements_that_gather_share_a_request() -> None:
    world, pops = popped_world()
    pops.store(*(b"%d" % n for n in range(20)))
    consumer = consumer_in(world)
    tickets = [consumer.ack(delivery, world.now) for delivery in take(world, consumer, 20)]
    world.until(lambda: all(ticket.done for ticket in tickets))
    assert len(pops.acked) == 20
    assert (len(pops.broker.of(Code.BATCH_ACK_MESSAGE)), len(pops.broker.of(Code.ACK_MESSAGE))) == (1, 0)


def test_broker_without_batches_gets_acknowledgements_one_by_one() -> None:
    world, pops = popped_world()
    pops.takes_batches = False
    pops.store(*(b"%d" % n for n in range(40)))
    consumer = consumer_in(world)
    for _ in range(2):
        tickets = [consumer.ack(delivery, world.now) for delivery in take(world, consumer, 20)]
        world.until(lambda tickets=tickets: all(ticket.done for ticket in tickets))  # type: ignore[misc]
    assert len(pops.acked) == 40
    assert len(pops.broker.of(Code.BATCH_ACK_MESSAGE)) == 1, "it is not asked again"


def test_message_with_another_tag_of_the_same_hash_is_acknowledged_and_not_delivered() -> None:
    world, pops = popped_world()
    pops.store(b"other", tag="BB")
    pops.store(b"wanted", tag="Aa")
    consumer = consumer_in(world, "Aa || none")
    assert bodies_of(world, consumer, 1) == [b"wanted"]
    world.until(lambda: pops.acked == [b"other"])


def test_failed_message_comes_back_after_a_delay_and_counts_its_deliveries() -> None:
    world, pops = popped_world()
    pops.store(b"bad")
    consumer = consumer_in(world)
    (delivery,) = take(world, consumer)
    ticket = consumer.retry(delivery, world.now)
    world.until(lambda: ticket.done)
    assert pops.visible_in_ms(b"bad") == 10_000
    world.run(10_000, 1_000)
    pops.wake()
    (delivery,) = take(world, consumer)
    assert delivery.message.reconsume_times == 1
    consumer.retry(delivery, world.now, 500)
    world.run(0)
    assert pops.visible_in_ms(b"bad") == 500


def test_message_whose_attempts_are_used_up_becomes_a_dead_letter() -> None:
    world, pops = popped_world()
    pops.store(b"bad")
    pops.messages[0].attempts = 3
    consumer = consumer_in(world, max_reconsume_times=2)
    world.until(lambda: pops.acked)
    (letter,) = pops.broker.sent_back
    assert letter.fields.items() >= {"delayLevel": "-1", "group": "g", "originTopic": "T", "offset": "0"}.items()
    assert consumer.next_delivery(world.now) is None


def test_unreadable_message_is_not_delivered_and_comes_back() -> None:
    world, pops = popped_world()
    pops.store(b"no zlib", sys_flag=int(SysFlag.COMPRESSED))
    pops.store(zlib.compress(b"sound"), sys_flag=int(SysFlag.COMPRESSED))
    consumer = consumer_in(world)
    assert bodies_of(world, consumer, 1) == [b"sound"]
    world.until(lambda: pops.visible_in_ms(b"no zlib") <= 10_000)


# Times.


def test_waiting_messages_are_renewed_until_they_are_taken() -> None:
    world, pops = popped_world()
    pops.store(b"1")
    consumer = consumer_in(world, invisible_s=10)
    world.until(lambda: consumer.ready_count)
    world.run(60_000, 500)
    (delivery,) = take(world, consumer)
    assert delivery.until_ms > world.now.mono_ms
    consumer.ack(delivery, world.now)
    world.until(lambda: pops.acked == [b"1"])
    assert pops.messages[0].attempts == 1


def test_handled_message_is_renewed_and_a_received_one_is_not() -> None:
    world, pops = popped_world()
    pops.store(b"handled", b"received")
    consumer = consumer_in(world, invisible_s=10)
    world.until(lambda: consumer.ready_count == 2)
    handled = consumer.next_delivery(world.now, is_renewed=True)
    received = consumer.next_delivery(world.now)
    assert handled is not None
    assert received is not None
    world.run(20_000, 500)
    assert pops.visible_in_ms(b"handled") > 0
    assert pops.visible_in_ms(b"received") < 0


def test_renewal_ends_at_its_maximum() -> None:
    world, pops = popped_world()
    pops.store(b"1")
    consumer = consumer_in(world, invisible_s=10, renew_s=20)
    world.until(lambda: consumer.ready_count)
    assert consumer.next_delivery(world.now, is_renewed=True) is not None
    world.run(31_000, 500)
    assert pops.visible_in_ms(b"1") < 0


def test_message_that_waited_too_long_is_not_delivered() -> None:
    world, pops = popped_world()
    pops.store(b"1")
    consumer = consumer_in(world, invisible_s=10, renew_s=0)
    world.until(lambda: consumer.ready_count)
    world.run(10_000, 500)
    pops.held.clear()
    assert consumer.next_delivery(world.now) is None
    assert consumer.expired == 1


def test_changed_time_counts_and_the_message_can_be_acknowledged() -> None:
    world, pops = popped_world()
    pops.store(b"1")
    consumer = consumer_in(world)
    (delivery,) = take(world, consumer)
    ticket = consumer.change_invisible(delivery, 600_000, world.now)
    world.until(lambda: ticket.done)
    assert pops.visible_in_ms(b"1") == 600_000
    world.run(300_000, 5_000)
    consumer.ack(delivery, world.now)
    world.until(lambda: pops.acked == [b"1"])
    late = consumer.change_invisible(delivery, 1, world.now)
    with pytest.raises(LocalError, match="ended"):
        late.result()


def test_acknowledgement_waits_for_a_change_in_flight() -> None:
    world, pops = popped_world()
    pops.store(b"1")
    consumer = consumer_in(world)
    (delivery,) = take(world, consumer)
    change = consumer.change_invisible(delivery, 90_000, world.now)
    ack = consumer.ack(delivery, world.now)
    world.until(lambda: ack.done)
    assert change.done
    assert pops.acked == [b"1"], "the handle that counts is the new one"


# Faults.


def test_dead_broker_does_not_stop_pops_of_others_and_is_popped_again_when_it_returns() -> None:
    world, first = popped_world()
    second = Pops(world, world.broker("b"))
    world.topic("T")
    consumer = consumer_in(world)
    world.until(lambda: first.held and second.held)
    first.broker.refuse()
    second.store(b"2")
    assert bodies_of(world, consumer, 1) == [b"2"]
    world.run(5_000)
    assert len([c for a, c in world.trace if c.code == Code.POP_MESSAGE]) < 20
    first.broker.recover()
    first.held.clear()
    first.store(b"1")
    assert bodies_of(world, consumer, 1, 5_000) == [b"1"]


def test_acknowledgement_is_repeated_until_the_broker_returns() -> None:
    world, pops = popped_world()
    pops.store(b"1", b"2")
    consumer = consumer_in(world)
    deliveries = take(world, consumer, 2)
    pops.broker.refuse()
    tickets = [consumer.ack(delivery, world.now) for delivery in deliveries]
    world.run(20_000, 200)
    assert not any(ticket.done for ticket in tickets)
    pops.broker.recover()
    world.until(lambda: all(ticket.done for ticket in tickets), 5_000)
    assert pops.acked == [b"1", b"2"]
    assert all(ticket.error is None for ticket in tickets)


def test_acknowledgement_fails_when_the_time_of_the_message_is_over() -> None:
    world, pops = popped_world()
    pops.store(b"1")
    consumer = consumer_in(world, invisible_s=10)
    (delivery,) = take(world, consumer)
    pops.broker.refuse()
    ticket = consumer.ack(delivery, world.now)
    world.run(12_000, 200)
    assert isinstance(ticket.error, NetworkError)


def test_refused_acknowledgement_fails_and_does_not_stop_others() -> None:
    world, pops = popped_world()
    pops.store(b"1", b"2")
    consumer = consumer_in(world)
    deliveries = take(world, consumer, 2)
    pops.refusal = int(ResponseCode.TOPIC_NOT_EXIST)
    ticket = consumer.ack(deliveries[0], world.now)
    world.until(lambda: ticket.done)
    assert isinstance(ticket.error, RemoteError)
    pops.refusal = 0
    ticket = consumer.ack(deliveries[1], world.now)
    world.until(lambda: ticket.done)
    assert pops.acked == [b"2"]


def test_messages_of_a_broker_are_acknowledged_at_its_new_master() -> None:
    world, pops = popped_world()
    pops.store(b"1")
    consumer = consumer_in(world)
    (delivery,) = take(world, consumer)
    successor = world.broker("a", 1)
    then = Pops(world, successor, pops.messages)
    pops.broker.refuse()
    pops.broker.group.list_as(id0=successor)
    ticket = consumer.ack(delivery, world.now)
    world.until(lambda: ticket.done, 5_000)
    assert then.acked == [b"1"]
    then.store(b"2")
    assert bodies_of(world, consumer, 1) == [b"2"]


def test_refused_pops_are_repeated_with_growing_pauses() -> None:
    world, pops = popped_world()
    pops.refusal = int(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
    consumer = consumer_in(world)
    world.run(10_000, 200)
    assert 10 <= len(pops.queries) <= 20
    pops.refusal = 0
    pops.store(b"1")
    assert bodies_of(world, consumer, 1, 2_000) == [b"1"]


def test_broker_that_does_not_hold_pops_is_not_asked_in_a_loop() -> None:
    world, pops = popped_world()
    pops.is_holding = False
    consumer_in(world)
    world.run(2_000)
    assert len(pops.queries) < 20


def test_invalid_response_is_no_harm() -> None:
    world, pops = popped_world()
    pops.broker.handlers[Code.POP_MESSAGE] = lambda command: command.answer(0, fields={"popTime": "x"})
    consumer = consumer_in(world)
    world.run(2_000)
    pops.broker.handlers[Code.POP_MESSAGE] = pops.pop
    pops.store(b"1")
    assert bodies_of(world, consumer, 1) == [b"1"]


def test_topic_that_is_created_later_is_popped() -> None:
    world = World()
    pops = Pops(world, world.broker("a"))
    consumer = consumer_in(world)
    world.run(3_000)
    world.topic("T")
    pops.store(b"1")
    assert bodies_of(world, consumer, 1) == [b"1"]


def test_broker_that_the_topic_gets_is_popped_and_one_that_it_loses_is_not() -> None:
    world, pops = popped_world()
    consumer = consumer_in(world)
    world.until(lambda: pops.held)
    other = Pops(world, world.broker("b"))
    world.topic("T", 1, "b")
    other.store(b"1")
    assert bodies_of(world, consumer, 1, 40_000) == [b"1"]
    assert consumer.pollers() == [("T", "b")]


# Limits.


def test_no_more_messages_wait_than_the_limit_says() -> None:
    world, pops = popped_world()
    pops.store(*(b"%d" % n for n in range(100)))
    consumer = consumer_in(world, prefetch_messages=20)
    world.run(1_000)
    assert consumer.ready_count == 20
    assert len(bodies_of(world, consumer, 100)) == 100


def test_topics_and_brokers_share_the_limit() -> None:
    world, first = popped_world()
    second = Pops(world, world.broker("b"))
    world.topic("T")
    for pops in (first, second):
        pops.store(*(b"%d" % n for n in range(100)))
    consumer = consumer_in(world, prefetch_messages=20)
    world.run(1_000)
    assert consumer.ready_count == 20
    waiting = [len([m for m in pops.messages if m.handle]) for pops in (first, second)]
    assert waiting == [10, 10]


def test_no_more_is_popped_than_bytes_are_allowed() -> None:
    world, pops = popped_world()
    pops.store(*(b"x" * 1_000 for _ in range(100)))
    consumer = consumer_in(world, prefetch_bytes=10_000, batch=4)
    world.run(1_000)
    assert consumer.ready_count == 12
    assert len(bodies_of(world, consumer, 100)) == 100


def test_bodies_that_inflate_too_much_are_returned_and_fewer_are_popped_then() -> None:
    world, pops = popped_world()
    pops.store(*(zlib.compress(b"%d" % n + b"x" * 5_000) for n in range(20)), sys_flag=int(SysFlag.COMPRESSED))
    consumer = consumer_in(world, prefetch_bytes=20_000)
    world.until(lambda: consumer.ready_count)
    world.run(100)
    assert consumer.ready_count == 3
    assert pops.visible_in_ms(pops.messages[-1].body) <= RETURN_MS
    take(world, consumer, 3)
    world.run(RETURN_MS)
    pops.wake()
    world.run(0)
    assert int(pops.queries[-1].fields["maxMsgNums"]) <= 6


# Ordered pops.


def ordered(world: World, **options: float) -> PopConsumerCore:
    return consumer_in(world, "*", ordered=True, invisible_s=10, **options)


def test_ordered_messages_come_one_after_the_other() -> None:
    world, pops = popped_world()
    pops.store(b"1", b"2", b"3")
    consumer = ordered(world)
    for body in (b"1", b"2", b"3"):
        (delivery,) = take(world, consumer)
        assert delivery.message.body == body
        world.run(100)
        assert consumer.next_delivery(world.now) is None, "not before the one before it is acknowledged"
        consumer.ack(delivery, world.now)
    world.until(lambda: len(pops.acked) == 3)


def test_failed_ordered_message_comes_again_before_those_behind_it() -> None:
    world, pops = popped_world()
    pops.store(b"1", b"2", b"3")
    consumer = ordered(world)
    (first,) = take(world, consumer)
    consumer.ack(first, world.now)
    (second,) = take(world, consumer)
    consumer.retry(second, world.now)
    world.run(900)
    assert consumer.next_delivery(world.now) is None
    world.run(100)
    pops.wake()
    (again,) = take(world, consumer)
    assert (again.message.body, again.message.reconsume_times) == (b"2", 1)
    consumer.ack(again, world.now)
    assert bodies_of(world, consumer, 1) == [b"3"]


def test_ordered_batch_whose_time_is_over_is_void() -> None:
    world, pops = popped_world()
    pops.store(b"1", b"2")
    consumer = ordered(world, renew_s=0)
    take(world, consumer)
    world.run(9_000, 200)
    assert consumer.next_delivery(world.now) is None
    world.run(6_000, 200)
    pops.wake()
    (again,) = take(world, consumer)
    assert (again.message.body, again.message.reconsume_times) == (b"1", 1)


def test_attempt_id_lasts_until_messages_came() -> None:
    world, pops = popped_world()
    pops.refusal = int(ResponseCode.SYSTEM_BUSY)
    consumer = ordered(world)
    world.run(500)
    pops.refusal, pops.is_holding = 0, False
    world.run(1_000)
    assert len(pops.queries) > 4
    assert len({command.fields["attemptId"] for command in pops.queries}) == 1
    pops.store(b"1")
    take(world, consumer)
    world.run(500)
    assert len({command.fields["attemptId"] for command in pops.queries}) == 2


# Close.


def test_close_returns_what_is_not_ended_and_waits_for_acknowledgements() -> None:
    world, pops = popped_world()
    pops.store(b"acked", b"taken", b"waiting")
    consumer = consumer_in(world)
    acked, _taken = take(world, consumer, 2)
    consumer.ack(acked, world.now)
    closed = world.node.close(world.now)
    world.until(lambda: closed.done)
    assert pops.acked == [b"acked"]
    assert pops.visible_in_ms(b"taken") <= RETURN_MS
    assert pops.visible_in_ms(b"waiting") <= RETURN_MS
    assert Code.UNREGISTER_CLIENT in pops.broker.codes()


def test_messages_that_arrive_while_it_closes_are_returned() -> None:
    world, pops = popped_world()
    consumer = consumer_in(world)
    world.until(lambda: pops.held)
    pops.store(b"late")
    closed = consumer.close(world.now)
    world.until(lambda: closed.done)
    world.run(0)
    assert pops.visible_in_ms(b"late") <= RETURN_MS
    assert consumer.next_delivery(world.now) is None


def test_close_does_not_wait_long_for_a_dead_broker() -> None:
    world, pops = popped_world()
    pops.store(b"1", b"2")
    consumer = consumer_in(world)
    (delivery, _) = take(world, consumer, 2)
    pops.broker.health = Health.SILENT
    consumer.ack(delivery, world.now)
    closed = consumer.close(world.now)
    assert world.until(lambda: closed.done, 30_000) <= 5_100


def test_group_is_registered_with_heartbeats() -> None:
    world, pops = popped_world()
    consumer_in(world)
    world.until(lambda: pops.broker.clients.get("g") == {"client-1"})


@pytest.mark.parametrize(
    "options",
    [
        {"group": "a b"},
        {"batch": 33},
        {"batch": 0},
        {"invisible_s": 0.5},
        {"long_poll_ms": 30_000},
        {"prefetch_messages": 0},
        {"consume_from": ConsumeFrom.TIMESTAMP},
    ],
)
def test_invalid_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        PopOptions(**({"group": "g"} | options))  # type: ignore[arg-type]


def test_retry_topics_and_a_second_consumer_of_a_group_are_refused() -> None:
    world, _ = popped_world()
    consumer = consumer_in(world)
    with pytest.raises(ConfigError, match="cannot be popped"):
        consumer.subscribe("%RETRY%g_T", "*", world.now)
    with pytest.raises(ConfigError, match="already"):
        world.node.pop_consumer(PopOptions(group="g"))
