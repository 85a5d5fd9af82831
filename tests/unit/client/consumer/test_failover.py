"""Consumers in broker groups that fail over: one member is active, the others refuse, and the active one changes."""

from tandemq.boundary import Closed
from tandemq.client.consumer.push_machine import PushConsumerCore
from tandemq.client.core.settings import ConsumeFrom, ConsumerOptions, ProducerOptions
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.model.message import Message, MessageQueue
from tests.spec import spec
from tests.unit.client.consumer.test_push_machine import take
from tests.unit.client.world import Broker, Health, World

PULL, COMMIT, QUERY = RequestCode.PULL_MESSAGE, RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.QUERY_CONSUMER_OFFSET
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


def elected(queues: int = 1, members: int = 2, **options: object) -> tuple[World, list[Broker], PushConsumerCore]:
    """Return a group whose member 0 is active, and a consumer that has read all messages."""
    world = World()
    brokers = [world.broker("a", broker_id) for broker_id in range(members)]
    for broker in brokers:
        broker.permit("" if broker.broker_id else "rw")
        broker.suggested = 0
    world.groups["a"].route_fields = {"failoverMode": "elect"}
    world.topic("T", queues)
    settings = {"group": "g", "consume_from": ConsumeFrom.FIRST, **options}
    consumer = world.node.push_consumer(ConsumerOptions(**settings), world.now)  # type: ignore[arg-type]
    consumer.subscribe("T", "*", world.now)
    world.until(lambda: len(brokers[0].held) == queues + 1)
    return world, brokers, consumer


def switch(world: World, old: Broker, new: Broker) -> None:
    """Switch as an operator does: the old master refuses, the new one is active and listed as the master."""
    old.permit("")
    new.permit("rw")
    world.groups["a"].list_as(id0=new, id1=old)


@spec("F05", "F08")
def test_reading_continues_at_the_next_member_without_name_servers() -> None:
    world, (old, new), consumer = elected()
    world.name_server.refuse()
    old.permit("")
    world.run(2_900)
    new.permit("rw")
    old.store("T", 0, b"x")
    assert world.until(lambda: consumer.next_delivery() is not None) <= 600


@spec("F08")
def test_members_are_tried_in_the_order_of_their_known_permission() -> None:
    world, brokers, _consumer = elected(members=4)
    former, *others = brokers
    # Listed: 0 FULL, 1 and 2 READ; the former master is not listed any more: NONE.
    world.groups["a"].list_as(id0=others[2], id1=others[0], id2=others[1])
    former.permit("")
    others[2].permit("rw")
    world.run(12_000)
    routes = world.node.routes
    order = [others[2].address, others[0].address, others[1].address, former.address]
    assert routes.read_addresses("a", topic="T") == order
    for broker in brokers:
        broker.permit("")
    world.trace.clear()
    world.run(50)
    pulls = [address for address, command in world.trace if command.code == PULL and command.fields["topic"] == "T"]
    assert pulls == order[1:]  # The first one refused the pull that it held.


@spec("F08")
def test_write_permission_ranks_before_none() -> None:
    world, (old, new), _consumer = elected()
    world.groups["a"].perm = 2
    world.run(31_000)
    assert world.node.routes.read_addresses("a", topic="T") == [old.address, new.address]
    world.groups["a"].list_as(id0=new, id1=old)
    world.run(31_000)
    assert world.node.routes.read_addresses("a", topic="T") == [new.address, old.address]


@spec("F07", "F11")
def test_refusal_is_checked_and_then_the_connection_is_closed() -> None:
    world, (old, new), _consumer = elected()
    assert old.links
    world.trace.clear()
    switch(world, old, new)
    first = set(old.links)
    world.run(40)
    codes = [command.code for address, command in world.trace if address == old.address]
    assert QUERY in codes
    assert not first & set(old.links)
    assert not world.node.remoting.is_down(old.address)


@spec("F11")
def test_refusal_of_one_topic_alone_closes_nothing() -> None:
    world, (old, _new), consumer = elected()
    links = dict(old.links)
    pull = old.handlers[PULL]
    old.handlers[PULL] = lambda c: c.answer(16, remark="no such right") if c.fields["topic"] == "T" else pull(c)
    old.store("T", 0, b"x")
    world.run(3_500)
    assert old.links == links
    asked = [command for command in old.of(PULL) if command.fields["topic"] == "T"]
    assert len(asked) <= 6  # Once a second, and once before.
    old.handlers[PULL] = pull
    take(world, consumer, 1, 1_100)


@spec("F08")
def test_route_is_refreshed_at_once_and_the_new_master_is_read() -> None:
    world, (old, new), consumer = elected()
    world.trace.clear()
    switch(world, old, new)
    old.store("T", 0, b"x")
    assert world.until(lambda: consumer.next_delivery() is not None) <= 40
    assert [command.code for _, command in world.trace].count(ROUTE) >= 1


@spec("F08")
def test_many_refusals_cause_few_checks() -> None:
    world, brokers, _consumer = elected(queues=100)
    for broker in brokers:
        broker.permit("")
    world.settle()
    world.trace.clear()
    world.run(3_000)
    codes = [command.code for _, command in world.trace]
    assert codes.count(ROUTE) <= 3_000 / 100 + 1
    assert codes.count(PULL) == 0  # While both are inactive, only checks are sent.
    assert codes.count(QUERY) <= 2 * (3_000 / 250 + 4)


def test_inactive_members_that_no_queue_needs_are_not_checked() -> None:
    world, (old, new), _consumer = elected()
    switch(world, old, new)
    world.run(5_000)
    world.trace.clear()
    world.run(8_000)
    asked = [command.code for address, command in world.trace if address == old.address]
    assert set(asked) <= {RequestCode.HEART_BEAT}


def test_new_master_gets_a_heartbeat() -> None:
    world, (old, new), _consumer = elected()
    world.trace.clear()
    switch(world, old, new)
    world.run(500)
    assert RequestCode.HEART_BEAT in [command.code for address, command in world.trace if address == new.address]


# --- positions


def test_positions_are_kept_whatever_the_new_member_has() -> None:
    world, (old, new), consumer = elected()
    for n in range(5):
        old.store("T", 0, b"%d" % n)
    for delivery in take(world, consumer, 5):
        consumer.ack(delivery, world.now)
    new.offsets["g", "T", 0] = 1
    switch(world, old, new)
    new.store("T", 0, b"5")
    assert [delivery.message.body for delivery in take(world, consumer)] == [b"5"]
    world.until(lambda: new.offsets.get(("g", "T", 0)) == 5, 100)


def test_refused_commits_go_to_the_next_active_member_and_never_decrease() -> None:
    world, (old, new), consumer = elected()
    committed: list[int] = []
    commit = new.handlers[COMMIT]

    def listen(command: Command) -> Command | None:
        if command.fields["topic"] == "T":
            committed.append(int(command.fields["commitOffset"]))
        return commit(command)

    new.handlers[COMMIT] = listen
    for n in range(10):
        old.store("T", 0, b"%d" % n)
    deliveries = take(world, consumer, 10)
    for delivery in deliveries[:4]:
        consumer.ack(delivery, world.now)
    # The old one still answers pulls: only the commit is refused.
    old.handlers[COMMIT] = lambda command: command.answer(16)
    new.permit("rw")
    world.until(lambda: committed == [4], 6_000)
    old.permit("")
    for delivery in deliveries[4:]:
        consumer.ack(delivery, world.now)
    world.run(11_000)
    assert committed == sorted(committed)
    assert committed[-1] == 10


def test_acknowledged_offsets_are_committed_at_once_when_pulls_are_refused() -> None:
    world, (old, new), consumer = elected()
    old.store("T", 0, b"x")
    (delivery,) = take(world, consumer)
    consumer.ack(delivery, world.now)
    # As during an offset handover: pulls are refused, commits still accepted for a while.
    pull, old.handlers[PULL] = old.handlers[PULL], lambda command: command.answer(16)
    links = dict(old.links)
    old.store("T", 0, b"y")
    world.until(lambda: old.offsets.get(("g", "T", 0)) == 1, 50)
    assert old.links == links
    old.handlers[PULL] = pull
    switch(world, old, new)
    assert [delivery.message.body for delivery in take(world, consumer)] == [b"y"]


def test_commit_without_a_response_goes_to_the_next_active_member() -> None:
    world, (old, new), consumer = elected()
    old.store("T", 0, b"x")
    (delivery,) = take(world, consumer)
    consumer.ack(delivery, world.now)
    old.health = Health.SILENT
    new.permit("rw")
    world.until(lambda: new.offsets.get(("g", "T", 0)) == 1, 20_000)


def test_closing_consumer_commits_at_the_member_that_is_active_by_then() -> None:
    world, (old, new), consumer = elected()
    old.store("T", 0, b"x")
    (delivery,) = take(world, consumer)
    consumer.ack(delivery, world.now)
    old.permit("")
    world.name_server.refuse()
    closed = world.node.close(world.now)
    world.settle()
    new.permit("rw")
    world.until(lambda: closed.done)
    assert new.offsets["g", "T", 0] == 1


def test_newly_assigned_queue_loads_its_offset_from_the_active_member() -> None:
    world, (old, new), _consumer = elected()
    old.offsets["h", "T", 0], new.offsets["h", "T", 0] = 1, 3
    for n in range(5):
        old.store("T", 0, b"%d" % n)
    old.permit("")
    new.permit("rw")
    other = world.node.push_consumer(ConsumerOptions(group="h", consume_from=ConsumeFrom.FIRST), world.now)
    other.subscribe("T", "*", world.now)
    assert [delivery.message.body for delivery in take(world, other, 2)] == [b"3", b"4"]


def test_new_master_must_report_twice_that_a_queue_ends_before_the_position() -> None:
    world, (old, new), consumer = elected()
    for n in range(5):
        old.store("T", 0, b"%d" % n)
    for delivery in take(world, consumer, 5):
        consumer.ack(delivery, world.now)
    pull = new.handlers[PULL]
    late: list[Command] = []

    def behind(command: Command) -> Command | None:
        if command.fields["topic"] != "T" or late:
            return pull(command)
        late.append(command)
        fields = {"suggestWhichBrokerId": "0", "minOffset": "0", "maxOffset": "2", "nextBeginOffset": "2"}
        return command.answer(21, fields=fields)

    new.handlers[PULL] = behind
    switch(world, old, new)
    world.until(lambda: late, 1_000)
    new.store("T", 0, b"5")
    assert [delivery.message.body for delivery in take(world, consumer)] == [b"5"]


def test_pull_consumer_commits_at_the_active_member() -> None:
    world, (old, new), _consumer = elected()
    old.store("T", 0, b"x")
    puller = world.node.pull_consumer(ConsumerOptions(group="p", consume_from=ConsumeFrom.FIRST))
    puller.assign([MessageQueue("T", "a", 0)], world.now)
    world.until(lambda: puller.take(10, world.now))
    old.permit("")
    new.permit("rw")
    done = world.node.runner.start(puller.commit(), world.now)
    world.until(lambda: done.done)
    done.result()
    assert new.offsets["p", "T", 0] == 1


# --- rebalancing


def test_first_to_reach_a_returned_broker_does_not_take_the_queues_of_the_others() -> None:
    world, (old, new), consumer = elected(queues=4)
    old.clients["g"].add("client-2")
    old.ask(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, oneway=True, consumerGroup="g")
    world.settle()
    mine = [queue for queue in consumer.rebalance_service.queues() if queue.topic == "T"]
    assert len(mine) == 2
    new.clients.clear()
    for link in list(new.links):
        del new.links[link]
        world.events.append(Closed(link, "reset by peer"))
    switch(world, old, new)
    world.until(lambda: new.clients.get("g"))
    new.ask(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, oneway=True, consumerGroup="g")
    world.run(4_000)
    assert new.of(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
    assert [queue for queue in consumer.rebalance_service.queues() if queue.topic == "T"] == mine
    world.run(1_500)
    assert (
        len([queue for queue in consumer.rebalance_service.queues() if queue.topic == "T"]) == 4
    )  # The other never came.


# --- orderly


def test_orderly_queue_keeps_its_position_when_its_lock_is_acquired_again() -> None:
    world, (old, new), consumer = elected(orderly=True)
    for n in range(3):
        old.store("T", 0, b"%d" % n)
    (delivery,) = take(world, consumer)
    new.locks["g", "T", 0] = "another"
    switch(world, old, new)
    world.run(1_000)
    consumer.ack(delivery, world.now)
    del new.locks["g", "T", 0]
    rest = []
    for _ in range(2):
        (delivery,) = take(world, consumer, 1, 3_000)
        assert new.locks["g", "T", 0] == "client-1"
        rest.append(delivery.message.body)
        consumer.ack(delivery, world.now)
    assert rest == [b"1", b"2"]


def test_orderly_queue_delivers_nothing_between_two_locks() -> None:
    world, (old, new), consumer = elected(orderly=True)
    for n in range(3):
        old.store("T", 0, b"%d" % n)
    (delivery,) = take(world, consumer)
    old.permit("")
    world.run(500)
    consumer.ack(delivery, world.now)
    world.run(2_000)
    assert consumer.next_delivery() is None
    switch(world, old, new)
    assert [delivery.message.body for delivery in take(world, consumer, 1, 1_000)] == [b"1"]


def test_static_slave_grants_no_locks() -> None:
    world = World()
    master, slave = world.broker("a"), world.broker("a", 1)
    world.topic("T", 1)
    consumer = world.node.push_consumer(
        ConsumerOptions(group="g", consume_from=ConsumeFrom.FIRST, orderly=True), world.now
    )
    consumer.subscribe("T", "*", world.now)
    world.until(lambda: len(master.held) == 2)
    master.refuse()
    world.run(40_000)
    assert not slave.of(RequestCode.LOCK_BATCH_MQ)


# --- slave-consume


@spec("F01")
def test_slave_reads_while_writes_go_to_another_group() -> None:
    world = World()
    master, slave, other = world.broker("a"), world.broker("a", 1), world.broker("b")
    for broker, rights in ((master, "rw"), (slave, ""), (other, "rw")):
        broker.permit(rights)
        broker.suggested = broker.broker_id
    world.groups["a"].route_fields = {"failoverMode": "slave-consume"}
    world.topic("T", 1)
    consumer = world.node.push_consumer(ConsumerOptions(group="g", consume_from=ConsumeFrom.FIRST), world.now)
    consumer.subscribe("T", "*", world.now)
    producer = world.node.producer(ProducerOptions(group="p"))
    world.until(lambda: len(master.held) == 2)
    master.store("T", 0, b"left behind")
    master.refuse()
    tickets = [producer.send(Message("T", b"new"), world.now) for _ in range(8)]
    world.run(3_000)
    slave.permit("r")
    assert {delivery.message.body for delivery in take(world, consumer, 9)} == {b"left behind", b"new"}
    assert {ticket.result().queue.broker_name for ticket in tickets} == {"b"}
    # The master comes back without a permission, then gets it.
    master.permit("")
    master.recover()
    world.run(6_000)
    slave.permit("")
    master.permit("rw")
    master.store("T", 0, b"again")
    assert [delivery.message.body for delivery in take(world, consumer, 1, 1_500)] == [b"again"]
