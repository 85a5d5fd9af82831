"""Stop and close of consumers and producers: nothing that was handled is delivered again, and nothing else is lost."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable

import pytest

from tandemq import (
    ConsumeFrom,
    Message,
    PopConsumer,
    PoppedMessage,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
)
from tandemq.client.blocking import BlockingConsumer, BlockingMessage, BlockingProducer
from tandemq.errors import ClosedError, ConfigError, LocalError, OutcomeUnknown
from tandemq.run.local import LocalCluster

pytestmark = pytest.mark.system

FIRST = ConsumeFrom.FIRST
Delivered = ReceivedMessage | PoppedMessage


async def send_some(cluster: LocalCluster, count: int, **choice: str) -> list[bytes]:
    bodies = [b"%d" % n for n in range(count)]
    async with Producer(cluster.name_servers, group="p") as producer:
        for body in bodies:
            await producer.send(Message("T", body), **choice)  # type: ignore[arg-type]
    return bodies


def member(cluster: LocalCluster, **options: object) -> PushConsumer:
    settings = {"group": "g", "topics": {"T": "*"}, "consume_from": FIRST, **options}
    return PushConsumer(cluster.name_servers, **settings)  # type: ignore[arg-type]


def popping(cluster: LocalCluster, **options: object) -> PopConsumer:
    settings = {"group": "g", "topics": {"T": "*"}, "consume_from": FIRST, **options}
    return PopConsumer(cluster.name_servers, **settings)  # type: ignore[arg-type]


def orderly(cluster: LocalCluster, **options: object) -> PushConsumer:
    return member(cluster, orderly=True, **options)


Member = Callable[..., PushConsumer | PopConsumer]
MEMBERS: dict[str, Member] = {"push": member, "orderly": orderly, "pop": popping}


async def rest(cluster: LocalCluster, expected: Counter[bytes], make: Member = member) -> Counter[bytes]:
    """Return what the next member of the group gets: as many messages as are expected, and what follows at once."""
    seen: Counter[bytes] = Counter()
    async with make(cluster) as consumer:
        while (message := await consumer.receive(60 if seen.total() < expected.total() else 0.5)) is not None:
            seen[message.body] += 1
            await message.ack()
    return seen


class Handler:
    """A handler that is held until it is released."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.ended: list[bytes] = []
        self.cancelled: list[bytes] = []
        self.released = asyncio.Event()
        self.changed = asyncio.Event()

    async def __call__(self, message: Delivered) -> None:
        self.begun.append(message.body)
        self.changed.set()
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.cancelled.append(message.body)
            raise
        self.ended.append(message.body)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.begun) < count:
                self.changed.clear()
                await self.changed.wait()


@pytest.mark.parametrize("kind", MEMBERS)
async def test_close_waits_for_handlers_and_only_the_rest_is_delivered_again(
    kind: str, tandemq_broker: LocalCluster
) -> None:
    sent = await send_some(tandemq_broker, 8)
    handler = Handler()
    async with asyncio.timeout(120), MEMBERS[kind](tandemq_broker) as consumer:
        running = asyncio.create_task(consumer.run(handler, concurrency=3))
        await handler.until(3)
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        assert not closing.done() and not running.done()
        handler.released.set()
        await closing
        await running
    assert len(handler.ended) == 3
    left = Counter(sent) - Counter(handler.ended)
    assert await rest(tandemq_broker, left, MEMBERS[kind]) == left


@pytest.mark.parametrize("kind", MEMBERS)
async def test_handlers_beyond_the_limit_are_cancelled_and_their_messages_delivered_again(
    kind: str, tandemq_broker: LocalCluster
) -> None:
    sent = await send_some(tandemq_broker, 8)
    handler, quick = Handler(), list[bytes]()

    async def handle(message: Delivered) -> None:
        if message.body in {b"0", b"1"}:
            await handler(message)
        quick.append(message.body)

    async with asyncio.timeout(120), MEMBERS[kind](tandemq_broker, close_wait_s=0.2) as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=3))
        await handler.until(2)
        await consumer.close()
        await running
    assert sorted(handler.cancelled) == [b"0", b"1"]
    left = Counter(sent) - Counter(quick)
    assert await rest(tandemq_broker, left, MEMBERS[kind]) == left


async def test_handler_that_hides_its_cancellation_does_not_hold_up_close(tandemq_broker: LocalCluster) -> None:
    await send_some(tandemq_broker, 1)
    begun, released = asyncio.Event(), asyncio.Event()

    async def handle(_message: Delivered) -> None:
        begun.set()
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()

    async with asyncio.timeout(120), member(tandemq_broker, close_wait_s=0) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        try:
            await begun.wait()
            await consumer.close()
            assert not running.done()
        finally:
            released.set()
        await running
    left = Counter([b"0"])
    assert await rest(tandemq_broker, left) == left


async def test_messages_that_were_received_and_not_ended_are_delivered_to_others(tandemq_broker: LocalCluster) -> None:
    sent = await send_some(tandemq_broker, 10)
    async with asyncio.timeout(120), member(tandemq_broker) as consumer:
        taken = [await consumer.receive() for _ in range(6)]
        acked = [message for message in taken if message is not None][1::2]
        for message in acked:
            await message.ack()
    left = Counter(sent) - Counter([message.body for message in acked])
    assert await rest(tandemq_broker, left) == left


async def test_queues_of_a_closed_member_are_read_by_others_at_once(tandemq_broker: LocalCluster) -> None:
    """Rebalancing every `rebalance_ms` would be too late for this test."""
    await send_some(tandemq_broker, 1)
    async with asyncio.timeout(120), member(tandemq_broker, rebalance_ms=10**8) as other:

        def count(consumer: PushConsumer) -> int:
            return len([queue for queue in consumer.assigned() if queue.topic == "T"])

        async with member(tandemq_broker, rebalance_ms=10**8) as leaving:
            while not (count(leaving) and count(other) and count(leaving) + count(other) == 4):
                await other.receive(0.1)
        while count(other) < 4:
            await other.receive(0.1)


@pytest.mark.parametrize("kind", MEMBERS)
async def test_receivers_that_wait_end_when_the_consumer_is_stopped(kind: str, tandemq_broker: LocalCluster) -> None:
    async with asyncio.timeout(60), MEMBERS[kind](tandemq_broker) as consumer:

        async def iterate() -> str:
            async for _ in consumer:
                pass
            return "ended"

        receiving = asyncio.create_task(consumer.receive())
        iterating = asyncio.create_task(iterate())
        running = asyncio.create_task(consumer.run(Handler()))
        await asyncio.sleep(0)
        consumer.stop()
        with pytest.raises(ClosedError, match="is being closed"):
            await receiving
        assert await iterating == "ended"
        await running
        consumer.stop()
    consumer.stop()
    with pytest.raises(ClosedError):
        await consumer.receive()
    assert await iterate() == "ended"
    await consumer.run(Handler())


async def test_iteration_that_is_stopped_ends_its_message(tandemq_broker: LocalCluster) -> None:
    sent = await send_some(tandemq_broker, 5)
    seen: list[bytes] = []
    async with asyncio.timeout(60), member(tandemq_broker) as consumer:
        async for message in consumer:
            seen.append(message.body)
            if len(seen) == 2:
                consumer.stop()
            await message.ack()
    assert len(seen) == 2
    left = Counter(sent) - Counter(seen)
    assert await rest(tandemq_broker, left) == left


async def test_second_close_waits_for_the_first(tandemq_broker: LocalCluster) -> None:
    await send_some(tandemq_broker, 1)
    handler = Handler()
    async with asyncio.timeout(60), member(tandemq_broker) as consumer:
        running = asyncio.create_task(consumer.run(handler))
        await handler.until(1)
        closing = [asyncio.create_task(consumer.close()) for _ in range(2)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in closing)
        handler.released.set()
        await asyncio.gather(*closing)
        await running
        await consumer.close()
    assert await rest(tandemq_broker, Counter()) == Counter()


@pytest.mark.parametrize("kind", MEMBERS)
async def test_close_during_start_ends_both(kind: str) -> None:
    with_nobody = LocalNobody()
    consumer = MEMBERS[kind](with_nobody)
    async with asyncio.timeout(60):
        starting = asyncio.create_task(consumer.start())
        await asyncio.sleep(0)
        await consumer.close()
        with pytest.raises(ClosedError):
            await starting
    with pytest.raises(ClosedError):
        await consumer.receive()


class LocalNobody:
    """A cluster where no name server listens."""

    name_servers = "127.0.0.1:1"


@pytest.mark.parametrize("kind", MEMBERS)
async def test_cancelled_close_cancels_handlers_and_ends_at_once(kind: str, tandemq_broker: LocalCluster) -> None:
    sent = await send_some(tandemq_broker, 1)
    handler = Handler()
    async with asyncio.timeout(60):
        consumer = MEMBERS[kind](tandemq_broker)
        await consumer.start()
        running = asyncio.create_task(consumer.run(handler))
        await handler.until(1)
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await running
        assert handler.cancelled == sent
        await consumer.close()
    with pytest.raises(ClosedError):
        await consumer.receive()


async def test_closed_consumer_can_be_started_again(tandemq_broker: LocalCluster) -> None:
    sent = await send_some(tandemq_broker, 2)
    consumer = member(tandemq_broker)
    seen: list[bytes] = []
    for _ in range(2):
        async with asyncio.timeout(60), consumer:
            message = await consumer.receive()
            assert message is not None
            seen.append(message.body)
            await message.ack()
    assert sorted(seen) == sent


async def test_stop_of_a_consumer_that_was_not_started_is_refused() -> None:
    consumer = member(LocalNobody())  # type: ignore[arg-type]
    with pytest.raises(ClosedError, match="not started"):
        consumer.stop()
    await consumer.close()


async def test_call_of_stop_on_another_loop_is_refused(tandemq_broker: LocalCluster) -> None:
    async with member(tandemq_broker) as consumer:
        with pytest.raises(LocalError, match="another event loop"):
            await asyncio.to_thread(consumer.stop)
        assert not consumer.is_stopping


async def test_poll_of_a_pull_consumer_ends_at_close(tandemq_broker: LocalCluster) -> None:
    await send_some(tandemq_broker, 1)
    async with (
        asyncio.timeout(60),
        PullConsumer(tandemq_broker.name_servers, group="g", consume_from=FIRST) as consumer,
    ):
        consumer.assign(await consumer.queues("T"))
        assert len(await consumer.poll()) == 1
        polling = asyncio.create_task(consumer.poll())
        await asyncio.sleep(0)
        await consumer.close()
        with pytest.raises(ClosedError):
            await polling
        await consumer.close()


# Producers.


async def test_flush_returns_when_all_sends_are_stored(tandemq_broker: LocalCluster) -> None:
    async with asyncio.timeout(60), Producer(tandemq_broker.name_servers, group="p") as producer:
        tickets = [producer.begin(Message("T", b"%d" % n)) for n in range(100)]
        assert not any(ticket.done for ticket in tickets)
        await producer.flush()
        assert all(ticket.done and ticket.error is None for ticket in tickets)
        await producer.flush()
    with pytest.raises(ClosedError):
        await producer.flush()


async def test_close_of_a_producer_ends_sends_in_flight(tandemq_broker: LocalCluster) -> None:
    producer = Producer(tandemq_broker.name_servers, group="p")
    await producer.start()
    async with asyncio.timeout(60):
        await producer.send(Message("T", b"first"))
        sending = [asyncio.create_task(producer.send(Message("T", b"%d" % n))) for n in range(100)]
        await asyncio.sleep(0)
        await asyncio.gather(producer.close(), producer.close())
        assert len(await asyncio.gather(*sending)) == 100
    with pytest.raises(ClosedError):
        await producer.send(Message("T", b"late"))


async def test_sends_without_a_response_fail_when_the_time_to_close_is_over() -> None:
    connections: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: connections.append(writer), "127.0.0.1", 0)
    address = "{}:{}".format(*silent.sockets[0].getsockname())
    async with asyncio.timeout(60), Producer(address, group="p", close_wait_s=0.1) as producer:
        sending = asyncio.create_task(producer.send(Message("T", b"x")))
        while not connections:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await producer.close()
        with pytest.raises((ClosedError, OutcomeUnknown)):
            await sending
    for writer in connections:
        writer.close()
    silent.close()
    await silent.wait_closed()


# Blocking.


def test_blocking_run_handles_messages_in_threads_until_it_is_stopped(tandemq_broker: LocalCluster) -> None:
    seen: list[bytes] = []
    with (
        BlockingProducer(tandemq_broker.name_servers, group="p") as producer,
        BlockingConsumer(tandemq_broker.name_servers, group="g", topics={"T": "*"}, consume_from=FIRST) as consumer,
    ):
        for n in range(20):
            producer.send(Message("T", b"%d" % n))

        def handle(message: BlockingMessage) -> None:
            if message.body == b"7":
                message.ack()
                raise SystemExit
            seen.append(message.body)
            if len(seen) == 19:
                consumer.stop()

        consumer.run(handle, concurrency=3)
        assert len(set(seen)) == 19
        assert list(consumer) == []
        with pytest.raises(ClosedError):
            consumer.receive()
        consumer.run(handle)
    with BlockingConsumer(tandemq_broker.name_servers, group="g", topics={"T": "*"}) as consumer:
        assert consumer.receive(4) is None


def test_blocking_run_refuses_what_it_cannot_call(tandemq_broker: LocalCluster) -> None:
    async def handle(_message: BlockingMessage) -> None: ...

    with BlockingConsumer(tandemq_broker.name_servers, group="g", topics={"T": "*"}) as consumer:
        with pytest.raises(ConfigError, match="plain function"):
            consumer.run(handle)
        with pytest.raises(ConfigError, match="concurrency"):
            consumer.run(print, concurrency=0)
