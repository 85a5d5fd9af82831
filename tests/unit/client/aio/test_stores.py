"""Stores of handled messages: SQLite, a real Redis server, and one of the user's that fails."""

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from tandemq import (
    Admin,
    ConsumeFrom,
    Deduplication,
    DuplicateStore,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    RedisStore,
    SQLiteStore,
    StoreFailure,
)
from tandemq.client.aio import checked_deliveries
from tandemq.client.aio.deduplication import BATCH_MAX
from tandemq.client.blocking import BlockingConsumer
from tandemq.errors import ConfigError
from tandemq.run.local import LocalCluster
from tests.spec import spec

pytestmark = pytest.mark.system

MakeStore = Callable[..., DuplicateStore]


@dataclass(slots=True)
class RedisServer:
    """A server of Debian's package, on a socket in a directory of its own; nothing is saved."""

    directory: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.directory}/redis.sock"

    def start(self) -> None:
        program = shutil.which("redis-server")
        assert program is not None, "redis-server is needed: make packages for=services"
        options = ("--port", "0", "--unixsocket", f"{self.directory}/redis.sock", "--save", "", "--dir")
        with (self.directory / "redis.log").open("ab") as log:
            self.process = subprocess.Popen([program, *options, str(self.directory)], stdout=log, stderr=log)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@pytest.fixture
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("r"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.services)])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    """Each call makes a store of the same contents, as another process has."""
    if request.param == "sqlite":
        return lambda **options: SQLiteStore(tmp_path / "handled.db", **options)
    server: RedisServer = request.getfixturevalue("redis_server")
    return lambda **options: RedisStore(server.url, **options)


async def reachable(store: DuplicateStore) -> DuplicateStore:
    """Wait until the server of a store has started."""
    async with asyncio.timeout(60):
        while True:
            try:
                await store.find("g", ["x"])
            except RedisConnectionError:
                await asyncio.sleep(0)
            else:
                return store


async def send_some(cluster: LocalCluster, count: int) -> None:
    async with Producer(cluster.name_servers, group="p") as producer:
        await asyncio.gather(*[producer.send(Message("T", b"%d" % n)) for n in range(count)])


def consumer_of(cluster: LocalCluster, *, close_wait_s: float = 30.0, **deduplication: object) -> PushConsumer:
    settings = Deduplication(**deduplication)  # type: ignore[arg-type]
    first = ConsumeFrom.FIRST
    return PushConsumer(
        cluster.name_servers,
        group="g",
        topics={"T": "*"},
        consume_from=first,
        commit_ms=100,
        close_wait_s=close_wait_s,
        deduplicate=settings,
    )


async def until(probe: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not probe():  # noqa: ASYNC110  # what is waited for happens in other threads
            await asyncio.sleep(0)


@asynccontextmanager
async def handling(consumer: PushConsumer, handled: list[bytes]) -> AsyncIterator[None]:
    """Run a consumer whose handler notes the bodies."""

    async def handle(message: ReceivedMessage) -> None:
        handled.append(message.body)

    async with consumer:
        work = asyncio.create_task(consumer.run(handle, concurrency=8))
        try:
            yield
        finally:
            await consumer.close()
            await work


@spec("F37")
async def test_store_keeps_what_was_added_per_group_and_for_other_processes(make_store: MakeStore) -> None:
    store, other = await reachable(make_store()), await reachable(make_store())
    identities = [f"T:{n}" for n in range(BATCH_MAX)]
    await store.add("g", identities[:40])
    await store.add("g", identities[30:50])
    assert set(await other.find("g", identities)) == set(identities[:50])
    assert not await other.find("h", identities)
    await store.add("g", ["T:'%s:\\"])
    assert list(await other.find("g", ["T:'%s:\\", "T:'%s"])) == ["T:'%s:\\"]
    await store.close()
    await store.close()
    await other.close()
    again = make_store()
    assert set(await again.find("g", identities)) == set(identities[:50])
    await again.close()


async def test_entry_expires(make_store: MakeStore) -> None:
    lasting, brief = await reachable(make_store(keep_s=3_600)), make_store(keep_s=1)
    await lasting.add("g", ["T:1"])
    await brief.add("g", ["T:2"])
    async with asyncio.timeout(60):
        while await brief.find("g", ["T:2"]):  # noqa: ASYNC110  # another process forgets it
            await asyncio.sleep(0)
    assert await lasting.find("g", ["T:1"])
    for store in (lasting, brief):
        await store.close()


@spec("F37")
async def test_member_that_starts_again_skips_what_the_store_has(
    tandemq_broker: LocalCluster, make_store: MakeStore
) -> None:
    await send_some(tandemq_broker, 200)
    handled: list[bytes] = []
    store = await reachable(make_store())
    async with handling(consumer_of(tandemq_broker, store=store), handled):
        await until(lambda: len(handled) == 200)
    await send_some(tandemq_broker, 1)
    # Without its offsets the group starts at the first message again.
    async with Admin(tandemq_broker.name_servers) as admin:
        await admin.delete_group("g", clean=True)
    again: list[bytes] = []
    consumer = consumer_of(tandemq_broker, store=make_store())
    async with handling(consumer, again):
        await until(lambda: again and consumer.duplicates_skipped == 200)
    assert again == [b"0"]


@dataclass(slots=True)
class BrokenStore:
    """A store of the user's, which works while `works`."""

    works: bool = True
    hangs: bool = False
    known: set[str] = field(default_factory=set)
    is_closed: bool = False

    async def find(self, group: str, identities: Sequence[str]) -> Collection[str]:
        await self._answer(group)
        assert 0 < len(identities) <= BATCH_MAX
        return self.known & set(identities)

    async def add(self, group: str, identities: Sequence[str]) -> None:
        await self._answer(group)
        self.known |= set(identities)

    async def close(self) -> None:
        self.is_closed = True

    async def _answer(self, group: str) -> None:
        assert group == "g"
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        if not self.works:
            raise LookupError("away")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_deliveries, "RETRY_PAUSE_S", 0.01)
    monkeypatch.setattr(checked_deliveries, "CALL_TIMEOUT_S", 0.05)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("fault", ["works", "hangs"])
async def test_nothing_is_delivered_while_the_store_is_away(
    tandemq_broker: LocalCluster, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    store, handled = BrokenStore(), list[bytes]()
    consumer = consumer_of(tandemq_broker, store=store)
    async with handling(consumer, handled):
        setattr(store, fault, fault == "hangs")
        await send_some(tandemq_broker, 10)
        await until(lambda: consumer.store_failures > 2)
        assert not handled
        setattr(store, fault, fault == "works")
        await until(lambda: len(handled) == 10)
    assert store.is_closed and len(store.known) == 10
    (warning,) = [record for record in caplog.records if "store of handled messages fails" in record.message]
    assert "nothing is delivered until it works group=g store=BrokenStore" in warning.message


@pytest.mark.usefixtures("quick")
async def test_messages_are_delivered_while_the_store_is_away_if_so_configured(tandemq_broker: LocalCluster) -> None:
    store, handled = BrokenStore(works=False), list[bytes]()
    consumer = consumer_of(tandemq_broker, store=store, when_store_fails=StoreFailure.DELIVER)
    await send_some(tandemq_broker, 10)
    async with handling(consumer, handled):
        await until(lambda: len(handled) == 10 and consumer.store_failures >= 2)
    assert not store.known


@pytest.mark.usefixtures("quick")
async def test_acknowledgement_waits_for_the_store_and_is_not_committed_before(tandemq_broker: LocalCluster) -> None:
    store = BrokenStore()
    await send_some(tandemq_broker, 1)
    async with consumer_of(tandemq_broker, store=store) as consumer:
        message = await consumer.receive(120)
        assert message is not None
        store.works = False
        acknowledging = asyncio.create_task(message.ack())
        await until(lambda: consumer.store_failures > 2)
        assert not acknowledging.done() and not message.is_ended
        store.works = True
        await acknowledging
        assert message.is_ended and store.known == {f"T:{message.unique_key}"}


@pytest.mark.usefixtures("quick")
async def test_consumer_closed_while_the_store_is_away_gets_the_message_again(tandemq_broker: LocalCluster) -> None:
    store, handled = BrokenStore(), list[bytes]()

    async def handle(message: ReceivedMessage) -> None:
        handled.append(message.body)
        store.works = False

    await send_some(tandemq_broker, 1)
    async with consumer_of(tandemq_broker, close_wait_s=1, store=store) as consumer:
        work = asyncio.create_task(consumer.run(handle))
        await until(lambda: consumer.store_failures > 2)
        await consumer.close()
        await work
    store.works = True
    async with handling(consumer_of(tandemq_broker, store=store), handled):
        await until(lambda: len(handled) == 2)


class UnclosableStore(BrokenStore):
    """Does not work any more, and its `close` does not end."""

    def __init__(self) -> None:
        super().__init__()
        self.closing = asyncio.Event()

    async def close(self) -> None:
        self.closing.set()
        await asyncio.get_running_loop().create_future()


@pytest.mark.usefixtures("quick")
async def test_handler_that_returns_did_not_fail_if_its_message_cannot_be_noted_because_the_consumer_closes(
    tandemq_broker: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    store, messages = UnclosableStore(), list[ReceivedMessage]()

    async def handle(message: ReceivedMessage) -> None:
        messages.append(message)
        store.works = False
        if len(messages) == 2:
            await store.closing.wait()
            await message.ack()

    await send_some(tandemq_broker, 2)
    async with consumer_of(tandemq_broker, close_wait_s=1, store=store) as consumer:
        work = asyncio.create_task(consumer.run(handle, concurrency=2))
        await until(lambda: consumer.store_failures > 2 and len(messages) == 2)
        await consumer.close()
        async with asyncio.timeout(60):
            await work
    assert not [record for record in caplog.records if "handler failed" in record.message]
    assert not any(message.is_ended for message in messages), "none is sent back"


def test_blocking_consumer_takes_a_store(tandemq_broker: LocalCluster, tmp_path: Path) -> None:
    asyncio.run(send_some(tandemq_broker, 1))
    settings = Deduplication(store=SQLiteStore(tmp_path / "handled.db"))
    first = ConsumeFrom.FIRST
    with BlockingConsumer(
        tandemq_broker.name_servers, group="g", topics={"T": "*"}, consume_from=first, deduplicate=settings
    ) as consumer:
        message = consumer.receive(120)
        assert message is not None
        message.ack()
        assert (consumer.duplicates_skipped, consumer.store_failures) == (0, 0)

    async def find() -> Collection[str]:
        return await SQLiteStore(tmp_path / "handled.db").find("g", [f"T:{message.unique_key}"])

    assert list(asyncio.run(find())) == [f"T:{message.unique_key}"]


@pytest.mark.services
async def test_redis_that_is_killed_and_empty_again_delivers_no_message_twice_to_this_member(
    tandemq_broker: LocalCluster, redis_server: RedisServer
) -> None:
    handled: list[bytes] = []
    consumer = consumer_of(tandemq_broker, store=await reachable(RedisStore(redis_server.url)))
    async with handling(consumer, handled):
        await send_some(tandemq_broker, 50)
        await until(lambda: len(handled) == 50)
        redis_server.kill()
        await send_some(tandemq_broker, 50)
        await until(lambda: consumer.store_failures)
        redis_server.start()
        await until(lambda: len(handled) == 100)
    assert sorted(handled) == sorted([b"%d" % n for n in range(50)] * 2)


def test_invalid_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="window is 0"):
        Deduplication(window=0)
    with pytest.raises(ConfigError, match="keep_s"):
        SQLiteStore(tmp_path / "x", keep_s=0)
    with pytest.raises(ConfigError, match="keep_s"):
        RedisStore("redis://127.0.0.1:1", keep_s=0)
    with pytest.raises(ConfigError, match="address of Redis"):
        RedisStore("http://127.0.0.1:1")
    with pytest.raises(ConfigError, match="larger per queue than in all"):
        PushConsumer("127.0.0.1:1", group="g", deduplicate=Deduplication(window=9, window_total=3))
