"""The producer without sockets."""

import pytest

from tandemq.client.core.settings import ProducerOptions
from tandemq.client.producer.machine import ProducerCore, by_hash
from tandemq.errors import ClosedError, LocalError, NoRoute, NotConnected, OutcomeUnknown, RemoteError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import Message, SendStatus, decode_properties
from tests.spec import spec
from tests.unit.client.world import Health, World

TIMEOUT_MS = 3_000


def producer_in(world: World, **options: object) -> ProducerCore:
    return world.node.producer(ProducerOptions(group="orders", **options))  # type: ignore[arg-type]


def two_brokers() -> World:
    world = World()
    world.broker("a")
    world.broker("b")
    world.topic("T", 2)
    return world


def test_send_returns_queue_and_offset() -> None:
    world = World()
    broker = world.broker("a")
    world.topic("T", 1)
    producer = producer_in(world)
    ticket = producer.send(Message("T", b"x", tags="paid", keys=["k1", "k2"]), world.now)
    world.until(lambda: ticket.done)
    result = ticket.result()
    assert (result.status, result.queue.broker_name, result.queue_offset) == (SendStatus.SEND_OK, "a", 0)
    sent = broker.of(RequestCode.SEND_MESSAGE_V2)[0]
    properties = decode_properties(sent.fields["i"])
    assert (properties["TAGS"], properties["KEYS"], properties["WAIT"]) == ("paid", "k1 k2", "true")
    assert properties["UNIQ_KEY"] == result.unique_key
    assert (sent.fields["a"], sent.version) == ("orders", 409)


def test_sends_take_turns_over_all_queues() -> None:
    world = two_brokers()
    producer = producer_in(world)
    tickets = [producer.send(Message("T", b"x"), world.now) for _ in range(8)]
    world.until(lambda: all(ticket.done for ticket in tickets))
    queues = [ticket.result().queue for ticket in tickets]
    assert all(queues.count(queue) == 2 for queue in queues)


def test_message_is_retried_on_another_broker_with_the_same_unique_key() -> None:
    world = two_brokers()
    producer = producer_in(world)
    first = [producer.send(Message("T", b"x"), world.now) for _ in range(4)]
    world.until(lambda: all(ticket.done for ticket in first))
    a = world.groups["a"].members[0]
    a.handlers[RequestCode.SEND_MESSAGE_V2] = lambda _command: None
    tickets = [producer.send(Message("T", b"y"), world.now) for _ in range(4)]
    world.settle()
    a.refuse()
    took = world.until(lambda: all(ticket.done for ticket in tickets))
    assert took < 100
    assert {ticket.result().queue.broker_name for ticket in tickets} == {"b"}
    keys_at_a = {decode_properties(c.fields["i"])["UNIQ_KEY"] for c in a.of(RequestCode.SEND_MESSAGE_V2)}
    assert len(keys_at_a & {ticket.result().unique_key for ticket in tickets}) == 2


def test_retried_message_has_the_content_of_the_first_attempt() -> None:
    world = two_brokers()
    producer = producer_in(world)
    first = [producer.send(Message("T", b"x"), world.now) for _ in range(4)]
    world.until(lambda: all(ticket.done for ticket in first))
    a, b = (world.groups[name].members[0] for name in "ab")
    a.handlers[RequestCode.SEND_MESSAGE_V2] = lambda command: command.answer(ResponseCode.SYSTEM_ERROR)
    b.requests.clear()
    message = Message("T", b"\0y", tags="paid", keys=["k", "支付"], properties={'n"': "v\t"}, flag=-7)
    tickets = [producer.send(message, world.now) for _ in range(4)]
    message.body, message.tags, message.flag = b"changed after it was sent", "late", 1
    world.until(lambda: all(ticket.done for ticket in tickets))
    refused = {c.fields["i"]: c for c in a.of(RequestCode.SEND_MESSAGE_V2)[-2:]}
    stored = {c.fields["i"]: c for c in b.of(RequestCode.SEND_MESSAGE_V2)}
    assert len(stored) == 4
    for properties, command in refused.items():
        again = stored[properties]
        assert (command.body, command.fields["h"], command.fields["f"]) == (b"\0y", "-7", "0")
        assert (again.body, again.fields["h"], again.fields["f"]) == (b"\0y", "-7", "0")
        names = decode_properties(properties)
        assert (names["TAGS"], names["KEYS"], names['n"']) == ("paid", "k 支付", "v\t")


def test_single_sends_and_batches_of_one_turn_get_their_own_results() -> None:
    world = World()
    world.broker("a")
    world.topic("T", 1)
    producer = producer_in(world)
    first = producer.send(Message("T", b"x"), world.now)
    world.until(lambda: first.done)
    singles, batches = [], []
    for _ in range(3):
        singles.append(producer.send(Message("T", b"x"), world.now))
        batches += producer.send_batch([Message("T", b"y")], world.now)
    world.until(lambda: all(ticket.done for ticket in singles) and all(ticket.done for ticket in batches))
    assert [ticket.result().queue_offset for ticket in singles] == [1, 3, 5]
    assert [[one.queue_offset for one in ticket.result()] for ticket in batches] == [[2], [4], [6]]
    assert producer.in_flight == 0


@spec("G02")
def test_silent_broker_never_makes_a_send_succeed() -> None:
    world = World()
    world.broker("a")
    world.topic("T", 1)
    producer = producer_in(world, retries=0)
    good = producer.send(Message("T", b"x"), world.now)
    world.until(lambda: good.done)
    world.groups["a"].members[0].health = Health.SILENT
    tickets = [producer.send(Message("T", b"x"), world.now) for _ in range(100)]
    world.until(lambda: all(ticket.done for ticket in tickets), TIMEOUT_MS + 100)
    assert {type(ticket.error) for ticket in tickets} == {OutcomeUnknown}


def test_unknown_outcome_stays_unknown_when_later_attempts_cannot_connect() -> None:
    world = World()
    broker = world.broker("a")
    world.topic("T", 1)
    producer = producer_in(world)
    broker.handlers[RequestCode.SEND_MESSAGE_V2] = lambda _command: None
    ticket = producer.send(Message("T", b"x"), world.now)
    world.settle()
    broker.refuse()
    world.until(lambda: ticket.done, 16_000)
    assert isinstance(ticket.error, OutcomeUnknown)


def test_refused_connections_raise_not_connected() -> None:
    world = World()
    broker = world.broker("a")
    world.topic("T", 1)
    broker.refuse()
    ticket = producer_in(world).send(Message("T", b"x"), world.now)
    world.until(lambda: ticket.done, 16_000)
    assert isinstance(ticket.error, NotConnected)


@pytest.mark.parametrize("code", [1, 2, 14, 16, 17, 204, 205, 1500])
def test_retriable_answer_is_retried_on_another_broker(code: int) -> None:
    world = two_brokers()
    producer = producer_in(world)
    world.groups["a"].members[0].handlers[RequestCode.SEND_MESSAGE_V2] = lambda command: command.answer(code)
    tickets = [producer.send(Message("T", b"x"), world.now) for _ in range(4)]
    world.until(lambda: all(ticket.done for ticket in tickets))
    assert {ticket.result().queue.broker_name for ticket in tickets} == {"b"}


def test_final_answer_is_not_retried() -> None:
    world = two_brokers()
    producer = producer_in(world)
    for group in world.groups.values():
        group.members[0].handlers[RequestCode.SEND_MESSAGE_V2] = lambda command: command.answer(13, remark="too large")
    ticket = producer.send(Message("T", b"x"), world.now)
    world.until(lambda: ticket.done)
    assert isinstance(ticket.error, RemoteError)
    assert ticket.error.code == ResponseCode.MESSAGE_ILLEGAL
    assert sum(len(g.members[0].of(RequestCode.SEND_MESSAGE_V2)) for g in world.groups.values()) == 1


def answer_status(world: World, name: str, code: int) -> None:
    broker = world.groups[name].members[0]

    def stored(command: Command) -> Command:
        answer = broker.send(command)
        answer.code = code
        return answer

    broker.handlers[RequestCode.SEND_MESSAGE_V2] = stored


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
def test_status_other_than_ok_is_a_result_by_default(code: int, status: SendStatus) -> None:
    world = World()
    world.broker("a")
    world.topic("T", 1)
    answer_status(world, "a", code)
    ticket = producer_in(world).send(Message("T", b"x"), world.now)
    world.until(lambda: ticket.done)
    assert ticket.result().status is status


@spec("W14")
def test_status_other_than_ok_is_retried_with_the_same_key_if_configured() -> None:
    world = two_brokers()
    answer_status(world, "a", 10)
    producer = producer_in(world, retry_when_not_stored_ok=True)
    tickets = [producer.send(Message("T", b"x"), world.now) for _ in range(4)]
    world.until(lambda: all(ticket.done for ticket in tickets))
    assert {(t.result().status, t.result().queue.broker_name) for t in tickets} == {(SendStatus.SEND_OK, "b")}
    keys = [
        {decode_properties(c.fields["i"])["UNIQ_KEY"] for c in world.groups[name].members[0].requests if c.code == 310}
        for name in "ab"
    ]
    assert keys[0]
    assert keys[0] < keys[1]


def test_status_other_than_ok_is_the_result_when_no_broker_does_better() -> None:
    world = two_brokers()
    answer_status(world, "a", 12)
    answer_status(world, "b", 12)
    ticket = producer_in(world, retry_when_not_stored_ok=True).send(Message("T", b"x"), world.now)
    world.until(lambda: ticket.done)
    assert ticket.result().status is SendStatus.FLUSH_SLAVE_TIMEOUT


def test_slow_broker_is_isolated_for_a_while() -> None:
    world = two_brokers()
    producer = producer_in(world)
    slow = world.groups["a"].members[0]
    answer = slow.handlers[RequestCode.SEND_MESSAGE_V2]
    late: list[Command] = []
    slow.handlers[RequestCode.SEND_MESSAGE_V2] = late.append
    tickets = [producer.send(Message("T", b"x"), world.now) for _ in range(4)]
    world.run(1_500)
    for command in late:
        stored = answer(command)
        assert stored is not None
        slow.say(next(iter(slow.links)), stored)
    world.until(lambda: all(ticket.done for ticket in tickets))
    slow.handlers[RequestCode.SEND_MESSAGE_V2] = answer
    more = [producer.send(Message("T", b"x"), world.now) for _ in range(8)]
    world.until(lambda: all(ticket.done for ticket in more))
    assert {ticket.result().queue.broker_name for ticket in more} == {"b"}
    world.run(31_000)
    again = [producer.send(Message("T", b"x"), world.now) for _ in range(8)]
    world.until(lambda: all(ticket.done for ticket in again))
    assert {ticket.result().queue.broker_name for ticket in again} == {"a", "b"}


def test_returned_broker_is_used_again_before_its_isolation_ends() -> None:
    world = two_brokers()
    producer = producer_in(world)
    a = world.groups["a"].members[0]
    a.refuse()
    first = [producer.send(Message("T", b"x"), world.now) for _ in range(4)]
    world.until(lambda: all(ticket.done for ticket in first))
    a.recover()
    world.run(6_000)
    again = [producer.send(Message("T", b"x"), world.now) for _ in range(4)]
    world.until(lambda: all(ticket.done for ticket in again))
    assert {ticket.result().queue.broker_name for ticket in again} == {"a", "b"}


def test_unknown_topic_is_sent_where_the_template_topic_is() -> None:
    world = World()
    world.broker("a")
    world.topic("TBW102", 8)
    ticket = producer_in(world).send(Message("New", b"x"), world.now)
    world.until(lambda: ticket.done)
    assert ticket.result().queue.queue_id < 4


def test_unknown_topic_without_a_template_is_an_error() -> None:
    world = World()
    world.broker("a")
    ticket = producer_in(world).send(Message("New", b"x"), world.now)
    world.until(lambda: ticket.done)
    assert isinstance(ticket.error, NoRoute)


def test_second_name_server_is_used_when_the_first_is_down() -> None:
    world = World(name_servers=2)
    world.broker("a")
    world.topic("T", 1)
    world.name_servers[0].refuse()
    ticket = producer_in(world).send(Message("T", b"x"), world.now)
    world.until(lambda: ticket.done)
    assert ticket.result().status is SendStatus.SEND_OK


def test_second_name_server_is_used_when_the_first_is_shutting_down() -> None:
    world = World(name_servers=2)
    world.broker("a")
    world.topic("T", 1)
    producer = producer_in(world)
    world.name_servers[0].handlers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = Command.go_away
    ticket = producer.send(Message("T", b"x"), world.now)
    world.until(lambda: ticket.done)
    assert ticket.result().status is SendStatus.SEND_OK
    world.name_servers[1].handlers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = Command.go_away
    ticket = producer.send(Message("U", b"x"), world.now)
    world.until(lambda: ticket.done, 16_000)
    assert isinstance(ticket.error, NotConnected) and "is shutting down" in str(ticket.error)


def test_key_chooses_the_same_queue_each_time_and_no_other_on_failure() -> None:
    world = two_brokers()
    producer = producer_in(world)
    tickets = [producer.send(Message("T", b"x"), world.now, select=by_hash("user-7")) for _ in range(5)]
    world.until(lambda: all(ticket.done for ticket in tickets))
    chosen = {ticket.result().queue for ticket in tickets}
    assert len(chosen) == 1
    world.groups[next(iter(chosen)).broker_name].members[0].refuse()
    world.settle()
    failed = producer.send(Message("T", b"x"), world.now, select=by_hash("user-7"))
    world.until(lambda: failed.done)
    assert isinstance(failed.error, NotConnected)


def test_batch_gives_a_result_for_each_message() -> None:
    world = World()
    broker = world.broker("a")
    world.topic("T", 1)
    tickets = producer_in(world).send_batch([Message("T", b"%d" % n, tags="t") for n in range(5)], world.now)
    world.until(lambda: all(ticket.done for ticket in tickets))
    results = [result for ticket in tickets for result in ticket.result()]
    assert [result.queue_offset for result in results] == [0, 1, 2, 3, 4]
    assert [result.offset_message_id for result in results] == ["ID0", "ID1", "ID2", "ID3", "ID4"]
    assert len({result.unique_key for result in results}) == 5
    assert broker.of(RequestCode.SEND_BATCH_MESSAGE)[0].fields["m"] == "true"


def test_large_batch_is_split_into_several_requests() -> None:
    world = World()
    broker = world.broker("a")
    world.topic("T", 1)
    messages = [Message("T", bytes(1_000)) for _ in range(10)]
    tickets = producer_in(world, batch_bytes_max=3_500).send_batch(messages, world.now)
    world.until(lambda: all(ticket.done for ticket in tickets))
    assert sum(len(ticket.result()) for ticket in tickets) == 10
    assert len(broker.of(RequestCode.SEND_BATCH_MESSAGE)) == len(tickets) == 4
    assert max(len(command.body) for command in broker.requests) <= 3_500


def test_oneway_is_settled_without_an_answer() -> None:
    world = World()
    broker = world.broker("a")
    world.topic("T", 1)
    ticket = producer_in(world).send_oneway(Message("T", b"x"), world.now)
    world.until(lambda: ticket.done)
    assert ticket.error is None
    world.until(lambda: broker.of(RequestCode.SEND_MESSAGE_V2))
    assert broker.of(RequestCode.SEND_MESSAGE_V2)[0].is_oneway


def test_closed_producer_refuses_messages() -> None:
    world = World()
    world.broker("a")
    world.topic("T", 1)
    producer = producer_in(world)
    producer.close()
    with pytest.raises(LocalError):
        producer.send(Message("T", b"x"), world.now)


def test_client_that_ends_fails_each_message_by_whether_it_was_sent() -> None:
    world = two_brokers()
    producer = producer_in(world, timeout_ms=1_000, retry_ms=600_000)
    first = producer.send(Message("T", b"x"), world.now)
    world.until(lambda: first.done)
    for name in "ab":
        world.groups[name].members[0].health = Health.SILENT
    between_attempts = producer.send(Message("T", b"x"), world.now)
    world.run(5_000)
    sent = producer.send(Message("T", b"x"), world.now)
    world.run(100)
    assert not (between_attempts.done or sent.done)
    world.node.end(world.now)
    for ticket in (between_attempts, sent):
        with pytest.raises(OutcomeUnknown, match="may have been carried out"):
            ticket.result()
    assert producer.in_flight == 0


def test_client_that_ends_fails_messages_that_were_not_sent_as_such() -> None:
    world = two_brokers()
    producer = producer_in(world)
    parked = producer.send(Message("T", b"x"), world.now)
    world.node.end(world.now)
    with pytest.raises(ClosedError, match="nothing was sent"):
        parked.result()
    world = two_brokers()
    producer = producer_in(world)
    route = world.node.routes.fetch("T", world.now)
    world.until(lambda: route.done)
    connecting = producer.send(Message("T", b"x"), world.now)
    world.node.end(world.now)
    with pytest.raises(NotConnected):
        connecting.result()


def test_invalid_response_to_a_send_is_an_unknown_outcome() -> None:
    world = World()
    broker = world.broker("a")
    world.topic("T", 1)
    broker.handlers[RequestCode.SEND_MESSAGE_V2] = lambda command: command.answer(0)
    ticket = producer_in(world, retries=0).send(Message("T", b"x"), world.now)
    world.until(lambda: ticket.done)
    assert isinstance(ticket.error, OutcomeUnknown)
