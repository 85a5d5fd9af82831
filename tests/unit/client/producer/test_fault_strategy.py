"""Choice of the broker group: by weight and zone, without groups that fail."""

from collections import Counter
from random import Random

import pytest

from tandemq.client.core.routes import WEIGHT_DEFAULT, WEIGHT_MAX, decode_route, weight_of
from tandemq.client.core.settings import ProducerOptions
from tandemq.client.producer.fault_strategy import spin
from tandemq.model.codes import RequestCode
from tandemq.model.message import Message
from tests.spec import spec
from tests.unit.client.world import World

SENDS = 2_000


def world_of(**route_fields: dict[str, object]) -> World:
    """Return a world with broker groups by name, and the further fields of each in routes."""
    world = World()
    for name, fields in route_fields.items():
        world.broker(name)
        world.groups[name].route_fields = fields
    world.topic("T", 4)
    return world


def counts_by_group(world: World, count: int = SENDS, **options: object) -> Counter[str]:
    """Return the number of messages that each group got."""
    producer = world.node.producer(ProducerOptions(group=f"p{world.now.mono_ms}", **options))  # type: ignore[arg-type]
    tickets = [producer.send(Message("T", b"x"), world.now) for _ in range(count)]
    world.until(lambda: all(ticket.done for ticket in tickets))
    return Counter(ticket.result().queue.broker_name for ticket in tickets)


@spec("G06")
def test_groups_get_messages_by_their_weight() -> None:
    found = counts_by_group(world_of(a={"weight": 100}, b={"weight": 300}, c={}))
    for name, share in (("a", 0.2), ("b", 0.6), ("c", 0.2)):
        assert abs(found[name] / SENDS - share) < 0.05, found


@spec("G06")
def test_queue_0_can_be_selected() -> None:
    world = world_of(a={})
    producer = world.node.producer(ProducerOptions(group="p"))
    tickets = [producer.send(Message("T", b"x"), world.now, select=lambda queues: queues[0]) for _ in range(8)]
    world.until(lambda: all(ticket.done for ticket in tickets))
    assert {number: len(queue.records) for (_, number), queue in world.groups["a"].queues.items()} == {0: 8}


@spec("G06")
def test_queues_of_a_group_take_turns_whatever_its_weight() -> None:
    world = world_of(a={"weight": 100}, b={"weight": 300})
    counts_by_group(world)
    for name in "ab":
        sizes = [len(queue.records) for queue in world.groups[name].queues.values()]
        assert len(sizes) == 4
        assert max(sizes) - min(sizes) <= 1


def test_equal_weights_take_turns_without_randomness() -> None:
    found = counts_by_group(world_of(a={"weight": 7}, b={"weight": 7}), 80)
    assert found == {"a": 40, "b": 40}


@spec("G05", "G06")
def test_failing_group_is_left_out_and_the_others_keep_their_proportion() -> None:
    world = world_of(a={"weight": 600}, b={"weight": 300}, c={"weight": 100})
    world.groups["a"].members[0].refuse()
    found = counts_by_group(world)
    assert found["a"] == 0
    assert abs(found["b"] / SENDS - 0.75) < 0.05, found


@spec("G05")
def test_slave_whose_role_is_fixed_is_no_target_while_its_master_is_listed() -> None:
    world = world_of(a={})
    master, slave = world.groups["a"].members[0], world.broker("a", 1)
    world.topic("T", 4)
    producer = world.node.producer(ProducerOptions(group="p"))
    first = producer.send(Message("T", b"first"), world.now)
    world.until(lambda: first.done)
    master.refuse()
    tickets = [producer.send(Message("T", b"x"), world.now) for _ in range(5)]
    world.run(100)
    master.recover()
    world.until(lambda: all(ticket.done for ticket in tickets))
    assert [ticket.error for ticket in tickets] == [None] * 5
    assert slave.of(RequestCode.SEND_MESSAGE_V2) == []


@spec("G05", "G06")
def test_group_without_write_permission_is_replaced_by_the_others_until_it_has_it_again() -> None:
    world = world_of(a={"weight": 900, "failoverMode": "slave-consume"}, b={"weight": 100})
    world.groups["a"].members[0].permit("")
    assert counts_by_group(world) == {"b": SENDS}
    world.groups["a"].members[0].permit("rw")
    world.run(31_000)
    assert counts_by_group(world)["a"] > 0.8 * SENDS


@spec("G06")
def test_weight_zero_takes_messages_only_while_no_other_does() -> None:
    world = world_of(a={"weight": 0}, b={})
    assert counts_by_group(world) == {"b": SENDS}
    world.groups["b"].members[0].refuse()
    world.run(100)
    assert counts_by_group(world) == {"a": SENDS}


@spec("G06")
def test_own_zone_is_preferred_and_another_used_when_it_fails() -> None:
    world = world_of(a={"zoneName": "east"}, b={"zoneName": "west"}, c={"zoneName": "west", "weight": 300})
    found = counts_by_group(world, zone="west")
    assert found["a"] == 0
    assert abs(found["c"] / SENDS - 0.75) < 0.05, found
    world.groups["b"].members[0].refuse()
    world.groups["c"].members[0].refuse()
    world.run(100)
    assert counts_by_group(world, zone="west") == {"a": SENDS}


@spec("G06")
def test_producer_of_a_zone_without_brokers_sends_anywhere() -> None:
    found = counts_by_group(world_of(a={"zoneName": "east"}, b={}), 40, zone="north")
    assert set(found) == {"a", "b"}


@spec("G06")
def test_changed_weight_counts_from_the_next_route_on() -> None:
    world = world_of(a={"weight": 100}, b={"weight": 100})
    counts_by_group(world, 10)
    world.groups["a"].route_fields = {"weight": 0}
    world.run(31_000)
    assert counts_by_group(world) == {"b": SENDS}


@pytest.mark.parametrize("value", [None, "300", -1, True, WEIGHT_MAX + 1, 1.5, [], {}])
def test_invalid_weight_counts_as_the_default(value: object) -> None:
    assert weight_of(value) == WEIGHT_DEFAULT


def test_route_of_a_java_name_server_has_no_weights() -> None:
    body = b'{"brokerDatas":[{"brokerAddrs":{"0":"h:1"},"brokerName":"a","cluster":"c"}],"queueDatas":[]}'
    group = decode_route("T", body).brokers["a"]
    assert (group.weight, group.zone, group.mode) == (WEIGHT_DEFAULT, "", "")


def test_draws_are_proportional_to_weights() -> None:
    random = Random(5)
    found = Counter(spin({"a": 1, "b": 0, "c": 3}, random) for _ in range(4_000))
    assert found["b"] == 0
    assert abs(found["a"] / 4_000 - 0.25) < 0.05
    assert {spin({"a": 0, "b": 0}, random) for _ in range(20)} == {"a", "b"}
