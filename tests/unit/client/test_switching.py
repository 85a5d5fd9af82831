"""Consumers in broker groups that fail over: one member serves, the others refuse, and which one it is changes."""

from tandemq.boundary import Closed
from tandemq.client.consumer.push_machine import PushConsumerCore
from tandemq.client.core.settings import ConsumeFrom, ConsumerOptions, ProducerOptions
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.model.message import Message, MessageQueue
from tests.spec import spec
from tests.unit.client.test_consuming import take
from tests.unit.client.world import Broker, Health, World

PULL, COMMIT, QUERY = RequestCode.PULL_MESSAGE, RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.QUERY_CONSUMER_OFFSET
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


def elected(queues: int = 1, members: int = 2, **options: object) -> tuple[World, list[Broker], PushConsumerCore]:
    """A group whose member 0 serves, a consumer that has nothing left to read."""
    world = World()
    brokers = [world.broker("a", broker_id) for broker_id in range(members)]
    for broker in brokers:
        broker.permit("" if broker.broker_id else "rw")
        broker.suggested = 0
    world.groups["a"].told = {"failoverMode": "elect"}
    world.topic("T", queues)
    settings = {"group": "g", "consume_from": ConsumeFrom.FIRST, **options}
    consumer = world.node.push_consumer(ConsumerOptions(**settings), world.now)  # type: ignore[arg-type]
    consumer.subscribe("T", "*", world.now)
    world.until(lambda: len(brokers[0].held) == queues + 1)
    return world, brokers, consumer


def switch(world: World, old: Broker, new: Broker) -> None:
    """As by an operator: the old master refuses, the new one serves and is listed as the master."""
    old.permit("")
    new.permit("rw")
    world.groups["a"].list_as(id0=new, id1=old)


@spec("F05", "F08")
def test_reading_goes_on_at_the_next_member_with_the_name_servers_out_of_reach() -> None:
    world, (old, new), consumer = elected()
    world.name_server.refuse()
    old.permit("")
    world.run(2_900)
    new.permit("rw")
    old.store("T", 0, b"x")
    assert world.until(lambda: consumer.next_delivery() is not None) <= 600


@spec("F08")
def test_members_are_tried_in_the_order_of_what_they_may_do_as_far_as_known() -> None:
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
    assert pulls == order[1:]  # The first refused the pull that it held.


@spec("F08")
def test_who_may_only_write_comes_before_who_may_read_nothing() -> None:
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
def test_name_servers_are_asked_at_once_and_the_new_master_is_read_from() -> None:
    world, (old, new), consumer = elected()
    world.trace.clear()
    switch(world, old, new)
    old.store("T", 0, b"x")
    assert world.until(lambda: consumer.next_delivery() is not None) <= 40
    assert [command.code for _, command in world.trace].count(ROUTE) >= 1


@spec("F08")
def test_storm_of_refusals_costs_few_questions() -> None:
    world, brokers, _consumer = elected(queues=100)
    for broker in brokers:
        broker.permit("")
    world.settle()
    world.trace.clear()
    world.run(3_000)
    codes = [command.code for _, command in world.trace]
    assert codes.count(ROUTE) <= 3_000 / 100 + 1
    assert codes.count(PULL) == 0  # While both are shut only checks are sent.
    assert codes.count(QUERY) <= 2 * (3_000 / 250 + 4)


def test_refused_members_that_nobody_needs_are_not_asked() -> None:
    world, (old, new), _consumer = elected()
    switch(world, old, new)
    world.run(5_000)
    world.trace.clear()
    world.run(8_000)
    asked = [command.code for address, command in world.trace if address == old.address]
    assert set(asked) <= {RequestCode.HEART_BEAT}


def test_new_master_hears_who_is_here() -> None:
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


def test_offsets_refused_are_told_to_the_next_holder_and_never_go_back() -> None:
    world, (old, new), consumer = elected()
    told: list[int] = []
    commit = new.handlers[COMMIT]

    def listen(command: Command) -> Command | None:
        if command.fields["topic"] == "T":
            told.append(int(command.fields["commitOffset"]))
        return commit(command)

    new.handlers[COMMIT] = listen
    for n in range(10):
        old.store("T", 0, b"%d" % n)
    deliveries = take(world, consumer, 10)
    for delivery in deliveries[:4]:
        consumer.ack(delivery, world.now)
    # Reading still works at the old one: only the commit finds out.
    old.handlers[COMMIT] = lambda command: command.answer(16)
    new.permit("rw")
    world.until(lambda: told == [4], 6_000)
    old.permit("")
    for delivery in deliveries[4:]:
        consumer.ack(delivery, world.now)
    world.run(11_000)
    assert told == sorted(told)
    assert told[-1] == 10


def test_what_was_acknowledged_is_told_in_the_moment_pulls_are_refused() -> None:
    world, (old, new), consumer = elected()
    old.store("T", 0, b"x")
    (delivery,) = take(world, consumer)
    consumer.ack(delivery, world.now)
    # As while reading is handed back: no pulls any more, commits for a while.
    pull, old.handlers[PULL] = old.handlers[PULL], lambda command: command.answer(16)
    links = dict(old.links)
    old.store("T", 0, b"y")
    world.until(lambda: old.offsets.get(("g", "T", 0)) == 1, 50)
    assert old.links == links
    old.handlers[PULL] = pull
    switch(world, old, new)
    assert [delivery.message.body for delivery in take(world, consumer)] == [b"y"]


def test_commit_without_an_answer_is_told_to_the_next_holder() -> None:
    world, (old, new), consumer = elected()
    old.store("T", 0, b"x")
    (delivery,) = take(world, consumer)
    consumer.ack(delivery, world.now)
    old.health = Health.SILENT
    new.permit("rw")
    world.until(lambda: new.offsets.get(("g", "T", 0)) == 1, 20_000)


def test_closing_consumer_tells_its_offsets_to_whoever_serves_by_then() -> None:
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


def test_new_share_takes_its_offset_from_the_one_who_serves() -> None:
    world, (old, new), _consumer = elected()
    old.offsets["h", "T", 0], new.offsets["h", "T", 0] = 1, 3
    for n in range(5):
        old.store("T", 0, b"%d" % n)
    old.permit("")
    new.permit("rw")
    other = world.node.push_consumer(ConsumerOptions(group="h", consume_from=ConsumeFrom.FIRST), world.now)
    other.subscribe("T", "*", world.now)
    assert [delivery.message.body for delivery in take(world, other, 2)] == [b"3", b"4"]


def test_new_master_must_say_twice_that_a_queue_ends_before_the_position() -> None:
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


def test_pull_consumer_commits_where_offsets_are_taken() -> None:
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


# --- who reads which queues


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


def test_orderly_queue_goes_on_where_it_was_after_its_lock_was_taken_again() -> None:
    world, (old, new), consumer = elected(orderly=True)
    for n in range(3):
        old.store("T", 0, b"%d" % n)
    (delivery,) = take(world, consumer)
    new.locks["g", "T", 0] = "somebody"
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


def test_orderly_queue_hands_out_nothing_between_two_locks() -> None:
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


def test_static_slave_gives_no_locks() -> None:
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
    world.groups["a"].told = {"failoverMode": "slave-consume"}
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
