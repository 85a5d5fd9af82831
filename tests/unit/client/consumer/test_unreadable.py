"""Unreadable and damaged messages: how consumers handle them and the messages around them."""

import zlib
from collections.abc import Callable
from typing import TypeVar

import pytest

from tandemq.client.admin import queries
from tandemq.client.consumer.push_machine import PushConsumerCore
from tandemq.client.core.operations import Steps
from tandemq.client.core.pulled import decode_pulled
from tandemq.client.core.settings import ConsumeFrom, ConsumerOptions, MessageModel
from tandemq.codec.record.record import INFLATED_BYTES_MAX
from tandemq.errors import ProtocolError, RemoteError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue, SysFlag, decode_properties
from tests.unit.client.consumer.test_push_machine import consumer_in, one_broker, take
from tests.unit.client.world import Broker, World

T = TypeVar("T")
QUEUE = MessageQueue("T", "a", 0)
COMPRESSED = int(SysFlag.COMPRESSED)
NO_ZLIB = b"this is no zlib"
BOMB = zlib.compress(bytes(INFLATED_BYTES_MAX + 1), 1)
UNREADABLE = [
    (NO_ZLIB, COMPRESSED, "cannot be decompressed"),
    (zlib.compress(b"cut off here")[:-3], COMPRESSED, "its end is missing"),
    (BOMB, COMPRESSED, "inflates to more than"),
    (b"lz4?", COMPRESSED | int(SysFlag.COMPRESSION_LZ4), "only zlib"),
    (b"?", COMPRESSED | int(SysFlag.COMPRESSION_MASK), "only zlib"),
]


def store_around(broker: Broker, body: bytes = NO_ZLIB, sys_flag: int = COMPRESSED) -> None:
    """Store sound messages, an unreadable one, and sound messages, all in the response of one pull."""
    broker.store("T", 0, b"before")
    broker.store("T", 0, body, sys_flag=sys_flag, KEYS="order-42", UNIQ_KEY="U42")
    broker.store("T", 0, b"behind")


def take_all(world: World, consumer: PushConsumerCore, count: int) -> list[bytes]:
    bodies = []
    for _ in range(count):
        (delivery,) = take(world, consumer)
        bodies.append(delivery.message.body)
        consumer.ack(delivery, world.now)
    return bodies


def damage(broker: Broker, offset: int) -> Callable[[], None]:
    """Flip a bit in the body of a stored record; returns a function that repairs it."""
    records = broker.group.queues["T", 0].records
    record, tag = records[offset]
    records[offset] = (record[:90] + bytes([record[90] ^ 1]) + record[91:], tag)

    def repair() -> None:
        records[offset] = (record, tag)

    return repair


@pytest.mark.parametrize(("body", "sys_flag", "reason"), UNREADABLE)
@pytest.mark.parametrize("orderly", [False, True])
def test_unreadable_message_is_sent_back_and_those_around_it_are_delivered(
    body: bytes, sys_flag: int, reason: str, orderly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    world, broker = one_broker()
    store_around(broker, body, sys_flag)
    consumer = consumer_in(world, orderly=orderly)
    assert take_all(world, consumer, 2) == [b"before", b"behind"]
    world.until(lambda: broker.offsets.get(("billing", "T", 0)) == 3)
    (back,) = broker.sent_back
    assert (back.fields["offset"], back.fields["originTopic"]) == ("1000", "T")
    assert back.fields["delayLevel"] == ("-1" if orderly else "0")
    (line,) = [record.getMessage() for record in caplog.records if "unreadable" in record.getMessage()]
    for part in ("topic=T", "broker=a", "queue=0", "offset=1", "order-42", "U42", reason):
        assert part in line


def test_unreadable_message_that_cannot_be_sent_back_is_sent_as_new_with_its_stored_bytes() -> None:
    world, broker = one_broker()
    store_around(broker, b"lz4?", COMPRESSED | int(SysFlag.COMPRESSION_LZ4))
    broker.handlers[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda command: command.answer(ResponseCode.SYSTEM_ERROR)
    consumer = consumer_in(world)
    assert take_all(world, consumer, 2) == [b"before", b"behind"]
    world.until(lambda: broker.of(RequestCode.SEND_MESSAGE_V2))
    (sent,) = broker.of(RequestCode.SEND_MESSAGE_V2)
    assert (sent.body, sent.fields["b"]) == (b"lz4?", "%RETRY%billing")
    assert int(sent.fields["f"]) == COMPRESSED | int(SysFlag.COMPRESSION_LZ4)
    assert decode_properties(sent.fields["i"])["UNIQ_KEY"] == "U42"


def test_committed_message_that_cannot_be_sent_back_is_sent_as_new_without_its_transaction() -> None:
    world, broker = one_broker()
    broker.store("T", 0, b"committed", sys_flag=int(SysFlag.TRANSACTION_COMMIT), TRAN_MSG="true", UNIQ_KEY="U43")
    broker.handlers[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda command: command.answer(ResponseCode.SYSTEM_ERROR)
    consumer = consumer_in(world)
    (delivery,) = take(world, consumer)
    consumer.retry(delivery, world.now)
    world.until(lambda: broker.of(RequestCode.SEND_MESSAGE_V2))
    (sent,) = broker.of(RequestCode.SEND_MESSAGE_V2)
    assert (sent.body, sent.fields["f"]) == (b"committed", "0")
    assert "TRAN_MSG" not in decode_properties(sent.fields["i"])


def test_unreadable_message_that_no_broker_accepts_is_retried_and_never_delivered() -> None:
    world, broker = one_broker()
    store_around(broker)
    for code in (RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2):
        broker.handlers[code] = lambda command: command.answer(ResponseCode.MESSAGE_ILLEGAL)
    consumer = consumer_in(world)
    assert take_all(world, consumer, 2) == [b"before", b"behind"]
    world.run(12_000)
    assert consumer.next_delivery() is None
    assert broker.offsets["billing", "T", 0] == 1
    broker.handlers[RequestCode.CONSUMER_SEND_MSG_BACK] = broker.send_back
    world.until(lambda: broker.offsets["billing", "T", 0] == 3, 15_000)
    assert len(broker.sent_back) == 1


def test_unreadable_retry_is_sent_back_again() -> None:
    world, broker = one_broker()
    broker.store("%RETRY%billing", 0, NO_ZLIB, 3, sys_flag=COMPRESSED, RETRY_TOPIC="T")
    consumer = consumer_in(world)
    world.until(lambda: broker.sent_back)
    assert broker.sent_back[0].fields["originTopic"] == "T"
    world.until(lambda: broker.offsets.get(("billing", "%RETRY%billing", 0)) == 1)
    assert consumer.next_delivery() is None


def test_unreadable_messages_do_not_block_an_orderly_queue() -> None:
    world, broker = one_broker()
    for _ in range(400):
        broker.store("T", 0, NO_ZLIB, sys_flag=COMPRESSED)
    broker.store("T", 0, b"behind")
    consumer = consumer_in(world, orderly=True, model=MessageModel.BROADCASTING)
    assert take_all(world, consumer, 1) == [b"behind"]


def test_broadcasting_member_passes_over_an_unreadable_message(caplog: pytest.LogCaptureFixture) -> None:
    world, broker = one_broker()
    store_around(broker)
    consumer = consumer_in(world, model=MessageModel.BROADCASTING)
    assert take_all(world, consumer, 2) == [b"before", b"behind"]
    world.until(lambda: world.node._storage.read("billing").get(QUEUE) == 3)
    assert broker.sent_back == []
    assert "unreadable message skipped" in caplog.text


def test_pull_consumer_passes_over_an_unreadable_message(caplog: pytest.LogCaptureFixture) -> None:
    world, broker = one_broker()
    store_around(broker)
    consumer = world.node.pull_consumer(ConsumerOptions(group="audit", consume_from=ConsumeFrom.FIRST))
    consumer.assign([QUEUE], world.now)
    found: list[bytes] = []

    def enough() -> bool:
        found.extend(message.body for _, message in consumer.take(10, world.now))
        return len(found) == 2

    world.until(enough)
    assert found == [b"before", b"behind"]
    assert consumer.position(QUEUE) == 3
    assert "unreadable message skipped" in caplog.text
    assert "offset=1" in caplog.text


def test_dead_letters_are_delivered_as_they_are_stored() -> None:
    world, broker = one_broker()
    world.topic("%DLQ%billing", 1)
    broker.store("%DLQ%billing", 0, NO_ZLIB, sys_flag=COMPRESSED)
    pulling = world.node.pull_consumer(ConsumerOptions(group="audit", consume_from=ConsumeFrom.FIRST))
    pulling.assign([MessageQueue("%DLQ%billing", "a", 0)], world.now)
    pushing = world.node.push_consumer(ConsumerOptions(group="mourner", consume_from=ConsumeFrom.FIRST), world.now)
    pushing.subscribe("%DLQ%billing", "*", world.now)
    (delivery,) = take(world, pushing)
    ((_, pulled),) = pulling.take(10, world.now)
    for message in (delivery.message, pulled):
        assert message.body == NO_ZLIB
        assert "cannot be decompressed" in message.fault


def test_message_before_damage_is_delivered_and_the_others_when_it_is_repaired(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, broker = one_broker()
    for body in (b"before", b"damaged", b"behind"):
        broker.store("T", 0, body)
    repair = damage(broker, 1)
    consumer = consumer_in(world)
    assert take_all(world, consumer, 1) == [b"before"]
    world.run(70_000)
    assert consumer.next_delivery() is None
    assert broker.offsets["billing", "T", 0] == 1
    assert broker.sent_back == []
    lines = [record.getMessage() for record in caplog.records if "damaged record" in record.getMessage()]
    assert len(lines) == 2
    assert "offset=1" in lines[0]
    repair()
    assert take_all(world, consumer, 2) == [b"damaged", b"behind"]


def test_damaged_record_is_read_from_another_member() -> None:
    world = World()
    master = world.broker("a")
    slave = world.broker("a", 1)
    world.topic("T", 1)
    for body in (b"before", b"damaged", b"behind"):
        master.store("T", 0, body)
    repair = damage(master, 1)

    def sound(command: Command) -> Command | None:
        repair()
        answer = slave.pull(command)
        damage(master, 1)
        return answer

    slave.handlers[RequestCode.PULL_MESSAGE] = sound
    consumer = consumer_in(world)
    assert take_all(world, consumer, 3) == [b"before", b"damaged", b"behind"]


def test_response_above_the_memory_budget_is_decoded_in_parts() -> None:
    world, broker = one_broker()
    body = bytes(INFLATED_BYTES_MAX // 2)
    for _ in range(5):
        broker.store("T", 0, zlib.compress(body, 1), sys_flag=COMPRESSED)
    consumer = consumer_in(world)
    for _ in range(5):
        world.run(500)
        (delivery,) = take(world, consumer)
        held = sum(assigned.process_queue.bytes_held for assigned in consumer.rebalance_service.active())
        assert held <= INFLATED_BYTES_MAX
        assert len(delivery.message.body) == len(body)
        consumer.ack(delivery, world.now)


@pytest.mark.parametrize("pulls", [False, True])
def test_decompressed_bodies_fit_into_the_limit_of_prefetched_bytes(*, pulls: bool) -> None:
    world, broker = one_broker()
    world.topic("T", queues=4)
    count, size = 24, 100_000
    bodies = [bytes([n]) * size for n in range(count)]
    for queue_id in range(4):
        for body in bodies:
            broker.store("T", queue_id, zlib.compress(body), sys_flag=COMPRESSED)
    limit = 450_000
    options = ConsumerOptions(group="g", consume_from=ConsumeFrom.FIRST, prefetch_bytes=limit)
    held: Callable[[], list[int]]
    if pulls:
        puller = world.node.pull_consumer(options)
        puller.assign([MessageQueue("T", "a", queue_id) for queue_id in range(4)], world.now)
        held = lambda: [reading.process_queue.bytes_held for reading in puller._readings.values()]  # noqa: E731

        def take_one() -> list[bytes]:
            return [polled.message.body for polled in puller.take(1, world.now)]
    else:
        consumer = world.node.push_consumer(options, world.now)
        consumer.subscribe("T", "*", world.now)
        held = lambda: [one.process_queue.bytes_held for one in consumer.rebalance_service.active()]  # noqa: E731

        def take_one() -> list[bytes]:
            delivery = consumer.next_delivery()
            if delivery is None:
                return []
            consumer.ack(delivery, world.now)
            return [delivery.message.body]

    found: list[bytes] = []
    for _ in range(4 * count):
        world.run(100)
        assert max(held()) < limit + size, "the last message may exceed it"
        found += take_one()
    assert sorted(found) == sorted(4 * bodies)


def test_pulled_records_end_at_damage_or_at_the_budget() -> None:
    world, broker = one_broker()
    for n in range(3):
        broker.store("T", 0, zlib.compress(bytes(1000 + n)), sys_flag=COMPRESSED)
    data = b"".join(record for record, _ in broker.group.queues["T", 0].records)
    whole = decode_pulled(data)
    assert ([len(m.body) for m in whole.messages], whole.end, whole.damage) == ([1000, 1001, 1002], len(data), "")
    part = decode_pulled(data, 2_500)
    assert ([len(m.body) for m in part.messages], part.damage) == ([1000, 1001], "")
    assert part.end == whole.messages[0].size + whole.messages[1].size
    assert len(decode_pulled(data, 1).messages) == 1
    torn = decode_pulled(data[:-1])
    assert (len(torn.messages), torn.end) == (2, part.end)
    assert "does not fit" in torn.damage
    assert world.now.mono_ms == 1_000


# --- administration


def outcome(world: World, operation: Steps[T]) -> T:
    ticket = world.node.runner.start(operation, world.now)
    world.until(lambda: ticket.done)
    return ticket.result()


def test_unreadable_message_is_found_with_its_fault() -> None:
    world, broker = one_broker()
    store_around(broker)
    found = outcome(world, queries.message_at(world.node.routes, QUEUE, 1))
    assert found is not None
    assert (found.body, found.fault[:28]) == (NO_ZLIB, "the body cannot be decompres")
    body = b"".join(record for record, _ in broker.group.queues["T", 0].records)
    broker.handlers[RequestCode.QUERY_MESSAGE] = lambda command: command.answer(0, body=body)
    (by_key,) = outcome(world, queries.messages_by_key(world.node.routes, "T", "order-42", 10))
    assert by_key == found
    broker.handlers[RequestCode.VIEW_MESSAGE_BY_ID] = lambda command: command.answer(
        0, body=broker.group.queues["T", 0].records[1][0]
    )
    broker_host = "00000000" + "00002A9F"
    world.servers["0.0.0.0:10911"] = broker
    assert outcome(world, queries.message_by_id(broker_host + "0000000000000000")) == found


def test_query_returns_sound_messages_and_fails_if_there_are_none() -> None:
    world, broker = one_broker()
    for n in range(2):
        broker.store("T", 0, b"%d" % n, KEYS="k")
    damage(broker, 1)
    body = b"".join(record for record, _ in broker.group.queues["T", 0].records)
    broker.handlers[RequestCode.QUERY_MESSAGE] = lambda command: command.answer(0, body=body)
    (found,) = outcome(world, queries.messages_by_key(world.node.routes, "T", "k", 10))
    assert found.body == b"0"
    damage(broker, 0)
    body = b"".join(record for record, _ in broker.group.queues["T", 0].records)
    with pytest.raises(ProtocolError, match="a:10911 sent a damaged record"):
        outcome(world, queries.messages_by_key(world.node.routes, "T", "k", 10))
    with pytest.raises(ProtocolError, match="offset 1"):
        outcome(world, queries.message_at(world.node.routes, QUEUE, 1))


def test_query_that_every_broker_refuses_fails() -> None:
    world, broker = one_broker()
    broker.handlers[RequestCode.QUERY_MESSAGE] = lambda command: command.answer(
        ResponseCode.NO_PERMISSION, remark="not to you"
    )
    with pytest.raises(RemoteError, match="not to you"):
        outcome(world, queries.messages_by_key(world.node.routes, "T", "k", 10))
    broker.handlers[RequestCode.QUERY_MESSAGE] = lambda command: command.answer(ResponseCode.QUERY_NOT_FOUND)
    assert outcome(world, queries.messages_by_key(world.node.routes, "T", "k", 10)) == []
