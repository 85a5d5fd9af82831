"""Clients over sockets while a master dies, in a group of mode `elect` with the registry in the name server."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tandemq import ConsumeFrom, Message, PopConsumer, PoppedMessage, Producer, PushConsumer
from tandemq.errors import TandemError
from tandemq.model.pop import MESSAGES_MAX
from tandemq.run.local import LocalBroker, LocalCluster
from tests.spec import spec

pytestmark = pytest.mark.system

KEPT_UNDER_WAY = 4
OUTAGE_S_MAX = 8.0
SENDS_AFTER = 200


@pytest.fixture(autouse=True)
def _offsets_in_a_directory_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEMQ_OFFSETS", str(tmp_path / "offsets"))


class Traffic:
    """A producer that sends without a pause, several messages at a time, and records when each was stored."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.stored: dict[bytes, float] = {}
        self.failed: list[TandemError] = []
        self.is_stopped = False
        self._count = 0
        self._grown = asyncio.Event()

    async def run(self) -> None:
        await asyncio.gather(*[self._lane() for _ in range(KEPT_UNDER_WAY)])

    async def _lane(self) -> None:
        while not self.is_stopped:
            self._count += 1
            body = b"%d" % self._count
            try:
                await self.producer.send(Message("T", body))
            except TandemError as error:
                self.failed.append(error)
                self.is_stopped = True  # a closed producer fails at once, for ever
            else:
                self.stored[body] = time.monotonic()
            self._grown.set()

    async def until_stored(self, count: int) -> None:
        """Wait until this many more messages are stored."""
        wanted = len(self.stored) + count
        async with asyncio.timeout(60):
            while len(self.stored) < wanted and not self.failed:
                self._grown.clear()
                await self._grown.wait()

    def longest_gap_s(self) -> float:
        """Return the longest time without a stored message."""
        times = sorted(self.stored.values())
        return max(later - sooner for sooner, later in pairwise(times))


async def traffic_through_kill(producer: Producer, broker: LocalBroker) -> Traffic:
    """Send before and after a broker is killed and return the outcomes."""
    traffic = Traffic(producer)
    sending = asyncio.ensure_future(traffic.run())
    await traffic.until_stored(SENDS_AFTER)
    await asyncio.to_thread(broker.kill)
    await traffic.until_stored(SENDS_AFTER)
    traffic.is_stopped = True
    await sending
    return traffic


async def consume(consumer: PushConsumer, found: Counter[bytes], wanted: dict[bytes, float]) -> None:
    """Consume until all stored messages have been received."""
    async with asyncio.timeout(60):
        while not wanted or wanted.keys() - found.keys():
            message = await consumer.receive(1)
            if message is not None:
                found[message.body] += 1
                await message.ack()


@spec("R11", "F08")
@pytest.mark.parametrize("orderly", [False, True])
async def test_no_send_fails_and_no_message_is_lost_or_duplicated_when_a_master_dies(
    tmp_path: Path, *, orderly: bool
) -> None:
    with LocalCluster(tmp_path, slaves=1, mode="elect") as cluster:
        master: LocalBroker = cluster.master()
        found: Counter[bytes] = Counter()
        async with (
            Producer(cluster.name_servers, group="p") as producer,
            PushConsumer(
                cluster.name_servers, group="g", topics={"T": "*"}, consume_from=ConsumeFrom.FIRST, orderly=orderly
            ) as consumer,
        ):
            traffic = await traffic_through_kill(producer, master)
            assert traffic.failed == []
            await consume(consumer, found, traffic.stored)
        assert cluster.master() is not master
        assert traffic.longest_gap_s() <= OUTAGE_S_MAX
        # A message whose response was lost with the master may be stored twice, with the same unique key.
        assert sum(found.values()) - len(found) <= KEPT_UNDER_WAY
        assert found.keys() == traffic.stored.keys()


async def test_pop_consumer_goes_on_at_the_new_master_and_gets_each_message(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, slaves=1, mode="elect") as cluster:
        master: LocalBroker = cluster.master()
        found: Counter[bytes] = Counter()
        came = asyncio.Event()

        async def handle(message: PoppedMessage) -> None:
            found[message.body] += 1
            came.set()

        async with (
            Producer(cluster.name_servers, group="p") as producer,
            PopConsumer(
                cluster.name_servers, group="g", topics={"T": "*"}, consume_from=ConsumeFrom.FIRST, invisible_s=5
            ) as consumer,
        ):
            running = asyncio.create_task(consumer.run(handle, concurrency=8))
            traffic = await traffic_through_kill(producer, master)
            assert traffic.failed == []
            async with asyncio.timeout(60):
                while traffic.stored.keys() - found.keys():
                    came.clear()
                    await came.wait()
            await consumer.close()
            await running
        assert cluster.master() is not master
        # What the old master popped or what was acknowledged while it died may come again.
        assert sum(found.values()) - len(found) <= KEPT_UNDER_WAY + 2 * MESSAGES_MAX


@spec("R05")
async def test_no_send_fails_when_one_of_two_masters_dies_and_its_backlog_is_delivered_after_its_return(
    tmp_path: Path,
) -> None:
    with LocalCluster(tmp_path, groups=2, settings={"flushDiskType": "SYNC_FLUSH"}) as cluster:
        dead = cluster.broker("broker-a")
        async with Producer(cluster.name_servers, group="p") as producer:
            traffic = await traffic_through_kill(producer, dead)
        assert traffic.failed == []
        assert traffic.longest_gap_s() <= OUTAGE_S_MAX
        found = await read_until(cluster, lambda found: len(found) >= SENDS_AFTER)
        assert traffic.stored.keys() - found.keys(), "what the dead one has waits"
        await asyncio.to_thread(dead.start)
        await asyncio.to_thread(cluster.wait_until, dead.is_registered)
        found += await read_until(cluster, lambda rest: not traffic.stored.keys() - found.keys() - rest.keys())
        assert found.keys() == traffic.stored.keys()


async def read_until(cluster: LocalCluster, is_enough: Callable[[Counter[bytes]], bool]) -> Counter[bytes]:
    """Return the new messages that a member of a group receives, and acknowledge them."""
    found: Counter[bytes] = Counter()
    async with (
        PushConsumer(cluster.name_servers, group="g", topics={"T": "*"}, consume_from=ConsumeFrom.FIRST) as consumer,
        asyncio.timeout(60),
    ):
        while not is_enough(found):
            message = await consumer.receive(1)
            if message is not None:
                found[message.body] += 1
                await message.ack()
    return found
