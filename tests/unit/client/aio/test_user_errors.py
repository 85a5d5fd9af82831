"""Errors of new users: wrong addresses, missing topics, failing code; each is reported, and nothing hangs."""

import asyncio
import logging
import socket
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tandemq.client.aio import transport
from tandemq.client.aio.producer import Producer
from tandemq.client.aio.pull_consumer import PullConsumer
from tandemq.client.aio.push_consumer import PushConsumer
from tandemq.client.blocking import BlockingConsumer
from tandemq.client.consumer import rebalance
from tandemq.client.node import ClientNode
from tandemq.errors import ClosedError, ConfigError, NetworkError, OutcomeUnknown, RemoteError
from tandemq.model.message import Message, SendResult, SendStatus
from tandemq.run.local import LocalCluster


@pytest.fixture
def silent() -> Iterator[str]:
    """Return an address that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def closed_port() -> str:
    """Return an address without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def black_hole(host: str, port: int = 0) -> Iterator[str]:
    """Yield an address that does not respond to attempts to connect: its queue of them is full."""
    with ExitStack() as sockets:
        server = sockets.enter_context(socket.create_server((host, port), backlog=0))
        for _ in range(4):
            client = sockets.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield f"{host}:{server.getsockname()[1]}"


def recorded(monkeypatch: pytest.MonkeyPatch) -> tuple[list[float], list[float | None]]:
    """Return lists of the pauses and of the time limits that asyncio is asked for from now on, seconds."""
    pauses, limits = list[float](), list[float | None]()
    sleep, timeout = asyncio.sleep, asyncio.timeout

    async def noted_sleep(delay: float) -> None:
        pauses.append(delay)
        await sleep(delay)

    def noted_timeout(delay: float | None) -> asyncio.Timeout:
        limits.append(delay)
        return timeout(delay)

    monkeypatch.setattr(asyncio, "sleep", noted_sleep)
    monkeypatch.setattr(asyncio, "timeout", noted_timeout)
    return pauses, limits


@pytest.mark.parametrize("where", ["silent", "closed_port"])
@pytest.mark.parametrize("kind", [PushConsumer, PullConsumer])
async def test_consumer_without_a_name_server_fails_within_its_timeout(
    where: str,
    kind: type[PushConsumer] | type[PullConsumer],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses, limits = recorded(monkeypatch)
    consumer = kind(request.getfixturevalue(where), group="g", start_timeout_ms=500)
    with pytest.raises(NetworkError, match="no name server responds"):
        await consumer.start()
    assert max(limit for limit in limits if limit is not None and limit != transport.CLOSE_AFTER_ERROR_S) <= 0.5
    assert limits[-1] == transport.CLOSE_AFTER_ERROR_S, "closed without waiting for long"
    assert pauses.count(transport.START_PAUSE_MS / 1000) <= 500 // transport.START_PAUSE_MS


def test_blocking_consumer_without_a_name_server_fails_as_well(closed_port: str) -> None:
    with pytest.raises(NetworkError, match="usually listens at port 9876"):
        BlockingConsumer(closed_port, group="g", topics={"T": "*"}, start_timeout_ms=300)


async def test_broker_given_as_name_server_is_named(tandemq_broker: LocalCluster) -> None:
    with pytest.raises(RemoteError, match="is not a name server; is it a broker"):
        await PushConsumer(tandemq_broker.address, group="g", topics={"T": "*"}).start()


def test_bad_expression_is_refused_where_the_consumer_is_made() -> None:
    with pytest.raises(ConfigError, match="write `"):
        PushConsumer("127.0.0.1:1", group="g", topics={"T": "a | b"})


async def test_unknown_topic_is_logged_at_once_and_once_a_minute(
    tandemq_broker: LocalCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalance, "RETRY_MS", 5)
    caplog.set_level(logging.WARNING)

    def said() -> list[str]:
        return [record.getMessage() for record in caplog.records if "nothing is consumed" in record.getMessage()]

    async with PushConsumer(tandemq_broker.name_servers, group="g", topics={"Missing": "*"}) as consumer:
        async with asyncio.timeout(60):
            while not said():
                await consumer.receive(0.01)
        await consumer.receive(0.3)
    (line,) = said()
    assert "group=g topic=Missing reason=no name server knows the topic Missing" in line


async def test_error_of_a_send_shows_the_callers_frames_and_close_does_not_wait(
    closed_port: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Producer(closed_port, group="g", timeout_ms=300, retries=0, retry_ms=0)
    await producer.start()
    with pytest.raises(NetworkError) as raised:
        await producer.send(Message("T", b"x"))
    files = {frame.filename.rpartition("/")[2] for frame in traceback.extract_tb(raised.value.__traceback__)}
    assert files <= {"test_user_errors.py", "producer.py", "transport.py", "calls.py"}
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None
    _, limits = recorded(monkeypatch)
    await producer.close()
    assert limits == [transport.CLOSE_AFTER_ERROR_S]


async def test_client_ends_at_once_when_the_body_fails_while_sends_are_in_flight(silent: str) -> None:
    with pytest.raises(KeyError):
        async with Producer(silent, group="g", timeout_ms=3_600_000) as producer:  # longer than a test may take
            producer.begin(Message("T", b"x"))
            await asyncio.sleep(0)
            raise KeyError("the user's")


async def test_message_in_flight_when_a_client_is_closed_has_an_unknown_outcome(
    tandemq_broker: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "CLOSE_AFTER_ERROR_S", 0.01)

    async def sent_without_response(producer: Producer) -> asyncio.Task[SendResult]:
        await producer.send(Message("T", b"x"))
        monkeypatch.setattr(producer._shell, "received", lambda *_: None)
        sending = asyncio.create_task(producer.send(Message("T", b"x")))
        await asyncio.sleep(0)
        return sending

    in_flight: list[asyncio.Task[SendResult]] = []
    with pytest.raises(KeyError):
        async with Producer(tandemq_broker.name_servers, group="g") as producer:
            in_flight.append(await sent_without_response(producer))
            raise KeyError("the user's")
    producer = Producer(tandemq_broker.name_servers, group="g")
    await producer.start()
    in_flight.append(await sent_without_response(producer))
    closing = asyncio.create_task(producer.close())
    await asyncio.sleep(0)
    closing.cancel()
    for sending in in_flight:
        with pytest.raises(OutcomeUnknown, match="may have been carried out"):
            await sending
    with pytest.raises(ClosedError):
        await producer.send(Message("T", b"x"))


async def test_internal_error_fails_waiting_operations(
    tandemq_broker: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Producer(tandemq_broker.name_servers, group="g") as producer:
        await producer.send(Message("T", b"x"))

        def broken(*_: object) -> None:
            raise RuntimeError("a mistake")

        monkeypatch.setattr(ClientNode, "turn", broken)
        with pytest.raises(OutcomeUnknown, match="the client failed: RuntimeError"):
            await producer.send(Message("T", b"y"))
        with pytest.raises(ClosedError, match="the client failed: RuntimeError"):
            await producer.send(Message("T", b"z"))


async def test_next_address_of_a_host_is_tried_while_one_does_not_respond(
    tandemq_broker: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = transport._addresses

    async def two(host: str, port: int) -> list[str]:
        return ["127.0.0.2", *await addresses(host, port)]

    port = int(tandemq_broker.address.rpartition(":")[2])
    with black_hole("127.0.0.2", port):
        monkeypatch.setattr(transport, "_addresses", two)
        async with Producer(tandemq_broker.name_servers, group="g", retries=0, retry_ms=0) as producer:
            result = await producer.send(Message("T", b"x"))
            assert result.status is SendStatus.SEND_OK


@pytest.mark.parametrize("where", ["127.0.0.1", "localhost"])
async def test_refused_connection_is_named_the_same_on_each_event_loop(where: str, closed_port: str) -> None:
    address = f"{where}:{closed_port.rpartition(':')[2]}"
    async with Producer(address, group="g", retries=0, retry_ms=0) as producer:
        with pytest.raises(NetworkError, match=f"{address} cannot be reached: connection refused"):
            await producer.send(Message("T", b"x"))
