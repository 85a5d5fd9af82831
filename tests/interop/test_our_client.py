"""Our client with unmodified Java name servers and brokers of each version, and with the slave of a killed master."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from click.testing import CliRunner

from tandemq import Admin, ConsumeFrom, Message, Producer, PullConsumer, PushConsumer, ReceivedMessage, SendStatus
from tandemq.cli import main
from tandemq.client.admin.groups import ResetTarget
from tandemq.client.core.settings import MessageModel
from tandemq.errors import NoRoute, RemoteError
from tests.interop.java import PATIENCE, SERVER_VERSIONS, JavaBroker, JavaNameServer, wait_until
from tests.interop.peers import NEWEST_VERSION, of_each_change
from tests.interop.wire import wait_registered
from tests.spec import spec

T = TypeVar("T")
FIRST = ConsumeFrom.FIRST
DELAYS = "1s 1s 1s 1s 1s 1s 1s 1s"


def run(work: Coroutine[object, object, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 120 * PATIENCE))


@pytest.fixture(scope="module", params=of_each_change((*SERVER_VERSIONS, NEWEST_VERSION)))
def namesrv(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Java name server with one Java broker."""
    directory = tmp_path_factory.mktemp("java")
    version = request.param
    with JavaNameServer(version, directory / "namesrv") as server:
        server.start()
        with JavaBroker(version, directory / "broker", namesrv=server.address, messageDelayLevel=DELAYS) as broker:
            broker.start()
            wait_registered(server.port, "broker-a")
            yield server.address


async def until(probe: Callable[[], Awaitable[bool]], within_s: float) -> None:
    async with asyncio.timeout(within_s * PATIENCE):
        while not await probe():  # noqa: ASYNC110  # what is waited for happens in another process
            await asyncio.sleep(0)


async def _now(value: bool) -> bool:
    return value


async def take(consumer: PushConsumer, count: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    while len(found) < count:
        message = await consumer.receive(30)
        assert message is not None, f"{len(found)} of {count} messages came"
        found.append(message)
    return found


def test_single_batch_and_oneway_messages_come_as_they_were_sent(namesrv: str) -> None:
    async def story() -> None:
        async with Producer(namesrv, group="p") as producer:
            big = b"compress me " * 5_000
            one = await producer.send(Message("Sent", big, tags="a", keys=["k"], properties={"colour": "red"}))
            assert one.status is SendStatus.SEND_OK
            batch = await producer.send_batch([Message("Sent", b"b%d" % n, tags="a") for n in range(20)])
            await producer.send_oneway(Message("Sent", b"o", tags="a"))
            other = await producer.send(Message("Sent", b"other", tags="b"))
        async with PushConsumer(namesrv, group="SentG", topics={"Sent": "a || c"}, consume_from=FIRST) as consumer:
            messages = {message.unique_key: message for message in await take(consumer, 22)}
            for message in messages.values():
                await message.ack()
            first = messages[one.unique_key]
            assert (first.body, first.keys, first.properties["colour"]) == (big, ["k"], "red")
            assert first.offset_message_id == one.offset_message_id
            for result in batch:
                found = messages[result.unique_key]
                assert (found.queue, found.queue_offset) == (result.queue, result.queue_offset)
                assert found.offset_message_id == result.offset_message_id
            assert other.unique_key not in messages
        async with PushConsumer(namesrv, group="SentG", topics={"Sent": "a || c"}) as consumer:
            assert await consumer.receive(1.5) is None

    run(story())


@spec("G13")
def test_rejected_message_comes_again_until_it_is_a_dead_letter(namesrv: str) -> None:
    async def story() -> None:
        async with Producer(namesrv, group="p") as producer:
            sent = await producer.send(Message("Bad", b"bad", keys=["k"]))
        async with PushConsumer(
            namesrv, group="BadG", topics={"Bad": "*"}, consume_from=FIRST, max_reconsume_times=2
        ) as consumer:
            for times in range(3):
                (message,) = await take(consumer, 1)
                assert (message.topic, message.reconsume_times, message.unique_key) == ("Bad", times, sent.unique_key)
                await message.retry()
            async with PushConsumer(namesrv, group="Undertaker", topics={"%DLQ%BadG": "*"}, consume_from=FIRST) as dead:
                (message,) = await take(dead, 1)
                assert message.unique_key == sent.unique_key

    run(story())


def test_orderly_consumption_keeps_the_order_of_each_key(namesrv: str) -> None:
    async def story() -> None:
        async with Producer(namesrv, group="p") as producer:
            for n in range(40):
                await producer.send(Message("Order", b"%d" % n), by_key=f"key-{n % 4}")
        seen: dict[int, list[int]] = {}
        async with PushConsumer(
            namesrv, group="OrderG", topics={"Order": "*"}, consume_from=FIRST, orderly=True
        ) as consumer:
            for _ in range(40):
                (message,) = await take(consumer, 1)
                seen.setdefault(message.queue.queue_id, []).append(int(message.body))
                await message.ack()
        assert sum(len(numbers) for numbers in seen.values()) == 40
        assert all(numbers == sorted(numbers) for numbers in seen.values())

    run(story())


def test_members_share_queues_and_broadcasting_ones_do_not(
    namesrv: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEMQ_OFFSETS", str(tmp_path))

    def of(consumer: PushConsumer) -> set[int]:
        return {queue.queue_id for queue in consumer.assigned() if queue.topic == "Shared"}

    async def story() -> None:
        async with Admin(namesrv) as admin:
            await admin.create_topic("Shared", queues=4)
        topics = {"Shared": "*"}
        async with (
            PushConsumer(namesrv, group="SharedG", topics=topics, consume_from=FIRST) as one,
            PushConsumer(namesrv, group="SharedG", topics=topics, consume_from=FIRST) as two,
            PushConsumer(
                namesrv, group="All", topics=topics, consume_from=FIRST, model=MessageModel.BROADCASTING
            ) as all_,
        ):
            await until(lambda: _now(len(of(one)) == len(of(two)) == 2 and len(of(all_)) == 4), 30)
            assert of(one) | of(two) == {0, 1, 2, 3}

    run(story())


def test_broadcasting_members_each_get_everything_and_go_on_where_they_were(
    namesrv: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def told(first: int) -> list[list[bytes]]:
        """What two members get when they come (back) after six more messages were sent."""
        sent = [b"%d" % n for n in range(first, first + 6)]
        async with Producer(namesrv, group="p") as producer:
            for body in sent:
                await producer.send(Message("Told", body))
        found = []
        for name in ("one", "two"):
            monkeypatch.setenv("TANDEMQ_OFFSETS", str(tmp_path / name))
            async with PushConsumer(
                namesrv, group="ToldG", topics={"Told": "*"}, consume_from=FIRST, model=MessageModel.BROADCASTING
            ) as consumer:
                messages = await take(consumer, 6)
                assert await consumer.receive(0.5) is None
                for message in messages:
                    await message.ack()
                found.append(sorted(message.body for message in messages))
        return found

    assert run(told(0)) == [[b"%d" % n for n in range(6)]] * 2
    assert run(told(6)) == [sorted(b"%d" % n for n in range(6, 12))] * 2


@spec("G12")
def test_operators_requests_are_understood(namesrv: str) -> None:
    async def story() -> None:
        async with Admin(namesrv) as admin, Producer(namesrv, group="p") as producer:
            await admin.create_topic("Ops", queues=2)
            await admin.create_group("OpsG")
            assert "OpsG" in await admin.groups()
            sent = [await producer.send(Message("Ops", b"%d" % n, keys=["all"])) for n in range(6)]
            assert (await admin.message_by_id(sent[1].offset_message_id)).body == b"1"

            async def is_queued() -> bool:  # Java writes queue entries after it has answered the send.
                found = await admin.message_at(sent[2].queue, sent[2].queue_offset)
                return found is not None and found.body == b"2"

            await until(is_queued, 20)

            async def all_indexed() -> bool:
                return len(await admin.messages_by_key("Ops", "all")) == 6

            await until(all_indexed, 20)
            assert sum(queue.max_offset for queue in (await admin.topic_stats("Ops")).values()) == 6
            async with PushConsumer(namesrv, group="OpsG", topics={"Ops": "*"}, consume_from=FIRST) as consumer:
                for message in await take(consumer, 6):
                    await message.ack()
                await consumer.commit()

                async def is_routed() -> bool:
                    try:
                        return await admin.connections("OpsG") is not None
                    except NoRoute:  # The broker makes the group's retry topic when its first member says so.
                        return False

                await until(is_routed, 20)
                connections = await admin.connections("OpsG")
                assert connections is not None
                info = await admin.running_info("OpsG", connections.connections[0].client_id)
                assert len(info["mqTable"]) >= 2
                await admin.reset_offsets("OpsG", "Ops", ResetTarget(time_ms=0))
                assert len(await take(consumer, 6)) == 6
            await admin.reset_offsets("OpsG", "Ops", ResetTarget(offset=1, queue=sent[0].queue))
            assert await admin.offset("OpsG", sent[0].queue) == 1
            assert sum(progress.lag for progress in (await admin.progress("OpsG", "Ops")).values()) >= 2
            runtime = await _runtime(admin, (await admin.cluster_info()).masters()[0])
            assert runtime["brokerVersionDesc"].startswith("V")
            if runtime["brokerVersionDesc"] < "V5":
                with pytest.raises(RemoteError):  # 4.9 does not know the request.
                    await admin.topic_config("Ops")
            else:
                assert (await admin.topic_config("Ops"))["broker-a"].read_queue_nums == 2
            await admin.delete_topic("Ops")

    run(story())


async def _runtime(admin: Admin, address: str) -> dict[str, str]:
    """What a broker says of itself; one of 4.9 that is younger than a second fails to."""
    found: dict[str, str] = {}

    async def is_told() -> bool:
        try:
            found.update(await admin.broker_runtime(address))
        except RemoteError as error:
            if "NoSuchElementException" not in str(error):
                raise
        return bool(found)

    await until(is_told, 10)
    return found


def test_pull_consumer_reads_all_and_goes_where_it_is_told(namesrv: str) -> None:
    async def story() -> None:
        async with Producer(namesrv, group="p") as producer:
            sent = [await producer.send(Message("Pulled", b"%d" % n)) for n in range(12)]
        async with PullConsumer(namesrv, group="PulledG", consume_from=FIRST) as consumer:
            queues = await consumer.queues("Pulled")
            consumer.assign(queues)
            seen: set[bytes] = set()
            while len(seen) < 12:
                seen |= {message.body for message in await consumer.poll(timeout_s=60)}
            await consumer.commit()
            queue = sent[0].queue
            consumer.seek(queue, 0)
            assert (await consumer.poll(1, timeout_s=60))[0].queue_offset == 0
            assert await consumer.committed(queue) == (await consumer.bounds(queue))[1]

    run(story())


@spec("R09")
def test_slave_of_a_killed_java_master_is_read_at_once(tmp_path: Path) -> None:
    with JavaNameServer("4.9.7", tmp_path / "namesrv") as server:
        server.start()
        with (
            JavaBroker("4.9.7", tmp_path / "m", namesrv=server.address, brokerRole="SYNC_MASTER") as master,
            JavaBroker("4.9.7", tmp_path / "s", namesrv=server.address, brokerRole="SLAVE", brokerId=1) as slave,
        ):
            master.start()
            slave.start()
            wait_registered(server.port, "broker-a", 0)
            wait_registered(server.port, "broker-a", 1)
            run(_kill_while_reading(server.address, master, slave))


async def _kill_while_reading(namesrv: str, master: JavaBroker, slave: JavaBroker) -> None:
    async with Producer(namesrv, group="p", timeout_ms=30_000) as producer:

        async def is_copied() -> bool:
            return (await producer.send(Message("Dying", b"first"))).status is SendStatus.SEND_OK

        await until(is_copied, 60)
        results = [await producer.send_batch([Message("Dying", b"%d" % n) for n in range(40)]) for _ in range(5)]
    # Others may not be on the slave when the master dies.
    keys = {result.unique_key for batch in results for result in batch if result.status is SendStatus.SEND_OK}
    async with PushConsumer(
        namesrv, group="DyingG", topics={"Dying": "*"}, consume_from=FIRST, prefetch_messages=10
    ) as consumer:
        for message in await take(consumer, 20):
            keys.discard(message.unique_key)
            await message.ack()
        await asyncio.to_thread(master.kill)
        last = time.monotonic()
        slowest = 0.0
        while keys:
            (message,) = await take(consumer, 1)
            slowest, last = max(slowest, time.monotonic() - last), time.monotonic()
            keys.discard(message.unique_key)
            await message.ack()
        assert slowest < 15, "half of the time until a client asks for routes without a reason"
        assert slave.address in consumer.reading_from().values()


def test_group_that_nobody_joined_is_moved_shown_and_deleted(namesrv: str) -> None:
    def command(*words: str, code: int = 0) -> Any:
        result = CliRunner().invoke(main, [*words, "--json", "--namesrv", namesrv])
        assert result.exit_code == code, f"{words}: {result.output}"
        return json.loads(result.stdout) if code == 0 else result.stderr

    command("topic", "create", "Ahead", "--queues", "1")
    for body in ("a", "b", "c"):
        command("message", "send", "Ahead", body)
    for words in (("group", "show"), ("group", "delete", "--yes"), ("offset", "show")):
        assert "group Nobody does not exist" in command(*words, "Nobody", code=1)
    assert "group Nobody does not exist" in command("offset", "reset", "Nobody", "Ahead", "--to", "latest", code=1)
    command("group", "create", "Later")
    [row] = command("offset", "reset", "Later", "Ahead", "--to", "1", "--yes")["queues"]
    assert (row["from"], row["to"]) == (None, 1)
    assert [row["offset"] for row in command("offset", "show", "Later")] == [1]
    wait_until(lambda: command("group", "show", "Later")["lag"] == 2, what="all messages in the queue", within_s=20)
    assert command("group", "delete", "Later", "--clean", "--yes")["deleted"] is True
