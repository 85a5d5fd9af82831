"""Batches that a producer makes by itself, without sockets."""

import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.client.core.calls import Ticket
from tandemq.client.core.settings import ProducerOptions
from tandemq.client.producer.machine import ProducerCore, by_hash
from tandemq.codec.record.record import decode_batch
from tandemq.errors import (
    ClosedError,
    ConfigError,
    InvalidMessage,
    LocalError,
    NoRoute,
    OutcomeUnknown,
    RecordTooLarge,
    RemoteError,
)
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import Message, MessageQueue, SendResult, decode_properties
from tests.unit.client.world import Broker, Health, World

Tickets = list[Ticket[SendResult]]


def sender(world: World, **options: int) -> ProducerCore:
    settings = {"linger_ms": 5, "compress_above_bytes": 1 << 30, **options}
    return world.node.producer(ProducerOptions(group="p", **settings))  # type: ignore[arg-type]


def one_broker(queues: int = 2) -> tuple[World, Broker]:
    """A world whose client is connected and has the route."""
    world = World()
    broker = world.broker("a")
    world.topic("T", queues)
    connected = world.node.producer(ProducerOptions(group="connects")).send(Message("T", b"connects"), world.now)
    world.until(lambda: connected.done)
    broker.requests.clear()
    return world, broker


def sends(broker: Broker) -> list[Command]:
    return [c for c in broker.requests if c.code in {RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}]


def bodies(command: Command) -> list[bytes]:
    if command.code == RequestCode.SEND_MESSAGE_V2:
        return [command.body]
    return [part.body for part in decode_batch(command.body)]


def stored_at(broker: Broker, result: SendResult) -> bytes:
    """Return the body of the record that a result names."""
    record, _ = broker.group.queues[result.queue.topic, result.queue.queue_id].records[result.queue_offset]
    return bytes(record)


def until_done(world: World, tickets: Tickets) -> None:
    world.until(lambda: all(ticket.done for ticket in tickets), 60_000)


def test_messages_of_a_topic_share_a_request_after_the_time_to_linger() -> None:
    world, broker = one_broker()
    producer = sender(world)
    tickets = [producer.send(Message("T", b"%d" % n, tags=f"t{n}", keys=[f"k{n}"]), world.now) for n in range(3)]
    world.run(4, step_ms=1)
    assert not sends(broker)
    world.run(1)
    (request,) = sends(broker)
    assert bodies(request) == [b"0", b"1", b"2"]
    until_done(world, tickets)
    results = [ticket.result() for ticket in tickets]
    first = results[0].queue_offset
    assert [result.queue_offset for result in results] == [first, first + 1, first + 2]
    found = [decode_properties(part.properties.decode()) for part in decode_batch(request.body)]
    assert [(each["TAGS"], each["KEYS"], each["UNIQ_KEY"]) for each in found] == [
        (f"t{n}", f"k{n}", results[n].unique_key) for n in range(3)
    ]


def test_one_message_is_sent_as_without_batches() -> None:
    world, broker = one_broker()
    ticket = sender(world).send(Message("T", b"0"), world.now)
    until_done(world, [ticket])
    assert [command.code for command in sends(broker)] == [RequestCode.SEND_MESSAGE_V2]
    assert b"0" in stored_at(broker, ticket.result())


def test_full_batch_does_not_linger_and_none_exceeds_the_limit() -> None:
    world, broker = one_broker()
    producer = sender(world, linger_ms=10_000, batch_bytes=1_000)
    for _ in range(20):
        producer.send(Message("T", b"x" * 100), world.now)
    world.settle()
    assert len(sends(broker)) >= 3
    assert all(len(command.body) <= 1_000 for command in sends(broker))
    assert sum(len(bodies(command)) for command in sends(broker)) < 20
    world.run(10_000)
    assert sum(len(bodies(command)) for command in sends(broker)) == 20


def test_topics_and_choices_of_queue_have_requests_of_their_own() -> None:
    world, broker = one_broker()
    world.topic("U", 1)
    producer = sender(world)
    queue = MessageQueue("T", "a", 1)
    tickets = [
        producer.send(Message("T", b"t"), world.now),
        producer.send(Message("U", b"u"), world.now),
        producer.send(Message("T", b"q"), world.now, select=lambda _: queue),
        producer.send(Message("T", b"w", wait_store_ok=False), world.now),
        producer.send(Message("T", b"t"), world.now),
    ]
    until_done(world, tickets)
    assert sorted(map(bodies, sends(broker))) == [[b"q"], [b"t", b"t"], [b"u"], [b"w"]]
    assert tickets[2].result().queue == queue


@pytest.mark.parametrize(
    "message",
    [
        Message("T", b"x", delay_level=3),
        Message("T", b"x", delay=60),
        Message("T", b"x", priority=1),
        Message("%RETRY%g", b"x"),
        Message("T", b"x", properties={"MSG_TYPE": "reply", "REPLY_TO_CLIENT": "c"}),
    ],
)
def test_messages_that_brokers_refuse_in_batches_are_sent_at_once(message: Message) -> None:
    world, broker = one_broker()
    world.topic("%RETRY%g", 1)
    producer = sender(world, linger_ms=10_000)
    producer.send(message, world.now)
    producer.send(message, world.now)
    world.run(500)
    assert len([command for command in broker.requests if command.body == b"x"]) == 2


def test_invalid_message_is_refused_without_harm_to_others() -> None:
    world, broker = one_broker()
    producer = sender(world, body_bytes_max=10)
    first = producer.send(Message("T", b"0"), world.now)
    with pytest.raises(RecordTooLarge):
        producer.send(Message("T", b"x" * 11), world.now)
    with pytest.raises(InvalidMessage):
        producer.send(Message("bad topic", b"x"), world.now)
    last = producer.send(Message("T", b"1"), world.now)
    until_done(world, [first, last])
    assert bodies(*sends(broker)) == [b"0", b"1"]


def test_selector_that_fails_fails_its_message_only() -> None:
    world, _ = one_broker()
    producer = sender(world)

    def fail(_queues: list[MessageQueue]) -> MessageQueue:
        raise LocalError("no")

    good, bad = (producer.send(Message("T", b"0"), world.now, select=select) for select in (by_hash("k"), fail))
    until_done(world, [good, bad])
    assert good.error is None
    assert isinstance(bad.error, LocalError)


def refusing(broker: Broker, is_bad: Callable[[bytes], bool]) -> None:
    """Have a broker refuse requests with a bad message, as RocketMQ does with one that is too large."""
    send = broker.send

    def handle(command: Command) -> Command:
        if any(is_bad(body) for body in bodies(command)):
            return command.answer(ResponseCode.MESSAGE_ILLEGAL, remark="too large")
        return send(command)

    broker.handlers[RequestCode.SEND_MESSAGE_V2] = broker.handlers[RequestCode.SEND_BATCH_MESSAGE] = handle


@pytest.mark.parametrize("select", [None, by_hash("k")])
def test_refused_message_of_a_batch_fails_alone(select: Callable[[list[MessageQueue]], MessageQueue] | None) -> None:
    world, broker = one_broker()
    refusing(broker, lambda body: body == b"5")
    producer = sender(world)
    tickets = [producer.send(Message("T", b"%d" % n), world.now, select=select) for n in range(9)]
    until_done(world, tickets)
    assert [n for n, ticket in enumerate(tickets) if ticket.error is not None] == [5]
    assert isinstance(tickets[5].error, RemoteError)
    for n, ticket in enumerate(tickets):
        assert n == 5 or b"%d" % n in stored_at(broker, ticket.result())
    if select is not None:
        offsets = [ticket.result().queue_offset for n, ticket in enumerate(tickets) if n != 5]
        assert offsets == sorted(offsets)


def test_error_of_a_request_is_that_of_each_message() -> None:
    world, broker = one_broker()
    producer = sender(world, retries=0)
    broker.health = Health.SILENT
    tickets = [producer.send(Message("T", b"%d" % n), world.now) for n in range(3)]
    until_done(world, tickets)
    assert all(isinstance(ticket.error, OutcomeUnknown) for ticket in tickets)


def test_batch_of_any_queue_is_retried_with_the_same_keys() -> None:
    world, broker = one_broker()
    producer = sender(world)
    broker.handlers[RequestCode.SEND_BATCH_MESSAGE] = lambda command: command.answer(ResponseCode.SYSTEM_BUSY)
    tickets = [producer.send(Message("T", b"%d" % n), world.now) for n in range(3)]
    world.run(1_000)
    assert not any(ticket.done for ticket in tickets)
    broker.handlers[RequestCode.SEND_BATCH_MESSAGE] = broker.send
    until_done(world, tickets)
    assert len({command.body for command in sends(broker)}) == 1


def test_batch_of_a_queue_waits_for_the_one_in_flight() -> None:
    world, broker = one_broker()
    producer = sender(world)
    held: list[Command] = []
    broker.handlers[RequestCode.SEND_MESSAGE_V2] = broker.handlers[RequestCode.SEND_BATCH_MESSAGE] = held.append
    first = producer.send(Message("T", b"0"), world.now, select=by_hash("k"))
    world.run(10)
    later = [producer.send(Message("T", b"%d" % n), world.now, select=by_hash("k")) for n in (1, 2)]
    world.run(100)
    assert [bodies(command) for command in held] == [[b"0"]]
    broker.handlers[RequestCode.SEND_BATCH_MESSAGE] = broker.send
    (link,) = broker.links
    broker.say(link, broker.send(held[0]))
    until_done(world, [first, *later])
    assert [bodies(command) for command in sends(broker)] == [[b"0"], [b"1", b"2"]]


def test_compressed_body_is_sent_alone_in_its_turn() -> None:
    world, broker = one_broker()
    producer = sender(world, compress_above_bytes=1_000)
    texts = [b"0", b"x" * 5_000, b"1", b"2"]
    tickets = [producer.send(Message("T", text), world.now, select=by_hash("k")) for text in texts]
    until_done(world, tickets)
    assert [len(bodies(command)) for command in sends(broker)] == [1, 1, 2]
    offsets = [ticket.result().queue_offset for ticket in tickets]
    assert offsets == sorted(offsets)


def test_messages_with_a_chosen_queue_wait_for_the_route_in_order() -> None:
    world = World()
    broker = world.broker("a")
    world.topic("T", 4)
    producer = sender(world, linger_ms=1)
    tickets = [producer.send(Message("T", b"%d" % n), world.now, select=by_hash("k")) for n in range(3)]
    world.run(2)
    tickets += [producer.send(Message("T", b"%d" % n), world.now, select=by_hash("k")) for n in range(3, 6)]
    until_done(world, tickets)
    assert [body for command in sends(broker) for body in bodies(command)] == [b"%d" % n for n in range(6)]


def test_messages_of_a_topic_without_a_route_fail() -> None:
    world = World()
    world.broker("a")
    producer = sender(world, retries=0)
    tickets = [producer.send(Message("None", b"0"), world.now, select=select) for select in (None, by_hash("k"))]
    until_done(world, tickets)
    assert all(isinstance(ticket.error, NoRoute) for ticket in tickets)


def test_flush_sends_what_lingers() -> None:
    world, _ = one_broker()
    producer = sender(world, linger_ms=60_000)
    ticket = producer.send(Message("T", b"0"), world.now)
    world.run(1_000)
    assert not ticket.done
    flushed = producer.flush(world.now)
    world.until(lambda: flushed.done)
    assert ticket.done


def test_close_sends_what_lingers_and_refuses_more() -> None:
    world, broker = one_broker()
    producer = sender(world, linger_ms=60_000, batch_bytes=100)
    tickets = [producer.send(Message("T", b"x" * 50), world.now, select=by_hash("k")) for _ in range(5)]
    closing = world.node.close(world.now)
    world.settle()
    with pytest.raises(ClosedError):
        producer.send(Message("T", b"late"), world.now)
    world.until(lambda: closing.done)
    assert all(ticket.done and ticket.error is None for ticket in tickets)
    assert len(sends(broker)) == 5


def test_end_fails_what_lingers() -> None:
    world, _ = one_broker()
    producer = sender(world, linger_ms=60_000)
    tickets = [producer.send(Message("T", b"x"), world.now, select=select) for select in (None, by_hash("k"))]
    tickets.append(producer.send(Message("Unknown", b"x"), world.now, select=by_hash("k")))
    world.node.end(world.now)
    assert all(isinstance(ticket.error, ClosedError) for ticket in tickets)
    assert producer.in_flight == 0


@pytest.mark.parametrize("options", [{"linger_ms": -1}, {"batch_bytes": 0}, {"close_wait_s": -1}])
def test_limits_are_checked(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        ProducerOptions(group="p", **options)  # type: ignore[arg-type]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from(["", "a", "b", "c"]), st.integers(0, 300)),
        st.tuples(st.just("wait"), st.just(""), st.integers(0, 30)),
    ),
    max_size=60,
)


@given(steps=STEPS, linger_ms=st.integers(1, 10), batch_bytes=st.integers(1, 2_000), bad=st.integers(0, 12))
def test_each_message_is_stored_once_in_order_and_has_its_own_result(
    steps: list[tuple[str, str, int]], linger_ms: int, batch_bytes: int, bad: int
) -> None:
    """Bodies are a number and padding; the broker refuses those whose number is a multiple of `bad`."""
    world, broker = one_broker(queues=3)

    def is_bad(body: bytes) -> bool:
        plain = zlib.decompress(body) if body.startswith(b"x") else body
        return bad > 0 and int(plain.split()[0]) % bad == 0

    refusing(broker, is_bad)
    producer = sender(world, linger_ms=linger_ms, batch_bytes=batch_bytes, compress_above_bytes=250)
    sent: list[tuple[str, Ticket[SendResult]]] = []
    for kind, key, amount in steps:
        if kind == "wait":
            world.run(amount)
            continue
        body = b"%d " % (len(sent) + 1) + bytes(range(256))[: amount % 256] * 2
        select = by_hash(key) if key else None
        sent.append((key, producer.send(Message("T", body), world.now, select=select)))
    flushed = producer.flush(world.now)
    world.until(lambda: flushed.done, 60_000)
    places: dict[str, list[tuple[MessageQueue, int]]] = {}
    for number, (key, ticket) in enumerate(sent, 1):
        assert ticket.done
        if bad and number % bad == 0:
            assert isinstance(ticket.error, RemoteError)
            continue
        result = ticket.result()
        assert result.unique_key.encode() in stored_at(broker, result)
        places.setdefault(key, []).append((result.queue, result.queue_offset))
    everywhere: list[tuple[MessageQueue, int]] = [place for found in places.values() for place in found]
    assert len(set(everywhere)) == len(everywhere)
    for key, found in places.items():
        assert not key or found == sorted(found)
    for command in sends(broker):
        assert len(bodies(command)) == 1 or len(command.body) <= batch_bytes
    assert producer.in_flight == 0
