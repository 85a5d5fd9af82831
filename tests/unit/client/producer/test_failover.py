"""Producers whose broker group changes its master: they wait for the new one, and fail only after their time."""

from functools import partial

import pytest

from tandemq.client.core.settings import ProducerOptions
from tandemq.client.producer.machine import ProducerCore
from tandemq.errors import ConfigError, NoRoute, NotConnected, OutcomeUnknown, RemoteError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.message import Message, decode_properties
from tests.spec import spec
from tests.unit.client.consumer.test_failover import switch
from tests.unit.client.world import Broker, Health, World

SEND = RequestCode.SEND_MESSAGE_V2
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


def pair(**options: object) -> tuple[World, Broker, Broker, ProducerCore]:
    """Return a group in mode elect whose member 0 is the master, and a producer that has sent a message."""
    world = World()
    old, new = world.broker("a"), world.broker("a", 1)
    old.permit("rw")
    new.permit("")
    world.groups["a"].route_fields = {"failoverMode": "elect"}
    world.name_server.drops = True
    world.topic("T", 4)
    producer = world.node.producer(ProducerOptions(group="p", **options))  # type: ignore[arg-type]
    first = producer.send(Message("T", b"first"), world.now)
    world.until(lambda: first.done)
    return world, old, new, producer


def keys_of(broker: Broker) -> list[str]:
    """Return the unique keys of the messages that a broker got, in order."""
    return [decode_properties(command.fields["i"])["UNIQ_KEY"] for command in broker.of(SEND)]


@spec("F08")
@pytest.mark.parametrize("death", ["refuses", "silent", "shut"])
@pytest.mark.parametrize("name_server", [True, False])
def test_no_send_fails_while_a_new_master_is_found_within_eight_seconds(death: str, *, name_server: bool) -> None:
    world, old, new, producer = pair()
    if not name_server:
        world.name_server.refuse()
    if death == "refuses":
        old.refuse()
    elif death == "silent":
        old.health = Health.SILENT
    else:
        old.permit("")
    tickets = []
    for _ in range(80):
        tickets.append(producer.send(Message("T", b"x"), world.now))
        world.run(100)
    assert not any(ticket.done for ticket in tickets)
    new.permit("rw")
    if name_server:
        world.groups["a"].list_as(id0=new)
    took = world.until(lambda: all(ticket.done for ticket in tickets), 4_000)
    assert [ticket.error for ticket in tickets] == [None] * 80
    assert took <= (3_100 if death == "silent" else 700)
    assert {ticket.result().unique_key for ticket in tickets} <= set(keys_of(new))


@spec("V18", "V19")
def test_after_a_planned_switch_messages_are_stored_by_the_new_master_within_half_a_second() -> None:
    world, old, new, producer = pair()
    old.permit("")
    tickets = [producer.send(Message("T", b"x"), world.now) for _ in range(50)]
    world.run(200)
    switch(world, old, new)
    took = world.until(lambda: all(ticket.done for ticket in tickets))
    assert took <= 300
    assert all(ticket.error is None for ticket in tickets)
    more = [producer.send(Message("T", b"y"), world.now) for _ in range(50)]
    assert world.until(lambda: all(ticket.done for ticket in more)) <= 20
    assert {ticket.result().unique_key for ticket in more} <= set(keys_of(new))


def test_without_retries_a_send_fails_at_once() -> None:
    world, old, _new, producer = pair(retries=0)
    old.permit("")
    ticket = producer.send(Message("T", b"x"), world.now)
    assert world.until(lambda: ticket.done) <= 20
    assert isinstance(ticket.error, RemoteError)
    assert ticket.error.code == ResponseCode.NO_PERMISSION


def test_without_retry_ms_a_send_fails_after_its_retries() -> None:
    world, old, _new, producer = pair(retries=2, retry_ms=0)
    old.permit("")
    ticket = producer.send(Message("T", b"x"), world.now)
    assert world.until(lambda: ticket.done) <= 500
    assert isinstance(ticket.error, RemoteError)


def test_message_fails_only_after_each_group_was_asked() -> None:
    world, old, new, producer = pair(retries=1, retry_ms=0)
    other = world.broker("b")
    world.topic("T", 4)
    world.run(31_000)
    old.permit("")
    other.permit("")
    tickets = [producer.send(Message("T", b"x"), world.now) for _ in range(8)]
    world.until(lambda: all(ticket.done for ticket in tickets))
    asked = [key for broker in (old, new, other) for key in keys_of(broker)]
    assert [asked.count(key) for key in set(asked)].count(2) == 8


def test_message_without_a_target_at_first_fails_only_after_each_group_was_asked() -> None:
    """Found by simulation seed 56273: a check that found no target counted as an attempt."""
    world = World()
    brokers = [world.broker("a"), world.broker("b")]
    for broker in brokers:
        broker.handlers[SEND] = lambda command: command.answer(ResponseCode.SERVICE_NOT_AVAILABLE)
    world.topic("T", 4)
    producer = world.node.producer(ProducerOptions(group="p", retries=1, retry_ms=0))
    tickets = []
    for _ in range(2):  # When the second is sent, both have failed recently.
        tickets.append(producer.send(Message("T", b"x"), world.now))
        world.until(lambda: tickets[-1].done)
    assert len(set(keys_of(brokers[0]))) == 2
    assert set(keys_of(brokers[0])) == set(keys_of(brokers[1]))


@pytest.mark.parametrize("retry_ms", [1_000, 15_000])
def test_send_fails_when_its_time_is_over(retry_ms: int) -> None:
    world, old, _new, producer = pair(retry_ms=retry_ms)
    old.permit("")
    ticket = producer.send(Message("T", b"x"), world.now)
    took = world.until(lambda: ticket.done, 20_000)
    assert retry_ms <= took <= retry_ms + 200
    assert isinstance(ticket.error, RemoteError)
    assert ticket.error.code == ResponseCode.NO_PERMISSION  # The error of a broker, not that there was no target.


def test_refusal_of_the_master_is_the_final_error_not_that_of_a_slave() -> None:
    world, old, _new, producer = pair(retry_ms=1_000)
    full = "the disk is 96% full"
    old.handlers[SEND] = lambda command: command.answer(ResponseCode.SERVICE_NOT_AVAILABLE, remark=full)
    ticket = producer.send(Message("T", b"x"), world.now)
    world.until(lambda: ticket.done, 20_000)
    assert isinstance(ticket.error, RemoteError)
    assert full in str(ticket.error)


def test_unknown_outcome_is_the_final_error() -> None:
    world, old, _new, producer = pair(retry_ms=1_000)
    old.handlers[SEND] = lambda _command: None
    ticket = producer.send(Message("T", b"x"), world.now)
    world.settle()
    old.refuse()
    world.until(lambda: ticket.done)
    assert isinstance(ticket.error, OutcomeUnknown)


def test_send_waits_while_no_master_is_listed() -> None:
    world, old, new, producer = pair()
    old.refuse()
    world.run(31_000)
    ticket = producer.send(Message("T", b"x"), world.now)
    world.run(5_000)
    assert not ticket.done
    new.permit("rw")
    world.groups["a"].list_as(id0=new)
    assert world.until(lambda: ticket.done) <= 400
    assert ticket.error is None


def test_send_without_a_target_fails_with_no_route() -> None:
    world, old, _new, _producer = pair()
    old.refuse()
    world.run(31_000)
    late = world.node.producer(ProducerOptions(group="late", retry_ms=1_000))
    ticket = late.send(Message("T", b"x"), world.now)
    world.until(lambda: ticket.done)
    assert isinstance(ticket.error, NoRoute | NotConnected)


@spec("F08")
def test_many_refused_sends_cause_few_requests() -> None:
    world, old, new, producer = pair()
    old.permit("")
    for _ in range(1_000):
        producer.send(Message("T", b"x"), world.now)
    world.settle()
    world.trace.clear()
    world.run(3_000)
    codes = [command.code for _, command in world.trace]
    assert codes.count(ROUTE) <= 3_000 / 100 + 1
    assert codes.count(SEND) <= 2 * (3_000 / 100 + 1)
    assert new.of(SEND)


def test_pauses_differ_from_client_to_client() -> None:
    times = set()
    for seed in range(5):
        world = World(seed=seed)
        broker = world.broker("a")
        world.topic("T", 1)
        producer = world.node.producer(ProducerOptions(group="p"))
        broker.permit("")
        producer.send(Message("T", b"x"), world.now)
        world.until(partial(lambda at: len(at.of(SEND)) == 8, broker))
        times.add(world.now.mono_ms)
    assert len(times) > 1


def test_messages_are_sent_back_to_the_active_member() -> None:
    world, old, new, _producer = pair()
    switch(world, old, new)
    world.run(31_000)
    assert world.node.routes.leader("a") == new.address


def test_chosen_queue_follows_its_group_to_the_new_master() -> None:
    world, old, new, producer = pair()
    world.name_server.refuse()
    old.refuse()
    new.permit("rw")
    world.settle()
    ticket = producer.send(Message("T", b"x"), world.now, select=lambda queues: queues[0])
    world.until(lambda: ticket.done)
    assert ticket.error is None


def test_negative_retry_ms_is_refused() -> None:
    with pytest.raises(ConfigError, match="retry_ms"):
        ProducerOptions(group="p", retry_ms=-1)
