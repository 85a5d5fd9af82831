"""Metrics of the server of Kafka consumers, and whether it can serve, by HTTP."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tandemq.errors import NotConnected
from tandemq.kafka.front import KafkaFront
from tandemq.kafka.metrics import KafkaMonitoring
from tandemq.kafka.partitions import PartitionNumbers
from tandemq.kafka.requests import Api
from tandemq.kafka.server import KafkaServer
from tests.spec import spec
from tests.unit.kafka.test_batches import stored
from tests.unit.kafka.test_server import Consumer, FakeCluster, pulled

Get = Callable[[str], Awaitable[str]]


class _Cluster(FakeCluster):
    """A cluster whose name server does not respond, or has no broker."""

    brokers: tuple[str, ...] = ("127.0.0.1:10911",)

    async def addresses(self) -> list[str]:
        if self.error is not None:
            raise self.error
        return list(self.brokers)


def _read(url: str) -> str:
    try:
        with urlopen(url, timeout=30) as response:
            text: str = response.read().decode()
            return text
    except HTTPError as error:
        return f"{error.code} {error.read().decode()}"


def serve(tmp_path: Path, test: Callable[[_Cluster, Consumer, Get], Awaitable[None]]) -> None:
    """Run a test with a server, one connection to it, and its metrics."""

    async def run() -> None:
        cluster = _Cluster()
        front = KafkaFront(cluster, PartitionNumbers(tmp_path / "numbers.json"), ("localhost", 9092))
        server = KafkaServer(front)
        listener = socket.create_server(("127.0.0.1", 0))
        await server.start([listener])
        monitoring = KafkaMonitoring(("127.0.0.1", 0), front, server, cluster)
        consumer = Consumer(*await asyncio.open_connection(*listener.getsockname()))
        try:
            async with asyncio.timeout(60):
                await test(
                    cluster, consumer, lambda path: asyncio.to_thread(_read, f"http://{monitoring.address}/{path}")
                )
        finally:
            consumer.writer.close()
            monitoring.close()
            await server.close()

    asyncio.run(run())


def values(page: str) -> dict[str, float]:
    """Return the values of a page by series."""
    lines = [line.rpartition(" ") for line in page.splitlines() if not line.startswith("#")]
    return {series: float(value) for series, _, value in lines}


@spec("P49")
def test_requests_messages_and_errors_are_counted(tmp_path: Path) -> None:
    async def test(cluster: _Cluster, consumer: Consumer, get: Get) -> None:
        consumer.send(Api.METADATA, 1, b"\xff\xff\xff\xff")
        await consumer.receive()
        consumer.fetch(5, numbers=(0, 7))
        pull, answer = await cluster.pulls.get()
        answer.set_result(pulled(pull, 3))
        await consumer.fetched()
        found = values(await get("metrics"))
        size = found.pop("tandemq_kafka_sent_bytes_total")
        assert size >= 3 * len(stored(5).body)
        assert found == {
            "tandemq_kafka_connections": 1,
            "tandemq_kafka_refused_connections_total": 0,
            'tandemq_kafka_requests_total{request="metadata"}': 1,
            'tandemq_kafka_requests_total{request="fetch"}': 1,
            'tandemq_kafka_errors_total{error="unknown_topic_or_partition"}': 1,
            "tandemq_kafka_messages_sent_total": 3,
            "tandemq_kafka_held_bytes": 0,
        }
        consumer.send(99, 0)
        assert await consumer.is_closed()
        while not values(await get("metrics"))["tandemq_kafka_refused_connections_total"]:
            continue  # a page is kept for half a second
        assert json.loads(await get("healthz"))

    serve(tmp_path, test)


@spec("P49")
@pytest.mark.parametrize(
    ("brokers", "error", "reason"),
    [((), None, "no broker is registered"), (("127.0.0.1:10911",), NotConnected("it is down"), "it is down")],
)
def test_server_without_brokers_is_not_ready(
    brokers: tuple[str, ...], error: Exception | None, reason: str, tmp_path: Path
) -> None:
    async def test(cluster: _Cluster, _consumer: Consumer, get: Get) -> None:
        cluster.brokers, cluster.error = brokers, error
        assert reason in await get("readyz")
        assert (await get("readyz")).startswith("503")

    serve(tmp_path, test)


@spec("P49")
def test_server_with_a_broker_is_ready(tmp_path: Path) -> None:
    async def test(_cluster: _Cluster, _consumer: Consumer, get: Get) -> None:
        assert not (await get("readyz")).startswith("503")

    serve(tmp_path, test)
