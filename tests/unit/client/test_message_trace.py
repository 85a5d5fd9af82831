"""Traces that producers and consumers make: what they say, and that they change nothing else."""

import logging

import pytest

from tandemq.client.consumer.delivery import Delivery
from tandemq.client.consumer.push_machine import PushConsumerCore
from tandemq.client.core.settings import ConsumeFrom, ConsumerOptions, ProducerOptions
from tandemq.codec.message_trace import TraceKind, TraceMessageType, TraceRecord, decode_traces
from tandemq.errors import ConfigError, RemoteError
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import Message
from tandemq.model.topic import TRACE_TOPIC
from tests.unit.client.world import WALL_MS, Broker, World

SEND = Code.SEND_MESSAGE_V2


def one_broker(fields: dict[str, str] | None = None, *, has_trace_topic: bool = True) -> tuple[World, Broker]:
    """A broker whose answers to sends have these fields too."""
    world = World()
    broker = world.broker("a")
    world.topic("T")
    if has_trace_topic:
        world.topic(TRACE_TOPIC)
    for code in (SEND, Code.SEND_BATCH_MESSAGE):
        send = broker.handlers[code]

        def answer(command: Command, send: object = send) -> Command | None:
            found: Command = send(command)  # type: ignore[operator]
            found.fields.update(fields or {})
            return found

        broker.handlers[code] = answer
    return world, broker


def traces(broker: Broker, topic: str = TRACE_TOPIC) -> list[TraceRecord]:
    sent = [command for command in broker.of(SEND) if command.fields["b"] == topic]
    found = [decode_traces(command.body.decode()) for command in sent]
    assert not any(lines.unreadable for lines in found)
    return [record for lines in found for record in lines.records]


def test_send_is_traced_with_all_fields() -> None:
    world, broker = one_broker({"MSG_REGION": "north", "TRACE_ON": "true"})
    producer = world.node.producer(ProducerOptions(group="orders", trace=True))
    ticket = producer.send(Message("T", b"12345", tags="paid", keys=["k1", "k2"]), world.now)
    world.until(lambda: ticket.done)
    world.run(1_000)
    result = ticket.result()
    [record] = traces(broker)
    assert record == TraceRecord(
        kind=TraceKind.PUB,
        time_ms=record.time_ms,
        region="north",
        group="orders",
        topic="T",
        message_id=result.unique_key,
        tags="paid",
        keys="k1 k2",
        store_host=broker.address,
        body_bytes=5,
        cost_ms=record.cost_ms,
        offset_message_id=result.offset_message_id,
    )
    assert WALL_MS <= record.time_ms <= world.now.wall_ms
    [sent] = [command for command in broker.of(SEND) if command.fields["b"] == TRACE_TOPIC]
    assert sent.fields["a"] == "_INNER_TRACE_PRODUCER-orders-PRODUCE-1"
    assert f"KEYS\x01{result.unique_key} k1 k2\x02" in sent.fields["i"]


def test_message_types_statuses_and_compressed_size_are_traced() -> None:
    world, broker = one_broker()
    producer = world.node.producer(ProducerOptions(group="g", trace="MyTraces", compress_above_bytes=100))
    world.topic("MyTraces")
    messages = [
        Message("T", b"a", delay_level=3),
        Message("T", b"a", properties={"TRAN_MSG": "true"}),
        Message("T", b"b" * 1000),
    ]
    tickets = [producer.send(message, world.now) for message in messages]
    world.until(lambda: all(ticket.done for ticket in tickets))
    usual = broker.handlers[SEND]
    broker.handlers[SEND] = lambda command: (
        command.answer(ResponseCode.FLUSH_DISK_TIMEOUT, fields=(usual(command) or command).fields)
        if command.fields["b"] == "T"
        else usual(command)
    )
    ticket = producer.send(Message("T", b"c"), world.now)
    world.until(lambda: ticket.done)
    world.run(1_000)
    found = traces(broker, "MyTraces")
    assert [record.message_type for record in found] == [TraceMessageType.DELAYED, TraceMessageType.HALF, 0, 0]
    assert found[2].body_bytes < 100
    assert [record.success for record in found] == [True, True, True, False]


def test_each_message_of_a_batch_is_traced() -> None:
    world, broker = one_broker()
    producer = world.node.producer(ProducerOptions(group="g", trace=True))
    [ticket] = producer.send_batch([Message("T", b"x" * n, keys=[f"k{n}"]) for n in range(1, 4)], world.now)
    world.until(lambda: ticket.done)
    world.run(1_000)
    keys = [result.unique_key for result in ticket.result()]
    assert [(record.message_id, record.keys, record.body_bytes) for record in traces(broker)] == [
        (keys[0], "k1", 1),
        (keys[1], "k2", 2),
        (keys[2], "k3", 3),
    ]


@pytest.mark.parametrize(
    ("trace", "topic", "fields"), [(False, "T", {}), (True, TRACE_TOPIC, {}), (True, "T", {"TRACE_ON": "false"})]
)
def test_untraced_sends(trace: bool, topic: str, fields: dict[str, str]) -> None:
    world, broker = one_broker(fields)
    producer = world.node.producer(ProducerOptions(group="g", trace=trace))
    ticket = producer.send(Message(topic, b"x"), world.now)
    world.until(lambda: ticket.done)
    world.run(2_000)
    assert [command.body for command in broker.of(SEND)] == [b"x"]


def test_failed_and_oneway_sends_are_not_traced() -> None:
    world, broker = one_broker()
    usual = broker.handlers[SEND]
    broker.handlers[SEND] = lambda command: (
        command.answer(ResponseCode.MESSAGE_ILLEGAL) if command.body == b"bad" else usual(command)
    )
    producer = world.node.producer(ProducerOptions(group="g", trace=True))
    ticket = producer.send(Message("T", b"bad"), world.now)
    world.until(lambda: ticket.done)
    assert isinstance(ticket.error, RemoteError)
    producer.send_oneway(Message("T", b"x"), world.now)
    world.run(2_000)
    assert traces(broker) == []


def test_sends_do_not_notice_that_the_trace_topic_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    world, broker = one_broker(has_trace_topic=False)
    producer = world.node.producer(ProducerOptions(group="g", trace=True))
    tickets = [producer.send(Message("T", b"x"), world.now) for _ in range(3_000)]
    world.until(lambda: all(ticket.done for ticket in tickets))
    assert all(ticket.error is None for ticket in tickets)
    asked = len(world.name_server.requests)
    world.run(10_000)
    assert len(world.name_server.requests) - asked <= 20, "the missing topic is asked for with pauses"
    assert any(record.getMessage().startswith("message traces dropped") for record in caplog.records)
    assert len(broker.of(SEND)) == 3_000


def test_closing_sends_the_traces_that_wait() -> None:
    world, broker = one_broker()
    producer = world.node.producer(ProducerOptions(group="g", trace=True))
    ticket = producer.send(Message("T", b"x"), world.now)
    closed = world.node.close(world.now)
    assert world.until(lambda: closed.done) < 400, "before their time"
    assert ticket.done
    assert len(traces(broker)) == 1


# Consumers.


def consumer_in(world: World, **options: object) -> PushConsumerCore:
    settings = {"group": "billing", "consume_from": ConsumeFrom.FIRST, "trace": True, **options}
    consumer = world.node.push_consumer(ConsumerOptions(**settings), world.now)  # type: ignore[arg-type]
    consumer.subscribe("T", "*", world.now)
    return consumer


def take(world: World, consumer: PushConsumerCore) -> Delivery:
    found: list[Delivery] = []

    def one() -> bool:
        delivery = consumer.next_delivery(world.now)
        found.extend([delivery] if delivery is not None else [])
        return bool(found)

    world.until(one)
    return found[0]


def test_delivery_and_its_end_are_traced() -> None:
    world, broker = one_broker()
    broker.store("T", 0, b"x", reconsume_times=2, UNIQ_KEY="ID1", KEYS="k1", MSG_REGION="north")
    consumer = consumer_in(world)
    delivery = take(world, consumer)
    began = world.now.wall_ms
    world.run(700)
    [before] = traces(broker)
    assert before == TraceRecord(
        kind=TraceKind.SUB_BEFORE,
        time_ms=began,
        region="north",
        group="billing",
        request_id=before.request_id,
        message_id="ID1",
        retry_times=2,
        keys="k1",
    )
    consumer.ack(delivery, world.now)
    consumer.ack(delivery, world.now)
    world.run(1_000)
    [_, after] = traces(broker)
    assert after == TraceRecord(
        kind=TraceKind.SUB_AFTER,
        request_id=before.request_id,
        message_id="ID1",
        cost_ms=700,
        success=True,
        keys="k1",
        time_ms=began + 700,
        group="billing",
    )


def test_delivery_that_is_sent_back_is_traced_as_failed_without_region_and_keys() -> None:
    world, broker = one_broker()
    broker.store("T", 0, b"x")
    consumer = consumer_in(world)
    delivery = take(world, consumer)
    consumer.retry(delivery, world.now)
    world.run(1_000)
    [before, after] = traces(broker)
    assert (before.region, before.keys) == ("DefaultRegion", None)
    assert (after.success, after.context_code) == (False, 4)
    assert before.message_id == delivery.message.offset_message_id


def test_orderly_redelivery_is_a_delivery_of_its_own() -> None:
    world, broker = one_broker()
    broker.store("T", 0, b"x", UNIQ_KEY="ID1")
    consumer = consumer_in(world, orderly=True)
    consumer.retry(take(world, consumer), world.now)
    consumer.ack(take(world, consumer), world.now)
    world.run(1_000)
    found = traces(broker)
    assert [(record.kind.value, record.retry_times, record.success) for record in found] == [
        ("SubBefore", 0, True),
        ("SubAfter", 0, False),
        ("SubBefore", 1, True),
        ("SubAfter", 0, True),
    ]
    assert found[0].request_id == found[1].request_id != found[2].request_id == found[3].request_id


@pytest.mark.parametrize(("trace", "properties"), [(False, {}), (True, {"TRACE_ON": "false"})])
def test_untraced_deliveries(trace: bool, properties: dict[str, str]) -> None:
    world, broker = one_broker()
    broker.store("T", 0, b"x", given=properties)
    consumer = consumer_in(world, trace=trace)
    consumer.ack(take(world, consumer), world.now)
    world.run(1_000)
    assert broker.of(SEND) == []


def test_invalid_trace_topic_and_traces_of_pull_consumers_are_refused() -> None:
    world = World()
    with pytest.raises(ConfigError, match=r"trace: .*illegal"):
        ProducerOptions(group="g", trace="my traces")
    with pytest.raises(ConfigError, match="pull consumers make no message traces"):
        world.node.pull_consumer(ConsumerOptions(group="g", trace=True))


def test_producer_and_consumer_of_one_client_have_trace_producers_of_their_own() -> None:
    world, _ = one_broker()
    group = "g" * 250
    world.node.producer(ProducerOptions(group=group, trace=True))
    world.node.push_consumer(ConsumerOptions(group=group, trace=True), world.now)
    beat = world.node.heartbeat().body.decode()
    assert beat.count("_INNER_TRACE_PRODUCER-ggg") == 2
