"""Metrics of a Java broker 5.3.3 and of ours, scraped from the same traffic: names, types and labels."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from urllib.request import urlopen

from tandemq import ConsumeFrom, Message, Producer, PushConsumer, SendStatus
from tests.interop.java import JavaBroker, JavaNameServer, free_port, wait_until
from tests.interop.ours import OurBroker
from tests.interop.peers import start_registered
from tests.interop.wire import wait_registered
from tests.spec import spec

VERSION = "5.3.3"
MESSAGES = 20
SAMPLE = re.compile(r"(rocketmq_[a-z_]+?)(?:_bucket|_sum|_count)?\{([^}]*)\} (\S+)")
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
JAVA_ONLY = {"otel_scope_name", "otel_scope_version", "aggregation", "le"}
MISSING = {
    # What has no counterpart: timers, transactions and POP, and creation times of topics and groups.
    *("rocketmq_timer_", "rocketmq_timing_", "rocketmq_delay_message_latency", "rocketmq_pop_", "rocketmq_half_"),
    *("rocketmq_commit_", "rocketmq_rollback_", "rocketmq_finish_", "rocketmq_topic_create_", "rocketmq_rocksdb_"),
    *("rocketmq_consumer_group_create_", "rocketmq_lmq_", "rocketmq_processor_watermark"),
}


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


async def pages_after_traffic(name_server: str, ports: tuple[int, int]) -> list[str]:
    """Send messages to both brokers, consume all of them, and scrape both while the clients are connected."""
    async with Producer(name_server, group="pg") as producer:
        for number in range(MESSAGES):
            result = await producer.send(Message("MetricsTopic", b"x" * 100, keys=[f"key{number}"]))
            assert result.status is SendStatus.SEND_OK
        async with PushConsumer(name_server, group="cg", consume_from=ConsumeFrom.FIRST) as consumer:
            await consumer.subscribe("MetricsTopic")
            for _ in range(MESSAGES):
                assert await consumer.receive(60) is not None
            wanted = ("consumer_lag_messages", "messages_out_total", "message_size", "consumer_connections")
            await asyncio.to_thread(
                wait_until,
                lambda: all(f"rocketmq_{name}" in scrape(port) for name in wanted for port in ports),
                what="the metrics of both brokers",
                within_s=60,
            )
            return [await asyncio.to_thread(scrape, port) for port in ports]


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
        ours = OurBroker(
            tmp_path / "ours",
            namesrv=server.address,
            settings={"brokerName": "broker-b", "metricsPort": our_port},
        )
        with java, ours:
            start_registered(java, server)
            ours.start()
            wait_registered(server.port, "broker-b")
            work = pages_after_traffic(server.address, (java_port, our_port))
            theirs, mine = asyncio.run(asyncio.wait_for(work, 180))
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
    for name in sorted(common):
        java_name = max((one for one in types if name.startswith(one)), key=len)
        assert our_types[name] == types[java_name], name
