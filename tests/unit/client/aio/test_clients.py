"""The asyncio and blocking clients against brokers in this process, over sockets."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tandemq import (
    ConsumeFrom,
    Message,
    MessageModel,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendStatus,
)
from tandemq.boundary import Turn
from tandemq.client.aio.options import QueueChoice
from tandemq.client.blocking import BlockingConsumer, BlockingProducer
from tandemq.errors import ClosedError, ConfigError, LocalError, NetworkError, NoRoute
from tandemq.run.local import LocalCluster

pytestmark = pytest.mark.system

FIRST = ConsumeFrom.FIRST


@pytest.fixture(autouse=True)
def _offsets_in_a_directory_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEMQ_OFFSETS", str(tmp_path / "offsets"))


async def until(probe: Callable[[], Awaitable[object]], within_s: float = 60) -> None:
    async with asyncio.timeout(within_s):
        while not await probe():  # noqa: ASYNC110  # what is waited for happens in other threads
            await asyncio.sleep(0)


async def send_some(cluster: LocalCluster, count: int, topic: str = "T") -> list[str]:
    async with Producer(cluster.name_servers, group="p") as producer:
        results = await asyncio.gather(*[producer.send(Message(topic, b"%d" % n)) for n in range(count)])
    assert {result.status for result in results} == {SendStatus.SEND_OK}
    return [result.unique_key for result in results]


async def take(consumer: PushConsumer, count: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    while len(found) < count:
        message = await consumer.receive(120)
        assert message is not None, f"{len(found)} of {count} messages came"
        found.append(message)
    return found


async def test_what_is_sent_is_consumed_with_async_for(tandemq_broker: LocalCluster) -> None:
    sent = await send_some(tandemq_broker, 50)
    seen: list[str] = []
    async with PushConsumer(tandemq_broker.name_servers, group="g", topics={"T": "*"}, consume_from=FIRST) as consumer:
        async for message in consumer:
            await message.ack()
            seen.append(message.unique_key)
            if len(seen) == len(sent):
                break
    assert sorted(seen) == sorted(sent)
    async with PushConsumer(tandemq_broker.name_servers, group="g", topics={"T": "*"}) as consumer:
        assert await consumer.receive(0.5) is None


@pytest.mark.parametrize("consume_from", [ConsumeFrom.LAST, ConsumeFrom.TIMESTAMP])
async def test_new_group_reads_a_young_topic_from_its_first_message(
    tandemq_broker: LocalCluster, consume_from: ConsumeFrom
) -> None:
    sent = await send_some(tandemq_broker, 5)
    async with PushConsumer(
        tandemq_broker.name_servers, group="g", topics={"T": "*"}, consume_from=consume_from, consume_from_ms=2**42
    ) as consumer:
        assert sorted(message.unique_key for message in await take(consumer, 5)) == sorted(sent)


async def test_message_is_not_lost_when_receive_times_out(
    tandemq_broker: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandemq.client.aio.push_consumer.YIELD_AFTER", 1)
    sent = await send_some(tandemq_broker, 20)
    seen: list[str] = []
    async with PushConsumer(tandemq_broker.name_servers, group="g", topics={"T": "*"}, consume_from=FIRST) as consumer:

        async def all_came() -> bool:
            message = await consumer.receive(0)
            if message is not None:
                await message.ack()
                seen.append(message.unique_key)
            return len(seen) == len(sent)

        await until(all_came)
    assert sorted(seen) == sorted(sent)


async def test_single_send_leaves_at_once_and_others_share_a_write(
    tandemq_broker: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the writes of these messages are counted: when a heartbeat is due, it is written too."""
    await send_some(tandemq_broker, 1)  # the route of a new topic would be fetched again a little later
    async with Producer(tandemq_broker.name_servers, group="p") as producer:
        await producer.send(Message("T", b"connects"))
        shell = producer._shell
        assert shell is not None
        writes: list[int] = []
        perform = shell._perform

        def counted(turn: Turn) -> None:
            counts = [sum(b"counted" in bytes(frame) for frame in frames) for frames in turn.sends.values()]
            writes.extend(filter(None, counts))
            perform(turn)

        monkeypatch.setattr(shell, "_perform", counted)
        first = asyncio.create_task(producer.send(Message("T", b"counted alone")))
        await asyncio.sleep(0)
        assert writes == [1]
        await first
        await asyncio.gather(*[producer.send(Message("T", b"counted %d" % number)) for number in range(10)])
        assert writes == [1, 1, 9]
        assert not shell.waiting


async def test_cancelled_send_is_forgotten_when_the_response_arrives(tandemq_broker: LocalCluster) -> None:
    async with Producer(tandemq_broker.name_servers, group="p") as producer:
        await producer.send(Message("T", b"connects"))
        cancelled = asyncio.create_task(producer.send(Message("T", b"cancelled")))
        await asyncio.sleep(0)
        cancelled.cancel()
        results = [await producer.send(Message("T", b"other")) for _ in range(2)]
        assert cancelled.cancelled()
        assert {result.status for result in results} == {SendStatus.SEND_OK}
        shell = producer._shell
        assert shell is not None
        assert not shell.waiting


async def test_repeated_receive_of_an_idle_consumer_leaves_no_waiter(tandemq_broker: LocalCluster) -> None:
    async with PushConsumer(tandemq_broker.name_servers, group="g", topics={"T": "*"}, consume_from=FIRST) as consumer:
        for _ in range(10):
            assert await consumer.receive(0) is None
        assert not consumer._receivers
        await send_some(tandemq_broker, 1)
        await take(consumer, 1)


async def test_large_body_is_compressed_in_transit(tandemq_broker: LocalCluster) -> None:
    body = b"line of text\n" * 10_000
    async with Producer(tandemq_broker.name_servers, group="p") as producer:
        await producer.send(Message("T", body))
    async with PushConsumer(tandemq_broker.name_servers, group="g", topics={"T": "*"}, consume_from=FIRST) as consumer:
        (message,) = await take(consumer, 1)
        assert message.body == body
        assert message.stored.size < 2_000


async def test_handler_acknowledges_by_returning_and_retries_by_raising(tandemq_broker: LocalCluster) -> None:
    await send_some(tandemq_broker, 20)
    tries: dict[bytes, list[int]] = {}

    async with PushConsumer(tandemq_broker.name_servers, group="g", topics={"T": "*"}, consume_from=FIRST) as consumer:

        async def handle(message: ReceivedMessage) -> None:
            tries.setdefault(message.body, []).append(message.reconsume_times)
            if message.body == b"7" and message.reconsume_times == 0:
                await message.retry(1)
            if len(tries) == 20 and len(tries[b"7"]) == 2:
                await message.ack()
                closing.set()

        closing = asyncio.Event()
        work = asyncio.create_task(consumer.run(handle, concurrency=4))
        async with asyncio.timeout(60):
            await closing.wait()
        await consumer.close()
        await work
    assert tries[b"7"] == [0, 1]
    assert all(times == [0] for body, times in tries.items() if body != b"7")


@pytest.mark.tandemq(messageDelayLevel="1s 1s 1s 1s 1s 1s")
async def test_message_is_redelivered_when_the_body_of_async_with_raises(tandemq_broker: LocalCluster) -> None:
    await send_some(tandemq_broker, 1)
    ns = tandemq_broker.name_servers
    with pytest.raises(ZeroDivisionError):
        async with PushConsumer(ns, group="g", topics={"T": "*"}, consume_from=FIRST) as consumer:
            async for message in consumer:
                assert message.body
                raise ZeroDivisionError
    async with PushConsumer(ns, group="g", topics={"T": "*"}) as consumer:
        (message,) = await take(consumer, 1)
        assert (message.topic, message.reconsume_times) == ("T", 1)


@pytest.mark.tandemq(messageDelayLevel="1s 1s 1s 1s 1s 1s 1s 1s")
async def test_message_that_fails_each_time_becomes_a_dead_letter(tandemq_broker: LocalCluster) -> None:
    (key,) = await send_some(tandemq_broker, 1)
    ns = tandemq_broker.name_servers
    async with PushConsumer(ns, group="g", topics={"T": "*"}, consume_from=FIRST, max_reconsume_times=2) as consumer:
        for times in range(3):
            (message,) = await take(consumer, 1)
            assert message.reconsume_times == times
            await message.retry()
        async with PullConsumer(ns, group="undertaker", consume_from=FIRST) as undertaker:

            async def dead() -> list[str]:
                try:
                    undertaker.assign(await undertaker.queues("%DLQ%g"))
                except NoRoute:
                    return []
                return [found.unique_key for found in await undertaker.poll(timeout_s=1)]

            await until(lambda: _is([key], dead))


async def _is(expected: object, ask: Callable[[], Awaitable[object]]) -> bool:
    return await ask() == expected


async def test_orderly_consumer_keeps_the_order_of_each_queue(tandemq_broker: LocalCluster) -> None:
    ns = tandemq_broker.name_servers
    async with Producer(ns, group="p") as producer:
        for n in range(60):
            await producer.send(Message("T", b"%d" % n), by_key=f"customer-{n % 5}")
    seen: dict[int, list[int]] = {}
    async with PushConsumer(ns, group="g", topics={"T": "*"}, consume_from=FIRST, orderly=True) as consumer:
        for _ in range(60):
            (message,) = await take(consumer, 1)
            seen.setdefault(message.queue.queue_id, []).append(int(message.body))
            await message.ack()
    assert sum(len(numbers) for numbers in seen.values()) == 60
    assert all(numbers == sorted(numbers) for numbers in seen.values())


async def test_two_members_share_the_queues_and_one_takes_over_from_the_other(tandemq_broker: LocalCluster) -> None:
    ns = tandemq_broker.name_servers
    await send_some(tandemq_broker, 4)
    async with PushConsumer(ns, group="g", topics={"T": "*"}, consume_from=FIRST) as one:
        await until(lambda: _truth(len(_of(one)) == 4))
        async with PushConsumer(ns, group="g", topics={"T": "*"}) as two:
            await until(lambda: _truth(len(_of(one)) == len(_of(two)) == 2))
            assert not set(_of(one)) & set(_of(two))
        await until(lambda: _truth(len(_of(one)) == 4))


async def _truth(value: bool) -> bool:
    return value


def _of(consumer: PushConsumer) -> list[int]:
    return [queue.queue_id for queue in consumer.assigned() if queue.topic == "T"]


async def test_broadcasting_member_loads_its_offsets_after_a_restart(tandemq_broker: LocalCluster) -> None:
    ns = tandemq_broker.name_servers
    await send_some(tandemq_broker, 10)
    for expected in (10, 0):
        async with PushConsumer(
            ns, group="g", topics={"T": "*"}, consume_from=FIRST, model=MessageModel.BROADCASTING, client_id="me"
        ) as consumer:
            for message in await take(consumer, expected):
                await message.ack()
            assert await consumer.receive(0.2) is None


async def test_pull_consumer_seeks_by_offset_and_time_and_commits(tandemq_broker: LocalCluster) -> None:
    ns = tandemq_broker.name_servers
    await send_some(tandemq_broker, 20)
    async with PullConsumer(ns, group="audit", consume_from=FIRST) as consumer:
        queues = await consumer.queues("T")
        consumer.assign(queues)
        seen = 0
        while seen < 20:
            seen += len(await consumer.poll(timeout_s=120))
        await consumer.commit()
        first = queues[0]
        begin, end = await consumer.bounds(first)
        assert await consumer.committed(first) == end
        consumer.assign([first])
        consumer.seek(first, begin)
        assert (await consumer.poll(1, timeout_s=120))[0].queue_offset == begin
        assert await consumer.seek_to_time(first, 0) == begin
        assert (await consumer.poll(1, timeout_s=120))[0].queue_offset == begin


async def test_oneway_and_batch_arrive(tandemq_broker: LocalCluster) -> None:
    ns = tandemq_broker.name_servers
    async with Producer(ns, group="p") as producer:
        for n in range(100):
            await producer.send_oneway(Message("T", b"o%d" % n))
        results = await producer.send_batch([Message("T", b"b%d" % n, tags="x") for n in range(100)])
    assert len({result.unique_key for result in results}) == 100
    async with PushConsumer(ns, group="g", topics={"T": "*"}, consume_from=FIRST) as consumer:
        bodies = {message.body for message in await take(consumer, 200)}
    assert len(bodies) == 200


async def test_killed_master_is_read_from_its_slave(tandemq_pair: LocalCluster) -> None:
    """How soon: test_reading.py, with a clock of the test."""
    ns = tandemq_pair.name_servers
    async with PushConsumer(ns, group="g", topics={"T": "*"}, consume_from=FIRST, prefetch_messages=10) as consumer:
        await send_some(tandemq_pair, 500)
        seen = {message.unique_key: message for message in await take(consumer, 20)}
        for message in seen.values():
            await message.ack()
        await asyncio.to_thread(tandemq_pair.broker().kill)
        while len(seen) < 500:
            (message,) = await take(consumer, 1)
            seen[message.unique_key] = message
            await message.ack()
        slave = tandemq_pair.broker(broker_id=1).address
        assert {address for queue, address in consumer.reading_from().items() if queue.topic == "T"} == {slave}


async def test_returned_master_is_read_and_gets_commits_again(tandemq_pair: LocalCluster) -> None:
    ns = tandemq_pair.name_servers
    await send_some(tandemq_pair, 8)
    async with PushConsumer(
        ns, group="g", topics={"T": "*"}, consume_from=FIRST, commit_ms=100, long_poll_ms=500
    ) as consumer:
        for message in await take(consumer, 8):
            await message.ack()
        master = tandemq_pair.broker()
        await asyncio.to_thread(master.kill)
        slave = tandemq_pair.broker(broker_id=1).address
        await until(lambda: _truth(slave in consumer.reading_from().values()))
        await asyncio.to_thread(master.start)
        address = master.address
        await until(lambda: _truth(set(consumer.reading_from().values()) == {address}), 20)


async def test_send_to_a_dead_cluster_fails(tandemq_broker: LocalCluster) -> None:
    ns = tandemq_broker.name_servers
    async with Producer(ns, group="p", retry_ms=1_000) as producer:
        await producer.send(Message("T", b"x"))
        await asyncio.to_thread(tandemq_broker.broker().kill)
        with pytest.raises(NetworkError):
            await producer.send(Message("T", b"x"))


async def test_clients_used_before_start_or_after_close_raise() -> None:
    producer = Producer("127.0.0.1:1", group="p")
    with pytest.raises(ClosedError):
        await producer.send(Message("T", b"x"))
    async with producer:
        pass
    with pytest.raises(ClosedError):
        await producer.send(Message("T", b"x"))
    with pytest.raises(ConfigError):
        await Producer("nowhere", group="p").start()


def _fourth(queues: list[MessageQueue]) -> MessageQueue:
    return queues[3]


async def test_queue_choice_works_for_each_kind_of_send(tandemq_broker: LocalCluster) -> None:
    ns = tandemq_broker.name_servers
    choices: list[QueueChoice] = [{"by_key": "customer-7"}, {"select": _fourth}]
    async with Producer(ns, group="p") as producer, PullConsumer(ns, group="g", consume_from=FIRST) as consumer:
        for number, choice in enumerate(choices):
            topic = f"T{number}"
            first = (await producer.send(Message(topic, b"0"), **choice)).queue
            queues = await consumer.queues(topic)
            if "select" in choice:
                assert first == queues[3]
            for way in (choice, QueueChoice(queue=first)):
                assert (await producer.send(Message(topic, b"1"), **way)).queue == first
                batch = await producer.send_batch([Message(topic, b"2"), Message(topic, b"3")], **way)
                assert {result.queue for result in batch} == {first}
                await producer.send_oneway(Message(topic, b"4"), **way)

            async def is_there(chosen: MessageQueue = first) -> bool:
                return await consumer.bounds(chosen) == (0, 9)

            await until(is_there)
        with pytest.raises(LocalError):
            await producer.send_oneway(Message("T", b"x"), by_key="customer-7", select=_fourth)


def test_blocking_client_sends_and_consumes(tandemq_broker: LocalCluster) -> None:
    ns = tandemq_broker.name_servers
    with BlockingProducer(ns, group="p") as producer:
        sent = [producer.send(Message("T", b"%d" % n)).unique_key for n in range(7)]
        batch = producer.send_batch([Message("T", b"7"), Message("T", b"8")], select=_fourth)
        assert {result.queue.queue_id for result in batch} == {3}
        sent += [result.unique_key for result in batch]
        sent.append(producer.send(Message("T", b"9"), by_key="customer-7").unique_key)
    with BlockingConsumer(ns, group="g", topics={"T": "*"}, consume_from=FIRST) as consumer:
        seen: list[str] = []
        while len(seen) < 10 and (message := consumer.receive(120)) is not None:
            message.ack()
            seen.append(message.stored.unique_key)
    assert sorted(seen) == sorted(sent)
    with pytest.raises(ClosedError):
        producer.send(Message("T", b"x"))
