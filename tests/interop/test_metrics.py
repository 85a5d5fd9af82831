"""Metrics of a Java broker 5.3.3 and of ours, scraped after the same traffic: names, types and labels."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from urllib.request import urlopen

from tandemq import (
    ConsumeFrom,
    Message,
    Producer,
    PushConsumer,
    SendStatus,
    StoredMessage,
    TransactionProducer,
    TransactionState,
)
from tests.interop.java import JavaBroker, JavaNameServer, Value, free_port, wait_until
from tests.interop.ours import OurBroker, OurNameServer
from tests.interop.peers import start_registered
from tests.interop.wire import wait_registered
from tests.spec import spec

VERSION = "5.3.3"
MESSAGES = 20
SAMPLE = re.compile(r"(rocketmq_[a-z_]+?)(?:_bucket|_sum|_count)?\{([^}]*)\} (\S+)")
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
JAVA_ONLY = {"otel_scope_name", "otel_scope_version", "aggregation", "le"}
MISSING = {
    # What has no counterpart: POP, light queues, RocksDB, and creation times of topics and groups.
    *("rocketmq_pop_", "rocketmq_topic_create_", "rocketmq_rocksdb_", "rocketmq_consumer_group_create_"),
    *("rocketmq_lmq_", "rocketmq_processor_watermark"),
}
WANTED = (
    *("rocketmq_consumer_lag_messages", "rocketmq_messages_out_total", "rocketmq_message_size"),
    *("rocketmq_consumer_connections", "rocketmq_timer_enqueue_total", "rocketmq_timer_dequeue_total"),
    *("rocketmq_finish_message_latency_milliseconds", "rocketmq_rollback_messages_total", "rocketmq_half_messages"),
)
"""Families that have samples when everything sent was counted."""
TIMED_S = (3, 200, 700)
"""Delays of the timed messages."""


def families_of(text: str) -> dict[str, set[str]]:
    """Return the label names of each family of a page."""
    found: dict[str, set[str]] = {}
    for name, labels, _ in SAMPLE.findall(text):
        found.setdefault(name, set()).update(label for label, _ in LABEL.findall(labels))
    return {name: labels - JAVA_ONLY for name, labels in found.items()}


def types_of(text: str) -> dict[str, str]:
    """Return the type of each family by its TYPE line; Java's lines lack units and `_total`."""
    return dict(re.findall(r"^# TYPE (rocketmq_\w+) (\w+)$", text, re.MULTILINE))


def scrape(port: int) -> str:
    """Return the page of a broker."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        page: str = answer.read().decode()
    return page


async def send_other_kinds(name_server: str) -> None:
    """Send delayed and timed messages and transactions."""
    async with Producer(name_server, group="pg") as producer:
        for message in (
            Message("DelayedTopic", b"x", delay_level=1),
            *(Message("TimedTopic", b"x", delay=delay_s) for delay_s in TIMED_S),
        ):
            result = await producer.send(message)
            assert result.status is SendStatus.SEND_OK

    async def never(_message: StoredMessage) -> TransactionState:
        return TransactionState.UNKNOWN

    async with TransactionProducer(name_server, group="tg", check=never, topics=["TransTopic"]) as transactions:
        for outcome in ("commit", "rollback", "open"):
            transaction = await transactions.transaction(Message("TransTopic", b"x")).__aenter__()
            if outcome == "commit":
                await transaction.commit()
            elif outcome == "rollback":
                await transaction.rollback()


async def page_after_traffic(name_server: str, port: int) -> str:
    """Send messages to a broker, consume all of them, and scrape it while the clients are connected."""
    async with Producer(name_server, group="pg") as producer:
        for number in range(MESSAGES):
            result = await producer.send(Message("MetricsTopic", b"x" * 100, keys=[f"key{number}"]))
            assert result.status is SendStatus.SEND_OK
        await send_other_kinds(name_server)
        async with PushConsumer(name_server, group="cg", consume_from=ConsumeFrom.FIRST) as consumer:
            await consumer.subscribe("MetricsTopic")
            for _ in range(MESSAGES):
                assert await consumer.receive(60) is not None
            await asyncio.to_thread(
                wait_until,
                lambda: families_of(scrape(port)).keys() >= set(WANTED),
                what="the metrics of what was sent",
                within_s=60,
            )
            return await asyncio.to_thread(scrape, port)


def values_of(text: str, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """Return the samples of a family that stays the same, by the values of some labels."""
    found: dict[tuple[str, ...], float] = {}
    for line in text.splitlines():
        match = re.match(rf"{name}\{{([^}}]*)\}} (\S+)", line)
        if match is not None:
            pairs = dict(LABEL.findall(match[1]))
            key = tuple(pairs[label] if label != "le" else str(float(pairs[label])) for label in labels)
            found[key] = float(match[2])
    return found


@spec("O01")
def test_metrics_have_the_names_types_and_labels_of_a_java_broker(tmp_path: Path) -> None:
    java_port, our_port = free_port(), free_port()
    with JavaNameServer(VERSION, tmp_path / "namesrv") as server:
        server.start()
        java = JavaBroker(
            VERSION,
            tmp_path / "java",
            namesrv=server.address,
            metricsExporterType="PROM",
            metricsPromExporterPort=java_port,
        )
        with java:
            start_registered(java, server)
            theirs = asyncio.run(asyncio.wait_for(page_after_traffic(server.address, java_port), 120))
    with OurNameServer(tmp_path / "our-namesrv") as our_server:
        our_server.start()
        settings: dict[str, Value] = {"metricsExporterType": "PROM", "metricsPromExporterPort": our_port}
        with OurBroker(tmp_path / "ours", namesrv=our_server.address, settings=settings) as ours:
            ours.start()
            wait_registered(our_server.port, "broker-a")
            mine = asyncio.run(asyncio.wait_for(page_after_traffic(our_server.address, our_port), 120))
    (tmp_path / "java.txt").write_text(theirs)
    (tmp_path / "ours.txt").write_text(mine)
    java_labels, our_labels = families_of(theirs), families_of(mine)
    assert len(java_labels) > 15
    lacking = {name for name in java_labels if name not in our_labels and not name.startswith(tuple(MISSING))}
    assert not lacking
    common = java_labels.keys() & our_labels.keys()
    assert {name: our_labels[name] for name in common} == {name: java_labels[name] for name in common}
    assert our_labels.keys() - common <= {"rocketmq_send_to_dlq_messages_total", "rocketmq_processor_watermark"}
    types, our_types = types_of(theirs), types_of(mine)
    for name, labels in (
        ("rocketmq_commit_messages_total", ("topic",)),
        ("rocketmq_rollback_messages_total", ("topic",)),
        ("rocketmq_half_messages", ("topic",)),
        ("rocketmq_finish_message_latency_milliseconds_bucket", ("topic", "le")),
        ("rocketmq_timer_enqueue_total", ("topic",)),
        ("rocketmq_timing_messages", ("topic",)),
        ("rocketmq_timer_message_snapshot", ("timer_bound_s",)),
        ("rocketmq_delay_message_latency_seconds_bucket", ("topic", "le")),
    ):
        assert values_of(mine, name, *labels) == values_of(theirs, name, *labels) != {}, name
    for name in sorted(common):
        java_name = max((one for one in types if name.startswith(one)), key=len)
        assert our_types[name] == types[java_name], name
