"""Reading when brokers die, return, lag, or stop responding."""

import pytest

from tandemq.client.consumer.push_machine import PushConsumerCore
from tandemq.client.core.settings import ConsumeFrom, ConsumerOptions
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tests.spec import spec
from tests.unit.client.consumer.test_push_machine import take
from tests.unit.client.world import Broker, Health, World


def pair(queues: int = 1) -> tuple[World, Broker, Broker, PushConsumerCore]:
    world = World()
    master, slave = world.broker("a"), world.broker("a", 1)
    slave.suggested = 0
    world.topic("T", queues)
    consumer = world.node.push_consumer(ConsumerOptions(group="g", consume_from=ConsumeFrom.FIRST), world.now)
    consumer.subscribe("T", "*", world.now)
    world.until(lambda: len(master.held) == queues + 1)
    return world, master, slave, consumer


@spec("R09")
def test_reading_moves_to_the_slave_at_once_when_the_master_dies() -> None:
    world, master, slave, consumer = pair()
    master.refuse()
    slave.store("T", 0, b"from the slave")
    assert world.until(lambda: (found := consumer.next_delivery()) and found.message.body == b"from the slave") <= 20


def test_reading_moves_to_the_slave_at_once_when_the_master_shuts_down() -> None:
    world, master, slave, consumer = pair()
    master.handlers[RequestCode.PULL_MESSAGE] = Command.go_away
    slave.store("T", 0, b"from the slave")
    held, master.held = list(master.held), []
    for link, command in held:
        master.say(link, command.go_away())
    assert world.until(lambda: (found := consumer.next_delivery()) and found.message.body == b"from the slave") <= 20


@spec("R09")
def test_reading_moves_to_the_slave_when_the_name_server_drops_the_master() -> None:
    world, master, slave, consumer = pair()
    world.name_server.drops = True
    master.refuse()
    world.run(40_000)
    slave.store("T", 0, b"x")
    take(world, consumer, 1, 100)


def test_reading_and_offsets_return_to_the_master_with_it() -> None:
    world, master, slave, consumer = pair()
    world.name_server.drops = True
    master.refuse()
    slave.store("T", 0, b"1")
    (delivery,) = take(world, consumer)
    consumer.ack(delivery, world.now)
    world.until(lambda: slave.offsets.get(("g", "T", 0)) == 1)
    assert master.offsets == {}
    master.recover()
    world.until(lambda: master.offsets.get(("g", "T", 0)) == 1, 6_000)
    slave.store("T", 0, b"2")
    take(world, consumer)
    world.until(lambda: any(command.fields["topic"] == "T" for _, command in master.held), 1_000)


def test_heartbeats_reach_the_slave_before_it_is_needed() -> None:
    _world, _master, slave, _consumer = pair()
    assert "client-1" in slave.clients["g"]


@spec("G01", "G03", "G04")
def test_silent_master_is_detected() -> None:
    world, master, slave, consumer = pair()
    master.health = Health.SILENT
    slave.store("T", 0, b"x")
    took = world.until(lambda: consumer.next_delivery() is not None, 20_000)
    # A probe after 10 s of silence, which must be answered within 3 s; its period adds a quarter.
    assert took <= 16_000
    assert world.node.remoting.is_down(master.address)


@spec("G03")
def test_own_writes_do_not_hide_a_dead_broker() -> None:
    world, master, _slave, _consumer = pair()
    master.health = Health.SILENT
    for _ in range(200):
        world.node.remoting.send_oneway(
            master.address, Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields={}), world.now
        )
        world.run(100)
    assert world.node.remoting.is_down(master.address)


@spec("G04")
def test_heartbeats_are_requests_sent_every_thirty_seconds() -> None:
    world, master, _slave, _consumer = pair()
    before = len(master.of(RequestCode.HEART_BEAT))
    world.run(90_000)
    beats = master.of(RequestCode.HEART_BEAT)[before:]
    assert len(beats) >= 3
    assert not any(beat.is_oneway for beat in beats)


def test_silent_master_does_not_delay_reading_twice() -> None:
    world, master, slave, consumer = pair()
    master.health = Health.SILENT
    world.until(lambda: world.node.remoting.is_down(master.address), 20_000)
    for n in range(20):
        slave.store("T", 0, b"%d" % n)
        assert world.until(lambda: consumer.next_delivery() is not None) <= 20
        world.run(1_000)


@spec("R10")
def test_suggested_broker_is_asked_next() -> None:
    world, master, slave, _consumer = pair()
    master.suggested = slave.suggested = 1
    master.store("T", 0, b"1")
    world.until(lambda: any(command.fields["topic"] == "T" for _, command in slave.held), 100)
    slave.suggested = 0
    master.store("T", 0, b"2")
    world.until(lambda: any(command.fields["topic"] == "T" for _, command in master.held), 100)


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.TOPIC_NOT_EXIST])
def test_refusing_slave_is_asked_again_after_a_pause(code: ResponseCode) -> None:
    world, master, slave, consumer = pair()
    answer = slave.handlers[RequestCode.PULL_MESSAGE]
    slave.handlers[RequestCode.PULL_MESSAGE] = lambda command: command.answer(code)
    master.refuse()
    world.run(5_000)
    assert len(slave.of(RequestCode.PULL_MESSAGE)) <= 14  # Two queues, once a second.
    slave.handlers[RequestCode.PULL_MESSAGE] = answer
    slave.store("T", 0, b"x")
    take(world, consumer, 1, 1_500)


def test_lagging_slave_does_not_move_the_consumer_back() -> None:
    world, master, slave, consumer = pair()
    for n in range(3):
        master.store("T", 0, b"%d" % n)
    for delivery in take(world, consumer, 3):
        consumer.ack(delivery, world.now)
    records = slave.group.queues["T", 0].records
    slave.group.queues["T", 0].records = records[:1]
    master.refuse()
    world.run(3_000)
    slave.group.queues["T", 0].records = records
    slave.store("T", 0, b"3")
    (delivery,) = take(world, consumer)
    assert delivery.message.body == b"3"


def test_long_poll_past_its_deadline_closes_the_connection() -> None:
    world, master, slave, consumer = pair()
    slave.store("T", 0, b"x")
    take(world, consumer)
    # Everything but pulls is still answered.
    links = dict(master.links)
    world.run(26_000)
    assert not set(links) & set(master.links)
    assert any(command.fields["topic"] == "T" for _, command in slave.held) or master.links


def test_empty_answers_at_once_do_not_make_the_client_spin() -> None:
    world, master, _slave, _consumer = pair()
    master.is_holding = False
    master.store("T", 0, b"x")
    before = len(master.of(RequestCode.PULL_MESSAGE))
    world.run(10_000)
    assert len(master.of(RequestCode.PULL_MESSAGE)) - before < 200


def test_death_of_master_and_slave_is_survived() -> None:
    world, master, slave, consumer = pair()
    master.refuse()
    slave.refuse()
    world.run(60_000)
    master.recover()
    master.store("T", 0, b"x")
    take(world, consumer, 1, 6_000)


def test_invalid_frame_closes_the_connection_and_reading_continues() -> None:
    world, master, slave, consumer = pair()
    for link in master.links:
        world.received.append((link, b"\xff" * 64))
    world.settle()
    slave.store("T", 0, b"x")
    take(world, consumer, 1, 100)
