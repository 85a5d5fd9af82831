"""Groups that leave the routes as a whole and return after any time, or never; the requests that this costs."""

from typing import NamedTuple, NoReturn

import pytest

from tandemq.client.consumer.push_machine import PushConsumerCore
from tandemq.client.core.settings import ConsumeFrom, ConsumerOptions, ProducerOptions
from tandemq.client.producer.machine import ProducerCore
from tandemq.model.codes import RequestCode
from tandemq.model.message import Message
from tests.spec import spec
from tests.unit.client.world import Broker, World

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
TOPICS = ("T", "U", "V")
FOUND_MS_MAX = 2_000
LONGEST_MS = 60_000
STEP_MS = 50
LONG_STEP_MS = 10_000


class Clients(NamedTuple):
    """A producer and a consumer of three topics, each on the groups a and b."""

    world: World
    a: Broker
    b: Broker
    producer: ProducerCore
    consumer: PushConsumerCore

    def leave(self) -> None:
        """Kill group a: the name server lists it no longer."""
        self.a.refuse()
        self.list_groups("b")

    def list_groups(self, *names: str) -> None:
        for topic, (queues, _) in self.world.topics.items():
            self.world.topics[topic] = queues, list(names)

    def stored_ms(self, topic: str) -> int:
        """Send until group a has stored a message of a topic; returns how long it took, milliseconds."""
        start_ms = self.world.now.mono_ms
        while (queue := self.a.group.queues.get((topic, 0))) is None or not queue.records:
            assert self.world.now.mono_ms < start_ms + LONGEST_MS, f"no send of {topic}"
            self.producer.send(Message(topic, b"x"), self.world.now)
            self.world.run(STEP_MS)
        return self.world.now.mono_ms - start_ms

    def received_ms(self) -> int:
        """Wait until the consumer has a message from group a; returns how long it took, milliseconds."""
        start_ms = self.world.now.mono_ms
        while (delivery := self.consumer.next_delivery()) is None or delivery.queue.broker_name != "a":
            assert self.world.now.mono_ms < start_ms + LONGEST_MS, "no message"
            if delivery is None:
                self.world.run(STEP_MS)
            else:
                self.consumer.ack(delivery, self.world.now)
        return self.world.now.mono_ms - start_ms


def started(*, consumes: bool = True) -> Clients:
    """Return clients whose routes have both groups."""
    world = World()
    a, b = world.broker("a"), world.broker("b")
    for topic in TOPICS:
        world.topic(topic)
    producer = world.node.producer(ProducerOptions(group="p"))
    consumer = world.node.push_consumer(ConsumerOptions(group="g", consume_from=ConsumeFrom.FIRST), world.now)
    clients = Clients(world, a, b, producer, consumer)
    if consumes:
        for topic in TOPICS:
            consumer.subscribe(topic, "*", world.now)
        world.until(lambda: len(a.held) == len(b.held) == len(TOPICS) + 1)
    else:
        for topic in TOPICS:
            clients.stored_ms(topic)
        a.group.queues.clear()
    return clients


@spec("F39")
def test_group_that_returns_is_used_within_two_seconds_after_any_absence() -> None:
    for absence_ms in (0, 700, 5_000, 10_000, 15_000, 22_000, 60_000, 300_000, 590_000):
        for registers_ms in (0, 700):
            clients = started()
            world = clients.world
            clients.leave()
            world.run(absence_ms, LONG_STEP_MS)
            clients.a.group.queues.clear()
            clients.a.recover()
            world.run(registers_ms)
            clients.list_groups("a", "b")
            since_ms = world.now.mono_ms
            for topic in TOPICS:
                clients.stored_ms(topic)
            took_ms = world.now.mono_ms - since_ms
            assert took_ms <= FOUND_MS_MAX, f"a send after {took_ms} ms, absent for {absence_ms} ms"
            clients.received_ms()
            took_ms = world.now.mono_ms - since_ms
            assert took_ms <= FOUND_MS_MAX, f"a message after {took_ms} ms, absent for {absence_ms} ms"


@spec("F39")
def test_group_that_returns_at_another_address_is_used_within_two_seconds() -> None:
    clients = started()
    world = clients.world
    clients.leave()
    world.run(22_000, LONG_STEP_MS)
    moved = Broker(world, clients.a.group, 0)
    moved.address = "a:10999"
    world.servers[moved.address] = clients.a.group.members[0] = moved
    clients.list_groups("a", "b")
    assert clients.stored_ms("U") <= FOUND_MS_MAX
    assert clients.received_ms() <= FOUND_MS_MAX


@spec("F39")
def test_producer_alone_uses_a_group_that_returns_after_long() -> None:
    clients = started(consumes=False)
    clients.leave()
    clients.world.run(1_200_000, LONG_STEP_MS)
    clients.a.recover()
    clients.list_groups("a", "b")
    clients.stored_ms("T")
    assert clients.stored_ms("V") <= FOUND_MS_MAX


def test_group_that_never_returns_costs_few_requests_in_all() -> None:
    clients = started(consumes=False)
    world = clients.world
    clients.leave()
    world.trace.clear()
    world.run(60_000, LONG_STEP_MS)
    assert routes_asked(world) <= 2 * len(TOPICS) + 120
    world.trace.clear()
    world.run(1_200_000, LONG_STEP_MS)
    polls = len(TOPICS) * 1_200_000 // world.node.config.route_poll_ms
    assert routes_asked(world) <= polls + 150
    world.trace.clear()
    world.run(300_000, LONG_STEP_MS)
    assert routes_asked(world) <= len(TOPICS) * 11 + 10, "only the ordinary poll is left"


def test_topic_whose_only_group_never_returns_costs_few_requests() -> None:
    world = World()
    a = world.broker("a")
    world.topic("T")
    producer = world.node.producer(ProducerOptions(group="p", retry_ms=3_000_000))
    consumer = world.node.push_consumer(ConsumerOptions(group="g"), world.now)
    consumer.subscribe("T", "*", world.now)
    world.until(lambda: len(a.held) == 2)
    a.refuse()
    world.topics.clear()
    producer.send(Message("T", b"x"), world.now)
    world.run(600_000, LONG_STEP_MS)
    world.trace.clear()
    world.run(60_000, LONG_STEP_MS)
    assert routes_asked(world) <= 2 * 2 + 10
    a.recover()
    world.topic("T")
    world.until(lambda: a.group.queues["T", 0].records, FOUND_MS_MAX)


def routes_asked(world: World) -> int:
    return len([command for _, command in world.trace if command.code == ROUTE])


class NotSearched(dict[str, set[str]]):
    """Lost groups that are not to be searched: that costs time for each topic."""

    def items(self) -> NoReturn:
        raise AssertionError("the lost groups of all topics were searched")


def test_first_routes_of_topics_search_no_other_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.broker("a")
    routes = world.node.routes
    lost = NotSearched()
    monkeypatch.setattr(routes, "_lost", lost)
    for number in range(5):
        world.topic(f"T{number}")
        routes.want(f"T{number}")
        fetched = routes.fetch(f"T{number}", world.now)
        world.until(lambda: fetched.done)  # noqa: B023  # called at once
    assert not lost
