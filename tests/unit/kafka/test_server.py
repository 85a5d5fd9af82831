"""The server on a loopback socket, in front of a cluster of the test: requests, waits, limits."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tandemq.client.consumer.offsets.lookup import QueueBounds
from tandemq.errors import AuthenticationError, NetworkError, RemoteError
from tandemq.kafka import accounts, front, server
from tandemq.kafka import cluster as cluster_module
from tandemq.kafka.accounts import KafkaAccounts
from tandemq.kafka.cluster import ClusterReader, Pulled, QueuePull
from tandemq.kafka.front import PARTITIONS_MAX, KafkaFront
from tandemq.kafka.partitions import PartitionNumbers
from tandemq.kafka.requests import Api, FetchPart, FetchRequest, KafkaError, TopicPartition
from tandemq.kafka.server import FRAME_BYTES_MAX, KafkaServer
from tandemq.kafka.wire import WireReader, WireWriter
from tandemq.model.access import NOT_AUTHENTICATED, Credentials
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue
from tests.spec import spec
from tests.unit.kafka.test_batches import stored

QUEUES = [MessageQueue("Orders", "broker-a", number) for number in range(2)]
WAIT_MS = 20_000


class FakeCluster(ClusterReader):
    """Two queues whose pulls the test answers."""

    def __init__(self) -> None:
        self.pulls: asyncio.Queue[tuple[QueuePull, asyncio.Future[Pulled]]] = asyncio.Queue()
        self.error: Exception | None = None
        self.is_closed = False

    async def topics(self) -> list[str]:
        return ["Orders"]

    async def queues(self, topics: Sequence[str]) -> dict[str, list[MessageQueue]]:
        return {"Orders": QUEUES} if "Orders" in topics else {}

    async def bounds(self, queue: MessageQueue) -> QueueBounds:
        if self.error is not None:
            raise self.error
        return QueueBounds(3, 10 + queue.queue_id)

    async def at_time(self, queue: MessageQueue, wall_ms: int) -> int:
        return wall_ms

    async def addresses(self) -> list[str]:
        return ["127.0.0.1:10911"]

    async def check_user(self, addresses: Sequence[str]) -> None:
        assert addresses == await self.addresses()
        if self.error is not None:
            raise self.error

    async def close(self) -> None:
        self.is_closed = True

    async def pull(self, pull: QueuePull) -> Pulled:
        answer: asyncio.Future[Pulled] = asyncio.get_running_loop().create_future()
        self.pulls.put_nowait((pull, answer))
        return await answer


class Consumer:
    """One connection, which sends requests of the test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, api: int, version: int, body: bytes = b"") -> None:
        head = WireWriter()
        head.int16(api)
        head.int16(version)
        head.int32(77)
        head.string("test")
        self.writer.write((len(head.data) + len(body)).to_bytes(4, "big") + head.data + body)

    async def receive(self) -> WireReader:
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        reader = WireReader(await self.reader.readexactly(size))
        assert reader.int32() == 77
        return reader

    async def is_closed(self) -> bool:
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True

    def fetch(self, offset: int, *, wait_ms: int = WAIT_MS, numbers: Sequence[int] = (0,)) -> None:
        body = WireWriter()
        for value in (-1, wait_ms, 1, 1 << 20):
            body.int32(value)
        body.int8(0)
        body.int32(1)
        body.string("Orders")
        body.int32(len(numbers))
        for number in numbers:
            body.int32(number)
            body.int64(offset)
            body.int32(1 << 20)
        self.send(Api.FETCH, 4, bytes(body.data))

    async def fetched(self) -> dict[int, tuple[KafkaError, int, int]]:
        """Return error, end and size of the batch by partition."""
        reader = await self.receive()
        assert [reader.int32(), reader.int32(), reader.string()] == [0, 1, "Orders"]
        found = {}
        for _ in range(reader.int32()):
            number, error, end = reader.int32(), KafkaError(reader.int16()), reader.int64()
            assert [reader.int64(), reader.int32()] == [end, -1]
            size = reader.int32()
            for _ in range(size):
                reader.int8()
            found[number] = (error, end, size)
        return found


def serve(
    tmp_path: Path,
    test: Callable[[FakeCluster, Callable[[], Awaitable[Consumer]]], Awaitable[None]],
    accounts: KafkaAccounts | None = None,
) -> None:
    """Run a test with a server; it gets the cluster, and what opens connections."""

    async def run() -> None:
        cluster = FakeCluster()
        numbers = PartitionNumbers(tmp_path / "numbers.json")
        numbers.update({"Orders": QUEUES})
        running = KafkaServer(KafkaFront(cluster, numbers, ("localhost", 9092), accounts))
        listener = socket.create_server(("127.0.0.1", 0))
        await running.start([listener])
        opened: list[Consumer] = []

        async def connect() -> Consumer:
            opened.append(Consumer(*await asyncio.open_connection(*listener.getsockname())))
            return opened[-1]

        try:
            async with asyncio.timeout(60):
                await test(cluster, connect)
        finally:
            for consumer in opened:
                consumer.writer.close()
            await running.close()

    asyncio.run(run())


def pulled(pull: QueuePull, count: int, **more: Any) -> Pulled:
    messages = [stored(pull.offset + at) for at in range(count)]
    return Pulled(messages, pull.offset, pull.offset + count, QueueBounds(3, 50), **more)


@spec("P43")
def test_metadata_names_the_queues_as_partitions_of_this_server(tmp_path: Path) -> None:
    async def test(_cluster: FakeCluster, connect: Callable[[], Awaitable[Consumer]]) -> None:
        consumer = await connect()
        body = WireWriter()
        body.int32(2)
        body.string("Orders")
        body.string("Nothing")
        consumer.send(Api.METADATA, 1, bytes(body.data))
        reader = await consumer.receive()
        assert [reader.int32(), reader.int32(), reader.string(), reader.int32(), reader.string()] == [
            *(1, 1, "localhost", 9092, None)
        ]
        assert [reader.int32(), reader.int32()] == [1, 2]
        assert [reader.int16(), reader.string(), reader.int8(), reader.int32()] == [0, "Orders", 0, 2]
        for number in range(2):
            assert [reader.int16(), reader.int32(), reader.int32()] == [0, number, 1]
            assert [reader.array(reader.int32), reader.array(reader.int32)] == [[1], [1]]
        assert [reader.int16(), reader.string(), reader.int8(), reader.int32()] == [3, "Nothing", 0, 0]

    serve(tmp_path, test)


@spec("P43")
def test_offsets_are_those_of_queues(tmp_path: Path) -> None:
    async def test(cluster: FakeCluster, connect: Callable[[], Awaitable[Consumer]]) -> None:
        consumer = await connect()
        body = WireWriter()
        body.int32(-1)
        body.int32(1)
        body.string("Orders")
        asked = [(0, -1), (1, -1), (0, -2), (1, 7), (1, 11), (2, -1)]
        body.int32(len(asked))
        for number, timestamp in asked:
            body.int32(number)
            body.int64(timestamp)

        async def offsets() -> list[tuple[int, int]]:
            consumer.send(Api.LIST_OFFSETS, 1, bytes(body.data))
            reader = await consumer.receive()
            assert [reader.int32(), reader.string(), reader.int32()] == [1, "Orders", len(asked)]
            found = []
            for number, _ in asked:
                assert reader.int32() == number
                error, _, offset = reader.int16(), reader.int64(), reader.int64()
                found.append((error, offset))
            return found

        assert await offsets() == [(0, 10), (0, 11), (0, 3), (0, 7), (0, -1), (3, -1)]
        for error, code in ((NetworkError("down"), 6), (RemoteError("no", code=ResponseCode.NO_PERMISSION), 29)):
            cluster.error = error
            assert await offsets() == [(code, -1)] * 5 + [(3, -1)]

    serve(tmp_path, test)


@spec("P44")
def test_a_pull_in_flight_serves_the_next_fetch_of_its_offset(tmp_path: Path) -> None:
    async def test(cluster: FakeCluster, connect: Callable[[], Awaitable[Consumer]]) -> None:
        consumer = await connect()
        consumer.fetch(5, wait_ms=1, numbers=(0, 1))
        pulls = {pull.queue: (pull, answer) for pull, answer in [await cluster.pulls.get(), await cluster.pulls.get()]}
        assert await consumer.fetched() == {0: (0, -1, 0), 1: (0, -1, 0)}
        consumer.fetch(5, numbers=(0, 1))
        pull, answer = pulls[QUEUES[1]]
        answer.set_result(pulled(pull, 2))
        found = await consumer.fetched()
        assert found[0] == (0, -1, 0)
        assert found[1][:2] == (0, 50)
        assert found[1][2] > 0
        assert cluster.pulls.empty()
        consumer.fetch(5, numbers=(0,))
        pull, answer = pulls[QUEUES[0]]
        answer.set_result(pulled(pull, 0, is_outside=True))
        assert await consumer.fetched() == {0: (KafkaError.OFFSET_OUT_OF_RANGE, 50, 0)}

    serve(tmp_path, test)


@spec("P43")
def test_errors_of_brokers_are_codes_of_the_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "FAILED_PAUSE_S", 0.0)

    async def test(cluster: FakeCluster, connect: Callable[[], Awaitable[Consumer]]) -> None:
        consumer = await connect()
        for error, code in (
            (NetworkError("down"), KafkaError.NOT_LEADER),
            (RemoteError("no", code=ResponseCode.NO_PERMISSION), KafkaError.TOPIC_AUTHORIZATION_FAILED),
            (RemoteError("no", code=ResponseCode.TOPIC_NOT_EXIST), KafkaError.UNKNOWN_TOPIC_OR_PARTITION),
        ):
            consumer.fetch(5)
            _, answer = await cluster.pulls.get()
            answer.set_exception(error)
            assert await consumer.fetched() == {0: (code, -1, 0)}
        consumer.fetch(5, numbers=(9,))
        assert await consumer.fetched() == {9: (KafkaError.UNKNOWN_TOPIC_OR_PARTITION, -1, 0)}

    serve(tmp_path, test)


@spec("P45")
def test_what_is_not_served_closes_its_connection_and_no_other(tmp_path: Path) -> None:
    async def test(cluster: FakeCluster, connect: Callable[[], Awaitable[Consumer]]) -> None:
        other = await connect()
        other.fetch(5)
        pull, answer = await cluster.pulls.get()
        for api, version, body in (
            (11, 0, b""),  # JoinGroup
            (Api.PRODUCE, 9, b""),
            (Api.PRODUCE, 3, produced(0)),
            (Api.PRODUCE, 3, produced(1)[:-1]),
            (Api.FIND_COORDINATOR, 3, b""),
            (Api.METADATA, 9, b""),
            (Api.METADATA, 1, b"\x7f\xff\xff\xff"),
            (Api.FETCH, 4, b"\0" * 17 + b"\0\0\0\1"),
            (Api.LIST_OFFSETS, 1, b""),
        ):
            consumer = await connect()
            consumer.send(api, version, body)
            assert await consumer.is_closed(), (api, version)
        for size in (FRAME_BYTES_MAX + 1, 0xFFFFFFFF):
            consumer = await connect()
            consumer.writer.write(size.to_bytes(4, "big"))
            assert await consumer.is_closed(), size
        consumer = await connect()
        consumer.fetch(5, numbers=range(PARTITIONS_MAX + 1))
        assert await consumer.is_closed()
        answer.set_result(pulled(pull, 1))
        assert (await other.fetched())[0][:2] == (0, 50)

    serve(tmp_path, test)


def produced(acks: int, numbers: Sequence[int] = (1, 5)) -> bytes:
    """Return a request to store messages in partitions."""
    body = WireWriter()
    body.string(None)
    body.int16(acks)
    body.int32(1_000)
    body.int32(1)
    body.string("Orders")
    body.int32(len(numbers))
    for number in numbers:
        body.int32(number)
        body.sized(b"a batch")
    return bytes(body.data)


@spec("P45")
@pytest.mark.parametrize("acks", [1, -1])
def test_sends_are_refused(tmp_path: Path, acks: int) -> None:
    async def test(_cluster: FakeCluster, connect: Callable[[], Awaitable[Consumer]]) -> None:
        consumer = await connect()
        for numbers in ((1, 5), range(PARTITIONS_MAX)):
            consumer.send(Api.PRODUCE, 3, produced(acks, numbers))
            reader = await consumer.receive()
            assert (reader.int32(), reader.string(), reader.int32()) == (1, "Orders", len(numbers))
            for number in numbers:
                assert (reader.int32(), reader.int16()) == (number, KafkaError.TOPIC_AUTHORIZATION_FAILED)
                assert (reader.int64(), reader.int64()) == (-1, -1)
            assert reader.int32() == 0
        consumer.send(Api.PRODUCE, 3, produced(acks, range(PARTITIONS_MAX + 1)))
        assert await consumer.is_closed()

    serve(tmp_path, test)


@spec("P45")
def test_groups_have_a_coordinator_that_takes_no_members(tmp_path: Path) -> None:
    async def test(_cluster: FakeCluster, connect: Callable[[], Awaitable[Consumer]]) -> None:
        consumer = await connect()
        for version in range(3):
            consumer.send(Api.FIND_COORDINATOR, version, bodies("billing"))
            reader = await consumer.receive()
            assert version == 0 or reader.int32() == 0
            assert reader.int16() == KafkaError.NONE
            assert version == 0 or reader.string() is None
            assert (reader.int32(), reader.string(), reader.int32()) == (1, "localhost", 9092)
        consumer.send(11, 0)
        assert await consumer.is_closed()

    serve(tmp_path, test)


@spec("P45")
def test_an_unknown_version_of_the_first_request_is_answered_with_those_that_are_known(tmp_path: Path) -> None:
    async def test(_cluster: FakeCluster, connect: Callable[[], Awaitable[Consumer]]) -> None:
        consumer = await connect()
        consumer.send(Api.API_VERSIONS, 99)
        reader = await consumer.receive()
        assert reader.int16() == KafkaError.UNSUPPORTED_VERSION
        assert reader.array(lambda: (reader.int16(), reader.int16(), reader.int16())) == [
            *((0, 3, 3), (1, 4, 11), (2, 1, 5), (3, 0, 8), (10, 0, 2), (18, 0, 3))
        ]

    serve(tmp_path, test)


@spec("P45")
def test_silent_slow_and_surplus_connections_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "IDLE_S", 0.01)
    monkeypatch.setattr(server, "REQUEST_S", 0.01)

    async def test(_cluster: FakeCluster, connect: Callable[[], Awaitable[Consumer]]) -> None:
        assert await (await connect()).is_closed()
        monkeypatch.setattr(server, "IDLE_S", WAIT_MS)
        consumer = await connect()
        consumer.writer.write(b"\0\0")
        assert await consumer.is_closed()
        monkeypatch.setattr(server, "CONNECTIONS_MAX", 0)
        assert await (await connect()).is_closed()

    serve(tmp_path, test)


@spec("P45")
def test_a_response_is_cut_at_the_limits_of_the_request(tmp_path: Path) -> None:
    async def test(cluster: FakeCluster, connect: Callable[[], Awaitable[Consumer]]) -> None:
        consumer = await connect()
        consumer.fetch(5)
        pull, answer = await cluster.pulls.get()
        messages = [stored(5 + at, b"x" * 400_000) for at in range(4)]
        answer.set_result(Pulled(messages, 5, 9, QueueBounds(0, 9)))
        assert 800_000 < (await consumer.fetched())[0][2] < 1 << 20
        consumer.fetch(7)
        pull, answer = await cluster.pulls.get()
        assert pull.offset == 7
        answer.set_result(Pulled([stored(7, b"x" * 3_000_000)], 7, 8, QueueBounds(0, 9)))
        assert (await consumer.fetched())[0][2] > 3_000_000

    serve(tmp_path, test)


@spec("P45")
@pytest.mark.parametrize("limit", ["RESPONSE_BYTES_MAX", "HELD_BYTES_MAX"])
def test_messages_beyond_what_may_be_held_are_pulled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    async def test(cluster: FakeCluster, connect: Callable[[], Awaitable[Consumer]]) -> None:
        consumer = await connect()
        consumer.fetch(5, numbers=(0, 1))
        pulls = dict([await cluster.pulls.get(), await cluster.pulls.get()])
        monkeypatch.setattr(front, limit, 1_500_000)
        for answer in pulls.values():
            answer.set_result(Pulled([stored(5, b"x" * 1_000_000)], 5, 6, QueueBounds(0, 9)))
        sizes = {number: size for number, (_, _, size) in (await consumer.fetched()).items()}
        (full,) = [number for number, size in sizes.items() if size > 1_000_000]
        assert sizes[1 - full] == 0
        consumer.fetch(5, numbers=(1 - full,))
        pull, answer = await cluster.pulls.get()
        assert (pull.queue.queue_id, pull.offset) == (1 - full, 5)
        answer.set_result(Pulled([stored(5, b"x" * 2_000_000)], 5, 6, QueueBounds(0, 9)))
        assert (await consumer.fetched())[1 - full][2] > 2_000_000, "one pull's are held in any case"

    serve(tmp_path, test)


@spec("P45")
def test_held_messages_of_a_closed_connection_are_forgotten(tmp_path: Path) -> None:
    numbers = PartitionNumbers(tmp_path / "numbers.json")
    numbers.update({"Orders": QUEUES})
    cluster = FakeCluster()
    served = KafkaFront(cluster, numbers, ("localhost", 9092))

    async def test() -> None:
        session = served.session()
        parts = [FetchPart(TopicPartition("Orders", number), 5, 1 << 20) for number in (0, 1)]
        fetching = asyncio.create_task(session.fetch(FetchRequest(WAIT_MS, 1 << 30, 1, parts)))
        for pull, answer in [await cluster.pulls.get(), await cluster.pulls.get()]:
            answer.set_result(pulled(pull, 1))
        assert [bool(answer.batch) for answer in await fetching] == [True, False], "the other is held"
        assert served.held_bytes > 0
        session.close()
        assert served.held_bytes == 0

    asyncio.run(test())


def test_pulls_of_a_silent_connection_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HELD_S", 0.2)

    async def test(cluster: FakeCluster, connect: Callable[[], Awaitable[Consumer]]) -> None:
        consumer = await connect()
        consumer.fetch(5, wait_ms=1)
        _, answer = await cluster.pulls.get()
        await consumer.fetched()
        await asyncio.wait([answer])
        assert answer.cancelled()
        consumer.fetch(5)
        pull, answer = await cluster.pulls.get()
        answer.set_result(pulled(pull, 1))
        assert (await consumer.fetched())[0][2] > 0

    serve(tmp_path, test)


@pytest.mark.parametrize("held", [0, 2 * front.HELD_BYTES_MAX - 1, 2 * front.HELD_BYTES_MAX])
def test_connections_hold_messages_up_to_a_limit_of_all(tmp_path: Path, held: int) -> None:
    session = KafkaFront(FakeCluster(), PartitionNumbers(tmp_path / "n.json"), ("localhost", 9092)).session()
    session._counts.held = held
    assert session._has_room(60 << 20) == (held < 2 * front.HELD_BYTES_MAX)


@spec("P43")
def test_an_idle_partition_has_its_end_in_the_response(tmp_path: Path) -> None:
    """Consumers notice the end of a partition by it; the broker is asked for it by a pull that it does not hold."""

    async def test(cluster: FakeCluster, connect: Callable[[], Awaitable[Consumer]]) -> None:
        consumer = await connect()
        consumer.fetch(50, wait_ms=200)
        pull, answer = await cluster.pulls.get()
        assert pull.held_ms == 0
        answer.set_result(pulled(pull, 0))
        pull, _ = await cluster.pulls.get()
        assert pull.held_ms > 0
        assert await consumer.fetched() == {0: (KafkaError.NONE, 50, 0)}

    serve(tmp_path, test)


def test_errors_of_many_partitions_are_delayed_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other would keep the last ones from being pulled again for minutes."""
    monkeypatch.setattr(front, "FAILED_PAUSE_S", 0.2)
    session = KafkaFront(FakeCluster(), PartitionNumbers(tmp_path / "n.json"), ("localhost", 9092)).session()

    async def test() -> list[float]:
        loop = asyncio.get_running_loop()

        async def fail() -> float:
            await session._delay_failure()
            return session._delayed_until_s - loop.time()

        return list(await asyncio.gather(*[fail() for _ in range(1_000)]))

    left = asyncio.run(asyncio.wait_for(test(), 60))
    assert left[0] > 0, "the first one is reported at once"
    assert all(each <= 0.01 for each in left[1:]), "the others at one time"


def test_a_pull_that_a_busy_broker_refuses_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "BUSY_PAUSE_S", 0.01)

    async def test(cluster: FakeCluster, connect: Callable[[], Awaitable[Consumer]]) -> None:
        consumer = await connect()
        consumer.fetch(5)
        for _ in range(3):
            _, answer = await cluster.pulls.get()
            answer.set_exception(RemoteError("too many pulls are held", code=ResponseCode.SYSTEM_BUSY))
        pull, answer = await cluster.pulls.get()
        answer.set_result(pulled(pull, 1))
        assert (await consumer.fetched())[0][0] == KafkaError.NONE

    serve(tmp_path, test)


@pytest.mark.parametrize("code", [ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_RETRY_IMMEDIATELY])
def test_offset_beyond_a_member_that_is_behind_is_not_out_of_range(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Consumers would read the queue again from its start."""
    fields = {"minOffset": "0", "maxOffset": "40", "nextBeginOffset": "40" if code == 21 else "60"}

    def ask(*_: object) -> Generator[None, None, Command]:
        return Command(code, fields=fields)
        yield

    monkeypatch.setattr(cluster_module, "_ask", ask)
    steps = cluster_module._pull(object(), QueuePull(QUEUES[0], 60, is_bulk=False))  # type: ignore[arg-type]
    with pytest.raises(StopIteration) as caught:
        next(steps)
    found: Pulled = caught.value.value
    assert (found.is_outside, found.following) == (code == ResponseCode.PULL_OFFSET_MOVED, 60)


# Users.


def bodies(*values: str | bytes) -> bytes:
    """Return strings and sized bytes as a request has them."""
    writer = WireWriter()
    for value in values:
        writer.string(value) if isinstance(value, str) else writer.sized(value)
    return bytes(writer.data)


async def sign_in(consumer: Consumer, token: bytes) -> tuple[KafkaError, str | None]:
    consumer.send(Api.SASL_AUTHENTICATE, 1, bodies(token))
    reader = await consumer.receive()
    return KafkaError(reader.int16()), reader.string()


@spec("P49")
def test_consumers_sign_in_and_read_with_the_rights_of_their_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "FAILED_PAUSE_S", 0)
    opened: dict[str, FakeCluster] = {}

    def open_reader(user: Credentials) -> ClusterReader:
        reader = opened[user.access_key] = FakeCluster()
        if user.secret_key != "right":
            reader.error = AuthenticationError(NOT_AUTHENTICATED)
        return reader

    async def test(cluster: FakeCluster, connect: Callable[[], Awaitable[Consumer]]) -> None:
        consumer = await connect()
        consumer.send(Api.API_VERSIONS, 0)
        versions = await consumer.receive()
        assert (versions.int16(), versions.int32()) == (0, 8)
        for mechanism, error in (("SCRAM-SHA-256", KafkaError.UNSUPPORTED_SASL_MECHANISM), ("PLAIN", KafkaError.NONE)):
            consumer.send(Api.SASL_HANDSHAKE, 1, bodies(mechanism))
            reader = await consumer.receive()
            assert (reader.int16(), reader.int32(), reader.string()) == (error, 1, "PLAIN")
        for token in (b"", b"\0\0", b"\0eve\0", b"eve\0right", b"\0eve\0wrong", b"\0e\0v\0e"):
            refused, reason = await sign_in(consumer, token)
            assert refused is KafkaError.SASL_AUTHENTICATION_FAILED
            assert reason is not None and "wrong" not in reason.replace(NOT_AUTHENTICATED, "")
        assert await sign_in(consumer, b"\0eve\0right") == (KafkaError.NONE, None)
        assert (await sign_in(consumer, b"\0eve\0right"))[0] is KafkaError.ILLEGAL_SASL_STATE
        consumer.fetch(5)
        pull, answer = await opened["eve"].pulls.get()
        answer.set_result(pulled(pull, 1))
        assert (await consumer.fetched())[0][0] is KafkaError.NONE
        assert cluster.pulls.empty()

        second = await connect()
        second.fetch(5)
        assert await second.is_closed()

    serve(tmp_path, test, KafkaAccounts(open_reader))


@spec("P49")
def test_requests_to_sign_in_are_not_served_where_nobody_needs_to(tmp_path: Path) -> None:
    async def test(_cluster: FakeCluster, connect: Callable[[], Awaitable[Consumer]]) -> None:
        for api in (Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE):
            consumer = await connect()
            consumer.send(api, 1, bodies("PLAIN"))
            assert await consumer.is_closed()

    serve(tmp_path, test)


@spec("P49")
def test_readers_of_users_who_have_gone_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "USERS_MAX", 2)
    addresses = ["127.0.0.1:10911"]

    async def run() -> None:
        users = KafkaAccounts(lambda _user: FakeCluster())
        first, second = await users.sign_in(b"\0a\0k", addresses), await users.sign_in(b"\0b\0k", addresses)
        assert first is not second
        assert await users.sign_in(b"\0a\0k", addresses) is first, "consumers of a user share it"
        with pytest.raises(AuthenticationError, match="2 users"):
            await users.sign_in(b"\0c\0k", addresses)
        users.leave(first)
        with pytest.raises(AuthenticationError, match="2 users"):
            await users.sign_in(b"\0c\0k", addresses)
        users.leave(second)
        third = await users.sign_in(b"\0c\0k", addresses)
        await users.close()
        assert [reader.is_closed for reader in (first, second, third) if isinstance(reader, FakeCluster)] == [True] * 3

    asyncio.run(run())
